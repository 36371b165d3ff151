# SPDX-License-Identifier: Apache-2.0
"""Commands that hold more than they may: what their clients hear, and what they cost the broker."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.checksum import seal
from penstock.core.errors import WireCode
from penstock.core.units import KIB, MIB
from penstock.testing.client import RawClient, Type, entry, frame, send
from penstock.testing.process import BrokerProcess
from penstock.testing.tokens import SECRET, data_url
from penstock.wire import codec
from penstock.wire.pulsar_pb2 import MessageMetadata, Schema
from tests.net.harness import TOPIC, Client, Harness, running

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = "x" * (5 * MIB - 512)
REQUEST = 7

# A command, its fields, and the type and field of its answer that say why it is refused.
REFUSED: list[tuple[int, dict[str, Any], int, str]] = [
    (Type.LOOKUP, {"topic": LONG}, Type.LOOKUP_RESPONSE, "topic"),
    (Type.PARTITIONED_METADATA, {"topic": LONG}, Type.PARTITIONED_METADATA_RESPONSE, "topic"),
    (Type.PRODUCER, {"topic": TOPIC, "producer_id": 0, "producer_name": LONG}, Type.ERROR, "producer_name"),
    (Type.PRODUCER, {"topic": TOPIC, "producer_id": 0, "metadata": {"a": LONG}}, Type.ERROR, "metadata"),
    (Type.PRODUCER, {"topic": TOPIC, "producer_id": 0, "schema": LONG}, Type.ERROR, "schema.schema_data"),
    (
        Type.SUBSCRIBE,
        {"topic": TOPIC, "subscription": "s", "subType": 1, "consumer_id": 0, "consumer_name": LONG},
        Type.ERROR,
        "consumer_name",
    ),
    (
        Type.SUBSCRIBE,
        {"topic": TOPIC, "subscription": "s", "subType": 1, "consumer_id": 0, "subscription_properties": {"a": LONG}},
        Type.ERROR,
        "subscription_properties",
    ),
    (Type.GET_SCHEMA, {"topic": LONG}, Type.GET_SCHEMA_RESPONSE, "topic"),
    (
        Type.GET_OR_CREATE_SCHEMA,
        {"topic": TOPIC, "schema": LONG},
        Type.GET_OR_CREATE_SCHEMA_RESPONSE,
        "schema.schema_data",
    ),
    (
        Type.GET_TOPICS_OF_NAMESPACE,
        {"namespace": "public/default", "topics_pattern": LONG},
        Type.ERROR,
        "topics_pattern",
    ),
    (
        Type.WATCH_TOPIC_LIST,
        {"namespace": "public/default", "watcher_id": 0, "topics_pattern": LONG},
        Type.ERROR,
        "topics_pattern",
    ),
]


def command(kind: int, fields: dict[str, Any]) -> bytes:
    """A frame with a request id; pairs are dictionaries, a schema is its definition."""
    fields = {
        name: [{"key": key, "value": text} for key, text in value.items()] if isinstance(value, dict) else value
        for name, value in fields.items()
    }
    if "schema" in fields:
        fields["schema"] = Schema(name="s", schema_data=fields["schema"].encode(), type=Schema.Json)
    return frame(kind, request_id=REQUEST, **fields)


@pytest.mark.parametrize(
    ("kind", "fields", "answer", "named"), REFUSED, ids=[f"{Type.Name(row[0])}.{row[3]}" for row in REFUSED]
)
async def test_a_field_that_is_too_long_is_refused_by_name_and_the_connection_goes_on(
    tmp_path: Path, kind: int, fields: dict[str, Any], answer: int, named: str
) -> None:
    async with running(tmp_path, frame_bytes_max=6 * MIB) as broker:
        client = await Client.connected(broker.port)
        client.write(command(kind, fields))
        refused = await client.expect(answer)
        body = codec.body_in(refused)
        code = body.error_code if "error_code" in body.DESCRIPTOR.fields_by_name else body.error
        text = body.error_message if "error_message" in body.DESCRIPTOR.fields_by_name else body.message
        assert (body.request_id, WireCode(code)) == (REQUEST, WireCode.NOT_ALLOWED_ERROR)
        assert text.startswith(f"{Type.Name(kind)} is refused: {named} has 5,24")
        assert " are allowed" in text
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)


async def test_a_connect_that_is_too_long_is_answered_and_its_connection_closed(tmp_path: Path) -> None:
    async with running(tmp_path, frame_bytes_max=6 * MIB) as broker:
        client = await Client.open(broker.port)
        client.write(frame(Type.CONNECT, client_version="v" * 2 * KIB))
        refused = (await client.expect(Type.ERROR)).error
        assert WireCode(refused.error) is WireCode.NOT_ALLOWED_ERROR
        assert refused.message == "CONNECT is refused: client_version has 2,048 bytes, and 1,024 are allowed"
        await client.closed()


async def test_a_command_without_a_request_id_that_is_too_long_ends_its_connection(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    client.write(frame(Type.AUTH_RESPONSE, client_version="v" * 2 * KIB))
    await client.closed()


# ------------------------------------------------------------------------------------------------------- what it costs


@pytest.fixture
def guarded_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A small broker that lets nobody in without a token."""
    config = tmp_path / "broker.conf"
    config.write_text(
        "authenticationEnabled=true\nauthenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\nmemoryLimitMB=256\n"
        f"tokenSecretKey={data_url(SECRET)}\n"
    )
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as process:
        yield process


