# SPDX-License-Identifier: Apache-2.0
"""Entries as producers make them: metadata and payload under a checksum, in a SEND.

    total size | command size | SEND | 0x0e01 | checksum | metadata size | metadata | payload

Where: `Producer` sends with `send_head`, which does not copy the payload; the rest is for users of whole frames.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.core.checksum import SEAL_BYTES, SEAL_MAGIC, seal
from penstock.core.crc32c import crc32c
from penstock.wire.codec import BaseCommand, CommandSend, MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.core.checksum import Buffer

_pack_sizes: Final = struct.Struct(">II").pack
_pack_u32: Final = struct.Struct(">I").pack


def entry(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """A sealed entry."""
    return seal(b"".join((_with_size(metadata), payload)))


def send(command: CommandSend, stored: Buffer) -> bytes:
    """A SEND frame around an entry that is sealed already, or is wrong on purpose."""
    return b"".join((_head(BaseCommand(type=BaseCommand.SEND, send=command), len(stored)), stored))


def send_head(command: BaseCommand, metadata: MessageMetadata, payload: Buffer) -> bytes:
    """All of a SEND frame that comes before the payload, checksum included."""
    about = _with_size(metadata)
    checksum = crc32c(payload, crc32c(about))
    head = _head(command, SEAL_BYTES + len(about) + len(payload))
    return b"".join((head, SEAL_MAGIC, _pack_u32(checksum), about))


def batch(messages: Iterable[tuple[SingleMessageMetadata, Buffer]]) -> bytes:
    """The payload of a batch; each message's `payload_size` is set here."""
    parts: list[Buffer] = []
    for about, body in messages:
        about.payload_size = len(body)
        encoded = about.SerializeToString()
        parts += (_pack_u32(len(encoded)), encoded, body)
    return b"".join(parts)


def _with_size(metadata: MessageMetadata) -> bytes:
    encoded = metadata.SerializeToString()
    return _pack_u32(len(encoded)) + encoded


def _head(command: BaseCommand, entry_bytes: int) -> bytes:
    encoded = command.SerializeToString()
    return _pack_sizes(4 + len(encoded) + entry_bytes, len(encoded)) + encoded
