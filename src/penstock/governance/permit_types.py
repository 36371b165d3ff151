# SPDX-License-Identifier: Apache-2.0
"""The values a `PermitQueue` deals in: limits, permits, the requests for them, and a view of one moment.

Where: `permits` decides about them; `permit_waiters` keeps those that wait in order; everybody else holds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from penstock.governance.permit_errors import PermitError
    from penstock.governance.permits import PermitQueue
    from penstock.governance.wait_times import WaitTimesSnapshot


class Owner(NamedTuple):
    """On whose behalf permits are asked for. Shares of the queue go by tenant, then by connection."""

    tenant: str
    connection: Hashable


NOBODY: Final = Owner("", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitLimits:
    """How many permits there are, how many requests may wait for them, and how long. Bounds of 0 or less are none."""

    permits_max: int
    queue_max: int
    timeout_ns: int

    def __post_init__(self) -> None:
        if self.timeout_ns < 0:
            raise ValueError(f"want a timeout of 0 or more, got {self.timeout_ns} ns")


class Permit:
    """So many permits, had by `owner` until they are released or replaced; `size` is 0 from then on."""

    __slots__ = ("owner", "queue", "released", "request", "size")

    def __init__(self, queue: PermitQueue, owner: Owner, size: int) -> None:
        self.queue = queue
        self.owner = owner
        self.size = size
        self.released = False
        self.request: Request | None = None  # the update that waits to replace it


class Request:
    """One that asked for permits. `outcome` is None while it waits, then its permit, or why there is none."""

    __slots__ = ("deadline_ns", "had", "lends", "outcome", "owner", "replaces", "since_ns", "wants")

    def __init__(
        self, owner: Owner, wants: int, since_ns: int, deadline_ns: int, replaces: Permit | None, *, lends: bool
    ) -> None:
        self.owner = owner
        self.wants = wants
        self.since_ns = since_ns
        self.deadline_ns = deadline_ns
        self.replaces = replaces
        self.lends = lends
        self.had = 0  # what the replaced permit had when this was granted
        self.outcome: Permit | PermitError | None = None

    @property
    def needs(self) -> int:
        """How many permits more it takes to grant it; less than none for an update to less."""
        return self.wants - (self.replaces.size if self.replaces is not None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRequest:
    """One who waits, as others see it."""

    owner: Owner
    wants: int
    has: int  # of a permit that is to be updated
    waited_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitSnapshot:
    """One moment of a queue, in plain values. Without a bound nothing counts as acquired."""

    permits_max: int  # 0: not bounded
    acquired: int
    waiting_updates: int
    waiting_acquires: int
    queue_max: int  # 0: not bounded
    timeout_ns: int
    oldest_wait_ns: int  # of those that wait now
    waits: WaitTimesSnapshot
    timeouts_total: int
    queue_full_total: int
    cancelled_total: int
    beyond_limit_total: int

    @property
    def queue_size(self) -> int:
        """How many requests wait."""
        return self.waiting_updates + self.waiting_acquires
