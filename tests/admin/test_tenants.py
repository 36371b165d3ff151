# SPDX-License-Identifier: Apache-2.0
"""Clusters, tenants and namespaces over HTTP: statuses and bodies as pulsar-admin expects them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx

    from penstock.testing.process import BrokerProcess

CLUSTERS = "/admin/v2/clusters"
TENANTS = "/admin/v2/tenants"
NAMESPACES = "/admin/v2/namespaces"
BUNDLES = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]


@pytest.fixture
def tenant(rest: httpx.Client) -> str:
    name = f"tenant-{uuid.uuid4().hex[:12]}"
    assert rest.put(f"{TENANTS}/{name}", json={"allowedClusters": ["standalone"]}).status_code == 204
    return name


def test_the_brokers_own_cluster_says_where_it_is_reached(rest: httpx.Client, broker: BrokerProcess) -> None:
    assert "standalone" in rest.get(CLUSTERS).json()
    assert rest.get(f"{CLUSTERS}/standalone").json() == {
        "serviceUrl": broker.admin_url,
        "brokerServiceUrl": broker.url,
    }


def test_a_cluster_is_made_changed_and_forgotten(rest: httpx.Client) -> None:
    path = f"{CLUSTERS}/c-{uuid.uuid4().hex[:8]}"
    assert rest.get(path).status_code == 404
    assert rest.post(path, json={"serviceUrl": "http://a"}).status_code == 404
    assert rest.put(path, json={"serviceUrl": "http://a", "peerClusterNames": ["b"]}).status_code == 204
    assert rest.put(path, json={"serviceUrl": "http://a"}).status_code == 409
    assert rest.get(path).json() == {"serviceUrl": "http://a", "peerClusterNames": ["b"]}
    assert rest.get(f"{path}/peers").json() == ["b"]
    assert rest.post(path, json={"serviceUrl": "http://c", "brokerClientTlsEnabled": True}).status_code == 204
    assert rest.get(path).json() == {"serviceUrl": "http://c", "brokerClientTlsEnabled": True}
    assert rest.delete(path).status_code == 204
    assert rest.delete(path).status_code == 404


def test_a_cluster_that_holds_namespaces_is_not_forgotten(rest: httpx.Client) -> None:
    assert rest.delete(f"{CLUSTERS}/standalone").status_code == 412


def test_what_one_broker_has_none_of_is_empty(rest: httpx.Client) -> None:
    assert rest.get(f"{CLUSTERS}/standalone/failureDomains").json() == {}
    assert rest.get(f"{CLUSTERS}/standalone/namespaceIsolationPolicies").json() == {}
    assert rest.get(f"{CLUSTERS}/standalone/namespaceIsolationPolicies/brokers").json() == []
    assert rest.get(f"{CLUSTERS}/nowhere/failureDomains").status_code == 404


def test_a_tenant_is_made_changed_and_deleted(rest: httpx.Client) -> None:
    path = f"{TENANTS}/t-{uuid.uuid4().hex[:8]}"
    info = {"adminRoles": ["a"], "allowedClusters": ["standalone"]}
    assert rest.get(path).status_code == 404
    assert rest.post(path, json=info).status_code == 404
    assert rest.put(path, json=info).status_code == 204
    assert rest.put(path, json=info).status_code == 409
    assert rest.get(path).json() == info
    assert path.rpartition("/")[2] in rest.get(TENANTS).json()
    assert rest.post(path, json={**info, "adminRoles": ["b", "c"]}).status_code == 204
    assert rest.get(path).json()["adminRoles"] == ["b", "c"]
    assert rest.delete(path).status_code == 204
    assert rest.delete(path).status_code == 404


@pytest.mark.parametrize("clusters", [[], ["nowhere"]])
def test_a_tenant_needs_clusters_that_exist(rest: httpx.Client, clusters: list[str]) -> None:
    answer = rest.put(f"{TENANTS}/nowhere", json={"allowedClusters": clusters})
    assert answer.status_code == 412
    assert answer.json()["reason"].startswith("Clusters ")


def test_a_tenants_name_is_checked(rest: httpx.Client) -> None:
    assert rest.put(f"{TENANTS}/a%20b", json={"allowedClusters": ["standalone"]}).status_code == 412
    assert rest.put(f"{TENANTS}/a%2Fb", json={"allowedClusters": ["standalone"]}).status_code == 412


def test_a_tenant_with_namespaces_is_not_deleted_and_force_must_be_allowed(rest: httpx.Client, namespace: str) -> None:
    tenant = namespace.partition("/")[0]
    assert rest.delete(f"{TENANTS}/{tenant}").status_code == 409
    assert rest.delete(f"{TENANTS}/{tenant}?force=true").status_code == 405


def test_a_namespace_is_made_with_four_bundles_and_deleted(rest: httpx.Client, tenant: str) -> None:
    path = f"{NAMESPACES}/{tenant}/orders"
    assert rest.get(f"{NAMESPACES}/{tenant}").json() == []
    assert rest.get(path).status_code == 404
    assert rest.put(path).status_code == 204
    assert rest.put(path).status_code == 409
    assert rest.get(f"{NAMESPACES}/{tenant}").json() == [f"{tenant}/orders"]
    assert rest.get(f"{path}/bundles").json() == {"boundaries": BUNDLES, "numBundles": 4}
    assert rest.delete(path).status_code == 204
    assert rest.delete(path).status_code == 404


@pytest.mark.parametrize(("body", "bundles"), [({}, 4), (None, 4), ({"bundles": {"numBundles": 8}}, 8)])
def test_a_namespace_is_made_with_as_many_bundles_as_it_is_to_have(
    rest: httpx.Client, tenant: str, body: dict[str, object] | None, bundles: int
) -> None:
    path = f"{NAMESPACES}/{tenant}/orders"
    assert rest.put(path, json=body).status_code == 204
    made = rest.get(path).json()["bundles"]
    assert (made["numBundles"], len(made["boundaries"])) == (bundles, bundles + 1)


def test_policies_at_creation_are_in_force(rest: httpx.Client, tenant: str) -> None:
    path = f"{NAMESPACES}/{tenant}/orders"
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}
    policies = {"retention_policies": retention, "message_ttl_in_seconds": 30, "deduplicationEnabled": True}
    assert rest.put(path, json=policies).status_code == 204
    read = rest.get(path).json()
    assert {key: read[key] for key in policies} == policies
    assert None not in read.values()
    assert rest.get(f"{path}/retention").json() == retention


def test_a_namespace_needs_its_tenant(rest: httpx.Client) -> None:
    assert rest.put(f"{NAMESPACES}/nobody/orders").status_code == 404
    assert rest.get(f"{NAMESPACES}/nobody").status_code == 404


def test_a_namespace_with_topics_is_not_deleted_and_force_must_be_allowed(rest: httpx.Client, topic: str) -> None:
    path = f"{NAMESPACES}/{topic.rpartition('/')[0]}"
    assert rest.delete(path).status_code == 409
    assert rest.delete(f"{path}?force=true").status_code == 405
    assert rest.delete(f"/admin/v2/persistent/{topic}").status_code == 204
    assert rest.delete(path).status_code == 204


def test_topics_of_a_namespace_are_listed_by_mode(rest: httpx.Client, namespace: str) -> None:
    rest.put(f"/admin/v2/persistent/{namespace}/a")
    rest.put(f"/admin/v2/persistent/{namespace}/p/partitions", json=2)
    rest.put(f"/admin/v2/non-persistent/{namespace}/n")
    path = f"{NAMESPACES}/{namespace}/topics"
    stored = [f"persistent://{namespace}/{name}" for name in ("a", "p-partition-0", "p-partition-1")]
    passing = [f"non-persistent://{namespace}/n"]
    assert rest.get(path).json() == stored
    assert rest.get(f"{path}?mode=NON_PERSISTENT").json() == passing
    assert rest.get(f"{path}?mode=ALL").json() == [*passing, *stored]
    assert rest.get(f"{path}?mode=SOME").status_code == 400


def test_a_bundle_is_divided_and_its_topics_unloaded(rest: httpx.Client, namespace: str) -> None:
    path = f"{NAMESPACES}/{namespace}"
    assert rest.put(f"{path}/0x00000000_0x40000000/split").status_code == 204
    assert rest.get(f"{path}/bundles").json()["boundaries"][:3] == ["0x00000000", "0x20000000", "0x40000000"]
    assert rest.put(f"{path}/0x00000000_0x20000000/unload").status_code == 204
    assert rest.put(f"{path}/0x00000000_0x40000000/unload").status_code == 404
    assert rest.put(f"{path}/unload").status_code == 204


def test_permissions_are_granted_and_revoked(rest: httpx.Client, topic: str) -> None:
    namespace = topic.rpartition("/")[0]
    path, on_topic = f"{NAMESPACES}/{namespace}/permissions", f"/admin/v2/persistent/{topic}/permissions"
    assert rest.get(path).json() == {}
    assert rest.post(f"{path}/clerk", json=["produce", "consume"]).status_code == 204
    assert rest.post(f"{path}/clerk", json=["fly"]).status_code == 400
    assert {role: sorted(actions) for role, actions in rest.get(path).json().items()} == {
        "clerk": ["consume", "produce"]
    }
    assert rest.post(f"{on_topic}/reader", json=["consume"]).status_code == 204
    assert rest.get(on_topic).json()["reader"] == ["consume"]
    assert rest.delete(f"{on_topic}/reader").status_code == 204
    assert rest.delete(f"{path}/clerk").status_code == 204
    assert rest.get(path).json() == {}
    assert rest.post(f"{path}/subscription/s%2F1", json=["a", "b"]).status_code == 204
    assert rest.delete(f"{path}/s%2F1/a").status_code == 204
    assert rest.get(f"{path}/subscription").json() == {"s/1": ["b"]}


def test_backlogs_of_a_namespace_are_cleared_and_subscriptions_deleted(rest: httpx.Client, topic: str) -> None:
    namespace, subscription = topic.rpartition("/")[0], f"/admin/v2/persistent/{topic}/subscription/s"
    rest.put(subscription)
    assert rest.post(f"{NAMESPACES}/{namespace}/clearBacklog").status_code == 204
    assert rest.post(f"{NAMESPACES}/{namespace}/clearBacklog/s").status_code == 204
    assert rest.post(f"{NAMESPACES}/{namespace}/0x00000000_0x40000000/clearBacklog").status_code == 204
    assert rest.post(f"{NAMESPACES}/{namespace}/unsubscribe/s").status_code == 204
    assert rest.get(f"/admin/v2/persistent/{topic}/subscriptions").json() == []


@pytest.mark.parametrize("topic", ["t", "never-made", "a%2Bb"])
def test_a_lookup_leads_here_whether_or_not_the_topic_exists(
    rest: httpx.Client, broker: BrokerProcess, topic: str
) -> None:
    assert rest.get(f"/lookup/v2/topic/persistent/public/default/{topic}").json() == {
        "brokerUrl": broker.url,
        "httpUrl": broker.admin_url,
        "nativeUrl": broker.url,
        # Without it and without brokerUrlTls, the C++ client and those built on it crash.
        "brokerUrlSsl": "",
    }


def test_a_lookup_of_what_cannot_be_is_refused(rest: httpx.Client) -> None:
    assert rest.get("/lookup/v2/topic/persistent/public/nowhere/t").status_code == 404
    assert rest.get("/lookup/v2/topic/volatile/public/default/t").status_code == 404
    assert rest.get("/lookup/v2/topic/persistent/public/default/t?listenerName=nobody").status_code == 412


def test_a_topics_bundle_is_where_the_checksum_of_its_name_lies(rest: httpx.Client) -> None:
    # What Apache Pulsar answers for this name and four bundles.
    answer = rest.get("/lookup/v2/topic/persistent/public/default/t1/bundle")
    assert (answer.status_code, answer.text) == (200, "0xc0000000_0xffffffff")
