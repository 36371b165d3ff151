# SPDX-License-Identifier: Apache-2.0
"""The topics to which clients of a proxy publish, each once, for adaptive throttling.

Why: a topic's limit is for all its producers, and they come over many connections. A topic stays for a minute after its
last producer, so that one that connects again finds the same limit and the same debt.
Where: the proxy has one if adaptive throttling is enabled; `relayed_sends` adds producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.governance.memory_row import MemoryRow
    from penstock.groups.adaptive_publish import AdaptiveTopic
    from penstock.groups.group import Group

# Memory of one topic, besides its name.
TOPIC_BYTES: Final = 1_024
KEPT_NS: Final = 60 * NS_PER_S


class PublishedTopic:
    """A topic. Implements `ThrottledTopic`.

    Attributes:
        producers: call these when the limit of the topic begins or ends.
    """

    __slots__ = (
        "adaptive",
        "bytes_in",
        "charged_bytes",
        "closed",
        "idle_since_ns",
        "messages_in",
        "messages_when_idle",
        "name",
        "producers",
        "resource_groups",
        "text",
    )

    def __init__(self, name: TopicName, text: str, charged_bytes: int) -> None:
        self.name = name
        self.text = text
        self.charged_bytes = charged_bytes
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_when_idle = 0
        self.closed = False
        self.adaptive: AdaptiveTopic | None = None
        self.resource_groups: Sequence[Group] = ()
        self.producers: dict[object, Callable[[], None]] = {}
        self.idle_since_ns = 0  # without producers


class PublishedTopics:
    """All topics with producers."""

    def __init__(self, memory: MemoryRow, clock: Clock) -> None:
        """Args: memory: is charged for topics."""
        self.forgotten: Callable[[PublishedTopic], None] = lambda _topic: None
        self._memory = memory
        self._clock = clock
        self._topics: dict[str, PublishedTopic] = {}

    def opened(self, name: TopicName, producer: object, changed: Callable[[], None]) -> PublishedTopic | None:
        """Add a producer, and call `changed` when its limit begins or ends.

        Returns None if there is no memory for one more topic.
        """
        text = str(name)
        topic = self._topics.get(text)
        if topic is None:
            nbytes = TOPIC_BYTES + 2 * len(text)
            if not self._memory.try_take(nbytes):
                return None
            topic = self._topics[text] = PublishedTopic(name, text, nbytes)
        topic.producers[producer] = changed
        return topic

    def closed(self, topic: PublishedTopic, producer: object) -> None:
        """Remove a producer."""
        topic.producers.pop(producer, None)
        topic.idle_since_ns = self._clock.monotonic_ns()

    def loaded(self) -> Sequence[PublishedTopic]:
        """Return all topics; those that have long had no producer are forgotten."""
        before_ns = self._clock.monotonic_ns() - KEPT_NS
        for topic in [one for one in self._topics.values() if not one.producers and one.idle_since_ns < before_ns]:
            del self._topics[topic.text]
            topic.closed = True
            self.forgotten(topic)
            self._memory.release(topic.charged_bytes)
        return list(self._topics.values())

    @staticmethod
    def changed(topic: PublishedTopic) -> None:
        """The limit of a topic began or ended."""
        for changed in list(topic.producers.values()):
            changed()
