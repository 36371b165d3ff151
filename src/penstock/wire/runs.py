# SPDX-License-Identifier: Apache-2.0
"""The hot path in both directions: decodes publish frames to columns, encodes receipts and deliveries.

Why by hand: protobuf takes 1.2 µs for a publish and 1.8 µs for its receipt, mostly for objects that are not kept. A
publish is decoded by looking its parts up in a cache of earlier parts (`layouts`). A frame with an unknown part is
parsed field by field, which fills the cache. Protobuf decodes frames that are unusual even then.

For encoding, a frame is a template with numbers filled in. They are written as padded varints of a fixed length, which
protobuf allows, so that every frame of a stretch has the same size.

Where: `FrameReader` and the broker's publish and dispatch paths. Pure functions on buffers and lists, and a cache that
never changes a result.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from penstock.core.checksum import SEAL_BYTES, SEAL_MAGIC, Buffer
from penstock.wire import codec
from penstock.wire.batch_counts import METADATA_WALKED_BYTES_MAX, Implausible, check_fields, message_count
from penstock.wire.bounds import BOUNDS, Bounds, OutOfBounds
from penstock.wire.errors import ProtocolError
from penstock.wire.events import PublishRun
from penstock.wire.layouts import SEND_BYTES_MIN, SEND_HEAD_BYTES, SEND_START, Layout, layout_at, parse_ids
from penstock.wire.varints import LOW_BITS, LOW_MASK, PADDED_LOWS, encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Buffer", "decode_send", "decode_sends", "encode_messages", "encode_receipts"]

# Entries up to this size are copied together into one buffer; larger ones are sent without a copy. Copying a kilobyte
# costs less than one more element of a gathered write.
JOIN_BYTES_MAX: Final = 16 * 1024
# Pieces are joined to buffers of about this size.
JOINED_BYTES_MAX: Final = 64 * 1024

# The most cached templates, each of about a hundred bytes.
TEMPLATES_MAX: Final = 2048

_METADATA_SIZE_BYTES: Final = 4
_WORD_MASK: Final = (1 << 64) - 1  # of an ack set; its words are signed, a varint is not

_read_sizes: Final = struct.Struct(">II").unpack_from
_read_u32: Final = struct.Struct(">I").unpack_from
_pack_sizes: Final = struct.Struct(">II").pack


# -- decoding: publishes ---------------------------------------------------------------------------------------------


def decode_sends(
    view: memoryview, *, frame_bytes_max: int, bounds: Bounds = BOUNDS, keep: memoryview | None = None
) -> tuple[PublishRun | None, int]:
    """Decode the consecutive SEND frames at the beginning of `view`.

    Stops before the first frame that is incomplete, too large, or not a SEND that begins with its type.

    Args:
        view: what was read, from the first frame on; its memory may be reused when this returns.
        frame_bytes_max: the largest announced size of a frame.
        bounds: limits for a SEND with more than the usual fields.
        keep: the buffer behind `view`, if that is one complete frame in a buffer of its own: the run keeps it,
            uncopied.

    Returns:
        The run, or None if it would be empty; and the bytes of its frames.

    Raises:
        ProtocolError: a SEND whose command cannot be parsed, lacks a required field, or is larger than its frame.
    """
    rows = _Rows()
    run = rows.run
    add_producer_id, add_sequence_id = run.producer_ids.append, run.sequence_ids.append
    add_offset, add_length = run.offsets.append, run.lengths.append
    checksum_of = crc32c
    pos, end = 0, len(view)
    last = end - SEND_BYTES_MIN
    while pos <= last:
        first = pos
        layout = layout_at(view, pos)
        unpack, lows, highs, entry_at = layout.unpack, layout.lows, layout.highs, layout.entry_at
        producer_id_of = layout.prefixes.get
        try:
            # Budget: 1.0 µs per entry of 1 KiB on one core, 0.35 of it for the checksum (benchmarks/micro.py).
            while pos <= last:
                total, prefix, low, high, checksum, metadata_bytes = unpack(view, pos)
                stop = pos + 4 + total
                producer_id = producer_id_of(prefix)
                if producer_id is None or stop > end or total > frame_bytes_max:
                    break
                sequence_id = lows[low] + highs[high]
                entry = pos + entry_at
                length = stop - entry
                if metadata_bytes > length - 10 or metadata_bytes > METADATA_WALKED_BYTES_MAX:
                    break
                if checksum_of(view[entry + 6 : stop]) != checksum:
                    break
                add_producer_id(producer_id)
                add_sequence_id(sequence_id)
                add_offset(entry)
                add_length(length)
                pos = stop
        except (KeyError, struct.error):
            pass  # An unknown part, or a frame so short that the layout reads past the buffer.
        if pos == first:
            pos = _parse_rows(rows, layout, view, pos, frame_bytes_max, bounds)
            if pos == first:
                break
    return rows.finish(view, pos, keep), pos


def decode_send(frame: memoryview, command: codec.BaseCommand, *, keep: memoryview | None = None) -> PublishRun:
    """Return the run of one SEND frame whose command, of the announced size, is already parsed.

    Raises:
        ProtocolError: the command lacks its body or a required field.
    """
    rows = _Rows()
    rows.add_send(frame, 0, len(frame), codec.checked_send(command))
    run = rows.finish(frame, len(frame), keep)
    assert run is not None
    return run


class _Rows:
    """A run that grows row by row. Mostly empty columns are kept by row number until the end."""

    __slots__ = ("counts", "highest", "run")

    def __init__(self) -> None:
        self.run = PublishRun(b"")
        self.counts: dict[int, int] = {}
        self.highest: dict[int, int] = {}

    def add_send(self, view: memoryview, frame: int, stop: int, send: codec.CommandSend) -> None:
        """Append the row of the frame `view[frame:stop]`, whose command is `send`."""
        if codec.is_rare(send):
            self.run.rare[len(self.run.offsets)] = send
        ids = send.producer_id, send.sequence_id, send.num_messages, send.highest_sequence_id
        self.add(view, frame, stop, ids)

    def add(self, view: memoryview, frame: int, stop: int, ids: tuple[int, int, int, int]) -> None:
        """Append the row of the frame `view[frame:stop]`; check its payload."""
        run = self.run
        row = len(run.offsets)
        producer_id, sequence_id, messages, highest = ids
        entry = frame + 8 + _read_u32(view, frame + 4)[0]
        run.producer_ids.append(producer_id)
        run.sequence_ids.append(sequence_id)
        run.offsets.append(entry)
        run.lengths.append(stop - entry)
        if highest:
            self.highest[row] = highest
        sealed = bytes(view[entry : min(entry + 2, stop)]) == SEAL_MAGIC
        if not sealed:
            run.unsealed.append(row)
        body = view[entry + SEAL_BYTES : stop] if sealed else view[entry:stop]
        sound = len(body) >= _METADATA_SIZE_BYTES and _read_u32(body)[0] <= len(body) - _METADATA_SIZE_BYTES
        if not sound or (sealed and _read_u32(view, entry + 2)[0] != crc32c(body)):
            run.corrupt.append(row)
        else:
            self._look_into(body, row, messages)

    def _look_into(self, body: memoryview, row: int, messages: int) -> None:
        """Count the messages of a batch, and refuse implausible numbers. Entries with one message are not checked."""
        metadata_bytes = _read_u32(body)[0]
        if messages <= 1 and metadata_bytes <= METADATA_WALKED_BYTES_MAX:
            return
        payload = _METADATA_SIZE_BYTES + metadata_bytes
        metadata = bytes(body[_METADATA_SIZE_BYTES:payload])
        try:
            if metadata_bytes > METADATA_WALKED_BYTES_MAX:
                check_fields(metadata)
            count = message_count(metadata, len(body) - payload) if messages > 1 else 1
        except Implausible as error:
            self.run.refused[row] = str(error)
        else:
            if count > 1:
                self.counts[row] = count

    def finish(self, view: memoryview, stop: int, keep: memoryview | None) -> PublishRun | None:
        """Return the run, with its own copy of the frames up to `stop` or with `keep`; None if it has no rows."""
        run = self.run
        if not run.offsets:
            return None
        run.data = bytes(view[:stop]) if keep is None else keep
        if self.counts:
            run.message_counts = _column(self.counts, len(run.offsets), 1)
        if self.highest:
            run.highest = _column(self.highest, len(run.offsets), 0)
        return run


def _column(values: dict[int, int], length: int, default: int) -> list[int]:
    column = [default] * length
    for row, value in values.items():
        column[row] = value
    return column


def _parse_rows(rows: _Rows, layout: Layout, view: memoryview, pos: int, frame_bytes_max: int, bounds: Bounds) -> int:
    """Decode the frame at `pos`, however it is written, and later ones while they add nothing to the cache.

    Returns the position after the last row, or `pos` if not even that frame belongs to a run.
    """
    end = len(view)
    start = bytes(view[pos + 4 : pos + 12])
    while pos <= end - SEND_BYTES_MIN:
        head = bytes(view[pos : pos + SEND_HEAD_BYTES])
        total, command_bytes = _read_sizes(head)
        stop: int = pos + 4 + total
        if head[4:12] != start or start[4:6] != SEND_START:
            break
        if stop > end or total > frame_bytes_max or command_bytes > total - 4:
            break
        ids = parse_ids(head, 8 + command_bytes)
        if ids is None:
            encoded = bytes(view[pos + 8 : pos + 8 + command_bytes])
            try:
                bounds.check(encoded)
            except OutOfBounds as refusal:
                # The command is not a usual one; no known client writes this.
                raise ProtocolError(refusal.text) from None
            command = codec.decode_command(encoded)
            if command.type != codec.BaseCommand.SEND:
                break
            rows.add_send(view, pos, stop, codec.checked_send(command))
        else:
            rows.add(view, pos, stop, ids)
            producer_id, sequence_id, messages, highest = ids
            if not messages and not highest and layout.learn(view[pos:stop], producer_id, sequence_id):
                return stop
        pos = stop
    return pos


# -- encoding: receipts ----------------------------------------------------------------------------------------------


def encode_receipts(
    out: list[bytes],
    producer_id: int,
    ledger_id: int,
    first_entry_id: int,
    sequence_ids: Sequence[int],
    highest: Sequence[int] | None,
) -> None:
    """Append the SEND_RECEIPT frames of one producer's entries with consecutive entry ids.

    Args:
        out: gets the frames, many to an element.
        producer_id: the producer of the entries.
        ledger_id: their ledger.
        first_entry_id: the entry id of the first; the others follow.
        sequence_ids: as received.
        highest: the highest sequence ids as received, or None if all are absent.
    """
    count = len(sequence_ids)
    if count == 0:
        return
    last_entry_id = first_entry_id + count - 1
    if count > 1 and not (
        first_entry_id >> LOW_BITS == last_entry_id >> LOW_BITS
        and _share_high(sequence_ids)
        and (highest is None or _share_high(highest))
    ):
        for half in _halves(count):
            halved = None if highest is None else highest[half]
            encode_receipts(out, producer_id, ledger_id, first_entry_id + half.start, sequence_ids[half], halved)
        return
    sequence_high, entry_high = sequence_ids[0] >> LOW_BITS, first_entry_id >> LOW_BITS
    highest_high = None if highest is None else highest[0] >> LOW_BITS
    template = _receipt_template(producer_id, ledger_id, sequence_high, entry_high, highest_high)
    entry_low, step = first_entry_id & LOW_MASK, len(template)
    # Budget: 0.15 µs per receipt on one core (benchmarks/micro.py).
    pieces = template * count
    pieces[1::step] = [PADDED_LOWS[sequence_id & LOW_MASK] for sequence_id in sequence_ids]
    pieces[3::step] = PADDED_LOWS[entry_low : entry_low + count]
    if highest is not None:
        pieces[5::step] = [PADDED_LOWS[sequence_id & LOW_MASK] for sequence_id in highest]
    out.append(b"".join(pieces))


def _share_high(values: Sequence[int]) -> bool:
    """Return whether all values have the same bits above the low part, and so fit into one template."""
    return min(values) >> LOW_BITS == max(values) >> LOW_BITS


def _halves(count: int) -> tuple[slice, slice]:
    """Split rows that do not fit into one template; they rarely need to be split."""
    return slice(0, count // 2), slice(count // 2, count)


@lru_cache(maxsize=TEMPLATES_MAX)
def _receipt_template(
    producer_id: int, ledger_id: int, sequence_high: int, entry_high: int, highest_high: int | None
) -> list[bytes]:
    """Return a SEND_RECEIPT in pieces, with gaps for the low parts of its ids.

    The ids are sequence id, entry id and, if any, highest sequence id.
    """
    before_sequence = b"\x08" + encode_varint(producer_id) + b"\x10"
    ledger = b"\x08" + encode_varint(ledger_id) + b"\x10"
    entry_rest = encode_varint(entry_high)
    message_id = b"\x1a" + bytes((len(ledger) + 2 + len(entry_rest),)) + ledger
    pieces = [before_sequence, b"", encode_varint(sequence_high) + message_id, b"", entry_rest]
    if highest_high is not None:
        pieces[4] += b"\x20"
        pieces += [b"", encode_varint(highest_high)]
    body_bytes = sum(map(len, pieces)) + 2 * (len(pieces) // 2)
    pieces[0] = _pack_sizes(8 + body_bytes, 4 + body_bytes) + b"\x08\x07\x3a" + bytes((body_bytes,)) + before_sequence
    return pieces


# -- encoding: deliveries --------------------------------------------------------------------------------------------


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
    if not _share_high(entry_ids):
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
            for half in _halves(count)
        )
    before, entry_rest, epoch, command_bytes = _message_template(
        consumer_id, ledger_id, partition, entry_ids[0] >> LOW_BITS, consumer_epoch, redeliveries is not None
    )
    frame_bytes = 4 + command_bytes
    starts = {length: _pack_sizes(frame_bytes + length, command_bytes) + before for length in set(lengths)}
    view = memoryview(data)
    # Budget: 0.5 µs per entry of 1 KiB on one core (benchmarks/micro.py).
    pieces: list[Buffer] = [entry_rest + epoch] * (4 * count)
    pieces[0::4] = [starts[length] for length in lengths]
    pieces[1::4] = [PADDED_LOWS[entry_id & LOW_MASK] for entry_id in entry_ids]
    if redeliveries is not None:
        rests = {times: entry_rest + _redelivery_count(times) + epoch for times in set(redeliveries)}
        pieces[2::4] = [rests[times] for times in redeliveries]
    pieces[3::4] = [view[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)]
    _append_joined(out, pieces, max(lengths))
    return (4 + frame_bytes) * count + sum(lengths)


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
    step = JOINED_BYTES_MAX // (min(largest, JOIN_BYTES_MAX) + 64) * 4
    out += [b"".join(pieces[at : at + step]) for at in range(0, len(pieces), step)]


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
    return b"\x18" + PADDED_LOWS[times & LOW_MASK] + bytes((high & 127 | 128, high >> 7 & 127 | 128, high >> 14))
