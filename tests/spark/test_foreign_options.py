# SPDX-License-Identifier: Apache-2.0
"""Options of other sources are taken as ours, named as without effect, or refused with what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.foreign_options import IGNORED, REFUSED, TAKEN, translated
from penstock.spark.options import CONNECTION_OPTIONS, READ_OPTIONS, parse_read_options
from penstock.spark.write_options import WRITE_OPTIONS, parse_write_options
from penstock.wire.codec import MessageIdData

if TYPE_CHECKING:
    from penstock.spark import foreign_options

URL = {"service.url": "pulsar://127.0.0.1:6650"}
OURS = {option.name for option in (*CONNECTION_OPTIONS, *READ_OPTIONS, *WRITE_OPTIONS)}


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.foreign_options._told", set())


def test_a_query_for_kafka_says_in_one_line_what_its_options_are_taken_as(caplog: pytest.LogCaptureFixture) -> None:
    given = {**URL, "subscribe": "a,b", "maxOffsetsPerTrigger": "7", "includeHeaders": "true"}
    parse_read_options(given)
    found = parse_read_options(given)
    assert found.topics == ("persistent://public/default/a", "persistent://public/default/b")
    assert found.messages_max == 7
    (line,) = caplog.messages
    assert "subscribe is taken as topics; " in line
    assert "includeHeaders has no effect: headers are always there, as __messageProperties" in line


def test_options_of_the_java_client_are_accepted_for_reads_and_writes(caplog: pytest.LogCaptureFixture) -> None:
    parse_read_options({**URL, "topic": "t", "pulsar.reader.receiverQueueSize": "9", "pulsar.client.numIoThreads": "2"})
    written = {"pulsar.client.serviceUrl": URL["service.url"], "pulsar.producer.topicName": "t"}
    assert parse_write_options(written).topic == "persistent://public/default/t"
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("one", REFUSED, ids=lambda one: one.name)
def test_what_would_change_the_result_is_refused_with_what_to_write(one: foreign_options.Refused) -> None:
    for parse in (parse_read_options, parse_write_options):
        with pytest.raises(ValueError, match="write ") as told:
            parse({**URL, "topic": "t", one.name: "x"})
        assert str(told.value).endswith(one.instead.replace("`", ""))


@pytest.mark.parametrize("name", ["kafka.fetch.min.bytes", "KAFKA.isolation.level"])
def test_options_of_kafkas_client_are_told_where_to_look(name: str) -> None:
    with pytest.raises(ValueError, match="spark-migration"):
        parse_read_options({**URL, "topic": "t", name: "x"})


def test_the_same_option_by_two_names_is_refused() -> None:
    with pytest.raises(ValueError, match="options subscribe and topics are the same"):
        parse_read_options({**URL, "topics": "a", "subscribe": "b"})


def test_what_is_taken_is_an_option_of_ours_and_no_name_is_both() -> None:
    assert {one.ours for one in TAKEN} <= OURS
    names = [one.name.lower() for one in (*TAKEN, *IGNORED)] + [one.name.lower() for one in REFUSED]
    assert len(set(names)) == len(names)
    assert not {name.lower() for name in OURS} & set(names)
    assert translated(dict.fromkeys(OURS, "x"), OURS) == dict.fromkeys(OURS, "x")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ledgerId": 11, "entryId": 101, "partition": 0, "batch_index": 0}, MessageId(11, 101)),
        ({"ledgerId": 300, "entryId": 7, "partition": 3, "batch_index": 5}, MessageId(300, 7, 5)),
        ({"ledgerId": (1 << 64) - 1, "entryId": (1 << 64) - 1, "partition": -1, "batch_index": -1}, EARLIEST),
    ],
)
def test_offsets_may_be_the_bytes_of_message_ids_with_or_without_signs(
    fields: dict[str, int], expected: MessageId
) -> None:
    made = MessageIdData()
    for name, number in fields.items():
        setattr(made, name, number)
    serialized = made.SerializeToString()
    for numbers in (list(serialized), [byte - 256 if byte > 127 else byte for byte in serialized]):
        found = parse_read_options({**URL, "topic": "t", "startingOffsets": f'{{"t": {numbers}}}'})
        assert found.starting == {"persistent://public/default/t": expected}


@pytest.mark.parametrize("numbers", [[8, 1, 2, 3, 999], [255, 255, 255, 255]])
def test_bytes_that_are_no_message_id_are_refused(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="startingOffsets"):
        parse_read_options({**URL, "topic": "t", "startingOffsets": f'{{"t": {numbers}}}'})
