# SPDX-License-Identifier: Apache-2.0
"""What lists of topics cost: how long one takes, and the memory of a thousand that are asked for at once (PIP-442).

    python -m benchmarks.listings --peer pulsar

Two loads, each on a fresh broker, once with its own limits and once with 8 MB for lists and 8 MB for what is being
sent:
    at once    1,000 connections ask at once, and read their megabyte as it comes
    watchers   300 connections ask for 300 topics of 512 characters by pattern and watch them; 300 more are made
Growth is the highest resident memory during a load above that before it, with all connections open. A load has failed
if any client got an error or a list that is not whole, or if the limiters are not free at the end.
"""

from __future__ import annotations

import argparse
import re
import resource
import selectors
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measure import percentiles
from benchmarks.penstock_peer import penstock
from benchmarks.process import ask, metrics, usage
from benchmarks.pulsar_peer import pulsar
from penstock.testing.client import RawClient, Type, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from benchmarks.process import Address

SMALL_MB: Final = 8
SMALL: Final = {
    "maxTopicListInFlightHeapMemSizeMB": str(SMALL_MB),
    "maxTopicListInFlightDirectMemSizeMB": str(SMALL_MB),
}
NAMESPACE: Final = "public/default"
PARTITIONS: Final = 1_000
TIMEOUT_S: Final = 120.0
READ_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything."""

    topics: int = 10_000
    topic_bytes: int = 100
    connections: int = 1_000
    watchers: int = 300
    watched: int = 300
    watched_bytes: int = 512


QUICK: Final = Sizes(topics=50, connections=10, watchers=5, watched=5)


@dataclass(slots=True)
class Figures:
    """What one broker came to, by name."""

    values: dict[str, float] = field(default_factory=dict)
    errors: int = 0


# -- topics -----------------------------------------------------------------------------------------------------------


def make_topics(address: Address, name: str, count: int, length: int) -> None:
    """So many topics, as partitions of as few as possible; a full name has about `length` characters."""
    local = name + "x" * (length - len(f"persistent://{NAMESPACE}/{name}-partition-000"))
    for row, start in enumerate(range(0, count, PARTITIONS)):
        path = f"persistent/{NAMESPACE}/{local}{row}/partitions"
        ask(address.admin_port, "PUT", path, min(PARTITIONS, count - start))


def permits_held(address: Address) -> float:
    """Bytes of both limiters that somebody still has, by the broker's own metrics."""
    told = metrics(address.admin_port)
    return sum(told[f"pulsar_broker_topic_list_{kind}_memory_used_bytes"] for kind in ("heap", "direct"))


# -- all at once ------------------------------------------------------------------------------------------------------


class Reader:
    """One connection's answer, of which only the length and the kind are looked at."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.head = b""
        self.skip_bytes = 0  # of the frame that is coming
        self.kind = 0
        self.frame_bytes = 0

    def take(self, buffer: bytearray) -> bool:
        """Read what has come; True when the answer is whole."""
        data = memoryview(buffer)[: self.client.socket.recv_into(buffer)]
        if not data:
            raise ConnectionError("the broker closed a connection")
        while data:
            if self.skip_bytes:
                skipped = min(self.skip_bytes, len(data))
                self.skip_bytes -= skipped
                data = data[skipped:]
            else:
                wanted = 10 - len(self.head)  # two lengths, and the field that says of which kind the command is
                self.head += bytes(data[:wanted])
                data = data[wanted:]
                if len(self.head) == 10:
                    self.frame_bytes, self.kind = int.from_bytes(self.head[:4], "big"), self.head[9]
                    self.skip_bytes, self.head = self.frame_bytes - 6, b""
            if not self.skip_bytes and not self.head and self.kind != Type.PING:
                return True
        return False


def at_once(address: Address, sizes: Sizes, figures: Figures) -> None:
    """A thousand who come back at the same moment."""
    make_topics(address, "once", sizes.topics, sizes.topic_bytes)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(address.port)) for _ in range(sizes.connections)]
        before = start_growth(address)
        began_s = time.perf_counter()
        request = frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=1, namespace=NAMESPACE)
        selector = stack.enter_context(selectors.DefaultSelector())
        for client in clients:
            client.write(request)
            client.socket.setblocking(False)
            selector.register(client.socket, selectors.EVENT_READ, Reader(client))
        taken, lengths = [], set()
        buffer = bytearray(READ_BYTES)
        while selector.get_map():
            for key, _ in selector.select(TIMEOUT_S):
                reader = key.data
                if reader.take(buffer):
                    selector.unregister(key.fileobj)
                    taken.append((time.perf_counter() - began_s) * 1e3)
                    figures.errors += reader.kind != Type.GET_TOPICS_OF_NAMESPACE_RESPONSE
                    lengths.add(reader.frame_bytes)
        figures.errors += len(lengths) != 1 or min(lengths) < sizes.topics * (sizes.topic_bytes - 5)
        figures.values["all answered, s"] = time.perf_counter() - began_s
        figures.values["an answer, p50, ms"] = percentiles(sorted(taken))["p50"]
        figures.values["growth, MiB"] = growth(address, before)


# -- watchers ---------------------------------------------------------------------------------------------------------


def watchers(address: Address, sizes: Sizes, figures: Figures) -> None:
    """Consumers of a pattern, as Java's client makes them: a list, then a watcher with its hash, then updates."""
    make_topics(address, "watched-a", sizes.watched, sizes.watched_bytes)
    pattern = f"{NAMESPACE}/watched-.*"
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(address.port)) for _ in range(sizes.watchers)]
        before = start_growth(address)
        began_s = time.perf_counter()
        for client in clients:
            client.write(frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=1, namespace=NAMESPACE, topics_pattern=pattern))
        for client in clients:
            answer = client.next(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, Type.ERROR, timeout_s=TIMEOUT_S).command
            listed = answer.getTopicsOfNamespaceResponse
            figures.errors += len(listed.topics) != sizes.watched
            fields = {"topics_pattern": pattern, "topics_hash": listed.topics_hash}
            client.write(frame(Type.WATCH_TOPIC_LIST, request_id=2, watcher_id=1, namespace=NAMESPACE, **fields))
        for client in clients:
            success = client.next(Type.WATCH_TOPIC_LIST_SUCCESS, Type.ERROR, timeout_s=TIMEOUT_S).command
            figures.errors += success.type == Type.ERROR
        figures.values["all watch, s"] = time.perf_counter() - began_s
        began_s = time.perf_counter()
        make_topics(address, "watched-b", sizes.watched, sizes.watched_bytes)
        figures.errors += sum(not heard_of(client, sizes.watched) for client in clients)
        figures.values["all heard, s"] = time.perf_counter() - began_s
        figures.values["growth, MiB"] = growth(address, before)


