# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.runs import JOINED_BYTES_MAX, SORTED_BYTES_MAX, AppendRun, Block, blocks
from tests.storage.logs import entries, run_of


def listed(groups: list[tuple[int, int, int]], block: Block | AppendRun, data: bytes) -> dict[tuple[int, int], bytes]:
    """Return a block's or a run's entries by name."""
    named, row = {}, 0
    for ledger_id, first, count in groups:
        for entry_id in range(first, first + count):
            named[ledger_id, entry_id] = data[block.offsets[row] :][: block.lengths[row]]
            row += 1
    assert row == len(block.offsets) == len(block.lengths)
    return named


@given(st.lists(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=4), max_size=8))
def test_runs_joined_to_a_block_keep_every_entry_and_its_name(shape: list[list[tuple[int, int]]]) -> None:
    upcoming: dict[int, int] = {}
    runs = []
    for groups in shape:
        named = []
        for ledger_id, count in groups:
            first = upcoming.get(ledger_id, 0)
            named.append((ledger_id, first, entries(first + ledger_id * 1000, count)))
            upcoming[ledger_id] = first + count
        runs.append(run_of(named))
    expected: dict[tuple[int, int], bytes] = {}
    for run in runs:
        expected |= listed(run.groups, run, bytes(run.data))
    got: dict[tuple[int, int], bytes] = {}
    for block in blocks(runs):
        got |= listed(list(block.groups), block, b"".join(block.data))
    assert got == expected


def test_entries_of_one_ledger_lie_together_in_a_joined_block() -> None:
    runs = [
        run_of([(1, 0, entries(0, 2)), (2, 0, entries(0, 1))]),
        run_of([(2, 1, entries(1, 1)), (1, 2, entries(2, 1))]),
    ]
    (block,) = blocks(runs)
    assert block.groups == [(1, 0, 3), (2, 0, 2)]


def test_ids_that_do_not_follow_one_another_are_groups_of_their_own() -> None:
    runs = [run_of([(1, 0, entries(0, 2))]), run_of([(1, 7, entries(7, 1))])]
    (block,) = blocks(runs)
    assert block.groups == [(1, 0, 2), (1, 7, 1)]


def test_message_counts_of_runs_without_any_are_one() -> None:
    runs = [run_of([(1, 0, entries(0, 2))]), run_of([(1, 2, entries(2, 1))], message_counts=[9])]
    (block,) = blocks(runs)
    assert block.message_counts == [1, 1, 9]


def test_large_runs_are_not_joined_and_empty_ones_leave_nothing() -> None:
    large = run_of([(1, 0, entries(0, 1, size=JOINED_BYTES_MAX))])
    small = run_of([(1, 1, entries(1, 1))])
    assert [block.data for block in blocks([run_of([]), small, large, small, run_of([])])] == [
        [small.data],
        [large.data],
        [small.data],
    ]


def packed(number: int, first: int, ledgers: range, count: int, size: int, **columns: list[int]) -> AppendRun:
    """Return a run with so many entries of each ledger and nothing between them."""
    groups = [(ledger_id, first, entries(first + 1000 * ledger_id + number, count, size)) for ledger_id in ledgers]
    run = run_of(groups, between=b"", **columns)  # type: ignore[arg-type]
    run.packed = True
    return run


def test_large_packed_runs_share_a_block_in_which_a_ledger_has_one_place() -> None:
    runs = [packed(0, row * 8, range(1, 41), 8, size=1_000) for row in range(3)]
    assert len(runs[0].data) > JOINED_BYTES_MAX
    (block,) = blocks(runs)
    assert block.groups == [(ledger_id, 0, 24) for ledger_id in range(1, 41)]
    assert list(block.offsets) == list(accumulate(block.lengths[:-1], initial=0))
    expected: dict[tuple[int, int], bytes] = {}
    for run in runs:
        expected |= listed(run.groups, run, bytes(run.data))
    assert listed(list(block.groups), block, b"".join(block.data)) == expected


def test_sorted_blocks_are_bounded() -> None:
    runs = [packed(0, row * 8, range(1, 41), 8, size=1_000) for row in range(20)]
    sizes = [sum(map(len, block.data)) for block in blocks(runs)]
    assert sum(sizes) == sum(len(run.data) for run in runs)
    assert all(SORTED_BYTES_MAX // 2 < size <= SORTED_BYTES_MAX for size in sizes[:-1])


def test_large_runs_stay_apart_where_sorting_would_not_help() -> None:
    few = [packed(0, row, range(1, 401), 1, size=1_000) for row in range(2)]
    lone = [packed(0, row * 400, range(1, 2), 400, size=1_000) for row in range(2)]
    unpacked = [packed(0, row * 10, range(1, 41), 10, size=1_000) for row in range(2)]
    unpacked[1].packed = False
    counted = [packed(0, row * 10, range(1, 41), 10, size=1_000) for row in range(2)]
    counted[1].message_counts = [2] * len(counted[1].lengths)
    for runs in (few, lone, unpacked, counted):
        assert [block.data for block in blocks(runs)] == [[run.data] for run in runs]


def test_small_runs_of_which_one_is_not_packed_are_joined_as_they_are() -> None:
    runs = [packed(0, 0, range(1, 3), 4, size=50), run_of([(1, 4, entries(4, 2))])]
    (block,) = blocks(runs)
    assert block.data == [run.data for run in runs]
    assert block.groups == [(1, 0, 6), (2, 0, 4)]
