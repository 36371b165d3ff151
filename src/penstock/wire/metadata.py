# SPDX-License-Identifier: Apache-2.0
"""The MessageMetadata of stored entries, decoded only on request.

Why on request: a broker delivers entries as they were sent. Few operations need the metadata: the number of messages in
the last batch, the publish time (seek by time), the deliver time, and the key. Some subscriptions need the last two of
every entry, so these are read without protobuf. Where: the broker, on single entries from the log, and dispatch where
delays or keys matter.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from penstock.core.checksum import SEAL_BYTES, seal_of
from penstock.core.transaction_id import TransactionId
from penstock.wire.codec import MessageMetadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.checksum import Buffer

_METADATA_AT: Final = SEAL_BYTES + 4
_read_u32: Final = struct.Struct(">I").unpack_from

# Wire types of protobuf, and the bytes of the two fixed ones.
_VARINT: Final = 0
_BYTES: Final = 2
_ASKED: Final = frozenset((0x10, 0x88, 0x98))  # fields 2, 17 and 19
_FIXED_BYTES: Final = {1: 8, 5: 4}
# Most metadata is shorter than this, and is copied out of the entry together with its size.
_HEAD_BYTES: Final = 124
# The metadata of later entries of a run may be this much longer than that of the first.
_SPREAD_BYTES: Final = 16


def decode(entry: Buffer) -> MessageMetadata:
    """Return the metadata of a sealed entry. Texts that are not UTF-8 are `bytes`.

    Raises:
        ProtocolError: the entry is shorter than it says, or its metadata cannot be parsed or is incomplete.
    """
    view = memoryview(entry)
    metadata_bytes = int.from_bytes(view[SEAL_BYTES:_METADATA_AT], "big")
    if len(view) < _METADATA_AT + metadata_bytes:
        raise ProtocolError(f"metadata of {metadata_bytes} bytes in an entry of {len(view)}")
    try:
        metadata = MessageMetadata.FromString(bytes(view[_METADATA_AT : _METADATA_AT + metadata_bytes]))
    except DecodeError as cause:
        raise ProtocolError(f"unreadable metadata of {metadata_bytes} bytes: {cause}") from None
    if not metadata.IsInitialized():
        raise ProtocolError("metadata without a required field")
    return metadata


def publish_time(entry: Buffer) -> int:
    """Return the publish time of the entry according to the client, in ms since the epoch.

    Raises:
        ProtocolError: as `decode`.
    """
    return decode(entry).publish_time


def batch_size(entry: Buffer) -> int | None:
    """Return how many messages the entry's batch holds; None if the entry is no batch, which differs from 1.

    Raises:
        ProtocolError: as `decode`.
    """
    metadata = decode(entry)
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None


def naming_transaction(
    data: Buffer, offsets: Sequence[int], lengths: Sequence[int], transaction: TransactionId
) -> Iterator[tuple[int, bytes | None]]:
    """Yield rows of entries whose metadata does not name a transaction, and the same entries naming it, sealed again.

    Not all clients write it there, as they should: the SEND names it, too, but is not stored. None instead of an entry:
    its metadata cannot be read.
    """
    view, known = memoryview(data), None
    for row, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        start = offset + _METADATA_AT
        stop = start + _read_u32(view, offset + SEAL_BYTES)[0]
        fields = bytes(view[start : min(stop, offset + length)])
        # Budget: 1.3 µs per entry on one core; 2.5 where more than the two numbers of the metadata differ.
        if known is not None and known.fits(fields):
            continue
        try:
            said = decode(view[offset : offset + length])
        except ProtocolError:
            yield row, None
            continue
        if transaction_of(said) == transaction:
            known = _Alike.of(fields)
            continue
        named = MessageMetadata(txnid_most_bits=transaction.coordinator, txnid_least_bits=transaction.number)
        fields += named.SerializePartialToString()
        body = len(fields).to_bytes(4, "big") + fields + bytes(view[stop : offset + length])
        yield row, seal_of(body) + body


class _Alike(NamedTuple):
    """Metadata that differs in sequence id and publish time only, which are as long in all."""

    size: int
    before: bytes
    after: bytes
    numbers: int  # the bytes of both, with their tags, as one number
    fixed: int  # its bits that say what a byte is: tags, and whether a varint goes on

    @classmethod
    def of(cls, fields: bytes) -> _Alike | None:
        """Return what is like this metadata, which can be read; None if it is not written as most clients do."""
        try:
            at = 2 + fields[1]
            sequence_id = _varint(fields, at + 1)[1]
            stop = _varint(fields, sequence_id + 1)[1]
        except IndexError:
            return None
        if fields[0] != 0x0A or fields[1] > 127 or fields[at] != 0x10 or fields[sequence_id] != 0x18:
            return None
        fixed = bytearray(b"\x80" * (stop - at))
        fixed[0] = fixed[sequence_id - at] = 0xFF
        numbers = int.from_bytes(fields[at:stop], "big")
        return cls(len(fields), fields[:at], fields[stop:], numbers, int.from_bytes(fixed, "big"))

    def fits(self, fields: bytes) -> bool:
        """Whether this metadata says the same, but for the numbers."""
        at, stop = len(self.before), self.size - len(self.after)
        return (
            len(fields) == self.size
            and fields.startswith(self.before)
            and fields.endswith(self.after)
            and not (int.from_bytes(fields[at:stop], "big") ^ self.numbers) & self.fixed
        )


def transaction_of(said: MessageMetadata) -> TransactionId | None:
    """Return the transaction that an entry belongs to, if any."""
    if said.HasField("txnid_most_bits") and said.HasField("txnid_least_bits"):
        return TransactionId(said.txnid_most_bits, said.txnid_least_bits)
    return None


def is_followed_chunk(entry: Buffer) -> bool:
    """Return whether an entry is a chunk that others of its message follow; False if its metadata cannot be read."""
    view = memoryview(entry)
    metadata_bytes = int.from_bytes(view[SEAL_BYTES:_METADATA_AT], "big")
    if _CHUNKS_TAG not in bytes(view[_METADATA_AT : _METADATA_AT + metadata_bytes]):
        return False
    try:
        said = decode(entry)
    except ProtocolError:
        return False
    return said.HasField("chunk_id") and said.chunk_id < said.num_chunks_from_msg - 1


# -- without protobuf ------------------------------------------------------------------------------------------------

# Entries up to this average size are searched at once, payloads included; of larger ones only the metadata is.
_SEARCH_WHOLE_BYTES_MAX: Final = 400
_COPIED_BYTES_MAX: Final = 16 * 1024
_DELIVER_AT_TAG: Final = b"\x98\x01"  # field 19, a varint
_CHUNKS_TAG: Final = b"\xd8\x01"  # field 27, a varint: num_chunks_from_msg


class Routing(NamedTuple):
    """The fields that decide where and when an entry is delivered."""

    key: bytes  # the sticky key of Key_Shared subscriptions
    deliver_at_ms: int  # 0 for at once


def may_be_delayed(data: Buffer, offsets: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Return the rows whose metadata contains the two bytes that begin `deliver_at_time`.

    There are few false positives.

    Large entries in another buffer than `bytes` are all returned.

    Args:
        data: holds the entries, sealed.
        offsets: where in `data` each begins; ascending.
        lengths: of each, in bytes.
    """
    if not offsets:
        return []
    first, stop = offsets[0], offsets[-1] + lengths[-1]
    small = stop - first <= _SEARCH_WHOLE_BYTES_MAX * len(offsets)
    if not isinstance(data, bytes):  # A run that keeps its arena, one large frame that came alone, or a test.
        if sum(lengths) > _COPIED_BYTES_MAX * len(offsets):
            return list(range(len(offsets)))  # Reading their metadata costs less than copying them for the search.
        if small:
            data, offsets = bytes(data[first:stop]), [offset - first for offset in offsets]
            first, stop = 0, len(data)
    if small and isinstance(data, bytes) and data.find(_DELIVER_AT_TAG, first, stop) < 0:
        return []
    # Join size and metadata of all entries, because entries of a run mostly have metadata of about the same size.
    # Budget: 0.15 µs per entry on one core, or 0.05 when entries are small.
    width = 4 + min(data[first + SEAL_BYTES + 3] + _SPREAD_BYTES, _HEAD_BYTES)
    head_stop = SEAL_BYTES + width
    heads = b"".join([data[offset + SEAL_BYTES : offset + head_stop] for offset in offsets])
    sizes = heads[3::width]
    high = [heads[place::width] for place in range(3)]
    if len(heads) != width * len(offsets) or b"".join(high).strip(b"\0") or max(sizes) > width - 4:
        if isinstance(data, bytes):
            return _search_each(data, offsets)
        return _search_each(bytes(data[first:stop]), [offset - first for offset in offsets])
    if _DELIVER_AT_TAG[:1] not in heads:  # A search for one byte costs a tenth of one for two.
        return []
    rows, at = [], heads.find(_DELIVER_AT_TAG)
    while at >= 0:
        row, place = divmod(at, width)
        if 4 <= place < 4 + sizes[row]:
            rows.append(row)
        # After a false match in a size, continue behind it; after one in a payload, continue at the next entry.
        at = heads.find(_DELIVER_AT_TAG, at + 1 if place < 4 else (row + 1) * width)
    return rows


