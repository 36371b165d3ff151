# SPDX-License-Identifier: Apache-2.0
"""Two administrators who change parts of one thing at the same time both find their part in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import penstock.broker
from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_values import QUOTA_AGE, QUOTA_SIZE
from penstock.core.names import NamespaceName, TopicName
from tests.net.harness import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.broker.broker import Broker

NAMESPACE: Final = NamespaceName("public", "default")
PLAIN: Final = TopicName("persistent", "public", "default", "plain")
PARTITIONED: Final = TopicName("persistent", "public", "default", "partitioned")
TOPICS: Final = (PLAIN, PARTITIONED)
SIZE: Final = {"policy": "producer_exception", "limitSize": 1_000}
AGE: Final = {"policy": "producer_exception", "limitTime": 60}
RATE: Final = {"dispatchThrottlingRateInMsg": 10}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path) as harness:
        await administration(harness.broker).topics.create(PLAIN)
        await administration(harness.broker).topics.create_partitioned(PARTITIONED, 2)
        yield harness.broker


async def test_two_quotas_of_a_namespace_set_at_once_are_both_kept(broker: Broker) -> None:
    await asyncio.gather(
        administration(broker).policies.set_quota_of_namespace(NAMESPACE, QUOTA_SIZE, SIZE),
        administration(broker).policies.set_quota_of_namespace(NAMESPACE, QUOTA_AGE, AGE),
    )
    assert administration(broker).policies.quotas_of_namespace(NAMESPACE).keys() == {QUOTA_SIZE, QUOTA_AGE}


@pytest.mark.parametrize("topic", TOPICS, ids=str)
async def test_two_quotas_of_a_topic_set_at_once_are_both_kept(broker: Broker, topic: TopicName) -> None:
    await asyncio.gather(
        administration(broker).policies.set_quota_of_topic(topic, QUOTA_SIZE, SIZE),
        administration(broker).policies.set_quota_of_topic(topic, QUOTA_AGE, AGE),
    )
    assert administration(broker).policies.quotas_of_topic(topic).keys() == {QUOTA_SIZE, QUOTA_AGE}


async def test_a_quota_that_is_removed_while_another_is_set_stays_removed(broker: Broker) -> None:
    await administration(broker).policies.set_quota_of_namespace(NAMESPACE, QUOTA_SIZE, SIZE)
    await asyncio.gather(
        administration(broker).policies.set_quota_of_namespace(NAMESPACE, QUOTA_SIZE, None),
        administration(broker).policies.set_quota_of_namespace(NAMESPACE, QUOTA_AGE, AGE),
    )
    assert administration(broker).policies.quotas_of_namespace(NAMESPACE).keys() == {QUOTA_AGE}


@pytest.mark.parametrize("topic", TOPICS, ids=str)
async def test_rates_of_two_subscriptions_set_at_once_are_both_kept(broker: Broker, topic: TopicName) -> None:
    await asyncio.gather(
        *(
            administration(broker).policies.set_rate_of_subscription(topic, subscription, RATE)
            for subscription in ("a", "b")
        )
    )
    assert administration(broker).policies.rate_of_subscription(topic, "a") is not None
    assert administration(broker).policies.rate_of_subscription(topic, "b") is not None


@pytest.mark.parametrize("topic", TOPICS, ids=str)
async def test_properties_attached_to_a_topic_at_once_are_all_kept(broker: Broker, topic: TopicName) -> None:
    await asyncio.gather(*(administration(broker).topics.update_properties(topic, {str(n): "x"}) for n in range(5)))
    await asyncio.gather(
        administration(broker).topics.remove_property(topic, "0"),
        administration(broker).topics.update_properties(topic, {"1": "y"}),
    )
    assert administration(broker).topics.get_properties(topic) == {"1": "y", "2": "x", "3": "x", "4": "x"}


async def test_properties_attached_to_a_namespace_at_once_are_all_kept(broker: Broker) -> None:
    await asyncio.gather(
        *(
            administration(broker).policies.change_properties_of_namespace(NAMESPACE, {str(n): "x"}, remove=[])
            for n in range(5)
        )
    )
    assert administration(broker).policies.properties_of_namespace(NAMESPACE).keys() == set("01234")


async def test_a_namespace_deleted_meanwhile_is_not_made_again_by_a_change(broker: Broker) -> None:
    gone = NamespaceName("public", "gone")
    await administration(broker).namespaces.create(gone)
    results = await asyncio.gather(
        administration(broker).namespaces.delete(gone, force=False),
        administration(broker).policies.set_quota_of_namespace(gone, QUOTA_SIZE, SIZE),
        return_exceptions=True,
    )
    assert results[0] is None
    assert str(gone) not in broker.catalog.namespaces()


def test_policies_are_stored_in_one_place_alone() -> None:
    """Whoever stored them elsewhere could read them before the lock, and undo what another one stores meanwhile."""
    stores = {
        # A namespace is also put when it is made.
        "put_namespace": ["administration/namespaces.py", "policies/policies.py", "publishing/quota_sharing.py"],
        "set_topic_policies": ["policies/policies.py"],
    }
    source = Path(penstock.broker.__file__).parent
    for method, places in stores.items():
        found = [str(file.relative_to(source)) for file in source.rglob("*.py") if f".{method}" in file.read_text()]
        assert sorted(found) == places
