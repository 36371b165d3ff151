# SPDX-License-Identifier: Apache-2.0
"""Settings changed at run time, with real processes and a real catalog: what no stored value can do to a start.

`tests/broker/test_setting_names.py` tries all names and values, within one process.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import apsw
import pytest

from penstock.cli.main import main
from penstock.settings.model import ALIASES, FIELDS, KEYS
from penstock.storage.catalog_rows import sealed
from tests.processes.cluster import Cluster, until

if TYPE_CHECKING:
    from pathlib import Path

CONFIGURATION = "/admin/v2/brokers/configuration"
ALIAS, KEY = "resourceUsageTransportPublishIntervalInSecs", "resourceUsagePublishIntervalInSecs"
NAMES = [name for name in (*FIELDS, *ALIASES) if KEYS[FIELDS[ALIASES.get(name, name)]].dynamic]
ABSURD = ("9" * 19, "9" * 5_000, "nan", "-1", "\0", "a" * 10_000, "../..", " ", "٣", "true,1")

# Stored by another version, or damaged: how each cannot be used.
UNUSABLE = {
    "maxProducersPerTopic": "many",  # another type
    "brokerShutdownTimeoutMs": "9" * 400,  # out of range
    "tailCacheMB": "100000",  # does not fit the memory
    "adaptivePublisherThrottlingMemoryLowWatermarkPct": "0.9",  # contradicts the other watermark
    "clusterName": "eu",  # can be changed by a start only
    "keyOfTheFuture": "1",
    "logLevel": "",
}
# Given by the test on the command line.
PORTS = {"brokerServicePort", "webServicePort"}
DAMAGED = "allowAutoTopicCreation"


def all_of(cluster: Cluster, what: str) -> list[Any]:
    """What each broker answers."""
    return [cluster.http(number, "GET", f"{CONFIGURATION}/{what}")[1] for number in range(cluster.brokers)]


def agree(cluster: Cluster, name: str, value: str) -> None:
    until(lambda: all(one[name] == value for one in all_of(cluster, "runtime")))


def store(data_dir: Path) -> None:
    """Write rows into the catalog of brokers that do not run."""
    db = apsw.Connection(str(data_dir / "meta.sqlite"))
    for name, value in {**UNUSABLE, ALIAS: "3"}.items():
        db.execute("insert or replace into configuration values (?, ?, ?)", sealed(name, value))
    db.execute("insert or replace into configuration values (?, 'false', 1)", (DAMAGED,))
    db.close()


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, str], str]:
    """Values and notes of `penstock config`."""
    assert main(["config", "--json", *arguments]) == 0
    output = capsys.readouterr()
    return {row["key"]: row["value"] for row in json.loads(output.out)}, output.err


@pytest.mark.parametrize("brokers", [1, 2])
def test_no_value_given_or_stored_stops_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], brokers: int
) -> None:
    with Cluster(tmp_path / "data", brokers) as cluster:
        assert {ALIAS, KEY} <= set(cluster.http(brokers - 1, "GET", CONFIGURATION)[1])
        for name, value in zip(NAMES, itertools.cycle(ABSURD), strict=False):
            status, answer = cluster.http(0, "POST", f"{CONFIGURATION}/{name}/{quote(value, safe='')}")
            assert status in {204, 412}, (name, value, answer)
        for name in NAMES:
            assert cluster.http(0, "DELETE", f"{CONFIGURATION}/{name}")[0] == 204
        assert cluster.http(0, "GET", f"{CONFIGURATION}/values") == (200, {})
        assert cluster.http(0, "POST", f"{CONFIGURATION}/{ALIAS}/2")[0] == 204
        agree(cluster, KEY, "2.0")
        assert cluster.http(brokers - 1, "DELETE", f"{CONFIGURATION}/{ALIAS}")[0] == 204
        agree(cluster, KEY, "1")
        assert cluster.http(brokers - 1, "POST", f"{CONFIGURATION}/{ALIAS}/2")[0] == 204
        cluster.kill()
        store(cluster.data_dir)
        values, notes = shown(capsys, "--brokers", str(brokers), "--data-dir", str(cluster.data_dir))

        cluster.start()
        said = cluster.log_path.read_text()
        unusable = [*UNUSABLE, DAMAGED]
        for name in unusable:
            assert f"stored value of {name} is ignored: " in notes
            assert said.count(f"stored value of {name} is ignored: ") == brokers
        assert values[KEY] == "2.0"
        for current in all_of(cluster, "runtime"):
            assert (current[KEY], current[ALIAS]) == ("2.0", "2.0")
            assert {key for key, value in values.items() if current[key] != value} <= PORTS
        for number in range(brokers):
            status, health = cluster.http(number, "GET", "/healthz")
            assert (status, health["status"], len(health["problems"])) == (200, "degraded", 1)
            assert all(name in health["problems"][0] for name in unusable)
        for name in unusable:
            assert cluster.http(0, "DELETE", f"{CONFIGURATION}/{name}")[0] == 204
        until(lambda: all(cluster.http(one, "GET", "/healthz")[1] == {"status": "ok"} for one in range(brokers)))
        assert cluster.http(0, "GET", f"{CONFIGURATION}/values") == (200, {KEY: "2", ALIAS: "2"})
        assert cluster.stop() == 0
