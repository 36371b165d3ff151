# SPDX-License-Identifier: Apache-2.0
"""The clients of the flood, each kind in a process of its own: flooders, honest publishers, dribblers.

Why processes: a thousand clients and the broker they measure must not share an interpreter.
Where: `flood` starts them, writes one word a line to their standard input, and reads one line of JSON for each:

    flood     go      publish frames of mixed sizes on all connections, wait for every receipt
              check   consume all topics from their beginning; is every message there that has a receipt?
    honest    run     publish small entries for a while; how many receipts came a second?
    dribble   go      announce 5 MiB on all connections, then trickle; again if evicted
              stop    close them
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
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from crc32c import crc32c

from benchmarks.frames import Shape
from benchmarks.generator import Publisher, pump, step
from benchmarks.measure import Load
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
TIMEOUT_S = 60.0
TRICKLE_BYTES = 100
TRICKLE_S = 0.5
IDENTITY = struct.Struct(">IQ")  # connection, sequence id: what a consumer must get back
ZEROS = memoryview(bytes(PAYLOAD_BYTES_MAX))


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

    def __init__(self, number: int, port: int, tls: ssl.SSLContext | None, sizes: list[int], blob: memoryview) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.sizes = sizes  # of the payloads, by sequence id
        self.receipts: dict[int, tuple[int, int]] = {}  # sequence id -> ledger id, entry id
        self.reconnects = 0
        self.topic = f"persistent://public/default/flood-{number % TOPICS}"  # which many connections share
        self._port, self._tls, self._blob = port, tls, blob
        self._client = self._connected()

    def _connected(self) -> RawClient:
        client = RawClient(self._port, tls=self._tls)
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
    flooders = [Flooder(row, options.port, tls, sizes[row], blob) for row in range(options.connections)]
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
    yield {"lost": look_for(flooders, options.port, tls)}


def look_for(flooders: list[Flooder], port: int, tls: ssl.SSLContext | None) -> int:
    """How many messages that have a receipt are not where the receipt says."""
    wanted: dict[str, dict[tuple[int, int], bytes]] = {}
    for flooder in flooders:
        for row, position in flooder.receipts.items():
            wanted.setdefault(flooder.topic, {})[position] = IDENTITY.pack(flooder.number, row)
    for topic, missing in wanted.items():
        with closing(RawClient(port, tls=tls)) as client, suppress(TimeoutError):
            client.subscribe(topic, "check", permits=1_000_000)
            while missing:
                message = client.message()
                at = message.command.message.message_id
                if message.payload[: IDENTITY.size] == missing.get((at.ledgerId, at.entryId)):
                    del missing[at.ledgerId, at.entryId]
    return sum(map(len, wanted.values()))


# ---------------------------------------------------------------------------------------------------- honest publishers


def honest(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Publish 1 KiB entries, at most 100 of a connection unanswered, for some seconds from each `run` on."""
    load = Load(
        port=options.port,
        topic="persistent://public/default/honest",
        shape=Shape(1024),
        connections=options.connections,
        window=100,
        tls_ca=options.tls_ca,
    )
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


# ------------------------------------------------------------------------------------------------------------ dribblers


class Dribbler:
    """One connection that announces the largest frame and does not send it."""

    def __init__(self, number: int, port: int, tls: ssl.SSLContext | None) -> None:
        self._port = port
        self._tls = tls
        self._topic = f"persistent://public/default/dribble-{number % TOPICS}"
        self.opened = 0
        self.connect()

    def connect(self) -> None:
        """Announce the frame, after everything that an honest client would do."""
        client = RawClient(self._port, tls=self._tls)
        client.produce(self._topic)
        client.write(send_head(0, IDENTITY.pack(0, 0), ZEROS))
        self.socket = client.socket
        self.socket.setblocking(False)
        self.opened += 1

    def dribble(self) -> None:
        """Send a little more; open again when the broker has had enough."""
        try:
            self.socket.send(ZEROS[:TRICKLE_BYTES])
            if not self.socket.recv(1024):
                raise ConnectionError
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self.socket.close()
            self.connect()


def dribble(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Attack on `go`, cease on `stop`, and so on."""
    tls = tls_context(options.tls_ca)
    yield {}
    while True:
        next_word()
        dribblers = [Dribbler(row, options.port, tls) for row in range(options.connections)]
        yield {"connections": len(dribblers)}
        while not word_waits():
            for dribbler in dribblers:
                dribbler.dribble()
            time.sleep(TRICKLE_S)
        next_word()
        for dribbler in dribblers:
            dribbler.socket.close()
        yield {"opened": sum(dribbler.opened for dribbler in dribblers)}


# -------------------------------------------------------------------------------------------------------------- process


def next_word() -> None:
    """Wait for our master's next word; the words only say when. Ends the process at the end of the input."""
    if not sys.stdin.readline():
        sys.exit()


def word_waits() -> bool:
    """Whether our master's next word waits to be read; the end of the input counts too."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


KINDS = {"flood": flood, "honest": honest, "dribble": dribble}


def main() -> None:
    """Print every answer of this kind's work, until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tls-ca", type=Path)
    options = parser.parse_args()
    for answer in KINDS[options.kind](options):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
