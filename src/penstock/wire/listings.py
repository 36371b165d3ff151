# SPDX-License-Identifier: Apache-2.0
"""Topic listings as frames: a few bytes for each client, before names that all of them share.

Why not one message: a thousand clients that request the same ten thousand names would cause a thousand copies of a
megabyte. In protobuf, the fields of a message may come in any order, and a repeated field is a number of consecutive
fields. So the client's fields (ids, hash) come first, followed by the names, which are encoded once, in any number of
pieces. Where: `broker.topics.listing_blocks` keeps the shared pieces; discovery and the watchers add the heads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.wire.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespaceResponse,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.message import Message

# A name takes, besides its own bytes, one byte of tag and its length, seven bits per byte.
_TAG_BYTES: Final = 1
_VARINT_BITS: Final = 7


def listed_bytes(lengths: Sequence[int]) -> int:
    """Return the bytes of names of these lengths in a list, as `listed` and `watched` encode them."""
    total = sum(lengths) + (_TAG_BYTES + 1) * len(lengths)
    longest, limit = max(lengths, default=0), 1 << _VARINT_BITS
    while longest >= limit:
        total += sum(length >= limit for length in lengths)
        limit <<= _VARINT_BITS
    return total


def listed(names: Iterable[str]) -> bytes:
    """Encode a piece of the list in GET_TOPICS_OF_NAMESPACE_RESPONSE."""
    return CommandGetTopicsOfNamespaceResponse(topics=names).SerializePartialToString()


def watched(names: Iterable[str]) -> bytes:
    """Encode a piece of the list in WATCH_TOPIC_LIST_SUCCESS."""
    return CommandWatchTopicListSuccess(topic=names).SerializePartialToString()


def changes(new: Iterable[str], deleted: Iterable[str]) -> bytes:
    """Encode new and deleted topics for WATCH_TOPIC_UPDATE."""
    return CommandWatchTopicUpdate(new_topics=new, deleted_topics=deleted).SerializePartialToString()


def topics_head(request_id: int, *, filtered: bool, topics_hash: str, changed: bool, shared_bytes: int) -> bytes:
    """Encode the frame up to the list; without `changed`, the client knows the hash and no list follows."""
    own = CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, filtered=filtered, topics_hash=topics_hash, changed=changed
    )
    return _head(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, own, shared_bytes)


def relayed_head(request_id: int, fields_bytes: int) -> bytes:
    """Encode the frame up to the other fields of a broker's response, which a proxy passes on as they are."""
    own = CommandGetTopicsOfNamespaceResponse(request_id=request_id)
    return _head(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, own, fields_bytes)


def watching_head(request_id: int, watcher_id: int, topics_hash: str, shared_bytes: int) -> bytes:
    """Encode the frame up to the watcher's list of topics, which is empty if the client knows the hash."""
    own = CommandWatchTopicListSuccess(request_id=request_id, watcher_id=watcher_id, topics_hash=topics_hash)
    return _head(BaseCommand.WATCH_TOPIC_LIST_SUCCESS, own, shared_bytes)


def update_head(watcher_id: int, topics_hash: str, shared_bytes: int) -> bytes:
    """Encode the frame up to the changes since the last update; the hash is that of the topics after them."""
    own = CommandWatchTopicUpdate(watcher_id=watcher_id, topics_hash=topics_hash)
    return _head(BaseCommand.WATCH_TOPIC_UPDATE, own, shared_bytes)


def _head(kind: int, own: Message, shared_bytes: int) -> bytes:
    """Encode the start of a frame whose command continues with `shared_bytes` bytes of the same body."""
    rest = own.SerializePartialToString()
    # A command's type is also the number of the field that holds its body.
    opening = (
        BaseCommand(type=kind).SerializePartialToString()  # type: ignore[arg-type]
        + _varint(kind << 3 | 2)
        + _varint(len(rest) + shared_bytes)
    )
    command_bytes = len(opening) + len(rest) + shared_bytes
    return struct.pack(">II", 4 + command_bytes, command_bytes) + opening + rest


def _varint(value: int) -> bytes:
    written = bytearray()
    while value >= 1 << _VARINT_BITS:
        written.append(value & 0x7F | 0x80)
        value >>= _VARINT_BITS
    written.append(value)
    return bytes(written)
