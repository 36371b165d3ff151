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
from penstock.broker.topics.non_persistent import NON_PERSISTENT

if TYPE_CHECKING:
    from penstock.broker.topics.non_persistent import NonPersistentTopics
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog


class TopicIndex:
    """Topics by name."""

    def __init__(self, catalog: Catalog, non_persistent: NonPersistentTopics | None = None) -> None:
        """Args: non_persistent: those of all brokers; None if this one is alone."""
        self._catalog = catalog
        self._non_persistent = non_persistent
        self._loaded: dict[str, Topic] = {}
        elsewhere = non_persistent.names() if non_persistent is not None else []
        self.names = NameIndex([*(record.name for record in catalog.topics()), *elsewhere])
        self.feed = TopicFeed()

    def __len__(self) -> int:
        return len(self._loaded)

    def loaded(self) -> list[Topic]:
        return list(self._loaded.values())

    def get(self, name: TopicName | str) -> Topic | None:
        return self._loaded.get(str(name))

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is stored, or is a non-persistent topic that is loaded, by any broker."""
        text = str(name)
        return (
            text in self._loaded
            or self._catalog.topic(text) is not None
            or (not name.is_persistent and text in self._catalog.documents(NON_PERSISTENT))
        )

    def count(self, namespace: str) -> int:
        """Number of persistent topics in the namespace, each partition counted."""
        return len(self.names.of("persistent", namespace))

    def add(self, topic: Topic) -> None:
        self._loaded[topic.text] = topic
        self.add_name(topic.text)

    def remove(self, topic: Topic) -> None:
        """Remove an unloaded topic; a newer object of the same name stays."""
        if self._loaded.get(topic.text) is topic:
            del self._loaded[topic.text]
        if not topic.persistent:
            self.remove_name(topic.text)
            if self._non_persistent is not None:
                self._non_persistent.gone(topic.text)

    def add_name(self, text: str) -> bool:
        """Add a name, and notify listeners of the feed if it is new; returns whether it is."""
        new = self.names.add(text)
        if new:
            self.feed.report(text, created=True)
        return new

    def remove_name(self, text: str) -> None:
        """Remove a name, and notify listeners of the feed if it was known."""
        if self.names.discard(text):
            self.feed.report(text, created=False)
