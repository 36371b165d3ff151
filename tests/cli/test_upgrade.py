# SPDX-License-Identifier: Apache-2.0
"""`penstock upgrade --check`: what real, older, newer and damaged directories would become; none is touched."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import apsw
import pulsar
import pytest

from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.storage.catalog_rows import sealed
from penstock.storage.formats import NEWEST
from penstock.storage.schema import SHARED_MIGRATIONS
from penstock.testing.process import BrokerProcess
from tests.cli.elsewhere import answering

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOPIC = "persistent://public/default/kept"
PARTS = ["data directory", "shared catalog", "catalog of topics", "index of the log", "log"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with messages of a broker that was stopped."""
    path = tmp_path_factory.mktemp("upgrade") / "data"
    with BrokerProcess(path) as broker:
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client.create_producer(TOPIC).send(b"x")
        client.close()
    return path


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return shutil.copytree(stopped, tmp_path / "data")


def contents(path: Path) -> dict[str, tuple[int, bytes]]:
    files = [one for one in path.rglob("*") if one.is_file()]
    return {str(one.relative_to(path)): (one.stat().st_mtime_ns, one.read_bytes()) for one in files}


def checked(place: Path | str, capsys: pytest.CaptureFixture[str], status: Exit = Exit.OK) -> dict[str, Any]:
    """What the check says; a directory is as before."""
    before = contents(place) if not isinstance(place, str) else {}
    assert main(["upgrade", "--check", str(place), "-o", "json"]) == status
    assert isinstance(place, str) or contents(place) == before
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def of_format_1(path: Path) -> None:
    """Write a directory of format 1, with one topic."""
    (path / "broker-0/log").mkdir(parents=True)
    (path / "broker-0/index").mkdir()
    (path / "FORMAT").write_text("penstock 1\n")
    db = apsw.Connection(str(path / "meta.sqlite"))
    db.pragma("journal_mode", "wal")
    db.execute(f"begin; {';'.join(SHARED_MIGRATIONS)}; pragma user_version = {len(SHARED_MIGRATIONS)}; commit")
    db.execute("insert into topics values (?, ?, ?, ?, ?, ?, ?, ?)", sealed(1, TOPIC, 0, 11, "{}", "{}", 0))
    db.execute("insert or replace into counters values (?, ?, ?)", sealed("next_ledger_id", 1_001))
    db.close()


