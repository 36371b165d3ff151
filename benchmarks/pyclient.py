# SPDX-License-Identifier: Apache-2.0
"""The same loads through the official Python client: what an application sees.

Why: the raw generator shows what the broker can do; this shows what is left of it behind a real client, whose own
cost bounds most of these figures. End-to-end latency is the one to look at.
Where: `run` starts it as a process of its own for each load. It takes the generator's command line and prints the
generator's line of JSON, except that here an entry is what the client makes of `--messages` messages in a batch.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import struct
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pulsar

from benchmarks.measure import (
    DRAIN_TIMEOUT_S,
    LATENCY_PER_S,
    NS_PER_S,
    WARM_UP_RATIO,
    Figures,
    Load,
    Reading,
    parse_load,
    percentiles,
)
from penstock.cli.bench_frames import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Payloads to draw from, and the prefix of each message: its number, and the moment it was due.
PAYLOADS = 64
PREFIX = struct.Struct(">QQ")
RECEIVE_TIMEOUT_MS = 200
BATCH_DELAY_MS = 5
PENDING_MAX = 1_000


@contextmanager
def connected(load: Load) -> Iterator[pulsar.Client]:
    """Yield a client that says nothing below an error."""
    quiet = logging.getLogger("pulsar")
    quiet.setLevel(logging.ERROR)
    with closing(pulsar.Client(f"pulsar://127.0.0.1:{load.port}", logger=quiet)) as client:
        yield client


class Producer:
    """Sends numbered messages, any number in flight up to the client's own limit; checks that receipts keep order."""

    def __init__(self, client: pulsar.Client, load: Load) -> None:
        batch = load.shape.messages
        self.producer = client.create_producer(
            load.topic,
            batching_enabled=batch > 1,
            batching_max_messages=max(2, batch),  # the least it takes, also where batching is off
            batching_max_allowed_size_in_bytes=2 * batch * load.shape.message_bytes,
            batching_max_publish_delay_ms=BATCH_DELAY_MS,
            block_if_queue_full=True,
            max_pending_messages=PENDING_MAX * batch,
        )
        chance = random.Random(load.seed)
        bodies = (
            chance.randbytes(max(0, spread(load.shape.message_bytes, chance) - PREFIX.size)) for _ in range(PAYLOADS)
        )
        self.payloads = list(bodies)
        self.sent = self.acknowledged = 0
        self.failure: str | None = None
        self.last = (-1, -1, -1)

    def send(self, due_ns: int = 0) -> None:
        """Send the next message."""
        number = self.sent
        self.sent += 1
        self.producer.send_async(PREFIX.pack(number, due_ns) + self.payloads[number % PAYLOADS], self.on_receipt)

    def on_receipt(self, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        """Take one receipt; the client calls this from its own thread."""
        position = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        if result != pulsar.Result.Ok or position <= self.last:
            self.failure = f"{result} for {position} after {self.last}"
        self.last = position
        self.acknowledged += 1

    def finish(self) -> None:
        """Wait for every receipt. Raises RuntimeError if one was an error or out of order."""
        self.producer.flush()
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while self.acknowledged < self.sent and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.failure or self.acknowledged < self.sent:
            raise RuntimeError(self.failure or f"{self.sent - self.acknowledged} receipts are missing")
        self.producer.close()


class Consumer:
    """Receives, checks that numbers are consecutive, and acknowledges as applications do: one by one."""

    def __init__(self, client: pulsar.Client, load: Load, on_message: Callable[[int], None] = lambda _: None) -> None:
        self.consumer = client.subscribe(
            load.topic, "py", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=PENDING_MAX
        )
        self.on_message = on_message
        self.count = 0

    def receive(self) -> None:
        """Take one message, if one comes soon."""
        try:
            message = self.consumer.receive(RECEIVE_TIMEOUT_MS)
        except pulsar.Timeout:
            return
        number, due_ns = PREFIX.unpack_from(message.data())
        self.on_message(due_ns)
        if number != self.count:
            raise RuntimeError(f"message {number} came where {self.count} was due")
        self.count += 1
        self.consumer.acknowledge(message)

    def close(self) -> None:
        """Send the acknowledgements that wait, and leave."""
        self.consumer.close()

    def receive_until(self, done: Callable[[], bool]) -> None:
        """Take messages, for a thread."""
        while not done():
            self.receive()


def publish(load: Load) -> Figures:
    """Send for a time."""
    with connected(load) as client:
        producer = Producer(client, load)
        start, end = send_for(load, producer, lambda: producer.acknowledged)
        producer.finish()
        return start.until(end, load, counted=load.shape.messages)


def backlog(load: Load) -> Figures:
    """Send exactly so many entries' worth of messages."""
    with connected(load) as client:
        producer = Producer(client, load)
        start = Reading.take(load, 0)
        for _ in range(load.entries * load.shape.messages):
            producer.send()
        producer.finish()
        return start.until(Reading.take(load, producer.acknowledged), load, counted=load.shape.messages)


def catch_up(load: Load) -> Figures:
    """Receive what `backlog` sent, from its beginning, until its end or until the time is over."""
    with connected(load) as client:
        start = Reading.take(load, 0)
        end_s, wanted = start.at_s + load.seconds, load.entries * load.shape.messages
        with closing(Consumer(client, load)) as consumer:
            consumer.receive_until(lambda: consumer.count == wanted or time.monotonic() > end_s)
            return start.until(Reading.take(load, consumer.count), load, counted=load.shape.messages)


def latency(load: Load) -> Figures:
    """Send 1,000 messages a second by the clock; time each from its due moment until the application has it."""
    taken_ns: list[int] = []
    count = round(load.seconds * (1 + WARM_UP_RATIO) * LATENCY_PER_S)

    def take(due_ns: int) -> None:
        taken_ns.append(time.monotonic_ns() - due_ns)

    with connected(load) as client, closing(Consumer(client, load, take)) as consumer:
        producer = Producer(client, load)
        reader = threading.Thread(target=consumer.receive_until, args=(lambda: consumer.count == count,), daemon=True)
        reader.start()
        start = Reading.take(load, 0)
        begin_ns = time.monotonic_ns()
        for row in range(count):
            due_ns = begin_ns + row * NS_PER_S // LATENCY_PER_S
            if (left_ns := due_ns - time.monotonic_ns()) > 0:
                time.sleep(left_ns / NS_PER_S)
            producer.send(due_ns)
        producer.finish()
        reader.join(DRAIN_TIMEOUT_S)
        if consumer.count < count:
            raise RuntimeError(f"{count - consumer.count} messages did not come")
        end = Reading.take(load, count)
    ordered = sorted(ns / 1e6 for ns in itertools.islice(taken_ns, round(count * WARM_UP_RATIO), None))
    return start.until(end, load, percentiles(ordered), counted=load.shape.messages)


def send_for(load: Load, producer: Producer, count: Callable[[], int]) -> tuple[Reading, Reading]:
    """Send through the warm-up and the measured part; return the readings around the latter."""
    send_until(producer, time.monotonic() + load.seconds * WARM_UP_RATIO)
    start = Reading.take(load, count())
    send_until(producer, start.at_s + load.seconds)
    return start, Reading.take(load, count())


def send_until(producer: Producer, end_s: float) -> None:
    """Send until a moment; the clock is read once in a while."""
    while time.monotonic() < end_s:
        for _ in range(32):
            producer.send()


MODES: dict[str, Callable[[Load], Figures]] = {
    "publish": publish,
    "backlog": backlog,
    "catch-up": catch_up,
    "latency": latency,
}


def main() -> None:
    """Drive one load and print its result."""
    mode, load = parse_load()
    print(json.dumps(MODES[mode](load)), flush=True)
    # The client's threads may outlive its close(), and an orderly exit then aborts in their destructor ("terminate
    # called without an active exception", client 3.13): leave without destructors.
    os._exit(0)


if __name__ == "__main__":
    main()
