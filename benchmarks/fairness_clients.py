# SPDX-License-Identifier: Apache-2.0
"""The clients of `fairness`, each kind in a process of its own: honest producers at a fixed rate, and two attacks.

Where: `fairness` starts them, writes one word a line to their standard input, and reads one line of JSON for each:

    honest   run    publish small entries at a fixed rate for a while; how many had receipts, and after how long?
    flood    go     publish the largest frames on all connections as fast as they are taken, until the next word
    trickle  go     send most of a largest frame on all connections, then a little a second; again if evicted
"""

from __future__ import annotations

import argparse
import json
import select
import selectors
import struct
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from benchmarks.flood_clients import IDENTITY, PAYLOAD_BYTES_MAX, ZEROS, next_word, send_head, word_waits
from penstock.testing.client import RawClient, entry, send

if TYPE_CHECKING:
    from collections.abc import Iterator

PAYLOAD = bytes(1024)
TRICKLE_BYTES_PER_S = 70_000
TRICKLE_TICK_S = 0.05
STALL_RATIO = 0.9
SEND_BYTES = 256 * 1024
RECEIPT_HEAD = struct.Struct(">II")
# How long receipts are waited for after the last message was sent; what comes later counts as not delivered.
PATIENCE_S = 10.0


# -------------------------------------------------------------------------------------------------------------- honest


class Steady:
    """One connection that publishes at a fixed rate, whatever the broker does; receipts come in order."""

    def __init__(self, port: int, topic: str) -> None:
        client = RawClient(port)
        client.produce(topic)
        self.socket = client.socket
        self.socket.setblocking(False)
        self.waits_s: list[float] = []
        self.sent = 0
        self._due_s: deque[float] = deque()  # when each message without a receipt was due to be sent
        self._unsent = b""
        self._received = b""

    @property
    def outstanding(self) -> int:
        """Messages without a receipt."""
        return len(self._due_s)

    def send(self, due_s: float) -> None:
        """Publish one message that was due then."""
        self._unsent += send(0, self.sent, entry(PAYLOAD, sequence_id=self.sent))
        self.sent += 1
        self._due_s.append(due_s)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        with suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def receive(self, now_s: float) -> None:
        """Take receipts. Every frame of the broker counts as one but PINGs, which a short load does not see."""
        with suppress(BlockingIOError):
            data = self.socket.recv(64 * 1024)
            if not data:
                raise ConnectionError("the broker closed an honest connection")
            self._received += data
        while len(self._received) >= RECEIPT_HEAD.size:
            total, _ = RECEIPT_HEAD.unpack_from(self._received)
            if len(self._received) < 4 + total:
                break
            self._received = self._received[4 + total :]
            if self._due_s:
                self.waits_s.append(now_s - self._due_s.popleft())

    def reset(self) -> None:
        """Begin to count anew."""
        self.waits_s = []


