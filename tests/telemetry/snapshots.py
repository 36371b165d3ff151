# SPDX-License-Identifier: Apache-2.0
"""Snapshots to render: an idle broker's, from which tests replace what they are about."""

from __future__ import annotations

from penstock.broker.health import Health
from penstock.broker.stats.snapshot import BrokerSnapshot, ReplicatorSnapshot, SubscriptionSnapshot, TopicSnapshot
from penstock.core.durations import DurationsSnapshot
from penstock.core.membership import Registration
from penstock.governance.permits import PermitLimits, PermitQueue
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import RequestLimits
from penstock.groups.adaptive_throttling import ThrottlingSnapshot, TopicThrottling
from penstock.net.listing_memory import TopicListSnapshot
from penstock.stats.process import ProcessMemory
from penstock.stats.snapshot import (
    DROP_REASONS,
    GroupTrafficSnapshot,
    LoopTurnsSnapshot,
    MemoryUse,
    ProcessUse,
    RecordsSnapshot,
    RemoteUsage,
    SharingSnapshot,
)
from penstock.storage.entry_log import LogStats

LOG = LogStats(
    bytes_appended=0,
    entries_appended=0,
    commits=0,
    commit_times=DurationsSnapshot(),
    sync_times=DurationsSnapshot(),
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
    memory={
        "outbound": MemoryUse(used_bytes=0, limit_bytes=100, refused_total=3),
        "tail-cache": MemoryUse(used_bytes=0, limit_bytes=200),
    },
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

GROUP = GroupTrafficSnapshot(
    group="gold",
    traffic="publish",
    messages=70,
    bytes=7_000,
    quota_messages=100,
    quota_bytes=-1,
    share_messages=12.5,
    share_bytes=-1,
    waiting=2,
    held_messages=3,
    held_bytes=300,
    throttled_ns=1_500_000_000,
)
REPLICATOR = ReplicatorSnapshot(
    cluster="central",
    connected=True,
    backlog=17,
    message_rate_out=2.5,
    byte_rate_out=250.0,
    messages_out=30,
    delay_s=0,
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
    held_for_ms=1_500,
    subscriptions=(SUBSCRIPTION,),
    replicators=(REPLICATOR,),
)
THROTTLING = ThrottlingSnapshot(
    memory_pressure=0.5,
    queueing_pressure=0.0,
    active_topics=3,
    observed_topics=0,
    active_payers=1,
    activations=7,
    last_evaluation_ms=1_700_000_000_000,
    evaluation_ns=2_500_000,
    interval_ns=1_000_000_000,
    failures=1,
    memory=ProcessMemory(limit=1_000, used=800, resident=900, owners={"requests": 200}),
    topics=(
        TopicThrottling(
            topic="persistent://air/nyc/flights",
            active=True,
            natural_messages=1_000.0,
            effective_messages=250.0,
            memory_pressure=0.5,
            backlog_pressure=0.0,
        ),
    ),
    topics_left_out=0,
)
SHARING = SharingSnapshot(
    connected=True,
    reports={"sent": 3, "received": 2, "forged": 1},
    remote=(RemoteUsage(group="gold", traffic="publish", broker="broker-1", messages=12.5, bytes=1_000.0),),
    members=2,
    registration=Registration(
        registered_ms=1_795_000_000_500, problem=None, members=3, losses=1, ignored={"malformed": 4}
    ),
)

RECORDS = RecordsSnapshot(
    written={"usage": 5, "decisions": 2},
    failures={"usage": 1, "decisions": 0},
    dropped=dict.fromkeys(DROP_REASONS, 3),
    queued_bytes=700,
)
