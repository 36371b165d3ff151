# SPDX-License-Identifier: Apache-2.0
"""Adding up the statistics of partitions: pure sums of dicts; and a topic that goes meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.stats.stats_partitioned import added
from penstock.core.errors import NotFound
from penstock.core.names import TopicName
from tests.net.harness import running

if TYPE_CHECKING:
    from pathlib import Path


def subscription(**values: object) -> dict[str, Any]:
    defaults: dict[str, object] = {
        "msgBacklog": 0,
        "type": "Shared",
        "blockedSubscriptionOnUnackedMsgs": False,
        "lastAckedTimestamp": 0,
    }
    return {"consumers": [], "subscriptionProperties": {}, **defaults, **values}


def topic(**values: object) -> dict[str, Any]:
    parts: dict[str, object] = {
        "publishers": [],
        "subscriptions": {},
        "compaction": {"lastCompactionRemovedEventCount": 1},
    }
    return {"msgInCounter": 0, "averageMsgSize": 0.0, "ownerBroker": "here", **parts, **values}


def test_counters_are_added_and_means_are_means_of_those_that_count() -> None:
    total = added([topic(msgInCounter=1, averageMsgSize=10.0), topic(msgInCounter=2), topic(averageMsgSize=30.0)])
    assert (total["msgInCounter"], total["averageMsgSize"]) == (3, 20.0)
    assert total["compaction"] == {"lastCompactionRemovedEventCount": 3}


def test_what_differs_between_partitions_is_left_out() -> None:
    assert "ownerBroker" not in added([topic(), topic()])


def test_the_oldest_topic_the_last_publish_and_the_oldest_backlog_count() -> None:
    total = added(
        [
            topic(topicCreationTimeStamp=20, lastPublishTimeStamp=5, oldestBacklogMessageAgeSeconds=-1),
            topic(topicCreationTimeStamp=10, lastPublishTimeStamp=9, oldestBacklogMessageAgeSeconds=7),
            topic(topicCreationTimeStamp=0, lastPublishTimeStamp=0, oldestBacklogMessageAgeSeconds=3),
        ]
    )
    assert (total["topicCreationTimeStamp"], total["lastPublishTimeStamp"]) == (10, 9)
    assert total["oldestBacklogMessageAgeSeconds"] == 7


def test_producers_are_added_by_their_place_without_what_only_one_has() -> None:
    one = {"producerId": 3, "msgRateIn": 1.0, "producerName": "a", "supportsPartialProducer": False}
    other = {**one, "producerId": 4, "producerName": "b"}
    total = added([topic(publishers=[one, other]), topic(publishers=[one])])
    assert total["publishers"] == [
        {"producerId": 0, "msgRateIn": 2.0, "supportsPartialProducer": False},
        {"producerId": 0, "msgRateIn": 1.0, "supportsPartialProducer": False},
    ]


def test_subscriptions_are_added_by_name() -> None:
    first = subscription(msgBacklog=1, lastAckedTimestamp=5, consumers=[{"consumerName": "c", "availablePermits": 10}])
    second = subscription(
        msgBacklog=2,
        lastAckedTimestamp=3,
        blockedSubscriptionOnUnackedMsgs=True,
        consumers=[{"consumerName": "c", "availablePermits": 5}],
    )
    total = added([topic(subscriptions={"s": first, "only": first}), topic(subscriptions={"s": second})])
    found = total["subscriptions"]["s"]
    assert (found["msgBacklog"], found["type"], found["lastAckedTimestamp"]) == (3, "Shared", 5)
    assert found["blockedSubscriptionOnUnackedMsgs"] is True
    assert found["consumers"] == [{"consumerName": "c", "availablePermits": 15}]
    assert total["subscriptions"]["only"]["msgBacklog"] == 1


def test_no_partitions_add_up_to_nothing() -> None:
    total = added([])
    assert (total["publishers"], total["subscriptions"]) == ([], {})
    assert total["compaction"]["lastCompactionSucceedTimestamp"] == 0


async def test_a_partitioned_topic_that_goes_while_its_statistics_are_gathered_is_not_found(tmp_path: Path) -> None:
    name = TopicName.parse("p")
    async with running(tmp_path) as harness:
        broker = harness.broker
        await broker.partitions.create(name, 1)
        gathering = asyncio.ensure_future(administration(broker).partitioned_stats.of_topic(name))
        await asyncio.sleep(0)
        await broker.partitions.delete(name, force=False)
        with pytest.raises(NotFound):
            administration(broker).partitioned_stats.described(name)
        await asyncio.wait((gathering,))
        assert gathering.exception() is None or isinstance(gathering.exception(), NotFound)
