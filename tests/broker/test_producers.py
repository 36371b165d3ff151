# SPDX-License-Identifier: Apache-2.0
"""PRODUCER, CLOSE_PRODUCER, and what may be wrong with single SENDs, with a broker on the test's own loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.checksum import seal
from penstock.core.errors import WireCode
from penstock.testing.client import Type, frame
from penstock.wire.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.net.harness import Client, Harness, topic_of, until

if TYPE_CHECKING:
    from penstock.broker.publishing.producer import Producer

TOPIC = "persistent://public/default/t"
ALL_ONES = 2**64 - 1


async def ask(client: Client, **fields: Any) -> BaseCommand:  # noqa: ANN401
    """Ask for a producer; the answer, whatever it is."""
    client.requests += 1
    client.write(frame(Type.PRODUCER, request_id=client.requests, **{"topic": TOPIC, "producer_id": 0, **fields}))
    return await client.read()


async def refused(client: Client, **fields: Any) -> tuple[int, str]:  # noqa: ANN401
    answer = await ask(client, **fields)
    assert answer.type == Type.ERROR, answer
    return int(answer.error.error), answer.error.message


async def set_policy(harness: Harness, key: str, value: object) -> None:
    await harness.broker.policies.set_namespace("public/default", key, value)


def producer_of(harness: Harness) -> Producer:
    (producer,) = topic_of(harness).producers.values()
    return producer


def sending(sequence_id: int, *, highest: int = 0, payload: bytes = b"x", chunk: bool = False, **said: Any) -> bytes:  # noqa: ANN401
    """A SEND of producer 0."""
    keys = said.pop("encryption_keys", ())
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1_000, **said)
    for key in keys:
        metadata.encryption_keys.add(key=key, value=b"v")
    encoded = metadata.SerializeToString()
    stored = seal(len(encoded).to_bytes(4, "big") + encoded + payload)
    command = BaseCommand(type=Type.SEND)
    command.send.producer_id, command.send.sequence_id = 0, sequence_id
    if highest:
        command.send.highest_sequence_id = highest
    if chunk:
        command.send.is_chunk = True
    data = command.SerializeToString()
    return (4 + len(data) + len(stored)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + stored


async def outcome(client: Client) -> tuple[int, int]:
    """Of a SEND: its sequence id, and -1 for a receipt, else the error."""
    answer = await client.read()
    if answer.type == Type.SEND_RECEIPT:
        return answer.send_receipt.sequence_id, -1
    assert answer.type == Type.SEND_ERROR, answer
    return answer.send_error.sequence_id, int(answer.send_error.error)


# ----------------------------------------------------------------------------------------------------------- coming


async def test_what_a_producer_says_of_itself_is_kept(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    command = BaseCommand(type=Type.PRODUCER)
    command.producer.topic, command.producer.producer_id, command.producer.request_id = TOPIC, 0, 1
    command.producer.producer_name = "p"
    command.producer.encrypted = True
    command.producer.metadata.add(key="version", value="7")
    data = command.SerializeToString()
    client.write((4 + len(data)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)
    await client.expect(Type.PRODUCER_SUCCESS)
    producer = producer_of(harness)
    assert (producer.name, producer.encrypted, producer.metadata) == ("p", True, {"version": "7"})
    assert producer.connected_at_ms == harness.clock.wall_ms()
    assert producer.address == harness.connection_of(client).peer


async def test_a_terminated_topic_takes_no_producers(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    topic_of(harness).terminated = True
    assert (await refused(client, producer_id=1))[0] == WireCode.TOPIC_TERMINATED_ERROR


async def test_the_initial_subscription_is_there_before_the_producer_and_begins_with_the_first_entry(
    harness: Harness,
) -> None:
    client = await Client.producing(harness.port)
    await client.published(b"before")
    answer = await ask(client, producer_id=1, initial_subscription_name="dead")
    assert answer.type == Type.PRODUCER_SUCCESS
    subscription = topic_of(harness).subscriptions["dead"]
    assert (subscription.durable, subscription.backlog) == (True, 1)


async def test_no_initial_subscription_where_subscriptions_are_not_made_by_themselves(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    await set_policy(harness, "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    code, text = await refused(client, initial_subscription_name="dead")
    assert (code, "auto subscription creation is not allowed" in text) == (WireCode.NOT_ALLOWED_ERROR, True)


async def test_a_non_persistent_topic_has_no_initial_subscription(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    name = TOPIC.replace("persistent", "non-persistent")
    assert (await ask(client, topic=name, initial_subscription_name="dead")).type == Type.PRODUCER_SUCCESS
    assert not topic_of(harness, name).subscriptions


async def test_where_encryption_is_required_others_are_refused_and_turned_away(harness: Harness) -> None:
    plain = await Client.producing(harness.port)
    await set_policy(harness, "encryptionRequired", value=True)
    closed = (await plain.expect(Type.CLOSE_PRODUCER)).close_producer
    assert (closed.producer_id, closed.request_id) == (0, ALL_ONES)
    code, text = await refused(plain)
    assert (code, text) == (WireCode.METADATA_ERROR, f"Encryption is required in '{TOPIC}'")
    assert (await ask(plain, encrypted=True)).type == Type.PRODUCER_SUCCESS


async def test_a_client_that_breaks_two_rules_is_told_of_the_first(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await set_policy(harness, "maxProducersPerTopic", 1)
    await set_policy(harness, "encryptionRequired", value=True)
    await client.expect(Type.CLOSE_PRODUCER)
    assert (await refused(client, producer_access_mode=1))[0] == WireCode.METADATA_ERROR
    assert (await ask(client, encrypted=True)).type == Type.PRODUCER_SUCCESS
    assert (await refused(client, producer_id=1, producer_access_mode=1))[0] == WireCode.PRODUCER_BUSY


async def test_a_producer_that_is_closed_while_it_comes_does_not_come(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    client.write(
        frame(Type.PRODUCER, request_id=1, topic=TOPIC, producer_id=0)
        + frame(Type.CLOSE_PRODUCER, request_id=2, producer_id=0)
    )
    assert (await client.expect(Type.SUCCESS)).success.request_id == 2
    assert (await ask(client, producer_id=0, producer_name="p")).producer_success.producer_name == "p"
    assert set(topic_of(harness).producers) == {"p"}


async def test_a_repeated_producer_is_answered_again(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    first = (await ask(client)).producer_success
    again = (await ask(client)).producer_success
    assert first.producer_name == again.producer_name
    assert len(topic_of(harness).producers) == 1


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
async def test_an_id_that_is_asked_for_twice_in_one_breath_is_one_producer_and_one_consumer(
    harness: Harness, topic: str
) -> None:
    first = await Client.producing(harness.port, topic=topic)  # The topic is there: nothing has to be waited for.
    await first.close()
    client = await Client.connected(harness.port)
    said = {"topic": topic, "subscription": "s", "subType": 1}
    client.write(
        b"".join(frame(Type.PRODUCER, request_id=i, topic=topic, producer_id=7) for i in range(2))
        + b"".join(frame(Type.SUBSCRIBE, request_id=2 + i, consumer_id=7, **said) for i in range(2))
    )
    answers = [await client.read() for _ in range(4)]
    assert {answer.type for answer in answers} <= {Type.PRODUCER_SUCCESS, Type.SUCCESS, Type.ERROR}
    found = harness.broker.topics.get(topic)
    assert found is not None
    assert len(found.producers) == 1
    assert len(found.subscriptions["s"].consumers) == 1
    client.abort()
    await until(lambda: not harness.broker.sessions)
    assert not found.producers
    assert not found.subscriptions["s"].consumers if "s" in found.subscriptions else True


async def test_a_client_that_holds_a_topic_and_waits_for_it_too_leaves_it_when_it_goes(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    for producer_id, mode in ((0, 1), (1, 2), (2, 2)):
        await client.request(
            Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=producer_id, producer_access_mode=mode
        )
    waiting = await Client.connected(harness.port)
    said = {"topic": TOPIC, "producer_id": 0, "producer_access_mode": 2}
    assert not (await waiting.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, **said)).producer_success.producer_ready
    client.abort()
    assert (await waiting.expect(Type.PRODUCER_SUCCESS)).producer_success.producer_ready
    await until(lambda: len(harness.broker.sessions) == 1)


async def test_closing_answers_behind_the_last_receipt(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    harness.disk.hold()
    client.publish(b"x")
    client.write(frame(Type.CLOSE_PRODUCER, request_id=9, producer_id=0) + sending(5))
    await until(lambda: not topic_of(harness).producers)
    harness.disk.release()
    assert await client.receipts(1) == [0]
    assert (await client.expect(Type.SUCCESS)).success.request_id == 9  # and what came after was swallowed


# ------------------------------------------------------------------------------------------------------ single SENDs


async def test_most_producers_are_not_looked_at(harness: Harness) -> None:
    await Client.producing(harness.port)
    assert not producer_of(harness).careful


async def test_a_message_above_the_topics_bound_is_refused_alone_and_chunks_are_not(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "maxMessageSize", 100)
    assert producer_of(harness).careful
    large = bytes(100)
    client.write(sending(0) + sending(1, payload=large) + sending(2) + sending(3, payload=large, chunk=True))
    assert [await outcome(client) for _ in range(4)] == [(0, -1), (1, WireCode.NOT_ALLOWED_ERROR), (2, -1), (3, -1)]
    await harness.broker.policies.set_topic(TOPIC, "maxMessageSize", None)
    assert not producer_of(harness).careful


async def test_a_producer_that_says_it_encrypts_must(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    await ask(client, encrypted=True)
    client.write(sending(0, encryption_keys=["k"]) + sending(1) + sending(2, encryption_keys=["k"]))
    assert [await outcome(client) for _ in range(3)] == [(0, -1), (1, WireCode.METADATA_ERROR), (2, -1)]


async def test_a_message_may_not_be_delayed_longer_than_the_policy_says(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    policy = {"active": True, "tickTime": 1_000, "maxDeliveryDelayInMillis": 5_000}
    await harness.broker.policies.set_topic(TOPIC, "delayedDelivery", policy)
    client.write(sending(0) + sending(1, deliver_at_time=6_000) + sending(2, deliver_at_time=6_001))
    assert [await outcome(client) for _ in range(3)] == [(0, -1), (1, -1), (2, WireCode.NOT_ALLOWED_ERROR)]


async def test_what_is_sent_to_a_topic_that_is_terminated_is_refused_as_such(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    client.write(sending(0))
    assert await outcome(client) == (0, -1)
    topic_of(harness).terminated = True
    client.write(sending(1) + sending(2))
    assert [await outcome(client) for _ in range(2)] == [(n, WireCode.TOPIC_TERMINATED_ERROR) for n in (1, 2)]
    assert topic_of(harness).next_entry_id == 1


async def test_a_batch_that_ends_before_it_begins_is_refused(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    client.write(sending(5, highest=4))
    assert await outcome(client) == (5, WireCode.METADATA_ERROR)


async def test_a_non_persistent_topic_answers_every_message(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    name = TOPIC.replace("persistent", "non-persistent")
    await set_policy(harness, "deduplication", value=True)
    answer = await ask(client, topic=name)
    assert answer.producer_success.last_sequence_id == -1
    client.write(sending(0) + sending(0) + sending(1))
    assert [await outcome(client) for _ in range(3)] == [(0, -1), (0, -1), (1, -1)]
