# SPDX-License-Identifier: Apache-2.0
"""A frozen view of the whole proxy, for its metrics.

Where: the admin port and the push to OpenTelemetry take one. It is read on the loop, in portions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.proxy.session import Session
from penstock.stats.process import process_use
from penstock.stats.reading import Taking, group_traffic, memory_rows, muted_connections, shared, turns
from penstock.stats.snapshot import ServerSnapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.governance.budget import Budget
    from penstock.governance.holds import HoldKind
    from penstock.groups.adaptive_throttling import AdaptiveThrottling
    from penstock.net.listener import Connections
    from penstock.net.loop_turns import LoopTurns
    from penstock.proxy.proxy import Services
    from penstock.proxy.quota_sharing import ProxySharing
    from penstock.proxy.recorder import Recorder
    from penstock.proxy.throttling import PublishedTopic
    from penstock.stats.reading import Pace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProxySnapshot(ServerSnapshot):
    """The whole proxy, at (nearly) one moment."""

    connections_refused: int
    broker_connections: int
    connected: Mapping[str, int]  # connections of clients to brokers, by what became of them
    reads: int
    to_brokers_bytes: int
    to_clients_bytes: int
    asked: Mapping[str, int]  # requests of lookups, by kind
    turned_away: Mapping[str, int]  # of these, those that the proxy refused by itself
    lookups_pending: int
    lookup_connections: int
    usage_topics: int | None = None  # whose usage is counted; None: it is not recorded
    usage_left_out: int = 0  # messages of topics that are only counted in sum


class ProxySnapshots(Taking[ProxySnapshot]):
    """Takes snapshots. All methods are called on the proxy's loop."""

    def __init__(
        self,
        *,
        cluster: str,
        services: Services,
        connections: Connections,
        sharing: ProxySharing,
        budget: Budget,
        holds: Callable[[], Awaitable[Mapping[HoldKind, int]]],
        loop_turns: LoopTurns,
        throttling: AdaptiveThrottling[PublishedTopic] | None,
        stopping: Callable[[], bool],
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(self._read_all, services.clock)
        self._cluster = cluster
        self._services = services
        self._connections = connections
        self._sharing = sharing
        self._budget = budget
        self._holds = holds
        self._loop_turns = loop_turns
        self._throttling = throttling
        self._recorder = recorder
        self.is_stopping = stopping
        self._started_at_ms = services.clock.wall_ms()

    async def _read_all(self, pace: Pace) -> ProxySnapshot:
        services, connections = self._services, self._connections
        traffic, groups = services.traffic, services.groups.in_use
        clock = services.clock
        now_ns = clock.monotonic_ns()
        request_memory = connections.memory.snapshot(now_ns)
        clients = [one.handler for one in connections.all() if isinstance(one.handler, Session)]
        return ProxySnapshot(
            cluster=self._cluster,
            started_at_ms=self._started_at_ms,
            taken_at_ms=clock.wall_ms(),
            stopping=self.is_stopping(),
            connections_accepted=connections.accepted,
            connections_open=len(connections),
            connections_refused=connections.refused,
            muted=await muted_connections(clients, request_memory.muted, now_ns, pace),
            request_memory=request_memory,
            listings=services.listings.limiter.snapshot(),
            memory=memory_rows(self._budget),
            holds=await self._holds(),
            resource_groups=await group_traffic(groups, clock, pace),
            sharing=await shared(self._sharing, groups, pace),
            records=self._recorder.snapshot() if self._recorder is not None else None,
            usage_topics=len(services.usage) if services.usage is not None else None,
            usage_left_out=services.usage.left_out if services.usage is not None else 0,
            loop_turns=turns(self._loop_turns),
            process=process_use(),
            expiries=(services.expiries.last or ()) if services.expiries is not None else (),
            throttling=self._throttling.snapshot() if self._throttling is not None else None,
            broker_connections=traffic.relays,
            connected=dict(traffic.connected),
            reads=traffic.reads,
            to_brokers_bytes=traffic.to_brokers_bytes,
            to_clients_bytes=traffic.to_clients_bytes,
            asked=dict(traffic.asked),
            turned_away=dict(traffic.turned_away),
            lookups_pending=traffic.pending,
            lookup_connections=len(services.upstreams),
        )
