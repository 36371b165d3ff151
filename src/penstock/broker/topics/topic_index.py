# SPDX-License-Identifier: Apache-2.0
"""Which topics there are, and which of them are loaded.

What must hold: the names are those of what is stored, and of what is not persistent and loaded; the feed tells each
change of them, in order.
Where: the directory adds and removes; whoever needs topics that are there already asks here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.topics.feed import TopicFeed
from penstock.broker.topics.listing import NameIndex

if TYPE_CHECKING:
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog


class TopicIndex:
    """Topics by name."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._loaded: dict[str, Topic] = {}
        self.names = NameIndex(record.name for record in catalog.topics())
        self.feed = TopicFeed()

    def __len__(self) -> int:
        return len(self._loaded)

    def loaded(self) -> list[Topic]:
        """Topics somebody has used since the start."""
        return list(self._loaded.values())

    def get(self, name: TopicName | str) -> Topic | None:
        """The topic if it is loaded."""
        return self._loaded.get(str(name))

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is stored, or, not being persistent, somebody uses it."""
        text = str(name)
        return text in self._loaded or self._catalog.topic(text) is not None

    def count(self, namespace: str) -> int:
        """How many persistent topics the namespace has, partitions one by one."""
        return len(self.names.of("persistent", namespace))

    def add(self, topic: Topic) -> None:
        """A topic was loaded."""
        self._loaded[topic.text] = topic
        self.appeared(topic.text)

    def remove(self, topic: Topic) -> None:
        """A topic is not loaded any more; one that was loaded anew under its name stays."""
        if self._loaded.get(topic.text) is topic:
            del self._loaded[topic.text]
        if not topic.persistent:
            self.vanished(topic.text)

    def appeared(self, text: str) -> None:
        """A topic exists: list it, and tell whoever watches, unless it was known."""
        if self.names.add(text):
            self.feed.tell(text, created=True)

    def vanished(self, text: str) -> None:
        """A topic does not exist any more."""
        if self.names.discard(text):
            self.feed.tell(text, created=False)
