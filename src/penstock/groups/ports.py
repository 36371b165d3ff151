# SPDX-License-Identifier: Apache-2.0
"""What the limits of resource groups need of producers, topics and clients, of a broker or of a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.groups.group_publish import GroupPublish
    from penstock.net.connection import Connection


class PublishLimit(Protocol):
    """A limit that may be in debt."""

    def short_of(self, now_ns: int) -> str | None:
        """Which limit is in debt, "msg" or "bytes"; None if neither is."""


class RateLimit(PublishLimit, Protocol):
    """A limit without a line: whoever it stops looks again when its debt is repaid."""

    def delay_ns(self, now_ns: int) -> int:
        """How long that takes."""


class LimitedTopic(Protocol):
    """A topic whose SENDs may be held."""

    publish_limited_times: int  # how often a limit stopped one of its producers

    @property
    def publish_limiters(self) -> Sequence[RateLimit | GroupPublish]: ...  # all, in the order in which they are asked
    @property
    def publish_lines(self) -> Sequence[GroupPublish]: ...  # those of them for which SENDs are held


class LimitedProducer(Protocol):
    """A producer whose SENDs may be held."""

    @property
    def producer_id(self) -> int: ...
    @property
    def topic(self) -> LimitedTopic: ...
    @property
    def replicates(self) -> bool: ...  # whether it sends what another cluster replicates, which is exempt
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
