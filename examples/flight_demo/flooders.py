# SPDX-License-Identifier: Apache-2.0
"""The flooders: 64 connections, each sending messages of the largest size as fast as the broker reads; and a reader.

Why: they do what no well-behaved client does. Nobody waits for a receipt before the next message, so 320 MiB and more
are on their way at any moment; whoever reads all that must hold it.
Where: a process of its own, a thread to a connection. The messages share their five mebibytes and differ in the
first bytes, which say which one it is. The reader, an official client, later checks that all of them were kept.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Final

import pulsar

from benchmarks.flood_clients import send_head
from examples.flight_demo.board import Act
from examples.flight_demo.people import wait_until
from examples.flight_demo.publisher import quiet
from penstock.testing.client import RawClient, Type

if TYPE_CHECKING:
    from examples.flight_demo.board import Board, Track
    from examples.flight_demo.people import Faults

FLOOD: Final = "flood"
READER: Final = "flood-reader"
TOPIC: Final = "persistent://public/default/five-mebibytes"
CONNECTIONS: Final = 64
MESSAGE_BYTES: Final = 5 * 1024 * 1024
# Longer than the whole flood: being made to wait is what this is about.
SEND_TIMEOUT_S: Final = 120.0
# As many messages as the reading client keeps ready; with its usual thousand it would hold the whole flood.
READ_AHEAD: Final = 4
READ_TIMEOUT_MS: Final = 30_000

_LABEL: Final = struct.Struct(">QQ")  # connection, number


@cache
def filler() -> bytes:
    """What all messages have after their label; random, so that nothing on the way can shrink it."""
    return random.Random(2013).randbytes(MESSAGE_BYTES - _LABEL.size)


def opening(connection: int, number: int, publish_time_ms: int) -> bytes:
    """All of a SEND frame that comes before the filler."""
    return send_head(number, _LABEL.pack(connection, number), filler(), publish_time_ms)


def flood(port: int, messages: int, board: Board, faults: Faults) -> None:
    """Open all connections, wait for the word, and let all of them send `messages` messages each."""
    track = board.tracks[FLOOD]
    with ExitStack() as opened:
        clients = [opened.enter_context(RawClient(port)) for _ in range(CONNECTIONS)]
        for client in clients:
            client.produce(TOPIC)
            client.socket.settimeout(SEND_TIMEOUT_S)
        filler()
        track.ready = 1
        wait_until(lambda: board.act >= Act.BEGIN)
        threads = [
            threading.Thread(target=_pour, args=(client, index, messages, track, faults), daemon=True)
            for index, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: board.act >= Act.END)


def _pour(client: RawClient, connection: int, messages: int, track: Track, faults: Faults) -> None:
    """Send without waiting, then count the receipts: one for each message, in order."""
    try:
        for number in range(messages):
            client.write(opening(connection, number, time.time_ns() // 1_000_000))
            client.write(filler())
        for number in range(messages):
            answer = client.next(Type.SEND_RECEIPT, Type.SEND_ERROR, timeout_s=SEND_TIMEOUT_S).command
            if answer.type != Type.SEND_RECEIPT or answer.send_receipt.sequence_id != number:
                raise AssertionError(f"expected the receipt of {number}, got {answer}")
            track.next[connection] += 1
    except (OSError, AssertionError) as error:
        track.wrong += 1
        faults.add(f"connection {connection}: {error!r}")


def read_back(url: str, messages: int, board: Board, faults: Faults) -> None:
    """Once the flood is over, read all of it with the official client and compare every byte."""
    track = board.tracks[READER]
    track.ready = 1
    wait_until(lambda: board.act >= Act.READ_BACK)
    client = pulsar.Client(url, logger=quiet())
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, receiver_queue_size=READ_AHEAD)
    while track.handled < CONNECTIONS * messages and board.act < Act.END:
        data = memoryview(reader.read_next(READ_TIMEOUT_MS).data())
        connection, number = _LABEL.unpack_from(data)
        if number != track.next[connection] or data[_LABEL.size :] != filler():
            track.wrong += 1
            faults.add(f"expected flood message {track.next[connection]} of {connection}, got {number} or other bytes")
        track.next[connection] += 1
    client.close()
