# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements and permits read by hand say what protobuf says."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire import codec
from penstock.wire.acks import IDS_MAX, STRETCHES_MAX, decode_ack, decode_flow
from penstock.wire.events import AckRun, Flow
from tests.wire.frames import Feeder, command_frame, hear
from tests.wire.strategies import uint64s

minus_one_often = st.one_of(st.just(-1), st.integers(-(1 << 31), (1 << 31) - 1))
message_ids = st.builds(
    lambda fields: codec.MessageIdData(**fields),
    st.fixed_dictionaries(
        {"ledgerId": st.one_of(st.just(5), uint64s), "entryId": uint64s},
        optional={
            "partition": minus_one_often,
            "batch_index": minus_one_often,
            "ack_set": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=2),
            "batch_size": st.integers(0, 9),
        },
    ),
)
plain_ids = st.builds(codec.MessageIdData, ledgerId=st.just(5), entryId=st.integers(0, 40_000))
acks = st.builds(
    lambda fields: codec.CommandAck(**fields),
    st.fixed_dictionaries(
        {
            "consumer_id": uint64s,
            "ack_type": st.sampled_from([codec.CommandAck.Individual, codec.CommandAck.Cumulative]),
            "message_id": st.one_of(st.lists(message_ids, max_size=5), st.lists(plain_ids, max_size=20)),
        },
        optional={
            "request_id": uint64s,
            "validation_error": st.sampled_from(codec.CommandAck.ValidationError.values()),
            "txnid_least_bits": uint64s,
        },
    ),
)


def _by_protobuf(command: bytes) -> Any:  # noqa: ANN401 - whatever event it makes
    return codec.event_of(codec.decode_command(command))


@given(ack=acks)
def test_an_acknowledgement_reads_as_protobuf_reads_it(ack: codec.CommandAck) -> None:
    command = command_frame(codec.BaseCommand.ACK, ack)[8:]
    by_hand = decode_ack(command)
    assert by_hand is None or by_hand == _by_protobuf(command)


@given(
    ids=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30),
    partition=st.one_of(st.none(), st.just(-1), st.integers(0, 300)),
    request_id=st.one_of(st.none(), st.integers(0, 1 << 40)),
)
def test_plain_acknowledgements_need_no_protobuf(ids: list[int], partition: int | None, request_id: int | None) -> None:
    ack = codec.CommandAck(
        consumer_id=200,
        ack_type=codec.CommandAck.Individual,
        message_id=[codec.MessageIdData(ledgerId=1_000, entryId=entry_id, partition=partition) for entry_id in ids],
        request_id=request_id,
    )
    assert decode_ack(command_frame(codec.BaseCommand.ACK, ack)[8:]) == AckRun(
        consumer_id=200, cumulative=False, ledger_ids=[1_000] * len(ids), entry_ids=ids, request_id=request_id
    )


@given(entry_ids=st.lists(st.integers(16_300, 17_000), max_size=30), consumers=st.lists(st.integers(1, 2), max_size=30))
def test_acknowledgements_of_one_entry_each_are_taken_together(entry_ids: list[int], consumers: list[int]) -> None:
    pairs = list(zip(consumers, entry_ids, strict=False))
    frames = [_single(consumer_id, entry_id) for consumer_id, entry_id in pairs]
    assert hear([b"".join(frames)]) == [
        (consumer_id, False, None, None, None, 9, entry_id, None) for consumer_id, entry_id in pairs
    ]


def test_a_thousand_acknowledgements_of_one_consumer_in_one_read_are_one_event() -> None:
    feeder = Feeder()
    feeder.feed(b"".join(_single(1, 20_000 + row) for row in range(1_000)))
    assert len(feeder.heard.events) == 1


def test_acknowledgements_that_wait_for_an_answer_stay_apart() -> None:
    feeder = Feeder()
    feeder.feed(b"".join(_single(1, 20_000, request_id=7) for _ in range(2)))
    assert len(feeder.heard.events) == 2


def test_acknowledgements_of_different_types_stay_apart() -> None:
    feeder = Feeder()
    feeder.feed(_single(1, 300) + _single(1, 301, ack_type=codec.CommandAck.Cumulative) + _single(1, 302))
    assert [getattr(event, "cumulative", None) for event in feeder.heard.events] == [False, True, False]


