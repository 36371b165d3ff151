# SPDX-License-Identifier: Apache-2.0
"""Reads the parts that brokers and proxies have in common into a snapshot, in portions, on their loop.

Many rows are read in several turns of the loop. Each row is consistent; two of them may be a few milliseconds apart.
Requests that arrive while a snapshot is taken share it: sixty at once, each with its own, would be sixty portions in
each turn.
Where: `broker.stats.snapshot` and `proxy.snapshot`.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from penstock.core.units import NS_PER_S
from penstock.stats.snapshot import (
    GroupTrafficSnapshot,
    LoopTurnsSnapshot,
    MemoryUse,
    MutedConnection,
    RemoteUsage,
    ServerSnapshot,
    SharingSnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from penstock.core.clock import Clock
    from penstock.governance.budget import Budget
    from penstock.governance.request_values import MutedReader
    from penstock.governance.resource_group import ClassLimiter, GroupRate
    from penstock.groups.group import Group
    from penstock.groups.live_exchange import SharedQuotas
    from penstock.net.connection import Connection
    from penstock.net.loop_turns import LoopTurns

S = TypeVar("S", bound=ServerSnapshot)

# Objects read in one turn of the loop: well under a millisecond. Only publishing may block it for more than five.
ROWS_PER_TURN: Final = 200

# Snapshots that may be in use at a time: responses to slow readers are rendered from them, piece by piece.
HELD_MAX: Final = 4
# A response ends within this time (`admin.http_server`).
HELD_NS_MAX: Final = 60 * NS_PER_S


def memory_rows(budget: Budget) -> dict[str, MemoryUse]:
    """Return every row of the memory budget."""
    return {row.name: MemoryUse(row.used_bytes, row.limit_bytes, row.refused_total) for row in budget}


class Client(Protocol):
    """A connected client."""

    @property
    def connection(self) -> Connection: ...

    @property
    def waiting_bytes(self) -> int:
        """Bytes charged for pending commands."""


class Taking(Generic[S]):
    """Takes one snapshot at a time, for all that ask."""

    def __init__(self, read: Callable[[Pace], Awaitable[S]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._taking: asyncio.Task[S] | None = None
        self._taken: list[tuple[int, weakref.ref[S]]] = []  # and when, oldest first

    async def take(self) -> S:
        """Return the snapshot that is being taken, or take one.

        If `HELD_MAX` earlier ones are still in use, return the newest of these, so that slow readers cannot make the
        process hold any number of them.
        """
        if self._taking is None:
            held = self._held()
            if len(held) >= HELD_MAX:
                return held[-1]
            self._taking = asyncio.get_running_loop().create_task(self._take())
            self._taking.add_done_callback(self._has_taken)
        return await asyncio.shield(self._taking)  # A caller that is cancelled must not cancel the others.

    async def _take(self) -> S:
        return await self._read(Pace())

    def _held(self) -> list[S]:
        since_ns = self._clock.monotonic_ns() - HELD_NS_MAX
        self._taken = [(at_ns, taken) for at_ns, taken in self._taken if at_ns > since_ns and taken() is not None]
        return [snapshot for _, taken in self._taken if (snapshot := taken()) is not None]

    def _has_taken(self, taking: asyncio.Task[S]) -> None:
        self._taking = None
        if not taking.cancelled() and taking.exception() is None:
            self._taken.append((self._clock.monotonic_ns(), weakref.ref(taking.result())))


class Pace:
    """Yields to the loop after every portion of rows."""

    def __init__(self, portion: int = 0) -> None:
        """Args: portion: 0 for `ROWS_PER_TURN`."""
        self._portion = portion or ROWS_PER_TURN
        self._rows = 0

    async def rows(self, count: int) -> None:
        self._rows += count
        if self._rows >= self._portion:
            self._rows = 0
            await asyncio.sleep(0)


async def muted_connections(
    clients: Collection[Client], waiting: Iterable[MutedReader], now_ns: int, pace: Pace
) -> tuple[MutedConnection, ...]:
    """Connections that are not read. Args: waiting: those that wait for request memory."""
    muted = []
    readers = {reader.owner: reader for reader in waiting}
    for client in list(clients):
        connection = client.connection
        mutes = connection.muted.snapshot()
        if mutes:
            reader = readers.get(connection.id)
            muted.append(
                MutedConnection(
                    peer=connection.peer,
                    muted_ns=now_ns - mutes[0].since_ns,
                    reasons=tuple(dict.fromkeys(mute.reason.value for mute in mutes)),
                    held_bytes=connection.held_bytes,
                    want_bytes=reader.want_bytes if reader is not None else 0,
                    command_bytes=client.waiting_bytes,
                    unsent_bytes=connection.out_bytes,
                )
            )
        await pace.rows(1)
    return tuple(muted)


async def group_traffic(groups: Mapping[str, Group], clock: Clock, pace: Pace) -> tuple[GroupTrafficSnapshot, ...]:
    """Every group in use, publishing and dispatch apart."""
    rows = []
    for group in list(groups.values()):
        limiter, now_ns = group.limiter, clock.monotonic_ns()
        rows.append(_traffic(group.name, "publish", limiter.publish, group.quota.publish, now_ns, group.publish))
        rows.append(_traffic(group.name, "dispatch", limiter.dispatch, group.quota.dispatch, now_ns, group.dispatch))
        await pace.rows(2)
    return tuple(rows)


async def shared(sharing: SharedQuotas, groups: Iterable[str], pace: Pace) -> SharingSnapshot:
    """Return how quotas are shared, and the others' demand for these groups."""
    remote = []
    for name in list(groups):
        for broker, (*publish, messages_out, bytes_out) in sharing.others(name).items():
            for traffic, (messages, nbytes) in (("publish", publish), ("dispatch", (messages_out, bytes_out))):
                remote.append(
                    RemoteUsage(
                        group=name, traffic=traffic, broker=broker, messages=messages / 1_000, bytes=nbytes / 1_000
                    )
                )
        await pace.rows(1)
    return SharingSnapshot(
        connected=sharing.connected,
        failures=sharing.failures,
        reports={"sent": sharing.sent, "received": sharing.received, **sharing.refused},
        remote=tuple(remote),
        members=sharing.members,
        registration=sharing.registration,
    )


def turns(loop_turns: LoopTurns) -> LoopTurnsSnapshot:
    return LoopTurnsSnapshot(
        longest_ns=loop_turns.longest_ns, longer=dict(loop_turns.longer), tasks=len(asyncio.all_tasks())
    )


class _Waiting(Protocol):
    @property
    def waiting(self) -> int: ...


def _traffic(
    group: str, traffic: str, limiter: ClassLimiter, quota: GroupRate, now_ns: int, line: _Waiting
) -> GroupTrafficSnapshot:
    share = limiter.share
    return GroupTrafficSnapshot(
        group=group,
        traffic=traffic,
        messages=limiter.messages_passed,
        bytes=limiter.bytes_passed,
        quota_messages=-1 if quota.messages is None else quota.messages,
        quota_bytes=-1 if quota.bytes is None else quota.bytes,
        share_messages=-1 if share.messages is None else share.messages,
        share_bytes=-1 if share.bytes is None else share.bytes,
        waiting=line.waiting,
        held_messages=limiter.held.messages,
        held_bytes=limiter.held.bytes,
        throttled_ns=limiter.limited_ns(now_ns),
    )
