# SPDX-License-Identifier: Apache-2.0
"""Encodes deliveries: MESSAGE frames of stored entries, many at once.

Why by hand: as in `runs`, a frame is a template with numbers filled in, before the stored bytes. Where: the broker's
dispatch path. Pure functions on buffers and lists, and a cache of templates that never changes a result.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from penstock.wire.varints import LOW_BITS, LOW_MASK, encode_varint, halves, padded_low, padded_lows, share_high

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.checksum import Buffer

# Entries up to this size are copied together into one buffer; larger ones are sent without a copy. Copying a kilobyte
# costs less than one more element of a gathered write.
JOIN_BYTES_MAX: Final = 16 * 1024
# Pieces are joined to buffers of about this size.
JOINED_BYTES_MAX: Final = 64 * 1024

# The most cached templates, each of about a hundred bytes.
TEMPLATES_MAX: Final = 2048

# Cached sizes of frames with small entries, each of about 200 bytes: for so many sizes of commands and of entries.
SIZES_MAX: Final = 8
SIZES_EACH_MAX: Final = 2048

_WORD_MASK: Final = (1 << 64) - 1  # of an ack set; its words are signed, a varint is not

_pack_sizes: Final = struct.Struct(">II").pack


def encode_messages(
    out: list[Buffer],
    consumer_id: int,
    ledger_id: int,
    partition: int,
    entry_ids: Sequence[int],
    data: Buffer,
    offsets: Sequence[int],
    lengths: Sequence[int],
    redeliveries: Sequence[int] | None = None,
    consumer_epoch: int | None = None,
    ack_sets: Sequence[Sequence[int] | None] | None = None,
) -> int:
    """Append the MESSAGE frames of stored entries.

    Args:
        out: gets the frames: small entries copied together, large ones as views of `data`.
        consumer_id: the consumer.
        ledger_id: the entries' ledger.
        partition: the topic's index in its partitioned topic; -1 if it is not partitioned.
        entry_ids: one per entry.
        data: holds the entries, from the checksum's magic on.
        offsets: where in `data` each begins.
        lengths: of each, in bytes.
        redeliveries: the redelivery count of each; None if all are 0.
        consumer_epoch: as the consumer sent it, if it did.
        ack_sets: for partly acknowledged batches, the unacknowledged messages in signed 64-bit words; None for other
            rows, or if there are no such rows.

    Returns:
        The bytes appended.
    """
    count = len(entry_ids)
    if count == 0:
        return 0
    if ack_sets is not None:
        return _encode_stretches(
            out,
            (consumer_id, ledger_id, partition),
            entry_ids,
            data,
            offsets,
            lengths,
            redeliveries,
            consumer_epoch,
            ack_sets,
        )
    if not share_high(entry_ids):
        return sum(
            encode_messages(
                out,
                consumer_id,
                ledger_id,
                partition,
                entry_ids[half],
                data,
                offsets[half],
                lengths[half],
                None if redeliveries is None else redeliveries[half],
                consumer_epoch,
            )
            for half in halves(count)
        )
    before, entry_rest, epoch, command_bytes = _message_template(
        consumer_id, ledger_id, partition, entry_ids[0] >> LOW_BITS, consumer_epoch, redeliveries is not None
    )
    largest = max(lengths)
    sizes = _frame_sizes(command_bytes) if largest <= JOIN_BYTES_MAX else _FrameSizes(command_bytes)
    view = memoryview(data)
    # Budget: 0.3 µs per entry of 1 KiB on one core, and 5 µs (benchmarks/micro.py).
    pieces: list[Buffer] = [before] * (5 * count)
    pieces[0::5] = map(sizes.__getitem__, lengths)
    low = entry_ids[0] & LOW_MASK
    if count == 1:
        pieces[2] = padded_low(low)
    elif isinstance(entry_ids, range) and entry_ids.step == 1:
        pieces[2::5] = padded_lows()[low : low + count]
    else:
        lows = padded_lows()
        pieces[2::5] = [lows[entry_id & LOW_MASK] for entry_id in entry_ids]
    pieces[3::5] = (entry_rest + epoch,) * count
    if redeliveries is not None:
        rests = {times: entry_rest + _redelivery_count(times) + epoch for times in set(redeliveries)}
        pieces[3::5] = [rests[times] for times in redeliveries]
    pieces[4::5] = [view[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)]
    _append_joined(out, pieces, largest)
    return (8 + command_bytes) * count + sum(lengths)


def _encode_stretches(
    out: list[Buffer],
    to: tuple[int, int, int],
    entry_ids: Sequence[int],
    data: Buffer,
    offsets: Sequence[int],
    lengths: Sequence[int],
    redeliveries: Sequence[int] | None,
    consumer_epoch: int | None,
    ack_sets: Sequence[Sequence[int] | None],
) -> int:
    """Append rows with an ack set one by one, and the rows between them together."""
    nbytes = first = 0
    marked = [row for row, ack_set in enumerate(ack_sets) if ack_set is not None]
    for row in [*marked, len(ack_sets)]:
        rows = slice(first, row)
        nbytes += encode_messages(
            out,
            *to,
            entry_ids[rows],
            data,
            offsets[rows],
            lengths[rows],
            None if redeliveries is None else redeliveries[rows],
            consumer_epoch,
        )
        if row < len(ack_sets):
            times = None if redeliveries is None else redeliveries[row]
            head = _message_head(to, entry_ids[row], times, ack_sets[row] or (), consumer_epoch, lengths[row])
            entry = memoryview(data)[offsets[row] : offsets[row] + lengths[row]]
            _append_joined(out, [head, entry], lengths[row])
            nbytes += len(head) + lengths[row]
        first = row + 1
    return nbytes


def _message_head(
    to: tuple[int, int, int],
    entry_id: int,
    redelivery_count: int | None,
    ack_set: Sequence[int],
    consumer_epoch: int | None,
    entry_bytes: int,
) -> bytes:
    """Return the bytes before one entry that has an ack set."""
    consumer_id, ledger_id, partition = to
    message_id = b"\x08" + encode_varint(ledger_id) + b"\x10" + encode_varint(entry_id)
    if partition >= 0:
        message_id += b"\x18" + encode_varint(partition)
    body = b"\x08" + encode_varint(consumer_id) + b"\x12" + encode_varint(len(message_id)) + message_id
    if redelivery_count is not None:
        body += b"\x18" + encode_varint(redelivery_count)
    body += b"".join(b"\x20" + encode_varint(word & _WORD_MASK) for word in ack_set)
    if consumer_epoch is not None:
        body += b"\x28" + encode_varint(consumer_epoch)
    command = b"\x08\x09\x4a" + encode_varint(len(body)) + body
    return _pack_sizes(4 + len(command) + entry_bytes, len(command)) + command


def _append_joined(out: list[Buffer], pieces: list[Buffer], largest: int) -> None:
    """Append the pieces, copied together where that is cheaper than sending one more buffer."""
    if largest > JOIN_BYTES_MAX:
        small = 0
        for index, piece in enumerate(pieces):
            if len(piece) > JOIN_BYTES_MAX:
                out += (b"".join(pieces[small:index]), piece)
                small = index + 1
        pieces = pieces[small:]
    # In parts, because a partly sent buffer stays in memory as a whole.
    step = JOINED_BYTES_MAX // (min(largest, JOIN_BYTES_MAX) + 64) * 5
    out += [b"".join(pieces[at : at + step]) for at in range(0, len(pieces), step)]


class _FrameSizes(dict[int, bytes]):
    """The two sizes before a command of a fixed size, by the size of the entry behind it."""

    __slots__ = ("_command_bytes",)

    def __init__(self, command_bytes: int) -> None:
        self._command_bytes = command_bytes

    def __missing__(self, entry_bytes: int) -> bytes:
        if len(self) == SIZES_EACH_MAX:
            self.clear()
        sizes = self[entry_bytes] = _pack_sizes(4 + self._command_bytes + entry_bytes, self._command_bytes)
        return sizes


_frame_sizes = lru_cache(maxsize=SIZES_MAX)(_FrameSizes)


@lru_cache(maxsize=TEMPLATES_MAX)
def _message_template(
    consumer_id: int,
    ledger_id: int,
    partition: int,
    entry_high: int,
    consumer_epoch: int | None,
    redelivered: bool,  # noqa: FBT001 - a cache hit by position takes half the time
) -> tuple[bytes, bytes, bytes, int]:
    """Return a MESSAGE command in pieces: up to the entry id, from its high part on, the epoch; and its size in bytes.

    The entry id's low part belongs between the first two, a redelivery count between the last two.
    """
    consumer = b"\x08" + encode_varint(consumer_id)
    ledger = b"\x08" + encode_varint(ledger_id) + b"\x10"
    entry_rest = encode_varint(entry_high)
    if partition >= 0:
        entry_rest += b"\x18" + encode_varint(partition)
    epoch = b"" if consumer_epoch is None else b"\x28" + encode_varint(consumer_epoch)
    message_id_bytes = len(ledger) + 2 + len(entry_rest)
    redelivery_bytes = len(_redelivery_count(0)) if redelivered else 0
    body_bytes = len(consumer) + 2 + message_id_bytes + redelivery_bytes + len(epoch)
    before = b"\x08\x09\x4a" + bytes((body_bytes,)) + consumer + b"\x12" + bytes((message_id_bytes,)) + ledger
    return before, entry_rest, epoch, 4 + body_bytes


def _redelivery_count(times: int) -> bytes:
    """Encode the field, always in the same size."""
    high = times >> LOW_BITS
    return b"\x18" + padded_low(times & LOW_MASK) + bytes((high & 127 | 128, high >> 7 & 127 | 128, high >> 14))
