# SPDX-License-Identifier: Apache-2.0
"""The table of due times: an ordered multimap, whatever is put in and taken out in whatever order."""

from __future__ import annotations

import random
from array import array

import pytest

from penstock.governance.delayed_times import BITMAP, BLOCK_MAX, PAIRS_MAX, TimeTable

Model = dict[int, list[int]]


def contents(table: TimeTable) -> Model:
    """All pairs, as one who walks the table finds them."""
    found: Model = {}
    at_ms = -1
    while True:
        dues_ms, entry_ids = table.after(at_ms)
        if not dues_ms:
            return found
        assert list(dues_ms) == sorted(dues_ms)
        assert dues_ms[0] > at_ms
        for due_ms, entry_id in zip(dues_ms, entry_ids, strict=True):
            found.setdefault(due_ms, []).append(entry_id)
        at_ms = dues_ms[-1]


def put(table: TimeTable, model: Model, due_ms: int, entry_ids: list[int]) -> None:
    """Put ids in, and into the model; not where there is a mark."""
    if model.get(due_ms) == [BITMAP]:
        return
    together = [*model.get(due_ms, []), *entry_ids]
    crowd = table.put(due_ms, entry_ids)
    assert (None if crowd is None else list(crowd)) == (together if len(together) > PAIRS_MAX else None)
    model[due_ms] = together if crowd is None else [BITMAP]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("times", [40, 3_000, 10**12])
def test_the_table_is_the_map_that_was_put_in(seed: int, times: int) -> None:
    chance = random.Random(seed)
    table, model = TimeTable(), Model()
    for _ in range(6 * BLOCK_MAX):
        what = chance.random()
        if what < 0.85:
            put(table, model, chance.randrange(times), chance.sample(range(10**6), chance.choice([1, 1, 1, 5, 20])))
        elif model and what < 0.95:
            due_ms = chance.choice([min(model), max(model), chance.choice(list(model))])
            assert list(table.at(due_ms)) == model[due_ms]
            assert list(table.remove(due_ms)) == model.pop(due_ms)
        elif model:
            least_ms = chance.choice([max(model), chance.randrange(times)])
            dues_ms, entry_ids = table.tail(least_ms)
            assert all(due_ms >= least_ms for due_ms in dues_ms)
            if dues_ms:
                assert [one for due_ms in sorted(set(dues_ms)) for one in model[due_ms]] == list(entry_ids)
                table.cut_tail(dues_ms[0])
                model = {due_ms: ids for due_ms, ids in model.items() if due_ms < dues_ms[0]}
        assert table.first_ms == min(model, default=None)
        assert table.last_ms == max(model, default=None)
        assert table.count == sum(map(len, model.values()))
    assert contents(table) == model
    due_ms = chance.randrange(times)
    assert table.next_ms(due_ms) == min((one for one in model if one > due_ms), default=None)


def test_a_table_that_was_restored_is_the_one_that_was_stored() -> None:
    table, model = TimeTable(), Model()
    for entry_id in range(3 * BLOCK_MAX):
        put(table, model, entry_id // 3, [entry_id])
    again, at_ms = TimeTable(), -1
    while (piece := table.after(at_ms))[0]:
        again.restore(*piece)
        at_ms = piece[0][-1]
    assert contents(again) == model
    assert again.count == table.count
    put(again, model, 10, [7])
    put(again, model, 10**6, [8])
    assert contents(again) == model
    again.clear()
    assert again.first_ms is None
    assert not again.size_bytes


def test_pairs_take_what_the_account_says() -> None:
    table = TimeTable()
    for entry_id in range(20 * BLOCK_MAX):
        table.put(random.Random(entry_id).randrange(10**12), [entry_id])
    taken = sum(array.__sizeof__(one) for one in (*table._dues, *table._ids))  # noqa: SLF001 - what the arrays take
    assert taken < table.size_bytes < 1.2 * taken
