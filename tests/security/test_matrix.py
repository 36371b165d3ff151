# SPDX-License-Identifier: Apache-2.0
"""Every command of the protocol, asked by every kind of role: who is answered, who is refused, and what that changes.

A command that comes to the protocol without a row here fails a test.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.commands import commands
from penstock.core.errors import WireCode
from penstock.core.system_topics import COORDINATORS
from penstock.testing.client import Type, frame
from tests.net.harness import Client, connect, turns
from tests.security.roles import (
    DOCUMENT,
    LETS_IN,
    NAMESPACE,
    NOBODY,
    OWNER,
    READER,
    ROLES,
    ROOT,
    STRANGER,
    TENANT,
    WRITER,
    administer,
    connected,
    everything,
    guarded,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from penstock.broker.limits import BrokerLimits
    from penstock.wire.pulsar_pb2 import BaseCommand
    from tests.net.harness import Harness

TOPIC = f"persistent://{NAMESPACE}/new"
SCHEMA = {"name": "s", "schema_data": b"", "type": 1}


@dataclass(frozen=True)
class Row:
    """One command, what answers it, and who may ask it."""

    command: int
    answer: int
    allowed: Collection[str]
    fields: dict[str, Any] = field(default_factory=dict)
    creates: bool = False  # the topic, if it does not exist
    otherwise: WireCode | None = None  # the error of those who may ask, where there is nothing to answer with


ANY_USE = {READER, WRITER, OWNER, ROOT}
MATRIX = {
    "PRODUCER": Row(
        Type.PRODUCER, Type.PRODUCER_SUCCESS, {WRITER, OWNER, ROOT}, {"topic": TOPIC, "producer_id": 0}, creates=True
    ),
    "PRODUCER with a subscription": Row(
        Type.PRODUCER,
        Type.PRODUCER_SUCCESS,
        {OWNER, ROOT},
        {"topic": TOPIC, "producer_id": 0, "initial_subscription_name": "first"},
        creates=True,
    ),
    "SUBSCRIBE": Row(
        Type.SUBSCRIBE,
        Type.SUCCESS,
        {READER, OWNER, ROOT},
        {"topic": TOPIC, "subscription": "s", "consumer_id": 0, "subType": 1, "schema": SCHEMA},
        creates=True,
    ),
    "LOOKUP": Row(Type.LOOKUP, Type.LOOKUP_RESPONSE, ANY_USE, {"topic": TOPIC}),
    "LOOKUP of a pattern": Row(Type.LOOKUP, Type.LOOKUP_RESPONSE, ANY_USE, {"topic": f"{TOPIC}-.*"}),
    "PARTITIONED_METADATA": Row(
        Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, ANY_USE, {"topic": TOPIC}
    ),
    "GET_TOPICS_OF_NAMESPACE": Row(
        Type.GET_TOPICS_OF_NAMESPACE, Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, ANY_USE, {"namespace": NAMESPACE}
    ),
    "WATCH_TOPIC_LIST": Row(
        Type.WATCH_TOPIC_LIST,
        Type.WATCH_TOPIC_LIST_SUCCESS,
        ANY_USE,
        {"namespace": NAMESPACE, "watcher_id": 0, "topics_pattern": "x.*"},
    ),
    "GET_SCHEMA": Row(
        Type.GET_SCHEMA, Type.GET_SCHEMA_RESPONSE, ANY_USE, {"topic": TOPIC}, otherwise=WireCode.TOPIC_NOT_FOUND
    ),
    "GET_OR_CREATE_SCHEMA": Row(
        Type.GET_OR_CREATE_SCHEMA,
        Type.GET_OR_CREATE_SCHEMA_RESPONSE,
        {WRITER, OWNER, ROOT},
        {"topic": TOPIC, "schema": SCHEMA},
        otherwise=WireCode.TOPIC_NOT_FOUND,
    ),
}
# About a producer, a consumer or a watcher that this connection made, and so was let in with.
RIDE_ALONG = {
    Type.CLOSE_PRODUCER,
    Type.CLOSE_CONSUMER,
    Type.WATCH_TOPIC_LIST_CLOSE,
    Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
    Type.SEEK,
    Type.UNSUBSCRIBE,
    Type.GET_LAST_MESSAGE_ID,
    Type.CONSUMER_STATS,
}
# About the connection itself.
OF_THE_CONNECTION = {Type.CONNECT, Type.AUTH_RESPONSE, Type.PING, Type.PONG}
# About a transaction of the asker, whatever it may do; see the end of this file.
OF_TRANSACTIONS = {
    Type.NEW_TXN,
    Type.ADD_PARTITION_TO_TXN,
    Type.ADD_SUBSCRIPTION_TO_TXN,
    Type.END_TXN,
    Type.TC_CLIENT_CONNECT_REQUEST,
}


def error_of(answer: BaseCommand) -> WireCode | None:
    """The error an answer carries, in whichever way its command does."""
    for name, code in (
        ("error", "error"),
        ("lookupTopicResponse", "error"),
        ("partitionMetadataResponse", "error"),
        ("getSchemaResponse", "error_code"),
        ("getOrCreateSchemaResponse", "error_code"),
        ("consumerStatsResponse", "error_code"),
    ):
        if answer.HasField(name):
            body = getattr(answer, name)
            return WireCode(getattr(body, code)) if body.HasField(code) else None
    return None


def documented() -> dict[str, str]:
    """Who may ask which command; behind a command's name may stand how it is asked."""
    found: dict[str, str] = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        row = re.match(r"\| (`.*`)([^|]*) \| ([^|]+) \|$", line)
        if row is not None:
            found |= {name + row[2]: row[3] for name in re.findall(r"[A-Z_]{3,}", row[1])}
    return found


