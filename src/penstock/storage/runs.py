# SPDX-License-Identifier: Apache-2.0
"""Runs and blocks: entries that are appended together, and entries that are written together.

A run is the entries of one read of one connection. A large run is a block of its own; small runs share a block, in
which the rows of each ledger are consecutive. Where: the broker creates runs, the journal writes blocks made from them.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import KIB
from penstock.storage.records import block_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.core.checksum import Buffer
    from penstock.core.errors import PenstockError
    from penstock.storage.results import Batch

# Smaller runs share a block: fewer blocks mean less to write, to index and to read. Larger blocks would gain nothing,
# and cost more when only a few entries of one are read.
JOINED_BYTES_MAX: Final = 256 * KIB


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

    A run without groups writes nothing. If it has no owner, its `done` means that everything appended before is
    settled.
    """

    __slots__ = (
        "block_bytes", "data", "done", "groups", "lengths", "message_counts", "offsets", "owner", "placeholders"
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
    ) -> None:
        self.groups = groups
        self.offsets = offsets
        self.lengths = lengths
        self.message_counts = message_counts
        self.data = data
        self.done = done
        self.owner = owner
        self.placeholders = placeholders
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
    small: list[AppendRun] = []
    size = 0
    for run in runs:
        if not run.groups:
            continue
        if small and (size + len(run.data) > JOINED_BYTES_MAX or run.placeholders or small[0].placeholders):
            yield _joined(small)
            small, size = [], 0
        small.append(run)
        size += len(run.data)
    if small:
        yield _joined(small)


def lone_block(run: AppendRun) -> Block:
    """Return the block of a run that has one for itself."""
    return Block(run.groups, run.offsets, run.lengths, run.message_counts, [run.data], run.placeholders)


def _joined(runs: list[AppendRun]) -> Block:
    """Join runs to one block, in which the rows of each ledger are consecutive."""
    if len(runs) == 1:
        return lone_block(runs[0])
    has_message_counts = any(run.message_counts is not None for run in runs)
    ledgers: dict[int, _Rows] = {}
    pieces: list[_Rows] = []
    base = 0
    for run in runs:
        row = 0
        for ledger_id, first_entry, count in run.groups:
            rows = ledgers.get(ledger_id)
            if rows is None or rows.first_entry + len(rows.offsets) != first_entry:
                rows = ledgers[ledger_id] = _Rows(ledger_id, first_entry)
                pieces.append(rows)
            end = row + count
            rows.offsets += [offset + base for offset in run.offsets[row:end]]
            rows.lengths += run.lengths[row:end]
            if has_message_counts:
                rows.message_counts += run.message_counts[row:end] if run.message_counts is not None else [1] * count
            row = end
        base += len(run.data)
    return Block(
        groups=[(rows.ledger_id, rows.first_entry, len(rows.offsets)) for rows in pieces],
        offsets=list(chain.from_iterable(rows.offsets for rows in pieces)),
        lengths=list(chain.from_iterable(rows.lengths for rows in pieces)),
        message_counts=list(chain.from_iterable(rows.message_counts for rows in pieces))
        if has_message_counts
        else None,
        data=[run.data for run in runs],
    )


class _Rows:
    """Rows of consecutive entries of one ledger, for a joined block."""

    __slots__ = ("first_entry", "ledger_id", "lengths", "message_counts", "offsets")

    def __init__(self, ledger_id: int, first_entry: int) -> None:
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.message_counts: list[int] = []
