# SPDX-License-Identifier: Apache-2.0
"""Transactions beside Apache Pulsar: how many, how long each takes, and what readers of other topics notice.

    python -m benchmarks.transactions [--peer pulsar] [--seconds 5] [--clients 16]

Each client has a connection, a topic of its own, and one transaction after the other: it opens one, adds its topic,
sends 1, 10 or 1,000 messages of 1 KiB, waits for their receipts and commits. Then one reader catches up with a topic
and one client publishes to it, alone and beside 1,000 transactions that are open in other topics.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.brokers import BROKERS, add_peer_option, chosen
from benchmarks.process import cpu_of_all_s
from benchmarks.report import NAMES, print_table
from penstock.core.system_topics import COORDINATORS
from penstock.wire import codec
from penstock.wire.client import entries
from penstock.wire.client.connection import frame
from penstock.wire.codec import BaseCommand as Command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.process import Address

PREFIX: Final = "persistent://public/default/"
PAYLOAD: Final = bytes(1_024)
SIZES: Final = (1, 10, 1_000)
WARM_UP_S: Final = 2.0
ANSWER_S: Final = 60.0
TIMEOUT_MS: Final = 600_000
OPEN: Final = 1_000
OPEN_TOPICS: Final = 20
BACKLOG: Final = 100_000
WINDOW: Final = 1_000
# No answers, and counted instead of decoded.
COUNTED: Final = frozenset({Command.SEND_RECEIPT, Command.MESSAGE, Command.ACTIVE_CONSUMER_CHANGE})
SETTINGS: Final = {"transactionCoordinatorEnabled": "true"}


class Client(asyncio.Protocol):
    """A connection that counts receipts and messages, and decodes nothing else than answers."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._data = bytearray()
        self._requests = 0
        self._answer: asyncio.Future[Any] | None = None
        self._came: Counter[int] = Counter()
        self._awaited: tuple[int, int, asyncio.Future[None]] | None = None

    @classmethod
    async def connected(cls, port: int) -> Client:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        await client.answer_to(frame(Command.CONNECT, client_version="penstock-benchmark", protocol_version=20))
        return client

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - of the loop's kind
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        buffer, at, end = self._data, 0, len(self._data)
        while end - at >= 4 and end - at >= (size := int.from_bytes(buffer[at : at + 4]) + 4):
            kind = buffer[at + 9]  # Behind both sizes and the tag of the field.
            if kind in COUNTED:
                self._came[kind] += 1
            elif kind == Command.PING:
                self._transport.write(frame(Command.PONG))
            else:
                answer = codec.decode_command(bytes(buffer[at + 8 : at + size]))
                if self._answer is None or self._answer.done():
                    raise RuntimeError(f"unexpected: {answer}")
                self._answer.set_result(answer)
            at += size
        del buffer[:at]
        if self._awaited is not None and self._came[self._awaited[0]] >= self._awaited[1]:
            self._awaited[2].set_result(None)
            self._awaited = None

    def connection_lost(self, error: Exception | None) -> None:
        for waiting in (self._answer, self._awaited and self._awaited[2]):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error or ConnectionResetError("the broker has closed the connection"))

    def close(self) -> None:
        self._transport.abort()

    async def ask(self, kind: int, **fields: Any) -> Any:  # noqa: ANN401 - the answer's body
        """Ask and return the body of the answer. Raises RuntimeError: the broker refuses."""
        self._requests += 1
        answer = await self.answer_to(frame(kind, request_id=self._requests, **fields))
        body: Any = codec.body_in(answer)
        refuses = answer.type == Command.ERROR or ("error" in body.DESCRIPTOR.fields_by_name and body.HasField("error"))
        if refuses:
            raise RuntimeError(f"{Command.Type.Name(kind)} is refused: {body}")
        return body

    async def answer_to(self, asked: bytes) -> Any:  # noqa: ANN401 - a command
        self._transport.write(asked)
        self._answer = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(ANSWER_S):
            return await self._answer

    async def send(self, frames: bytes, count: int) -> None:
        """Send, and wait for so many receipts."""
        wanted = self._came[Command.SEND_RECEIPT] + count
        self._transport.write(frames)
        await self.come(Command.SEND_RECEIPT, wanted)

    async def come(self, kind: int, count: int) -> None:
        """Wait until so many frames of this type have come."""
        if self._came[kind] < count:
            waiting = asyncio.get_running_loop().create_future()
            self._awaited = kind, count, waiting
            async with asyncio.timeout(ANSWER_S):
                await waiting

    def flow(self, permits: int) -> None:
        self._transport.write(frame(Command.FLOW, consumer_id=0, messagePermits=permits))

    # -- transactions

    async def coordinate(self, coordinators: int, number: int) -> int:
        """Connect to a coordinator, as official clients do; return which."""
        coordinator = number % coordinators
        await self.ask(Command.LOOKUP, topic=f"{COORDINATORS}-partition-{coordinator}")
        await self.ask(Command.TC_CLIENT_CONNECT_REQUEST, tc_id=coordinator)
        return coordinator

    async def produce(self, topic: str, producer_id: int = 0) -> None:
        await self.ask(Command.LOOKUP, topic=topic)
        await self.ask(Command.PRODUCER, topic=topic, producer_id=producer_id)

    async def open(self, coordinator: int, topic: str) -> dict[str, int]:
        opened = await self.ask(Command.NEW_TXN, txn_ttl_seconds=TIMEOUT_MS, tc_id=coordinator)
        ids = {"txnid_least_bits": opened.txnid_least_bits, "txnid_most_bits": opened.txnid_most_bits}
        await self.ask(Command.ADD_PARTITION_TO_TXN, **ids, partitions=[topic])
        return ids

    async def transact(self, coordinator: int, topic: str, size: int) -> None:
        ids = await self.open(coordinator, topic)
        await self.send(message(ids) * size, size)
        await self.ask(Command.END_TXN, **ids, txn_action=0)