async def test_every_command_that_a_client_may_send_has_its_row(tmp_path: Path) -> None:
    rows = {row.command for row in MATRIX.values()}
    async with guarded(tmp_path) as harness:
        assert rows | RIDE_ALONG | OF_THE_CONNECTION | OF_TRANSACTIONS == set(commands(harness.broker).handlers)


async def test_every_command_has_its_place_in_the_document(tmp_path: Path) -> None:
    rows = documented()
    async with guarded(tmp_path) as harness:
        assert rows.keys() >= {Type.Name(Type.ValueType(number)) for number in commands(harness.broker).handlers}
    for command, row in MATRIX.items():
        who = rows.get(command) or rows[Type.Name(Type.ValueType(row.command))]
        assert LETS_IN[who] == row.allowed, command


async def test_who_does_not_say_who_it_is_is_not_even_asked_what_it_wants(tmp_path: Path) -> None:
    async with guarded(tmp_path) as harness:
        before = everything(harness)
        for row in MATRIX.values():
            client = await Client.open(harness.port)
            client.write(connect() + frame(row.command, request_id=7, **row.fields))
            await client.closed()
            assert everything(harness) == before
        client = await Client.open(harness.port)
        client.write(connect())
        assert error_of(await client.read()) is WireCode.AUTHENTICATION_ERROR


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("row", MATRIX.values(), ids=MATRIX.keys())
async def test_a_command_is_carried_out_for_those_who_may_and_changes_nothing_for_others(
    tmp_path: Path, row: Row, role: str
) -> None:
    async with guarded(tmp_path) as harness:
        before = everything(harness)
        client = await connected(harness, role)
        client.write(frame(row.command, request_id=7, **row.fields))
        answer = await client.read()
        if role in row.allowed:
            assert (answer.type, error_of(answer)) == (row.answer, row.otherwise)
            assert (harness.broker.catalog.topic(TOPIC) is not None) is row.creates
        else:
            assert error_of(answer) is WireCode.AUTHORIZATION_ERROR
            assert answer.type in {row.answer, Type.ERROR}
            await turns()
            assert everything(harness) == before
        client.write(frame(Type.PING))
        await client.expect(Type.PONG)


@pytest.mark.parametrize("role", [NOBODY, STRANGER, WRITER])
@pytest.mark.parametrize("command", ["SEEK", "UNSUBSCRIBE", "CONSUMER_STATS", "GET_LAST_MESSAGE_ID"])
async def test_a_consumer_of_another_connection_is_out_of_reach(tmp_path: Path, command: str, role: str) -> None:
    async with guarded(tmp_path) as harness:
        reader = await connected(harness, READER)
        await reader.request(Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=1)
        before = everything(harness)
        client = await connected(harness, role)
        client.write(frame(Type.Value(command), request_id=7, consumer_id=0))
        assert error_of(await client.read()) in {WireCode.METADATA_ERROR, WireCode.CONSUMER_NOT_FOUND}
        assert everything(harness) == before
        reader.write(frame(Type.PING))
        await reader.expect(Type.PONG)


@pytest.mark.parametrize("role", [NOBODY, STRANGER, READER])
async def test_what_is_sent_without_a_producer_is_not_stored(tmp_path: Path, role: str) -> None:
    from tests.net.harness import SMALL, publish

    async with guarded(tmp_path) as harness:
        writer = await connected(harness, WRITER)
        await writer.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        client = await connected(harness, role)
        client.write(publish(SMALL))
        await client.closed()
        (topic,) = harness.broker.topics.loaded()
        assert topic.last_entry_id == -1


