# SPDX-License-Identifier: Apache-2.0
"""Tenants, namespaces, clusters and permissions, as an administrator changes them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.access import AccessRules
from penstock.broker.composition.administration import administration
from penstock.core.errors import (
    AlreadyExists,
    AuthorizationFailed,
    NamespaceNotFound,
    NotAllowed,
    NotFound,
    PenstockError,
    PreconditionFailed,
    TenantNotFound,
)
from penstock.core.names import NamespaceName, TopicName
from penstock.testing.client import Type
from tests.broker.listed import list_topics
from tests.net.harness import Client, Harness, running, turns, until

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from penstock.broker.broker import Broker

INFO = {"adminRoles": ["root"], "allowedClusters": ["test"]}
SALES = NamespaceName.parse("acme/sales")
ORDERS = TopicName.parse("persistent://acme/sales/orders")


async def make_sales(broker: Broker) -> None:
    await administration(broker).tenants.create("acme", INFO)
    await administration(broker).namespaces.create(SALES)


async def refused(doing: Coroutine[Any, Any, object], kind: type[PenstockError], status: int, words: str) -> None:
    with pytest.raises(kind) as error:
        await doing
    assert error.value.http_status == status
    assert words in str(error.value)


# -- tenants ----------------------------------------------------------------------------------------------------------


async def test_a_tenant_is_made_read_changed_and_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        assert administration(broker).tenants.names() == ["public", "pulsar"]
        await administration(broker).tenants.create("acme", INFO)
        assert administration(broker).tenants.get("acme") == INFO
        await administration(broker).tenants.update(
            "acme", {"adminRoles": ["b", "a", "a"], "allowedClusters": ["test"]}
        )
        assert administration(broker).tenants.get("acme")["adminRoles"] == ["a", "b"]
    async with running(tmp_path) as harness:
        broker = harness.broker
        assert administration(broker).tenants.names() == ["acme", "public", "pulsar"]
        await administration(broker).tenants.delete("acme")
        with pytest.raises(TenantNotFound):
            administration(broker).tenants.get("acme")


async def test_the_tenants_that_are_there_from_the_start_are_in_this_cluster(harness: Harness) -> None:
    assert administration(harness.broker).tenants.get("public") == {"adminRoles": [], "allowedClusters": ["test"]}


async def test_what_is_there_from_the_start_is_not_created_again(harness: Harness) -> None:
    broker, default = harness.broker, NamespaceName.parse("public/default")
    await refused(administration(broker).tenants.create("public", INFO), AlreadyExists, 409, "Tenant already exist")
    await refused(administration(broker).namespaces.create(default), AlreadyExists, 409, "Namespace already exists")


async def test_under_authorization_what_is_there_from_the_start_is_created_once(tmp_path: Path) -> None:
    async with running(tmp_path, access=AccessRules(authorizing=True)) as harness:
        broker, default = harness.broker, NamespaceName.parse("public/default")
        await administration(broker).clusters.create("test", {"serviceUrl": "http://here"})
        assert administration(broker).clusters.get("test")["serviceUrl"] == "http://here"
        await refused(administration(broker).clusters.create("test", {}), AlreadyExists, 409, "Cluster already exists")
        await administration(broker).tenants.create("public", INFO)
        assert administration(broker).tenants.get("public") == INFO
        await refused(administration(broker).tenants.create("public", INFO), AlreadyExists, 409, "Tenant already exist")
        await administration(broker).namespaces.create(default, {"message_ttl_in_seconds": 5})
        assert administration(broker).namespaces.get(default)["message_ttl_in_seconds"] == 5
        await refused(administration(broker).namespaces.create(default), AlreadyExists, 409, "Namespace already exists")


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({}, "Clusters can not be empty"),
        ({"allowedClusters": []}, "Clusters can not be empty"),
        ({"allowedClusters": [" "]}, "Clusters can not be empty"),
        ({"allowedClusters": ["elsewhere"]}, "Clusters do not exist"),
        ({"allowedClusters": ["test"], "adminRoles": [" root"]}, "AdminRoles contains whitespace"),
    ],
)
async def test_a_tenant_must_be_in_clusters_that_exist(harness: Harness, info: dict[str, Any], words: str) -> None:
    await refused(administration(harness.broker).tenants.create("acme", info), PreconditionFailed, 412, words)
    await refused(administration(harness.broker).tenants.update("public", info), PreconditionFailed, 412, words)


async def test_tenants_that_are_there_are_not_made_and_others_not_changed(harness: Harness) -> None:
    broker = harness.broker
    await refused(administration(broker).tenants.create("public", INFO), AlreadyExists, 409, "already")
    await refused(administration(broker).tenants.create("a/b", INFO), PreconditionFailed, 412, "not valid")
    await refused(
        administration(broker).tenants.update("acme", INFO), TenantNotFound, 404, "Tenant acme does not exist"
    )
    await refused(administration(broker).tenants.delete("acme"), TenantNotFound, 404, "does not exist")


async def test_a_tenant_with_namespaces_goes_by_force_and_only_where_that_is_allowed(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await make_sales(broker)
        words = "The tenant still has active namespaces"
        await refused(administration(broker).tenants.delete("acme"), AlreadyExists, 409, words)
        words = "Broker doesn't allow forced deletion of tenants"
        await refused(administration(broker).tenants.delete("acme", force=True), NotAllowed, 405, words)
    async with running(tmp_path, force_delete_tenant=True) as harness:
        broker = harness.broker
        await broker.partitions.create(ORDERS, 2)
        await administration(broker).tenants.delete("acme", force=True)
        assert administration(broker).tenants.names() == ["public", "pulsar"]
        assert not broker.catalog.topics()


# -- namespaces -------------------------------------------------------------------------------------------------------


async def test_a_namespace_keeps_the_policies_it_was_made_with(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await administration(broker).tenants.create("acme", INFO)
        await administration(broker).namespaces.create(
            SALES, {"message_ttl_in_seconds": 60, "bundles": {"numBundles": 2}, "deleted": None}
        )
        policies = administration(broker).namespaces.get(SALES)
        assert policies["message_ttl_in_seconds"] == 60
        assert policies["bundles"] == {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
        assert policies["replication_clusters"] == ["test"]
        assert broker.policies.of_namespace("acme/sales").ttl_s == 60
    async with running(tmp_path) as harness:
        assert administration(harness.broker).namespaces.names("acme") == ["acme/sales"]
        assert harness.broker.policies.of_namespace("acme/sales").ttl_s == 60


async def test_a_namespace_is_made_once_and_in_a_tenant(harness: Harness) -> None:
    broker = harness.broker
    await refused(administration(broker).namespaces.create(SALES), TenantNotFound, 404, "acme")
    await administration(broker).tenants.create("acme", INFO)
    outcomes = await asyncio.gather(
        *(administration(broker).namespaces.create(SALES) for _ in range(5)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes if outcome is not None] == 4 * [AlreadyExists]
    for policies in ({"replication_clusters": ["elsewhere"]}, {"bundles": {"numBundles": -1}}):
        with pytest.raises(PreconditionFailed):
            await administration(broker).namespaces.create(NamespaceName.parse("acme/other"), policies)


@pytest.mark.parametrize("topic", ["persistent://acme/sales/t", "non-persistent://acme/sales/t"])
async def test_a_namespace_with_topics_goes_by_force_and_only_where_that_is_allowed(tmp_path: Path, topic: str) -> None:
    async with running(tmp_path, force_delete_namespace=True) as harness:
        broker = harness.broker
        await make_sales(broker)
        client = await Client.producing(harness.port, topic=topic)
        words = "Cannot delete non empty namespace"
        await refused(administration(broker).namespaces.delete(SALES), AlreadyExists, 409, words)
        await administration(broker).namespaces.delete(SALES, force=True)
        await client.expect(Type.CLOSE_PRODUCER)
        with pytest.raises(NamespaceNotFound):
            administration(broker).namespaces.get(SALES)
        assert not broker.topics.loaded()
        await administration(broker).namespaces.create(SALES)
        assert await list_topics(broker, SALES) == []
    async with running(tmp_path) as harness:
        words = "Broker doesn't allow forced deletion of namespaces"
        await refused(administration(harness.broker).namespaces.delete(SALES, force=True), NotAllowed, 405, words)
        await administration(harness.broker).namespaces.delete(SALES)


async def test_nothing_is_made_in_a_namespace_while_it_is_being_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, force_delete_namespace=True) as harness:
        broker = harness.broker
        await make_sales(broker)
        await broker.partitions.create(ORDERS, 20)
        deleting = asyncio.ensure_future(administration(broker).namespaces.delete(SALES, force=True))
        number = 0
        while not deleting.done():
            try:
                await broker.topics.get_or_create(TopicName.parse(f"acme/sales/t{number}"), create=True)
                number += 1
            except NamespaceNotFound:
                pass
            await asyncio.sleep(0)
        await deleting
        assert not [record for record in broker.catalog.topics() if "/acme/" in record.name]


async def test_a_topic_that_is_on_its_way_when_its_namespace_is_deleted_does_not_outlive_it(harness: Harness) -> None:
    broker = harness.broker
    await make_sales(broker)
    with harness.catalog_held():
        coming = asyncio.ensure_future(broker.topics.get_or_create(ORDERS, create=True))
        await turns(2)
        deleting = asyncio.ensure_future(administration(broker).namespaces.delete(SALES))
        await turns(2)
    await asyncio.wait((coming, deleting))
    there = str(SALES) in broker.catalog.namespaces()
    assert there or not broker.topics.exists(ORDERS)


async def test_a_partitioned_topic_that_waits_for_its_turn_is_not_made_in_a_namespace_that_went(
    harness: Harness,
) -> None:
    broker = harness.broker
    await make_sales(broker)
    async with broker.changes.lock:
        making = asyncio.ensure_future(broker.partitions.create(ORDERS, 2))
        await turns(2)
        deleting = asyncio.ensure_future(administration(broker).namespaces.delete(SALES))
        await turns(2)
    await deleting
    with pytest.raises(NamespaceNotFound):
        await making
    assert not broker.catalog.documents("partitioned")


async def test_a_tenant_and_a_namespace_in_it_are_not_deleted_and_made_at_the_same_time(harness: Harness) -> None:
    broker = harness.broker
    await administration(broker).tenants.create("acme", INFO)
    with harness.catalog_held():
        deleting = asyncio.ensure_future(administration(broker).tenants.delete("acme"))
        await turns(2)
        making = asyncio.ensure_future(administration(broker).namespaces.create(SALES))
        changing = asyncio.ensure_future(administration(broker).tenants.update("acme", INFO))
        await turns(2)
    await deleting
    for outcome in await asyncio.gather(making, changing, return_exceptions=True):
        assert isinstance(outcome, TenantNotFound)
    assert "acme" not in broker.catalog.tenants()
    assert str(SALES) not in broker.catalog.namespaces()


async def test_system_topics_do_not_keep_a_namespace(tmp_path: Path) -> None:
    async with running(tmp_path, usage_records_enabled=True) as harness:
        broker = harness.broker
        await until(broker.catalog.topics)
        await administration(broker).namespaces.delete(NamespaceName.parse("pulsar/system"))


async def test_an_unloaded_namespace_loads_its_topics_anew(harness: Harness) -> None:
    broker = harness.broker
    await make_sales(broker)
    for name in ("acme/sales/a", "acme/sales/b", "public/default/c"):
        await administration(broker).topics.create(TopicName.parse(name))
    await administration(broker).namespaces.unload(SALES)
    assert [topic.name.local for topic in broker.topics.loaded()] == ["c"]


async def test_a_bundle_is_cut_in_two_and_the_halves_hold_its_topics(harness: Harness) -> None:
    broker = harness.broker
    await administration(broker).tenants.create("acme", INFO)
    await administration(broker).namespaces.create(SALES, {"bundles": {"numBundles": 1}})
    for number in range(20):
        await administration(broker).topics.create(TopicName.parse(f"acme/sales/{number}"))
    await refused(administration(broker).namespaces.split_bundle(SALES, "0x1_0x2"), NotFound, 404, "has no bundle")
    await administration(broker).namespaces.split_bundle(SALES, "0x00000000_0xffffffff")
    bundles = administration(broker).namespaces.get(SALES)["bundles"]
    assert bundles == {"boundaries": ["0x00000000", "0x7fffffff", "0xffffffff"], "numBundles": 2}
    low = administration(broker).namespaces.topics(SALES, "0x00000000_0x7fffffff")
    high = administration(broker).namespaces.topics(SALES, "0x7fffffff_0xffffffff")
    assert (len(low) + len(high), bool(low), bool(high)) == (20, True, True)
    await administration(broker).namespaces.unload(SALES, "0x00000000_0x7fffffff")
    assert {topic.text for topic in broker.topics.loaded()} == set(high)


# -- clusters ---------------------------------------------------------------------------------------------------------


async def test_the_brokers_own_cluster_is_there_and_stays(harness: Harness) -> None:
    broker = harness.broker
    assert administration(broker).clusters.names() == ["test"]
    await refused(administration(broker).clusters.create("test", {}), AlreadyExists, 409, "Cluster already exists")
    await refused(administration(broker).clusters.delete("test"), PreconditionFailed, 412, "Cluster not empty")
    await administration(broker).clusters.update("test", {"serviceUrl": "http://here:8080"})
    assert administration(broker).clusters.get("test")["serviceUrl"] == "http://here:8080"


async def test_other_clusters_are_made_read_changed_and_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await administration(broker).clusters.create("west", {"serviceUrl": "http://west:8080", "listenerName": None})
        assert administration(broker).clusters.get("west") == {"serviceUrl": "http://west:8080"}
        await administration(broker).clusters.update("west", {"serviceUrl": "http://west:80"})
    async with running(tmp_path) as harness:
        broker = harness.broker
        assert administration(broker).clusters.names() == ["test", "west"]
        await administration(broker).tenants.create("acme", {"allowedClusters": ["west", "test"]})
        await administration(broker).namespaces.create(SALES, {"replication_clusters": ["west"]})
        await refused(administration(broker).clusters.delete("west"), PreconditionFailed, 412, "Cluster not empty")
        await administration(broker).namespaces.delete(SALES)
        await administration(broker).clusters.delete("west")
        for doing in (
            administration(broker).clusters.delete("west"),
            administration(broker).clusters.update("west", {}),
        ):
            await refused(doing, NotFound, 404, "Cluster does not exist")
        await refused(administration(broker).clusters.create("a b", {}), PreconditionFailed, 412, "not valid")


@pytest.mark.parametrize(
    ("member", "url", "example"),
    [
        ("serviceUrl", "https://west:8443", "http://pulsar.example.com:8080"),
        ("serviceUrlTls", "west:8443", "https://pulsar.example.com:8443"),
        ("brokerServiceUrl", "pulsar+ssl://west:6651", "pulsar://pulsar.example.com:6650"),
        ("brokerServiceUrlTls", "pulsar+ssl://we st:6651", "pulsar+ssl://pulsar.example.com:6651"),
        ("brokerServiceUrl", "pulsar://west:66500", "pulsar://pulsar.example.com:6650"),
    ],
)
async def test_a_url_of_a_cluster_that_leads_nowhere_is_refused_with_an_example(
    tmp_path: Path, member: str, url: str, example: str
) -> None:
    async with running(tmp_path) as harness:
        clusters = administration(harness.broker).clusters
        await refused(clusters.create("west", {member: url}), PreconditionFailed, 412, example)
        assert clusters.names() == ["test"]


async def test_credentials_for_a_cluster_are_kept_and_never_shown(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        clusters, catalog = administration(harness.broker).clusters, harness.broker.catalog
        shown = {"brokerServiceUrl": "pulsar://west:6650", "authenticationPlugin": "token"}
        await clusters.create("west", {**shown, "authenticationParameters": "token:secret"})
        assert clusters.get("west") == shown
        await clusters.update("west", {**shown, "brokerServiceUrl": "pulsar://west:6660"})
        assert catalog.documents("cluster")["west"]["authenticationParameters"] == "token:secret"
        await clusters.update("west", {**shown, "authenticationParameters": "token:newer"})
        assert catalog.documents("cluster")["west"]["authenticationParameters"] == "token:newer"


async def test_topics_are_only_replicated_where_their_tenant_and_namespace_may_be(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        admin = administration(harness.broker)
        await make_sales(harness.broker)
        for name in ("east", "west"):
            await admin.clusters.create(name, {})
        everywhere = ["test", "east", "west"]
        await refused(admin.policies.set_replication(SALES, everywhere), AuthorizationFailed, 403, "tenant acme")
        await admin.tenants.update("acme", {"allowedClusters": everywhere})
        await admin.policies.set_of_namespace(SALES, "allowed_clusters", ["test", "west"])
        await refused(admin.policies.set_replication(SALES, everywhere), AuthorizationFailed, 403, "its namespace")
        await refused(admin.policies.set_replication(SALES, ["west"]), PreconditionFailed, 412, "this one, 'test'")
        await admin.policies.set_replication(SALES, ["test", "west"])
        topic = await harness.broker.topics.get_or_create(ORDERS, create=True)

        def clusters() -> list[str]:
            return list(topic.policies.replication_clusters)

        assert clusters() == ["test", "west"]
        on_topic = partial(admin.policies.set_of_topic, ORDERS, "replicationClusters")
        await refused(on_topic(["test", "east"]), AuthorizationFailed, 403, "east")
        await on_topic(["test"])
        assert clusters() == ["test"]
        await on_topic(None)
        assert clusters() == ["test", "west"]


# -- permissions ------------------------------------------------------------------------------------------------------


async def test_what_is_granted_is_read_back_and_taken_away(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await make_sales(broker)
        await broker.permissions.grant_namespace(SALES, "alice", ["produce", "consume", "produce"])
        await broker.permissions.grant_namespace(SALES, "bob", ["functions"])
        await broker.permissions.grant_topic(ORDERS, "bob", ["consume"])
        await broker.permissions.grant_subscription(SALES, "audit", ["carol", "dave"])
    async with running(tmp_path) as harness:
        broker = harness.broker
        assert broker.permissions.get_namespace(SALES) == {"alice": ["consume", "produce"], "bob": ["functions"]}
        of_topic = {"alice": ["consume", "produce"], "bob": ["consume", "functions"]}
        assert broker.permissions.get_topic(ORDERS) == of_topic
        assert broker.permissions.get_topic(ORDERS.of_partition(3)) == of_topic
        assert broker.permissions.get_subscription(SALES) == {"audit": ["carol", "dave"]}
        await broker.permissions.revoke_subscription(SALES, "audit", "carol")
        assert broker.permissions.get_subscription(SALES) == {"audit": ["dave"]}
        await broker.permissions.revoke_namespace(SALES, "alice")
        await broker.permissions.revoke_topic(ORDERS, "bob")
        assert broker.permissions.get_topic(ORDERS) == {"bob": ["functions"]}


async def test_only_what_is_there_is_granted_and_taken_away(harness: Harness) -> None:
    broker = harness.broker
    await make_sales(broker)
    nowhere = NamespaceName.parse("acme/nowhere")
    for doing, kind, status, words in (
        (broker.permissions.grant_namespace(SALES, "a", ["fly"]), PreconditionFailed, 412, "fly"),
        (broker.permissions.grant_namespace(nowhere, "a", ["produce"]), NamespaceNotFound, 404, "nowhere"),
        (broker.permissions.revoke_topic(ORDERS, "a"), PreconditionFailed, 412, "not set at the topic level"),
        (broker.permissions.revoke_subscription(SALES, "s", "a"), PreconditionFailed, 412, "not granted"),
    ):
        await refused(doing, kind, status, words)
