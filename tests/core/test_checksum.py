# SPDX-License-Identifier: Apache-2.0
"""An entry proves that it is whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.checksum import SEAL_BYTES, SEAL_MAGIC, is_sealed, seal


def test_the_seal_is_the_magic_and_the_castagnoli_checksum() -> None:
    # 0xe3069283 is the published check value of CRC-32C over these nine digits.
    assert seal(b"123456789") == bytes.fromhex("0e01e3069283") + b"123456789"


@given(st.binary(max_size=200))
def test_what_was_sealed_is_sealed_in_any_kind_of_buffer(body: bytes) -> None:
    entry = seal(body)
    assert entry[:2] == SEAL_MAGIC
    assert entry[SEAL_BYTES:] == body
    assert is_sealed(entry)
    assert is_sealed(bytearray(entry))
    assert is_sealed(memoryview(entry))


@given(st.binary(max_size=64), st.data())
def test_no_single_flipped_bit_goes_unnoticed(body: bytes, data: st.DataObject) -> None:
    entry = bytearray(seal(body))
    bit = data.draw(st.integers(0, len(entry) * 8 - 1))
    entry[bit // 8] ^= 1 << bit % 8
    assert not is_sealed(entry)


@given(st.binary(max_size=64), st.data())
def test_a_cut_entry_is_not_sealed(body: bytes, data: st.DataObject) -> None:
    entry = seal(b"\x00\x01" + body)
    assert not is_sealed(entry[: data.draw(st.integers(0, SEAL_BYTES - 1))])
