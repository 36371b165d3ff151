# SPDX-License-Identifier: Apache-2.0
"""Everything that an administrator set is there after the process was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from penstock.admin.routes.policies import OF_NAMESPACES, OF_TOPICS
from penstock.testing.client import RawClient
from tests.admin.test_policies import DISPATCH

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess

NAMESPACE, TOPIC, PARTITIONED = "shop/orders", "shop/orders/t", "shop/orders/p"


def set_one_of_everything(broker: BrokerProcess, rest: httpx.Client) -> None:
    def send(verb: str, path: str, json: object = None) -> None:
        answer = rest.request(verb, path, json=json)
        assert answer.status_code in {200, 204}, (path, answer.text)

    send("PUT", "/admin/v2/clusters/other", {"serviceUrl": "http://other"})
    send("PUT", "/admin/v2/tenants/shop", {"adminRoles": ["owner"], "allowedClusters": ["standalone"]})
    of_namespace, topic, partitioned = (
        f"/admin/v2/namespaces/{NAMESPACE}",
        f"/admin/v2/persistent/{TOPIC}",
        f"/admin/v2/persistent/{PARTITIONED}",
    )
    send("PUT", of_namespace, {"bundles": {"numBundles": 2}})
    send("PUT", topic, {"colour": "blue"})
    send("PUT", f"{partitioned}/partitions", 3)
    send("PUT", f"{topic}/subscription/s%2F1", {"ledgerId": -1, "entryId": -1, "properties": {"a": "b"}})
    with RawClient(broker.port) as client:
        client.produce(f"persistent://{TOPIC}")
        client.publish([b"x"] * 5)
    send("POST", f"{topic}/subscription/s%2F1/skip/2")
    for resource in OF_NAMESPACES:
        send(resource.verb, f"{of_namespace}/{resource.path}", resource.example)
    for path in (topic, partitioned):
        for resource in OF_TOPICS:
            send(resource.verb, f"{path}/{resource.path}", resource.example)
        send("POST", f"{path}/messageTTL?messageTTL=100000")
        send("POST", f"{path}/s/dispatchRate", DISPATCH)
    quota = {"limitTime": 30, "policy": "consumer_backlog_eviction"}
    for path in (of_namespace, topic):
        send("POST", f"{path}/backlogQuota?backlogQuotaType=message_age", quota)
        send("POST", f"{path}/permissions/clerk", ["produce"])
    send("POST", f"{of_namespace}/permissions/subscription/s", ["clerk"])
    send("PUT", f"{of_namespace}/properties", {"floor": "3"})
    send("PUT", "/admin/v2/resourcegroups/group", {"publishRateInMsgs": 5})
    send("POST", f"{of_namespace}/resourcegroup/group")
    send("POST", "/admin/v2/tenants/shop/resourcegroup/group")
    send("PUT", f"{partitioned}/properties", {"floor": "4"})
    send("POST", f"/admin/v2/schemas/{PARTITIONED}/schema", {"type": "STRING", "schema": "", "properties": {}})
    send("POST", "/admin/v2/brokers/configuration/maxTopicsPerNamespace/1000")
    send("POST", f"{topic}/terminate")


def read_everything(rest: httpx.Client) -> dict[str, Any]:
    paths = ["/admin/v2/clusters", "/admin/v2/clusters/other", "/admin/v2/tenants", "/admin/v2/tenants/shop"]
    paths += ["/admin/v2/namespaces/shop", "/admin/v2/brokers/configuration/values"]
    paths += [f"/admin/v2/schemas/{PARTITIONED}/schema"]
    paths += ["/admin/v2/resourcegroups", "/admin/v2/resourcegroups/group", "/admin/v2/tenants/shop/resourcegroup"]
    base = f"/admin/v2/namespaces/{NAMESPACE}"
    paths += [base, f"{base}/topics", *(f"{base}/{resource.path}" for resource in OF_NAMESPACES)]
    paths += [f"{base}/{what}" for what in ("permissions", "permissions/subscription", "properties", "resourcegroup")]
    for base in (f"/admin/v2/persistent/{TOPIC}", f"/admin/v2/persistent/{PARTITIONED}"):
        paths += [f"{base}/{resource.path}" for resource in OF_TOPICS]
        paths += [f"{base}/{what}" for what in ("messageTTL", "backlogQuotaMap", "properties", "partitions")]
        paths += [f"{base}/{what}" for what in ("subscriptions", "permissions", "s/dispatchRate")]
    paths.append(f"/admin/v2/persistent/{TOPIC}/subscription/s%2F1/properties")
    found = {}
    for path in paths:
        answer = rest.get(path)
        assert answer.status_code in {200, 204}, (path, answer.text)
        found[path] = answer.json() if answer.headers.get("content-type") == "application/json" else answer.text
    return found


def test_everything_that_was_set_survives_a_kill(own_broker: BrokerProcess) -> None:
    with httpx.Client(base_url=own_broker.admin_url, trust_env=False, timeout=60) as rest:
        set_one_of_everything(own_broker, rest)
        before = read_everything(rest)
    own_broker.kill()
    own_broker.start()
    with httpx.Client(base_url=own_broker.admin_url, trust_env=False, timeout=60) as rest:
        assert read_everything(rest) == before
        topic = f"/admin/v2/persistent/{TOPIC}"
        stats, internal = rest.get(f"{topic}/stats").json(), rest.get(f"{topic}/internalStats").json()
    assert (stats["subscriptions"]["s/1"]["msgBacklog"], internal["state"]) == (3, "Terminated")
