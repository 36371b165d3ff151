# SPDX-License-Identifier: Apache-2.0
"""Connections through a proxy that come and go, while the broker behind it is killed and restarted.

Every client lives again and again: it looks its topic up, connects to the broker through the proxy, publishes or
consumes, stays for a while, and ends: closed, reset, or in the middle of a frame. At the end every client must have
lived once more since the last restart. Then all leave, and the proxy must have as many open files as before, and not
much more memory. Both are compared with the time after all clients have been there together once.

    python tests/crash/proxy_churn.py --connections 1000 --seconds 300 --kills 3

Ends with status 1 if a client did not recover, or if something is left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.process import allow_many_sockets, usage
from penstock.testing.client import Type, entry, frame, send
from penstock.testing.process import BrokerProcess, ProxyProcess
from tests.proxy.in_process import Peer

TOPICS: Final = 50
SENDS: Final = 3
CONNECTIONS_EACH: Final = 2
# Clients that could not connect try again after up to this long.
RETRY_S: Final = 1.0
# How long all clients may take to recover, and the proxy to forget them. It keeps its own connections for a minute.
RECOVERY_S: Final = 120.0
RSS_MIB_MAX: Final = 30.0
# What a client may meet: refusals, lost connections, and ends of them where an answer was expected.
FAILURES: Final = (OSError, TimeoutError, AssertionError)


class Churn:
    """All clients of one proxy."""

    def __init__(self, proxy: ProxyProcess, connections: int, life_s: float, seed: int) -> None:
        self.proxy = proxy
        self.clients = connections // CONNECTIONS_EACH
        self.life_s = life_s
        self.rng = random.Random(seed)
        self.lives = 0
        self.failures = 0
        self.lived_s = [0.0] * self.clients  # when each client last succeeded
        self.leaving = asyncio.Event()

    async def run(self, number: int) -> None:
        """Live again and again."""
        while not self.leaving.is_set():
            try:
                await self.live(number, self.life_s * self.rng.uniform(0.2, 1.8))
                self.lives += 1
            except FAILURES:
                self.failures += 1
                await self._pause(self.rng.uniform(0, RETRY_S))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.leaving.wait()

    async def live(self, number: int, seconds: float) -> None:
        """Connect, publish or consume, stay, and leave. Raises FAILURES."""
        topic = f"persistent://public/default/churn-{number % TOPICS}"
        peers: list[Peer] = []
        try:
            asking = await self.connected(peers)
            asking.write(frame(Type.LOOKUP, topic=topic, request_id=1))
            found = (await asking.next(Type.LOOKUP_RESPONSE)).body
            assert found.brokerServiceUrl, found.message
            peer = await self.connected(peers, proxy_to_broker_url=found.brokerServiceUrl.partition("://")[2])
            await (_publish if number % 2 else _consume)(peer, topic)
            self.lived_s[number] = time.monotonic()
            await self._pause(seconds)
            if self.rng.random() < 0.3:
                peer.write(frame(Type.PING)[: self.rng.randrange(1, 10)])
        finally:
            for one in peers:
                self._end(one)
            for one in peers:
                with suppress(OSError):
                    await one.writer.wait_closed()

    async def connected(self, peers: list[Peer], **through: str) -> Peer:
        """Connect; the connection is added to `peers` first."""
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.proxy.port))
        peers.append(peer)
        peer.write(frame(Type.CONNECT, client_version="churn", protocol_version=20, **through))
        await peer.next(Type.CONNECTED)
        return peer

    def _end(self, peer: Peer) -> None:
        if self.rng.random() < 0.5:
            peer.writer.close()
            return
        with suppress(OSError):
            sock = peer.writer.get_extra_info("socket")
            sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        peer.writer.transport.abort()


async def _publish(peer: Peer, topic: str) -> None:
    peer.write(frame(Type.PRODUCER, topic=topic, producer_id=1, request_id=2))
    await _answer(peer, Type.PRODUCER_SUCCESS)
    for sequence_id in range(SENDS):
        peer.write(send(1, sequence_id, entry(b"x" * 1_000)))
    for _ in range(SENDS):
        await _answer(peer, Type.SEND_RECEIPT)


async def _consume(peer: Peer, topic: str) -> None:
    peer.write(
        frame(Type.SUBSCRIBE, topic=topic, subscription=f"s-{random.random()}", subType=0, consumer_id=1, request_id=2,
              durable=False, initialPosition=1)
    )  # fmt: skip
    await _answer(peer, Type.SUCCESS)
    peer.write(frame(Type.FLOW, consumer_id=1, messagePermits=10))
    await _answer(peer, Type.MESSAGE)


async def _answer(peer: Peer, kind: int) -> None:
    """Wait for a frame of this type; an error is a failure."""
    while (came := await peer.read()) is not None and came.kind != kind:
        assert came.kind != Type.ERROR, came.command
        if came.kind == Type.PING:
            peer.write(frame(Type.PONG))
    assert came is not None, "the connection ended"


def open_files(pid: int) -> int:
    """How many descriptors a process has."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def settled(churn: Churn, files_max: int | None = None) -> int:
    """Wait until all connections of clients are closed; returns how many files are open, with one for lookups."""
    pid, deadline = churn.proxy.pid, time.monotonic() + RECOVERY_S
    last = -1
    while time.monotonic() < deadline:
        await _looked_up(churn)
        now = open_files(pid)
        if now == last if files_max is None else now <= files_max:
            return now
        last = now
        await asyncio.sleep(1.0)
    return open_files(pid)