def honest(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Publish `per_s` messages a second over all connections, the topics in turn, for some seconds from each `run`."""
    clients = [
        Steady(options.port, f"{options.topics[row % len(options.topics)]}-{row}") for row in range(options.connections)
    ]
    yield {}
    while True:
        next_word()
        yield {"groups": run_steady(clients, options)}


def run_steady(clients: list[Steady], options: argparse.Namespace) -> list[dict[str, float]]:
    """One measurement; a group's figures for each of the topics."""
    count = int(options.per_s * options.seconds)
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        await_receipts(selector, clients)  # of the run before
        for client in clients:
            client.reset()
        began_s = time.monotonic()
        for row in range(count):
            due_s = began_s + row / options.per_s
            while (left_s := due_s - time.monotonic()) > 0:
                take(selector, left_s)
            clients[row % len(clients)].send(due_s)
            for client in clients:
                client.flush()
        await_receipts(selector, clients)
    groups = len(options.topics)
    return [figures([c for row, c in enumerate(clients) if row % groups == one], options) for one in range(groups)]


def await_receipts(selector: selectors.BaseSelector, clients: list[Steady]) -> None:
    """Until all messages have their receipts, or patience ends."""
    deadline_s = time.monotonic() + PATIENCE_S
    while any(client.outstanding for client in clients) and time.monotonic() < deadline_s:
        for client in clients:
            client.flush()
        take(selector, 0.05)


def take(selector: selectors.BaseSelector, timeout_s: float) -> None:
    """Wait for receipts once, and take them."""
    for key, _ in selector.select(timeout_s):
        key.data.receive(time.monotonic())


def figures(clients: list[Steady], options: argparse.Namespace) -> dict[str, float]:
    """What one group saw: messages with a receipt within the time of the load, and the waits of all that had one."""
    waits = sorted(wait for client in clients for wait in client.waits_s)
    wanted = options.per_s * options.seconds / len(options.topics)
    if not waits:
        return {"ratio": 0.0, "p50_ms": float("inf"), "p99_ms": float("inf"), "max_ms": float("inf")}
    lost = sum(client.outstanding for client in clients)
    # What had no receipt at all waited longest.
    waits += [PATIENCE_S + options.seconds] * lost
    # One whose answer comes more than a second late does not count as throughput of this load.
    in_time = sum(wait <= 1.0 for wait in waits)
    return {
        "ratio": in_time / wanted,
        "p50_ms": 1000 * waits[len(waits) // 2],
        "p99_ms": 1000 * waits[len(waits) * 99 // 100],
        "max_ms": 1000 * waits[-1],
    }


# ------------------------------------------------------------------------------------------------------------- attacks


class Attacker:
    """One connection that sends the largest frames, one after another; a trickling one, slowly from 90 % on."""

    def __init__(self, number: int, port: int, topic: str, frames: list[bytes], *, trickle: bool) -> None:
        self._port, self._topic = port, f"{topic}-{number % 16}"
        self._frame = memoryview(frames[0])
        self._trickle = trickle
        self.opened = 0
        self.frames = 0
        self.connect()

    def connect(self) -> None:
        """Do what an honest client does before its first message."""
        client = RawClient(self._port)
        client.produce(self._topic)
        self.socket = client.socket
        self.socket.setblocking(False)
        self._at = 0
        self._began_s: float | None = None
        self.opened += 1

    def pump(self, now_s: float) -> None:
        """Send what may be sent; open again when the broker has had enough."""
        try:
            with suppress(BlockingIOError):
                self.socket.recv(64 * 1024)
            with suppress(BlockingIOError):
                for _ in range(4):
                    end = self._end(now_s)
                    if end <= self._at:
                        break
                    self._at += self.socket.send(self._frame[self._at : min(end, self._at + SEND_BYTES)])
                    if self._at == len(self._frame):
                        self._at, self._began_s = 0, None
                        self.frames += 1
        except OSError:
            self.socket.close()
            self.connect()

    def _end(self, now_s: float) -> int:
        if not self._trickle:
            return len(self._frame)
        fast = int(len(self._frame) * STALL_RATIO)
        if self._at < fast:
            return fast
        if self._began_s is None:
            self._began_s = now_s
        return min(len(self._frame), fast + int(TRICKLE_BYTES_PER_S * (now_s - self._began_s)))


def attack(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Attack from `go` to the next word, and tell how it went."""
    trickle = options.kind == "trickle"
    head = send_head(0, IDENTITY.pack(0, 0), ZEROS)
    frames = [head + bytes(PAYLOAD_BYTES_MAX)]
    attackers = [
        Attacker(row, options.port, options.topics[0], frames, trickle=trickle) for row in range(options.connections)
    ]
    yield {"connections": len(attackers)}
    next_word()
    while not word_waits():
        now_s = time.monotonic()
        for attacker in attackers:
            attacker.pump(now_s)
        if trickle:
            time.sleep(TRICKLE_TICK_S)
        else:
            select.select([], [attacker.socket for attacker in attackers], [], 0.01)
    next_word()
    for attacker in attackers:
        attacker.socket.close()
    yield {"frames": sum(a.frames for a in attackers), "opened": sum(a.opened for a in attackers)}


KINDS = {"honest": honest, "flood": attack, "trickle": attack}


def main() -> None:
    """Print every answer of this kind's work, until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--topics", nargs="+", required=True, help="of each group, without the connection's number")
    parser.add_argument("--per-s", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    for answer in KINDS[options.kind](options):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
