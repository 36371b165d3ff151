# SPDX-License-Identifier: Apache-2.0
"""What a client said, as the broker hears it: one object per stretch of publishes, per acknowledgement, per command.

Why columns: a read brings hundreds of small publishes. Parallel lists cost a few list appends per entry; an object per
entry would cost more than everything else done to it.
Where: made by `FrameReader.received`, acted on by the broker's session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from penstock.wire.pulsar_pb2 import CommandSend


@dataclass(slots=True)
class PublishRun:
    """Consecutive SEND frames of one read; row `i` of every column is the `i`-th frame.

    Attributes:
        data: the frames, contiguous. A large frame that came alone keeps the buffer it was read into.
        producer_ids: who sent the entry.
        sequence_ids: the producer's own counter.
        offsets: where in `data` the entry begins: at the checksum's magic, or behind the command when there is none.
        lengths: the entry's bytes, to the end of the frame.
        message_counts: messages in the entry, as claimed by the producer; None when every entry holds one.
        highest: the last sequence id of a batch, 0 where absent; None when absent in all rows.
        unsealed: rows without magic and checksum, ascending.
        corrupt: rows whose checksum does not match, or whose metadata does not fit into the frame; ascending.
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
    rare: dict[int, CommandSend] = field(default_factory=dict)


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
    """

    consumer_id: int
    cumulative: bool
    ledger_ids: list[int]
    entry_ids: list[int]
    ack_sets: dict[int, list[int]] = field(default_factory=dict)
    request_id: int | None = None
    validation_error: int | None = None
    txn: tuple[int, int] | None = None


@dataclass(slots=True)
class Flow:
    """A consumer grants this many more messages."""

    consumer_id: int
    permits: int


@dataclass(slots=True)
class Command:
    """Any other command: its `BaseCommand.Type`, and the sub-message that goes with it, complete and readable."""

    type: int
    body: Message


@dataclass(slots=True)
class UnknownCommand:
    """A well-formed frame of a type that this version of the protocol definition does not know."""

    type: int


Event: TypeAlias = PublishRun | AckRun | Flow | Command | UnknownCommand
