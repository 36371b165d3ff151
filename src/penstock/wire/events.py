# SPDX-License-Identifier: Apache-2.0
"""Events: what clients sent. One object per run of publishes, per acknowledgement, and per command.

Why columns: one read brings hundreds of small publishes. Parallel lists cost a few list appends per entry; an object
per entry would cost more than all other work on it. Where: made by `FrameReader.received`, handled by the broker's
session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from penstock.core.errors import PenstockError
    from penstock.core.transaction_id import TransactionId
    from penstock.wire.pulsar_pb2 import CommandSend


# The memory of a row of a run besides its bytes, from decoding to its receipt: a number in each of four columns, most
# of them separate objects, and the references to them in the columns of the log. Measured: 90 to 108.
ROW_BYTES: Final = 104
# The same for each column that most runs do not have.
COLUMN_BYTES: Final = 24
# The same for each producer if there are several: its rows are copied to separate columns.
STRETCH_BYTES: Final = 600
# The columns are not counted while they take less than an eighth of the data.
_UNCOUNTED_SHIFT: Final = 3


class OfTransaction(NamedTuple):
    """Rows of a run that belong to a transaction: those from `first` on, before `stop`."""

    first: int
    stop: int
    transaction: TransactionId


@dataclass(slots=True)
class PublishRun:
    """Consecutive SEND frames of one read; row `i` of every column is the `i`-th frame.

    Attributes:
        data: the frames, contiguous. A large frame that came alone, and a run that fills most of the arena, keep the
            buffer they were read into. In a proxy it is a view of what was read (`wire.relayed`).
        producer_ids: the producer of each entry.
        sequence_ids: the producer's sequence id.
        offsets: where in `data` the entry begins: at the checksum's magic, or behind the command if there is none.
        lengths: the entry's bytes, to the end of the frame.
        message_counts: messages in the entry, according to its metadata; None if every entry holds one.
        highest: the last sequence id of a batch, 0 where absent; None if absent in all rows.
        unsealed: rows without magic and checksum, ascending.
        corrupt: rows whose checksum does not match, or whose metadata does not fit into the frame; ascending.
        refused: rows with implausible metadata, and why.
        transactions: those that rows belong to, ascending by rows.
        rare: rows whose command has more fields than the columns, and the command.
        unused_bytes: of a run that keeps the buffer it was read into: how much of that is not its data.
    """

    data: bytes | memoryview
    producer_ids: list[int] = field(default_factory=list)
    sequence_ids: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    message_counts: list[int] | None = None
    highest: list[int] | None = None
    unsealed: list[int] = field(default_factory=list)
    corrupt: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    transactions: list[OfTransaction] = field(default_factory=list)
    rare: dict[int, CommandSend] = field(default_factory=dict)
    unused_bytes: int = 0

    def belongs(self, row: int, transaction: TransactionId, rows: int = 1) -> None:
        """Note that these rows, which are behind all others of transactions, belong to one."""
        last = self.transactions[-1] if self.transactions else None
        if last is not None and (last.stop, last.transaction) == (row, transaction):
            self.transactions[-1] = last._replace(stop=row + rows)
        else:
            self.transactions.append(OfTransaction(row, row + rows, transaction))

    def transaction_rows(self) -> dict[int, TransactionId]:
        """Return the transaction of each row that belongs to one."""
        return {row: one.transaction for one in self.transactions for row in range(one.first, one.stop)}

    @property
    def column_bytes(self) -> int:
        """The memory of the run besides its data; columns count only if they take more than an eighth of it."""
        row_bytes = ROW_BYTES
        if self.message_counts is not None:
            row_bytes += COLUMN_BYTES
        if self.highest is not None:
            row_bytes += COLUMN_BYTES
        columns = row_bytes * len(self.offsets)
        if columns <= len(self.data) >> _UNCOUNTED_SHIFT:
            return self.unused_bytes
        ids = self.producer_ids
        if ids.count(ids[0]) < len(ids):
            columns += STRETCH_BYTES * len(set(ids))
        return columns + self.unused_bytes

    def pick(self, rows: Sequence[int]) -> PublishRun:
        """Return a run of these rows, in their order, with a copy of their bytes."""
        view = memoryview(self.data)
        lengths = [self.lengths[row] for row in rows]
        offsets = list(accumulate(lengths, initial=0))
        picked = PublishRun(
            b"".join([view[self.offsets[row] : self.offsets[row] + self.lengths[row]] for row in rows]),
            [self.producer_ids[row] for row in rows],
            [self.sequence_ids[row] for row in rows],
            offsets[:-1],
            lengths,
            None if self.message_counts is None else [self.message_counts[row] for row in rows],
            None if self.highest is None else [self.highest[row] for row in rows],
        )
        if self.unsealed or self.corrupt or self.refused or self.rare:
            at = {row: number for number, row in enumerate(rows)}
            picked.unsealed = [at[row] for row in self.unsealed if row in at]
            picked.corrupt = [at[row] for row in self.corrupt if row in at]
            picked.refused = {at[row]: why for row, why in self.refused.items() if row in at}
            picked.rare = {at[row]: send for row, send in self.rare.items() if row in at}
        if self.transactions:
            found = self.transaction_rows()
            for number, row in enumerate(rows):
                if row in found:
                    picked.belongs(number, found[row])
        return picked

    @property
    def charged_bytes(self) -> int:
        """All memory of the run that is charged to request memory."""
        return len(self.data) + self.column_bytes

    @property
    def is_tiny(self) -> bool:
        """Whether the run takes more memory besides its data than for its data."""
        return ROW_BYTES * len(self.offsets) > len(self.data)


@dataclass(slots=True)
class AckRun:
    """The acknowledgements of one consumer; row `i` of `ledger_ids` and `entry_ids` is the `i`-th message id.

    Usually one ACK command. Consecutive commands of a read that each acknowledge one entry in the same way are one run,
    unless they wait for a response.

    Attributes:
        consumer_id: the consumer.
        cumulative: acknowledge everything up to and including the position, rather than the position alone.
        ledger_ids: of the acknowledged entries.
        entry_ids: of the acknowledged entries.
        ack_sets: by row, for partly acknowledged batches: a bit per unacknowledged message, in signed 64-bit words,
            lowest bit and lowest word first.
        request_id: set if the client waits for an ACK_RESPONSE.
        validation_error: why the client could not use the message (`CommandAck.ValidationError`), if given.
        transaction: to which the acknowledgement belongs, if to one.
        batch_sizes: in a transaction, by row like `ack_sets`: how many messages the batch has; 0 if it does not say.
        refused: why all of it was refused, if so.
        consecutive: known that entry ids ascend without gaps; otherwise they may, too.
    """

    consumer_id: int
    cumulative: bool
    ledger_ids: list[int]
    entry_ids: list[int]
    ack_sets: dict[int, list[int]] = field(default_factory=dict)
    request_id: int | None = None
    validation_error: int | None = None
    transaction: TransactionId | None = None
    batch_sizes: dict[int, int] = field(default_factory=dict)
    refused: PenstockError | None = None
    consecutive: bool = field(default=False, compare=False)


@dataclass(slots=True)
class Flow:
    """A consumer grants this many more flow permits."""

    consumer_id: int
    permits: int


@dataclass(slots=True)
class Command:
    """Any other command: its `BaseCommand.Type` and its body, complete and readable.

    `nbytes` is the length of the encoded command.
    """

    type: int
    body: Message
    nbytes: int = field(default=0, compare=False)


@dataclass(slots=True)
class UnknownCommand:
    """A well-formed frame of a type that this version of the protocol definition does not know."""

    type: int


@dataclass(slots=True)
class RefusedCommand:
    """A command that exceeds a limit (`wire.bounds`), and was therefore not decoded.

    Attributes:
        type: its `BaseCommand.Type`.
        body: its body with only the ids, as far as it has any.
        text: the message for the client and the log.
    """

    type: int
    body: Message
    text: str


@dataclass(slots=True)
class Relayed:
    """Frames that a proxy passes on, without SENDs.

    Attributes:
        data: the complete frames, as they came.
        command: the command of the only frame, if the proxy handles it or learns from it.
    """

    data: bytes
    command: Command | None = None


Event: TypeAlias = PublishRun | AckRun | Flow | Command | UnknownCommand | RefusedCommand | Relayed
