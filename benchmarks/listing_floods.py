# SPDX-License-Identifier: Apache-2.0
"""Clients that make topic listings dear: what they get, and what the others feel meanwhile.

    python -m benchmarks.listing_floods [slow patterns watchers] [--memory-limit-mb 512]

slow        500 connections ask four times each for 10,000 topics, and every second one reads 128 KB/s. All are to be
            answered, the fast ones within seconds, and the broker is to hold the list once.
patterns    one connection asks for 20,000 topics by 1,000 patterns without waiting. Others publish, one message after
            another, and one asks for a list now and then: their latency before and meanwhile.
watchers    one connection watches by 600 patterns of its own, then topics come.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks.listings import NAMESPACE, growth, make_topics, permits_held, start_growth
from benchmarks.measure import percentiles
from benchmarks.penstock_peer import penstock
from benchmarks.process import usage
from penstock.testing.client import RawClient, Type, entry, frame, send

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.process import Address

STORED: Final = send(0, 0, entry(b"x" * 100))
LIMIT_S: Final = 50.0  # no load lasts longer
SLOW_BYTES_PER_S: Final = 128 * 1024
SLOW_READ_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything."""

    connections: int = 500
    listings: int = 4
    topics: int = 10_000
    patterns: int = 1_000
    matched: int = 20_000
    publishers: int = 20
    watchers: int = 600
    before_s: float = 5.0


QUICK: Final = Sizes(connections=10, topics=100, patterns=10, matched=200, publishers=2, watchers=5, before_s=0.5)


