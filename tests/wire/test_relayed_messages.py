# SPDX-License-Identifier: Apache-2.0
"""The messages of MESSAGE frames are counted per consumer, wherever the broker's bytes are cut."""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.checksum import seal
from penstock.proxy.response_stream import ResponseStream
from penstock.wire import codec
from penstock.wire.codec import BaseCommand
from penstock.wire.relayed import HEAD_BYTES_MAX, MessageCounter
from tests.wire.frames import entry_body, frame, inside, varint

Counts = dict[int, tuple[int, int, int, int]]


def encoded(kind: int, body: bytes) -> bytes:
    return b"\x08" + varint(kind) + inside(kind, body)


def message(consumer_id: int, entry: bytes, *, width: int = 1) -> bytes:
    body = b"\x08" + varint(consumer_id, width) + b"\x12\x04\x08\x01\x10\x02"
    return frame(encoded(BaseCommand.MESSAGE, body), entry)


def sealed(**metadata: Any) -> bytes:  # noqa: ANN401 - as the class takes them
    return bytes(seal(entry_body(b"payload" * 9, **metadata)))


def count(stream: bytes, cuts: list[int]) -> Counts:
    follower = ResponseStream(frame_bytes_max=1 << 20)
    follower.counter = MessageCounter()
    passed = b""
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if start < stop:
            passed += b"".join(follower.passed(stream[start:stop]))
    assert passed == stream
    return {
        one: (seen.entries, seen.messages, seen.bytes, seen.unread) for one, seen in follower.counter.take().items()
    }


entries = st.one_of(
    st.builds(sealed),
    st.builds(lambda n: sealed(num_messages_in_batch=n), st.integers(1, 1_024)),
    st.builds(lambda n: entry_body(num_messages_in_batch=n), st.integers(1, 1_024)),
    st.builds(lambda key: sealed(partition_key=key, num_messages_in_batch=3), st.text("aX", max_size=40)),
    st.builds(
        lambda n: b"\x0e\x02" + struct.pack(">I", n) + bytes(n) + sealed(num_messages_in_batch=7), st.integers(0, 20)
    ),
)
others = st.sampled_from(
    [codec.pong(), codec.error(1, 2, "no"), frame(b""), frame(encoded(BaseCommand.SEND_RECEIPT, b"\x08\x01\x10\x02"))]
)


def messages_of(entry: bytes) -> int:
    if entry.startswith(b"\x0e\x02"):
        entry = entry[6 + int.from_bytes(entry[2:6], "big") :]
    if entry.startswith(b"\x0e\x01"):
        entry = entry[6:]
    return codec.MessageMetadata.FromString(entry[4 : 4 + int.from_bytes(entry[:4], "big")]).num_messages_in_batch


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.one_of(others, st.tuples(st.sampled_from([0, 5, 127, 128, 70_000]), entries)), max_size=8),
    data=st.data(),
)
def test_every_message_is_counted_once_wherever_the_bytes_are_cut(
    parts: list[bytes | tuple[int, bytes]], data: st.DataObject
) -> None:
    stream = b""
    wanted: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for part in parts:
        if isinstance(part, bytes):
            stream += part
            continue
        consumer_id, entry = part
        stream += message(consumer_id, entry, width=data.draw(st.integers(1, 3)))
        seen = wanted[consumer_id]
        seen[0] += 1
        seen[1] += messages_of(entry)
        seen[2] += len(entry) - (6 + int.from_bytes(entry[2:6], "big") if entry.startswith(b"\x0e\x02") else 0)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    assert count(stream, cuts) == {one: tuple(seen) for one, seen in wanted.items()}


def test_a_byte_at_a_time_is_counted_as_well() -> None:
    stream = message(3, sealed(num_messages_in_batch=4)) * 2
    assert count(stream, list(range(1, len(stream))))[3][:2] == (2, 8)


@pytest.mark.parametrize(
    ("entry", "cut"),
    [
        (sealed(partition_key="k" * HEAD_BYTES_MAX, num_messages_in_batch=4), 2_000),  # divided, and long
        (seal(struct.pack(">I", 3) + b"\x58\xff\xff" + b"x"), 0),  # not protobuf
        (sealed(num_messages_in_batch=2_000_000_000), 0),  # more than the payload can hold
        (b"\x0e\x01" + bytes(4) + struct.pack(">I", 1 << 30), 0),  # metadata longer than the frame
        (b"", 0),
    ],
)
def test_an_entry_that_cannot_be_read_is_one_message_and_said_to_be_unread(entry: bytes, cut: int) -> None:
    stream = message(9, bytes(entry)) + message(9, sealed(num_messages_in_batch=2))
    assert count(stream, [cut] if cut else [])[9][:2] == (2, 3)
    assert count(stream, [cut] if cut else [])[9][3] == 1


def test_counting_may_begin_in_the_middle_of_a_frame() -> None:
    stream = message(1, sealed())
    follower = ResponseStream(frame_bytes_max=1 << 20)
    follower.passed(stream[:20])
    follower.counter = MessageCounter()
    follower.passed(stream[20:] + message(2, sealed(num_messages_in_batch=2)))
    assert {one: seen.messages for one, seen in follower.counter.take().items()} == {2: 2}
    assert follower.counter.take() == {}
