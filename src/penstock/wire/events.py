# SPDX-License-Identifier: Apache-2.0
"""What a client said, as the broker hears it: one object per stretch of publishes, per acknowledgement, per command.

Why columns: a read brings hundreds of small publishes. Parallel lists cost a few list appends per entry; an object per
entry would cost more than everything else done to it.
Where: made by `FrameReader.received`, acted on by the broker's session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from penstock.core.errors import PenstockError
    from penstock.wire.pulsar_pb2 import CommandSend


# What a row of a run takes beside its bytes, from decoding to its receipt: a number in each of four columns, most
# of them objects of their own, and the references to them in the columns of the log. Measured: 90 to 108.
ROW_BYTES: Final = 104
# ... for each column that most runs do not have.
COLUMN_BYTES: Final = 24
# ... for each producer, when there are several: its rows are picked out into columns of their own.
STRETCH_BYTES: Final = 600
# The columns are not counted while they take less than so much of the data: an eighth.
_UNCOUNTED_SHIFT: Final = 3


@dataclass(slots=True)
class PublishRun:
    """Consecutive SEND frames of one read; row `i` of every column is the `i`-th frame.

    Attributes:
        data: the frames, contiguous. A large frame that came alone keeps the buffer it was read into.
        producer_ids: who sent the entry.
        sequence_ids: the producer's own counter.
        offsets: where in `data` the entry begins: at the checksum's magic, or behind the command when there is none.
        lengths: the entry's bytes, to the end of the frame.
        message_counts: messages in the entry, by its metadata; None when every entry holds one.
        highest: the last sequence id of a batch, 0 where absent; None when absent in all rows.
        unsealed: rows without magic and checksum, ascending.
        corrupt: rows whose checksum does not match, or whose metadata does not fit into the frame; ascending.
        refused: why, of rows whose metadata says what cannot be true.
        rare: the command itself, of rows that carry more than the columns tell.
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
    rare: dict[int, CommandSend] = field(default_factory=dict)

    @property
    def column_bytes(self) -> int:
        """What the run takes beside its data; 0 while that is less than an eighth of it."""
        row_bytes = ROW_BYTES
        if self.message_counts is not None:
            row_bytes += COLUMN_BYTES
        if self.highest is not None:
            row_bytes += COLUMN_BYTES
        columns = row_bytes * len(self.offsets)
        if self.unsealed:
            columns += len(self.data)  # Such entries are stored in a copy with their checksums.
        if columns <= len(self.data) >> _UNCOUNTED_SHIFT:
            return 0
        ids = self.producer_ids
        return columns if ids.count(ids[0]) == len(ids) else columns + STRETCH_BYTES * len(set(ids))

    @property
    def is_tiny(self) -> bool:
        """Whether the run takes more beside its data than its data."""
        return ROW_BYTES * len(self.offsets) > len(self.data)


@dataclass(slots=True)
class AckRun:
    """What one consumer acknowledges; row `i` of `ledger_ids` and `entry_ids` is the `i`-th message id.

    Usually one ACK command. Commands that follow one another in a read and say the same of one more entry each are one
    run, unless they wait for an answer.

    Attributes:
        consumer_id: who acknowledges.
        cumulative: everything up to and including the position, rather than the position alone.
        ledger_ids: of the acknowledged entries.
        entry_ids: of the acknowledged entries.
        ack_sets: by row, for batches of which some messages are still wanted: a bit per wanted message, in signed
            64-bit words, lowest bit and lowest word first.
        request_id: set when the client waits for an ACK_RESPONSE.
        validation_error: why the client could not use the message (`CommandAck.ValidationError`), if it says so.
        txn: the transaction's (least, most) bits, when the acknowledgement belongs to one.
        refused: why nothing of it was taken, if so.
    """

    consumer_id: int
    cumulative: bool
    ledger_ids: list[int]
    entry_ids: list[int]
    ack_sets: dict[int, list[int]] = field(default_factory=dict)
    request_id: int | None = None
    validation_error: int | None = None
    txn: tuple[int, int] | None = None
    refused: PenstockError | None = None


@dataclass(slots=True)
class Flow:
    """A consumer grants this many more messages."""

    consumer_id: int
    permits: int


@dataclass(slots=True)
class Command:
    """Any other command: its `BaseCommand.Type`, and the sub-message that goes with it, complete and readable.

    `nbytes` is how long the command was, as it came.
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
    """A command that holds more than it may (`wire.bounds`), and was therefore not decoded.

    Attributes:
        type: its `BaseCommand.Type`.
        body: the sub-message that goes with it, of which only the ids are set, as far as it has any.
        text: the sentence for the client and the log.
    """

    type: int
    body: Message
    text: str


Event: TypeAlias = PublishRun | AckRun | Flow | Command | UnknownCommand | RefusedCommand
