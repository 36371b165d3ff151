# SPDX-License-Identifier: Apache-2.0
"""The clients of `flood` and `fairness`, each kind in a process of its own: flooders, honest publishers, attackers.

Why processes: a thousand clients and the broker they measure must not share an interpreter.
Where: `flood` and `fairness` start them, write one word a line to their standard input, and read one line of JSON for
each:

    flood     go      publish frames of mixed sizes on all connections, wait for every receipt
              check   consume all topics from their beginning; is every message there that has a receipt?
    honest    run     publish small entries for a while, as fast as can be; how many receipts came a second?
    steady    run     publish small entries for a while at a fixed rate; how many had receipts, and after how long?
    endless   go      publish the largest frames on all connections as fast as they are taken; again if evicted
    trickle   go      the same, but send the last tenth of each frame slowly
    dribble   go      the same, but only announce the frame and then send next to nothing
    the last three:
              stop    close all connections
"""

from __future__ import annotations

import argparse
import json
import math
import random
import select
import selectors
import ssl
import struct
import sys
import threading
import time
from collections import deque
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from benchmarks.generator import Publisher, pump, step
from benchmarks.measure import Load, percentiles
from penstock.cli.bench_frames import Shape
from penstock.testing.client import RawClient, Type
from penstock.wire.pulsar_pb2 import BaseCommand, MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.checksum import Buffer

MIB = 1024 * 1024
PAYLOAD_BYTES_MAX = 5 * MIB - 1024  # what the broker calls a message includes its metadata
PAYLOAD_BYTES_MIN = 256
# So many of a flood's frames are as large as can be; the others are drawn evenly from the scale of powers.
LARGEST_RATIO = 0.03
TOPICS = 16
HONEST = "persistent://public/default/honest"
TIMEOUT_S = 60.0
# What an attacker sends at once, and what a connection sends before others have their turn.
SEND_BYTES = 256 * 1024
SENDS = 4
# How long steady publishers wait for receipts after their last message; what comes later counts as not delivered.
PATIENCE_S = 10.0
IDENTITY = struct.Struct(">IQ")  # connection, sequence id: what a consumer must get back


class Attack(NamedTuple):
    """How attackers send a frame: this part of it at once, the rest slowly, a little at each tick."""

    fast_ratio: float
    slow_bytes_per_s: int
    tick_s: float


ATTACKS: Final = {
    "endless": Attack(1.0, 0, 0.0),
    "trickle": Attack(0.9, 70_000, 0.05),
    "dribble": Attack(0.0, 200, 0.5),
}


def tls_context(ca: Path | None) -> ssl.SSLContext | None:
    """A client's TLS that trusts one certificate."""
    if ca is None:
        return None
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = False
    return context


# ------------------------------------------------------------------------------------------------------------ flooders


def send_head(sequence_id: int, identity: bytes, body: Buffer, publish_time_ms: int = 1) -> bytes:
    """All of a SEND frame of producer 0 before `body`, which is most of its payload."""
    said = MessageMetadata(producer_name="flooder", sequence_id=sequence_id, publish_time=publish_time_ms)
    metadata = said.SerializeToString()
    sealed = struct.pack(">I", len(metadata)) + metadata + identity
    seal = b"\x0e\x01" + struct.pack(">I", crc32c(body, crc32c(sealed)))
    command = BaseCommand(type=Type.SEND)
    command.send.producer_id, command.send.sequence_id = 0, sequence_id
    encoded = command.SerializeToString()
    size = 4 + len(encoded) + len(seal) + len(sealed) + len(body)
    return struct.pack(">II", size, len(encoded)) + encoded + seal + sealed


