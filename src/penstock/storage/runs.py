# SPDX-License-Identifier: Apache-2.0
"""Runs and blocks: entries that are appended together, and entries that are written together.

A run is the entries of one read of one connection. A large run is a block of its own; small runs share a block, in
which the rows of each ledger are consecutive. Where: the broker creates runs, the journal writes blocks made from them.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import KIB, MIB
from penstock.storage.blocks import block_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.core.checksum import Buffer
    from penstock.core.errors import PenstockError
    from penstock.storage.results import Batch

# Smaller runs share a block: fewer blocks mean less to write, to index and to read. Larger blocks would gain nothing,
# and cost more when only a few entries of one are read.
JOINED_BYTES_MAX: Final = 256 * KIB
# Larger runs of the same ledgers share a block, too, if that brings the entries of a ledger together: a reader then has
# one place in this many bytes instead of one in each run.
SORTED_BYTES_MAX: Final = 2 * MIB
# With fewer entries of each ledger, sorting costs as much as handling each of them once more.
_SORTED_ENTRIES_MIN: Final = 4


class AppendRun:
    """Entries to be appended together: those of one read of one connection.

    Shapes: `groups` has (ledger id, first entry id, count); the rows of `offsets`, `lengths` and `message_counts`
    follow in the order of the groups. One group per ledger is cheapest. Entry i is `data[offsets[i]:][:lengths[i]]`;
    bytes between entries are stored too, without effect. `data` must not change until `done` was called.

    `done(run, error)` is called on the loop, in the order of the appends of one `owner` (a connection) and of one
    ledger; a small run with an owner may overtake large ones of others. With an error, nothing of the run was
    acknowledged: after a crash its entries may exist or not.

    `placeholders`: the entries stand for lost ones that were copied from another log. They are written so that each is
    damage where it is read: its id is used, and it is named and counted as the lost entry was.

    `packed`: there are no bytes between the entries; they follow one another in `data` as the rows do.

    A run without groups writes nothing. If it has no owner, its `done` means that everything appended before is
    settled.
    """

    __slots__ = (
        "block_bytes", "data", "done", "groups", "lengths", "message_counts", "offsets", "owner", "packed",
        "placeholders",
    )  # fmt: skip

    def __init__(
        self,
        *,
        groups: list[tuple[int, int, int]],
        offsets: Sequence[int],
        lengths: Sequence[int],
        message_counts: Sequence[int] | None,
        data: Buffer,
        done: Callable[[AppendRun, PenstockError | None], None],
        owner: int | None = None,
        placeholders: bool = False,
        packed: bool = False,
    ) -> None:
        self.groups = groups
        self.offsets = offsets
        self.lengths = lengths
        self.message_counts = message_counts
        self.data = data
        self.done = done
        self.owner = owner
        self.placeholders = placeholders
        self.packed = packed
        # The bytes that this run takes in a segment.
        self.block_bytes = (
            block_bytes(len(groups), len(offsets), len(data), has_message_counts=message_counts is not None)
            if groups
            else 0
        )


def run_of_batches(batches: Sequence[Batch], done: Callable[[AppendRun, PenstockError | None], None]) -> AppendRun:
    """Make one run of `batches`, without the bytes between their entries."""
    entries = [entry for batch in batches for _, entry in batch.entries()]
    lengths = [len(entry) for entry in entries]
    counts: list[int] = []
    for batch in batches:
        counts += batch.message_counts or [1] * len(batch.lengths)
    return AppendRun(
        groups=[(batch.ledger_id, batch.entry_ids[0], len(batch.entry_ids)) for batch in batches],
        offsets=[0, *accumulate(lengths[:-1])],
        lengths=lengths,
        message_counts=counts if any(batch.message_counts for batch in batches) else None,
        data=b"".join(entries),
        done=done,
    )


class Block(NamedTuple):
    """The entries between one front and one back: one large run, or several small ones."""

    groups: Sequence[tuple[int, int, int]]
    offsets: Sequence[int]
    lengths: Sequence[int]
    message_counts: Sequence[int] | None
    data: list[Buffer]
    placeholders: bool = False


def blocks(runs: Iterable[AppendRun]) -> Iterator[Block]:
    """Yield the blocks to write for `runs`, in order. Runs without entries are left out."""
    joined: list[AppendRun] = []
    size, sortable = 0, True
    for run in runs:
        if not run.groups:
            continue
        size += len(run.data)
        is_sortable = _is_sortable(run)
        if joined and not _may_join(joined[0], run, size, sortable=sortable and is_sortable):
            yield _joined(joined, sort=sortable)
            joined, size, sortable = [], len(run.data), True
        joined.append(run)
        sortable = sortable and is_sortable
    if joined:
        yield _joined(joined, sort=sortable)


def lone_block(run: AppendRun) -> Block:
    """Return the block of a run that has one for itself."""
    return Block(run.groups, run.offsets, run.lengths, run.message_counts, [run.data], run.placeholders)


def _may_join(first: AppendRun, run: AppendRun, size: int, *, sortable: bool) -> bool:
    """Return whether a run may be in the block of so many bytes that begins with `first`."""
    if run.placeholders or first.placeholders:
        return False
    same_columns = (run.message_counts is None) == (first.message_counts is None)
    return size <= JOINED_BYTES_MAX or (sortable and same_columns and size <= SORTED_BYTES_MAX)


def _is_sortable(run: AppendRun) -> bool:
    """Return whether a run has several ledgers, with several entries of each in one place."""
    return run.packed and len(run.lengths) >= _SORTED_ENTRIES_MIN * len(run.groups) > _SORTED_ENTRIES_MIN


def _joined(runs: list[AppendRun], *, sort: bool) -> Block:
    """Join runs to one block, in which the rows of each ledger are consecutive; `sort`: and their bytes, too."""
    if len(runs) == 1:
        return lone_block(runs[0])
    has_message_counts = any(run.message_counts is not None for run in runs)
    ledgers: dict[int, _Rows] = {}
    pieces: list[_Rows] = []
    base = 0
    for run in runs:
        row = 0
        view, stops = memoryview(run.data), [*run.offsets, len(run.data)] if sort else ()
        for ledger_id, first_entry, count in run.groups:
            rows = ledgers.get(ledger_id)
            if rows is None or rows.end_entry != first_entry:
                rows = ledgers[ledger_id] = _Rows(ledger_id, first_entry)
                pieces.append(rows)
            end = row + count
            rows.end_entry = first_entry + count
            rows.lengths += run.lengths[row:end]
            if sort:
                rows.data.append(view[stops[row] : stops[end]])
            else:
                rows.offsets += [offset + base for offset in run.offsets[row:end]]
            if has_message_counts:
                rows.message_counts += run.message_counts[row:end] if run.message_counts is not None else [1] * count
            row = end
        base += len(run.data)
    lengths = list(chain.from_iterable(rows.lengths for rows in pieces))
    if sort:
        offsets = list(accumulate(lengths[:-1], initial=0))
        data: list[Buffer] = list(chain.from_iterable(rows.data for rows in pieces))
    else:
        offsets = list(chain.from_iterable(rows.offsets for rows in pieces))
        data = [run.data for run in runs]
    return Block(
        groups=[(rows.ledger_id, rows.first_entry, len(rows.lengths)) for rows in pieces],
        offsets=offsets,
        lengths=lengths,
        message_counts=list(chain.from_iterable(rows.message_counts for rows in pieces))
        if has_message_counts
        else None,
        data=data,
    )


class _Rows:
    """Rows of consecutive entries of one ledger, for a joined block."""

    __slots__ = ("data", "end_entry", "first_entry", "ledger_id", "lengths", "message_counts", "offsets")

    def __init__(self, ledger_id: int, first_entry: int) -> None:
        self.ledger_id = ledger_id
        self.first_entry = self.end_entry = first_entry
        self.data: list[Buffer] = []  # if they are sorted, instead of offsets
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.message_counts: list[int] = []
