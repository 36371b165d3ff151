# SPDX-License-Identifier: Apache-2.0
"""The run of the benchmarks goes on when something fails, and keeps to its time."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import run
from benchmarks.loads import Plan
from benchmarks.process import cpu_of_all_s
from benchmarks.subjects import Subject

if TYPE_CHECKING:
    from pathlib import Path

GOOD = Plan(name="good", mode="publish")
WITHOUT_TOOL = Plan(name="without-tool", mode="publish", tool="no_such_module")
REFUSED = Plan(name="refused", mode="publish", policies={"noSuchPolicy": 1})


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *plans: Plan, rounds: int = 1) -> tuple[int, Any]:
    """Run so many loads as a smoke test; returns the exit status and what was left."""
    monkeypatch.setattr(run, "PLANS", plans)
    monkeypatch.setattr(run, "QUICK", [plan.name for plan in plans])
    arguments = ["--quick", "--results", str(tmp_path), "--scratch", str(tmp_path)]
    parsed = run.parse(arguments)
    parsed.rounds = rounds
    monkeypatch.setattr(run, "parse", lambda _: parsed)
    status = run.main(arguments)
    return status, json.loads((tmp_path / "latest.json").read_text())


def loads_of(document: dict[str, Any], figure: str) -> set[str]:
    return {sample["load"] for sample in document["samples"] if sample["figure"] == figure}


@pytest.mark.real
def test_loads_that_fail_and_a_broker_that_dies_do_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = Subject.drive

    def killed(self: Subject, plan: Plan, *, seconds: float, seed: int, note: str) -> dict[str, float]:
        if plan.name == "killing":
            assert self.address is not None
            os.kill(self.address.pid, signal.SIGKILL)
        return drive(self, plan, seconds=seconds, seed=seed, note=note)

    monkeypatch.setattr(Subject, "drive", killed)
    killing = Plan(name="killing", mode="publish")
    status, left = measured(tmp_path, monkeypatch, WITHOUT_TOOL, REFUSED, killing, GOOD)

    assert status == 1
    assert loads_of(left, "failed") == {"without-tool", "refused", "killing"}
    assert loads_of(left, "entries/s") == {"good"}
    assert (tmp_path / "latest.html").read_text().startswith("<!doctype html>")


class NoBroker:
    """A subject without a process; what it measures is made up."""

    address = None
    rss_peak_mib = 1.0

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def has(self, _load: str) -> bool:
        return True

    def start(self) -> dict[str, float]:
        return {}

    def stop(self) -> None:
        """Nothing runs."""

    def revive(self) -> None:
        """Nothing dies."""

    def drive(self, plan: Plan, **_: object) -> dict[str, float]:
        return {"entries/s": float(len(plan.name)), "generator core": 0.1, "broker core": 0.9}


def test_loads_that_take_long_are_only_in_the_first_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Subject", NoBroker)
    once = Plan(name="once", mode="publish", once=True)

    status, left = measured(tmp_path, monkeypatch, once, GOOD, rounds=3)

    rounds = {
        row["load"]: row["by_subject"]["penstock"]["rounds"] for row in left["rows"] if row["figure"] == "entries/s"
    }
    assert (status, rounds) == (0, {"once": 1, "good": 3})


def test_no_round_begins_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def one_round(_options: object, _plans: object, row: int, _deadline_s: float) -> list[Any]:
        begun.append(row)
        return []

    monkeypatch.setattr(run, "one_round", one_round)
    assert run.main(["--minutes", "-1", "--rounds", "5", "--results", str(tmp_path)]) == 0
    assert begun == [0]


def test_processor_time_is_that_of_a_process_and_its_children() -> None:
    assert cpu_of_all_s(os.getpid()) > 0
