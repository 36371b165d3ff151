# SPDX-License-Identifier: Apache-2.0
"""Other clusters that do not behave: topics wait and say why, nothing else does, and they go on when it is mended."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.authentication.authenticator import Authenticator
from penstock.authentication.credentials import ProviderOptions
from penstock.broker.access.rules import AccessRules
from penstock.broker.composition.administration import administration
from penstock.broker.replication.replicator import Replicator
from penstock.core.names import TopicName
from penstock.core.units import MIB, NS_PER_S
from penstock.testing.certificates import Certificate
from penstock.testing.client import Type, frame
from penstock.testing.loop import VirtualLoop
from penstock.testing.tokens import SECRET, data_url, token
from penstock.wire.client.frames import decode_frame, payload_in
from tests.broker.clusters import TOPIC, cluster, replicate, sending, stored
from tests.net.harness import Client, Harness, topic_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

PARTITIONED = TopicName.parse("persistent://public/default/p")


def replicator_of(harness: Harness, name: str = "west", topic: str = TOPIC) -> Replicator:
    replicator = topic_of(harness, topic).subscriptions[f"pulsar.repl.{name}"].replicator
    assert isinstance(replicator, Replicator)
    return replicator


def payloads(harness: Harness) -> list[bytes]:
    return [bytes(payload_in(entry)) for entry in stored(harness)]


async def publish(harness: Harness, *what: bytes, topic: str = TOPIC, first: int = 0) -> None:
    client = await Client.producing(harness.port, topic=topic)
    client.write(b"".join(sending(number, payload) for number, payload in enumerate(what, first)))
    await client.receipts(len(what))
    await client.close()


@asynccontextmanager
async def speaking(
    speak: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A port where this is said."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    listening = loop.network.socket()
    listening.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(speak, sock=listening)
    yield listening.getsockname()[1]
    server.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept, and never answer."""
    await reader.read()
    writer.close()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(range(256)))
    await reader.read()
    writer.close()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Announce a frame of 1 GiB, and send it slowly."""
    await reader.read(1)
    writer.write((1 << 30).to_bytes(4, "big") + bytes(4096))
    await reader.read()
    writer.close()


@pytest.mark.parametrize("speak", [silent, garbage, endless])
async def test_what_is_no_broker_is_tried_again_and_keeps_nobody_else(
    tmp_path: Path, speak: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> None:
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west") as west, speaking(speak) as port:
        everywhere = ["east", "north", "west"]
        admin = administration(east.broker)
        await admin.clusters.create("north", {"brokerServiceUrl": f"pulsar://127.0.0.1:{port}"})
        await replicate(east, west, "west", everywhere)
        await publish(east, b"0", b"1")
        await until(lambda: payloads(west) == [b"0", b"1"])
        await until(lambda: replicator_of(east, "north").problem)
        await asyncio.sleep(300)
        replicator = replicator_of(east, "north")
        assert replicator.problem
        assert not replicator.out_bytes
        assert topic_of(east).subscriptions["pulsar.repl.north"].backlog == 2
        async with cluster(tmp_path, "north") as north:
            await admin.clusters.update("north", {"brokerServiceUrl": f"pulsar://127.0.0.1:{north.port}"})
            await until(lambda: payloads(north) == [b"0", b"1"])
            assert replicator_of(east, "north").problem is None


async def swallowing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a broker, and take entries without an answer."""
    port = writer.get_extra_info("sockname")[1]
    while True:
        try:
            size = await reader.readexactly(4)
            data = size + await reader.readexactly(int.from_bytes(size, "big"))
        except (asyncio.IncompleteReadError, OSError):
            break
        command = decode_frame(data, 0, len(data)).command
        if command.type == Type.CONNECT:
            writer.write(frame(Type.CONNECTED, server_version="s", protocol_version=20, max_message_size=5 * MIB))
        elif command.type == Type.PARTITIONED_METADATA:
            number = command.partitionMetadata.request_id
            writer.write(frame(Type.PARTITIONED_METADATA_RESPONSE, request_id=number, partitions=0, response=0))
        elif command.type == Type.LOOKUP:
            url, number = f"pulsar://127.0.0.1:{port}", command.lookupTopic.request_id
            writer.write(
                frame(Type.LOOKUP_RESPONSE, request_id=number, brokerServiceUrl=url, response=1, authoritative=True)
            )
        elif command.type == Type.PRODUCER:
            number = command.producer.request_id
            writer.write(frame(Type.PRODUCER_SUCCESS, request_id=number, producer_name="p"))
        elif command.type == Type.PING:
            writer.write(frame(Type.PONG))
    writer.close()


