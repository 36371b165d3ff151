# SPDX-License-Identifier: Apache-2.0
"""Membership by report: who has sent a signed usage report lately is a member.

Why: proxies on several machines need no registry for this. With ZooKeeper a process that died is noticed sooner than
after its reports have stopped, and two processes of one name are told apart.
Where: a proxy without `membershipUrl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.core.clock import Clock

# Members that are remembered; the exchange is made for hundreds.
MEMBERS_MAX: Final = 1_000


class HeardNames:
    """`MemberNames` by report. All methods are called on the event loop.

    Attributes:
        own: the name of this process.
        names: the members; `own` always is one.
    """

    def __init__(self, own: str, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.own = own
        self.names = frozenset({own})
        self._clock = clock
        self._loop = loop
        self._until_ns: dict[str, int] = {}
        self._listeners: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, name: str, until_ns: int) -> None:
        """See `MemberNames`; a name that is new is a member from now on."""
        if name == self.own or (name not in self._until_ns and len(self._until_ns) >= MEMBERS_MAX):
            return
        self._until_ns[name] = max(until_ns, self._until_ns.get(name, 0))
        self._publish()

    def listen(self, changed: Callable[[], None]) -> None:
        """See `MemberNames`."""
        self._listeners.append(changed)

    def close(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
        self._listeners.clear()

    def _publish(self) -> None:
        names = frozenset({self.own, *self._until_ns})
        if self._timer is None and self._until_ns:
            wait_ns = max(0, min(self._until_ns.values()) - self._clock.monotonic_ns())
            self._timer = self._loop.call_later(wait_ns / NS_PER_S, self._expire)
        if names != self.names:
            self.names = names
            for changed in self._listeners:
                changed()

    def _expire(self) -> None:
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        self._until_ns = {name: until_ns for name, until_ns in self._until_ns.items() if until_ns > now_ns}
        self._publish()
