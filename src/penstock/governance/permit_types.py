# SPDX-License-Identifier: Apache-2.0
"""The values of a `PermitQueue`: limits, permits, requests for permits, and a view of one moment.

Where: `permits` decides about them; `permit_waiters` keeps waiting requests in order.
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
    """The tenant and connection that permits are for. Shares of the queue go by tenant, then by connection."""

    tenant: str
    connection: Hashable


NOBODY: Final = Owner("", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitLimits:
    """How many permits there are, how many requests may wait for them, and for how long. 0 or less means no bound."""

    permits_max: int
    queue_max: int
    timeout_ns: int

    def __post_init__(self) -> None:
        if self.timeout_ns < 0:
            raise ValueError(f"want a timeout of 0 or more, got {self.timeout_ns} ns")


class Permit:
    """`size` permits that `owner` holds until they are released or replaced; then `size` is 0."""

    __slots__ = ("owner", "queue", "released", "request", "size")

    def __init__(self, queue: PermitQueue, owner: Owner, size: int) -> None:
        self.queue = queue
        self.owner = owner
        self.size = size
        self.released = False
        self.request: Request | None = None  # the update that waits to replace it


class Request:
    """A request for permits. `outcome` is None while it waits, then its permit or an error."""

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
        self.had = 0  # the size of the replaced permit when this request was granted
        self.outcome: Permit | PermitError | None = None

    @property
    def needs(self) -> int:
        """How many more permits are needed to grant it; negative for an update to fewer."""
        return self.wants - (self.replaces.size if self.replaces is not None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRequest:
    """A waiting request, as the admin port shows it."""

    owner: Owner
    wants: int
    has: int  # the size of the permit to be updated
    waited_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitSnapshot:
    """One moment of a queue. Without a bound, nothing counts as acquired."""

    permits_max: int  # 0: no bound
    acquired: int
    waiting_updates: int
    waiting_acquires: int
    queue_max: int  # 0: no bound
    timeout_ns: int
    oldest_wait_ns: int  # of the requests that wait now
    waits: WaitTimesSnapshot
    timeouts_total: int
    queue_full_total: int
    cancelled_total: int
    beyond_limit_total: int

    @property
    def queue_size(self) -> int:
        """The number of waiting requests."""
        return self.waiting_updates + self.waiting_acquires