class Stream:
    """Frames of one connection, of which only the kinds and the times are kept."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.times: list[tuple[float, int]] = []  # seconds, kind
        self._head = bytearray()
        self._skip = 0

    def take(self, nbytes: int) -> None:
        """Read at most so many bytes; PINGs are answered."""
        try:
            data = memoryview(self.client.socket.recv(nbytes))
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the broker closed a connection")
        while data:
            if self._skip:
                skipped = min(self._skip, len(data))
                self._skip -= skipped
                data = data[skipped:]
            else:
                wanted = 10 - len(self._head)
                self._head += data[:wanted]
                data = data[wanted:]
                if len(self._head) == 10:
                    self._skip = int.from_bytes(self._head[:4], "big") - 6
                    kind = self._head[9]
                    self._head.clear()
                    self.times.append((time.perf_counter(), kind))
                    if kind == Type.PING:
                        self.client.write(frame(Type.PONG))

    def count(self, *kinds: int) -> int:
        """Frames of these kinds that have begun, all but the last of them whole."""
        return sum(kind in kinds for _, kind in self.times)

    @property
    def whole(self) -> bool:
        """Whether no frame is half here."""
        return not self._skip and not self._head


@dataclass(slots=True)
class Figures:
    """By name."""

    values: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


# -- slow readers -----------------------------------------------------------------------------------------------------


def slow(address: Address, sizes: Sizes, figures: Figures) -> None:
    """Half of those who ask read slowly."""
    make_topics(address, "slow", sizes.topics, 100)
    with ExitStack() as stack:
        streams = [Stream(stack.enter_context(RawClient(address.port))) for _ in range(sizes.connections)]
        selector = stack.enter_context(selectors.DefaultSelector())
        lazy = streams[::2]
        for stream in streams:
            stream.client.socket.setblocking(False)
        for stream in lazy:
            stream.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        for stream in streams[1::2]:
            selector.register(stream.client.socket, selectors.EVENT_READ, stream)
        before_mib, cpu_s = start_growth(address), usage(address.pid).cpu_s
        began_s = time.perf_counter()
        request = b"".join(
            frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=number, namespace=NAMESPACE)
            for number in range(sizes.listings)
        )
        for stream in streams:
            stream.client.write(request)
        unfinished = set(streams)
        next_s = began_s
        fast_done: list[float] = []
        while unfinished and time.perf_counter() - began_s < LIMIT_S:
            for key, _ in selector.select(0.05):
                stream = key.data
                stream.take(1 << 18)
                if stream in unfinished and _has(stream, sizes.listings):
                    unfinished.discard(stream)
                    fast_done.append(time.perf_counter() - began_s)
            if time.perf_counter() >= next_s:
                next_s += SLOW_READ_S
                for stream in lazy:
                    if stream in unfinished:
                        stream.take(int(SLOW_BYTES_PER_S * SLOW_READ_S))
                        if _has(stream, sizes.listings):
                            unfinished.discard(stream)
        refused = sum(stream.count(Type.ERROR) for stream in streams)
        answers = sum(stream.count(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE) for stream in streams)
        figures.values |= {"answered": answers, "refused": refused, "not finished": len(unfinished)}
        if fast_done:
            fast_done.sort()
            figures.values |= {f"fast, all four, {name}, s": at for name, at in percentiles(fast_done).items()}
        figures.values["all read, s"] = time.perf_counter() - began_s
        figures.values["growth, MiB"] = growth(address, before_mib)
        figures.values["broker's CPU, s"] = usage(address.pid).cpu_s - cpu_s
        if refused or unfinished:
            figures.failed.append("not all lists came")


def _has(stream: Stream, count: int) -> bool:
    return stream.whole and stream.count(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, Type.ERROR) == count


# -- many patterns ----------------------------------------------------------------------------------------------------


class Publisher:
    """Sends its next message when it has the receipt of the last."""

    def __init__(self, client: RawClient) -> None:
        self.stream = Stream(client)
        self.sent_s = 0.0
        self.taken_ms: list[float] = []

    def send(self) -> None:
        """One message."""
        self.sent_s = time.perf_counter()
        self.stream.client.write(STORED)

    def take(self) -> None:
        """What has come."""
        self.stream.take(1 << 16)
        receipts = self.stream.count(Type.SEND_RECEIPT)
        self.stream.times.clear()
        if receipts:
            self.taken_ms.append((time.perf_counter() - self.sent_s) * 1e3)
            self.send()


def patterns(address: Address, sizes: Sizes, figures: Figures) -> None:
    """One client's patterns, and what others feel."""
    make_topics(address, "matched", sizes.matched, 100)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        publishers = []
        for number in range(sizes.publishers):
            client = stack.enter_context(RawClient(address.port))
            client.produce(f"persistent://{NAMESPACE}/beside-{number}")
            client.socket.setblocking(False)
            publisher = Publisher(client)
            publishers.append(publisher)
            selector.register(client.socket, selectors.EVENT_READ, publisher)
            publisher.send()
        cpu_s = usage(address.pid).cpu_s
        _run(selector, sizes.before_s)
        before_cpu_s = usage(address.pid).cpu_s - cpu_s
        before = sorted(taken for publisher in publishers for taken in publisher.taken_ms)
        for publisher in publishers:
            publisher.taken_ms.clear()
        greedy = Stream(stack.enter_context(RawClient(address.port)))
        modest = Stream(stack.enter_context(RawClient(address.port)))
        before_mib, cpu_s = start_growth(address), usage(address.pid).cpu_s
        began_s = time.perf_counter()
        greedy.client.write(b"".join(_by_pattern(number) for number in range(sizes.patterns)))
        for stream in (greedy, modest):
            stream.client.socket.setblocking(False)
            selector.register(stream.client.socket, selectors.EVENT_READ, stream)
        asked_s, waits_ms = 0.0, list[float]()
        while time.perf_counter() - began_s < LIMIT_S and not _has(greedy, sizes.patterns):
            _run(selector, 0.05)
            if modest.times and modest.whole:
                waits_ms.append((modest.times[-1][0] - asked_s) * 1e3)
                if modest.count(Type.ERROR):
                    figures.failed.append("a modest client was refused")
                modest.times.clear()
                asked_s = 0.0
            if not asked_s:
                asked_s = time.perf_counter()
                modest.client.write(_by_pattern(1_000_000))
        answered = [at for at, kind in greedy.times if kind == Type.GET_TOPICS_OF_NAMESPACE_RESPONSE]
        meanwhile = sorted(taken for publisher in publishers for taken in publisher.taken_ms)
        figures.values |= {
            "first answer, s": answered[0] - began_s if answered else float("nan"),
            "answered": len(answered),
            "refused": greedy.count(Type.ERROR),
            "last word, s": (greedy.times[-1][0] if greedy.times else time.perf_counter()) - began_s,
            "another's list, p50, ms": percentiles(sorted(waits_ms))["p50"] if waits_ms else float("nan"),
        }
        lasted_s, meanwhile_cpu_s = time.perf_counter() - began_s, usage(address.pid).cpu_s - cpu_s
        for title, taken, seconds, cpu_s in (
            ("before", before, sizes.before_s, before_cpu_s),
            ("meanwhile", meanwhile, lasted_s, meanwhile_cpu_s),
        ):
            if taken:  # A small load may be over before a receipt came.
                named = percentiles(taken)
                figures.values |= {f"publish {title}, {name}, ms": named[name] for name in ("p50", "p99")}
            figures.values[f"published {title}, 1/s"] = len(taken) / seconds
            figures.values[f"broker's CPU {title}, %"] = 100 * cpu_s / seconds
        figures.values["growth, MiB"] = growth(address, before_mib)