def _search_each(data: bytes, offsets: Sequence[int]) -> list[int]:
    """Do the same for entries of different kinds: with long metadata, or at the very end."""
    find, at, tag = data.find, _METADATA_AT, _DELIVER_AT_TAG
    return [
        row
        for row, offset in enumerate(offsets)
        if find(tag, offset + at, offset + at + _read_u32(data, offset + SEAL_BYTES)[0]) >= 0
    ]


def delivery_times(
    data: Buffer, offsets: Sequence[int], lengths: Sequence[int], rows: Sequence[int], first_entry_id: int
) -> tuple[list[int], list[int]]:
    """Return ids and deliver times (ms since 1970) of those of these rows that have one; ids are consecutive."""
    ids, times_ms = [], []
    view = memoryview(data)
    for row in rows:
        deliver_at_ms = routing(view[offsets[row] : offsets[row] + lengths[row]]).deliver_at_ms
        if deliver_at_ms:
            ids.append(first_entry_id + row)
            times_ms.append(deliver_at_ms)
    return ids, times_ms


def routing(entry: Buffer) -> Routing:
    """Return the sticky key and the deliver time of a sealed entry; unreadable metadata has no key and no delay.

    The key is the ordering key if there is one, else the partition key, else made of producer and sequence id, so that
    messages without a key are spread. Fields may come in any order, and the last of a kind counts, as in protobuf.
    """
    start = SEAL_BYTES + 4
    head = bytes(entry[SEAL_BYTES : start + _HEAD_BYTES])
    metadata_bytes = int.from_bytes(head[:4], "big")
    fields = (
        head[4 : 4 + metadata_bytes] if metadata_bytes <= _HEAD_BYTES else bytes(entry[start : start + metadata_bytes])
    )
    try:
        return _routing(fields)
    except (LookupError, OverflowError, ValueError):
        return Routing(b"", 0)


