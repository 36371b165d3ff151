# SPDX-License-Identifier: Apache-2.0
"""Columns made of thousands of messages at once are what the generated classes say of each of them."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.core.checksum import seal
from penstock.spark import rows, values
from penstock.spark.client import deliveries, messages
from penstock.spark.client.chunks import Chunks
from penstock.spark.client.cluster import TopicSchema
from penstock.spark.client.encryption import Decryption
from penstock.spark.client.errors import UnreadableEntry, UnreadableValue
from penstock.spark.client.fields import NO_FIELD, last_of, walk
from penstock.wire import compression
from penstock.wire.codec import BaseCommand, MessageIdData, MessageMetadata, Schema, SingleMessageMetadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from penstock.spark.client.message_id import MessageId

TOPIC = "persistent://public/default/t-partition-2"
TEXT = st.text(max_size=8)
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=3)
MESSAGE = st.fixed_dictionaries(
    {"value": st.none() | st.binary(max_size=40), "key": st.none() | TEXT, "event": st.integers(0, 2**40)},
    optional={"properties": PROPERTIES, "key_bytes": st.binary(max_size=6)},
)
ENTRY = st.one_of(
    MESSAGE.map(lambda one: ([one], False)), st.lists(MESSAGE, min_size=1, max_size=5).map(lambda many: (many, True))
)


def said(metadata: Any, one: dict[str, Any]) -> None:  # noqa: ANN401 -- of an entry, or of a message in a batch
    if one["value"] is None:
        metadata.null_value = True
    if one["event"]:
        metadata.event_time = one["event"]
    if "key_bytes" in one:
        metadata.partition_key, metadata.partition_key_b64_encoded = b64encode(one["key_bytes"]).decode(), True
    elif one["key"] is not None:
        metadata.partition_key = one["key"]
    for name, text in one.get("properties", {}).items():
        metadata.properties.add(key=name, value=text)


def stored(many: list[dict[str, Any]], *, batch: bool, kind: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=5, publish_time=1_700_000_000_000)
    if batch:
        metadata.num_messages_in_batch = len(many)
        payload = b""
        for one in many:
            single = SingleMessageMetadata(payload_size=len(one["value"] or b""))
            said(single, one)
            head = single.SerializeToString()
            payload += len(head).to_bytes(4, "big") + head + (one["value"] or b"")
    else:
        said(metadata, many[0])
        payload = many[0]["value"] or b""
    if kind:
        metadata.uncompressed_size = len(payload)
        metadata.compression, payload = compression.compress(kind, payload)  # type: ignore[assignment]
    data = metadata.SerializeToString()
    return seal(len(data).to_bytes(4, "big") + data + payload)


def frames(entries: list[bytes]) -> tuple[bytearray, list[int]]:
    """MESSAGE frames as a broker sends them."""
    data, starts = bytearray(b"before"), []
    for number, entry in enumerate(entries):
        command = BaseCommand(type=BaseCommand.MESSAGE)
        command.message.consumer_id = 1
        command.message.message_id.ledgerId, command.message.message_id.entryId = 300, number * 100
        command.message.message_id.partition = 2
        head = command.SerializeToString()
        starts.append(len(data))
        data += (4 + len(head) + len(entry)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + entry
    return data, starts


def no_pieces(uuid: bytes, count: int, before: MessageId) -> None:
    raise AssertionError(uuid)


def table(entries: list[bytes], columns: tuple[str, ...] = ()) -> pa.Table:
    data, starts = frames(entries)
    run, damaged = deliveries.decode(data, np.array(starts), len(data))
    assert not damaged.size
    schema = rows.schema_of(values.Values(), columns)
    builder = rows.RowBuilder(schema, values.Values(), TOPIC, lambda _: None)
    found_all = messages.decode(run, TOPIC, Chunks(no_pieces), Decryption())
    batches = [batch for found in found_all for batch in builder.batches(found)]
    wanted = to_arrow_schema(schema, timezone="UTC")
    assert all(batch.schema.equals(wanted) for batch in batches)
    return pa.Table.from_batches(batches, wanted)


def assert_says(found: pa.Table, entries: list[tuple[list[dict[str, Any]], bool]]) -> None:
    flat = [one for many, _ in entries for one in many]
    assert found["value"].to_pylist() == [one["value"] for one in flat]
    keys = [one["key_bytes"] if "key_bytes" in one else one["key"] and one["key"].encode() for one in flat]
    assert [key or None for key in found["__key"].to_pylist()] == [key or None for key in keys]
    assert [dict(pairs) for pairs in found["__messageProperties"].to_pylist()] == [
        one.get("properties", {}) for one in flat
    ]
    assert found["__eventTime"].cast(pa.int64()).to_pylist() == [one["event"] * 1000 or None for one in flat]
    assert set(found["__publishTime"].cast(pa.int64()).to_pylist()) == {1_700_000_000_000_000}
    ids = [MessageIdData.FromString(one) for one in found["__messageId"].to_pylist()]
    assert [(one.ledgerId, one.entryId, one.partition, one.batch_index, one.batch_size) for one in ids] == [
        (300, number * 100, 2, index if batch else -1, len(many) if batch else 0)
        for number, (many, batch) in enumerate(entries)
        for index in range(len(many))
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(ENTRY, min_size=1, max_size=12), st.sampled_from([0, compression.LZ4, compression.ZSTD]))
def test_columns_are_what_each_message_says(entries: list[tuple[list[dict[str, Any]], bool]], kind: int) -> None:
    assert_says(table([stored(many, batch=batch, kind=kind) for many, batch in entries]), entries)


@settings(max_examples=150, deadline=None)
@given(MESSAGE, st.lists(st.tuples(st.integers(0, 199), MESSAGE), max_size=2), st.sampled_from([1, 20, 100]))
def test_of_messages_that_look_alike_each_keeps_what_is_its_own_and_an_odd_one_is_no_exception(
    model: dict[str, Any], odd: list[tuple[int, dict[str, Any]]], batch_of: int
) -> None:
    # All as long as the model, and different all the same.
    flat = [numbered(model, number) for number in range(200)]
    for place, one in odd:
        flat[place] = one
    entries = [(flat[first : first + batch_of], batch_of > 1) for first in range(0, len(flat), batch_of)]
    assert_says(table([stored(many, batch=batch, kind=0) for many, batch in entries]), entries)


def numbered(model: dict[str, Any], number: int) -> dict[str, Any]:
    """The same with other bytes of the same number."""
    one = dict(model)
    if one["value"]:
        one["value"] = bytes([number]) + one["value"][1:]
    if one.get("key_bytes"):
        one["key_bytes"] = bytes([number]) + one["key_bytes"][1:]
    if one["event"] > 2**20:
        one["event"] ^= number
    return one


@settings(max_examples=300, deadline=None)
@given(MESSAGE, st.lists(st.tuples(st.integers(0, 19), st.integers(0, 60), st.integers(0, 255)), max_size=3))
def test_fields_of_messages_alike_are_what_the_generated_class_reads_also_when_bytes_are_not(
    model: dict[str, Any], changes: list[tuple[int, int, int]]
) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=700, publish_time=1_700_000_000_000)
    said(metadata, model)
    parts = [bytearray(metadata.SerializeToString()) for _ in range(20)]
    for row, at, byte in changes:
        parts[row][at % len(parts[row])] = byte
    edges = np.cumsum([0, *map(len, parts)])
    try:
        fields = walk(np.frombuffer(b"".join(parts), np.uint8), edges[:-1], edges[1:], {2, 3, 12})
    except ProtocolError:
        return
    for row, part in enumerate(parts):
        try:
            read = MessageMetadata.FromString(bytes(part))
        except DecodeError:
            continue  # A text that is no UTF-8, or a field that must be there: columns do not care.
        for number, wanted in ((2, read.sequence_id), (3, read.publish_time), (12, read.event_time)):
            field = fields.get(number, NO_FIELD)
            if not field.stops.any():  # Else it came as a text somewhere, which is no such field.
                assert int(last_of(field, len(parts))[row]) % 2**64 == wanted


def test_only_the_columns_asked_for_are_made_in_the_order_asked_for() -> None:
    one = {"value": b"x", "key": None, "event": 0}
    found = table([stored([one], batch=False, kind=0)], ("__sequenceId", "value", "__producerName", "__partition"))
    assert found.to_pylist() == [{"__sequenceId": 5, "value": b"x", "__producerName": "p", "__partition": 2}]


def test_batches_hold_some_thousand_rows_at_most() -> None:
    one = {"value": b"x" * 10, "key": None, "event": 0}
    found = table([stored([one] * 1000, batch=True, kind=0)] * 10)
    assert found.num_rows == 10_000
    assert max(len(batch) for batch in found.to_batches()) <= rows.ROWS_MAX


def test_a_damaged_entry_is_found_among_whole_ones() -> None:
    entries = [stored([{"value": b"%d" % number, "key": None, "event": 0}], batch=False, kind=0) for number in range(5)]
    entries[3] = entries[3][:-1] + b"?"
    data, starts = frames(entries)
    assert deliveries.decode(data, np.array(starts), len(data))[1].tolist() == [3]


def test_messages_that_were_compacted_out_of_a_batch_are_left_out_and_the_others_keep_their_places() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
    gone = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
    kept = SingleMessageMetadata(payload_size=1).SerializeToString()
    head = metadata.SerializeToString()
    parts = [len(head).to_bytes(4, "big"), head, len(gone).to_bytes(4, "big"), gone, len(kept).to_bytes(4, "big"), kept]
    found = table([seal(b"".join(parts) + b"x")])
    assert found["value"].to_pylist() == [b"x"]
    assert MessageIdData.FromString(found["__messageId"][0].as_py()).batch_index == 1


def test_a_batch_that_breaks_off_is_an_error_that_names_its_place() -> None:
    whole = stored([{"value": b"abc", "key": None, "event": 0}] * 3, batch=True, kind=0)
    with pytest.raises(UnreadableEntry, match="300:0"):
        table([seal(whole[6:-8])])


@settings(max_examples=300, deadline=None)
@given(MESSAGE, st.integers(0, 1), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_batch_whose_bytes_are_not_what_its_producer_sent_is_an_error_that_names_its_place_or_reads_otherwise(
    model: dict[str, Any], spoiled: int, changes: list[tuple[int, int]]
) -> None:
    entries = [stored([model] * 20, batch=True, kind=0)] * 2
    whole = bytearray(entries[spoiled][6:])
    payload = 4 + int.from_bytes(whole[:4], "big")
    for at, byte in changes:
        whole[payload + at % (len(whole) - payload)] = byte
    entries[spoiled] = seal(bytes(whole))
    try:
        assert table(entries).num_rows <= 40
    except UnreadableEntry as error:
        assert "300:" in str(error)  # noqa: PT017 -- it need not be raised


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_bytes_that_are_no_protobuf_are_an_error_and_nothing_else(parts: list[bytes]) -> None:
    edges = np.cumsum([0, *map(len, parts)])
    try:
        walk(np.frombuffer(b"".join(parts), np.uint8), edges[:-1], edges[1:], {1, 2})
    except ProtocolError:
        return


@pytest.mark.parametrize("bad", ['{"id": "seven"}', '{"id": 9999999999999999999999}', '{"id": {"is": 7}}'])
def test_a_field_that_is_not_of_its_type_is_told_with_its_name_and_the_value(bad: str) -> None:
    definition = b'{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    orders = values.of_schema(TopicSchema(Schema.Json, definition, b"", {}))
    many = [{"value": one.encode(), "key": None, "event": 0} for one in ('{"id": 6}', "null", bad)]
    data, starts = frames([stored(many, batch=True, kind=0)])
    run, _ = deliveries.decode(data, np.array(starts), len(data))
    builder = rows.RowBuilder(rows.schema_of(orders, ["id"]), orders, TOPIC, lambda _: None)
    (found,) = messages.decode(run, TOPIC, Chunks(no_pieces), Decryption())
    with pytest.raises(UnreadableValue, match=r"t-partition-2.*id: .*begins b'\{\"id\".*valueFormat=binary"):
        list(builder.batches(found))


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="no column __kee; there are value, __key"):
        rows.schema_of(values.Values(), ("__kee",))
