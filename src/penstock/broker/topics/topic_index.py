# SPDX-License-Identifier: Apache-2.0
"""The index of all topics, and of those that are loaded.

Invariants: the names are those of stored topics and of loaded non-persistent topics; the feed reports each change, in
order.
Where: the directory adds and removes topics; other parts look up existing topics here.
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
        return list(self._loaded.values())

    def get(self, name: TopicName | str) -> Topic | None:
        return self._loaded.get(str(name))

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is stored, or is a loaded non-persistent topic."""
        text = str(name)
        return text in self._loaded or self._catalog.topic(text) is not None

    def count(self, namespace: str) -> int:
        """Number of persistent topics in the namespace, each partition counted."""
        return len(self.names.of("persistent", namespace))

    def add(self, topic: Topic) -> None:
        self._loaded[topic.text] = topic
        self.appeared(topic.text)

    def remove(self, topic: Topic) -> None:
        """Remove an unloaded topic; a newer object of the same name stays."""
        if self._loaded.get(topic.text) is topic:
            del self._loaded[topic.text]
        if not topic.persistent:
            self.vanished(topic.text)

    def appeared(self, text: str) -> None:
        """Add a name, and notify listeners of the feed if it is new."""
        if self.names.add(text):
            self.feed.tell(text, created=True)

    def vanished(self, text: str) -> None:
        """Remove a name, and notify listeners of the feed if it was known."""
        if self.names.discard(text):
            self.feed.tell(text, created=False)
