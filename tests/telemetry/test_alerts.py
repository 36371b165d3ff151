# SPDX-License-Identifier: Apache-2.0
"""The alert rules on topic listings, as Prometheus' own tool evaluates them, and against the metrics there are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from penstock.telemetry.instruments import INSTRUMENTS
from penstock.telemetry.prometheus import render
from tests.needed import find_program
from tests.telemetry.snapshots import IDLE

ROOT = Path(__file__).parents[2]
RULES = ROOT / "ops/alerts/topic-listings.rules.yml"
CASES = Path(__file__).with_name("topic-listings.test.yml")
ALERTS = {"TopicListMemoryHigh", "TopicListQueueNearlyFull", "TopicListTimeouts", "TopicListWaitsLong"}


@pytest.fixture(scope="module")
def promtool() -> str:
    return find_program("promtool", "prometheus")


def run(promtool: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *args], capture_output=True, text=True, check=False)


def test_the_rules_are_ones_that_prometheus_loads(promtool: str) -> None:
    done = run(promtool, "check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 rules found" in done.stdout


def test_each_alert_fires_above_its_threshold_and_not_at_it(promtool: str) -> None:
    done = run(promtool, "test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("there", "broken"),
    [
        ("> 0.8", ">= 0.8"),
        ("> 0.9", ">= 0.9"),
        ("[5m]) > 1", "[5m]) >= 1"),
        ("> 10000", ">= 10000"),
        ('quantile="0.99"', 'quantile="1.0"'),
        ("heap_queue_max_size > 0", "heap_queue_max_size > 10000"),
        ("(pulsar_broker_topic_list_direct_queue_max_size > 0)", "pulsar_broker_topic_list_direct_queue_max_size"),
        ("for: 1m", "for: 5m"),
        ("direct_timeout_total", "heap_timeout_total"),
    ],
)
def test_the_cases_notice_a_rule_that_is_wrong(promtool: str, tmp_path: Path, there: str, broken: str) -> None:
    rules = RULES.read_text(encoding="utf-8")
    assert there in rules
    (tmp_path / "rules.yml").write_text(rules.replace(there, broken), encoding="utf-8")
    cases = CASES.read_text(encoding="utf-8")
    (tmp_path / "cases.yml").write_text(re.sub(r"(?m)^rule_files: .*", "rule_files: [rules.yml]", cases))
    assert run(promtool, "test", "rules", tmp_path / "cases.yml").returncode == 1


def test_the_rules_look_at_metrics_labels_and_quantiles_that_exist() -> None:
    rules = RULES.read_text(encoding="utf-8")
    used = set(re.findall(r"\bpulsar_\w+", rules))
    assert used <= {instrument.name for instrument in INSTRUMENTS}
    assert len(used) == 12, "each of the twelve metrics has its part in an alert"
    text = "".join(render(IDLE))
    assert set(re.findall(r"quantile=\"[^\"]+\"", rules)) <= set(re.findall(r"quantile=\"[^\"]+\"", text))


def test_every_alert_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference/topic-listings.md").read_text(encoding="utf-8")
    assert set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8"))) == ALERTS
    assert {alert for alert in ALERTS if f"`{alert}`" in reference} == ALERTS
