# SPDX-License-Identifier: Apache-2.0
"""Writes the fuzzer's first corpus: every command with every field set, and the shapes that publishing takes.

    python tests/fuzz/seeds.py

Run by hand after the protocol tables have changed. Files with other names, which are old findings, are kept.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from google.protobuf.descriptor import FieldDescriptor

from penstock.core.checksum import seal
from penstock.wire import codec
from tests.wire.frames import connect, entry_body, frame, inside, send, varint

if TYPE_CHECKING:
    from google.protobuf.message import Message

CORPUS: Final = Path(__file__).parent / "corpus"
DEPTH_MAX: Final = 3


def fill(message: Message, chance: random.Random, depth: int = 0) -> None:
    """Set every field, down to a depth that keeps messages which hold themselves finite."""
    for field in message.DESCRIPTOR.fields:
        for _ in range(2 if field.is_repeated else 1):
            if field.type != FieldDescriptor.TYPE_MESSAGE:
                _set(message, field, chance)
            elif depth < DEPTH_MAX:
                inner = getattr(message, field.name)
                inner = inner.add() if field.is_repeated else inner
                inner.SetInParent()
                fill(inner, chance, depth + 1)


def _set(message: Message, field: Any, chance: random.Random) -> None:  # noqa: ANN401 - of either implementation
    if field.type == FieldDescriptor.TYPE_ENUM:
        value: object = chance.choice(field.enum_type.values).number
    elif field.type == FieldDescriptor.TYPE_STRING:
        value = f"{field.name}-ü"
    elif field.type == FieldDescriptor.TYPE_BYTES:
        value = chance.randbytes(8)
    elif field.type == FieldDescriptor.TYPE_BOOL:
        value = chance.random() < 0.5
    else:
        value = chance.choice((0, 1, 127, 128, 16_384, (1 << 31) - 1))
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def commands() -> dict[str, bytes]:
    """A stream for every command type: CONNECT, then the command."""
    streams = {}
    for field in codec.BaseCommand.DESCRIPTOR.fields:
        if field.name == "type":
            continue
        chance = random.Random(field.number)
        command = codec.BaseCommand(type=field.number)  # type: ignore[arg-type]
        getattr(command, field.name).SetInParent()
        fill(getattr(command, field.name), chance)
        payload = seal(entry_body()) if field.name in {"send", "message"} else b""
        name = codec.BaseCommand.Type.Name(command.type).lower()
        streams[f"command-{name}"] = connect() + frame(command.SerializeToString(), payload)
    return streams


def publishes() -> dict[str, bytes]:
    """Streams of SENDs: steady, interleaved, batched, unsealed, corrupt, unusually written."""
    ids = b"\x08\x01\x10\x05"
    entry = seal(entry_body(bytes(30)))
    return {
        "publish-steady": b"".join(send(0, sequence_id) for sequence_id in range(20)),
        "publish-longer-ids": b"".join(send(200, 16_380 + row) for row in range(8)),
        "publish-interleaved": b"".join(send(row % 5, 100 * row) for row in range(20)),
        "publish-batches": b"".join(
            send(1, 10 * row, num_messages=10, highest_sequence_id=10 * row + 9) for row in range(8)
        ),
        "publish-unsealed": send(1, 0, entry=entry_body()) + send(1, 1),
        "publish-corrupt": send(1, 0, entry=entry[:-1] + b"x") + send(1, 1),
        "publish-empty": send(1, 0, entry=b"") + send(1, 1),
        "publish-metadata-too-long": send(1, 0, entry=seal(b"\x00\x00\x01\x00ab")) + send(1, 1),
        "publish-type-last": frame(inside(6, ids) + b"\x08\x06", entry),
        "publish-over-long": frame(b"\x08" + varint(6, 3) + inside(6, b"\x10" + varint(5, 9) + b"\x08\x81\x00"), entry),
        "publish-unknown-fields": frame(b"\x08\x06" + inside(6, ids + varint(999 << 3) + b"\x01"), entry),
        "unknown-command": frame(b"\x08\x7f"),
        "not-pulsar": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }


def main() -> None:
    """Write all seeds; each begins with the byte that tells the fuzzer how to cut it."""
    streams = commands() | {
        name: data if name == "not-pulsar" else connect() + data for name, data in publishes().items()
    }
    CORPUS.mkdir(exist_ok=True)
    for number, (name, data) in enumerate(sorted(streams.items())):
        (CORPUS / f"{name}.bin").write_bytes(bytes((number,)) + data)


if __name__ == "__main__":
    main()
