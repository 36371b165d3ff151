# SPDX-License-Identifier: Apache-2.0
"""Two administrators who change parts of one thing at the same time both find their part in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from penstock.broker.administration import namespaces, policy_admin, topic_admin
from penstock.broker.policies.policy_values import QUOTA_AGE, QUOTA_SIZE
from penstock.core.names import NamespaceName, TopicName
from tests.net.harness import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

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
        await topic_admin.create_topic(harness.broker, PLAIN)
        await topic_admin.create_partitioned(harness.broker, PARTITIONED, 2)
        yield harness.broker


async def test_two_quotas_of_a_namespace_set_at_once_are_both_kept(broker: Broker) -> None:
    await asyncio.gather(
        policy_admin.set_quota_of_namespace(broker, NAMESPACE, QUOTA_SIZE, SIZE),
        policy_admin.set_quota_of_namespace(broker, NAMESPACE, QUOTA_AGE, AGE),
    )
    assert policy_admin.quotas_of_namespace(broker, NAMESPACE).keys() == {QUOTA_SIZE, QUOTA_AGE}


@pytest.mark.parametrize("topic", TOPICS, ids=str)
async def test_two_quotas_of_a_topic_set_at_once_are_both_kept(broker: Broker, topic: TopicName) -> None:
    await asyncio.gather(
        policy_admin.set_quota_of_topic(broker, topic, QUOTA_SIZE, SIZE),
        policy_admin.set_quota_of_topic(broker, topic, QUOTA_AGE, AGE),
    )
    assert policy_admin.quotas_of_topic(broker, topic).keys() == {QUOTA_SIZE, QUOTA_AGE}


async def test_a_quota_that_is_removed_while_another_is_set_stays_removed(broker: Broker) -> None:
    await policy_admin.set_quota_of_namespace(broker, NAMESPACE, QUOTA_SIZE, SIZE)
    await asyncio.gather(
        policy_admin.set_quota_of_namespace(broker, NAMESPACE, QUOTA_SIZE, None),
        policy_admin.set_quota_of_namespace(broker, NAMESPACE, QUOTA_AGE, AGE),
    )
    assert policy_admin.quotas_of_namespace(broker, NAMESPACE).keys() == {QUOTA_AGE}


@pytest.mark.parametrize("topic", TOPICS, ids=str)
async def test_rates_of_two_subscriptions_set_at_once_are_both_kept(broker: Broker, topic: TopicName) -> None:
    await asyncio.gather(
        *(policy_admin.set_rate_of_subscription(broker, topic, subscription, RATE) for subscription in ("a", "b"))
    )
    assert policy_admin.rate_of_subscription(broker, topic, "a") is not None
    assert policy_admin.rate_of_subscription(broker, topic, "b") is not None


@pytest.mark.parametrize("topic", TOPICS, ids=str)
async def test_properties_attached_to_a_topic_at_once_are_all_kept(broker: Broker, topic: TopicName) -> None:
    await asyncio.gather(*(topic_admin.update_properties(broker, topic, {str(n): "x"}) for n in range(5)))
    await asyncio.gather(
        topic_admin.remove_property(broker, topic, "0"), topic_admin.update_properties(broker, topic, {"1": "y"})
    )
    assert topic_admin.get_properties(broker, topic) == {"1": "y", "2": "x", "3": "x", "4": "x"}


async def test_properties_attached_to_a_namespace_at_once_are_all_kept(broker: Broker) -> None:
    await asyncio.gather(
        *(policy_admin.change_properties_of_namespace(broker, NAMESPACE, {str(n): "x"}, remove=[]) for n in range(5))
    )
    assert policy_admin.properties_of_namespace(broker, NAMESPACE).keys() == set("01234")


async def test_a_namespace_deleted_meanwhile_is_not_made_again_by_a_change(broker: Broker) -> None:
    gone = NamespaceName("public", "gone")
    await namespaces.create_namespace(broker, gone)
    results = await asyncio.gather(
        namespaces.delete_namespace(broker, gone, force=False),
        policy_admin.set_quota_of_namespace(broker, gone, QUOTA_SIZE, SIZE),
        return_exceptions=True,
    )
    assert results[0] is None
    assert str(gone) not in broker.catalog.namespaces()
