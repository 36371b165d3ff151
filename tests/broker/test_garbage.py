# SPDX-License-Identifier: Apache-2.0
"""Topics, subscriptions and connections that have ended are freed without the garbage collector.

A full collection comes once in many hours, because it stops the loop. Until then what refers to itself would stay in
memory, charged to nobody: a client that makes a topic each second, and deletes the oldest, would fill it.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.commands.session import Session
from penstock.broker.composition.administration import administration
from penstock.broker.publishing.producer import Producer
from penstock.broker.subscriptions.consumer import Consumer
from penstock.broker.subscriptions.subscription import Subscription
from penstock.broker.topics.topic import LET_GO_S, Topic
from penstock.core.names import TopicName
from tests.broker.governed import subscribe
from tests.net.harness import TOPIC, Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.net.harness import Harness

NAME = TopicName.parse(TOPIC)
KINDS = (Topic, Subscription, Producer, Consumer, Session)
PUBLISH = {"publishThrottlingRateInMsg": 1_000, "publishThrottlingRateInByte": -1}
DISPATCH = {
    "dispatchThrottlingRateInMsg": 1_000,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
RATES = {"publishRate": PUBLISH, "dispatchRate": DISPATCH, "subscriptionDispatchRate": DISPATCH}


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left(*kinds: type) -> dict[str, int]:
    """How many objects of these kinds there are, of this topic."""
    found: dict[str, int] = dict.fromkeys((kind.__name__ for kind in kinds), 0)
    for one in gc.get_objects():
        of_topic: Any = one if type(one) is Topic else getattr(one, "topic", None) if type(one) in kinds else None
        if type(one) in kinds and (type(one) is Session or (of_topic is not None and of_topic.text == TOPIC)):
            found[type(one).__name__] += 1
    return found


async def used(harness: Harness, *, limited: bool) -> None:
    """A topic with a durable and another subscription, used by three connections that have left."""
    publisher = await Client.producing(harness.port)
    for policy, value in RATES.items() if limited else ():
        await harness.broker.policies.set_topic(TOPIC, policy, value)
    consumers = [await subscribe(harness, permits=100), await subscribe(harness, "r", permits=100, durable=False)]
    publisher.publish(*[b"x"] * 10)
    await publisher.receipts(10)
    for client in (publisher, *consumers):
        await client.close()
    await asyncio.sleep(LET_GO_S + 1)


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
async def test_connections_that_are_closed_are_freed(harness: Harness, limited: bool) -> None:
    await used(harness, limited=limited)
    assert left(Session, Producer, Consumer) == {"Session": 0, "Producer": 0, "Consumer": 0}


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
async def test_a_deleted_topic_is_freed_with_its_subscriptions(harness: Harness, limited: bool) -> None:
    await used(harness, limited=limited)
    await harness.broker.topic_life.delete(NAME, force=True)
    await asyncio.sleep(LET_GO_S + 1)
    assert left(*KINDS) == {kind.__name__: 0 for kind in KINDS}


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
async def test_an_unloaded_topic_is_freed_with_its_subscriptions(harness: Harness, limited: bool) -> None:
    await used(harness, limited=limited)
    await harness.broker.topic_life.unload(NAME)
    # It is loaded again, and changes: until then the thread that stored the last change has it in its hands.
    await subscribe(harness, "another")
    await asyncio.sleep(LET_GO_S + 1)
    assert left(Topic, Subscription) == {"Topic": 1, "Subscription": 2}


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
async def test_a_deleted_subscription_is_freed(harness: Harness, limited: bool) -> None:
    await used(harness, limited=limited)
    assert left(Subscription) == {"Subscription": 1}
    await administration(harness.broker).subscriptions.delete(NAME, "s")
    await asyncio.sleep(LET_GO_S + 1)
    assert left(Subscription) == {"Subscription": 0}
