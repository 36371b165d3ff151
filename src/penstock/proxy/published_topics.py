# SPDX-License-Identifier: Apache-2.0
"""The topics to which clients of a proxy publish, each once, for adaptive throttling.

Why: a topic's limit is for all its producers, and they come over many connections. A topic stays for a minute after its
last producer, so that one that connects again finds the same limit and the same debt.
Where: the proxy has one if adaptive throttling is enabled; `relayed_sends` adds producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from penstock.core.units import NS_PER_S
from penstock.governance.resource_group import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.governance.budget import Row
    from penstock.groups.adaptive_publish import AdaptivePublish, AdaptiveTopic
    from penstock.groups.group import Group
    from penstock.groups.ports import Throttles

# Memory of one topic, besides its name (measured with tracemalloc: 710).
TOPIC_BYTES: Final = 768
KEPT_NS: Final = 60 * NS_PER_S


class PublishedTopic:
    """A topic. Implements `ThrottledTopic`.

    Attributes:
        producers: call these when the limit of the topic begins or ends.
    """

    __slots__ = (
        "_of",
        "adaptive",
        "bytes_in",
        "charged_bytes",
        "closed",
        "counted",
        "idle_since_ns",
        "messages_in",
        "name",
        "producers",
        "resource_groups",
        "text",
        "throttle_lines",
        "waiting",
    )

    # Brokers publish to each other directly. To a proxy all topics are those of clients.
    system: ClassVar[bool] = False

    def __init__(self, name: TopicName, text: str, charged_bytes: int, of: PublishedTopics) -> None:
        self._of = of
        self.name = name
        self.text = text
        self.charged_bytes = charged_bytes
        self.messages_in = 0
        self.bytes_in = 0
        self.counted = NOTHING
        self.waiting = NOTHING
        self.throttle_lines: tuple[AdaptivePublish, ...] = ()
        self.closed = False
        self.adaptive: AdaptiveTopic | None = None
        self.resource_groups: Sequence[Group] = ()
        self.producers: dict[object, Callable[[], None]] = {}
        self.idle_since_ns = 0  # without producers

    def lines(self) -> tuple[AdaptivePublish, ...]:
        """Return the limits in force, now that its groups are known."""
        return self._of.throttling.lines(self) if self._of.throttling is not None else ()


class PublishedTopics:
    """All topics with producers."""

    def __init__(self, memory: Row, clock: Clock) -> None:
        """Args: memory: is charged for topics."""
        self.throttling: Throttles[PublishedTopic] | None = None  # set before the first producer
        self._memory = memory
        self._clock = clock
        self._topics: dict[str, PublishedTopic] = {}

    def opened(self, name: TopicName, producer: object, changed: Callable[[], None]) -> PublishedTopic:
        """Add a producer, and call `changed` when its limit begins or ends.

        Raises:
            ServiceNotReady: there is no memory for one more topic.
        """
        text = str(name)
        topic = self._topics.get(text)
        if topic is None:
            nbytes = TOPIC_BYTES + 2 * len(text)
            self._memory.charge_for(f"topic {text[:100]}", nbytes)
            topic = self._topics[text] = PublishedTopic(name, text, nbytes, self)
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
            if self.throttling is not None:
                self.throttling.forget_topic(topic)
            self._memory.release(topic.charged_bytes)
        return list(self._topics.values())

    @staticmethod
    def changed(topic: PublishedTopic) -> None:
        """The limit of a topic began or ended."""
        for changed in list(topic.producers.values()):
            changed()
