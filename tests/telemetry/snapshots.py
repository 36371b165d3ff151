# SPDX-License-Identifier: Apache-2.0
"""Snapshots to render: an idle broker's, from which tests replace what they are about."""

from __future__ import annotations

from penstock.broker.health import Health
from penstock.broker.stats.snapshot import (
    BrokerSnapshot,
    LoopTurnsSnapshot,
    MemoryUse,
    ProcessUse,
    SubscriptionSnapshot,
    TopicSnapshot,
)
from penstock.governance.permit_types import PermitLimits
from penstock.governance.permits import PermitQueue
from penstock.governance.request_memory import RequestLimits, RequestMemory
from penstock.net.topic_list_limiter import TopicListSnapshot
from penstock.storage.entry_log import LogStats

LOG = LogStats(
    bytes_appended=0,
    entries_appended=0,
    commits=0,
    sync_ns_total=0,
    sync_ns_max=0,
    queued_bytes=0,
    segments=0,
    spares=0,
    retained_bytes=0,
    live_bytes=0,
    open_bytes=0,
    moved_bytes=0,
    recycled=0,
    damaged=0,
    read_failures=0,
    unreadable=0,
    missing_entries=0,
)

MEMORY = RequestMemory(RequestLimits(request_bytes_max=1000, requests_max=0, frame_bytes_max=100)).snapshot(0)

LISTINGS = TopicListSnapshot(
    *(PermitQueue(PermitLimits(permits_max=1_000, queue_max=50, timeout_ns=1)).snapshot(0) for _ in range(2))
)

IDLE = BrokerSnapshot(
    cluster="standalone",
    started_at_ms=1_357_035_420_000,
    taken_at_ms=1_357_035_480_000,
    stopping=False,
    health=Health(ok=True, reason="ok"),
    connections_accepted=0,
    connections_open=0,
    lookups_pending=0,
    topic_loads_pending=0,
    muted=(),
    topics=(),
    log=LOG,
    log_read_only=False,
    log_stalled=False,
    request_memory=MEMORY,
    listings=LISTINGS,
    outbound=MemoryUse(used_bytes=0, budget_bytes=100),
    tail_cache=MemoryUse(used_bytes=0, budget_bytes=200),
    loop_turns=LoopTurnsSnapshot(longest_ns=0, longer={50: 0}),
    process=ProcessUse(resident_bytes=0, cpu_ns=0),
)

SUBSCRIPTION = SubscriptionSnapshot(
    name="audit",
    type="Shared",
    durable=True,
    consumers=2,
    backlog=30,
    unacked=4,
    blocked=False,
    messages_out=500,
    bytes_out=6000,
    dropped=0,
    delayed=7,
    in_replay=3,
    expired=9,
    message_rate_out=12.5,
    byte_rate_out=150.0,
    redelivery_rate=0.5,
    ack_rate=11.5,
    expiry_rate=0.25,
    drop_rate=0.0,
    last_expired_ms=1,
    last_flow_ms=2,
    last_consumed_ms=3,
    last_acked_ms=4,
)

TOPIC = TopicSnapshot(
    name="persistent://air/nyc/flights",
    namespace="air/nyc",
    producers=1,
    messages_in=700,
    bytes_in=8000,
    entries_in=70,
    messages_out=1_500,
    bytes_out=19_000,
    message_rate_in=14.0,
    byte_rate_in=160.0,
    publish_limited=2,
    subscriptions=(SUBSCRIPTION,),
)
