# SPDX-License-Identifier: Apache-2.0
"""Rows go to the partitions that any of Pulsar's clients would choose."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.core.hashing import java_string_hash
from penstock.spark.routing import HASHES, KEYS_REMEMBERED, KeyRouter


@pytest.mark.parametrize(
    ("key", "expected"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0), ("é", 233), ("😀", 1772899)],
)
def test_the_hash_of_a_java_string_is_the_one_java_computes(key: str, expected: int) -> None:
    # "polygenelubricants" is the well-known text whose hash is the smallest number: without its sign bit, 0.
    assert java_string_hash(key.encode()) == expected


def test_a_key_always_goes_to_the_partition_of_its_hash_and_no_key_goes_nowhere() -> None:
    router = KeyRouter(5, HASHES["Murmur3_32Hash"])
    keys = [b"a", b"hello", None, b"a", b"key1"]
    # 1009084850, 613153351 and 462881061, by the reference implementation
    assert router.partitions_of(pa.array(keys, pa.binary())).to_pylist() == [0, 1, None, 0, 1]


def test_forgetting_keys_changes_nothing() -> None:
    router = KeyRouter(7, HASHES["JavaStringHash"])
    keys = pa.array([b"%d" % number for number in range(KEYS_REMEMBERED + 10)], pa.binary())
    first = router.partitions_of(keys)
    assert router.partitions_of(keys).equals(first)
