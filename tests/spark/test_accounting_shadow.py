# SPDX-License-Identifier: Apache-2.0
"""Quotas that live brokers observe before they are set: predicted against measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.main import main
from penstock.core.errors import NotFound
from penstock.spark.accounting.admin_calls import Admin
from penstock.spark.accounting.shadow import observe
from penstock.testing.process import BrokerProcess
from tests.spark.accounted import add, record
from tests.spark.topics import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pulsar

    Official = Callable[[str], pulsar.Client]


def row(group: str, recommended: float | None, **given: object) -> dict[str, Any]:
    return {
        "resource_group": group, "kind": "publish_messages", "quota_recorded": 100.0, "quota": 100.0, "minutes": 200,
        "recommended": recommended, "limited_minutes": 0, **given,
    }  # fmt: skip


class Broker(Admin):
    """A broker whose group `gold` would have been limited for so long, in all, after each minute."""

    def __init__(self, *limited_ms: int, group: str = "gold") -> None:
        super().__init__("http://127.0.0.1:1")
        self.limited_ms = list(limited_ms)
        self.group = group
        self.asked: list[tuple[str, str, Any]] = []

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
        self.asked.append((method, path, body))
        if f"/{self.group}/" not in path:
            raise NotFound(path)
        if method != "GET":
            return None
        limited_ms = self.limited_ms.pop(0)
        return {
            "publish": {"limitedMs": limited_ms, "limitedInForceMs": 0, "arrivedMessages": 7},
            "dispatch": None,
        }


def test_minutes_of_all_brokers_are_compared_with_what_was_predicted_and_observing_ends() -> None:
    waited: list[float] = []
    one, other = Broker(0, 500, 500), Broker(0, 0, 10)
    (found,) = observe([one, other], [row("gold", 60.0)], 3, target=0.99, wait=waited.append)
    assert waited == [60.0] * 3
    assert (found.minutes, found.limited_minutes, found.limited_ms, found.messages) == (3, 2, 510, 14)
    assert (round(found.limited_part, 6), found.is_as_predicted) == (0.01, False)
    path = "/admin/v2/resourcegroups/gold/observed"
    assert one.asked[0] == ("PUT", path, {"publishRateInMsgs": 60})
    assert one.asked[-1] == other.asked[-1] == ("DELETE", path, None)


def test_a_replayed_quota_is_compared_with_its_own_minutes() -> None:
    given = row("gold", None, quota=50.0, limited_minutes=100)
    (found,) = observe([Broker(1, 2)], [given], 2, target=None, wait=lambda _: None)
    assert (found.limited_part, found.limited_minutes, found.is_as_predicted) == (0.5, 2, False)


def test_quotas_that_stay_and_groups_that_no_broker_uses() -> None:
    broker = Broker()
    assert observe([broker], [row("gold", 100.0)], 2, target=0.99, wait=lambda _: None) == []
    assert broker.asked == []
    (found,) = observe([broker], [row("tin", 50.0)], 2, target=0.99, wait=lambda _: None)
    assert (found.minutes, found.limited_minutes, found.is_as_predicted) == (2, 0, True)


def test_observing_ends_when_the_command_is_interrupted() -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    broker = Broker()
    with pytest.raises(KeyboardInterrupt):
        observe([broker], [row("gold", 60.0)], 3, target=0.99, wait=interrupted)
    assert broker.asked[-1][0] == "DELETE"


def test_a_quota_that_would_limit_is_not_set(
    official: Official, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"quota_publish_messages": 1000.0, "share_publish_messages": 1000.0}
    given |= {"needed_publish_messages": 2.0, "publish_limited_ms": 0, "dispatch_limited_ms": 0}
    for minute in range(3):
        used = {"published_messages": 60 * (minute + 1), "published_bytes": 6_000 * (minute + 1)}
        add(
            tmp_path / "tables", minute,
            [record(minute, minute, "group", resource_groups=["gold"], **given, **used)],
        )  # fmt: skip
    with BrokerProcess(tmp_path / "data") as broker:
        ask(broker.admin_url, "PUT", "resourcegroups/gold", {"publishRateInMsgs": 1000})
        ask(broker.admin_url, "POST", "namespaces/public/default/resourcegroup/gold")
        producer = official(broker.url).create_producer(topic)

        def publish(_seconds: float) -> None:
            for _ in range(30):
                producer.send(b"hello")

        monkeypatch.setattr("threading.Event.wait", lambda _event, seconds: publish(seconds), raising=True)
        command = ["spark", "whatif", "--engine", "arrow", "--tables", str(tmp_path / "tables"), "--quota", "gold=5"]
        assert main([*command, "--shadow", "2", "--apply", "--admin-url", broker.admin_url]) == 0
        monkeypatch.undo()
        said = capsys.readouterr().out
        assert "gold: limited in more minutes than was predicted, not set" in said, said
        assert ask(broker.admin_url, "GET", "resourcegroups/gold")["publishRateInMsgs"] == 1000
        assert ask(broker.admin_url, "GET", "resourcegroups/gold/observed") == {"publish": None, "dispatch": None}
