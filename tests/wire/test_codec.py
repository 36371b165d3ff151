# SPDX-License-Identifier: Apache-2.0
"""Replies, read back through protobuf."""

from __future__ import annotations

import struct

import pytest

from penstock.core.errors import WireCode
from penstock.wire import codec
from penstock.wire.pulsar_pb2 import CommandLookupTopicResponse

MINUS_ONE = (1 << 64) - 1


def _read(frame: bytes) -> codec.BaseCommand:
    total, command_bytes = struct.unpack_from(">II", frame)
    assert (total, command_bytes) == (len(frame) - 4, len(frame) - 8)
    command = codec.BaseCommand.FromString(frame[8:])
    assert command.IsInitialized()
    return command


def test_connected_always_tells_the_message_limit() -> None:
    connected = _read(codec.connected("Pulsar Server", 20, 1_000)).connected
    assert (connected.server_version, connected.protocol_version, connected.max_message_size) == (
        "Pulsar Server",
        20,
        1_000,
    )


def test_ping_and_pong_carry_their_empty_bodies() -> None:
    assert _read(codec.ping()).HasField("ping")
    assert _read(codec.pong()).HasField("pong")


def test_a_request_id_of_minus_one_is_written_as_the_largest_number() -> None:
    assert _read(codec.error(-1, WireCode.SERVICE_NOT_READY, "no")).error.request_id == MINUS_ONE
    assert _read(codec.close_producer(3, -1)).close_producer.request_id == MINUS_ONE
    assert _read(codec.close_consumer(3, -1)).close_consumer.request_id == MINUS_ONE


def test_every_error_code_can_be_told() -> None:
    for code in WireCode:
        assert int(_read(codec.error(1, code, "no")).error.error) == code
        assert int(_read(codec.send_error(1, 2, code, "no")).send_error.error) == code


def test_an_empty_topic_has_its_last_message_at_minus_one() -> None:
    frame = codec.last_message_id(4, -1, -1, partition=2, batch_index=-1, mark_delete=(7, -1))
    response = _read(frame).getLastMessageIdResponse
    last, marked = response.last_message_id, response.consumer_mark_delete_position
    assert (last.ledgerId, last.entryId, last.partition, last.batch_index) == (MINUS_ONE, MINUS_ONE, 2, -1)
    assert (marked.ledgerId, marked.entryId) == (7, MINUS_ONE)


def test_a_successful_acknowledgement_carries_no_error() -> None:
    assert not _read(codec.ack_response(1, 0)).ackResponse.HasField("error")
    failed = _read(codec.ack_response(1, 0, error=WireCode.NOT_ALLOWED_ERROR, message="no")).ackResponse
    assert (int(failed.error), failed.message) == (WireCode.NOT_ALLOWED_ERROR, "no")


def test_lookups_succeed_and_fail_in_their_own_response() -> None:
    found = _read(codec.lookup_connect(1, "pulsar://here:6650", None)).lookupTopicResponse
    assert (found.response, found.brokerServiceUrl, found.HasField("brokerServiceUrlTls"), found.authoritative) == (
        CommandLookupTopicResponse.Connect,
        "pulsar://here:6650",
        False,
        True,
    )
    assert not found.proxy_through_service_url
    mapped = _read(codec.lookup_connect(1, "pulsar://here:6650", None, through_service_url=True)).lookupTopicResponse
    assert mapped.proxy_through_service_url
    failed = _read(codec.lookup_failed(1, WireCode.TOPIC_NOT_FOUND, "no")).lookupTopicResponse
    assert (failed.response, int(failed.error)) == (CommandLookupTopicResponse.Failed, WireCode.TOPIC_NOT_FOUND)


def test_partitioned_metadata_succeeds_and_fails_in_its_own_response() -> None:
    found = _read(codec.partitioned_metadata(1, 0)).partitionMetadataResponse
    assert (int(found.response), found.HasField("partitions"), found.partitions) == (0, True, 0)
    failed = _read(codec.partitioned_metadata_failed(1, WireCode.TOPIC_NOT_FOUND, "no")).partitionMetadataResponse
    assert (int(failed.response), int(failed.error), failed.message) == (1, WireCode.TOPIC_NOT_FOUND, "no")


def test_producer_success_knows_no_earlier_sequence_id_by_default() -> None:
    response = _read(codec.producer_success(1, "p")).producer_success
    assert (response.producer_name, response.last_sequence_id, response.HasField("schema_version")) == ("p", -1, True)


@pytest.mark.parametrize("is_active", [False, True])
def test_an_active_consumer_change_says_which_way(is_active: bool) -> None:
    change = _read(codec.active_consumer_change(9, is_active=is_active)).active_consumer_change
    assert (change.consumer_id, change.is_active) == (9, is_active)


def test_statistics_go_by_their_field_names() -> None:
    response = _read(codec.consumer_stats(1, {"msgRateOut": 2.5, "consumerName": "c"})).consumerStatsResponse
    assert (response.msgRateOut, response.consumerName) == (2.5, "c")
    failed = _read(codec.consumer_stats_failed(1, WireCode.CONSUMER_NOT_FOUND, "no")).consumerStatsResponse
    assert (int(failed.error_code), failed.error_message) == (WireCode.CONSUMER_NOT_FOUND, "no")


def test_small_answers_name_what_they_answer() -> None:
    assert _read(codec.success(5)).success.request_id == 5
    assert _read(codec.reached_end_of_topic(5)).reachedEndOfTopic.consumer_id == 5
    assert _read(codec.get_schema_failed(5, WireCode.TOPIC_NOT_FOUND, "no")).getSchemaResponse.request_id == 5


def test_a_schema_is_sent_from_where_it_lies_and_reads_as_protobuf_writes_it() -> None:
    for data in (b"", b"x" * 100, bytes(1 << 20)):
        head, sent = codec.get_schema_response(
            7, name="s", kind=codec.Schema.Json, data=data, properties={"a": "b"}, version=b"12345678"
        )
        assert sent is data
        answer = _read(head + sent).getSchemaResponse
        assert (answer.request_id, answer.schema_version) == (7, b"12345678")
        assert (answer.schema.name, answer.schema.type) == ("s", codec.Schema.Json)
        assert answer.schema.schema_data == data
        assert [(each.key, each.value) for each in answer.schema.properties] == [("a", "b")]
