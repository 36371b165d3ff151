# SPDX-License-Identifier: Apache-2.0
"""Statistics over HTTP: that they count right, and have every member that Java's clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.admin import models_stats as models
from penstock.testing.client import RawClient, Type

if TYPE_CHECKING:
    import httpx
    from pydantic import BaseModel

    from penstock.testing.client import Frame
    from penstock.testing.process import BrokerProcess

SHARED, KEY_SHARED, FAILOVER = 1, 3, 2


@pytest.fixture
def path(topic: str) -> str:
    return f"/admin/v2/persistent/{topic}"


def check_complete(model: type[BaseModel], answer: dict[str, Any]) -> None:
    """Every member is there, of its type, and the model knows every member that is there."""
    assert model.model_validate(answer).model_dump(by_alias=True, exclude_none=True) == answer


def settle(client: RawClient, messages: list[Frame]) -> None:
    """Acknowledge, and wait until the broker has taken it in."""
    for message in messages[:-1]:
        client.acknowledge(message)
    client.acknowledge(messages[-1], request_id=99)
    client.next(Type.ACK_RESPONSE)


def test_a_topic_is_told_with_all_its_clients(broker: BrokerProcess, rest: httpx.Client, path: str, topic: str) -> None:
    name = f"persistent://{topic}"
    with RawClient(broker.port) as client:
        client.subscribe(name, "s/1", subType=SHARED, permits=3, consumer_name="reader")
        client.produce(name, producer_name="clerk")
        client.publish([b"x" * 100] * 5)
        messages = [client.message() for _ in range(3)]
        settle(client, messages[:1])
        stats = rest.get(f"{path}/stats?getEarliestTimeInBacklog=true").json()
    check_complete(models.TopicStats, stats)
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (5, 3)
    assert stats["bytesInCounter"] == stats["storageSize"] == sum(len(messages[0].entry) for _ in range(5))
    (publisher,), subscription = stats["publishers"], stats["subscriptions"]["s/1"]
    assert (publisher["producerName"], publisher["accessMode"]) == ("clerk", "Shared")
    assert publisher["address"].startswith("/127.0.0.1:")
    assert (subscription["type"], subscription["isDurable"], subscription["durable"]) == ("Shared", True, True)
    (consumer,) = subscription["consumers"]
    assert (consumer["consumerName"], consumer["msgOutCounter"], consumer["availablePermits"]) == ("reader", 3, 0)
    assert subscription["msgBacklog"] == 4
    assert stats["earliestMsgPublishTimeInBacklogs"] == 1  # as the test's client stamps its messages
    assert stats["oldestBacklogMessageSubscriptionName"] == "s/1"
    assert stats["ownerBroker"] == f"127.0.0.1:{broker.admin_port}"


def test_what_was_delivered_still_counts_when_the_subscription_is_gone(
    broker: BrokerProcess, rest: httpx.Client, path: str, topic: str
) -> None:
    with RawClient(broker.port) as client:
        client.subscribe(f"persistent://{topic}", "s", subType=SHARED, permits=3)
        client.produce(f"persistent://{topic}")
        client.publish([b"x" * 100] * 3)
        [client.message() for _ in range(3)]
        before = rest.get(f"{path}/stats").json()
    assert rest.delete(f"{path}/subscription/s?force=true").status_code == 204
    after = rest.get(f"{path}/stats").json()
    assert after["subscriptions"] == {}
    for counter in ("msgOutCounter", "bytesOutCounter"):
        assert after[counter] == before[counter] > 0


def test_rates_are_seen_at_once(broker: BrokerProcess, rest: httpx.Client, path: str, topic: str) -> None:
    with RawClient(broker.port) as client:
        client.subscribe(f"persistent://{topic}", "s")
        client.produce(f"persistent://{topic}")
        client.publish([b"x" * 100] * 50)
        [client.message() for _ in range(50)]
        stats = rest.get(f"{path}/stats").json()
    assert min(stats[rate] for rate in ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")) > 0
    assert stats["averageMsgSize"] == pytest.approx(stats["bytesInCounter"] / 50)
    assert stats["publishers"][0]["msgRateIn"] > 0
    assert stats["subscriptions"]["s"]["consumers"][0]["msgRateOut"] > 0


def test_what_is_not_asked_for_is_left_out(broker: BrokerProcess, rest: httpx.Client, path: str, topic: str) -> None:
    with RawClient(broker.port) as client:
        client.subscribe(f"persistent://{topic}", "s")
        client.produce(f"persistent://{topic}")
        client.publish([b"x"])
        stats = rest.get(
            f"{path}/stats?excludePublishers=true&excludeConsumers=true&subscriptionBacklogSize=false"
        ).json()
    assert (stats["publishers"], stats["subscriptions"]["s"]["consumers"]) == ([], [])
    assert (stats["subscriptions"]["s"]["backlogSize"], stats["earliestMsgPublishTimeInBacklogs"]) == (-1, 0)
    assert stats["backlogSize"] == stats["storageSize"] > 0


def test_a_key_shared_subscription_tells_who_has_which_hashes(
    broker: BrokerProcess, rest: httpx.Client, path: str, topic: str
) -> None:
    with RawClient(broker.port) as client:
        client.subscribe(f"persistent://{topic}", "keys", subType=KEY_SHARED)
        client.subscribe(f"persistent://{topic}", "one", consumer_id=1, subType=FAILOVER, consumer_name="first")
        subscriptions = rest.get(f"{path}/stats").json()["subscriptions"]
    keys, one = subscriptions["keys"], subscriptions["one"]
    assert (keys["type"], keys["keySharedMode"], one["activeConsumerName"]) == ("Key_Shared", "AUTO_SPLIT", "first")
    ranges = keys["consumers"][0]["keyHashRangeArrays"]
    assert sum(last - first + 1 for first, last in ranges) in {65_535, 65_536}
    assert keys["consumers"][0]["drainingHashes"] == []


def test_a_topic_that_is_not_persistent_is_told_too(broker: BrokerProcess, rest: httpx.Client, namespace: str) -> None:
    name = f"{namespace}/n"
    with RawClient(broker.port) as client:
        client.subscribe(f"non-persistent://{name}", "s", permits=1)
        client.produce(f"non-persistent://{name}")
        client.publish([b"x"] * 3)
        stats = rest.get(f"/admin/v2/non-persistent/{name}/stats?getEarliestTimeInBacklog=true").json()
        internal = rest.get(f"/admin/v2/non-persistent/{name}/internalStats").json()
    check_complete(models.TopicStats, stats)
    check_complete(models.InternalStats, internal)
    assert (stats["msgInCounter"], stats["msgOutCounter"], stats["storageSize"]) == (3, 1, 0)
    assert stats["msgDropRate"] > 0


def test_a_partitioned_topic_is_the_sum_of_its_partitions(
    broker: BrokerProcess, rest: httpx.Client, namespace: str
) -> None:
    path, name = f"/admin/v2/persistent/{namespace}/p", f"persistent://{namespace}/p"
    rest.put(f"{path}/partitions", json=3)
    with RawClient(broker.port) as client:
        for index in range(3):
            client.subscribe(f"{name}-partition-{index}", "s", consumer_id=index, subType=SHARED)
            client.produce(f"{name}-partition-{index}", producer_id=index)
            client.publish([b"x" * 100] * (index + 1), producer_id=index)
        stats = rest.get(f"{path}/partitioned-stats").json()
        brief = rest.get(f"{path}/partitioned-stats?perPartition=false").json()
    check_complete(models.PartitionedTopicStats, stats)
    parts = [stats["partitions"][f"{name}-partition-{index}"] for index in range(3)]
    assert [part["msgInCounter"] for part in parts] == [1, 2, 3]
    for key in ("msgInCounter", "bytesInCounter", "storageSize", "msgOutCounter", "backlogSize"):
        assert stats[key] == sum(part[key] for part in parts), key
    assert (len(stats["publishers"]), len(stats["subscriptions"]["s"]["consumers"])) == (1, 1)
    assert stats["metadata"] == {"partitions": 3, "deleted": False}
    assert (brief["partitions"], brief["msgInCounter"]) == ({}, 6)


def test_a_partitioned_topic_has_no_statistics_of_its_own_and_others_no_partitions(
    rest: httpx.Client, namespace: str
) -> None:
    base = f"/admin/v2/persistent/{namespace}"
    rest.put(f"{base}/p/partitions", json=1)
    rest.put(f"{base}/t")
    assert rest.get(f"{base}/p/stats").status_code == rest.get(f"{base}/p/internalStats").status_code == 404
    answer = rest.get(f"{base}/t/partitioned-stats")
    assert answer.json() == {"reason": f"Partitioned Topic persistent://{namespace}/t not found"}
    assert answer.status_code == 404


def test_the_ledger_and_the_cursors_of_a_topic(
    broker: BrokerProcess, rest: httpx.Client, path: str, topic: str
) -> None:
    with RawClient(broker.port) as client:
        client.subscribe(f"persistent://{topic}", "s/1", subType=SHARED)
        client.produce(f"persistent://{topic}")
        client.publish([b"x" * 10] * 10)
        messages = [client.message() for _ in range(10)]
        settle(client, [messages[0], messages[3], messages[4], messages[9]])
        internal = rest.get(f"{path}/internalStats?metadata=true").json()
        info = rest.get(f"{path}/internal-info").json()
    check_complete(models.InternalStats, internal)
    check_complete(models.InternalInfo, info)
    (ledger,), cursor = internal["ledgers"], internal["cursors"]["s%2F1"]
    ledger_id = ledger["ledgerId"]
    assert (internal["numberOfEntries"], ledger["entries"], ledger["size"]) == (10, 10, internal["totalSize"])
    assert (internal["lastConfirmedEntry"], internal["state"]) == (f"{ledger_id}:9", "LedgerOpened")
    assert (cursor["markDeletePosition"], cursor["readPosition"]) == (f"{ledger_id}:0", f"{ledger_id}:10")
    assert cursor["individuallyDeletedMessages"] == (f"[({ledger_id}:2..{ledger_id}:4],({ledger_id}:8..{ledger_id}:9]]")
    assert info["cursors"]["s%2F1"]["markDelete"] == {"ledgerId": ledger_id, "entryId": 0}


def test_partitions_are_told_of_one_by_one_below_too(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/persistent/{namespace}/p"
    rest.put(f"{path}/partitions", json=2)
    names = {f"persistent://{namespace}/p-partition-{index}" for index in range(2)}
    internal, info = rest.get(f"{path}/partitioned-internalStats").json(), rest.get(f"{path}/internal-info").json()
    check_complete(models.PartitionedInternalStats, internal)
    check_complete(models.PartitionedInternalInfo, info)
    assert internal["partitions"].keys() == info["partitions"].keys() == names
