# SPDX-License-Identifier: Apache-2.0
"""What `make abuse` tries follows from the protocol's tables: nothing is missing that is not named as left out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

import pytest

from penstock.wire.pulsar_pb2 import BaseCommand
from tests.abuse.cases import GROUPED, LEFT_OUT, Case, all_cases, grouped
from tests.abuse.commands import TYPES, fields_of, framed, oversized, valid
from tests.abuse.run import Run, chosen, main
from tests.abuse.subject import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.abuse.subject import Subject

TRIED = {case.what for case in all_cases()}


def test_every_command_of_the_protocol_is_pipelined_or_left_out_with_a_reason() -> None:
    pipelined = {what.removeprefix("pipeline ") for what in TRIED if what.startswith("pipeline ")}
    left_out = {what.removeprefix("pipeline ") for what in LEFT_OUT if what.startswith("pipeline ")}
    assert pipelined | left_out == set(TYPES)
    assert not pipelined & left_out


def test_every_reason_to_leave_something_out_names_something_that_exists() -> None:
    routes = {what.rpartition(" ")[0] for what in TRIED}
    for what, reason in LEFT_OUT.items():
        assert reason
        assert what not in TRIED | routes
        if what.startswith("pipeline "):
            assert what.removeprefix("pipeline ") in TYPES


@pytest.mark.parametrize("command", TYPES)
def test_every_command_is_one_that_a_client_could_send(command: str) -> None:
    parsed = BaseCommand.FromString(valid(command, 7).SerializeToString())
    assert parsed.type == BaseCommand.Type.Value(command)


@pytest.mark.parametrize("command", TYPES)
def test_every_field_is_made_as_large_as_it_was_asked_for(command: str) -> None:
    for field in fields_of(command):
        made = framed(oversized(field, 20_000, 1))
        if field.kind != "number" or field.repeated:
            assert 10_000 < len(made) < 60_000, field


@pytest.mark.parametrize("connections", [1, 200])
def test_each_attack_is_made_by_known_and_unknown_clients_plain_and_encrypted(connections: int) -> None:
    seen = {(case.known, case.tls) for case in all_cases() if case.connections == connections}
    assert seen == {(known, tls) for known in (True, False) for tls in (True, False)}


def test_a_sample_has_each_command_each_field_and_each_route_once_and_differs_by_seed() -> None:
    cases = all_cases()
    samples = [chosen(cases, count=None, seed=seed) for seed in (1, 2)]
    for sample in samples:
        assert Counter(case.stratum for case in sample) == Counter({case.stratum for case in cases})
    assert samples[0] != samples[1]
    assert samples[0] == chosen(cases, count=None, seed=1)
    larger = Counter(case.stratum for case in chosen(cases, count=len(samples[0]) + 100, seed=1))
    assert set(larger.values()) == {1, 2}


def test_shards_are_all_cases_and_each_once() -> None:
    cases = all_cases()
    shards = [chosen(cases, count=0, seed=1, shard=(part, 3)) for part in (1, 2, 3)]
    assert Counter(case for shard in shards for case in shard) == Counter(cases)
    assert max(map(len, shards)) < min(map(len, shards)) * 1.1


def test_attacks_on_a_proxy_are_put_together_only_if_they_are_the_same_to_it() -> None:
    cases = all_cases()
    groups = grouped(cases)
    assert Counter(case for group in groups for case in group.apart()) == Counter(cases)
    assert max(len(group.apart()) for group in groups) == GROUPED
    commands = {group.what: {case.command for case in group.apart()} for group in groups if group.connections == 200}
    assert commands["field LOOKUP.topic"] == {"LOOKUP"}
    many = [group for group in groups if group.connections == 200 and group.known]
    assert all(not group.beside for group in many if group.command in {"LOOKUP", "SUBSCRIBE", "CONNECT", "SEND"})
    assert all(group.sockets == 200 for group in many)
    assert all(group.sockets == len(group.apart()) for group in groups if group.connections == 1)


class Attacked:
    """Breaks a bound in a group, and by one of its attacks each time."""

    def __init__(self, broken: str) -> None:
        self.put: list[str] = []
        self._broken = broken

    def put_to(self, case: Case) -> Finding:
        self.put.append(str(case))
        return Finding(str(case), faults=["a fault"] if case.beside or case.what == self._broken else [])


def test_of_attacks_that_break_a_bound_together_each_is_carried_out_alone() -> None:
    attacked, run = Attacked("pipeline SEEK"), Run()
    run.put_to(cast("Subject", attacked), Case("pipeline ACK", beside=("pipeline SEEK", "pipeline PING")))
    assert attacked.put[1:] == ["pipeline ACK x1", "pipeline SEEK x1", "pipeline SEEK x1", "pipeline PING x1"]
    found = {finding.case: finding.faults for finding in run.findings}
    assert found == {"pipeline ACK x1": [], "pipeline SEEK x1": ["a fault"], "pipeline PING x1": []}


def test_what_has_a_result_is_left_out_until_it_broke_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attacked: list[Case] = []
    broken = Case("pipeline SEEK", 200)

    def attack_all(run: Run, cases: Sequence[Case]) -> None:
        attacked[:] = cases
        for case in cases:
            finding = Finding(str(case), faults=["a fault"] if case == broken and case not in done else [])
            run.findings.append(finding)
            run.found(finding)

    monkeypatch.setattr(Run, "attack_all", attack_all)
    arguments = ["--cases", "0", "--only", "^pipeline SEEK x200$", "--results", str(tmp_path / "results")]
    done: set[Case] = set()
    assert main(arguments) == 1
    done = {broken}
    assert main([*arguments, "--only", "^pipeline SEEK x"]) == 0
    assert len(attacked) == 8
    assert main(arguments) == 0
    assert attacked == []
    assert capsys.readouterr().out.count("Of 8 attacks") == 2
