# SPDX-License-Identifier: Apache-2.0
"""Entries that lie apart, gathered into one batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.results import Batch, ReadResult
from penstock.storage.sparse_reads import GAP_ENTRIES_MAX, SparseBatch, read_sparse

LEDGER = 7
STORED = 500


class Log:
    """A ledger of entries that say their own ids, some of which are gone; it counts how often it is read."""

    def __init__(self, gone: frozenset[int] = frozenset(), entries_at_once: int = 1_000) -> None:
        self.gone = gone
        self.entries_at_once = entries_at_once
        self.reads = 0

    def read(self, entry_id: int, count: int) -> ReadResult:
        self.reads += 1
        stop = min(entry_id + min(count, self.entries_at_once), STORED)
        result = ReadResult(max(stop, entry_id))
        for one in range(entry_id, stop):
            if one not in self.gone:
                result.batches.append(
                    Batch(LEDGER, range(one, one + 1), b"-%d" % one, [1], [len(str(one))], [one % 3 + 1])
                )
        return result


def texts(batch: Batch) -> list[int]:
    return [int(bytes(entry)) for _, entry in batch.entries()]


wanted = st.sets(st.integers(0, STORED + 20), min_size=1).map(sorted)


@given(ids=wanted, gone=st.frozensets(st.integers(0, STORED)), at_once=st.integers(1, 100))
def test_what_is_there_is_found_and_what_is_not_is_passed(ids: list[int], gone: frozenset[int], at_once: int) -> None:
    result = read_sparse(Log(gone, at_once).read, LEDGER, ids, bytes_max=1_000_000)
    there = [one for one in ids if one < STORED and one not in gone]
    assert [one for batch in result.batches for one in batch.entry_ids] == there
    assert [one for batch in result.batches for one in texts(batch)] == there
    assert result.next_entry_id == ids[-1] + 1


@given(ids=wanted, bytes_max=st.integers(1, 50))
def test_no_more_is_read_than_was_asked_for_but_at_least_one(ids: list[int], bytes_max: int) -> None:
    ids = [one for one in ids if one < STORED] or [0]
    result = read_sparse(Log(entries_at_once=1).read, LEDGER, ids, bytes_max=bytes_max)
    (batch,) = result.batches
    assert list(batch.entry_ids) == ids[: len(batch.entry_ids)]
    assert sum(batch.lengths[:-1]) < bytes_max
    assert result.next_entry_id == batch.entry_ids[-1] + 1


def test_neighbours_are_read_together_and_others_are_not() -> None:
    log = Log()
    near, far = GAP_ENTRIES_MAX, GAP_ENTRIES_MAX + 1
    result = read_sparse(log.read, LEDGER, [0, near, near + far], bytes_max=1_000_000)
    assert list(result.batches[0].entry_ids) == [0, near, near + far]
    assert log.reads == 2


def test_counts_of_messages_are_kept_where_there_are_any() -> None:
    gathering = SparseBatch()
    gathering.add(Batch(LEDGER, range(3, 5), b"ab", [0, 1], [1, 1], [4, 1]), [0])
    gathering.add(Batch(LEDGER, range(9, 10), b"c", [0], [1], None), [0])
    batch = gathering.finish(LEDGER)
    assert (list(batch.entry_ids), batch.message_counts, bytes(batch.data)) == ([3, 9], [4, 1], b"ac")