def resident_bytes(process: BrokerProcess) -> int:
    """The broker's resident memory."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("VmRSS"))


def test_connects_of_5_mb_from_clients_that_are_not_let_in_cost_nothing(guarded_broker: BrokerProcess) -> None:
    before = resident_bytes(guarded_broker)
    hello = frame(Type.CONNECT, client_version="v", auth_method_name="token", auth_data=b"x" * (5 * MIB - 64))
    clients = [RawClient(guarded_broker.port, connect=False) for _ in range(300)]
    for client in clients:
        with contextlib.suppress(OSError):  # It was closed at its first four bytes.
            client.write(hello[: 256 * KIB])
    assert all(client.is_closed() for client in clients)
    assert resident_bytes(guarded_broker) - before < 16 * MIB
    for client in clients:
        client.close()


def test_200_names_of_5_mb_cost_nothing_that_lasts(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", ["--memory-limit-mb", "256"]) as process:
        before = resident_bytes(process)
        clients = [RawClient(process.port) for _ in range(50)]
        for number, client in enumerate(clients):
            for kind, fields, _, _ in REFUSED[2:5]:
                client.write(command(kind, {**fields, "topic": f"{TOPIC}-{number}"}))
                assert WireCode(client.next(Type.ERROR).command.error.error) is WireCode.NOT_ALLOWED_ERROR
        assert resident_bytes(process) - before < 64 * MIB
        for client in clients:
            client.close()


# --------------------------------------------------------------------------------------------------- numbers of a SEND


def batch(sequence_id: int, stored: bytes) -> bytes:
    """A SEND whose command says that its entry holds as many messages as the field can say."""
    return send(0, sequence_id, stored, num_messages=2**31 - 1)


async def test_an_entry_that_says_it_holds_two_thousand_million_messages_is_refused_and_starves_nobody(
    harness: Harness,
) -> None:
    client = await Client.producing(harness.port)
    lie = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2**31 - 1)
    about = lie.SerializeToString()
    client.write(batch(0, seal(struct.pack(">I", len(about)) + about + b"x")))
    refused = (await client.expect(Type.SEND_ERROR)).send_error
    assert WireCode(refused.error) is WireCode.NOT_ALLOWED_ERROR
    assert refused.message.startswith("num_messages_in_batch is 2,147,483,647: at least 6 bytes each do not fit")
    client.write(batch(1, entry(b"x", sequence_id=1)))  # no batch at all, by its metadata
    assert await client.receipts(1) == [1]
    (topic,) = harness.broker.topics.loaded()
    assert (topic.entries_in, topic.messages_in) == (1, 1)

    consumer = await Client.consuming(harness.port, permits=1)
    assert (await consumer.message()).endswith(b"x")
    assert [one.permits for one in topic.subscriptions["s"].consumers] == [0]


async def test_permits_have_a_largest_number(harness: Harness) -> None:
    consumer = await Client.consuming(harness.port, permits=2**32 - 1)
    for _ in range(3):
        consumer.write(frame(Type.FLOW, consumer_id=0, messagePermits=2**32 - 1))
    consumer.write(frame(Type.PING))
    await consumer.expect(Type.PONG)
    (topic,) = harness.broker.topics.loaded()
    assert [one.permits for one in topic.subscriptions["s"].consumers] == [2**31 - 1]
