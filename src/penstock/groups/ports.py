# SPDX-License-Identifier: Apache-2.0
"""Producers, topics and clients of a broker or proxy, as resource groups and adaptive throttling use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.names import TopicName
    from penstock.governance.holds import Episode
    from penstock.governance.resource_group import Amount
    from penstock.groups.adaptive_publish import AdaptivePublish, AdaptiveTopic
    from penstock.groups.group import Group
    from penstock.groups.limit import PublishLimit
    from penstock.net.connection import Connection


TopicT_contra = TypeVar("TopicT_contra", bound="ThrottledTopic", contravariant=True)


class LimitedTopic(Protocol):
    """A topic whose SENDs may be held."""

    publish_limited_times: int  # how often a limit stopped one of its producers

    @property
    def publish_lines(self) -> Sequence[PublishLimit]: ...  # its limits, in the order in which they are asked

    def held(self, messages: int, nbytes: int) -> None:
        """Count SENDs that are held, for whatever limit, or that are not any more (negative)."""


class LimitedProducer(Protocol):
    """A producer whose SENDs may be held."""

    waits: Episode[PublishLimit] | None  # None until it waits for the first time

    @property
    def producer_id(self) -> int: ...
    @property
    def topic(self) -> LimitedTopic: ...
    @property
    def messages_in(self) -> int: ...  # charged so far
    @property
    def bytes_in(self) -> int: ...


class SendingClient(Protocol):
    """The session of a client."""

    @property
    def connection(self) -> Connection: ...
    @property
    def producers(self) -> Mapping[int, LimitedProducer]: ...  # by id


class ThrottledTopic(Protocol):
    """A topic that may be throttled adaptively."""

    adaptive: AdaptiveTopic | None  # None while nothing is published
    throttle_lines: tuple[AdaptivePublish, ...]  # in which its producers wait: its own, and that of its payer
    counted: Amount  # what the account of its payer has counted
    waiting: Amount  # SENDs that are held, for whatever limit

    @property
    def name(self) -> TopicName: ...
    @property
    def text(self) -> str: ...  # the full name
    @property
    def system(self) -> bool: ...  # whether only brokers publish to it: it is not throttled
    @property
    def messages_in(self) -> int: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def resource_groups(self) -> Sequence[Group]: ...


class Throttles(Protocol[TopicT_contra]):
    """Adaptive throttling, for those who keep the limiters of topics."""

    def lines(self, topic: TopicT_contra) -> tuple[AdaptivePublish, ...]:
        """Return the limits that are in force for a topic, also for one that is new."""

    def forget_topic(self, topic: TopicT_contra) -> None:
        """A topic is unloaded or deleted."""


class MeasuredMemory(Protocol):
    """The memory of this process, in bytes."""

    @property
    def limit(self) -> int: ...
    @property
    def used(self) -> int: ...  # without what the allocator keeps
    @property
    def resident(self) -> int: ...
    @property
    def owners(self) -> Mapping[str, int]: ...  # the rows of the budget
    @property
    def part(self) -> float: ...  # of the limit that is in use


class ThrottleSettings(Protocol):
    """The settings of adaptive throttling."""

    @property
    def adaptive_observe_only(self) -> bool: ...
    @property
    def adaptive_interval_ms(self) -> int: ...
    @property
    def adaptive_memory_high(self) -> float: ...
    @property
    def adaptive_memory_low(self) -> float: ...
    @property
    def adaptive_backlog_high(self) -> float: ...
    @property
    def adaptive_backlog_low(self) -> float: ...
    @property
    def adaptive_min_rate_factor(self) -> float: ...
    @property
    def adaptive_max_rate_change_factor(self) -> float: ...
    @property
    def adaptive_per_topic_metrics(self) -> bool: ...
