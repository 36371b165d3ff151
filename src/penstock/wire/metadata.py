# SPDX-License-Identifier: Apache-2.0
"""What a stored entry says about itself: its MessageMetadata, decoded only when somebody asks.

Why on request: a broker passes entries on as they came. Only a few questions need a look inside: how many messages the
last batch holds, when an entry was published (seek by time), when it wants to be delivered.
Where: the broker, on single entries read back from the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from penstock.core.checksum import SEAL_BYTES
from penstock.wire.codec import MessageMetadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from penstock.core.checksum import Buffer

_METADATA_AT = SEAL_BYTES + 4


def decode(entry: Buffer) -> MessageMetadata:
    """The metadata of a sealed entry. A text that is not UTF-8 reads as `bytes`.

    Raises:
        ProtocolError: the entry is shorter than it says, or its metadata does not parse or is incomplete.
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
    """When the client says that it published the entry, in ms since the epoch.

    Raises:
        ProtocolError: as `decode`.
    """
    return decode(entry).publish_time


def batch_size(entry: Buffer) -> int | None:
    """How many messages the entry's batch holds; None when the entry is no batch, which is not the same as 1.

    Raises:
        ProtocolError: as `decode`.
    """
    metadata = decode(entry)
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None
