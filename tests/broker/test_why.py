# SPDX-License-Identifier: Apache-2.0
"""What slows a tenant, a namespace, a topic or a producer, with its numbers and what would lift it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import NotFound
from penstock.core.names import NamespaceName, TopicName
from penstock.core.units import KIB
from penstock.governance.holds import HoldKind
from penstock.governance.muting import MUTES
from penstock.testing.client import Type, frame
from tests.broker.governed import OTHER, configure
from tests.broker.test_resource_groups import attach, consumer, harness, passes, put
from tests.net.harness import TOPIC, Client, topic_of, turns, until

if TYPE_CHECKING:
    from penstock.broker.stats.why import Why
    from tests.net.harness import Harness

__all__ = ["harness"]


def why(harness: Harness) -> Why:
    return administration(harness.broker).why


async def findings(harness: Harness, topic: str = TOPIC) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await why(harness).of_topic(TopicName.parse(topic)))["findings"]
    return found


async def test_nothing_slows_a_topic_without_limits(harness: Harness) -> None:
    await Client.producing(harness.port)
    assert await why(harness).counts() == {}
    found = await why(harness).of_topic(TopicName.parse(TOPIC))
    assert found == {
        "of": f"topic {TOPIC}",
        "slowed": False,
        "producers": 1,
        "subscriptions": 0,
        "findings": [],
        "more": False,
        "unanswered": [],
    }


async def test_a_producer_that_waits_for_its_group_is_explained_at_every_level(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    client = await Client.connected(harness.port)
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0, producer_name="loud")
    client.publish(*[bytes(100)] * 200)
    await passes(3_000)
    explain = why(harness)
    answers = [
        await explain.of_tenant("public"),
        await explain.of_namespace(NamespaceName.parse("public/default")),
        await explain.of_topic(TopicName.parse(TOPIC)),
        await explain.of_producer("loud"),
    ]
    for answer in answers:
        (found,) = answer["findings"]
        assert found["what"].startswith(f"producer loud of {TOPIC} at ")
        assert (found["limit"], found["reason"]) == ("publish quota of resource group gold", "group-quota")
        assert 2_900 <= found["forMs"] <= 3_100
        numbers = found["numbers"]
        assert (numbers["quota_messages_per_s"], numbers["share_messages_per_s"]) == (10, 10)
        assert numbers["held_messages"] == 200 - topic_of(harness).entries_in
        assert "publishRateInMsgs" in found["liftedBy"]
    assert (await explain.of_tenant("shop"))["findings"] == []


async def test_a_rate_of_another_topic_on_the_same_connection_is_named(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=OTHER, producer_id=1)
    rate = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
    await harness.broker.policies.set_topic(TOPIC, "publishRate", rate)
    client.publish(*[bytes(64 * KIB)] * (harness.memory.size // 8 // (64 * KIB) + 20))
    await until(harness.muted)
    (found,) = await findings(harness, OTHER)
    limit = f"publish rate of {TOPIC}: its connection holds as much of it as it may, and is not read"
    assert (found["limit"], found["reason"]) == (limit, "publish-rate")
    assert found["numbers"]["messages_per_s"] == 10
    assert found["numbers"]["messages_left"] <= 0
    assert "raise publishRate" in found["liftedBy"]


async def test_a_subscription_that_waits_for_its_group_or_its_rate_is_explained(harness: Harness) -> None:
    await put(harness, dispatchRateInMsgs=10)
    await attach(harness)
    await consumer(harness, TOPIC, 500)
    await passes(1_000)
    (found,) = await findings(harness)
    assert found["what"] == f"subscription s of {TOPIC}"
    assert (found["limit"], found["reason"]) == ("dispatch quota of resource group gold", "group-quota")
    await attach(harness, None)
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 5}
    await harness.broker.policies.set_topic(TOPIC, "dispatchRate", rate)
    await consumer(harness, OTHER, 500)
    await harness.broker.policies.set_topic(OTHER, "dispatchRate", rate)
    await harness.broker.policies.set_topic(OTHER, "dispatchRate", None)
    assert await findings(harness, OTHER) == []


async def test_a_dispatch_rate_is_explained(harness: Harness) -> None:
    rate = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 2}
    await harness.broker.policies.set_namespace("public/default", "dispatchRate", rate)
    await consumer(harness, TOPIC, 100)
    await turns()
    (found,) = await findings(harness)
    assert (found["limit"], found["reason"]) == ("dispatch rate of the topic", "dispatch-rate")
    assert found["numbers"]["messages_per_period"] == 5
    assert found["numbers"]["period_s"] == 2
    assert "raise dispatchRate" in found["liftedBy"]


async def test_a_backlog_quota_that_would_refuse_a_producer_slows_nobody_who_publishes(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await client.request(
        Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=0, initialPosition=1
    )
    client.publish(*[bytes(100)] * 10)
    await until(lambda: topic_of(harness).last_entry_id == 9)
    quota = {"limitSize": 50, "policy": "producer_request_hold"}
    await harness.broker.policies.set_namespace_quota("public/default", "destination_storage", quota)
    found = (await findings(harness))[-1]
    assert (found["reason"], found["effect"]) == ("would-refuse-producers", "would-refuse")
    assert found["numbers"]["backlog_bytes_max"] == 50
    assert found["numbers"]["backlog_bytes"] > 1_000


async def test_unacknowledged_messages_are_explained(harness: Harness) -> None:
    configure(harness, max_unacked_messages_per_subscription=10)
    producer = await Client.producing(harness.port)
    producer.publish(*[b""] * 50)
    await producer.receipts(50)
    await Client.consuming(harness.port)
    await until(lambda: topic_of(harness).subscriptions["s"].blocked)
    assert await findings(harness) == [], "no more messages wait"
    producer.publish(b"", first=50)
    await producer.receipts(1)
    await turns()
    found = (await findings(harness))[0]
    assert found["reason"] == "unacked-messages"
    assert found["numbers"]["unacked_max"] == 10


@pytest.mark.parametrize("reason", MUTES)
async def test_every_reason_of_muting_has_a_limit_and_a_remedy(harness: Harness, reason: HoldKind) -> None:
    client = await Client.producing(harness.port)
    harness.connection_of(client).mute(reason)
    found = (await findings(harness))[-1]
    assert found["limit"]
    assert found["liftedBy"]
    assert found["reason"] == reason.value
    assert found["forMs"] is not None


async def test_an_answer_has_at_most_two_hundred_findings(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    for producer_id in range(210):
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=producer_id)
    harness.connection_of(client).mute(HoldKind.STORAGE)
    found = await why(harness).of_tenant("public")
    assert (len(found["findings"]), found["more"]) == (200, True)


async def test_what_does_not_exist_is_not_found(harness: Harness) -> None:
    explain = why(harness)
    with pytest.raises(NotFound):
        await explain.of_producer("nobody")
    with pytest.raises(Exception, match="not found"):
        await explain.of_topic(TopicName.parse(OTHER))
    client = await Client.connected(harness.port)
    client.write(frame(Type.PING))
