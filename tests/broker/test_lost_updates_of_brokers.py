# SPDX-License-Identifier: Apache-2.0
"""Two administrators who ask two brokers to change parts of one thing at the same time both find their part in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_values import QUOTA_AGE, QUOTA_SIZE
from penstock.core.errors import AlreadyExists, PenstockError, PreconditionFailed, TenantNotFound
from penstock.core.names import NamespaceName, TopicName
from tests.broker.cluster import several
from tests.net.harness import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

    from penstock.broker.administration.administration import Administration

NAMESPACE: Final = NamespaceName("public", "default")
PLAIN: Final = TopicName("persistent", "public", "default", "plain")
PARTITIONED: Final = TopicName("persistent", "public", "default", "partitioned")
SIZE: Final = {"policy": "producer_exception", "limitSize": 1_000}
AGE: Final = {"policy": "producer_exception", "limitTime": 60}
RATES: Final = {"publishRateInMsgs": 5}


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[list[Administration]]:
    async with several(tmp_path) as harnesses:
        made = [administration(harness.broker) for harness in harnesses]
        await made[0].topics.create(PLAIN)
        await made[0].topics.create_partitioned(PARTITIONED, 2)
        await turns()
        yield made


async def at_once(*operations: Awaitable[object]) -> list[object]:
    """The outcomes, once all brokers know of all of them."""
    outcomes = await asyncio.gather(*operations, return_exceptions=True)
    await turns()
    return [type(one) if isinstance(one, PenstockError) else one for one in outcomes]


async def test_two_quotas_of_a_namespace_are_both_kept(both: list[Administration]) -> None:
    first, second = both
    await at_once(
        first.policies.set_quota_of_namespace(NAMESPACE, QUOTA_SIZE, SIZE),
        second.policies.set_quota_of_namespace(NAMESPACE, QUOTA_AGE, AGE),
    )
    for one in both:
        assert one.policies.quotas_of_namespace(NAMESPACE).keys() == {QUOTA_SIZE, QUOTA_AGE}


@pytest.mark.parametrize("topic", [PLAIN, PARTITIONED], ids=str)
async def test_two_quotas_of_a_topic_are_both_kept(both: list[Administration], topic: TopicName) -> None:
    first, second = both
    await at_once(
        first.policies.set_quota_of_topic(topic, QUOTA_SIZE, SIZE),
        second.policies.set_quota_of_topic(topic, QUOTA_AGE, AGE),
    )
    for one in both:
        assert one.policies.quotas_of_topic(topic).keys() == {QUOTA_SIZE, QUOTA_AGE}


@pytest.mark.parametrize("topic", [PLAIN, PARTITIONED], ids=str)
async def test_properties_of_a_topic_are_all_kept(both: list[Administration], topic: TopicName) -> None:
    await at_once(*(both[n % 2].topics.update_properties(topic, {str(n): "x"}) for n in range(8)))
    for one in both:
        assert one.topics.get_properties(topic).keys() == {str(n) for n in range(8)}


async def test_a_partitioned_topic_that_grows_keeps_its_new_properties(both: list[Administration]) -> None:
    first, second = both
    await at_once(
        first.topics.update_partitioned(PARTITIONED, 3), second.topics.update_properties(PARTITIONED, {"a": "b"})
    )
    for one in both:
        assert one.topics.get_properties(PARTITIONED) == {"a": "b"}
        assert (await one.topics.get_partitioned(PARTITIONED))["partitions"] == 3


async def test_one_of_two_who_create_the_same_succeeds(both: list[Administration]) -> None:
    info = {"adminRoles": ["ann"], "allowedClusters": ["test"]}
    outcomes = await at_once(*(one.tenants.create("acme", info) for one in both))
    assert sorted(map(str, outcomes)) == sorted(map(str, [None, AlreadyExists]))
    outcomes = await at_once(*(one.namespaces.create(NamespaceName("acme", "air")) for one in both))
    assert sorted(map(str, outcomes)) == sorted(map(str, [None, AlreadyExists]))


async def test_a_tenant_is_deleted_or_gets_a_namespace(both: list[Administration]) -> None:
    first, second = both
    for number in range(6):
        tenant = f"acme-{number}"
        await at_once(first.tenants.create(tenant, {"allowedClusters": ["test"]}))
        air = NamespaceName(tenant, "air")
        pair = [first.tenants.delete(tenant), second.namespaces.create(air)]
        outcomes = await at_once(*(pair if number % 2 else reversed(pair)))
        assert outcomes.count(None) == 1
        assert {AlreadyExists, TenantNotFound} & set(outcomes)


async def test_a_group_is_deleted_or_gets_a_member(both: list[Administration]) -> None:
    first, second = both
    for number in range(6):
        group = f"gold-{number}"
        await at_once(first.resource_groups.put(group, RATES))
        pair = [first.resource_groups.delete(group), second.resource_groups.attach_namespace(NAMESPACE, group)]
        outcomes = await at_once(*(pair if number % 2 else reversed(pair)))
        assert sorted(map(str, outcomes)) == sorted(map(str, [None, PreconditionFailed]))
        await at_once(first.resource_groups.attach_namespace(NAMESPACE, None))


async def test_rates_of_a_group_are_all_kept(both: list[Administration]) -> None:
    first, second = both
    await at_once(
        first.resource_groups.put("gold", RATES), second.resource_groups.put("gold", {"dispatchRateInBytes": 7})
    )
    for one in both:
        assert one.resource_groups.get("gold")["publishRateInMsgs"] == 5
        assert one.resource_groups.get("gold")["dispatchRateInBytes"] == 7


async def test_a_name_has_partitions_or_not(both: list[Administration]) -> None:
    first, second = both
    for number in range(6):
        topic = TopicName("persistent", "public", "default", f"t-{number}")
        pair = [first.topics.create(topic), second.topics.create_partitioned(topic, 2)]
        outcomes = await at_once(*(pair if number % 2 else reversed(pair)))
        assert outcomes.count(None) == 1