def test_a_directory_of_this_version_changes_in_nothing(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = checked(stopped, capsys)
    assert (report["canUpgrade"], report["canGoBack"], report["problems"]) == (True, True, [])
    assert [one["part"] for one in report["formats"]] == PARTS
    assert {one["effect"] for one in report["formats"]} == {"unchanged"}
    assert "with any tool" in report["do"][0]
    assert main(["upgrade", "--check", str(stopped)]) == Exit.OK
    text = capsys.readouterr().out
    assert ": none of 5 formats change\n" in text
    assert "Going back: possible" in text


def test_an_older_directory_is_converted_and_there_is_no_way_back_without_a_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_format_1(tmp_path / "data")
    report = checked(tmp_path / "data", capsys)
    assert (report["canUpgrade"], report["canGoBack"]) == (True, False)
    assert [(one["part"], one["found"], one["newest"], one["effect"]) for one in report["formats"]] == [
        ("data directory", 1, NEWEST.directory, "converted"),
        ("shared catalog", len(SHARED_MIGRATIONS), NEWEST.shared_catalog, "converted"),
    ]
    assert "keep the backup" in report["do"][-1]
    assert main(["upgrade", "--check", str(tmp_path / "data")]) == Exit.OK
    assert "Going back: not with this directory" in capsys.readouterr().out
    with BrokerProcess(tmp_path / "data") as broker:  # And that is what the start does.
        assert main(["topics", "list", "public/default", "--admin-url", broker.admin_url]) == Exit.OK
    assert TOPIC in capsys.readouterr().out
    assert {one["effect"] for one in checked(tmp_path / "data", capsys)["formats"]} == {"unchanged"}


def set_version(path: Path, version: int) -> None:
    db = apsw.Connection(str(path))
    db.pragma("user_version", version)
    db.close()


def with_newer_blocks(data: Path) -> None:
    segment = next((data / "broker-0/log").glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[7] += 1
    segment.write_bytes(content)


NEWER: dict[str, Callable[[Path], object]] = {
    "data directory": lambda data: (data / "FORMAT").write_text("penstock 3\n"),
    "shared catalog": lambda data: set_version(data / "meta.sqlite", 99),
    "catalog of topics": lambda data: set_version(data / "broker-0/topics.sqlite", 99),
    "log": with_newer_blocks,
}


@pytest.mark.parametrize("part", NEWER)
def test_a_newer_format_is_named_and_refused(part: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    NEWER[part](data)
    report = checked(data, capsys, Exit.BAD_NEWS)
    assert [one["part"] for one in report["formats"] if one["effect"] == "cannot be read"] == [part]
    assert report["do"] == ["start the penstock that wrote it, or a newer one: this one is too old for it"]


def test_an_index_of_another_version_is_built_again(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_version(data / "broker-0/index/index.sqlite", 99)
    report = checked(data, capsys)
    assert [one["effect"] for one in report["formats"] if one["part"] == "index of the log"] == [
        "built again from the log"
    ]
    assert report["canGoBack"]


DAMAGED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no FORMAT": ("FORMAT is missing", lambda data: (data / "FORMAT").unlink()),
    "a damaged FORMAT": ("no format of penstock", lambda data: (data / "FORMAT").write_text("\0\0")),
    "a damaged catalog": ("meta.sqlite cannot be read", lambda data: (data / "meta.sqlite").write_bytes(b"x" * 4_096)),
    "a page of the catalog": ("the catalog: ", lambda data: flip(data / "broker-0/topics.sqlite")),
    "an empty catalog": ("meta.sqlite is empty", lambda data: (data / "meta.sqlite").write_bytes(b"")),
    "no catalog": ("meta.sqlite is missing", lambda data: (data / "meta.sqlite").unlink()),
    "no catalog of topics": ("topics.sqlite is missing", lambda data: (data / "broker-0/topics.sqlite").unlink()),
}


def flip(path: Path) -> None:
    """Damage all pages but the first."""
    content = path.read_bytes()
    path.write_bytes(content[:4_096] + bytes(255 - byte for byte in content[4_096:]))


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_named_before_an_upgrade(damage: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence, harm = DAMAGED[damage]
    harm(data)
    report = checked(data, capsys, Exit.BAD_NEWS)
    assert any(sentence in one for one in report["problems"]), report["problems"]
    assert f"`penstock doctor {data}`" in report["do"][0]


def test_a_directory_in_use_is_compared_and_nothing_is_tried(
    own_broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upgrade", "--check", str(own_broker.data_dir), "-o", "json"]) == Exit.OK
    report = json.loads(capsys.readouterr().out)
    assert report["notes"] == [
        f"process {own_broker.pid} uses it, so versions were compared, and nothing was tried",
    ]
    assert report["do"][0].startswith(f"take a backup while it runs: `penstock backup {own_broker.data_dir}")


def test_a_running_broker_says_its_formats(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    report = checked(broker.admin_url, capsys)
    assert [(one["part"], one["found"]) for one in report["formats"]] == list(zip(PARTS, NEWEST, strict=True))
    assert report["canUpgrade"]


@pytest.mark.real
def test_a_broker_of_others_or_with_newer_formats_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    version, formats = "/admin/v2/brokers/version", "/admin/v3/brokers/formats"
    with answering({version: "4.0.1"}) as url:
        assert "it is not penstock" in checked(url, capsys, Exit.BAD_NEWS)["problems"][0]
    with answering({version: "0.1.0-penstock"}) as url:
        assert "does not say its formats" in checked(url, capsys, Exit.BAD_NEWS)["problems"][0]
    newer = {"directory": 2, "sharedCatalog": 99, "bloom": 1}
    with answering({version: "9.0.0-penstock", formats: newer, "/healthz": {"status": "ok"}}) as url:
        report = checked(url, capsys, Exit.BAD_NEWS)
    assert report["problems"] == ["it has stored bloom, which this version does not know"]
    assert [one["effect"] for one in report["formats"]] == ["unchanged", "cannot be read"]
    assert report["do"] == ["use a penstock at least as new as the one that runs: this one is too old for its files"]


def test_a_wrong_call_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade", str(tmp_path)]) == Exit.USAGE
    assert "give --check" in capsys.readouterr().err
    assert main(["upgrade", "--check", str(tmp_path)]) == Exit.USAGE
    assert "is not a data directory of penstock" in capsys.readouterr().err