def _routing(fields: bytes) -> Routing:
    producer = ordering = partition = None
    sequence_id = deliver_at = encoded = 0
    at, end = 0, len(fields)
    # Budget: 2.5 µs per entry on one core. One-byte lengths and numbers, the usual case, are read inline.
    while at < end:
        tag = fields[at]
        at += 1
        if tag > 127:
            tag = tag & 127 | fields[at] << 7  # MessageMetadata has no tags longer than two bytes.
            at += 1
        kind = tag & 7
        if kind == _BYTES:
            length = fields[at]
            if length < 128:
                at += 1
            else:
                length, at = _varint(fields, at)
            stop = at + length
            if stop > end:
                raise IndexError
            if tag == 0x0A:  # field 1
                producer = fields[at:stop]
            elif tag == 0x32:  # field 6
                partition = fields[at:stop]
            elif tag == 0x92:  # field 18
                ordering = fields[at:stop]
            at = stop
        elif kind != _VARINT:
            at += _FIXED_BYTES[kind]
        elif tag in _ASKED:
            value, at = _varint(fields, at)
            if tag == 0x10:
                sequence_id = value
            elif tag == 0x88:
                encoded = value
            else:
                deliver_at = value
        else:
            while fields[at] > 127:
                at += 1
            at += 1
    if ordering is not None:
        key = ordering
    elif partition is not None:
        key = b64decode(partition) if encoded else partition
    else:
        key = b"%s-%d" % (producer or b"", sequence_id)
    return Routing(key, 0 if deliver_at >> 63 else deliver_at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint of up to ten bytes, as a negative number takes."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value = shift = 0
    while byte > 127:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 63:
            raise OverflowError
        at += 1
        byte = data[at]
    return value | byte << shift, at + 1