def heard_of(client: RawClient, count: int) -> bool:
    """Whether so many new topics are told, each once."""
    heard: set[str] = set()
    while len(heard) < count:
        new = client.next(Type.WATCH_TOPIC_UPDATE, timeout_s=TIMEOUT_S).command.watchTopicUpdate.new_topics
        if heard & set(new):
            return False
        heard |= set(new)
    return True


# -- memory -----------------------------------------------------------------------------------------------------------


def start_growth(address: Address) -> float:
    """Let the highest resident memory be that of now; returns it."""
    Path(f"/proc/{address.pid}/clear_refs").write_text("5")
    return usage(address.pid).rss_mib


def growth(address: Address, before_mib: float) -> float:
    """How far it went above that."""
    return usage(address.pid).rss_peak_mib - before_mib


# -- all of it --------------------------------------------------------------------------------------------------------

LOADS: Final[Mapping[str, Callable[[Address, Sizes, Figures], None]]] = {
    "at once": at_once,
    "watchers": watchers,
}


def launcher(name: str, limits: Mapping[str, str]) -> AbstractContextManager[Address]:
    """A fresh broker with these settings."""
    if name == "penstock":
        return penstock(environment={_variable(key): value for key, value in limits.items()})
    return pulsar(settings=limits)


def _variable(key: str) -> str:
    return "PENSTOCK_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).upper()


def measure(name: str, load: str, limits: Mapping[str, str], sizes: Sizes) -> Figures:
    """One load on one broker."""
    figures = Figures()
    with launcher(name, limits) as address:
        LOADS[load](address, sizes, figures)
        deadline_s = time.monotonic() + 10
        while (held := permits_held(address)) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        figures.values["permits still held, bytes"] = held
    figures.errors += held > 0
    figures.values["errors"] = figures.errors
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print one table a load; exits 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Latency and memory of topic listings.")
    parser.add_argument("--peer", choices=("pulsar",), help="measure this broker too")
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=list(LOADS))
    parser.add_argument("--quick", action="store_true", help="a smoke test: means nothing as figures")
    options = parser.parse_args(argv)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    brokers = ["penstock", *([options.peer] if options.peer else [])]
    sizes = QUICK if options.quick else Sizes()
    failed = False
    for load in options.loads:
        columns: dict[str, Mapping[str, float]] = {}
        for title, limits in (("own limits", {}), (f"{SMALL_MB} + {SMALL_MB} MB", SMALL)):
            for name in brokers:
                figures = measure(name, load, limits, sizes)
                failed |= figures.errors > 0 and name == "penstock"
                columns[f"{name}, {title}"] = figures.values
        print_table(load, columns)
    return 1 if failed else 0


def print_table(load: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """One row a figure."""
    print(f"\n| {load} | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for figure in next(iter(columns.values())):
        cells = [f"{values.get(figure, float('nan')):,.1f}" for values in columns.values()]
        print(f"| {figure} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
