# SPDX-License-Identifier: Apache-2.0
"""Sizes and durations, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import GIB, KIB, MIB, NS_PER_MS, NS_PER_S, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("5242880", 5 * MIB),
        ("-1", -1),
        ("64k", 64 * KIB),
        ("64 KB", 64 * KIB),
        ("16MiB", 16 * MIB),
        (" 1g ", GIB),
        ("7B", 7),
    ],
)
def test_sizes_take_a_unit_of_1024(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "M", "1.5M", "1 M M", "0x10", "1_000", "5 minutes", "١٦"])
def test_what_is_not_a_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text!r} is not"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("30", 30 * NS_PER_S),
        ("500ms", 500 * NS_PER_MS),
        ("5m", 300 * NS_PER_S),
        ("2W", 1_209_600 * NS_PER_S),
        ("7ns", 7),
    ],
)
def test_durations_take_a_unit_and_mean_seconds_without_one(text: str, duration_ns: int) -> None:
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize("text", ["", "s", "1.5h", "3 months", "5mb"])
def test_what_is_not_a_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text!r} is not"):
        parse_duration(text)


@given(st.integers())
def test_a_bare_number_is_bytes_and_seconds(number: int) -> None:
    assert parse_bytes(str(number)) == number
    assert parse_duration(str(number)) == number * NS_PER_S
