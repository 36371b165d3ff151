# SPDX-License-Identifier: Apache-2.0
"""What-if on tables: other quotas, recommendations, and quotas that are set."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.accounting.tables import KINDS
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.governance.allocation import Strategy
from penstock.spark.accounting.whatif import Change, apply, parse_changes, replayed
from tests.spark.topics import ask

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def usage(minute: int, broker: str, per_second: int, **given: object) -> dict[str, Any]:
    none = {f"{what}_{kind}": None for what in ("quota", "share") for kind in KINDS}
    return {
        "resource_group": "gold",
        "minute": NOON + timedelta(minutes=minute),
        "broker": broker,
        "published_messages": 60 * per_second,
        "published_bytes": 6_000 * per_second,
        "dispatched_messages": 0,
        "dispatched_bytes": 0,
        "publish_limited_ms": 0,
        "dispatch_limited_ms": 0,
        **none,
        "quota_publish_messages": 1_000.0,
        "share_publish_messages": 500.0,
        "needed_publish_messages": 210.0,
        **given,
    }


ROWS = [usage(minute, broker, 200) for minute in range(10) for broker in ("a", "b")]


def test_the_same_quota_passes_what_was_recorded_and_half_of_it_half() -> None:
    (same,) = replayed(ROWS, {}, None, Strategy.MAX_MIN)
    assert (same["kind"], same["passed"], same["limited_minutes"]) == ("publish_messages", same["recorded"], 0)
    (less,) = replayed(ROWS, {"gold": Change({"publish_messages": 200.0})}, None, Strategy.MAX_MIN)
    assert less["passed"] == pytest.approx(0.5 * same["recorded"], rel=0.05)
    assert less["limited_minutes"] == less["minutes"] == 10
    (best,) = replayed(ROWS, {}, 0.99, Strategy.MAX_MIN)
    assert 415 <= best["recommended"] <= 440


def test_rows_of_the_same_minute_add_up() -> None:
    halves = [{**row, "published_messages": row["published_messages"] // 2} for row in ROWS]
    assert replayed([*halves, *halves], {}, None, Strategy.MAX_MIN)[0]["recorded"] == 10 * 2 * 60 * 200


def test_minutes_that_were_limited_make_figures_lower_bounds() -> None:
    limited = [{**row, "publish_limited_ms": 31_000, "needed_publish_messages": 600.0} for row in ROWS]
    (same,) = replayed(limited, {}, 0.99, Strategy.MAX_MIN)
    assert (same["limited_minutes"], same["passed_at_least"]) == (10, False)
    assert same["recommended"] > 1_000
    assert same["recommended_at_least"]
    (more,) = replayed(limited, {"gold": Change(factor=2)}, None, Strategy.MAX_MIN)
    assert more["passed_at_least"]


def test_each_minute_has_the_quota_that_was_in_force() -> None:
    lowered = [{**row, "quota_publish_messages": 10.0 if row["minute"].minute > 4 else 1_000.0} for row in ROWS]
    (same,) = replayed(lowered[:12], {}, None, Strategy.MAX_MIN)
    assert (same["quota_recorded"], same["limited_minutes"]) == (10.0, 1)


def test_changes_are_read_from_the_command_line() -> None:
    assert parse_changes(["gold=500", "gold:publish_bytes=2M", "a=b=x0.5", "c:d=none"]) == {
        "gold": Change({"publish_messages": 500.0, "publish_bytes": 2e6}),
        "a=b": Change(factor=0.5),
        "c:d": Change({"publish_messages": None}),
    }
    assert Change(factor=0.5).of("publish_bytes", 10.0) == 5.0
    assert Change(factor=0.5).of("publish_bytes", None) is None


@pytest.mark.parametrize("item", ["gold", "=5", "gold=", "gold=much", "gold=-5", "gold=x"])
def test_what_is_no_change_is_refused(item: str) -> None:
    with pytest.raises(ConfigurationError, match="--quota"):
        parse_changes([item])


def test_quotas_are_set_through_the_admin_api(broker: BrokerProcess) -> None:
    group = "what-if/é"
    ask(broker.admin_url, "PUT", "resourcegroups/what-if", {"publishRateInMsgs": 1000, "dispatchRateInMsgs": 7})
    rows = [
        {
            "resource_group": "what-if",
            "kind": "publish_messages",
            "quota": 500.0,
            "quota_recorded": 1000.0,
            "recommended": None,
        },
        {
            "resource_group": "what-if",
            "kind": "dispatch_messages",
            "quota": 7.0,
            "quota_recorded": 7.0,
            "recommended": None,
        },
    ]
    assert apply(broker.admin_url, rows) == ["what-if: publishRateInMsgs=500"]
    now = ask(broker.admin_url, "GET", "resourcegroups/what-if")
    assert (now["publishRateInMsgs"], now["dispatchRateInMsgs"]) == (500, 7), json.dumps(now)
    with pytest.raises(PenstockError, match="were not set"):
        apply(broker.admin_url, [{**rows[0], "resource_group": group}])
    with pytest.raises(PenstockError, match="does not answer"):
        apply("http://127.0.0.1:1", rows)
