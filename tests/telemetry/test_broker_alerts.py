# SPDX-License-Identifier: Apache-2.0
"""The alert rules on throttling, quotas, the disk, delayed messages, connections and proxies.

Prometheus' own tool evaluates them.

Each alert has made-up series: the broker "eu" is troubled all the time, "us" is exactly at the threshold. So each rule
is also tried with its comparison or its duration broken, which has to be noticed.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from penstock.telemetry.instruments import INSTRUMENTS
from penstock.telemetry.proxy_instruments import PROXY_INSTRUMENTS
from tests.needed import find_program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.telemetry.instrument import Instrument

ROOT = Path(__file__).parents[2]
THROTTLING: Final = "adaptive-throttling"
BROKER: Final = "broker"
PROXY: Final = "proxy"
PAGES: Final = {
    THROTTLING: "docs/guide/adaptive-throttling.md",
    BROKER: "docs/guide/monitoring.md",
    PROXY: "docs/guide/monitoring.md",
}
AT: Final = "20m"
SAMPLES: Final = "x80"  # after the first, one every 15 s: the 20 minutes


@dataclass(frozen=True)
class Case:
    """An alert, with the values of series for a troubled broker and for one at the threshold, in promtool's notation.

    `early` is a time at which the condition holds, but not for long enough.
    """

    alert: str
    troubled: Mapping[str, str]
    at_threshold: Mapping[str, str]
    early: str = ""


_T: Final = "pulsar_broker_adaptive_throttle_"
_INTERVAL: Final = "penstock_adaptive_throttle_interval_seconds"
_USED: Final = "penstock_memory_used_bytes"
_BUDGET: Final = "penstock_memory_budget_bytes"
_REFUSED: Final = "penstock_memory_refused_total"
_EVALUATED: Final = f"{_T}controller_last_evaluation_timestamp"
_DURATION: Final = f"{_T}controller_evaluation_duration"
_THROTTLED_S: Final = "penstock_resource_group_throttled_seconds_total"
_CONNECTED: Final = "penstock_usage_topic_connected"
_MEMBERS: Final = "penstock_quota_members"
_REPORTS: Final = "penstock_usage_reports_total"
_BACKLOG: Final = "pulsar_broker_topic_adaptive_throttle_backlog_pressure"
_SYNC_S: Final = "penstock_log_sync_seconds_total"
_COMMITS: Final = "penstock_log_commits_total"
_LATE_S: Final = "penstock_delayed_lateness_seconds_total"
_DELIVERED: Final = "penstock_delayed_delivered_total"
_CONSUMERS: Final = "pulsar_subscription_consumers_count"
_BACK_LOG: Final = "pulsar_subscription_back_log"
_TO_BROKERS: Final = "penstock_proxy_broker_connections_total"
_REJECTED: Final = "pulsar_proxy_rejected_"
_LISTING: Final = "pulsar_proxy_topic_list_"


def _row(owner: str, used: int) -> dict[str, str]:
    return {f'{_USED}{{owner="{owner}"}}': str(used), f'{_BUDGET}{{owner="{owner}"}}': "100"}


def _published(soon: int) -> dict[str, str]:
    """Receipts, of which so many in a hundred take up to a second."""
    counts = {"0.5": 0, "1.0": soon, "2.5": 100, "+Inf": 100}
    return {
        f'penstock_publish_seconds_bucket{{namespace="a/b",le="{le}"}}': f"0+{count}" for le, count in counts.items()
    }


def _of_listings(memory: str) -> tuple[Case, ...]:
    alert, metric = f"ProxyTopicList{memory}", f"{_LISTING}{memory.lower()}_"
    limit, places = f"{metric}memory_limit_bytes", f"{metric}queue_max_size"
    waits = f'{metric}wait_time_ms{{quantile="0.99"}}'
    return (
        Case(
            f"{alert}High",
            {f"{metric}memory_used_bytes": "81", limit: "100"},
            {f"{metric}memory_used_bytes": "80", limit: "100"},
            "30s",
        ),
        Case(
            f"{alert}QueueNearlyFull",
            {f"{metric}queue_size": "91", places: "100"},
            {f"{metric}queue_size": "90", places: "100"},
        ),
        Case(f"{alert}Timeouts", {f"{metric}timeout_total": "0+30"}, {f"{metric}timeout_total": "0+15"}),
        Case(f"{alert}WaitsLong", {waits: "10001"}, {waits: "10000"}),
    )


CASES: Final[Mapping[str, tuple[Case, ...]]] = {
    THROTTLING: (
        Case("AdaptiveThrottleMemoryPressure", {f"{_T}memory_pressure": "0.51"}, {f"{_T}memory_pressure": "0.5"}, "1m"),
        Case("AdaptiveThrottleActive", {f"{_T}active_topic_count": "1"}, {f"{_T}active_topic_count": "0"}, "4m"),
        Case(
            "AdaptiveThrottleActivations",
            {f"{_T}activation_count": "0+0.5"},
            {f"{_T}activation_count": "0+0.25"},  # exactly 10 in ten minutes
        ),
        Case(
            "AdaptiveThrottleStalled",
            {_EVALUATED: "0", _INTERVAL: "5"},
            {_EVALUATED: "-15000+15000", _INTERVAL: "5"},
            "45s",
        ),
        Case(
            "AdaptiveThrottleSlowEvaluation",
            {_DURATION: "1001", _INTERVAL: "1"},
            {_DURATION: "1000", _INTERVAL: "1"},
            "1m",
        ),
        Case(
            "AdaptiveThrottleFailures",
            {f"{_T}controller_evaluation_failure_count": "1"},
            {f"{_T}controller_evaluation_failure_count": "0"},
        ),
    ),
    BROKER: (
        Case("BrokerDown", {"up": "0", "penstock_healthy": "1"}, {"up": "1", "penstock_healthy": "1"}, "30s"),
        Case(
            "BrokerNotReady",
            {'penstock_broker_state{broker="broker-1",state="suspect"}': "1"},
            {'penstock_broker_state{broker="broker-1",state="suspect"}': "0"},
            "1m",
        ),
        # Of a hundred receipts, one takes longer than a second, or none.
        Case("PublishSlow", _published(98), _published(99), "4m"),
        Case("SubscriptionUnread", {_CONSUMERS: "0", _BACK_LOG: "1001"}, {_CONSUMERS: "0", _BACK_LOG: "1000"}, "14m"),
        Case("ResourceGroupThrottled", {_THROTTLED_S: "0+15"}, {_THROTTLED_S: "0+13.5"}),
        Case("QuotaSharingDisconnected", {_CONNECTED: "0", _MEMBERS: "2"}, {_CONNECTED: "0", _MEMBERS: "0"}, "30s"),
        Case(
            "UsageReportsNotFromBrokers",
            {f'{_REPORTS}{{outcome="forged"}}': "0+1"},
            {f'{_REPORTS}{{outcome="large"}}': "7", f'{_REPORTS}{{outcome="old"}}': "0+1"},
        ),
        Case("TopicNearsBacklogQuota", {_BACKLOG: "0.51"}, {_BACKLOG: "0.5"}, "1m"),
        Case("LogReadOnly", {"penstock_log_read_only": "1"}, {"penstock_log_read_only": "0"}),
        Case("LogStalled", {"penstock_log_stalled": "1"}, {"penstock_log_stalled": "0"}),
        Case("LogDegraded", {"penstock_degraded": "1"}, {"penstock_degraded": "0"}),
        Case("DiskSlow", {_SYNC_S: "0+3", _COMMITS: "0+15"}, {_SYNC_S: "0+1.5", _COMMITS: "0+15"}, "4m"),
        Case(
            "DiskNearlyFull",
            {"penstock_disk_free_bytes": "9", "penstock_disk_size_bytes": "100"},
            {"penstock_disk_free_bytes": "10", "penstock_disk_size_bytes": "100"},
            "4m",
        ),
        Case("DiskFillsSoon", {"penstock_disk_free_bytes": "900-1"}, {"penstock_disk_free_bytes": "0"}, "4m"),
        Case("DelayedIndexNearlyFull", _row("delayed-index", 91), _row("delayed-index", 90), "4m"),
        Case("DelayedMessagesLate", {_LATE_S: "0+90", _DELIVERED: "0+15"}, {_LATE_S: "0+75", _DELIVERED: "0+15"}, "4m"),
        Case(
            "TransactionHoldsTopic",
            {"penstock_transaction_holding_seconds": "601"},
            {"penstock_transaction_holding_seconds": "600"},
        ),
        Case(
            "ReplicationStopped",
            {"pulsar_replication_delay_in_seconds": "601"},
            {"pulsar_replication_delay_in_seconds": "600"},
        ),
        # The time is twenty minutes.
        Case(
            "CertificateExpires",
            {'penstock_certificate_expiry_timestamp_seconds{use="clients"}': str(1_200 + 14 * 86_400 - 1)},
            {'penstock_certificate_expiry_timestamp_seconds{use="clients"}': str(1_200 + 14 * 86_400)},
        ),
        Case(
            "TokenExpires",
            {'penstock_token_expiry_timestamp_seconds{source="setting"}': str(1_200 + 14 * 86_400 - 1)},
            {'penstock_token_expiry_timestamp_seconds{source="file"}': str(1_200 + 600)},
        ),
        Case(
            "ConnectionMutedForLong",
            {"penstock_connection_muted_longest_seconds": "61"},
            {"penstock_connection_muted_longest_seconds": "60"},
            "30s",
        ),
        Case(
            "SlowFramesEvicted",
            {"penstock_request_memory_evicted_total": "0+1"},
            {"penstock_request_memory_evicted_total": "7"},
        ),
        Case(
            "ConnectionChurn",
            {"pulsar_connection_created_total_count": "0+300"},
            {"pulsar_connection_created_total_count": "0+150"},
            "4m",
        ),
        Case(
            "MemoryRefused",
            {f'{_REFUSED}{{owner="metadata"}}': "0+1"},
            {f'{_REFUSED}{{owner="metadata"}}': "7", f'{_REFUSED}{{owner="requests"}}': "0+1"},
        ),
        Case("SessionMemoryNearlyFull", _row("sessions", 91), _row("sessions", 90), "1m"),
    ),
    PROXY: (
        Case(
            "ProxyCannotReachBrokers",
            {f'{_TO_BROKERS}{{outcome="failed"}}': "0+30"},
            {f'{_TO_BROKERS}{{outcome="failed"}}': "0+1.5", f'{_TO_BROKERS}{{outcome="refused"}}': "0+30"},
            "1m",
        ),
        Case(
            "ProxyRefusedByBrokers",
            {f'{_TO_BROKERS}{{outcome="refused"}}': "0+30"},
            {f'{_TO_BROKERS}{{outcome="refused"}}': "0+1.5", f'{_TO_BROKERS}{{outcome="failed"}}': "0+30"},
            "1m",
        ),
        Case("ProxyConnectionsRejected", {f"{_REJECTED}connections": "0+1"}, {f"{_REJECTED}connections": "7"}),
        Case(
            "ProxyConnectionChurn",
            {"pulsar_proxy_new_connections": "0+300"},
            {"pulsar_proxy_new_connections": "0+150"},
            "4m",
        ),
        Case(
            "ProxyLookupsRejected",
            {f"{_REJECTED}lookup_requests": "7", f"{_REJECTED}partitions_metadata_requests": "0+1"},
            {f"{_REJECTED}lookup_requests": "7", f"{_REJECTED}partitions_metadata_requests": "7"},
        ),
        Case(
            "ProxyTopicListingsRejected",
            {f"{_REJECTED}get_topics_of_namespace_requests": "0+1"},
            {f"{_REJECTED}get_topics_of_namespace_requests": "7"},
        ),
        *_of_listings("Heap"),
        *_of_listings("Direct"),
    ),
}
ALL: Final = [(name, case) for name, cases in CASES.items() for case in cases]
IDS: Final = [case.alert for _, case in ALL]


@pytest.fixture(scope="module")
def promtool() -> str:
    return find_program("promtool", "prometheus")


def rules_of(name: str) -> Any:  # noqa: ANN401 -- YAML
    return yaml.safe_load((ROOT / f"ops/alerts/{name}.rules.yml").read_text(encoding="utf-8"))


def rule_of(rules: Any, alert: str) -> Any:  # noqa: ANN401
    (found,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == alert]
    return found


def series(values: Mapping[str, str], broker: str) -> list[dict[str, str]]:
    return [
        {
            "series": f'{name.rstrip("}")}{"," if "{" in name else "{"}instance="{broker}"}}',
            "values": (value if re.search(r"\d[+-]\d", value) else f"{value}+0") + SAMPLES,
        }
        for name, value in values.items()
    ]


def firing(alert: str, at: str, values: list[str]) -> dict[str, object]:
    """What promtool is to expect: at this time, the alert fires for these brokers."""
    expr = f'count by (instance) (ALERTS{{alertname="{alert}",alertstate="firing"}})'
    samples = [{"labels": f'{{instance="{broker}"}}', "value": 1} for broker in values]
    return {"expr": expr, "eval_time": at, "exp_samples": samples}


def outcome(promtool: str, where: Path, rules: object, case: Case) -> subprocess.CompletedProcess[str]:
    """Try one alert of these rules."""
    expected = [firing(case.alert, AT, ["eu"])]
    if case.early:
        expected.append(firing(case.alert, case.early, []))
    test = {"interval": "15s", "promql_expr_test": expected}
    test["input_series"] = series(case.troubled, "eu") + series(case.at_threshold, "us")
    (where / "rules.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    cases = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [test]}
    (where / "cases.yml").write_text(yaml.safe_dump(cases), encoding="utf-8")
    return subprocess.run([promtool, "test", "rules", where / "cases.yml"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", CASES)
def test_prometheus_loads_the_rules_and_each_has_a_case(promtool: str, name: str) -> None:
    file = ROOT / f"ops/alerts/{name}.rules.yml"
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES[name])} rules found" in done.stdout
    alerts = [rule["alert"] for group in rules_of(name)["groups"] for rule in group["rules"]]
    assert alerts == [case.alert for case in CASES[name]]


@pytest.mark.parametrize(("name", "case"), ALL, ids=IDS)
def test_an_alert_fires_above_its_threshold_and_not_at_it(promtool: str, tmp_path: Path, name: str, case: Case) -> None:
    done = outcome(promtool, tmp_path, rules_of(name), case)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "case"), ALL, ids=IDS)
def test_a_wrong_threshold_or_duration_is_noticed(promtool: str, tmp_path: Path, name: str, case: Case) -> None:
    rules = rules_of(name)
    rule = rule_of(rules, case.alert)
    right = rule["expr"]
    head, found, tail = right.rpartition(" > ")
    rule["expr"] = f"{head} >= {tail}" if found else re.sub("== [01]", ">= 0", right.replace(" < ", " <= "))
    assert rule["expr"] != right
    assert outcome(promtool, tmp_path, rules, case).returncode == 1
    rule["expr"] = right
    assert ("for" in rule) == bool(case.early)
    if case.early:
        del rule["for"]
        assert outcome(promtool, tmp_path, rules, case).returncode == 1


@pytest.mark.parametrize("name", CASES)
def test_the_rules_look_at_metrics_and_labels_that_exist(name: str) -> None:
    of: tuple[Instrument[Any, Any], ...] = PROXY_INSTRUMENTS if name == PROXY else INSTRUMENTS
    scopes = {instrument.name: instrument.scope.labels for instrument in of}
    for case in CASES[name]:
        rule = rule_of(rules_of(name), case.alert)
        used = {name.removesuffix("_bucket") for name in re.findall(r"\b(?:pulsar|penstock)_\w+", rule["expr"])}
        assert used
        assert used <= set(scopes)
        labels = {label for metric in used for label in scopes[metric]} | {"instance"}
        labels |= (
            {"quantile"} if used & {instrument.name for instrument in of if instrument.kind == "summary"} else set()
        )
        text = rule["expr"] + str(rule["annotations"])
        assert set(re.findall(r"\$labels\.(\w+)|\{(\w+)=", text)) <= {(a, "") for a in labels} | {
            ("", a) for a in labels
        }


@pytest.mark.parametrize("name", CASES)
def test_the_guide_says_what_to_do_about_every_alert(name: str) -> None:
    page = (ROOT / PAGES[name]).read_text(encoding="utf-8")
    assert [case.alert for case in CASES[name] if f"| `{case.alert}` |" not in page] == []
    assert f"ops/alerts/{name}.rules.yml" in page
