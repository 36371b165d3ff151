# SPDX-License-Identifier: Apache-2.0
"""One connection: what it says when it ends, what it holds for a client that does not read, and what faults cost."""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock.core.units import KIB, MIB
from penstock.governance.holds import HoldKind
from penstock.governance.outbound import CONNECTION_BYTES_MAX
from penstock.net.connection import ANSWER_BYTES, REFERENCE_BYTES, TLS_SHARED_BYTES
from penstock.testing.client import Type, frame
from tests.net.harness import SMALL, TIMEOUT_S, Client, Harness, connect, publish, running, turns, until

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.testing.certificates import Certificate


def last_words(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says about connections that ended."""
    return [record.getMessage().partition(" closed: ")[2] for record in caplog.records if "closed:" in record.msg]


async def test_tls_spoken_to_the_plain_port_is_closed_with_one_line_that_says_so(
    tmp_path: Path, certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as broker:
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await Client.open(broker.port, certificate.client())
        await until(lambda: last_words(caplog))
        assert last_words(caplog) == [
            "the client speaks TLS, and this is the port for clients without; see brokerServicePortTls"
        ]
        assert broker.used == 0


async def test_a_plain_client_on_the_tls_port_is_closed_with_one_line_that_says_so(
    tmp_path: Path, server_tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path, tls=server_tls) as broker:
        client = await Client.open(broker.tls_port)
        client.write(connect())
        await until(lambda: last_words(caplog))
        assert last_words(caplog) == ["TLS handshake failed: the client does not speak TLS; see brokerServicePort"]


async def test_a_client_that_does_not_trust_the_certificate_is_told_and_closed(
    tmp_path: Path, server_tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path, tls=server_tls) as broker:
        with pytest.raises(ssl.SSLCertVerificationError):
            await Client.open(broker.tls_port, ssl.create_default_context())
        await until(lambda: last_words(caplog))
        (words,) = last_words(caplog)
        assert words.startswith("TLS handshake failed: ")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_entries_of_every_size_come_back_over_tls_as_they_were_sent(
    tmp_path: Path, certificate: Certificate, server_tls: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    async with running(tmp_path, tls=server_tls) as broker:
        context = certificate.client(version)
        producer = await Client.producing(broker.tls_port, context)
        payloads = [
            bytes([row]) * size for row, size in enumerate([0, 1, 16 * KIB - 100, 16 * KIB, 300 * KIB, MIB - KIB])
        ]
        producer.publish(*payloads)
        assert await producer.receipts(len(payloads)) == list(range(len(payloads)))

        consumer = await Client.consuming(broker.tls_port, context)
        for payload in payloads:
            assert (await consumer.message())[-len(payload) :][: len(payload)] == payload or not payload
        await until(lambda: broker.connections.outbound.used_bytes == 0)


async def test_a_client_that_does_not_read_holds_its_share_and_others_go_on(harness: Harness) -> None:
    count, size = 400, 32 * KIB
    producer = await Client.producing(harness.port)
    for first in range(0, count, 50):
        await producer.published(*[bytes(size)] * 50, first=first)
    lazy = await Client.consuming(harness.port, permits=count)
    lazy.stop_reading()
    connection = harness.connection_of(lazy)
    await until(lambda: connection.out_bytes >= CONNECTION_BYTES_MAX - 2 * size)
    await turns()
    assert connection.out_bytes <= CONNECTION_BYTES_MAX

    producer.publish(SMALL, first=count)
    assert await producer.receipts(1) == [count]

    lazy.go_on_reading()
    for _ in range(count):
        await lazy.expect(Type.MESSAGE)
    await until(lambda: harness.connections.outbound.used_bytes == 0)
    assert len(harness.connections.outbound) == 0


async def test_a_client_that_asks_and_does_not_take_its_answers_is_muted_until_it_does(tmp_path: Path) -> None:
    async with running(tmp_path, outbound_bytes=0) as broker:
        client = await Client.connected(broker.port)
        client.stop_reading()
        connection = broker.connection_of(client)
        pings = 100_000
        client.write(frame(Type.PING) * pings)
        await until(lambda: connection.muted)
        assert [mute.reason for mute in connection.muted.snapshot()] == [HoldKind.OUTBOUND]

        client.go_on_reading()
        async with asyncio.timeout(TIMEOUT_S):
            await client.reader.readexactly(pings * len(frame(Type.PONG)))
        assert not connection.muted


@pytest.mark.parametrize("secure", [False, True])
async def test_empty_buffers_are_no_work(
    tmp_path: Path, certificate: Certificate, server_tls: ssl.SSLContext, *, secure: bool
) -> None:
    async with running(tmp_path, tls=server_tls) as broker:
        client = await (
            Client.connected(broker.tls_port, certificate.client()) if secure else Client.connected(broker.port)
        )
        connection = broker.connection_of(client)
        pong = frame(Type.PONG)
        for buffers in ([b""], [b"", b""], [b"", pong, b"", b""], [pong, b""]):
            nbytes = sum(map(len, buffers))
            connection.deliver(buffers, nbytes)
            await turns()
            connection.pass_on(buffers, nbytes)
            connection.write(buffers, nbytes)
            await turns()
        assert connection.out_bytes == connection.queue.unsent_bytes == 0
        assert not connection.queue.buffers
        connection.close("done")


@pytest.mark.parametrize("secure", [False, True])
async def test_who_lent_memory_for_an_answer_hears_when_the_socket_has_taken_it_and_not_before(
    tmp_path: Path, certificate: Certificate, server_tls: ssl.SSLContext, *, secure: bool
) -> None:
    async with running(tmp_path, tls=server_tls) as broker:
        client = await (
            Client.connected(broker.tls_port, certificate.client()) if secure else Client.connected(broker.port)
        )
        connection = broker.connection_of(client)
        client.stop_reading()
        heard: list[str] = []
        connection.write_shared(bytes(KIB), (bytes(KIB),), KIB, lambda: heard.append("small"))
        connection.write_shared(bytes(KIB), (bytes(32 * MIB),), 32 * MIB, lambda: heard.append("large"))
        connection.write_frame(bytes(KIB))
        await until(lambda: heard == ["small"])
        await turns()
        assert heard == ["small"]
        client.abort()
        await until(lambda: not connection.is_open)
        assert heard == ["small", "large"]
        connection.write_shared(SMALL, (), 0, lambda: heard.append("closed"))
        assert heard == ["small", "large", "closed"]


@pytest.mark.parametrize("secure", [False, True])
async def test_bytes_that_are_charged_elsewhere_do_not_count_for_the_connection_nor_mute_it(
    tmp_path: Path, certificate: Certificate, server_tls: ssl.SSLContext, *, secure: bool
) -> None:
    shared = bytes(8 * MIB)
    async with running(tmp_path, tls=server_tls) as broker:
        client = await (
            Client.connected(broker.tls_port, certificate.client()) if secure else Client.connected(broker.port)
        )
        connection, outbound = broker.connection_of(client), broker.connections.outbound
        client.stop_reading()
        passed: list[int] = []
        for number in range(4):
            connection.write_shared(b"head", (shared, shared), 2 * len(shared), partial(passed.append, number))
        connection.write_frame(bytes(KIB))
        await turns()
        ciphertext_bytes = TLS_SHARED_BYTES if secure else 0
        assert connection.out_bytes == outbound.used_bytes
        assert KIB <= connection.out_bytes - ciphertext_bytes <= KIB + 4 * KIB
        assert not connection.muted
        client.go_on_reading()
        await client.reader.readexactly(4 * (4 + 16 * MIB) + KIB)
        await until(lambda: passed == [0, 1, 2, 3])
        assert (connection.out_bytes, outbound.used_bytes, len(outbound)) == (0, 0, 0)


async def test_of_a_queue_of_own_and_shared_bytes_exactly_the_own_ones_are_counted_at_every_moment(
    harness: Harness,
) -> None:
    client = await Client.connected(harness.port)
    connection = harness.connection_of(client)
    own_bytes, shared_bytes, rounds = 900 * KIB, 3 * MIB, 3
    start, each, kept = connection.bytes_out, own_bytes + shared_bytes, ANSWER_BYTES + REFERENCE_BYTES
    for _ in range(rounds):
        connection.deliver((bytes(own_bytes),), own_bytes)
        connection.write_shared(b"", (bytes(shared_bytes),), shared_bytes, lambda: None)
    read = 0
    while read < rounds * each:
        out, within = divmod(connection.bytes_out - start, each)
        unsent = (rounds - out) * (own_bytes + kept) - min(within, own_bytes)
        assert connection.out_bytes == unsent
        read += len(await client.reader.read(100 * KIB))
    await until(lambda: connection.out_bytes == 0)
    assert len(harness.connections.outbound) == 0


async def test_who_lent_memory_for_an_answer_hears_when_the_client_has_read_all_of_it(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    connection = harness.connection_of(client)
    heard: list[str] = []
    connection.write_shared(b"", (bytes(16 * MIB),), 16 * MIB, lambda: heard.append("passed"))
    assert not heard
    assert len(await client.reader.readexactly(16 * MIB)) == 16 * MIB
    await until(lambda: heard == ["passed"])


async def test_a_fault_of_ours_ends_the_connection_it_happened_on_and_no_other(
    harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, bystander = await Client.producing(harness.port), await Client.producing(harness.port, topic="other")
    session = next(s for s in harness.broker.sessions if s.connection is harness.connection_of(victim))
    monkeypatch.setattr(session, "received", None)
    victim.write(frame(Type.PING))
    await victim.closed()
    assert "TypeError" in caplog.text
    bystander.publish(SMALL)
    assert await bystander.receipts(1) == [0]
    assert harness.used == 0


async def test_a_connection_that_is_closing_gives_back_its_memory_and_its_place_at_once(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    client.write(publish(bytes(200 * KIB))[: 100 * KIB])
    await until(lambda: harness.used == 100 * KIB)
    harness.connection_of(client).close_after_flush("the test says so")
    assert harness.used == 0
    await client.closed()


async def test_frames_cut_at_every_byte_mean_the_same(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    for byte in publish(SMALL[:50], 0) + frame(Type.PING) + publish(SMALL[:50], 1):
        client.write(bytes([byte]))
        await asyncio.sleep(0)
    kinds = sorted([(await client.read()).type for _ in range(3)])
    assert kinds == sorted([Type.SEND_RECEIPT, Type.SEND_RECEIPT, Type.PONG])
