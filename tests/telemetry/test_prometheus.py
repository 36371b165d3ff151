# SPDX-License-Identifier: Apache-2.0
"""The text that Prometheus gets, read back by Prometheus' own parser."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.health import Health
from penstock.broker.stats.snapshot import TransactionsSnapshot
from penstock.core.broker_states import BrokerState
from penstock.core.durations import Durations, DurationsSnapshot
from penstock.core.membership import Member
from penstock.governance.holds import HoldKind
from penstock.governance.permits import Permit, PermitLimits, PermitQueue
from penstock.stats.disk_space import DiskUse
from penstock.stats.expiry import Expiry
from penstock.stats.snapshot import MutedConnection
from penstock.telemetry.instruments import INSTRUMENTS
from penstock.telemetry.prometheus import ROWS_PER_PIECE, render
from tests.telemetry.snapshots import GROUP, IDLE, LOG, MEMORY, RECORDS, SHARING, SUBSCRIPTION, THROTTLING, TOPIC

if TYPE_CHECKING:
    from penstock.broker.stats.snapshot import BrokerSnapshot


DISK = DiskUse(size=1_000, free=70)
FULL = replace(
    IDLE,
    brokers=(Member(0, BrokerState.READY), Member(1, BrokerState.SUSPECT)),
    topics=(TOPIC,),
    resource_groups=(GROUP,),
    sharing=SHARING,
    throttling=THROTTLING,
    records=RECORDS,
    disk=DISK,
    publish_times={"public/default": DurationsSnapshot()},
    dispatch_waits={"public/default": DurationsSnapshot()},
    expiries=(Expiry("clients", "certificate", 1_500), Expiry("brokers", "file", 2_500)),
    transactions=TransactionsSnapshot(coordinator=0, open=1, opened=9, committed=5, aborted=3, timed_out=2),
)
METRICS = {instrument.name for instrument in INSTRUMENTS}


def samples(snapshot: BrokerSnapshot) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Name of a metric -> its samples, each with its labels."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families("".join(render(snapshot))):
        for sample in family.samples:
            # This parser, unlike Prometheus, adds the suffix to counters that come without.
            name = sample.name if sample.name in METRICS else sample.name.removesuffix("_total")
            found.setdefault(name, []).append((sample.labels, sample.value))
    return found


def value(snapshot: BrokerSnapshot, name: str) -> float:
    (sample,) = samples(snapshot)[name]
    return sample[1]


def test_every_instrument_has_one_help_one_type_and_a_sample_once_there_is_a_topic_in_a_shared_group() -> None:
    lines = "".join(render(FULL)).splitlines()
    for instrument in INSTRUMENTS:
        assert lines.count(f"# TYPE {instrument.name} {instrument.kind}") == 1
        assert lines.count(f"# HELP {instrument.name} {instrument.help}") == 1
        name = f"{instrument.name}_bucket" if instrument.kind == "histogram" else instrument.name
        assert any(line.startswith((f"{name} ", f"{name}{{")) for line in lines)


def test_what_expires_is_told_in_seconds_by_what_it_is_for() -> None:
    assert samples(FULL)["penstock_certificate_expiry_timestamp_seconds"] == [({"use": "clients"}, 1.5)]
    assert samples(FULL)["penstock_token_expiry_timestamp_seconds"] == [({"use": "brokers", "source": "file"}, 2.5)]


def test_the_prometheus_parser_finds_every_metric_under_its_name() -> None:
    summaries = {instrument.name for instrument in INSTRUMENTS if instrument.kind == "summary"}
    histograms = {instrument.name for instrument in INSTRUMENTS if instrument.kind == "histogram"}
    parts = {f"{name}{part}" for name in summaries | histograms for part in ("_sum", "_count")}
    buckets = {f"{name}_bucket" for name in histograms}
    assert samples(FULL).keys() == METRICS - histograms | parts | buckets


def test_the_disk_has_no_metrics_before_it_was_measured() -> None:
    assert "penstock_disk" not in "".join(render(IDLE))
    assert (value(FULL, "penstock_disk_free_bytes"), value(FULL, "penstock_disk_size_bytes")) == (70, 1_000)


def test_metrics_of_adaptive_throttling_do_not_exist_while_it_is_disabled() -> None:
    assert "adaptive_throttle" not in "".join(render(replace(FULL, throttling=None)))
    of_topics = "".join(render(replace(FULL, throttling=THROTTLING._replace(topics=()))))
    assert "pulsar_broker_adaptive_throttle_memory_pressure" in of_topics
    assert "pulsar_broker_topic_adaptive_throttle" not in of_topics


def test_the_twelve_metrics_of_adaptive_throttling_have_their_values() -> None:
    found = {
        name: value(FULL, name)
        for name in METRICS
        if name.startswith(("pulsar_broker_adaptive_throttle_", "pulsar_broker_topic_adaptive"))
    }
    assert found == {
        "pulsar_broker_adaptive_throttle_memory_pressure": 0.5,
        "pulsar_broker_adaptive_throttle_active_topic_count": 3,
        "pulsar_broker_adaptive_throttle_activation_count": 7,
        "pulsar_broker_adaptive_throttle_controller_last_evaluation_timestamp": 1_700_000_000_000,
        "pulsar_broker_adaptive_throttle_controller_evaluation_duration": 2.5,
        "pulsar_broker_adaptive_throttle_controller_evaluation_failure_count": 1,
        "pulsar_broker_topic_adaptive_throttle_active": 1,
        "pulsar_broker_topic_adaptive_throttle_natural_publish_rate": 1_000,
        "pulsar_broker_topic_adaptive_throttle_effective_publish_rate": 250,
        "pulsar_broker_topic_adaptive_throttle_memory_pressure": 0.5,
        "pulsar_broker_topic_adaptive_throttle_backlog_pressure": 0,
        "pulsar_broker_topic_adaptive_throttle_rate_reduction_ratio": 0.75,
    }


def test_usage_reports_are_counted_by_what_became_of_them() -> None:
    found = samples(replace(IDLE, sharing=SHARING))
    reports = {labels["outcome"]: count for labels, count in found["penstock_usage_reports_total"]}
    assert reports == {"sent": 3, "received": 2, "forged": 1}
    labels = {"resource_group": "gold", "traffic": "publish", "remote_broker": "broker-1"}
    assert found["penstock_resource_group_remote_messages"] == [(labels, 12.5)]


def test_a_broker_that_registers_says_how_many_members_there_are_and_since_when_it_is_one() -> None:
    found = samples(replace(IDLE, sharing=SHARING))
    assert found["penstock_quota_members"] == [({}, 2)]
    assert found["penstock_membership_members"] == [({}, 3)]
    assert found["penstock_membership_registered"] == [({}, 1)]
    assert found["penstock_membership_registered_timestamp_seconds"] == [({}, 1_795_000_000.5)]
    assert found["penstock_membership_ignored_total"] == [({"reason": "malformed"}, 4)]
    assert "penstock_membership_registered" not in samples(IDLE)


def test_a_resource_group_has_pulsars_labels_in_pulsars_counters_and_its_share_as_a_gauge() -> None:
    found = samples(replace(IDLE, resource_groups=(GROUP, replace(GROUP, traffic="dispatch", messages=5))))
    assert found["pulsar_resource_group_messages_used"] == [
        ({"ResourceGroup": "gold", "MonitoringClass": "Publish"}, 70),
        ({"ResourceGroup": "gold", "MonitoringClass": "Dispatch"}, 5),
    ]
    labels = {"resource_group": "gold", "traffic": "publish"}
    assert found["penstock_resource_group_share_messages"][0] == (labels, 12.5)
    assert found["penstock_resource_group_quota_bytes"][0] == (labels, -1)
    assert found["penstock_resource_group_throttled_seconds_total"][0] == (labels, 1.5)


def test_the_sensors_of_kip_72_read_what_the_pool_says() -> None:
    memory = replace(
        MEMORY, available_bytes=-8, used_bytes=1008, depleted_percent=12.5, depleted_ms=2**53 + 1, evicted_total=3
    )
    text = "".join(render(replace(IDLE, request_memory=memory))).splitlines()
    assert "MemoryPoolAvailable -8" in text
    assert "MemoryPoolUsed 1008" in text
    assert "MemoryPoolAvgDepletedPercent 12.5" in text
    assert f"MemoryPoolDepletedTimeTotal {2**53 + 1}" in text
    assert "penstock_request_memory_evicted_total 3" in text


LISTING_METRICS = [
    f"pulsar_broker_topic_list_{memory}_{name}"
    for memory in ("heap", "direct")
    for name in (
        "memory_used_bytes",
        "memory_limit_bytes",
        "queue_size",
        "queue_max_size",
        "wait_time_ms",
        "timeout_total",
    )
]


def test_the_twelve_metrics_of_pip_442_are_there_and_each_is_labelled_with_the_cluster() -> None:
    found = samples(IDLE)
    kinds = {instrument.name: instrument.kind for instrument in INSTRUMENTS}
    for name in LISTING_METRICS:
        assert {labels["cluster"] for labels, _ in found[name]} == {"standalone"}
        assert kinds[name] == {"wait_time_ms": "summary", "timeout_total": "counter"}.get(
            name.split("_", 5)[5], "gauge"
        )
    assert {"pulsar_broker_topic_list_heap_memory_limit_bytes", *LISTING_METRICS} <= found.keys()


def test_waits_for_listing_memory_are_told_in_milliseconds_by_quantile_and_in_sum() -> None:
    queue = PermitQueue(PermitLimits(permits_max=4, queue_max=9, timeout_ns=3_000_000))
    permits = [queue.acquire(1, 0).outcome for _ in range(4)]
    queue.acquire(1, 0)
    queue.acquire(1, 0)
    assert isinstance(permits[0], Permit)
    queue.release(permits[0], 1_500_000)
    queue.expire(3_000_000)
    found = samples(replace(IDLE, listings=replace(IDLE.listings, heap=queue.snapshot(3_000_000))))
    name = "pulsar_broker_topic_list_heap_wait_time_ms"
    quantiles = {labels["quantile"]: number for labels, number in found[name]}
    assert list(quantiles) == ["0.5", "0.95", "0.99", "1.0"]
    assert (quantiles["0.5"], quantiles["1.0"]) == (0.0, 3.0)
    assert found[f"{name}_sum"] == [({"cluster": "standalone"}, 4.5)]
    assert found[f"{name}_count"] == [({"cluster": "standalone"}, 6)]
    assert found["pulsar_broker_topic_list_heap_timeout_total"] == [({"cluster": "standalone"}, 1)]
    assert found["pulsar_broker_topic_list_heap_queue_max_size"] == [({"cluster": "standalone"}, 9)]


def test_before_anybody_waited_the_quantiles_are_no_numbers() -> None:
    quantiles = [number for _, number in samples(IDLE)["pulsar_broker_topic_list_direct_wait_time_ms"]]
    assert all(map(math.isnan, quantiles))
    assert 'wait_time_ms{cluster="standalone",quantile="0.5"} NaN' in "".join(render(IDLE))


def test_refused_listings_are_counted_by_memory_and_reason() -> None:
    queue = PermitQueue(PermitLimits(permits_max=1, queue_max=9, timeout_ns=1))
    queue.acquire(2, 0)
    found = samples(replace(IDLE, listings=replace(IDLE.listings, direct=queue.snapshot(0))))
    refused = {
        (labels["memory"], labels["reason"]): number for labels, number in found["penstock_topic_list_refused_total"]
    }
    assert {key: number for key, number in refused.items() if number} == {("direct", "beyond-limit"): 1}
    assert len(refused) == 6


def test_a_topic_is_labelled_with_its_cluster_namespace_and_full_name() -> None:
    (sample,) = samples(replace(IDLE, topics=(TOPIC,)))["pulsar_in_messages_total"]
    labels = {"cluster": "standalone", "namespace": "air/nyc", "topic": "persistent://air/nyc/flights"}
    assert sample == (labels, 700)


def test_backlogs_add_up_from_subscription_to_topic_to_broker() -> None:
    topic = replace(TOPIC, subscriptions=(SUBSCRIPTION, replace(SUBSCRIPTION, name="billing", backlog=12)))
    other = replace(TOPIC, name="persistent://air/nyc/weather")
    found = samples(replace(IDLE, topics=(topic, other)))
    assert [number for _, number in found["pulsar_subscription_back_log"]] == [30, 12, 30]
    assert [number for _, number in found["pulsar_msg_backlog"]] == [42, 30]
    assert [number for _, number in found["pulsar_broker_msg_backlog"]] == [72]


def test_topics_are_counted_per_namespace() -> None:
    other = replace(TOPIC, name="persistent://air/sfo/flights", namespace="air/sfo")
    found = samples(replace(IDLE, topics=(TOPIC, other, replace(TOPIC, name="persistent://air/nyc/weather"))))
    assert [(labels["namespace"], number) for labels, number in found["pulsar_topics_count"]] == [
        ("air/nyc", 2),
        ("air/sfo", 1),
    ]


def test_a_connection_muted_for_two_reasons_counts_in_both_and_every_reason_is_always_there() -> None:
    muted = MutedConnection(
        peer="10.0.0.1:5", muted_ns=2_500_000_000, reasons=("request-memory", "outbound"), held_bytes=1, want_bytes=2
    )
    snapshot = replace(IDLE, muted=(muted, replace(muted, muted_ns=1, reasons=("outbound",))))
    by_reason = {labels["reason"]: number for labels, number in samples(snapshot)["penstock_connections_muted"]}
    assert by_reason == {
        "request-memory": 1, "request-count": 0, "storage": 0, "commands": 0, "outbound": 2, "publish-rate": 0,
        "group-quota": 0, "upstream": 0, "adaptive-publish-rate": 0, "stopping": 0,
    }  # fmt: skip
    assert value(snapshot, "penstock_connection_muted_longest_seconds") == 2.5


def test_what_waits_is_counted_by_every_kind_of_hold() -> None:
    snapshot = replace(IDLE, holds={HoldKind.NO_CONSUMER: 3})
    by_reason = {labels["reason"]: number for labels, number in samples(snapshot)["penstock_holds"]}
    assert by_reason == {kind.value: 3 if kind is HoldKind.NO_CONSUMER else 0 for kind in HoldKind}


def test_every_row_of_the_budget_says_how_often_it_refused() -> None:
    refused = {labels["owner"]: number for labels, number in samples(IDLE)["penstock_memory_refused_total"]}
    assert refused == {"outbound": 3, "tail-cache": 0}


def test_closed_connections_are_those_accepted_and_no_longer_open() -> None:
    snapshot = replace(IDLE, connections_accepted=9, connections_open=4)
    assert value(snapshot, "pulsar_connection_closed_total_count") == 5


def test_times_are_told_in_seconds() -> None:
    syncs = Durations()
    syncs.observe(3_000_000, 500)
    snapshot = replace(IDLE, log=replace(LOG, sync_times=syncs.snapshot(), sync_ns_max=20_000_000))
    assert value(snapshot, "penstock_log_sync_seconds_total") == 1.5
    assert value(snapshot, "penstock_log_sync_longest_seconds") == 0.02
    assert value(snapshot, "process_start_time_seconds") == 1_357_035_420


def test_a_histogram_counts_what_took_up_to_so_long() -> None:
    times = Durations()
    times.observe(4_000_000, 3)  # ns
    times.observe(60 * 10**9)
    snapshot = replace(IDLE, publish_times={"t/n": times.snapshot()})
    found = {
        labels["le"]: number
        for labels, number in samples(snapshot)["penstock_publish_seconds_bucket"]
        if labels["namespace"] == "t/n"
    }
    assert [found[bound] for bound in ("0.0025", "0.005", "25.0", "+Inf")] == [0, 3, 3, 4]
    assert value(snapshot, "penstock_publish_seconds_count") == 4
    assert value(snapshot, "penstock_publish_seconds_sum") == 60.012


def test_what_fails_is_visible() -> None:
    sick = replace(IDLE, health=Health(ok=False, reason="disk full"), log_read_only=True)
    assert value(IDLE, "penstock_healthy") == 1
    assert value(sick, "penstock_healthy") == 0
    assert value(sick, "penstock_log_read_only") == 1
    assert value(sick, "penstock_log_stalled") == 0


def test_many_topics_are_rendered_in_pieces_of_whole_lines_and_none_is_lost() -> None:
    topics = tuple(replace(TOPIC, name=f"persistent://air/nyc/t-{number}") for number in range(2 * ROWS_PER_PIECE + 1))
    pieces = list(render(replace(IDLE, topics=topics)))
    assert max(piece.count("\n") for piece in pieces) <= ROWS_PER_PIECE
    assert all(piece.endswith("\n") for piece in pieces)
    assert "".join(pieces).count("\npulsar_in_messages_total{") == len(topics)


def test_readers_of_one_snapshot_that_take_turns_each_get_all_of_it_and_leave_nothing() -> None:
    topics = tuple(replace(TOPIC, name=f"persistent://air/nyc/t-{number}") for number in range(100))
    snapshot = replace(IDLE, topics=topics)
    alone = "".join(render(snapshot))
    readers = [render(snapshot) for _ in range(3)]
    texts = ["".join(pieces) for pieces in zip(*readers, strict=True)]
    assert "".join(text[: len(text) // 3] for text in texts) == alone
    seen = weakref.ref(snapshot)
    del snapshot, readers
    assert seen() is None


# Line breaks other than \n are left out: the reading parser splits lines at them, which Prometheus itself does not.
NAMES = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], include_characters='\n"\\{},= '), min_size=1, max_size=20
)


@given(name=NAMES)
def test_whatever_a_client_calls_its_subscription_comes_back_unchanged_in_one_sample(name: str) -> None:
    topic = replace(TOPIC, subscriptions=(replace(SUBSCRIPTION, name=name),))
    (sample,) = samples(replace(IDLE, topics=(topic,)))["pulsar_out_messages_total"]
    assert sample[0]["subscription"] == name
    assert sample[1] == 500
