# SPDX-License-Identifier: Apache-2.0
"""Looking inside a stored entry."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.checksum import seal
from penstock.wire import metadata
from penstock.wire import pulsar_pb2 as pb
from penstock.wire.errors import ProtocolError
from penstock.wire.plain_keys import TOGETHER_MIN, plain_keys
from tests.wire.frames import entry_body


def test_a_batch_is_told_by_presence_not_by_value() -> None:
    assert metadata.batch_size(seal(entry_body())) is None
    assert metadata.batch_size(seal(entry_body(num_messages_in_batch=1))) == 1
    assert metadata.batch_size(seal(entry_body(num_messages_in_batch=30))) == 30


def test_the_publish_time_is_what_the_client_said() -> None:
    assert metadata.publish_time(memoryview(seal(entry_body()))) == 1_000


def test_all_fields_can_be_asked_for() -> None:
    decoded = metadata.decode(seal(entry_body(partition_key="k", deliver_at_time=-5, event_time=7)))
    assert (decoded.producer_name, decoded.partition_key, decoded.deliver_at_time, decoded.event_time) == (
        "p",
        "k",
        -5,
        7,
    )


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (seal(b""), "metadata of 0 bytes in an entry of 6"),
        (seal(struct.pack(">I", 9) + b"short"), "metadata of 9 bytes in an entry of 15"),
        (seal(struct.pack(">I", 1) + b"\xff"), "unreadable metadata of 1 bytes"),
        (seal(struct.pack(">I", 0)), "metadata without a required field"),
    ],
)
def test_an_entry_that_is_not_what_it_says_is_refused(entry: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        metadata.decode(entry)


# -- without protobuf

texts = st.text(max_size=140)
fields = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": texts,
        "ordering_key": st.binary(max_size=140),
        "replicated_from": texts,
        "uncompressed_size": st.integers(0, 2**32 - 1),
        "num_messages_in_batch": st.integers(0, 2**31 - 1),
        "event_time": st.integers(0, 2**64 - 1),
        "schema_version": st.binary(max_size=8),
        "deliver_at_time": st.integers(-(2**63), 2**63 - 1),
        "highest_sequence_id": st.integers(0, 2**64 - 1),
        "uuid": texts,
        "chunk_id": st.integers(-1, 10),
    },
)


@given(about=fields, sequence_id=st.integers(0, 2**64 - 1), payload=st.binary(max_size=300))
def test_routing_reads_what_protobuf_reads(about: dict[str, Any], sequence_id: int, payload: bytes) -> None:
    entry = seal(entry_body(payload, sequence_id=sequence_id, **about))
    decoded = metadata.decode(entry)
    key = f"p-{sequence_id}".encode()
    if decoded.HasField("ordering_key"):
        key = decoded.ordering_key
    elif decoded.HasField("partition_key"):
        key = decoded.partition_key.encode()
    assert metadata.routing(memoryview(entry)) == (key, max(decoded.deliver_at_time, 0))
    for data in (b"lead" + entry + b"tail", memoryview(b"lead" + entry + b"tail")):
        assert plain_keys(data, [4], [len(entry)], [0])[0] in {None, key}


@given(
    key=st.text(max_size=40),
    about=st.fixed_dictionaries(
        {},
        optional={
            "uncompressed_size": st.integers(0, 2**32 - 1),
            "num_messages_in_batch": st.integers(0, 2**31 - 1),
            "event_time": st.integers(0, 2**64 - 1),
            "partition_key_b64_encoded": st.just(False),
        },
    ),
    sequence_id=st.integers(0, 2**63 - 1),
)
def test_keys_as_clients_write_them_are_plain(key: str, about: dict[str, Any], sequence_id: int) -> None:
    entry = seal(entry_body(b"", sequence_id=sequence_id, partition_key=key, **about))
    assert plain_keys(entry, [0], [len(entry)], [0]) == [None if len(key.encode()) > 127 else key.encode()]


def test_keys_of_producers_with_names_of_any_length_are_found_in_one_run() -> None:
    entries = []
    for row, name_bytes in enumerate((1, 30, 30, 127, 128, 2, 300, 30)):
        about = pb.MessageMetadata(
            producer_name="n" * name_bytes, sequence_id=row, publish_time=1, partition_key=f"key-{row}"
        ).SerializeToString()
        entries.append(seal(struct.pack(">I", len(about)) + about))
    offsets = [sum(map(len, entries[:row])) for row in range(len(entries))]
    found = plain_keys(b"".join(entries), offsets, list(map(len, entries)), range(1, 8))
    assert found == [b"key-1", b"key-2", b"key-3", None, b"key-5", None, b"key-7"]


@given(written=st.binary(max_size=60), at=st.integers(0, 30), other=st.binary(max_size=4), cut=st.integers(0, 40))
def test_a_key_that_is_plain_is_the_one_that_routing_finds(written: bytes, at: int, other: bytes, cut: int) -> None:
    usual = entry_body(b"", partition_key="the key", num_messages_in_batch=3)
    for body in (struct.pack(">I", len(written)) + written, usual[: 4 + at] + other + usual[4 + at + len(other) :]):
        entry = seal(body)[: len(seal(body)) - cut]
        if len(entry) > 10:
            assert plain_keys(entry, [0], [len(entry)], [0])[0] in {None, metadata.routing(entry).key}


@given(
    first=st.sampled_from([0, 100, 120, 16_370, 1 << 40]),
    keys=st.lists(st.text(max_size=9), min_size=TOGETHER_MIN, max_size=TOGETHER_MIN + 6),
    about=st.sampled_from([{}, {"uncompressed_size": 5}, {"event_time": 7}, {"ordering_key": b"other"}]),
    changes=st.lists(
        st.tuples(
            st.integers(0, 30), st.integers(0, 40), st.sampled_from([b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff"])
        ),
        max_size=2,
    ),
    size=st.integers(0, 3),
)
def test_keys_of_many_entries_are_those_that_routing_finds(
    first: int, keys: list[str], about: dict[str, Any], changes: list[tuple[int, int, bytes]], size: int
) -> None:
    bodies = [
        entry_body(b"payload"[:size], sequence_id=sequence_id, partition_key=key, **about)
        for sequence_id, key in enumerate(keys, first)
    ]
    for row, at, byte in changes:
        body = bodies[row % len(bodies)]
        bodies[row % len(bodies)] = body[:at] + byte + body[at + 1 :]
    entries = list(map(seal, bodies))
    offsets = [sum(map(len, entries[:row])) for row in range(len(entries))]
    data, lengths = b"".join(entries), list(map(len, entries))
    routed = [metadata.routing(entry).key for entry in entries]
    together = plain_keys(data, offsets, lengths, range(len(entries)))
    assert all(key in {None, expected} for key, expected in zip(together, routed, strict=True))
    assert together == plain_keys(memoryview(data), offsets, lengths, range(len(entries)))
    assert together == [plain_keys(data, offsets, lengths, [row])[0] for row in range(len(entries))]
    assert plain_keys(data, offsets, lengths, [*range(0, len(entries), 2)] * 2) == together[::2] * 2


def test_a_key_in_base64_is_the_bytes_it_stands_for() -> None:
    encoded = base64.b64encode(b"\x00\xff key").decode()
    entry = seal(entry_body(partition_key=encoded, partition_key_b64_encoded=True))
    assert metadata.routing(entry).key == b"\x00\xff key"


def test_fields_in_another_order_and_twice_are_read_as_protobuf_reads_them() -> None:
    plain = entry_body(partition_key="first")[4:-7]
    again = b"\x32\x06second" + b"\x98\x01\x07" + b"\x49" + bytes(8) + b"\x4d" + bytes(4)  # key, time, two fixed fields
    entry = seal(struct.pack(">I", len(again + plain + again)) + again + plain + again)
    assert metadata.routing(entry) == (b"second", 7)


@pytest.mark.parametrize("broken", [b"\x32\x7fshort", b"\x98\x01", b"\x10" + b"\xff" * 11, b"\x07", b"\x32\x02k"])
def test_metadata_that_cannot_be_read_has_no_key_and_no_delay(broken: bytes) -> None:
    assert metadata.routing(seal(struct.pack(">I", len(broken)) + broken)) == (b"", 0)


@given(
    rows=st.lists(st.tuples(st.integers(0, 2**41) | st.none(), st.binary(max_size=1_500)), max_size=8), lead=st.binary()
)
def test_every_delayed_row_is_suspected_and_payloads_are_not(rows: list[tuple[int | None, bytes]], lead: bytes) -> None:
    entries = [
        seal(entry_body(payload + b"\x98\x01", **({} if at is None else {"deliver_at_time": at})))
        for at, payload in rows
    ]
    offsets = [len(lead) + sum(map(len, entries[:row])) for row in range(len(entries))]
    data = lead + b"".join(entries)
    expected = [row for row, (at, _) in enumerate(rows) if at is not None]
    for buffer in (data, memoryview(data)):
        assert metadata.may_be_delayed(buffer, offsets, [len(entry) for entry in entries]) == expected
