# SPDX-License-Identifier: Apache-2.0
"""Records of registered processes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.member_record import RECORD_BYTES_MAX, MemberRecord, decoded

RECORD = MemberRecord(
    name="broker-1", instance="data on host", start_ms=5, host="host", pid=7, service_url="pulsar://host:6650"
)


def test_a_record_has_the_members_of_pulsars_and_comes_back() -> None:
    assert json.loads(RECORD.encoded()) == {
        "brokerId": "broker-1",
        "instance": "data on host",
        "startTimestamp": 5,
        "host": "host",
        "pid": 7,
        "pulsarServiceUrl": "pulsar://host:6650",
    }
    assert decoded("broker-1", RECORD.encoded()) == RECORD


def test_a_record_of_a_machine_without_a_clock_is_complete() -> None:
    record = MemberRecord(name="a", instance="", start_ms=0)
    assert decoded("a", record.encoded()) == record


@pytest.mark.parametrize("name", ["broker-0", "proxy.example.com:6650", "[::1]:6650"])
def test_numbers_of_brokers_and_addresses_are_names(name: str) -> None:
    assert decoded(name, MemberRecord(name=name, instance="i", start_ms=1).encoded()).name == name


def test_members_of_later_versions_are_ignored() -> None:
    data = json.dumps({**json.loads(RECORD.encoded()), "shoeSize": 43}).encode()
    assert decoded("broker-1", data) == RECORD


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("broker-1", b"", "no JSON"),
        ("broker-1", b"\xff\xfe", "no JSON"),
        ("broker-1", b"[" * 4_000, "no JSON"),
        ("broker-1", b"[]", "no object"),
        ("broker-1", b"{}", "no brokerId"),
        ("broker-1", b'{"brokerId": "broker-1", "instance": "i", "startTimestamp": true}', "no startTimestamp"),
        ("broker-1", b'{"brokerId": "broker-1", "instance": "i", "startTimestamp": 1, "pid": "x"}', "no pid"),
        ("broker-1", b'{"brokerId": "broker-2", "instance": "i", "startTimestamp": 1}', "the record of another name"),
        ("broker-1", b" " * (RECORD_BYTES_MAX + 1), "more than 4096 bytes"),
        ("a b", b"{}", "no name of a process"),
        ("x" * 256, b"{}", "no name of a process"),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(name: str, data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        decoded(name, data)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_record_or_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="no "):
        decoded("broker-1", data)


def test_a_record_that_others_would_ignore_is_not_written() -> None:
    with pytest.raises(ValueError, match="4096 are the limit"):
        MemberRecord(name="a", instance="x" * RECORD_BYTES_MAX, start_ms=1).encoded()