class Flooder(threading.Thread):
    """One connection that publishes its frames without waiting for receipts, and takes these afterwards."""

    def __init__(
        self, number: int, options: argparse.Namespace, tls: ssl.SSLContext | None, sizes: list[int], blob: memoryview
    ) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.sizes = sizes  # of the payloads, by sequence id
        self.receipts: dict[int, tuple[int, int]] = {}  # sequence id -> ledger id, entry id
        self.reconnects = 0
        self.topic = f"persistent://public/default/flood-{number % TOPICS}"  # which many connections share
        self._port, self._through, self._tls, self._blob = options.port, options.through, tls, blob
        self._client = self._connected()

    def _connected(self) -> RawClient:
        client = RawClient(self._port, tls=self._tls, through=self._through)
        client.produce(self.topic)
        client.socket.settimeout(TIMEOUT_S)
        return client

    def run(self) -> None:
        """Publish until every frame has its receipt, or patience ends."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                self._publish()
                return
            except OSError:
                # Evicted, as a slow client may be: it comes again and repeats what has no receipt, as clients do.
                self._client.close()
                self._client = self._connected()
                self.reconnects += 1

    def _publish(self) -> None:
        missing = [row for row in range(len(self.sizes)) if row not in self.receipts]
        for row in missing:
            identity = IDENTITY.pack(self.number, row)
            body = self._blob[: self.sizes[row] - len(identity)]
            self._client.write(send_head(row, identity, body))
            self._client.socket.sendall(body)
        for _ in missing:
            receipt = self._client.next(Type.SEND_RECEIPT, timeout_s=TIMEOUT_S).command.send_receipt
            self.receipts[receipt.sequence_id] = receipt.message_id.ledgerId, receipt.message_id.entryId


def plan(connections: int, volume_bytes: int, chance: random.Random) -> list[list[int]]:
    """The sizes of every connection's payloads: at least one each, and about `volume_bytes` in all."""
    sizes: list[list[int]] = [[] for _ in range(connections)]
    left = volume_bytes
    while True:
        for row in chance.sample(range(connections), connections):
            size = draw(chance)
            if size > left:
                if sizes[row]:
                    return sizes
                size = PAYLOAD_BYTES_MIN
            left -= size
            sizes[row].append(size)


def draw(chance: random.Random) -> int:
    """A payload's size."""
    if chance.random() < LARGEST_RATIO:
        return PAYLOAD_BYTES_MAX
    return round(PAYLOAD_BYTES_MIN * math.pow(PAYLOAD_BYTES_MAX / PAYLOAD_BYTES_MIN, chance.random()))