def message(ids: dict[str, Any], producer_id: int = 0) -> bytes:
    """A SEND, in a transaction or without; all have the same sequence id, since nothing deduplicates."""
    about = codec.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **ids)
    command = codec.CommandSend(producer_id=producer_id, sequence_id=1, **ids)
    return entries.send(command, entries.entry(about, PAYLOAD))


async def coordinators_of(port: int) -> int:
    """How many coordinators there are. Apache Pulsar makes them a while after its start."""
    client = await Client.connected(port)
    try:
        async with asyncio.timeout(ANSWER_S):
            while True:
                found = await client.ask(Command.PARTITIONED_METADATA, topic=COORDINATORS)
                if found.partitions:
                    await client.coordinate(found.partitions, 0)
                    return int(found.partitions)
                await asyncio.sleep(0.5)
    finally:
        client.close()


async def throughput(address: Address, coordinators: int, size: int, options: argparse.Namespace) -> dict[str, float]:
    """Let clients do transactions of this size, one after the other."""
    took_s: list[float] = []
    ends_s = time.perf_counter() + WARM_UP_S + options.seconds
    begins_s = ends_s - options.seconds

    async def work(number: int) -> None:
        client = await Client.connected(address.port)
        coordinator, topic = await client.coordinate(coordinators, number), f"{PREFIX}of-{size}-{number}"
        await client.produce(topic)
        while (began_s := time.perf_counter()) < ends_s:
            await client.transact(coordinator, topic, size)
            if began_s >= begins_s:
                took_s.append(time.perf_counter() - began_s)
        client.close()

    async def cpu() -> float:
        await asyncio.sleep(WARM_UP_S)
        before_s = cpu_of_all_s(address.pid)
        await asyncio.sleep(options.seconds)
        return cpu_of_all_s(address.pid) - before_s

    measuring = asyncio.ensure_future(cpu())
    await asyncio.gather(*map(work, range(options.clients)))
    cpu_s = await measuring
    took_s.sort()
    name = f"{size:,} message{'s' if size > 1 else ''}"
    return {
        f"{name}: transactions/s": len(took_s) / options.seconds,
        f"{name}: p50 ms": 1_000 * took_s[len(took_s) // 2],
        f"{name}: p99 ms": 1_000 * took_s[len(took_s) * 99 // 100],
        f"{name}: processor time of the broker, µs each": 1e6 * cpu_s / len(took_s),
    }


async def beside(address: Address, coordinators: int) -> dict[str, float]:
    """Publish to a topic and catch up with it, alone and beside transactions that are open in other topics."""
    found: dict[str, float] = {}
    client = await Client.connected(address.port)

    async def rows(what: str, topic: str) -> None:
        await client.produce(topic, producer := len(found))
        found[f"publish {what}, entries/s"] = await _rate(BACKLOG, lambda: _publish(client, producer))
        reader = await Client.connected(address.port)
        fields = {"subType": 0, "initialPosition": 1, "durable": False}
        await reader.ask(Command.SUBSCRIBE, topic=topic, subscription="s", consumer_id=0, **fields)
        found[f"catch-up {what}, entries/s"] = await _rate(BACKLOG, lambda: _read(reader))
        reader.close()

    await rows("alone", f"{PREFIX}alone")
    coordinator = await client.coordinate(coordinators, 0)
    for number in range(OPEN_TOPICS):
        await client.produce(topic := f"{PREFIX}open-{number}", 100 + number)
        for _ in range(OPEN // OPEN_TOPICS):
            await client.send(message(await client.open(coordinator, topic), 100 + number), 1)
    await rows(f"beside {OPEN:,} open ones", f"{PREFIX}beside")
    client.close()
    return found


async def _rate(count: int, work: Callable[[], Awaitable[None]]) -> float:
    began_s = time.perf_counter()
    await work()
    return count / (time.perf_counter() - began_s)


async def _publish(client: Client, producer_id: int) -> None:
    frames = message({}, producer_id) * WINDOW
    for _ in range(BACKLOG // WINDOW):
        await client.send(frames, WINDOW)


async def _read(reader: Client) -> None:
    for number in range(1, BACKLOG // WINDOW + 1):
        reader.flow(WINDOW)
        await reader.come(Command.MESSAGE, number * WINDOW)


async def measured(address: Address, options: argparse.Namespace) -> dict[str, float]:
    coordinators = await coordinators_of(address.port)
    found: dict[str, float] = {}
    for size in SIZES:
        found |= await throughput(address, coordinators, size, options)
    return found | await beside(address, coordinators)


def main() -> None:
    """Measure each broker, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_peer_option(parser)
    parser.add_argument("--seconds", type=float, default=5, help="of each size of transactions")
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    columns: dict[str, dict[str, float]] = {}
    for name in chosen(options):
        with (
            tempfile.TemporaryDirectory(prefix="transactions-") as directory,
            BROKERS[name](Path(directory) / "data", settings=SETTINGS) as address,
        ):
            columns[NAMES[name]] = asyncio.run(measured(address, options))
    print_table("transactions", columns)


if __name__ == "__main__":
    main()
