# SPDX-License-Identifier: Apache-2.0
"""The messages inside a batch, each with its own metadata.

    payload, decompressed:  size of metadata, 4 bytes | SingleMessageMetadata | message, repeated

Why: entries are delivered as they were sent. Only compaction needs to know the messages of a batch, and to make a batch
without some of them; and the broker makes batches of its own records. A removed message is replaced by an empty one
that is marked as compacted out, so the others keep their batch indexes; clients skip it. Where: compaction, on its own
thread; `broker.records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from penstock.core.checksum import SEAL_BYTES, seal
from penstock.wire import compression
from penstock.wire.codec import SingleMessageMetadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.checksum import Buffer
    from penstock.wire.codec import MessageMetadata

_SIZE_BYTES: Final = 4
# Smaller payloads would hardly become smaller.
COMPRESSED_BYTES_MIN: Final = 1024


class SingleMessage(NamedTuple):
    """One message of a batch."""

    key: str | None
    message_bytes: int  # without metadata; 0 deletes its key
    compacted_out: bool
    start: int  # in the payload, at the size of its metadata
    stop: int


def is_readable(metadata: MessageMetadata) -> bool:
    """Return whether the entry is an unencrypted batch, whose messages can be read."""
    return metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys


def payload_of(entry: Buffer) -> memoryview:
    """Return the bytes after an entry's metadata."""
    view = memoryview(entry)
    start = SEAL_BYTES + _SIZE_BYTES
    return view[start + int.from_bytes(view[SEAL_BYTES:start], "big") :]


def decompressed(entry: Buffer, metadata: MessageMetadata) -> bytes:
    """Return a batch's decompressed payload. Raises ProtocolError, UnsupportedVersion."""
    payload = bytes(payload_of(entry))
    return compression.decompress(metadata.compression, payload, metadata.uncompressed_size)


def single_messages(payload: bytes, count: int) -> Iterator[SingleMessage]:
    """Yield the `count` messages of a payload. Raises ProtocolError."""
    view, at = memoryview(payload), 0
    for _ in range(count):
        metadata_at = at + _SIZE_BYTES
        metadata_stop = metadata_at + int.from_bytes(view[at:metadata_at], "big")
        try:
            said = SingleMessageMetadata.FromString(bytes(view[metadata_at:metadata_stop]))
        except DecodeError as cause:
            raise ProtocolError(f"unreadable metadata of a message in a batch: {cause}") from None
        stop = metadata_stop + said.payload_size
        if not said.IsInitialized() or said.payload_size < 0 or stop > len(view):
            raise ProtocolError("a message in a batch is longer than the batch")
        key = said.partition_key if said.HasField("partition_key") else None
        yield SingleMessage(key, said.payload_size, said.compacted_out, at, stop)
        at = stop


def without(metadata: MessageMetadata, payload: bytes, found: Sequence[SingleMessage], keep: Sequence[bool]) -> bytes:
    """Return the same batch, sealed, in which only the messages in `keep` are left; `metadata` is changed."""
    view = memoryview(payload)
    pieces = [view[one.start : one.stop] if kept else _GONE for one, kept in zip(found, keep, strict=True)]
    rest = b"".join(pieces)
    metadata.compression, compressed = compression.compress(metadata.compression, rest)  # type: ignore[assignment]
    metadata.uncompressed_size = len(rest)
    del metadata.compacted_batch_indexes[:]
    metadata.compacted_batch_indexes.extend(index for index, kept in enumerate(keep) if kept)
    encoded = metadata.SerializeToString()
    return seal(len(encoded).to_bytes(_SIZE_BYTES, "big") + encoded + compressed)


def make(metadata: MessageMetadata, messages: Sequence[bytes], event_time_ms: int, kind: int) -> bytes:
    """Return a batch of these messages, sealed; `metadata` is changed. Small ones are not compressed.

    Args:
        metadata: the producer's name, the sequence id and the like.
        messages: their payloads.
        event_time_ms: of each of them.
        kind: of `wire.compression`.
    """
    payload = fill(metadata, messages, event_time_ms, kind)
    encoded = metadata.SerializeToString()
    return seal(len(encoded).to_bytes(_SIZE_BYTES, "big") + encoded + payload)


def fill(metadata: MessageMetadata, messages: Sequence[bytes], event_time_ms: int, kind: int) -> bytes:
    """Return the payload of a batch of these messages; the fields of a batch are added to `metadata`."""
    payload = b"".join(_with_metadata(message, event_time_ms) for message in messages)
    metadata.num_messages_in_batch = len(messages)
    metadata.uncompressed_size = len(payload)
    if len(payload) >= COMPRESSED_BYTES_MIN:
        metadata.compression, payload = compression.compress(kind, payload)  # type: ignore[assignment]
    return payload


def _with_metadata(message: bytes, event_time_ms: int) -> bytes:
    encoded = SingleMessageMetadata(payload_size=len(message), event_time=event_time_ms).SerializeToString()
    return len(encoded).to_bytes(_SIZE_BYTES, "big") + encoded + message


def last_index(metadata: MessageMetadata) -> int:
    """Return the index of the batch's last message that is not compacted out; -1 when the entry is no batch."""
    if metadata.compacted_batch_indexes:
        return max(metadata.compacted_batch_indexes)
    return metadata.num_messages_in_batch - 1 if metadata.HasField("num_messages_in_batch") else -1


def _gone() -> bytes:
    encoded = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
    return len(encoded).to_bytes(_SIZE_BYTES, "big") + encoded


_GONE: Final = _gone()
