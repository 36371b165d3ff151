# SPDX-License-Identifier: Apache-2.0
"""Frames that hypothesis makes: ordinary ones, unusual ones, and what protobuf says they mean."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

from crc32c import crc32c
from hypothesis import strategies as st

from penstock.core.checksum import SEAL_MAGIC, seal
from penstock.wire import codec
from tests.wire.frames import command_frame, entry_body, frame, varint

# Ids crowd where their encodings change length, where the tables wrap, and at the ends.
EDGES = [
    0,
    1,
    127,
    128,
    16_383,
    16_384,
    (1 << 21) - 1,
    1 << 21,
    1 << 28,
    1 << 35,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
]
uint64s = st.one_of(st.sampled_from(EDGES), st.integers(0, 40_000), st.integers(0, (1 << 64) - 1))
int32s = st.one_of(st.integers(0, 300), st.integers(-(1 << 31), (1 << 31) - 1))


@dataclass(frozen=True)
class Sent:
    """A SEND frame and the row it must make; see `rows_of`."""

    data: bytes
    row: tuple[Any, ...]


def sent(command: bytes, payload: bytes) -> Sent:
    """The row by protobuf's reading of the command and a plain reading of the payload."""
    body = codec.BaseCommand.FromString(command).send
    plain = codec.CommandSend(
        producer_id=body.producer_id,
        sequence_id=body.sequence_id,
    )
    for name in ("num_messages", "highest_sequence_id", "txnid_least_bits", "txnid_most_bits"):
        if body.HasField(name):
            setattr(plain, name, getattr(body, name))
    is_rare = plain.SerializeToString(deterministic=True) != body.SerializeToString(deterministic=True)
    unsealed = payload[:2] != SEAL_MAGIC
    inner = payload if unsealed else payload[6:]
    sound = len(inner) >= 4 and int.from_bytes(inner[:4], "big") <= len(inner) - 4
    if not unsealed:
        sound = sound and payload[2:6] == crc32c(inner).to_bytes(4, "big")
    row = (
        body.producer_id,
        body.sequence_id,
        payload,
        1,  # Their metadata says nothing of a batch; see test_batch_counts.
        body.highest_sequence_id,
        unsealed,
        not sound,
        codec.transaction_of(body),
        body.SerializeToString() if is_rare else None,
    )
    return Sent(frame(command, payload), row)


bodies = st.builds(entry_body, st.binary(max_size=40))
entries = st.one_of(
    bodies.map(seal),
    bodies.map(seal),
    bodies,  # of an old client, without a checksum
    st.tuples(bodies, st.binary(min_size=4, max_size=4)).map(lambda parts: SEAL_MAGIC + parts[1] + parts[0]),
    st.integers(0, 200).map(lambda size: seal(struct.pack(">I", size) + b"too short")),
    st.binary(max_size=12),
    st.just(SEAL_MAGIC),
)


def _send_fields(*, common: bool) -> st.SearchStrategy[dict[str, Any]]:
    optional: dict[str, st.SearchStrategy[Any]] = {"num_messages": int32s, "highest_sequence_id": uint64s}
    if not common:
        optional |= {
            "txnid_least_bits": uint64s,
            "txnid_most_bits": uint64s,
            "is_chunk": st.booleans(),
            "marker": st.booleans(),
            "message_id": st.builds(codec.MessageIdData, ledgerId=uint64s, entryId=uint64s),
        }
    return st.fixed_dictionaries({"producer_id": uint64s, "sequence_id": uint64s}, optional=optional)


def _canonical(fields: dict[str, Any]) -> bytes:
    command = codec.BaseCommand(type=codec.BaseCommand.SEND, send=codec.CommandSend(**fields))
    return command.SerializeToString()


