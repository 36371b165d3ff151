# SPDX-License-Identifier: Apache-2.0
"""Sizes, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import GIB, KIB, MIB, parse_bytes


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


@given(st.integers())
def test_a_bare_number_is_bytes(number: int) -> None:
    assert parse_bytes(str(number)) == number