@given(
    start=st.sampled_from([0, 100, 300, 16_200, 2_097_000, 1 << 40]),
    count=st.integers(250, 400),
    others=st.dictionaries(st.integers(0, 399), st.sampled_from([(5, 3), (6, 300), (7, 300)]), max_size=3),
)
@settings(max_examples=50)
def test_long_stretches_are_read_up_to_an_id_that_differs(
    start: int, count: int, others: dict[int, tuple[int, int]]
) -> None:
    pairs = [others.get(row, (5, start + row)) for row in range(count)]
    ids = [codec.MessageIdData(ledgerId=ledger_id, entryId=entry_id) for ledger_id, entry_id in pairs]
    ack = codec.CommandAck(consumer_id=1, ack_type=codec.CommandAck.Individual, message_id=ids)
    by_hand = decode_ack(command_frame(codec.BaseCommand.ACK, ack)[8:])
    assert by_hand is not None
    assert list(zip(by_hand.ledger_ids, by_hand.entry_ids, strict=True)) == pairs
    assert not by_hand.consecutive or by_hand.entry_ids == list(range(start, start + count))
    of_one_length = not any(start < longer < start + count for longer in (1 << 7, 1 << 14, 1 << 21))
    assert by_hand.consecutive or others or not of_one_length
    frames = b"".join(_single(1, entry_id) for _, entry_id in pairs)
    assert [one[6] for one in hear([frames])] == [entry_id for _, entry_id in pairs]


def _single(consumer_id: int, entry_id: int, **fields: Any) -> bytes:  # noqa: ANN401 - as the class takes them
    ack = codec.CommandAck(
        consumer_id=consumer_id,
        ack_type=codec.CommandAck.Individual,
        message_id=[codec.MessageIdData(ledgerId=9, entryId=entry_id)],
    )
    ack.MergeFrom(codec.CommandAck(**fields))
    return command_frame(codec.BaseCommand.ACK, ack)


@given(consumer_id=uint64s, permits=st.integers(0, (1 << 32) - 1))
def test_permits_read_as_protobuf_reads_them(consumer_id: int, permits: int) -> None:
    command = command_frame(codec.BaseCommand.FLOW, codec.CommandFlow(consumer_id=consumer_id, messagePermits=permits))
    assert hear([command]) == [(Flow(consumer_id, permits),)]
    assert decode_flow(command[8:]) == (Flow(consumer_id, permits) if consumer_id < 1 << 63 else None)


@given(start=st.sampled_from([b"\x08\x0a\x52", b"\x08\x0b\x5a"]), rest=st.binary(max_size=40))
def test_what_the_hand_accepts_protobuf_accepts_and_means(start: bytes, rest: bytes) -> None:
    for body in (rest, bytes((len(rest),)) + rest, b"\x08\x01\x10" + rest):
        command = start + body
        by_hand = decode_ack(command) if start[1] == 0x0A else decode_flow(command)
        assert by_hand is None or by_hand == _by_protobuf(command)


def test_ids_that_are_not_alike_are_left_to_protobuf_where_they_are_many() -> None:
    few, many = (
        codec.CommandAck(
            consumer_id=1,
            ack_type=codec.CommandAck.Individual,
            message_id=[codec.MessageIdData(ledgerId=7, entryId=i % 2 << 40) for i in range(n)],
        )
        for n in (STRETCHES_MAX, STRETCHES_MAX + 1)
    )
    by_hand = decode_ack(command_frame(codec.BaseCommand.ACK, few)[8:])
    assert by_hand is not None
    assert len(by_hand.entry_ids) == STRETCHES_MAX
    assert decode_ack(command_frame(codec.BaseCommand.ACK, many)[8:]) is None


def test_more_ids_than_one_turn_has_time_for_are_left_to_the_bounds() -> None:
    few, many = (
        codec.CommandAck(
            consumer_id=1,
            ack_type=codec.CommandAck.Individual,
            message_id=[codec.MessageIdData(ledgerId=7, entryId=5) for _ in range(n)],
        )
        for n in (IDS_MAX, IDS_MAX + 1)
    )
    assert decode_ack(command_frame(codec.BaseCommand.ACK, few)[8:]) is not None
    assert decode_ack(command_frame(codec.BaseCommand.ACK, many)[8:]) is None