@st.composite
def unusual_commands(draw: st.DrawFn) -> bytes:
    """A SEND in any field order, with over-long varints, repeated and unknown fields, and its type anywhere."""
    width = st.integers(1, 5)
    fields = [
        varint(8, draw(width) if draw(st.booleans()) else 1) + varint(draw(uint64s), draw(width)),
        varint(16) + varint(draw(uint64s), draw(width)),
        *draw(
            st.lists(
                st.one_of(
                    st.builds(lambda value, size: varint(8) + varint(value, size), uint64s, width),
                    st.builds(lambda value, size: varint(0x18) + varint(value, size), uint64s, width),
                    st.builds(lambda value, size: varint(0x30) + varint(value, size), uint64s, width),
                    st.builds(lambda number, value: varint(number << 3) + varint(value), st.integers(10, 999), uint64s),
                    st.builds(lambda text: b"\x7a" + varint(len(text)) + text, st.binary(max_size=9)),
                ),
                max_size=4,
            )
        ),
    ]
    body = b"".join(draw(st.permutations(fields)))
    parts = [b"\x08" + varint(6, draw(width)), b"\x32" + varint(len(body), draw(width)) + body]
    if draw(st.booleans()):
        parts.append(varint(15_000 << 3) + varint(draw(uint64s)))
    return b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)


sends = st.one_of(
    st.builds(lambda fields, entry: sent(_canonical(fields), entry), _send_fields(common=True), entries),
    st.builds(lambda fields, entry: sent(_canonical(fields), entry), _send_fields(common=False), entries),
    st.builds(sent, unusual_commands(), entries),
)


@st.composite
def steady_sends(draw: st.DrawFn) -> list[Sent]:
    """What producers really send: each its own growing sequence of messages and batches, interleaved.

    Some of them send in transactions, many messages of one after the other.
    """
    following = draw(st.lists(uint64s.filter(lambda value: value < (1 << 64) - 100), min_size=1, max_size=4))
    ids = draw(st.lists(st.integers(0, 300), min_size=len(following), max_size=len(following), unique=True))
    transactions: list[dict[str, int]] = [{}, {"txnid_least_bits": 300}, {"txnid_least_bits": 7, "txnid_most_bits": 2}]
    turns = draw(st.lists(st.tuples(st.integers(0, len(following) - 1), st.integers(1, 4)), max_size=15))
    frames = []
    for turn in [turn for turn, times in turns for _ in range(times)]:
        fields = {"producer_id": ids[turn], "sequence_id": following[turn], **draw(st.sampled_from(transactions))}
        batch = {}
        messages = draw(st.sampled_from([None, 1, 2, 99, 100, 127, 128, 1_000]))
        if messages is not None:
            fields["num_messages"], batch["num_messages_in_batch"] = messages, messages
        entry = sent(_canonical(fields), seal(entry_body(b"x" * turn, sequence_id=following[turn], **batch)))
        frames.append(replace(entry, row=(*entry.row[:3], messages or 1, *entry.row[4:])))
        following[turn] += 1
    return frames


def _large_send(size: int, sequence_id: int) -> Sent:
    return sent(_canonical({"producer_id": 1, "sequence_id": sequence_id}), seal(entry_body(bytes(size))))


large_sends = st.builds(_large_send, st.integers(60_000, 70_000), st.integers(0, 300))

other_frames = st.sampled_from(
    [
        command_frame(codec.BaseCommand.PING, codec.BaseCommand().ping),
        command_frame(codec.BaseCommand.FLOW, codec.CommandFlow(consumer_id=3, messagePermits=1_000)),
        command_frame(
            codec.BaseCommand.ACK,
            codec.CommandAck(
                consumer_id=1,
                ack_type=codec.CommandAck.Individual,
                message_id=[codec.MessageIdData(ledgerId=5, entryId=entry_id) for entry_id in range(40)],
            ),
        ),
        command_frame(codec.BaseCommand.LOOKUP, codec.CommandLookupTopic(topic="persistent://a/b/c", request_id=0)),
        frame(b"\x08" + varint(9_000)),
    ]
)