def _by_pattern(number: int) -> bytes:
    pattern = f"{NAMESPACE}/matched.*(-partition)?x{{0,{number % 50}}}.*{'' if number < 50 else f'|{number}'}"
    return frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=number, namespace=NAMESPACE, topics_pattern=pattern[-50:])


def _run(selector: selectors.BaseSelector, seconds: float) -> None:
    until_s = time.perf_counter() + seconds
    while (left_s := until_s - time.perf_counter()) > 0:
        for key, _ in selector.select(left_s):
            if isinstance(key.data, Publisher):
                key.data.take()
            else:
                key.data.take(1 << 20)


# -- many watchers ----------------------------------------------------------------------------------------------------


def watchers(address: Address, sizes: Sizes, figures: Figures) -> None:
    """Patterns that last."""
    make_topics(address, "watched-a", sizes.topics // 10, 100)
    with RawClient(address.port) as client:
        before_mib = start_growth(address)
        began_s = time.perf_counter()
        refused = 0
        for number in range(sizes.watchers):
            pattern = f".*[wx].{{10}}.*a{number}|.*t{number % 9}x*"
            client.write(
                frame(
                    Type.WATCH_TOPIC_LIST,
                    request_id=number,
                    watcher_id=number,
                    namespace=NAMESPACE,
                    topics_pattern=pattern,
                )
            )
            answer = client.next(Type.WATCH_TOPIC_LIST_SUCCESS, Type.ERROR, timeout_s=LIMIT_S)
            refused += answer.command.type == Type.ERROR
            if time.perf_counter() - began_s > LIMIT_S:
                break
        figures.values |= {"watched, s": time.perf_counter() - began_s, "refused": refused}
        began_s = time.perf_counter()
        make_topics(address, "watched-b", sizes.topics // 10, 100)
        figures.values["topics made meanwhile, s"] = time.perf_counter() - began_s
        figures.values["growth, MiB"] = growth(address, before_mib)
        figures.values["held by the books, MiB"] = permits_held(address) / 2**20


LOADS: Final[Mapping[str, Callable[[Address, Sizes, Figures], None]]] = {
    "slow": slow,
    "patterns": patterns,
    "watchers": watchers,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the loads and print what they came to; exits 1 if any failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("loads", nargs="*", help=f"of {', '.join(LOADS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a smoke test: means nothing as figures")
    parser.add_argument("--memory-limit-mb", default="512")
    options = parser.parse_args(argv)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    failed = False
    for load in options.loads or LOADS:
        figures = Figures()
        with penstock(environment={"PENSTOCK_MEMORY_LIMIT_MB": options.memory_limit_mb}) as address:
            LOADS[load](address, QUICK if options.quick else Sizes(), figures)
            deadline_s = time.monotonic() + 10
            while (held := permits_held(address)) and time.monotonic() < deadline_s:
                time.sleep(0.1)
        figures.values["permits still held, bytes"] = held
        failed |= bool(figures.failed or held)
        print(f"\n| {load} | |\n|---|---|")
        for name, value in figures.values.items():
            print(f"| {name} | {value:,.1f} |")
        for line in figures.failed:
            print(f"failed: {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
