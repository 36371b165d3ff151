# SPDX-License-Identifier: Apache-2.0
"""What a rate of one topic does to another topic on the same connection.

    python -m benchmarks.shared_connection [--peer pulsar] [--before CHECKOUT] [--rate 50] [--paced 200] [--seconds 10]

One client with one connection. A topic has `publishRate`, and a producer that sends as fast as it may; beside it a
producer of a free topic sends `--paced` messages per second, and once a second another producer is created. Printed:
what passes of each, how long receipts of the free topic take, and the longest creation. Then the same for
`dispatchRate`: a consumer with a backlog of the limited topic, and one that receives the paced messages of the free
topic, of which the time from sending to arrival counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar

from benchmarks.brokers import add_before_option, add_peer_option, subjects_of
from benchmarks.loads import PLAIN
from benchmarks.process import ask
from benchmarks.report import NAMES, print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.process import Address

LIMITED, FREE = "persistent://public/default/limited", "persistent://public/default/free"
BACKLOG = 5_000


class Shared:
    """One client of a broker, and what its free topic sees."""

    def __init__(self, address: Address, options: argparse.Namespace) -> None:
        self.address = address
        self.rate, self.paced, self.seconds = options.rate, options.paced, options.seconds
        self.clients: list[pulsar.Client] = []
        self.over = threading.Event()
        self.free_s: list[float] = []
        self.passed = 0
        self.client = self._client()

    def _client(self) -> pulsar.Client:
        client = pulsar.Client(self.address.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self.clients.append(client)
        return client

    def close(self) -> None:
        """End the flood and all clients."""
        self.over.set()
        for client in self.clients:
            client.close()

    def publish(self) -> dict[str, float]:
        """A producer that is limited, beside one that is not."""
        self._limit("publishRate", {"publishThrottlingRateInMsg": self.rate, "publishThrottlingRateInByte": -1})
        limited = self.client.create_producer(LIMITED, block_if_queue_full=True, max_pending_messages=500)
        flood = threading.Thread(target=self._flood, args=(limited,), daemon=True)
        free = self.client.create_producer(FREE)
        flood.start()
        return self._row("publish", lambda: self._pace(free, self._receipt(time.perf_counter())))

    def dispatch(self) -> dict[str, float]:
        """A consumer that is limited, beside one that is not."""
        rate = {"dispatchThrottlingRateInMsg": self.rate, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
        self._limit("dispatchRate", rate)
        self.client.subscribe(LIMITED, "s", receiver_queue_size=10, message_listener=self._taken)
        self.client.subscribe(FREE, "s", message_listener=self._arrived)
        writer = self._client()
        backlog, free = writer.create_producer(LIMITED, block_if_queue_full=True), writer.create_producer(FREE)
        for _ in range(BACKLOG):
            backlog.send_async(b"", None)
        return self._row("dispatch", lambda: self._pace(free, None))

    def _limit(self, policy: str, rate: dict[str, int]) -> None:
        for topic in (LIMITED, FREE):
            ask(self.address.admin_port, "PUT", topic.replace("://", "/"))
        ask(self.address.admin_port, "POST", f"{LIMITED.replace('://', '/')}/{policy}", rate)
        time.sleep(2)  # Apache Pulsar reads policies of topics from a topic.

    def _row(self, what: str, pace: Callable[[], None]) -> dict[str, float]:
        time.sleep(1)  # Bursts pass.
        self.free_s.clear()
        passed, began, created_s, sent = self.passed, time.perf_counter(), 0.0, 0
        while (now := time.perf_counter()) - began < self.seconds:
            if sent < (now - began) * self.paced:
                pace()
                sent += 1
                if sent % self.paced == 0:
                    before = time.perf_counter()
                    self.client.create_producer(f"{FREE}-{what}-{sent}").close()
                    created_s = max(created_s, time.perf_counter() - before)
            else:
                time.sleep(0.001)
        elapsed = time.perf_counter() - began
        times = sorted(self.free_s) or [elapsed]
        return {
            f"{what} limit: limited topic, messages/s": (self.passed - passed) / elapsed,
            f"{what} limit: free topic, % of what was sent": 100 * len(self.free_s) / sent,
            f"{what} limit: free topic, p50 ms": 1_000 * times[len(times) // 2],
            f"{what} limit: free topic, p99 ms": 1_000 * times[len(times) * 99 // 100],
            f"{what} limit: longest create_producer, ms": 1_000 * created_s,
        }

    def _flood(self, producer: pulsar.Producer) -> None:
        with suppress(pulsar.PulsarException):  # The client is closed.
            while not self.over.is_set():
                producer.send_async(b"", self._passed)

    def _passed(self, result: pulsar.Result, _id: object) -> None:
        self.passed += result == pulsar.Result.Ok

    def _receipt(self, sent: float) -> Callable[[pulsar.Result, object], None]:
        return lambda _result, _id: self.free_s.append(time.perf_counter() - sent)

    @staticmethod
    def _pace(free: pulsar.Producer, receipt: Callable[[pulsar.Result, object], None] | None) -> None:
        free.send_async(json.dumps(time.perf_counter()).encode(), receipt)

    def _taken(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        self.passed += 1

    def _arrived(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        self.free_s.append(time.perf_counter() - json.loads(message.data()))
        consumer.acknowledge(message)


def main() -> None:
    """Measure each broker, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_peer_option(parser)
    add_before_option(parser)
    parser.add_argument("--rate", type=int, default=50, help="of the limited topic, messages per second")
    parser.add_argument("--paced", type=int, default=200, help="messages per second to the free topic")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    columns: dict[str, dict[str, float]] = {}
    for name, launches in subjects_of(options).items():
        columns[NAMES[name]] = {}
        for measured in (Shared.publish, Shared.dispatch):
            with (
                tempfile.TemporaryDirectory(prefix="shared-") as directory,
                launches[PLAIN](Path(directory) / "data") as address,
                closing(Shared(address, options)) as shared,
            ):
                columns[NAMES[name]] |= measured(shared)
    print_table("a limited topic and a free one on a connection", columns)


if __name__ == "__main__":
    main()