async def test_a_cluster_that_takes_everything_and_stores_nothing_gets_a_bounded_part(tmp_path: Path) -> None:
    async with cluster(tmp_path, "east", outbound_bytes=8 * MIB) as east, speaking(swallowing) as port:
        await replicate(east, port, "west", ["east", "west"])
        large = [bytes(MIB // 2)] * 10
        for round_ in range(3):
            await publish(east, *large, first=10 * round_)
        await until(lambda: replicator_of(east).out_bytes > MIB)
        await asyncio.sleep(90)
        assert replicator_of(east).out_bytes <= 2 * MIB
        assert topic_of(east).subscriptions["pulsar.repl.west"].backlog == 30
        async with cluster(tmp_path, "west") as west:
            admin = administration(east.broker)
            await admin.clusters.update("west", {"brokerServiceUrl": f"pulsar://127.0.0.1:{west.port}"})
            await until(lambda: len(payloads(west)) == 30)


async def test_a_schema_that_is_refused_stops_its_topic_alone_and_until_it_is_accepted(tmp_path: Path) -> None:
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west") as west:
        client = await Client.connected(west.port)
        schema = {"name": "s", "type": 1, "schema_data": b""}
        await client.request(
            Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0, producer_name="p", schema=schema
        )
        await replicate(east, west, "west", ["east", "west"])
        record = b'{"type":"record","name":"r","fields":[{"name":"a","type":"string"}]}'
        client = await Client.connected(east.port)
        schema = {"name": "r", "type": 4, "schema_data": record}
        answer = await client.request(
            Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0, producer_name="p", schema=schema
        )
        client.write(sending(0, b"\x02x", schema_version=answer.producer_success.schema_version))
        await client.receipts(1)
        await until(lambda: replicator_of(east).problem)
        await publish(east, b"0", topic="persistent://public/default/other")
        await until(lambda: west.broker.topics.get("persistent://public/default/other"))
        assert payloads(west) == []
        assert "schema" in str(replicator_of(east).problem).lower()
        await west.broker.policies.set_namespace("public/default", "schema_compatibility_strategy", "ALWAYS_COMPATIBLE")
        await until(lambda: payloads(west) == [b"\x02x"])
        assert replicator_of(east).problem is None


async def test_a_topic_with_too_few_partitions_there_waits_until_it_has_them(tmp_path: Path) -> None:
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west") as west:
        admin, there = administration(east.broker), administration(west.broker)
        await replicate(east, west, "west", ["east", "west"])
        await admin.topics.create_partitioned(PARTITIONED, 4)
        await there.topics.create_partitioned(PARTITIONED, 2)
        last = f"{PARTITIONED}-partition-3"
        await publish(east, b"0", topic=last)
        await until(lambda: replicator_of(east, topic=last).problem)
        assert "has no serviceUrl, which is needed to make partitioned topics" in str(
            replicator_of(east, topic=last).problem
        )
        assert west.broker.topics.get(last) is None
        await there.topics.update_partitioned(PARTITIONED, 4)
        await until(lambda: topic_of(west, last).last_entry_id == 0 if west.broker.topics.get(last) else None)


async def test_a_cluster_that_has_lost_its_data_is_not_given_half_of_a_topic(tmp_path: Path) -> None:
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west") as west:
        admin, there = administration(east.broker), administration(west.broker)
        await replicate(east, west, "west", ["east", "west"])
        await admin.topics.create_partitioned(PARTITIONED, 2)
        await there.topics.create_partitioned(PARTITIONED, 2)
        one = f"{PARTITIONED}-partition-1"
        await publish(east, b"0", topic=one)
        await until(lambda: west.broker.topics.get(one) and topic_of(west, one).last_entry_id == 0)
        await there.topics.delete_partitioned(PARTITIONED, force=True)
        await publish(east, b"1", topic=one, first=1)
        await until(lambda: replicator_of(east, topic=one).problem)
        await asyncio.sleep(120)
        assert west.broker.topics.get(one) is None
        await there.topics.create_partitioned(PARTITIONED, 2)
        await until(lambda: west.broker.topics.get(one) and topic_of(west, one).last_entry_id == 0)
        await until(lambda: not topic_of(east, one).subscriptions["pulsar.repl.west"].backlog)


async def test_messages_end_their_way_round_three_clusters(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    async with AsyncExitStack() as stack:
        clusters = {name: await stack.enter_async_context(cluster(tmp_path, name)) for name in names}
        for name, following in (("a", "b"), ("b", "c"), ("c", "a")):
            await replicate(clusters[name], clusters[following], following, [name, following])
        for name in names:
            await publish(clusters[name], name.encode())
        await until(lambda: all(len(payloads(one)) == 2 for one in clusters.values()))
        await asyncio.sleep(60)
        assert {name: sorted(payloads(one)) for name, one in clusters.items()} == {
            "a": [b"a", b"c"],
            "b": [b"a", b"b"],
            "c": [b"b", b"c"],
        }


async def test_a_cluster_that_has_the_name_of_the_other_one_is_told_so(tmp_path: Path) -> None:
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west", cluster_name="east") as west:
        await replicate(east, west, "west", ["east", "west"])
        await publish(east, b"0")
        await until(lambda: replicator_of(east).problem)
        assert "a cluster that is named 'east', as this one" in str(replicator_of(east).problem)
        assert payloads(west) == []


async def test_a_token_that_expires_is_read_again_from_its_file(tmp_path: Path) -> None:
    options = ProviderOptions(methods=frozenset({"token"}), token_secret_key=data_url(SECRET))
    guarded = {"authenticator": Authenticator(options), "access": AccessRules(refresh_check_ns=60 * NS_PER_S)}
    file = tmp_path / "token"
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west", **guarded) as west:
        now_s = west.clock.wall_ms() // 1000
        file.write_text(token("edge", exp=now_s + 90))
        await replicate(
            east,
            west,
            "west",
            ["east", "west"],
            authenticationPlugin="org.apache.pulsar.client.impl.auth.AuthenticationToken",
            authenticationParameters=f"file://{file}",
        )
        await publish(east, b"0")
        await until(lambda: payloads(west) == [b"0"])
        # Replaced in time: nobody notices.
        file.write_text(token("edge", exp=now_s + 400))
        for round_ in range(6):
            await asyncio.sleep(50)
            await publish(east, b"kept", first=1 + round_)
        await until(lambda: len(payloads(west)) == 7)
        assert replicator_of(east).problem is None
        # Replaced too late: the topic waits, says so, and goes on by itself.
        await asyncio.sleep(300)
        await publish(east, b"late", first=7)
        await until(lambda: replicator_of(east).problem)
        assert "authenticat" in str(replicator_of(east).problem).lower()
        file.write_text(token("edge", exp=now_s + 100_000))
        await until(lambda: payloads(west)[-1] == b"late")
        assert replicator_of(east).problem is None


async def test_a_cluster_is_reached_by_tls_with_a_token_and_not_without_its_certificate(
    tmp_path: Path,
) -> None:
    certificate = Certificate.make(tmp_path)
    options = ProviderOptions(methods=frozenset({"token"}), token_secret_key=data_url(SECRET))
    guarded = {"authenticator": Authenticator(options), "access": AccessRules(), "tls": certificate.server()}
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west", **guarded) as west:
        data = {
            "brokerServiceUrlTls": f"pulsar+ssl://127.0.0.1:{west.tls_port}",
            "brokerClientTlsEnabled": True,
            "authenticationPlugin": "token",
            "authenticationParameters": f"token:{token('edge')}",
        }
        await replicate(east, west, "west", ["east", "west"], **data)
        await publish(east, b"0")
        await until(lambda: replicator_of(east).problem)
        assert "certificate" in str(replicator_of(east).problem).lower()
        admin = administration(east.broker)
        await admin.clusters.update("west", {**data, "brokerClientTrustCertsFilePath": str(certificate.certificate)})
        await until(lambda: payloads(west) == [b"0"])
        assert replicator_of(east).connection == f"pulsar+ssl://127.0.0.1:{west.tls_port}"
        shown = admin.clusters.get("west")
        assert "authenticationParameters" not in shown
        await admin.clusters.update(
            "west",
            {
                **data,
                "brokerClientTrustCertsFilePath": str(certificate.certificate),
                "authenticationParameters": f"token:{token('edge', key=b'x' * 64)}",
            },
        )
        await publish(east, b"1", first=1)
        await until(lambda: replicator_of(east).problem)
        assert "authenticat" in str(replicator_of(east).problem).lower()
        assert payloads(west) == [b"0"]


async def test_a_cluster_without_credentials_of_its_own_is_shown_those_of_the_broker(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    options = ProviderOptions(methods=frozenset({"token"}), token_secret_key=data_url(SECRET))
    guarded = {"authenticator": Authenticator(options), "access": AccessRules(), "tls": certificate.server()}
    defaults = {
        "authenticationPlugin": "token",
        "authenticationParameters": f"token:{token('edge')}",
        "brokerClientTrustCertsFilePath": str(certificate.certificate),
    }
    async with (
        cluster(tmp_path, "east", remote_defaults=defaults) as east,
        cluster(tmp_path, "west", **guarded) as west,
    ):
        data = {"brokerServiceUrlTls": f"pulsar+ssl://127.0.0.1:{west.tls_port}", "brokerClientTlsEnabled": True}
        await replicate(east, west, "west", ["east", "west"], **data)
        await publish(east, b"0")
        await until(lambda: payloads(west) == [b"0"])
        # A cluster with other credentials is not shown these.
        await administration(east.broker).clusters.update("west", {**data, "authenticationPlugin": "none"})
        await publish(east, b"1", first=1)
        await until(lambda: replicator_of(east).problem)
        assert payloads(west) == [b"0"]


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: str, *headers: str) -> bytes:
    """Answer one request of HTTP; returns its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write("\r\n".join([f"HTTP/1.1 {status}", *headers, "content-length: 0", "\r\n"]).encode())
    await writer.drain()
    writer.close()
    return head


async def test_redirects_of_an_admin_port_are_followed(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def owner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await there.topics.create_partitioned(PARTITIONED, 2)
        heads.append(await answered(reader, writer, "204 No Content"))

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to = f"http://127.0.0.1:{owner_port}/admin/v2/persistent/public/default/p/partitions?authoritative=true"
        heads.append(await answered(reader, writer, "307 Temporary Redirect", f"Location: {to}"))

    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west") as west:
        there = administration(west.broker)
        async with speaking(owner) as owner_port, speaking(other) as port:
            data = {"serviceUrl": f"http://127.0.0.1:{port}", "authenticationPlugin": "token"}
            await replicate(east, west, "west", ["east", "west"], authenticationParameters="token:t", **data)
            await administration(east.broker).topics.create_partitioned(PARTITIONED, 2)
            one = f"{PARTITIONED}-partition-1"
            await publish(east, b"0", topic=one)
            await until(lambda: west.broker.topics.get(one) and topic_of(west, one).last_entry_id == 0)
    assert [head.split(b" HTTP")[0] for head in heads] == [
        b"PUT /admin/v2/persistent/public/default/p/partitions",
        b"PUT /admin/v2/persistent/public/default/p/partitions?authoritative=true",
    ]
    assert all(b"authorization: Bearer t\r\n" in head for head in heads)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://127.0.0.1:{port}/again", "passed a request on 5 times"),
        ("ftp://127.0.0.1/x", "redirects to 'ftp://127.0.0.1/x'"),
        ("/relative", "redirects to '/relative'"),
        ("http://", "redirects to 'http://'"),
    ],
)
async def test_redirects_that_lead_nowhere_are_an_error(tmp_path: Path, location: str, said: str) -> None:
    async def around(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answered(reader, writer, "302 Found", f"Location: {location.format(port=port)}")

    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west") as west, speaking(around) as port:
        await replicate(east, west, "west", ["east", "west"], serviceUrl=f"http://127.0.0.1:{port}")
        await administration(east.broker).topics.create_partitioned(PARTITIONED, 2)
        one = f"{PARTITIONED}-partition-1"
        await publish(east, b"0", topic=one)
        await until(lambda: replicator_of(east, topic=one).problem)
        assert said in str(replicator_of(east, topic=one).problem)
