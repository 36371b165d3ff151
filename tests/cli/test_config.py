# SPDX-License-Identifier: Apache-2.0
"""`penstock config`: what is in force, and who said so."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

from penstock.cli.main import main
from penstock.settings.model import KEYS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from penstock.testing.process import BrokerProcess


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    """What it prints as JSON, by key."""
    assert main(["config", "--json", *arguments]) == 0
    return {row["key"]: row for row in json.loads(capsys.readouterr().out)}


def post(broker: BrokerProcess, path: str) -> None:
    request = urllib.request.Request(f"{broker.admin_url}/admin/v2/brokers/configuration/{path}", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 204


def test_every_setting_is_shown_with_its_source_and_whether_it_can_be_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# mine\nclusterName=eu\n")
    monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    rows = shown(capsys, "--config", str(file), "--port", "6660")
    assert set(rows) == {key.name for key in KEYS.values()}
    assert (rows["clusterName"]["value"], rows["clusterName"]["source"]) == ("eu", "broker.conf line 2")
    assert (rows["logFormat"]["value"], rows["logFormat"]["source"]) == ("json", "PENSTOCK_LOG_FORMAT")
    assert (rows["brokerServicePort"]["value"], rows["brokerServicePort"]["source"]) == ("6660", "--port")
    assert rows["webServicePort"]["source"] == "default"
    assert rows["allowAutoTopicCreation"]["dynamic"]
    assert not rows["clusterName"]["dynamic"]


def test_secrets_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("tokenSecretKey=data:;base64,c2VjcmV0\nbasicAuthConf=data:;base64,dXNlcg==\n")
    assert main(["config", "--config", str(file)]) == 0
    text = capsys.readouterr().out
    assert "tokenSecretKey=***" in text
    assert "c2VjcmV0" not in text
    assert "dXNlcg" not in text


def test_people_read_one_line_a_setting_under_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--changed", "--host", "127.0.0.1", "--log-level", "debug"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "# Listeners",
        "bindAddress=127.0.0.1  # --host",
        "",
        "# Logging",
        "logLevel=debug         # --log-level, dynamic",
    ]


def test_what_is_wrong_with_a_file_is_told_beside_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("zookeeperServers=zk\nclusterNam=eu\n")
    assert main(["config", "--config", str(file), "--changed"]) == 0
    told = capsys.readouterr().err
    assert "zookeeperServers" in told
    assert "clusterNam (broker.conf line 2; do you mean clusterName?)" in told


def test_changes_of_a_running_broker_are_shown_without_disturbing_it(
    own_broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    post(own_broker, "maxProducersPerTopic/3")
    row = shown(capsys, "--data-dir", str(own_broker.data_dir))["maxProducersPerTopic"]
    assert (row["value"], row["source"]) == ("3", "admin API")
    post(own_broker, "maxProducersPerTopic/4")
    assert own_broker.stop() == 0
    assert shown(capsys, "--data-dir", str(own_broker.data_dir))["maxProducersPerTopic"]["value"] == "4"


def test_a_change_is_in_force_at_the_next_start_and_the_log_says_so(own_broker: BrokerProcess) -> None:
    post(own_broker, "maxTopicsPerNamespace/7")
    own_broker.kill()
    own_broker.start()
    with urllib.request.urlopen(f"{own_broker.admin_url}/admin/v2/brokers/configuration/runtime", timeout=60) as answer:
        assert json.load(answer)["maxTopicsPerNamespace"] == "7"
    assert "still in force: maxTopicsPerNamespace=7" in own_broker.log_path.read_text()


def test_an_administrator_can_end_the_broker(own_broker: BrokerProcess) -> None:
    request = urllib.request.Request(f"{own_broker.admin_url}/admin/v2/brokers/shutdown", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 204
    assert own_broker.wait() == 0


def test_a_directory_that_is_none_of_ours_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--data-dir", str(tmp_path)]) == 2
    assert "is not a penstock data directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
