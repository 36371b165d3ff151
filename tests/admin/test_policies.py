# SPDX-License-Identifier: Apache-2.0
"""Every policy of namespaces and topics over HTTP: set, read, in force, removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.admin.routes.policies import OF_NAMESPACES, OF_TOPICS, Resource
from penstock.broker.policies.policy_table import POLICIES

if TYPE_CHECKING:
    import httpx

DISPATCH = POLICIES["dispatch_rate"].example


def named(resource: Resource) -> str:
    return resource.path


def check_read(answer: httpx.Response, value: object) -> None:
    assert (answer.status_code, answer.json() if answer.content else None) == (204 if value is None else 200, value)


@pytest.mark.parametrize("resource", OF_NAMESPACES, ids=named)
def test_a_namespaces_policy_is_set_read_and_removed(rest: httpx.Client, namespace: str, resource: Resource) -> None:
    path, value = f"/admin/v2/namespaces/{namespace}/{resource.path}", resource.example
    before = rest.get(path)
    assert before.status_code in {200, 204}
    assert before.content != value
    assert rest.request(resource.verb, path, json=value).status_code == 204
    check_read(rest.get(path), value)
    removed = rest.delete(path)
    if resource.removable:
        assert removed.status_code == 204
        again = rest.get(path)
        assert (again.status_code, again.content) == (before.status_code, before.content)
    else:
        assert removed.status_code == 405


@pytest.mark.parametrize("resource", OF_TOPICS, ids=named)
def test_a_topics_policy_is_set_read_and_removed(rest: httpx.Client, topic: str, resource: Resource) -> None:
    path, value = f"/admin/v2/persistent/{topic}/{resource.path}", resource.example
    check_read(rest.get(path), resource.unset)
    assert rest.request(resource.verb, path, json=value).status_code == 204
    check_read(rest.get(path), value)
    check_read(rest.get(f"{path}?applied=true"), value)
    if resource.removable:
        assert rest.delete(path).status_code == 204
        check_read(rest.get(path), resource.unset)


@pytest.mark.parametrize("path", ["retention", "publishRate", "maxProducers", "deduplicationEnabled", "messageTTL"])
def test_policies_of_a_topic_that_does_not_exist_are_not_found(rest: httpx.Client, namespace: str, path: str) -> None:
    assert rest.get(f"/admin/v2/persistent/{namespace}/never/{path}").status_code == 404
    assert rest.delete(f"/admin/v2/persistent/{namespace}/never/{path}").status_code == 404


def test_policies_of_a_namespace_that_does_not_exist_are_not_found(rest: httpx.Client) -> None:
    assert rest.get("/admin/v2/namespaces/public/never/retention").status_code == 404
    assert rest.post("/admin/v2/namespaces/public/never/messageTTL", json=1).status_code == 404


def test_what_holds_for_a_topic_is_its_own_policy_over_its_namespaces(rest: httpx.Client, topic: str) -> None:
    of_namespace, of_topic = f"/admin/v2/namespaces/{topic.rpartition('/')[0]}", f"/admin/v2/persistent/{topic}"
    applied = f"{of_topic}/messageTTL?applied=true"
    assert rest.get(applied).json() == 0
    rest.post(f"{of_namespace}/messageTTL", json=60)
    assert (rest.get(applied).json(), rest.get(f"{of_topic}/messageTTL").status_code) == (60, 204)
    assert rest.post(f"{of_topic}/messageTTL?messageTTL=30").status_code == 204
    assert (rest.get(applied).json(), rest.get(f"{of_topic}/messageTTL").json()) == (30, 30)
    assert rest.delete(f"{of_topic}/messageTTL").status_code == 204
    assert rest.get(applied).json() == 60


def test_a_partitioned_topics_policy_holds_for_its_partitions(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/persistent/{namespace}/p"
    rest.put(f"{path}/partitions", json=2)
    assert rest.post(f"{path}/maxProducers", json=4).status_code == 204
    assert rest.get(f"{path}-partition-1/maxProducers?applied=true").json() == 4


def test_backlog_quotas_are_set_by_their_kind(rest: httpx.Client, topic: str) -> None:
    for path in (f"/admin/v2/namespaces/{topic.rpartition('/')[0]}", f"/admin/v2/persistent/{topic}"):
        assert rest.get(f"{path}/backlogQuotaMap").json() == {}
        size = {"limitSize": 1000, "policy": "producer_exception"}
        age = {"limitTime": 60, "policy": "consumer_backlog_eviction"}
        assert rest.post(f"{path}/backlogQuota", json=size).status_code == 204
        assert rest.post(f"{path}/backlogQuota?backlogQuotaType=message_age", json=age).status_code == 204
        quotas = rest.get(f"{path}/backlogQuotaMap").json()
        assert quotas["destination_storage"] == {
            "limit": 1000,
            "limitSize": 1000,
            "limitTime": -1,
            "policy": "producer_exception",
        }
        assert quotas["message_age"]["limitTime"] == 60
        assert rest.delete(f"{path}/backlogQuota?backlogQuotaType=message_age").status_code == 204
        assert rest.get(f"{path}/backlogQuotaMap").json().keys() == {"destination_storage"}
        assert rest.post(f"{path}/backlogQuota?backlogQuotaType=colour", json=size).status_code == 400


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("messageTTL", -1),
        ("retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 0}),
        ("maxProducersPerTopic", -1),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "round"}),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0}),
        ("subscribeRate", {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 0}),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_412(
    rest: httpx.Client, namespace: str, path: str, value: object
) -> None:
    answer = rest.post(f"/admin/v2/namespaces/{namespace}/{path}", json=value)
    assert answer.status_code == 412
    assert answer.json()["reason"]


def test_a_namespace_is_only_in_clusters_that_exist(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/namespaces/{namespace}/replication"
    assert rest.get(path).json() == ["standalone"]
    assert rest.post(path, json=["standalone"]).status_code == 204
    refused = rest.post(path, json=["nowhere"])
    assert (refused.status_code, refused.json()) == (403, {"reason": "Invalid cluster id: nowhere"})
    assert rest.post(path, json=[]).status_code == 412


def test_properties_of_a_namespace_are_put_read_and_removed(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/namespaces/{namespace}"
    assert rest.get(f"{path}/properties").json() == {}
    assert rest.put(f"{path}/properties", json={"a": "1", "b": "2"}).status_code == 204
    assert rest.put(f"{path}/property/c/3%2F4").status_code == 204
    assert rest.get(f"{path}/property/c").text == "3/4"
    assert rest.get(f"{path}/property/d").status_code == 204
    assert rest.delete(f"{path}/property/a").text == "1"
    assert rest.get(f"{path}/properties").json() == {"b": "2", "c": "3/4"}
    assert rest.delete(f"{path}/properties").status_code == 204
    assert rest.get(f"{path}/properties").json() == {}


def test_a_resource_group_is_named_and_left(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/namespaces/{namespace}/resourcegroup"
    assert rest.get(path).status_code == 204
    assert rest.put("/admin/v2/resourcegroups/group-1", json={}).status_code == 204
    assert rest.post(f"{path}/group-1").status_code == 204
    assert rest.get(path).text == "group-1"
    assert rest.delete(path).status_code == 204
    assert rest.get(path).status_code == 204


def test_what_one_broker_has_none_of_is_unset(rest: httpx.Client, namespace: str) -> None:
    for path in ("antiAffinity", "persistence/bookieAffinity"):
        assert rest.get(f"/admin/v2/namespaces/{namespace}/{path}").status_code == 204
        assert rest.get(f"/admin/v2/namespaces/public/never/{path}").status_code == 404


def test_a_subscription_has_a_dispatch_rate_of_its_own(rest: httpx.Client, topic: str) -> None:
    path, of_all = f"/admin/v2/persistent/{topic}/s%2F1/dispatchRate", f"/admin/v2/persistent/{topic}"
    assert rest.get(path).status_code == 204
    assert rest.get(f"{path}?applied=true").json()["dispatchThrottlingRateInMsg"] == 0
    rest.post(f"{of_all}/subscriptionDispatchRate", json={**DISPATCH, "dispatchThrottlingRateInMsg": 9})
    assert rest.get(f"{path}?applied=true").json()["dispatchThrottlingRateInMsg"] == 9
    assert rest.post(path, json=DISPATCH).status_code == 204
    assert rest.get(path).json() == rest.get(f"{path}?applied=true").json() == DISPATCH
    assert rest.delete(path).status_code == 204
    assert rest.get(path).status_code == 204


def test_all_policies_of_a_topic_go_at_once(rest: httpx.Client, topic: str) -> None:
    path = f"/admin/v2/persistent/{topic}"
    rest.post(f"{path}/maxProducers", json=1)
    rest.post(f"{path}/retention", json=POLICIES["retention"].example)
    assert rest.delete(f"{path}/policies").status_code == 204
    assert rest.get(f"{path}/maxProducers").status_code == rest.get(f"{path}/retention").status_code == 204


def test_a_tick_that_cannot_be_is_refused_with_its_value(rest: httpx.Client, namespace: str, topic: str) -> None:
    for path in (f"/admin/v2/namespaces/{namespace}", f"/admin/v2/persistent/{topic}"):
        for policy in ({"active": True, "tickTime": 0}, {"active": False, "tickTime": -1}):
            refused = rest.post(f"{path}/delayedDelivery", json=policy)
            assert refused.status_code == 412
            assert f"tickTime={policy['tickTime']} cannot be" in refused.json()["reason"]
        assert rest.post(f"{path}/delayedDelivery", json={"active": False, "tickTime": 0}).status_code == 204
