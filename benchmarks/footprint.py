# SPDX-License-Identifier: Apache-2.0
"""What a topic and a connection cost in resident memory: ten thousand topics with a producer each, a thousand clients.

    python -m benchmarks.footprint --peer pulsar

Every producer publishes one message and must get its receipt, every consumer must get one: what does not work has no
footprint. Resident memory is read after each step; a Java broker's includes garbage that its collector has not looked
at yet, as an operator would see it too.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.brokers import BROKERS, add_peer_option, chosen
from benchmarks.process import allow_many_sockets, usage
from benchmarks.report import print_table
from penstock.testing.client import RawClient, Type, entry, frame, send

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.process import Address

KIB_PER_MIB = 1024
TOPIC = "persistent://public/default/footprint-"
# Asked for at once, so that the creations of a broker that can share a sync between them do.
WINDOW = 100
# A topic that is still being loaded answers so; clients try again.
SERVICE_NOT_READY = 6
STORED = entry(b"x" * 100)


def answers(client: RawClient, kind: int, refused: int, count: int) -> list[int]:
    """Wait for so many answers of a kind; returns the request ids that were told to come again."""
    again = []
    while count:
        command = client.read().command
        if command.type == kind:
            count -= 1
        elif command.type == refused and command.error.error == SERVICE_NOT_READY:
            again.append(command.error.request_id)
            count -= 1
        elif command.type == Type.PING:
            client.write(frame(Type.PONG))
        elif command.type == refused:
            raise RuntimeError(f"refused: {command.error.message}")
    return again


def open_topics(client: RawClient, numbers: Sequence[int]) -> None:
    """Look topics up and open a producer on each, a window at a time; then publish one message on each."""
    for start in range(0, len(numbers), WINDOW):
        window = list(numbers[start : start + WINDOW])
        for number in window:
            client.write(frame(Type.PARTITIONED_METADATA, topic=f"{TOPIC}{number}", request_id=number))
        answers(client, Type.PARTITIONED_METADATA_RESPONSE, Type.ERROR, len(window))
        for number in window:
            client.write(frame(Type.LOOKUP, topic=f"{TOPIC}{number}", request_id=number))
        answers(client, Type.LOOKUP_RESPONSE, Type.ERROR, len(window))
        while window:
            for number in window:
                client.write(frame(Type.PRODUCER, topic=f"{TOPIC}{number}", producer_id=number, request_id=number))
            window = answers(client, Type.PRODUCER_SUCCESS, Type.ERROR, len(window))
        client.write(b"".join(send(number, 0, STORED) for number in numbers[start : start + WINDOW]))
        answers(client, Type.SEND_RECEIPT, Type.SEND_ERROR, len(numbers[start : start + WINDOW]))


def open_clients(port: int, count: int, stack: ExitStack) -> None:
    """Connect, subscribe each client to a topic of those that exist, and take the message that waits there."""
    for number in range(count):
        client = RawClient(port)
        stack.callback(client.close)
        topic = f"{TOPIC}{number}"
        client.write(
            frame(
                Type.SUBSCRIBE, topic=topic, subscription="s", subType=1, consumer_id=0, request_id=0, initialPosition=1
            )
        )
        answers(client, Type.SUCCESS, Type.ERROR, 1)
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=10))
        answers(client, Type.MESSAGE, Type.ERROR, 1)


def measure(address: Address, topics: int, clients: int) -> dict[str, float]:
    """Load one broker; returns the cells of its row."""
    idle = usage(address.pid).rss_mib
    with ExitStack() as stack:
        client = RawClient(address.port)
        stack.callback(client.close)
        began_s = time.monotonic()
        open_topics(client, range(topics))
        topics_s = time.monotonic() - began_s
        loaded = usage(address.pid).rss_mib
        began_s = time.monotonic()
        open_clients(address.port, clients, stack)
        clients_s = time.monotonic() - began_s
        connected = usage(address.pid).rss_mib
    return {
        "idle": idle,
        "topics": loaded,
        "KiB/topic": (loaded - idle) * KIB_PER_MIB / topics,
        "topics/s": topics / topics_s,
        "connected": connected,
        "KiB/connection": (connected - loaded) * KIB_PER_MIB / clients,
        "connections/s": clients / clients_s,
    }


def main() -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description="Resident memory per topic and per connection.")
    add_peer_option(parser)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=1_000)
    options = parser.parse_args()
    allow_many_sockets()
    print(f"{options.topics:,} topics with a producer and a message each, then {options.clients:,} connections with a")
    print("consumer that received one; resident memory in MiB, and KiB for one more")
    columns = {}
    for name in chosen(options):
        with BROKERS[name]() as address:
            columns[name] = measure(address, options.topics, options.clients)
    print_table("MiB", columns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
