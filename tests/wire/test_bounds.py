# SPDX-License-Identifier: Apache-2.0
"""Bounds of what a command may hold: for every field of every command that a client may send, and ways around them."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.units import KIB, MIB
from penstock.wire import codec
from penstock.wire.acks import ACK_BYTES_BY_HAND
from penstock.wire.bounds import BOUNDS, CLASSES, FIELDS_MAX, IDS_MAX, Bounds, OutOfBounds
from penstock.wire.bounds_table import CLASS_OF
from penstock.wire.errors import ProtocolError
from penstock.wire.events import RefusedCommand
from penstock.wire.frame_reader import GREETING_BYTES_MAX
from penstock.wire.pulsar_pb2 import BaseCommand
from tests.wire.frames import Feeder, connect, frame, inside, varint
from tools.generate_proto import read_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor

Type = BaseCommand.Type

# --------------------------------------------------------------------------------------------------------- the table


def test_every_field_of_the_protocol_has_a_bound() -> None:
    fields = read_fields()
    assert {message: {field.name: field.bound for field in found} for message, found in fields.items()} == CLASS_OF
    assert {bound for classes in CLASS_OF.values() for bound in classes.values()} | {"unknown"} == set(CLASSES)


# ------------------------------------------------------------------------------------------------------- every field


class Place(NamedTuple):
    """A field that can be large, and the fields of messages that lead to it from BaseCommand."""

    path: tuple[FieldDescriptor, ...]
    bound: str

    def __str__(self) -> str:
        return ".".join(field.name for field in self.path)

    @property
    def kind(self) -> int:
        return self.path[0].number

    def command(self, *contents: bytes) -> bytes:
        """A command in which this field comes with these contents."""
        data = b"".join(inside(self.path[-1].number, content) for content in contents)
        for field in reversed(self.path[:-1]):
            data = inside(field.number, data)
        return b"\x08" + varint(self.kind) + data


def places(descriptor: Descriptor, path: tuple[FieldDescriptor, ...] = ()) -> Iterator[Place]:
    """All fields of a message and of those in it that hold bytes."""
    for field in descriptor.fields:
        bound = CLASS_OF[descriptor.name][field.name]
        if CLASSES[bound].bytes_max is not None and bound != "names":
            yield Place((*path, field), bound)
        if bound in {"parts", "ids", "names"} and field.message_type is not None and field not in path:
            yield from places(field.message_type, (*path, field))


LARGE: Final = list(places(BaseCommand.DESCRIPTOR))  # type: ignore[arg-type]


def refusal(command: bytes, bounds: Bounds = BOUNDS) -> OutOfBounds:
    """How the command is refused."""
    with pytest.raises(OutOfBounds) as caught:
        bounds.check(command)
    return caught.value


@pytest.mark.parametrize("place", LARGE, ids=str)
def test_a_field_at_its_bound_is_taken_and_one_byte_more_is_refused_by_name_and_size(place: Place) -> None:
    bytes_max = CLASSES[place.bound].bytes_max
    assert bytes_max is not None
    BOUNDS.check(place.command(bytes(bytes_max)))
    refused = refusal(place.command(bytes(bytes_max + 1)))
    assert refused.kind == place.kind
    name = ".".join(field.name for field in place.path[1:]) or "its body"
    assert refused.text.startswith(f"{Type.Name(place.kind)} is refused: {name} has {bytes_max + 1:,} bytes")
    assert f"and {bytes_max:,} are allowed" in refused.text


@pytest.mark.parametrize("place", LARGE, ids=str)
def test_pieces_of_a_field_count_together(place: Place) -> None:
    bytes_max = CLASSES[place.bound].bytes_max
    assert bytes_max is not None
    piece = bytes(bytes_max // 2 + 1)
    assert refusal(place.command(piece, piece)).kind == place.kind
    if not any(isinstance(field.default_value, list) for field in place.path[:-1]):  # no repeated field around it
        body = place.command(piece)[2:]
        assert refusal(place.command(piece) + body).kind == place.kind  # protobuf merges two bodies of one command


@pytest.mark.parametrize("place", [p for p in LARGE if p.bound == "pairs"], ids=str)
def test_a_list_has_a_bound_of_elements_however_short_they_are(place: Place) -> None:
    BOUNDS.check(place.command(*[b""] * 1_000))
    assert "has 1,001 elements or more, and 1,000 are allowed" in refusal(place.command(*[b""] * 1_001)).text


def test_a_list_of_names_has_both_bounds() -> None:
    partitions = varint(1 << 3) + b"\x34"
    BOUNDS.check(partitions + inside(52, 16 * inside(4, bytes(4 * KIB))))
    assert "partitions has" in refusal(partitions + inside(52, 17 * inside(4, bytes(4 * KIB)))).text
    assert "1,001 elements" in refusal(partitions + inside(52, 1_001 * inside(4, b"t"))).text


def test_the_bound_of_a_schema_is_a_setting_which_its_refusal_names() -> None:
    (place,) = [p for p in LARGE if p.bound == "schema" and p.kind == Type.PRODUCER]
    assert refusal(place.command(bytes(MIB + 1))).text.endswith("(maxSchemaSize)")
    Bounds(schema_bytes_max=2 * MIB).check(place.command(bytes(2 * MIB)))


# ------------------------------------------------------------------------------------------------------- long lists


def subscribe_with_ranges(count: int) -> bytes:
    element = inside(3, b"\x08\x01\x10\x02")
    return varint(1 << 3) + b"\x04" + inside(4, inside(17, b"\x08\x01" + count * element))


def test_hash_ranges_are_counted() -> None:
    BOUNDS.check(subscribe_with_ranges(16_384))
    assert "keySharedMeta.hashRanges has 16,385 elements" in refusal(subscribe_with_ranges(16_385)).text


def acknowledging(ack_set: bytes, copies: int = 1) -> bytes:
    """An ACK of messages whose ids hold this."""
    body = b"\x08\x00\x10\x00" + copies * inside(3, b"\x08\x01\x10\x02" + ack_set) + b"\x40\x07"
    return b"\x08\x0a" + inside(10, body)


@pytest.mark.parametrize("width", [1, 9], ids=["short numbers", "long numbers"])
def test_words_of_an_ack_set_are_counted_packed_or_not(width: int) -> None:
    word = varint(1, width)
    for written in (lambda count: inside(5, count * word), lambda count: count * (b"\x28" + word)):
        BOUNDS.check(acknowledging(written(16_384)))
        refused = refusal(acknowledging(written(16_385)))
        assert "message_id.ack_set has 16,385 elements or more, and 16,384 are allowed" in refused.text
    half = inside(5, 8_193 * word)
    assert "16,386 elements" in refusal(acknowledging(half + half)).text


def test_a_thousand_ids_with_full_ack_sets_are_taken() -> None:
    BOUNDS.check(acknowledging(inside(5, 1_024 * b"\x01"), copies=1_000))
    BOUNDS.check(acknowledging(1_024 * b"\x28\x01", copies=1_000))


def test_message_ids_are_counted_and_no_further_than_their_bound() -> None:
    BOUNDS.check(acknowledging(b"", copies=IDS_MAX))
    for copies in (IDS_MAX + 1, 10 * IDS_MAX):
        assert f"message_id has {IDS_MAX + 1:,} elements or more" in refusal(acknowledging(b"", copies=copies)).text


def test_an_acknowledgement_that_is_read_by_hand_is_within_its_bounds() -> None:
    assert ACK_BYTES_BY_HAND // 6 < IDS_MAX
    feeder = Feeder()
    feeder.feed(frame(acknowledging(b"", copies=IDS_MAX + 1)))
    (event,) = feeder.heard.events
    assert isinstance(event, RefusedCommand)


# --------------------------------------------------------------------------------------------------------- ways around


def test_a_refusal_knows_the_ids_of_its_command_wherever_they_stand() -> None:
    topic = inside(1, bytes(5 * KIB))
    for body in (topic + b"\x10\x03\x18\x09", b"\x10\x03\x18\x09" + topic, b"\x10\x03" + topic + b"\x18\x09"):
        refused = refusal(b"\x08\x05" + inside(5, body))
        assert (refused.body.request_id, refused.body.producer_id) == (9, 3)  # type: ignore[attr-defined]


def test_a_body_that_is_not_the_types_is_bounded_as_well() -> None:
    ping = b"\x08\x12" + inside(18, b"")
    assert refusal(ping + inside(5, inside(1, bytes(5 * KIB)))).kind == Type.PRODUCER
    assert refusal(inside(5, inside(1, bytes(5 * KIB))) + ping).kind == Type.PRODUCER


def test_what_only_brokers_say_is_not_decoded() -> None:
    topics = b"".join(inside(2, b"t%d" % number) for number in range(1_000))
    assert refusal(b"\x08\x21" + inside(33, topics)).kind == Type.GET_TOPICS_OF_NAMESPACE_RESPONSE


def test_fields_of_newer_clients_are_passed_over_within_a_bound() -> None:
    BOUNDS.check(b"\x08\x17" + inside(23, inside(500, bytes(4 * KIB))))
    assert "(unknown fields) has" in refusal(b"\x08\x17" + inside(23, inside(500, bytes(4 * KIB + 1)))).text
    with pytest.raises(ProtocolError, match="unknown fields"):
        BOUNDS.check(b"\x08\x17" + inside(500, bytes(4 * KIB + 1)))


def test_the_walk_ends_after_so_many_fields() -> None:
    numbers = 1_000 * b"\x10\x01"  # producer ids: each below its own bound
    many = b"".join(inside(number, 999 * b"\x10\x01") for number in (5, 4, 10, 12, 15, 16, 20, 21, 23, 28, 29, 32, 34))
    assert "has 1,001 elements" in refusal(b"\x08\x05" + inside(5, numbers + b"\x10\x01")).text
    assert f"behind {FIELDS_MAX:,} other fields" in refusal(b"\x08\x05" + many).text


@pytest.mark.parametrize("wire_type", [3, 4, 6, 7])
def test_groups_and_wire_types_that_do_not_exist_are_no_command(wire_type: int) -> None:
    with pytest.raises(ProtocolError, match=f"wire type {wire_type}"):
        BOUNDS.check(b"\x08\x05" + inside(5, bytes([100 << 3 & 127 | wire_type | 128, 6]) + bytes(3_000)))


def test_message_ids_inside_message_ids_have_a_depth() -> None:
    nested = inside(5, bytes(3_000))
    for _ in range(50):
        nested = inside(7, nested)
    with pytest.raises(ProtocolError, match="nested deeper"):
        BOUNDS.check(acknowledging(nested + inside(5, bytes(500))))


def test_a_command_that_ends_inside_a_field_is_no_command() -> None:
    whole = next(place for place in LARGE if str(place) == "producer.topic").command(bytes(3_000))
    for cut in (1, 100, 900):
        with pytest.raises(ProtocolError, match="ends too early"):
            BOUNDS.check(whole[:-cut])


@given(data=st.binary(max_size=3_000), kind=st.integers(2, 40))
@settings(max_examples=300)
def test_no_bytes_whatsoever_end_in_another_error(data: bytes, kind: int) -> None:
    for command in (data, varint(1 << 3) + varint(kind) + inside(kind, data) + bytes(300)):
        with contextlib.suppress(OutOfBounds, ProtocolError):
            BOUNDS.check(command)


def _value_bytes(field: FieldDescriptor, value: object) -> int:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return len(value.SerializePartialToString())  # type: ignore[attr-defined]
    return len(value.encode() if isinstance(value, str) else value)  # type: ignore[arg-type]


def within(message: object) -> bool:
    """Whether all that was decoded is within its bounds."""
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        bound = CLASSES[CLASS_OF[field.containing_type.name][field.name]]
        repeated = isinstance(field.default_value, list)
        values = value if repeated else [value]
        if repeated and bound.count_max is not None and len(values) > bound.count_max:
            return False
        if bound.bytes_max is not None and sum(_value_bytes(field, one) for one in values) > bound.bytes_max:
            return False
        if field.type == FieldDescriptor.TYPE_MESSAGE and not all(within(one) for one in values):
            return False
    return True


@given(
    pieces=st.lists(
        st.tuples(st.sampled_from(LARGE), st.integers(0, 5_000), st.integers(1, 1_100)), min_size=1, max_size=4
    )
)
@settings(max_examples=200, deadline=None)
def test_what_passes_is_within_its_bounds_when_protobuf_has_decoded_it(pieces: list[tuple[Place, int, int]]) -> None:
    command = b"".join(place.command(*[bytes(size)] * (count if size < 100 else 1)) for place, size, count in pieces)
    try:
        BOUNDS.check(command)
        decoded = codec.decode_command(command)
    except (OutOfBounds, ProtocolError):
        return
    assert within(decoded)


# ------------------------------------------------------------------------------------------------------- the reader


def test_a_command_out_of_bounds_is_an_event_and_the_frames_around_it_are_read() -> None:
    feeder = Feeder()
    lookup = frame(b"\x08\x17" + inside(23, inside(1, bytes(5 * KIB)) + b"\x10\x09"))
    ping = codec.ping()
    feeder.feed(ping + lookup + ping)
    before, refused, after = feeder.heard.events
    assert before == after
    assert isinstance(refused, RefusedCommand)
    assert (refused.type, refused.body.request_id) == (Type.LOOKUP, 9)  # type: ignore[attr-defined]


def test_a_send_whose_command_is_out_of_bounds_ends_the_connection() -> None:
    feeder = Feeder()
    with pytest.raises(ProtocolError, match=r"SEND is refused: message_id\.ack_set"):
        feeder.feed(frame(b"\x08\x06" + inside(6, b"\x08\x00\x10\x00" + inside(9, inside(5, bytes(20_000))))))


def test_frames_are_short_until_the_client_is_admitted() -> None:
    feeder = Feeder(connected=False)
    feeder.reader.admitted = False
    with pytest.raises(ProtocolError, match=f"has not shown who it is: want 4 to {GREETING_BYTES_MAX}"):
        feeder.feed((GREETING_BYTES_MAX + 1).to_bytes(4, "big"))


def test_a_client_that_need_not_show_who_it_is_has_long_frames_behind_its_first() -> None:
    feeder = Feeder(connected=False)  # admitted from the start
    with pytest.raises(ProtocolError, match="has not shown who it is"):
        feeder.feed((GREETING_BYTES_MAX + 1).to_bytes(4, "big"))
    feeder = Feeder(connected=False)
    feeder.feed(connect() + frame(b"\x08\x12" + inside(18, b""), bytes(GREETING_BYTES_MAX)))
    assert len(feeder.heard.events) == 2


def test_a_greeting_with_the_largest_credentials_fits() -> None:
    feeder = Feeder(connected=False)
    feeder.reader.admitted = False
    hello = codec.CommandConnect(
        client_version="v" * KIB, auth_data=bytes(64 * KIB), original_auth_data="o" * 64 * KIB, auth_method_name="token"
    )
    feeder.feed(codec.encode(Type.CONNECT, hello))
    assert len(feeder.heard.events) == 1


def test_counting_the_numbers_of_a_list_takes_no_memory_for_each_of_them() -> None:
    command = codec.BaseCommand(type=codec.BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 0, codec.CommandAck.Individual
    command.ack.message_id.add(ledgerId=0, entryId=0).ack_set.extend([2**20] * 1_000_000)
    data = command.SerializeToString()
    tracemalloc.start()
    try:
        with pytest.raises(OutOfBounds, match=r"ack_set has .* elements"):
            BOUNDS.check(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * MIB