def flood(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Open all connections, flood on `go`, look for what was acknowledged on `check`."""
    chance = random.Random(options.seed)
    blob = memoryview(chance.randbytes(PAYLOAD_BYTES_MAX))
    tls = tls_context(options.tls_ca)
    sizes = plan(options.connections, options.mebibytes * MIB, chance)
    flooders = [Flooder(row, options, tls, sizes[row], blob) for row in range(options.connections)]
    yield {"connections": len(flooders), "frames": sum(map(len, sizes)), "bytes": sum(map(sum, sizes))}
    next_word()
    started = time.monotonic()
    for flooder in flooders:
        flooder.start()
    for flooder in flooders:
        flooder.join()
    yield {
        "seconds": time.monotonic() - started,
        "receipts": sum(len(flooder.receipts) for flooder in flooders),
        "without_receipt": sum(len(flooder.sizes) - len(flooder.receipts) for flooder in flooders),
        "reconnects": sum(flooder.reconnects for flooder in flooders),
    }
    next_word()
    yield {"lost": look_for(flooders, options, tls)}


def look_for(flooders: list[Flooder], options: argparse.Namespace, tls: ssl.SSLContext | None) -> int:
    """How many messages that have a receipt are not where the receipt says."""
    wanted: dict[str, dict[tuple[int, int], bytes]] = {}
    for flooder in flooders:
        for row, position in flooder.receipts.items():
            wanted.setdefault(flooder.topic, {})[position] = IDENTITY.pack(flooder.number, row)
    for topic, missing in wanted.items():
        with closing(RawClient(options.port, tls=tls, through=options.through)) as client, suppress(TimeoutError):
            client.subscribe(topic, "check", permits=1_000_000)
            while missing:
                message = client.message()
                at = message.command.message.message_id
                if message.payload[: IDENTITY.size] == missing.get((at.ledgerId, at.entryId)):
                    del missing[at.ledgerId, at.entryId]
    return sum(map(len, wanted.values()))


# ---------------------------------------------------------------------------------------------------- honest publishers


def small_entries(options: argparse.Namespace, topic: str, connections: int, window: int) -> Load:
    """A load of entries of 1 KiB."""
    return Load(
        port=options.port,
        topic=topic,
        shape=Shape(1024),
        connections=connections,
        window=window,
        tls_ca=options.tls_ca,
        through=options.through,
    )


def honest(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Publish small entries, at most 100 of a connection unanswered, for some seconds from each `run` on."""
    load = small_entries(options, HONEST, options.connections, window=100)
    with selectors.DefaultSelector() as selector:
        publishers = [Publisher(load, row) for row in range(load.connections)]
        for publisher in publishers:
            selector.register(publisher.client, selectors.EVENT_READ, publisher)
        yield {}
        while True:
            next_word()
            yield {"receipts_per_s": run(selector, publishers, options.seconds)}


def run(selector: selectors.BaseSelector, publishers: list[Publisher], seconds: float) -> float:
    """Publish for so long; returns receipts a second. What is out then is waited for when it runs again."""

    def turn(*, begin: bool) -> int:
        for publisher in publishers:
            pump(selector, publisher, sys.maxsize if begin else publisher.released)
        step(selector, 0.05)
        return sum(publisher.receipts.count for publisher in publishers)

    while any(publisher.outstanding for publisher in publishers):
        turn(begin=False)
    before = after = turn(begin=False)
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        after = turn(begin=True)
    return (after - before) / elapsed


# ---------------------------------------------------------------------------------------------------- steady publishers


class Steady:
    """One connection that publishes at a fixed rate, whatever the broker does; receipts come in order."""

    def __init__(self, load: Load, row: int) -> None:
        self.publisher = Publisher(load, row)
        self.waits_s: list[float] = []
        self.due_s: deque[float] = deque()  # when each message without a receipt was due to be sent

    def send(self, due_s: float) -> None:
        """Publish one message that was due then."""
        self.due_s.append(due_s)
        self.publisher.pump(self.publisher.released + 1)

    def flush(self) -> None:
        """Send what the socket takes."""
        self.publisher.pump(self.publisher.released)

    def receive(self) -> None:
        """Take receipts."""
        receipts = self.publisher.receipts
        before = receipts.count
        self.publisher.receive()
        now_s = time.monotonic()
        self.waits_s += [now_s - self.due_s.popleft() for _ in range(receipts.count - before)]


def steady(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Publish `per_s` messages a second over all connections, the topics in turn, for some seconds from each `run`."""
    each = options.connections // len(options.topics)
    loads = [small_entries(options, topic, each, window=sys.maxsize) for topic in options.topics]
    groups = [[Steady(load, row) for row in range(each)] for load in loads]
    clients = [client for row in zip(*groups, strict=True) for client in row]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.publisher.client, selectors.EVENT_READ, client)
        yield {}
        while True:
            next_word()
            run_steady(selector, clients, options)
            yield {"groups": [figures(group, options) for group in groups]}


def run_steady(selector: selectors.BaseSelector, clients: list[Steady], options: argparse.Namespace) -> None:
    """One measurement."""
    await_receipts(selector, clients)  # of the run before
    for client in clients:
        client.waits_s = []
    began_s = time.monotonic()
    for row in range(int(options.per_s * options.seconds)):
        due_s = began_s + row / options.per_s
        while (left_s := due_s - time.monotonic()) > 0:
            step(selector, left_s)
        clients[row % len(clients)].send(due_s)
        for client in clients:
            client.flush()
    await_receipts(selector, clients)


def await_receipts(selector: selectors.BaseSelector, clients: list[Steady]) -> None:
    """Until all messages have their receipts, or patience ends."""
    deadline_s = time.monotonic() + PATIENCE_S
    while any(client.due_s for client in clients) and time.monotonic() < deadline_s:
        for client in clients:
            client.flush()
        step(selector, 0.05)


def figures(clients: list[Steady], options: argparse.Namespace) -> dict[str, float]:
    """What one group saw: messages with a receipt within the time of the load, and the waits of all that had one."""
    # What had no receipt at all waited longest.
    lost = [PATIENCE_S + options.seconds] * sum(len(client.due_s) for client in clients)
    waits_s = sorted(wait_s for client in clients for wait_s in client.waits_s) + lost
    wanted = options.per_s * options.seconds / len(options.topics)
    # One whose answer comes more than a second late does not count as throughput of this load.
    in_time = sum(wait_s <= 1.0 for wait_s in waits_s)
    named = percentiles(waits_s) if len(waits_s) > len(lost) else {"p50": math.inf, "p99": math.inf}
    return {"ratio": in_time / wanted, "p50_ms": 1000 * named["p50"], "p99_ms": 1000 * named["p99"]}


# ------------------------------------------------------------------------------------------------------------- attacks


class Attacker:
    """One connection that sends the largest frames, one after another."""

    def __init__(self, number: int, options: argparse.Namespace, tls: ssl.SSLContext | None, frame: memoryview) -> None:
        self._port, self._through, self._tls, self._frame = options.port, options.through, tls, frame
        self._topic = f"{options.topics[0]}-{number % TOPICS}"
        self._attack = ATTACKS[options.kind]
        self.opened = 0
        self.frames = 0
        self.connect()

    def connect(self) -> None:
        """Do what an honest client does before its first message."""
        client = RawClient(self._port, tls=self._tls, through=self._through)
        client.produce(self._topic)
        self.socket = client.socket
        self.socket.setblocking(False)
        self._at = 0
        self._slow_since_s: float | None = None
        self.opened += 1

    def pump(self, now_s: float) -> None:
        """Send what may be sent; open again when the broker has had enough."""
        try:
            with suppress(BlockingIOError, ssl.SSLWantReadError):
                if not self.socket.recv(64 * 1024):
                    raise ConnectionError
            with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                for _ in range(SENDS):
                    end = self._end(now_s)
                    if end <= self._at:
                        break
                    self._at += self.socket.send(self._frame[self._at : min(end, self._at + SEND_BYTES)])
                    if self._at == len(self._frame):
                        self._at, self._slow_since_s = 0, None
                        self.frames += 1
        except OSError:
            self.socket.close()
            self.connect()

    def _end(self, now_s: float) -> int:
        """Up to where the frame may be sent now; the head of it always, because that announces the rest."""
        fast = max(len(self._frame) - PAYLOAD_BYTES_MAX, int(len(self._frame) * self._attack.fast_ratio))
        if self._at < fast:
            return fast
        if self._slow_since_s is None:
            self._slow_since_s = now_s
        return min(len(self._frame), fast + int(self._attack.slow_bytes_per_s * (now_s - self._slow_since_s)))


def attack(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Attack on `go`, cease on `stop`, and so on."""
    tls = tls_context(options.tls_ca)
    body = memoryview(bytes(PAYLOAD_BYTES_MAX))
    frame = memoryview(send_head(0, IDENTITY.pack(0, 0), body) + body)
    tick_s = ATTACKS[options.kind].tick_s
    yield {}
    while True:
        next_word()
        attackers = [Attacker(row, options, tls, frame) for row in range(options.connections)]
        yield {}
        while not word_waits():
            now_s = time.monotonic()
            for attacker in attackers:
                attacker.pump(now_s)
            if tick_s:
                time.sleep(tick_s)
            else:
                select.select([], [attacker.socket for attacker in attackers], [], 0.01)
        next_word()
        for attacker in attackers:
            attacker.socket.close()
        yield {"frames": sum(one.frames for one in attackers), "opened": sum(one.opened for one in attackers)}


# -------------------------------------------------------------------------------------------------------------- process


def next_word() -> None:
    """Wait for our master's next word; the words only say when. Ends the process at the end of the input."""
    if not sys.stdin.readline():
        sys.exit()


def word_waits() -> bool:
    """Whether our master's next word waits to be read; the end of the input counts too."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


KINDS = {"flood": flood, "honest": honest, "steady": steady, **dict.fromkeys(ATTACKS, attack)}


def main() -> None:
    """Print every answer of this kind's work, until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--per-s", type=float, default=200.0)
    parser.add_argument("--topics", nargs="+", default=["persistent://public/default/attack"], help="without a number")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tls-ca", type=Path)
    parser.add_argument("--through", default="", help="the broker, if the port is that of a proxy")
    options = parser.parse_args()
    for answer in KINDS[options.kind](options):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
