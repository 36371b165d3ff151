# SPDX-License-Identifier: Apache-2.0
"""Topics and subscriptions over HTTP: statuses and bodies as pulsar-admin expects them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from penstock.testing.client import RawClient

if TYPE_CHECKING:
    import httpx

    from penstock.testing.process import BrokerProcess

PARTITIONED = "application/vnd.partitioned-topic-metadata+json"
DOMAINS = pytest.mark.parametrize("domain", ["persistent", "non-persistent"])


@pytest.fixture
def path(topic: str) -> str:
    return f"/admin/v2/persistent/{topic}"


# -- topics -----------------------------------------------------------------------------------------------------------


@DOMAINS
def test_a_topic_is_made_listed_and_deleted(rest: httpx.Client, namespace: str, domain: str) -> None:
    base = f"/admin/v2/{domain}/{namespace}"
    assert rest.get(base).json() == []
    assert rest.put(f"{base}/t").status_code == 204
    assert rest.put(f"{base}/t").status_code == 409
    assert rest.get(base).json() == [f"{domain}://{namespace}/t"]
    assert rest.get(f"{base}/t/partitions").json() == {"partitions": 0, "deleted": False}
    assert rest.delete(f"{base}/t").status_code == 204
    assert rest.delete(f"{base}/t").status_code == 404
    assert rest.get(base).json() == []


def test_a_topic_that_does_not_exist_is_not_found(rest: httpx.Client, namespace: str) -> None:
    base = f"/admin/v2/persistent/{namespace}/never"
    for path in ("partitions", "stats", "internalStats", "internal-info", "subscriptions", "lastMessageId"):
        answer = rest.get(f"{base}/{path}")
        assert (answer.status_code, answer.json()["reason"].startswith("Topic ")) == (404, True)
    assert rest.get("/admin/v2/persistent/public/never").status_code == 404
    assert rest.put("/admin/v2/persistent/public/never/t").status_code == 404


def test_asking_for_partitions_may_say_that_a_topic_could_be_made(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/persistent/{namespace}/soon/partitions?checkAllowAutoCreation=true"
    assert rest.get(path).json() == {"partitions": 0, "deleted": False}


@DOMAINS
def test_a_partitioned_topic_is_made_grows_and_is_deleted(rest: httpx.Client, namespace: str, domain: str) -> None:
    base = f"/admin/v2/{domain}/{namespace}"
    assert rest.put(f"{base}/p/partitions", json=2).status_code == 204
    assert rest.put(f"{base}/p/partitions", json=2).status_code == 409
    assert rest.get(f"{base}/p/partitions").json() == {"partitions": 2, "deleted": False}
    assert rest.get(f"{base}/partitioned").json() == [f"{domain}://{namespace}/p"]
    assert rest.post(f"{base}/p/partitions", json=3).status_code == 204
    assert rest.get(f"{base}/p/partitions").json() == {"partitions": 3, "deleted": False}
    assert rest.post(f"{base}/p/partitions", json=1).status_code == 422
    assert rest.post(f"{base}/p/createMissedPartitions").status_code == 204
    assert rest.delete(f"{base}/p").status_code == 409
    assert rest.delete(f"{base}/p/partitions").status_code == 204
    assert rest.delete(f"{base}/p/partitions").status_code == 404
    assert rest.get(base).json() == []


def test_a_partitioned_topic_may_be_made_with_properties(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/persistent/{namespace}/p"
    made = rest.put(
        f"{path}/partitions",
        content=b'{"partitions":2,"properties":{"a":"b"},"deleted":false}',
        headers={"content-type": PARTITIONED},
    )
    assert made.status_code == 204
    assert rest.get(f"{path}/partitions").json() == {"partitions": 2, "deleted": False, "properties": {"a": "b"}}


@pytest.mark.parametrize("count", [0, -1])
def test_there_cannot_be_so_few_partitions(rest: httpx.Client, namespace: str, count: int) -> None:
    answer = rest.put(f"/admin/v2/persistent/{namespace}/p/partitions", json=count)
    assert (answer.status_code, answer.json()) == (406, {"reason": "Number of partitions should be more than 0"})


def test_topics_are_listed_by_bundle(rest: httpx.Client, namespace: str) -> None:
    base = f"/admin/v2/persistent/{namespace}"
    for name in "abcdefgh":
        rest.put(f"{base}/{name}")
        rest.put(f"/admin/v2/non-persistent/{namespace}/{name}")
    bounds = rest.get(f"/admin/v2/namespaces/{namespace}/bundles").json()["boundaries"]
    bundles = [f"{low}_{high}" for low, high in pairwise(bounds)]
    listed = [rest.get(f"{base}?bundle={bundle}").json() for bundle in bundles]
    assert sorted(name for names in listed for name in names) == rest.get(base).json()
    passing = [rest.get(f"/admin/v2/non-persistent/{namespace}/{bundle}").json() for bundle in bundles]
    assert (
        sorted(name for names in passing for name in names) == rest.get(f"/admin/v2/non-persistent/{namespace}").json()
    )
    assert rest.get(f"{base}?bundle=0x00000000_0xffffffff").status_code == 404


def test_a_topic_in_use_is_deleted_only_by_force(broker: BrokerProcess, rest: httpx.Client, topic: str) -> None:
    path = f"/admin/v2/persistent/{topic}"
    rest.put(f"{path}/subscription/s")
    with RawClient(broker.port) as client:
        client.produce(f"persistent://{topic}")
        refused = rest.delete(path)
        assert (refused.status_code, "1 producers" in refused.json()["reason"]) == (412, True)
        assert rest.delete(f"{path}?force=true").status_code == 204
    assert rest.get(f"{path}/stats").status_code == 404


def test_a_topic_is_unloaded_trimmed_and_truncated(broker: BrokerProcess, rest: httpx.Client, path: str) -> None:
    with RawClient(broker.port) as client:
        client.produce(f"persistent://{path.removeprefix('/admin/v2/persistent/')}")
        client.publish([b"x"] * 5)
    rest.put(f"{path}/subscription/s", json={"ledgerId": -1, "entryId": -1})
    assert rest.get(f"{path}/stats").json()["subscriptions"]["s"]["msgBacklog"] == 5
    assert rest.put(f"{path}/unload").status_code == 204
    assert rest.post(f"{path}/trim").status_code == 204
    assert rest.get(f"{path}/stats").json()["subscriptions"]["s"]["msgBacklog"] == 5
    assert rest.delete(f"{path}/truncate").status_code == 204
    assert rest.get(f"{path}/stats").json()["subscriptions"]["s"]["msgBacklog"] == 0


def test_a_topic_ends(broker: BrokerProcess, rest: httpx.Client, topic: str) -> None:
    with RawClient(broker.port) as client:
        client.produce(f"persistent://{topic}")
        client.publish([b"x"] * 3)
    answer = rest.post(f"/admin/v2/persistent/{topic}/terminate")
    assert (answer.status_code, answer.json()["entryId"]) == (200, 2)
    assert rest.get(f"/admin/v2/persistent/{topic}/internalStats").json()["state"] == "Terminated"


def test_all_partitions_of_a_topic_end(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/persistent/{namespace}/p"
    rest.put(f"{path}/partitions", json=2)
    assert rest.post(f"{path}/terminate").status_code == 405
    ended = rest.post(f"{path}/terminate/partitions").json()
    assert {index: (last["entryId"], last["partitionIndex"]) for index, last in ended.items()} == {
        "0": (-1, 0),
        "1": (-1, 1),
    }


def test_properties_of_a_topic_are_merged_read_and_removed(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/persistent/{namespace}/t"
    assert rest.put(path, json={"a": "1"}).status_code == 204
    assert rest.put(f"{path}/properties", json={"b": "2"}).status_code == 204
    assert rest.get(f"{path}/properties").json() == {"a": "1", "b": "2"}
    assert rest.delete(f"{path}/properties?key=a").status_code == 204
    assert rest.get(f"{path}/properties").json() == {"b": "2"}
    assert rest.delete(f"{path}/properties").status_code == 400


def test_there_is_nowhere_to_offload_to(rest: httpx.Client, path: str) -> None:
    assert rest.get(f"{path}/offload").json() == {"status": "NOT_RUN", "lastError": ""}
    assert rest.put(f"{path}/offload", json={"ledgerId": 1, "entryId": 1}).status_code == 405


def test_a_topic_is_compacted_on_request(rest: httpx.Client, path: str) -> None:
    assert rest.get(f"{path}/compaction").json() == {"status": "NOT_RUN", "lastError": ""}
    assert rest.put(f"{path}/compaction").status_code == 204
    assert rest.get(f"{path}/compaction").json()["status"] in {"RUNNING", "SUCCESS"}


@pytest.mark.parametrize(
    ("verb", "what"),
    [
        ("PUT", "compaction"),
        ("GET", "lastMessageId"),
        ("DELETE", "truncate"),
        ("POST", "terminate"),
        ("POST", "subscription/s/skip_all"),
        ("POST", "subscription/s/resetcursor/0"),
        ("GET", "subscription/s/position/1"),
        ("POST", "subscription/s/analyzeBacklog"),
        ("GET", "properties"),
    ],
)
def test_what_needs_storage_is_not_allowed_without(rest: httpx.Client, namespace: str, verb: str, what: str) -> None:
    path = f"/admin/v2/non-persistent/{namespace}/n"
    rest.put(path)
    answer = rest.request(verb, f"{path}/{what}")
    assert (answer.status_code, "reason" in answer.json()) == (405, True)


# -- subscriptions ----------------------------------------------------------------------------------------------------


def publish(broker: BrokerProcess, topic: str, count: int) -> None:
    with RawClient(broker.port) as client:
        client.produce(f"persistent://{topic}")
        client.publish([b"%d" % index for index in range(count)])


def backlog(rest: httpx.Client, topic: str, subscription: str = "s") -> int:
    stats = rest.get(f"/admin/v2/persistent/{topic}/stats").json()
    found: int = stats["subscriptions"][subscription]["msgBacklog"]
    return found


def test_a_subscription_is_made_listed_and_deleted(rest: httpx.Client, path: str) -> None:
    assert rest.put(f"{path}/subscription/s").status_code == 204
    assert rest.put(f"{path}/subscription/s").status_code == 409
    assert rest.get(f"{path}/subscriptions").json() == ["s"]
    assert rest.delete(f"{path}/subscription/s").status_code == 204
    assert rest.delete(f"{path}/subscription/s").status_code == 404


@pytest.mark.parametrize(
    ("position", "left"),
    [
        (None, 0),
        ({"ledgerId": -1, "entryId": -1, "partitionIndex": -1}, 5),
        ({"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}, 0),
    ],
    ids=["without one", "earliest", "latest"],
)
def test_a_subscription_begins_where_it_is_told(
    broker: BrokerProcess, rest: httpx.Client, topic: str, position: object, left: int
) -> None:
    publish(broker, topic, 5)
    assert rest.put(f"/admin/v2/persistent/{topic}/subscription/s", json=position).status_code == 204
    assert backlog(rest, topic) == left


def test_a_subscription_is_made_at_a_message_and_moved(broker: BrokerProcess, rest: httpx.Client, topic: str) -> None:
    publish(broker, topic, 10)
    base = f"/admin/v2/persistent/{topic}"
    subscription = f"{base}/subscription/s"
    ledger_id = rest.get(f"{base}/lastMessageId").json()["ledgerId"]
    rest.put(subscription, json={"ledgerId": ledger_id, "entryId": 2, "properties": {"a": "b"}})
    made_with = backlog(rest, topic)
    assert made_with in {7, 8}
    assert rest.get(f"{subscription}/properties").json() == {"a": "b"}
    assert rest.post(f"{subscription}/skip/3").status_code == 204
    assert backlog(rest, topic) == made_with - 3
    at_four = {"ledgerId": ledger_id, "entryId": 4, "partitionIndex": -1, "batchIndex": -1}
    assert rest.post(f"{subscription}/resetcursor", json=at_four).status_code == 204
    assert backlog(rest, topic) == 6
    assert rest.post(f"{subscription}/resetcursor", json={**at_four, "excluded": True}).status_code == 204
    assert backlog(rest, topic) == 5
    assert rest.post(f"{subscription}/expireMessages", json={**at_four, "entryId": 6}).status_code == 204
    assert backlog(rest, topic) == 3
    assert rest.post(f"{subscription}/resetcursor/0").status_code == 204
    assert backlog(rest, topic) == 10
    # The test's client stamps its messages with the year 1970.
    assert rest.post(f"{subscription}/expireMessages/60").status_code == 204
    assert backlog(rest, topic) == 0
    rest.post(f"{subscription}/resetcursor/0")
    assert rest.post(f"{base}/all_subscription/expireMessages/60").status_code == 204
    assert backlog(rest, topic) == 0
    rest.post(f"{subscription}/resetcursor/0")
    assert rest.post(f"{subscription}/skip_all").status_code == 204
    assert backlog(rest, topic) == 0


def test_a_subscription_that_does_not_exist_is_not_found(rest: httpx.Client, path: str) -> None:
    for what in ("skip_all", "skip/1", "resetcursor/0", "expireMessages/1", "analyzeBacklog"):
        assert rest.post(f"{path}/subscription/never/{what}").status_code == 404
    assert rest.get(f"{path}/subscription/never/properties").status_code == 404
    assert rest.get(f"{path}/subscription/never/position/1").status_code == 404


def test_a_subscription_with_consumers_is_deleted_only_by_force(
    broker: BrokerProcess, rest: httpx.Client, topic: str
) -> None:
    path = f"/admin/v2/persistent/{topic}/subscription/s"
    with RawClient(broker.port) as client:
        client.subscribe(f"persistent://{topic}", "s")
        assert rest.delete(path).status_code == 412
        assert rest.delete(f"{path}?force=true").status_code == 204


def test_properties_of_a_subscription_are_replaced(rest: httpx.Client, path: str) -> None:
    rest.put(f"{path}/subscription/s")
    assert rest.get(f"{path}/subscription/s/properties").json() == {}
    assert rest.put(f"{path}/subscription/s/properties", json={"x": "y"}).status_code == 204
    assert rest.put(f"{path}/subscription/s/properties", json={"z": "1"}).status_code == 204
    assert rest.get(f"{path}/subscription/s/properties").json() == {"z": "1"}


def test_a_subscription_is_replicated_until_it_is_said_that_it_is_not(
    rest: httpx.Client, path: str, topic: str
) -> None:
    full, status = f"persistent://{topic}", f"{path}/subscription/s/replicatedSubscriptionStatus"
    assert rest.get(status).status_code == 404
    rest.put(f"{path}/subscription/s?replicated=true")
    assert rest.get(status).json() == {full: True}
    rest.put(f"{path}/subscription/s/properties", json={"x": "y"})
    assert rest.get(f"{path}/subscription/s/properties").json() == {"x": "y"}
    assert rest.get(f"{path}/stats").json()["subscriptions"]["s"]["isReplicated"] is True
    assert rest.post(status, json=False).status_code == 204
    assert rest.get(status).json() == {full: False}
    assert rest.get(f"{path}/subscription/s/properties").json() == {"x": "y"}
    assert rest.post(status, json=True).status_code == 204
    assert rest.get(status).json() == {full: True}
    assert rest.post(status, json="yes").status_code == 400
    assert rest.put(f"{path}/subscription/pulsar.repl.west?replicated=true").status_code == 405
    rest.put(f"{path}/subscription/pulsar.repl.west")
    status = f"{path}/subscription/pulsar.repl.west/replicatedSubscriptionStatus"
    assert rest.post(status, json=True).status_code == 405


def test_the_partitions_of_a_topic_have_subscriptions_that_are_replicated(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/persistent/{namespace}/replicated"
    rest.put(f"{path}/partitions", json=2)
    rest.put(f"{path}/subscription/s")
    assert rest.post(f"{path}/subscription/s/replicatedSubscriptionStatus", json=True).status_code == 204
    answer = rest.get(f"{path}/subscription/s/replicatedSubscriptionStatus").json()
    assert answer == {f"persistent://{namespace}/replicated-partition-{number}": True for number in range(2)}


def test_subscriptions_of_a_partitioned_topic_are_those_of_its_partitions(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/persistent/{namespace}/p"
    rest.put(f"{path}/partitions", json=3)
    assert rest.put(f"{path}/subscription/s").status_code == 204
    assert rest.get(f"{path}-partition-2/subscriptions").json() == ["s"]
    assert rest.get(f"{path}/subscriptions").json() == ["s"]
    assert rest.post(f"{path}/subscription/s/skip_all").status_code == 204
    assert rest.delete(f"{path}/subscription/s").status_code == 204
    assert rest.get(f"{path}-partition-2/subscriptions").json() == []


def test_a_backlog_is_analysed(broker: BrokerProcess, rest: httpx.Client, topic: str) -> None:
    path = f"/admin/v2/persistent/{topic}"
    rest.put(f"{path}/subscription/s")
    publish(broker, topic, 5)
    rest.post(f"{path}/subscription/s/skip/2")
    found = rest.post(f"{path}/subscription/s/analyzeBacklog").json()
    assert (found["entries"], found["messages"], found["aborted"]) == (3, 3, False)


@pytest.mark.parametrize("number", ["-1", "x", str(2**63), "1.5"])
def test_a_number_on_the_path_that_is_none_is_400(rest: httpx.Client, path: str, number: str) -> None:
    rest.put(f"{path}/subscription/s")
    answer = rest.post(f"{path}/subscription/s/skip/{number}")
    assert (answer.status_code, "count" in answer.json()["reason"]) == (400, True)