@pytest.mark.parametrize("role", ROLES)
async def test_everybody_is_told_that_there_is_no_such_tenant(tmp_path: Path, role: str) -> None:
    async with guarded(tmp_path) as harness:
        client = await connected(harness, role)
        client.write(frame(Type.PARTITIONED_METADATA, request_id=7, topic="persistent://nowhere/ns/t"))
        assert error_of(await client.read()) is WireCode.TOPIC_NOT_FOUND


# -- grants that change


async def test_who_may_no_more_is_disconnected_and_not_let_in_again(tmp_path: Path) -> None:
    async with guarded(tmp_path) as harness:
        reader, writer = await connected(harness, READER), await connected(harness, WRITER)
        await reader.request(Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=1)
        await writer.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        grants = {"namespace_auth": {WRITER: ["produce"]}}
        await harness.broker.policies.set_namespace(NAMESPACE, "auth_policies", grants)
        await reader.expect(Type.CLOSE_CONSUMER)
        answer = await reader.request(
            Type.SUBSCRIBE, Type.ERROR, topic=TOPIC, subscription="s", consumer_id=0, subType=1
        )
        assert error_of(answer) is WireCode.AUTHORIZATION_ERROR

        await harness.broker.policies.set_namespace(NAMESPACE, "auth_policies", {})
        await writer.expect(Type.CLOSE_PRODUCER)
        answer = await writer.request(Type.PRODUCER, Type.ERROR, topic=TOPIC, producer_id=0)
        assert error_of(answer) is WireCode.AUTHORIZATION_ERROR


async def test_who_may_still_stays_connected(tmp_path: Path) -> None:
    async with guarded(tmp_path) as harness:
        for role in (WRITER, OWNER, ROOT):
            client = await connected(harness, role)
            await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        grants = {"namespace_auth": {WRITER: ["produce"]}}
        await harness.broker.policies.set_namespace(NAMESPACE, "auth_policies", grants)
        await turns()
        (topic,) = harness.broker.topics.loaded()
        assert len(topic.producers) == 3


async def test_an_admin_who_is_none_any_more_is_disconnected(tmp_path: Path) -> None:
    async with guarded(tmp_path) as harness:
        owner = await connected(harness, OWNER)
        await owner.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        await administer(harness, TENANT, "successor", NAMESPACE, {})
        await harness.broker.revocation.disconnect_unauthorized(TENANT)
        await owner.expect(Type.CLOSE_PRODUCER)


async def watching(client: Client) -> None:
    """Let a client watch all topics of the namespace."""
    await client.request(
        Type.WATCH_TOPIC_LIST, Type.WATCH_TOPIC_LIST_SUCCESS, namespace=NAMESPACE, watcher_id=0, topics_pattern=".*"
    )


async def test_who_may_no_more_look_up_hears_of_no_topic_any_more(tmp_path: Path) -> None:
    async with guarded(tmp_path) as harness:
        reader, writer = await connected(harness, READER), await connected(harness, WRITER)
        await watching(reader)
        await watching(writer)
        grants = {"namespace_auth": {WRITER: ["produce"]}}
        await harness.broker.policies.set_namespace(NAMESPACE, "auth_policies", grants)
        await reader.closed()
        writer.write(frame(Type.PRODUCER, request_id=7, topic=TOPIC, producer_id=0))
        update = await writer.read()
        while update.type != Type.WATCH_TOPIC_UPDATE:  # The producer may be told before, or behind.
            update = await writer.read()
        assert list(update.watchTopicUpdate.new_topics) == [TOPIC]


class Rules:
    """Settings of which the superusers can be changed while the broker runs."""

    dynamic = ("superUserRoles",)
    aliases: Mapping[str, str] = {}

    def __init__(self, limits: BrokerLimits) -> None:
        self.limits = limits

    def values(self) -> Mapping[str, str]:
        return {"superUserRoles": ",".join(self.limits.access.super_user_roles)}

    def described(self) -> list[dict[str, object]]:
        return []

    def check(self, key: str, value: str) -> None:
        """Any text names roles."""

    def changed(self, changes: Mapping[str, str]) -> Rules:
        if not changes:
            return self
        access = replace(self.limits.access, super_user_roles=frozenset(changes["superUserRoles"].split(",")))
        return Rules(replace(self.limits, access=access))


