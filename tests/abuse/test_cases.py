# SPDX-License-Identifier: Apache-2.0
"""What `make abuse` tries follows from the protocol's tables: nothing is missing that is not named as left out."""

from __future__ import annotations

import pytest

from penstock.wire.pulsar_pb2 import BaseCommand
from tests.abuse.cases import LEFT_OUT, all_cases
from tests.abuse.commands import TYPES, fields_of, framed, oversized, valid

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
