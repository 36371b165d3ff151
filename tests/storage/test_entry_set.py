# SPDX-License-Identifier: Apache-2.0
"""Neighbours that are absent, against a plain set of ids; the rest of an entry set is tried with the cursor."""

from __future__ import annotations

import random

import pytest

from penstock.storage.entry_set import CHUNK_BYTES, CHUNK_IDS, EntrySet


def test_what_a_set_takes_does_not_depend_on_how_it_was_filled_and_measured() -> None:
    ids = EntrySet()
    for first in range(0, 3 * CHUNK_IDS, 1_000):
        ids.add_range(first, first + 10)
        ids.measure()
    again = EntrySet()
    for number in range(ids.chunk_count):
        stored = ids.encode(number)
        assert stored is not None
        again.load(number, stored)
    assert again.nbytes == ids.nbytes > 3 * CHUNK_BYTES
    ids.remove_through(3 * CHUNK_IDS)
    assert ids.nbytes == ids.chunk_count == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_last_absent_id_is_found_whatever_is_present(seed: int) -> None:
    chance = random.Random(seed)
    ids, plain = EntrySet(), set[int]()
    for _ in range(chance.randrange(6)):
        first = chance.choice([0, 5, CHUNK_IDS - 3, CHUNK_IDS, 2 * CHUNK_IDS - 10])
        last = first + chance.choice([0, 1, 7, CHUNK_IDS, 2 * CHUNK_IDS])
        ids.add_range(first, last)
        plain.update(range(first, last + 1))
    for _ in range(50):
        asked = chance.choice([0, 5, 12, CHUNK_IDS - 1, CHUNK_IDS, 3 * CHUNK_IDS, chance.randrange(4 * CHUNK_IDS)])
        absent = next((one for one in range(asked, -1, -1) if one not in plain), -1)
        assert ids.last_absent(asked) == absent
