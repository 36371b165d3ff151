# SPDX-License-Identifier: Apache-2.0
"""Administrators who get in each other's way, by seed: whatever they do at the same time, what is left fits together.

Why: each operation is a few changes of the catalog with waits in between. Which of them may come between which others
is more than anybody can list, so all are thrown together, some given up half-way, and only the outcome is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.broker.topics.partitioned import KIND as PARTITIONED
from penstock.core.errors import PenstockError
from penstock.core.names import NamespaceName, TopicName
from penstock.storage.topic_counts import CREATING
from tests.net.harness import running, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from penstock.broker.broker import Broker

INFO = {"adminRoles": ["root"], "allowedClusters": ["test"]}
SEEDS = range(int(os.environ.get("PENSTOCK_SIM_SEEDS", "20")))  # `make sim` has more
ONE = os.environ.get("PENSTOCK_SIM_SEED")
OPERATIONS = 120  # of each administrator
TOPICS_MAX = 6  # of a namespace, in every other story
ADMINISTRATORS = 10
HUNG_S = 15.0


def operations(broker: Broker, rng: random.Random) -> list[Callable[[], Awaitable[object]]]:
    """What an administrator may do next, all of it to a few names."""
    namespace = NamespaceName(rng.choice("ab"), rng.choice("xy"))
    topic = TopicName("persistent", namespace.tenant, namespace.namespace, rng.choice("pq"))
    partition = topic.of_partition(rng.randrange(4))
    either, force, few = rng.choice((topic, partition)), rng.random() < 0.5, rng.randrange(1, 4)

    async def unload() -> None:
        await administration(broker).namespaces.unload(namespace)

    return [
        lambda: administration(broker).tenants.create(namespace.tenant, INFO),
        lambda: administration(broker).tenants.delete(namespace.tenant, force=force),
        lambda: administration(broker).namespaces.create(namespace),
        lambda: administration(broker).namespaces.create(namespace),
        lambda: administration(broker).namespaces.delete(namespace, force=force),
        lambda: administration(broker).topics.create_partitioned(topic, few),
        lambda: administration(broker).topics.create_partitioned(topic, few),
        lambda: administration(broker).topics.update_partitioned(topic, few + 1),
        lambda: administration(broker).topics.create_missed_partitions(topic),
        lambda: administration(broker).topics.delete_partitioned(topic, force=force),
        lambda: broker.partitions.for_client(topic, create=True),
        lambda: broker.topics.get_or_create(either, create=True),
        lambda: broker.topics.get_or_create(partition, create=True),
        lambda: administration(broker).topics.create(topic),
        lambda: administration(broker).topics.delete(either, force=force),
        lambda: administration(broker).subscriptions.create(topic, "s"),
        lambda: administration(broker).subscriptions.delete_everywhere(namespace, "s"),
        lambda: broker.permissions.grant_topic(either, "r", ["consume"]),
        lambda: broker.permissions.revoke_topic(either, "r"),
        lambda: broker.policies.set_topic(either, "maxConsumers", few),
        lambda: administration(broker).stats.of_topic(either),
        lambda: administration(broker).partitioned_stats.of_topic(topic),
        unload,
    ]


async def administer(broker: Broker, rng: random.Random) -> None:
    """Do one thing after another; now and then give one up, as the admin port does when it takes too long."""
    for _ in range(OPERATIONS):
        task: asyncio.Future[Any] = asyncio.ensure_future(_carried_out(rng.choice(operations(broker, rng))))
        if rng.random() < 0.2:
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(0)
            task.cancel()
        async with asyncio.timeout(HUNG_S):
            await asyncio.wait((task,))
        if not task.cancelled():
            await task  # An error that is not one of ours fails the test.


async def _carried_out(operation: Callable[[], Awaitable[object]]) -> None:
    with contextlib.suppress(PenstockError):  # Somebody else was faster.
        await operation()


def misfits(broker: Broker) -> list[object]:
    """What does not fit together."""
    catalog, found = broker.catalog, list[object]()
    names = {record.name for record in catalog.topics()}
    topics_max = broker.limits.policies.max_topics_per_namespace
    counts = Counter(name.rpartition("/")[0] for name in names)
    found += [("too many topics", one) for one, count in counts.items() if 0 < topics_max < count]
    found += [("places kept", name) for name, one in catalog.documents(PARTITIONED).items() if CREATING in one]
    for name in names | set(catalog.documents(PARTITIONED)):
        topic = TopicName.parse(name)
        if str(topic.namespace_name) not in catalog.namespaces():
            found.append(("its namespace is gone", name))
        if topic.partition >= broker.partitions.count(topic.parent):
            found.append(("a partition too many", name))
        if name in names and broker.partitions.count(topic):
            found.append(("a topic and a partitioned topic", name))
    found += [("its tenant is gone", one) for one in catalog.namespaces() if one.split("/")[0] not in catalog.tenants()]
    listed = {name for namespace in catalog.namespaces() for name in broker.topics.names.of("persistent", namespace)}
    if names != listed:
        found.append(("listed and stored", names ^ listed))
    for loaded in broker.topics.loaded():
        if loaded.fenced or loaded.closed or loaded.text not in names:
            found.append(("loaded", loaded.text))
    if broker.topics.deleting or broker.topics.loading or broker.changes.lock.locked():
        found.append(("still held", broker.topics.deleting, broker.topics.loading, broker.changes.lock.locked()))
    return found


@pytest.mark.parametrize("seed", [int(ONE)] if ONE else SEEDS)
async def test_what_many_administrators_leave_fits_together(tmp_path: Path, seed: int) -> None:
    rng, policies = random.Random(seed), PolicyDefaults(max_topics_per_namespace=TOPICS_MAX * (seed % 2))
    async with running(tmp_path, force_delete_tenant=True, force_delete_namespace=True, policies=policies) as harness:
        broker = harness.broker
        await asyncio.gather(*(administer(broker, random.Random(rng.random())) for _ in range(ADMINISTRATORS)))
        # What was given up goes on to its end.
        await until(lambda: not (broker.changes.unfinished or broker.topics.loading))
        assert misfits(broker) == []