async def _looked_up(churn: Churn) -> None:
    peers: list[Peer] = []
    await churn.connected(peers)
    peers[0].writer.close()
    await peers[0].writer.wait_closed()
    await asyncio.sleep(0.5)


async def everybody(churn: Churn, since_s: float) -> int:
    """Wait until every client has succeeded since then; returns how many have not."""
    deadline = time.monotonic() + RECOVERY_S
    while True:
        missing = sum(lived_s < since_s for lived_s in churn.lived_s)
        if not missing or time.monotonic() > deadline:
            return missing
        await asyncio.sleep(0.5)


async def churned(broker: BrokerProcess, proxy: ProxyProcess, options: argparse.Namespace) -> int:
    """Run it; the exit status."""
    for number in range(TOPICS):
        await _filled(proxy, broker, f"persistent://public/default/churn-{number}")
    warm = Churn(proxy, options.connections, RECOVERY_S, options.seed)
    await _all_at_once(warm)
    files, start = await settled(warm), usage(proxy.pid)
    print(f"start: {files} open files, {start.rss_mib:.1f} MiB", flush=True)
    churn = Churn(proxy, options.connections, options.life, options.seed)
    tasks = [asyncio.create_task(churn.run(number)) for number in range(churn.clients)]
    began_s = time.monotonic()
    for kill in range(options.kills):
        await asyncio.sleep(options.seconds / (options.kills + 1))
        port, admin_port = broker.port, broker.admin_port
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(partial(broker.start, port=port, admin_port=admin_port))
        restarted_s = time.monotonic()
        missing = await everybody(churn, restarted_s)
        took_s = time.monotonic() - restarted_s
        print(f"kill {kill + 1}: {churn.clients - missing} of {churn.clients} clients are back after {took_s:.1f} s; "
              f"{open_files(proxy.pid)} open files, {usage(proxy.pid).rss_mib:.1f} MiB", flush=True)  # fmt: skip
        if missing:
            return 1
    await asyncio.sleep(max(0.0, began_s + options.seconds - time.monotonic()))
    churn.leaving.set()
    await asyncio.gather(*tasks)
    left, end = await settled(churn, files), usage(proxy.pid)
    more_mib = end.rss_mib - start.rss_mib
    print(f"end: {churn.lives} lives of {churn.clients} clients with {CONNECTIONS_EACH} connections each, "
          f"{churn.failures} failed attempts; {left} open files (before: {files}), {end.rss_mib:.1f} MiB "
          f"({more_mib:+.1f})")  # fmt: skip
    return 0 if left <= files and more_mib <= RSS_MIB_MAX else 1


async def _filled(proxy: ProxyProcess, broker: BrokerProcess, topic: str) -> None:
    """Publish something for consumers, and keep it by a subscription."""
    peers: list[Peer] = []
    one = Churn(proxy, CONNECTIONS_EACH, 0.0, 0)
    peer = await one.connected(peers, proxy_to_broker_url=broker.url.partition("://")[2])
    peer.write(frame(Type.SUBSCRIBE, topic=topic, subscription="keeps", subType=0, consumer_id=1, request_id=1))
    await _answer(peer, Type.SUCCESS)
    await _publish(peer, topic)
    peer.writer.close()
    await peer.writer.wait_closed()


async def _all_at_once(churn: Churn) -> None:
    tasks = [asyncio.create_task(churn.run(number)) for number in range(churn.clients)]
    missing = await everybody(churn, time.monotonic() - RECOVERY_S)
    assert not missing, f"{missing} of {churn.clients} clients could not connect"
    churn.leaving.set()
    await asyncio.gather(*tasks)


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1_000, help="at a time")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--life", type=float, default=10.0, help="seconds for which a client stays, on average")
    parser.add_argument("--kills", type=int, default=3, help="of the broker")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    allow_many_sockets()
    with (
        tempfile.TemporaryDirectory(prefix="churn-") as scratch,
        BrokerProcess(Path(scratch) / "data") as broker,
        ProxyProcess(broker.url, log_path=Path(scratch) / "proxy.log") as proxy,
    ):
        status = asyncio.run(churned(broker, proxy, options))
        if status:
            print((Path(scratch) / "proxy.log").read_text()[-2_000:], file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
