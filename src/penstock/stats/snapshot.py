# SPDX-License-Identifier: Apache-2.0
"""The part of a snapshot that brokers and proxies have in common: connections, memory, groups, records, the process.

Why a common base: both are made of the same parts, so the metrics of these parts are the same rows of one list.
Where: `broker.stats.snapshot` and `proxy.snapshot` add their own; `reading` reads the parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.membership import Registration
    from penstock.governance.holds import HoldKind
    from penstock.governance.request_values import RequestMemorySnapshot
    from penstock.groups.adaptive_throttling import ThrottlingSnapshot
    from penstock.net.listing_memory import TopicListSnapshot
    from penstock.stats.expiry import Expiry


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTrafficSnapshot:
    """Publish or dispatch traffic of one resource group in this process. Rates are per second; -1: no limit."""

    group: str
    traffic: str  # "publish" or "dispatch"
    messages: int  # passed since the group is in use here
    bytes: int
    quota_messages: float  # of all brokers, or proxies, together
    quota_bytes: float
    share_messages: float  # of this process
    share_bytes: float
    waiting: int  # topics (publish) or subscriptions (dispatch) that wait for the group
    held_messages: int  # SENDs that wait in memory
    held_bytes: int
    throttled_ns: int  # for how long something has been waiting, in all


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteUsage:
    """Demand of another broker, or proxy, for a group, by its last report; per second."""

    group: str
    traffic: str  # "publish" or "dispatch"
    broker: str
    messages: float
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSnapshot:
    """Quotas that are shared with other brokers, or proxies."""

    connected: bool = False  # to the usage topic
    failures: int = 0
    reports: Mapping[str, int] = field(default_factory=dict)  # sent, received, and by reason why they did not count
    remote: tuple[RemoteUsage, ...] = ()
    members: int = 0  # that share quotas now, this process included
    registration: Registration | None = None  # None: they do not register


@dataclass(frozen=True, slots=True, kw_only=True)
class MutedConnection:
    """A connection that is not read, with the reasons and its memory."""

    peer: str
    muted_ns: int  # duration
    reasons: tuple[str, ...]  # oldest first
    held_bytes: int  # read and not handled yet: an unfinished frame, or commands
    want_bytes: int  # size of the next read; 0 if it does not wait for request memory
    command_bytes: int = 0  # charged for its pending commands
    unsent_bytes: int = 0  # answers and messages not sent yet


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Use and limit of one row of the memory budget, and how often it refused what was asked for."""

    used_bytes: int
    limit_bytes: int
    refused_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """Figures of the operating system for this process."""

    resident_bytes: int
    cpu_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTurnsSnapshot:
    """Durations of the event loop's turns."""

    longest_ns: int = 0  # since the start
    longer: Mapping[int, int] = field(default_factory=dict)  # threshold in ms -> number of turns that took longer
    tasks: int = 0  # of the loop, that have not ended


# Why decision records are dropped.
DROP_REASONS: Final = ("too-many", "queue-full", "too-many-episodes", "not-stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsSnapshot:
    """Counters of usage and decision records of this run."""

    written: Mapping[str, int]  # usage and decision records
    failures: Mapping[str, int]
    dropped: Mapping[str, int]  # decision records, by reason
    queued_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class ServerSnapshot:
    """A broker or a proxy at (nearly) one moment. A key of weak dictionaries, by identity."""

    cluster: str
    started_at_ms: int
    taken_at_ms: int
    stopping: bool
    connections_accepted: int
    connections_open: int
    muted: tuple[MutedConnection, ...]
    request_memory: RequestMemorySnapshot
    listings: TopicListSnapshot
    memory: Mapping[str, MemoryUse]  # every row of the memory budget, by name
    holds: Mapping[HoldKind, int] = field(default_factory=dict)  # what waits now
    resource_groups: tuple[GroupTrafficSnapshot, ...] = ()
    sharing: SharingSnapshot = field(default_factory=SharingSnapshot)
    records: RecordsSnapshot | None = None  # None: nothing is recorded
    throttling: ThrottlingSnapshot | None = None  # None: disabled
    loop_turns: LoopTurnsSnapshot = LoopTurnsSnapshot()
    process: ProcessUse
    expiries: tuple[Expiry, ...] = ()  # of certificates and tokens that this process shows