async def test_who_is_no_superuser_any_more_is_disconnected(tmp_path: Path) -> None:
    async with guarded(tmp_path, keys=Rules) as harness:
        root, watcher = await connected(harness, ROOT), await connected(harness, ROOT)
        owner = await connected(harness, OWNER)
        await root.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        await root.request(Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=1)
        await owner.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        await watching(watcher)
        await harness.broker.configuration.put("superUserRoles", "successor")
        await root.expect(Type.CLOSE_PRODUCER)
        await root.expect(Type.CLOSE_CONSUMER)
        await watcher.closed()
        (topic,) = harness.broker.topics.loaded()
        assert {one.role for one in harness.broker.sessions if one.producers} == {OWNER}
        assert topic.producers


@pytest.mark.parametrize("kind", ["PRODUCER", "SUBSCRIBE"])
async def test_who_waits_for_the_disk_while_a_grant_is_taken_back_is_not_let_in(tmp_path: Path, kind: str) -> None:
    async with guarded(tmp_path) as harness:
        ways: dict[str, tuple[str, dict[str, Any]]] = {
            "PRODUCER": (WRITER, {"producer_id": 0}),
            "SUBSCRIBE": (READER, {"subscription": "s", "consumer_id": 0, "subType": 1}),
        }
        role, fields = ways[kind]
        client = await connected(harness, role)
        with harness.catalog_held():  # The topic must be stored first.
            client.write(frame(Type.Value(kind), request_id=7, topic=TOPIC, **fields))
            await turns()
            taking = asyncio.ensure_future(harness.broker.policies.set_namespace(NAMESPACE, "auth_policies", {}))
            await turns()
        await taking
        command = await client.read()
        while command.type not in {Type.ERROR, Type.CLOSE_PRODUCER, Type.CLOSE_CONSUMER}:
            command = await client.read()
        await turns()
        (topic,) = harness.broker.topics.loaded()
        assert not topic.producers
        assert not any(one.consumers for one in topic.subscriptions.values())


# -- transactions


async def opened(client: Client) -> dict[str, int]:
    """The fields that name a transaction that this client has opened."""
    answer = await client.request(Type.NEW_TXN, Type.NEW_TXN_RESPONSE, txn_ttl_seconds=60_000, tc_id=0)
    body = answer.newTxnResponse
    return {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}


async def with_topic(harness: Harness) -> None:
    """The topic exists, with a subscription."""
    owner = await connected(harness, OWNER)
    await owner.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
    await owner.request(Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=1)


@pytest.mark.parametrize("role", ROLES)
async def test_a_transaction_may_do_what_its_role_may(tmp_path: Path, role: str) -> None:
    named = [{"topic": TOPIC, "subscription": "s"}]
    async with guarded(tmp_path) as harness:
        await with_topic(harness)
        client = await connected(harness, role)
        assignment = f"{COORDINATORS}-partition-0"
        found = await client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=assignment)
        assert found.lookupTopicResponse.response == found.lookupTopicResponse.Connect
        await client.request(Type.TC_CLIENT_CONNECT_REQUEST, Type.TC_CLIENT_CONNECT_RESPONSE, tc_id=0)
        ids = await opened(client)
        kind, answer = Type.ADD_PARTITION_TO_TXN, Type.ADD_PARTITION_TO_TXN_RESPONSE
        added = (await client.request(kind, answer, **ids, partitions=[TOPIC])).addPartitionToTxnResponse
        assert added.HasField("error") is (role not in MATRIX["PRODUCER"].allowed)
        kind, answer = Type.ADD_SUBSCRIPTION_TO_TXN, Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE
        joined = (await client.request(kind, answer, **ids, subscription=named)).addSubscriptionToTxnResponse
        assert joined.HasField("error") is (role not in MATRIX["SUBSCRIBE"].allowed)
        ended = (await client.request(Type.END_TXN, Type.END_TXN_RESPONSE, **ids, txn_action=0)).endTxnResponse
        assert not ended.HasField("error")


async def test_the_transaction_of_another_role_is_out_of_reach(tmp_path: Path) -> None:
    async with guarded(tmp_path) as harness:
        await with_topic(harness)
        ids = await opened(await connected(harness, OWNER))
        client = await connected(harness, WRITER)
        kind, answer = Type.ADD_PARTITION_TO_TXN, Type.ADD_PARTITION_TO_TXN_RESPONSE
        added = (await client.request(kind, answer, **ids, partitions=[TOPIC])).addPartitionToTxnResponse
        ended = (await client.request(Type.END_TXN, Type.END_TXN_RESPONSE, **ids, txn_action=1)).endTxnResponse
        assert {WireCode(each.error) for each in (added, ended)} == {WireCode.AUTHORIZATION_ERROR}
        assert len(harness.broker.transactions.open_ones()) == 1
