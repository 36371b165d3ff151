# SPDX-License-Identifier: Apache-2.0
"""Resource groups over HTTP, in the spelling of pulsar-admin and in that of PIP-82."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_values import RESOURCE_GROUP
from penstock.core.errors import PenstockError
from penstock.core.names import NamespaceName

if TYPE_CHECKING:
    import httpx

    from tests.net.harness import Harness

GROUPS = "/admin/v2/resourcegroups"
SEED = "/admin/v2/resourcegroup"
NOTHING = {
    "publishRateInMsgs": -1,
    "publishRateInBytes": -1,
    "dispatchRateInMsgs": -1,
    "dispatchRateInBytes": -1,
}


def _namespace(local: str) -> NamespaceName:
    return NamespaceName("shop", local)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def test_a_group_is_created_read_listed_and_deleted(rest: httpx.Client, group: str) -> None:
    path = f"{GROUPS}/{group}"
    assert (rest.get(path).status_code, rest.get(path).json()) == (404, {"reason": "ResourceGroup does not exist"})
    assert rest.put(path, json={"publishRateInMsgs": 100}).status_code == 204
    assert rest.get(path).json() == {**NOTHING, "publishRateInMsgs": 100}
    assert group in rest.get(GROUPS).json()
    assert rest.delete(path).status_code == 204
    assert rest.delete(path).status_code == 404
    assert group not in rest.get(GROUPS).json()


def test_an_update_changes_only_the_rates_that_it_has(rest: httpx.Client, group: str) -> None:
    path = f"{GROUPS}/{group}"
    rest.put(path, json={"publishRateInMsgs": 100, "dispatchRateInBytes": 2**40})
    assert rest.put(path, json={"publishRateInBytes": 5, "publishRateInMsgs": None}).status_code == 204
    assert rest.get(path).json() == {
        **NOTHING,
        "publishRateInMsgs": 100,
        "publishRateInBytes": 5,
        "dispatchRateInBytes": 2**40,
    }
    assert rest.put(path, json={"publishRateInMsgs": -1}).status_code == 204
    assert rest.get(path).json()["publishRateInMsgs"] == -1


def test_the_seeds_spelling_has_its_own_names(rest: httpx.Client, group: str) -> None:
    path = f"{SEED}/{group}"
    assert rest.get(path).status_code == 404
    body = {"publishRateInmsgs": 1, "PublishRateInbytes": 2, "DispatchRateInmsgs": 3, "DispatchRateInbytes": 4}
    assert rest.put(path, json=body).is_success
    assert rest.get(path).json() == {
        "PublishRatelimitinmsgs": 1,
        "PublishRatelimitinbytes": 2,
        "DispatchRatelimitinmsgs": 3,
        "DispatchRatelimitinbytes": 4,
    }
    assert list(rest.get(f"{GROUPS}/{group}").json().values()) == [1, 2, 3, 4]
    assert group in rest.get(f"{SEED}/").json()
    assert group in rest.get(SEED).json()
    assert rest.delete(path).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"publishRateInMsgs": 0}, 412, "must be 1 or more per second, or -1: no limit; got 0"),
        ({"dispatchRateInBytes": -2}, 412, "dispatchRateInBytes of resource group"),
        ({"publishRateInMsgs": 2**31}, 400, "publishRateInMsgs"),
        ({"publishRateInBytes": 2**63}, 400, "publishRateInBytes"),
        ({"publishRateInMsgs": "many"}, 400, "publishRateInMsgs"),
        ({"publishRateInMsgs": 1.5}, 400, "publishRateInMsgs"),
        ([], 400, ""),
    ],
)
def test_impossible_rates_are_refused_with_a_sentence(
    rest: httpx.Client, group: str, body: object, status: int, words: str
) -> None:
    refused = rest.put(f"{GROUPS}/{group}", json=body)
    assert refused.status_code == status
    assert words in refused.json()["reason"]
    assert rest.get(f"{GROUPS}/{group}").status_code == 404


def test_a_name_that_no_tenant_could_have_is_refused(rest: httpx.Client) -> None:
    refused = rest.put(f"{GROUPS}/a%20b", json={})
    assert refused.status_code == 412
    assert "Resource group name is not valid: 'a b'" in refused.json()["reason"]


@pytest.mark.parametrize("verb", ["PUT", "POST"])
def test_a_namespace_is_attached_and_detached(rest: httpx.Client, namespace: str, group: str, verb: str) -> None:
    path = f"/admin/v2/namespaces/{namespace}/resourcegroup"
    missing = rest.request(verb, f"{path}/{group}")
    assert (missing.status_code, "does not exist" in missing.json()["reason"]) == (412, True)
    rest.put(f"{GROUPS}/{group}", json={})
    assert rest.request(verb, f"{path}/{group}").status_code == 204
    assert rest.get(path).text == group
    assert rest.get(f"/admin/v2/namespaces/{namespace}").json()["resource_group_name"] == group
    used = rest.delete(f"{GROUPS}/{group}")
    assert (used.status_code, used.json()["reason"]) == (
        412,
        f"ResourceGroup is in use: {group} is in use by {namespace}; detach it first",
    )
    assert rest.delete(path).status_code == 204
    assert rest.get(path).status_code == 204
    assert rest.delete(f"{GROUPS}/{group}").status_code == 204
    assert rest.request(verb, f"/admin/v2/namespaces/{namespace}-no/resourcegroup/{group}").status_code == 404


@pytest.mark.parametrize("verb", ["PUT", "POST"])
def test_s13_a_tenant_is_attached_and_detached(rest: httpx.Client, namespace: str, group: str, verb: str) -> None:
    tenant = namespace.partition("/")[0]
    path = f"/admin/v2/tenants/{tenant}/resourcegroup"
    assert rest.get(path).status_code == 204
    assert rest.request(verb, f"{path}/{group}").status_code == 412
    rest.put(f"{GROUPS}/{group}", json={})
    assert rest.request(verb, f"{path}/{group}").status_code == 204
    assert rest.get(path).text == group
    info = {"adminRoles": ["owner"], "allowedClusters": ["standalone"]}
    assert rest.post(f"/admin/v2/tenants/{tenant}", json=info).status_code == 204
    assert rest.get(f"/admin/v2/tenants/{tenant}").json() == info
    assert rest.get(path).text == group, "a new TenantInfo does not detach the tenant"
    assert rest.delete(f"{GROUPS}/{group}").status_code == 412
    assert rest.delete(path).status_code == 204
    assert rest.delete(f"{GROUPS}/{group}").status_code == 204
    assert rest.request(verb, f"/admin/v2/tenants/{tenant}-no/resourcegroup/{group}").status_code == 404


def test_a_namespace_is_created_in_a_group_that_exists(rest: httpx.Client, namespace: str, group: str) -> None:
    path, body = f"/admin/v2/namespaces/{namespace}-2", {"resource_group_name": group}
    assert rest.put(path, json=body).status_code == 412
    rest.put(f"{GROUPS}/{group}", json={})
    assert rest.put(path, json=body).status_code == 204
    assert rest.get(f"{path}/resourcegroup").text == group
    assert rest.delete(f"{GROUPS}/{group}").status_code == 412
    assert rest.delete(path).status_code == 204
    assert rest.delete(f"{GROUPS}/{group}").status_code == 204, "a deleted namespace is not attached"


async def test_s10_a_group_stored_with_nulls_is_updated(harness: Harness, admin: httpx.AsyncClient) -> None:
    broker = harness.broker
    stored = {"publishRateInMsgs": None, "dispatchRateInMsgs": 7}
    await broker.changes.stored(lambda done: broker.catalog.put_document(RESOURCE_GROUP, "old", stored, done))
    assert (await admin.put(f"{GROUPS}/old", json={"publishRateInBytes": 5})).status_code == 204
    assert (await admin.get(f"{GROUPS}/old")).json() == {
        **NOTHING,
        "publishRateInBytes": 5,
        "dispatchRateInMsgs": 7,
    }


async def test_ten_administrators_at_once_never_leave_a_group_that_is_attached_and_gone(harness: Harness) -> None:
    admin = administration(harness.broker)
    await admin.tenants.create("shop", {"allowedClusters": [harness.broker.limits.cluster_name]})
    groups = admin.resource_groups
    for local in ("a", "b", "c"):
        await admin.namespaces.create(_namespace(local))

    async def busy(chance: Random) -> list[str]:
        done: list[str] = []
        for _ in range(60):
            group, namespace = f"g{chance.randrange(6)}", _namespace(chance.choice("abc"))
            name, change = chance.choice(
                [
                    ("put", partial(groups.put, group, {"publishRateInMsgs": 1 + chance.randrange(9)})),
                    ("delete", partial(groups.delete, group)),
                    ("delete", partial(groups.delete, group)),
                    ("attach", partial(groups.attach_namespace, namespace, group)),
                    ("detach", partial(groups.attach_namespace, namespace, None)),
                    ("attach", partial(groups.attach_tenant, "shop", chance.choice([group, None]))),
                ]
            )
            with contextlib.suppress(PenstockError):
                await change()
                done.append(name)
            attached = {groups.of_namespace(_namespace(local)) for local in "abc"}
            attached.add(groups.of_tenant("shop"))
            assert attached - {None} <= set(groups.names())
        return done

    done = Counter(name for names in await asyncio.gather(*(busy(Random(n)) for n in range(10))) for name in names)
    assert all(done[name] > 20 for name in ("put", "delete", "attach", "detach")), done
