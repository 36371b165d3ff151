# SPDX-License-Identifier: Apache-2.0
"""Hashes of keys: those with a common beginning are those of the whole keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.hashing import sticky_hash, sticky_hashes


@given(prefix=st.binary(max_size=12), suffixes=st.lists(st.binary(max_size=12), max_size=4))
def test_a_hash_does_not_depend_on_where_the_key_was_cut(prefix: bytes, suffixes: list[bytes]) -> None:
    assert sticky_hashes(prefix, suffixes) == [sticky_hash(prefix + suffix) for suffix in suffixes]
