# SPDX-License-Identifier: Apache-2.0
"""The proxy: makes the sessions of its clients, and looks after them once a second.

Where: `proxy_app` makes one and gives it the listeners' connections.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS
from penstock.proxy.session import STOPPING, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.clock import Clock
    from penstock.governance.budget import Row
    from penstock.governance.memory_pool import CommandMemory, Lease
    from penstock.groups.held_permits import PermitSteps
    from penstock.groups.held_sends import HeldMemory
    from penstock.net.connection import Connection
    from penstock.net.keep_alive import KeepAliveLimits
    from penstock.net.listener import Connections
    from penstock.proxy.client_identity import Authentication
    from penstock.proxy.groups import GroupFile, ProxyGroups
    from penstock.proxy.listings import Listings
    from penstock.proxy.recorder import Recorder
    from penstock.proxy.targets import Targets
    from penstock.proxy.throttling import PublishedTopics
    from penstock.proxy.traffic import Traffic
    from penstock.proxy.upstreams import Upstreams
    from penstock.proxy.usage import UsageCounts
    from penstock.stats.expiry import Expiries


# -- what all sessions of a proxy share --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Services shared by all sessions of a proxy."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    limits: Callable[[], KeepAliveLimits]
    upstreams: Upstreams
    targets: Targets
    listings: Listings
    groups: ProxyGroups
    held: HeldMemory  # of SENDs that wait for a resource group
    permit_steps: PermitSteps
    published: PublishedTopics | None = None  # None: adaptive throttling is off
    release: Callable[[Lease], None]  # of request memory
    commands_memory: CommandMemory
    sessions_memory: Row
    traffic: Traffic
    usage: UsageCounts | None  # None: usage is not recorded
    frame_bytes_max: int  # of clients
    authentication: Authentication | None = None  # None: brokers check what clients show
    expiries: Expiries | None = None  # of certificates and tokens; None: nobody asks
    closed: Callable[[Session, str], None]  # called when a client has disconnected, with the reason


TICK_S: Final = 1.0
# For how long one turn of the loop looks at producers and consumers when definitions of groups have changed: there may
# be tens of thousands, at 3 µs each.
LOOKS_NS: Final = 5 * NS_PER_MS
# The last part of a drain is for receipts: so many seconds, and not more than this part of it.
RECEIPTS_S: Final = 1.0
RECEIPTS_PART: Final = 0.25


class Proxy:
    """All sessions of one process."""

    def __init__(
        self,
        services: Services,
        connections: Connections,
        group_file: GroupFile | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.services = services
        self._group_file = group_file
        self._recorder = recorder
        services.groups.when_changed(self._look_again)
        self._connections = connections
        self._ticker: asyncio.TimerHandle | None = None
        self._stopping = False
        self._looks: Iterator[None] = iter(())  # what is left to look at since definitions changed last
        self._looking = False  # whether the next turn of the loop goes on with it

    def is_stopping(self) -> bool:
        """Whether it stops, and wants no new clients."""
        return self._stopping

    def begin_to_stop(self) -> None:
        """Say that no new clients are wanted; they are still accepted."""
        self._stopping = True

    def open_session(self, connection: Connection) -> Session:
        """Make the handler of a new connection."""
        return Session(connection, self.services)

    def start(self) -> None:
        """Look after connections from now on."""
        self._ticker = self.services.loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now_ns = self.services.clock.monotonic_ns()
        for connection in self._connections.all():
            handler = connection.handler
            if isinstance(handler, Session):
                handler.check_alive(now_ns)
        self._connections.evict_slow()
        if self._group_file is not None:
            self._group_file.look()
        self.services.upstreams.close_idle()
        if self.services.expiries is not None:
            self.services.expiries.tick(now_ns)
        if self._recorder is not None:
            self._recorder.tick(now_ns)
        self._ticker = self.services.loop.call_later(TICK_S, self._tick)

    def _look_again(self) -> None:
        """Definitions of resource groups have changed: look at all producers and consumers again."""
        self._looks = self._all_looks()
        if not self._looking:
            self._look_on()

    def _all_looks(self) -> Iterator[None]:
        for connection in self._connections.all():
            if connection.is_open and isinstance(handler := connection.handler, Session) and handler.relay is not None:
                sends, consumers = handler.relay.sends, handler.relay.consumers
                yield from sends.looks()
                yield from consumers.looks()

    def _look_on(self) -> None:
        """Look at as many as one turn of the loop has time for."""
        clock = self.services.clock
        stop_ns = clock.monotonic_ns() + LOOKS_NS
        self._looking = False
        for _ in self._looks:
            if clock.monotonic_ns() >= stop_ns:
                self._looking = True
                self.services.loop.call_soon(self._look_on)
                return

    async def drain(self, limit_s: float) -> list[str]:
        """Let all clients receive the answers to what was read of them, and close their connections.

        SENDs that wait for a resource group are sent when it is their turn, but not at the very end: their receipts
        would not reach the client any more, and it would publish them twice. Connections for which all that takes
        longer than `limit_s` stay open until `stop`. Returns what was cut off, in words.
        """
        sessions = [handler for one in self._connections.all() if isinstance(handler := one.handler, Session)]
        if not sessions:
            return []
        tasks = [asyncio.create_task(session.drain()) for session in sessions]
        receipts_s = min(RECEIPTS_S, limit_s * RECEIPTS_PART)
        cut_off = []
        _, late = await asyncio.wait(tasks, timeout=limit_s - receipts_s)
        if late:
            dropped = sum(session.drop_held() for session in sessions)
            if dropped:
                cut_off.append(f"{dropped} SENDs that waited for a resource group were not sent")
            _, late = await asyncio.wait(late, timeout=receipts_s)
        for task in late:
            task.cancel()
        if late:
            cut_off.append(f"{len(late)} of {len(sessions)} connections were not drained")
        return cut_off

    async def stop(self, limit_s: float, cut_off: Callable[[str], None]) -> None:
        """Send what has come, and close all connections; then record what is left, within `limit_s` seconds.

        `cut_off` is told of what was not recorded.
        """
        self._stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        for connection in self._connections.all():
            connection.close_after_flush(STOPPING)
        await asyncio.sleep(0)
        for connection in self._connections.all():
            connection.close(STOPPING)
        if self._recorder is not None:
            await self._recorder.stop(limit_s, cut_off)
        await self.services.listings.close()
        await self.services.upstreams.close()
