# SPDX-License-Identifier: Apache-2.0
"""Messages both ways between penstock and another cluster, while either broker is killed and all lines are cut.

    python -m tests.soak.replication_kills --apache --messages 1000000 --rate 3000 --kills 20 --largest 5000000

Why by hand: the other cluster is Apache Pulsar with `--apache`, which a test cannot start in little time; else it is
a second penstock. Messages have 0 bytes and more, seldom many. Both sides deduplicate. It prints how many messages were
lost, and how many arrived twice, and fails unless both are none. `replication` is the same with a cluster that runs
already, and unloads.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pulsar

from benchmarks.process import free_port
from benchmarks.pulsar_peer import PulsarProcess, resolve
from penstock.testing.process import BrokerProcess
from tests.soak.replication import OWN, Cluster, play

PEER: Final = "standalone"
WAIT_MS: Final = 120_000
WAIT_S: Final = 60.0


class Line:
    """Connections to a broker, through a port of their own; all can be cut at once."""

    def __init__(self) -> None:
        self.port = free_port()
        self.to = 0  # the broker's port
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"pulsar://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Accept connections."""
        self._thread.start()
        serving = asyncio.start_server(self._pass_on, "127.0.0.1", self.port)
        asyncio.run_coroutine_threadsafe(serving, self._loop).result(WAIT_S)

    def stop(self) -> None:
        """Cut all and accept none."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._cut()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=WAIT_S / 2)

    def cut(self) -> None:
        """End all connections without a word."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for one in self._open:
            one.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, there[1]}
        self._open |= ends
        await asyncio.gather(_copied(reader, there[1]), _copied(there[0], writer))
        self._open -= ends


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def publish(client: pulsar.Client, topic: str, messages: int, rate: int, largest: int) -> None:
    """Publish numbers at a rate, and return when all are answered."""
    producer = client.create_producer(topic, send_timeout_millis=0, block_if_queue_full=True)
    chance = random.Random(topic)
    filling = chance.randbytes(largest)
    began_s = time.monotonic()
    for number in range(messages):
        nbytes = sizes_of(chance, largest)
        producer.send_async(filling[:nbytes], lambda _result, _id: None, partition_key=str(number))
        if number % 100 == 0:
            time.sleep(max(0.0, began_s + number / rate - time.monotonic()))
    producer.flush()


def sizes_of(chance: random.Random, largest: int) -> int:
    """Return the size of a message: a few bytes mostly, nothing at times, and seldom many."""
    kind = chance.random()
    if kind < 0.05:
        return 0
    return min(largest, chance.randrange(1, 300)) if kind < 1 - 1e-4 else chance.randrange(1, largest + 1)


def arrived(client: pulsar.Client, topic: str, messages: int) -> list[int]:
    """Return the numbers that arrive, in their order."""
    consumer = client.subscribe(topic, "check", initial_position=pulsar.InitialPosition.Earliest)
    numbers: list[int] = []
    left = set(range(messages))
    while True:
        try:
            message = consumer.receive(WAIT_MS if left else 2_000)
        except pulsar.Timeout:
            return numbers
        numbers.append(int(message.partition_key()))
        left.discard(numbers[-1])
        consumer.acknowledge(message)


def fail_now_and_then(
    brokers: list[tuple[BrokerProcess | PulsarProcess, Cluster, Line]], kills: int, seconds: float, seed: int
) -> None:
    """Kill a broker, or cut the lines to it, again and again for about so long."""
    chance = random.Random(seed)
    counts = {"killed": 0, "cut": 0}
    for _ in range(kills):
        time.sleep(chance.uniform(0.5, 1.5) * seconds / max(1, kills))
        broker, _, line = chance.choice(brokers)
        if chance.random() < 1 / 3:
            line.cut()
            counts["cut"] += 1
        else:
            broker.kill()
            broker.start(port=broker.port, admin_port=broker.admin_port)
            counts["killed"] += 1
    sys.stdout.write(f"{counts}\n")


def penstock(home: Path, name: str, line: Line) -> BrokerProcess:
    """Return a penstock whose clients come through a line. It takes entries that became longer on their way."""
    listener = f"advertisedListeners=line:{line.url}\nmaxMessageSize=5300000\n"
    (home / f"{name}.conf").write_text(f"clusterName={name}\n{listener}", encoding="utf-8")
    return BrokerProcess(home / name, ["--config", str(home / f"{name}.conf")])


def apache(home: Path, line: Line) -> PulsarProcess:
    """Return an Apache Pulsar whose clients come through a line."""
    resolve()
    listener = {"advertisedListeners": f"line:{line.url}", "internalListenerName": "line"}
    return PulsarProcess(home / "apache", listener)


def started(
    stack: ExitStack, broker: BrokerProcess | PulsarProcess, name: str, line: Line
) -> tuple[Cluster, BrokerProcess | PulsarProcess]:
    """Start a broker and its line."""
    stack.enter_context(broker)
    line.to = broker.port
    line.start()
    stack.callback(line.stop)
    return Cluster(name, line.url, broker.admin_url), broker


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apache", action="store_true", help="Apache Pulsar is the other cluster")
    parser.add_argument("--messages", type=int, default=20_000, help="in each direction")
    parser.add_argument("--rate", type=int, default=600, help="messages a second")
    parser.add_argument("--kills", type=int, default=8, help="of brokers and lines together")
    parser.add_argument("--largest", type=int, default=100_000, help="bytes of the largest message")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        own, broker = started(stack, penstock(home, OWN, line := Line()), OWN, line)
        failing = [(broker, own, line)]
        line = Line()
        peer, broker = started(stack, apache(home, line) if given.apache else penstock(home, PEER, line), PEER, line)
        failing.append((broker, peer, line))
        own.set_up(peer)
        peer.set_up(own)
        return play(
            own,
            peer,
            given.messages,
            publish=lambda client, topic: publish(client, topic, given.messages, given.rate, given.largest),
            arrived=lambda client, topic: arrived(client, topic, given.messages),
            fail=lambda: fail_now_and_then(failing, given.kills, given.messages / given.rate, given.seed),
        )


if __name__ == "__main__":
    sys.exit(main())
