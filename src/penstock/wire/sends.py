# SPDX-License-Identifier: Apache-2.0
"""The hot path of publishing: decodes publish frames to columns, encodes their receipts.

Why by hand: protobuf takes 1.2 µs for a publish and 1.8 µs for its receipt, mostly for objects that are not kept. A
publish is decoded by looking its parts up in a cache of earlier parts (`layouts`). A frame with an unknown part is
parsed field by field, which fills the cache. Protobuf decodes frames that are unusual even then.

For encoding, a frame is a template with numbers filled in. They are written as padded varints of a fixed length, which
protobuf allows, so that every frame of a stretch has the same size.

Where: `FrameReader` and the broker's publish path; `deliveries` encodes the other direction. Pure functions on buffers
and lists, and a cache that never changes a result.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from penstock.core.checksum import SEAL_BYTES, SEAL_MAGIC, Buffer
from penstock.core.crc32c import crc32c
from penstock.core.spare_buffers import kept_bytes
from penstock.core.transaction_id import TransactionId
from penstock.wire import codec
from penstock.wire.batch_counts import METADATA_WALKED_BYTES_MAX, Implausible, check_fields, message_count
from penstock.wire.bounds import BOUNDS, Bounds, OutOfBounds
from penstock.wire.errors import ProtocolError
from penstock.wire.events import PublishRun
from penstock.wire.varints import (
    LOW_BITS,
    LOW_MASK,
    encode_varint,
    halves,
    low_code,
    low_part,
    padded_low,
    padded_lows,
    read_varint,
    share_high,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    # Producer id, sequence id, number of messages, highest sequence id, transaction.
    _Ids: TypeAlias = tuple[int, int, int, int, TransactionId | None]


# ---------------------------------------------------------------------------------------------------------------------
# The usual layouts of SEND frames, and a cache of their parts.
#
#     total:4 | size:4 06-type:2 32 length 08 producer:1-2 10 | low:1-2 | high:0-8 [18 count:1-2] 0e01 | checksum:4 |
#     ...
#              '------------------ prefix ------------------'                              '--- the entry begins here
#                           → producer id             sequence id, 7 bits a byte, lowest first    number of messages
#
# Why: the frames of a connection differ in the low part of the sequence id and in the payload. All other parts were
# seen before, so they are looked up whole instead of being parsed. Where: `runs` decodes by these layouts, and adds the
# parts of frames that it had to parse.

# The first bytes of a SEND, as every known client writes it: field 1 (type) = 6.
SEND_START: Final = b"\x08\x06"
# The shortest complete SEND: its two sizes, its type, and a body with the two required ids.
SEND_BYTES_MIN: Final = 16
# The longest head of a SEND with only its ids, in order: six tags and varints.
SEND_HEAD_BYTES: Final = 12 + 6 * 11

# The most cached parts per layout. Beyond this the cache is cleared, so that no client can fill the memory.
LEARNT_MAX: Final = 2048

# Longer ids are parsed every time.
PRODUCER_ID_BYTES_MAX: Final = 2
SEQUENCE_ID_BYTES_MAX: Final = 10
# The number of messages of a batch, with its tag; 0 if absent. Longer ones are parsed every time.
COUNT_BYTES: Final = (0, 2, 3)
_COUNT_TAG: Final = 0x18


class Layout:
    """The layout of SEND frames with ids and a count of these lengths, and a cache of their parts."""

    __slots__ = ("count_at", "counts", "entry_at", "high_at", "highs", "low_at", "lows", "prefixes", "unpack")

    def __init__(self, producer_id_bytes: int, sequence_id_bytes: int, count_bytes: int = 0) -> None:
        self.low_at = 4 + len(_send_prefix(producer_id_bytes * b"?", sequence_id_bytes + count_bytes))
        self.lows: list[Any] = []  # empty, so nothing is found, until the first frame is learnt
        self.high_at = self.low_at + min(sequence_id_bytes, 2)
        self.count_at = self.low_at + sequence_id_bytes
        self.entry_at = self.count_at + count_bytes
        # The magic belongs to the last part that is looked up: the count, or else the high part.
        self.prefixes: dict[bytes, int] = {}  # -> producer id
        self.highs: dict[bytes, int] = {}  # -> the sequence id's bits above the low part
        self.counts: dict[bytes, int] | None = {} if count_bytes else None  # -> messages of the batch
        high_bytes, end_bytes = self.count_at - self.high_at, count_bytes + len(SEAL_MAGIC)
        if not count_bytes:
            high_bytes, end_bytes = high_bytes + end_bytes, 0
        # -> total, prefix, low, high, count, checksum, metadata size
        self.unpack = struct.Struct(
            f">I{self.low_at - 4}s{low_code(sequence_id_bytes)}{high_bytes}s{end_bytes}sII"
        ).unpack_from

    def learn(self, frame: memoryview, producer_id: int, sequence_id: int, messages: int = 0) -> bool:
        """Cache the parts of a frame whose numbers are known; return False if it does not match this layout."""
        prefix = _send_prefix(encode_varint(producer_id), self.entry_at - self.low_at)
        head = bytes(frame[4 : self.entry_at + 2])
        if not (head.startswith(prefix) and head.endswith(SEAL_MAGIC)):
            return False
        # The sequence id as it is written, padded or not, as long as it has the layout's length.
        if read_varint(head, len(prefix))[1] != self.count_at - 4:
            return False
        high = head[self.high_at - 4 :]
        if self.counts is not None:
            high = head[self.high_at - 4 : self.count_at - 4]
            _add(self.counts, head[self.count_at - 4 :], messages)
        self.lows = low_part(self.count_at - self.low_at)
        _add(self.prefixes, prefix, producer_id)
        _add(self.highs, high, sequence_id & ~LOW_MASK)
        return True


def _add(learnt: dict[bytes, int], part: bytes, value: int) -> None:
    if len(learnt) >= LEARNT_MAX:
        learnt.clear()
    learnt[part] = value


def _send_prefix(producer_id: bytes, rest_bytes: int) -> bytes:
    """Return the bytes of a SEND between its total size and its sequence id, with which `rest_bytes` begin."""
    body_bytes = 1 + len(producer_id) + 1 + rest_bytes
    return struct.pack(">I4sB", 4 + body_bytes, SEND_START + bytes((0x32, body_bytes)), 0x08) + producer_id + b"\x10"


LAYOUTS: Final = {
    (producer_id_bytes, sequence_id_bytes, count_bytes): Layout(producer_id_bytes, sequence_id_bytes, count_bytes)
    for producer_id_bytes in range(1, PRODUCER_ID_BYTES_MAX + 1)
    for sequence_id_bytes in range(1, SEQUENCE_ID_BYTES_MAX + 1)
    for count_bytes in COUNT_BYTES
}
_ANY_LAYOUT: Final = LAYOUTS[1, 2, 0]
# The same by one number, which is found in half the time: the length of the body, and which lengths the others have.
_BY_LENGTHS: Final = {
    2 + sum(lengths) << 4 | lengths[2] << 2 | lengths[0]: layout for lengths, layout in LAYOUTS.items()
}


def layout_at(view: memoryview, pos: int) -> Layout:
    """Return the layout that fits the frame at `pos`, if one does."""
    body_bytes = view[pos + 11]
    try:
        # These bytes belong to a sequence id, and are its tag or above 127, or one of them is the tag of a count.
        count_bytes = 2 if view[pos + body_bytes + 10] == _COUNT_TAG else 3 * (view[pos + body_bytes + 9] == _COUNT_TAG)
    except IndexError:
        return _ANY_LAYOUT
    return _BY_LENGTHS.get(body_bytes << 4 | count_bytes << 2 | (1 if view[pos + 13] < 128 else 2), _ANY_LAYOUT)


def parse_ids(head: bytes, end: int) -> _Ids | None:
    """Return the ids and numbers of a SEND that has no other fields; 0 for absent ones.

    These are producer id, sequence id, number of messages, highest sequence id, and the transaction if there is one.
    Returns None for unusual commands, which protobuf must decode.

    Args:
        head: the frame, from its beginning, as far as a usual command reaches.
        end: where its command ends.
    """
    if end > SEND_HEAD_BYTES or head[10] != 0x32 or head[11] != end - 12 or head[12] != 0x08:
        return None
    messages = highest = least = most = 0
    in_transaction = False
    try:
        producer_id, at = read_varint(head, 13)
        if head[at] != 0x10:
            return None
        sequence_id, at = read_varint(head, at + 1)
        if at < end and head[at] == 0x18:
            messages, at = read_varint(head, at + 1)
        if at < end and head[at] == 0x20:
            in_transaction = True
            least, at = read_varint(head, at + 1)
        if at < end and head[at] == 0x28:
            in_transaction = True
            most, at = read_varint(head, at + 1)
        if at < end and head[at] == 0x30:
            highest, at = read_varint(head, at + 1)
    except (IndexError, OverflowError):
        return None
    if at != end or messages >> 31:
        return None
    return producer_id, sequence_id, messages, highest, TransactionId(most, least) if in_transaction else None


__all__ = ["Buffer", "decode_send", "decode_sends", "encode_receipts"]

# The most cached templates, each of about a hundred bytes.
TEMPLATES_MAX: Final = 2048

_METADATA_SIZE_BYTES: Final = 4

_read_sizes: Final = struct.Struct(">II").unpack_from
_read_u32: Final = struct.Struct(">I").unpack_from
_pack_sizes: Final = struct.Struct(">II").pack


# -- decoding: publishes ---------------------------------------------------------------------------------------------


def decode_sends(
    view: memoryview,
    *,
    frame_bytes_max: int,
    bounds: Bounds = BOUNDS,
    keep: memoryview | None = None,
    kept_bytes_min: int | None = None,
    relayed: bool = False,
) -> tuple[PublishRun | None, int]:
    """Decode the consecutive SEND frames at the beginning of `view`.

    Stops before the first frame that is incomplete, too large, or not a SEND that begins with its type.

    Args:
        view: the bytes that were read, from the first frame on; its memory may be reused when this returns.
        frame_bytes_max: the largest announced size of a frame.
        bounds: limits for a SEND with more than the usual fields.
        keep: the buffer behind `view`, if that is one complete frame in a buffer of its own: the run keeps it,
            uncopied.
        kept_bytes_min: a run of at least so many bytes keeps the buffer behind `view` as well, and has `unused_bytes`.
        relayed: for a proxy: checksums are left to the broker, and the run refers to `view`.

    Returns:
        The run, or None if it would be empty; and the bytes of its frames.

    Raises:
        ProtocolError: a SEND whose command cannot be parsed, lacks a required field, or is larger than its frame.
    """
    rows = _Rows(relayed=relayed)
    run = rows.run
    add_producer_id, add_sequence_id = run.producer_ids.append, run.sequence_ids.append
    add_offset, add_length = run.offsets.append, run.lengths.append
    checksum_of, look_into, walked_max = crc32c, rows.look_into, METADATA_WALKED_BYTES_MAX
    pos, end = 0, len(view)
    last = end - SEND_BYTES_MIN
    while pos <= last:
        first = pos
        layout = layout_at(view, pos)
        unpack, lows, highs, entry_at = layout.unpack, layout.lows, layout.highs, layout.entry_at
        producer_id_of, counts = layout.prefixes.get, layout.counts
        try:
            # Budget: 1.0 µs per entry of 1 KiB on one core, 0.35 of it for the checksum (benchmarks/micro.py).
            while pos <= last:
                total, prefix, low, high, count, checksum, metadata_bytes = unpack(view, pos)
                stop = pos + 4 + total
                producer_id = producer_id_of(prefix)
                if producer_id is None or stop > end or total > frame_bytes_max:
                    break
                sequence_id = lows[low] + highs[high]
                entry = pos + entry_at
                length = stop - entry
                if metadata_bytes > length - 10 or metadata_bytes > walked_max:
                    break
                body = view[entry + 6 : stop]
                if not relayed and checksum_of(body) != checksum:
                    break
                if counts is not None and (messages := counts[count]) > 1:
                    look_into(len(run.offsets), body, metadata_bytes, messages)
                add_producer_id(producer_id)
                add_sequence_id(sequence_id)
                add_offset(entry)
                add_length(length)
                pos = stop
        except (LookupError, TypeError, struct.error):
            pass  # An unknown part (a low one is None), or a frame so short that the layout reads past the buffer.
        if pos == first:
            pos = _parse_rows(rows, layout, view, pos, frame_bytes_max, bounds)
            if pos == first:
                break
    return rows.finish(view, pos, keep, kept_bytes_min), pos


def decode_send(
    frame: memoryview, command: codec.BaseCommand, *, keep: memoryview | None = None, relayed: bool = False
) -> PublishRun:
    """Return the run of one SEND frame whose command, of the announced size, is already parsed; see `decode_sends`.

    Raises:
        ProtocolError: the command lacks its body or a required field.
    """
    rows = _Rows(relayed=relayed)
    rows.add_send(frame, 0, len(frame), codec.checked_send(command))
    run = rows.finish(frame, len(frame), keep)
    assert run is not None
    return run


class _Rows:
    """A run that grows row by row. Mostly empty columns are kept by row number until the end."""

    __slots__ = ("counts", "highest", "relayed", "run")

    def __init__(self, *, relayed: bool) -> None:
        self.run = PublishRun(b"")
        self.relayed = relayed
        self.counts: dict[int, int] = {}
        self.highest: dict[int, int] = {}

    def add_send(self, view: memoryview, frame: int, stop: int, send: codec.CommandSend) -> None:
        """Append the row of the frame `view[frame:stop]`, whose command is `send`."""
        if codec.is_rare(send):
            self.run.rare[len(self.run.offsets)] = send
        ids = send.producer_id, send.sequence_id, send.num_messages, send.highest_sequence_id
        self.add(view, frame, stop, (*ids, codec.transaction_of(send)))

    def add(self, view: memoryview, frame: int, stop: int, ids: _Ids) -> None:
        """Append the row of the frame `view[frame:stop]`; check its payload."""
        run = self.run
        row = len(run.offsets)
        producer_id, sequence_id, messages, highest, transaction = ids
        if transaction is not None:
            run.belongs(row, transaction)
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
        metadata_bytes = _read_u32(body)[0] if len(body) >= _METADATA_SIZE_BYTES else len(body)
        sound = metadata_bytes <= len(body) - _METADATA_SIZE_BYTES
        if not sound or (sealed and not self.relayed and _read_u32(view, entry + 2)[0] != crc32c(body)):
            run.corrupt.append(row)
        elif messages > 1 or metadata_bytes > METADATA_WALKED_BYTES_MAX:
            self.look_into(row, body, metadata_bytes, messages)

    def add_like(self, view: memoryview, frame: int, pos: int, ids: _Ids, frame_bytes_max: int) -> int:
        """Append the frames from `pos` on that are written like that at `frame`, which is a usual one.

        Only their sequence ids and entries differ: what a transaction sends one after the other. Stops at another one,
        and at an entry that `add` has to judge; returns where.
        """
        producer_id, _, messages, _, transaction = ids
        assert transaction is not None, "others are learnt"
        head = bytes(view[frame : frame + 14 + view[frame + 11]])
        low_at = read_varint(head, 13)[1] + 1
        tail_at = read_varint(head, low_at)[1]
        prefix, tail, id_bytes = head[4:low_at], head[tail_at:], tail_at - low_at
        unpack = _like(len(prefix), id_bytes, len(tail))
        if not head.endswith(SEAL_MAGIC):
            return pos
        run, entry_at, end, first = self.run, len(head) - len(SEAL_MAGIC), len(view), len(self.run.offsets)
        try:
            # Budget: 1.0 µs per entry of 1 KiB on one core, 0.35 of it for the checksum.
            while True:
                total, start, low, rest, checksum, metadata_bytes = unpack(view, pos)
                stop: int = pos + 4 + total
                if start != prefix or rest != tail or stop > end or total > frame_bytes_max:
                    break
                sequence_id, used = read_varint(low, 0)
                length = stop - pos - entry_at
                if used != id_bytes or metadata_bytes > length - 10 or metadata_bytes > METADATA_WALKED_BYTES_MAX:
                    break
                body = view[pos + entry_at + SEAL_BYTES : stop]
                if not self.relayed and crc32c(body) != checksum:
                    break
                if messages > 1:
                    self.look_into(len(run.offsets), body, metadata_bytes, messages)
                run.producer_ids.append(producer_id)
                run.sequence_ids.append(sequence_id)
                run.offsets.append(pos + entry_at)
                run.lengths.append(length)
                pos = stop
        except (IndexError, OverflowError, struct.error):
            pass  # A sequence id of another length, or a frame so short that this reads past the buffer.
        if len(run.offsets) > first:
            run.belongs(first, transaction, len(run.offsets) - first)
        return pos

    def look_into(self, row: int, body: memoryview, metadata_bytes: int, messages: int) -> None:
        """Count the messages of a batch, or the fields of long metadata, and refuse implausible numbers."""
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

    def finish(
        self, view: memoryview, stop: int, keep: memoryview | None, kept_bytes_min: int | None = None
    ) -> PublishRun | None:
        """Return the run, with its own copy of the frames up to `stop` or uncopied; None if it has no rows."""
        run = self.run
        if not run.offsets:
            return None
        if keep is not None:
            run.data = keep
        elif kept_bytes_min is not None and stop >= kept_bytes_min and not run.unsealed:
            run.data = view[:stop]
            run.unused_bytes = max(1, kept_bytes(run.data) - stop)
        else:
            run.data = view[:stop] if self.relayed else bytes(view[:stop])
        if self.counts:
            run.message_counts = _column(self.counts, len(run.offsets), 1)
        if self.highest:
            run.highest = _column(self.highest, len(run.offsets), 0)
        return run


@lru_cache(TEMPLATES_MAX)
def _like(prefix_bytes: int, id_bytes: int, tail_bytes: int) -> Callable[[memoryview, int], Any]:
    """Return what unpacks total, prefix, sequence id, tail, checksum and metadata size of a SEND."""
    return struct.Struct(f">I{prefix_bytes}s{id_bytes}s{tail_bytes}sII").unpack_from


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
            producer_id, sequence_id, messages, highest, transaction = ids
            if transaction is not None:
                pos = stop if highest else rows.add_like(view, pos, stop, ids, frame_bytes_max)
                continue
            if not highest and layout.learn(view[pos:stop], producer_id, sequence_id, messages):
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
        and share_high(sequence_ids)
        and (highest is None or share_high(highest))
    ):
        for half in halves(count):
            halved = None if highest is None else highest[half]
            encode_receipts(out, producer_id, ledger_id, first_entry_id + half.start, sequence_ids[half], halved)
        return
    sequence_high, entry_high = sequence_ids[0] >> LOW_BITS, first_entry_id >> LOW_BITS
    highest_high = None if highest is None else highest[0] >> LOW_BITS
    template = _receipt_template(producer_id, ledger_id, sequence_high, entry_high, highest_high)
    entry_low, step = first_entry_id & LOW_MASK, len(template)
    if count == 1:
        pieces = template.copy()
        pieces[1], pieces[3] = padded_low(sequence_ids[0] & LOW_MASK), padded_low(entry_low)
        if highest is not None:
            pieces[5] = padded_low(highest[0] & LOW_MASK)
        out.append(b"".join(pieces))
        return
    # Budget: 0.15 µs per receipt on one core (benchmarks/micro.py).
    pieces, lows = template * count, padded_lows()
    pieces[1::step] = [lows[sequence_id & LOW_MASK] for sequence_id in sequence_ids]
    pieces[3::step] = lows[entry_low : entry_low + count]
    if highest is not None:
        pieces[5::step] = [lows[sequence_id & LOW_MASK] for sequence_id in highest]
    out.append(b"".join(pieces))


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
