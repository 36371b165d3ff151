# SPDX-License-Identifier: Apache-2.0
"""The loads of `listings`: clients that ask for lists of topics, wait for them, and watch them."""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.measure import percentiles
from benchmarks.process import ask, forget_peak, metrics, usage
from penstock.core.units import MIB
from penstock.testing.client import RawClient, Type, entry, frame, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from benchmarks.process import Address

NAMESPACE: Final = "public/default"
PARTITIONS: Final = 1_000
STORED: Final = send(0, 0, entry(b"x" * 100))
TIMEOUT_S: Final = 120.0
LIMIT_S: Final = 50.0  # no load of expensive clients lasts longer
READ_BYTES: Final = 1 << 18
SLOW_BYTES_PER_S: Final = 128 * 1024
SLOW_READ_S: Final = 0.25
# Of a few slow readers beside a fast one, and how often each of them asks.
BESIDE_BYTES_PER_S: Final = 20_000
BESIDE_LISTINGS: Final = 10
LISTED: Final = Type.GET_TOPICS_OF_NAMESPACE_RESPONSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything."""

    topics: int = 10_000
    topic_bytes: int = 100
    connections: int = 1_000
    watchers: int = 300
    watched: int = 300
    watched_bytes: int = 512
    slow: int = 500
    beside: int = 30
    beside_s: float = 20.0
    listings: int = 4
    patterns: int = 1_000
    matched: int = 20_000
    publishers: int = 20
    watched_patterns: int = 600
    before_s: float = 5.0
    unread_s: float = 5.0


QUICK: Final = Sizes(
    topics=100,
    connections=10,
    watchers=5,
    watched=5,
    slow=10,
    beside=3,
    beside_s=0.5,
    patterns=10,
    matched=200,
    publishers=2,
    watched_patterns=5,
    before_s=0.5,
    unread_s=0.5,
)


@dataclass(slots=True)
class Figures:
    """What one broker came to, by name; and what went wrong."""

    values: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def expect(self, what: str, *, kept: bool) -> None:
        """Fail unless `kept`."""
        if not kept:
            self.failed.append(what)


def make_topics(address: Address, name: str, count: int, length: int) -> None:
    """So many topics, as partitions of as few as possible; a full name has about `length` characters."""
    local = name + "x" * (length - len(f"persistent://{NAMESPACE}/{name}-partition-000"))
    for row, start in enumerate(range(0, count, PARTITIONS)):
        path = f"persistent/{NAMESPACE}/{local}{row}/partitions"
        ask(address.admin_port, "PUT", path, min(PARTITIONS, count - start))


def permits_held(address: Address) -> float:
    """Bytes of both limiters that somebody still has, by the broker's own metrics."""
    told = metrics(address.admin_port)
    names = (
        f"pulsar_{of}_topic_list_{kind}_memory_used_bytes" for of in ("broker", "proxy") for kind in ("heap", "direct")
    )
    return sum(told.get(name, 0.0) for name in names)


def start_growth(address: Address) -> float:
    """Let the highest resident memory be that of now; returns it."""
    forget_peak(address.pid)
    return usage(address.pid).rss_mib


def growth(address: Address, before_mib: float) -> float:
    """How far it went above that."""
    return usage(address.pid).rss_peak_mib - before_mib


def list_topics(request_id: int, **fields: object) -> bytes:
    """A request for a list."""
    return frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=request_id, namespace=NAMESPACE, **fields)


def watch_topics(watcher_id: int, **fields: object) -> bytes:
    """A request to be told of new topics."""
    return frame(Type.WATCH_TOPIC_LIST, request_id=watcher_id, watcher_id=watcher_id, namespace=NAMESPACE, **fields)


# -- connections ------------------------------------------------------------------------------------------------------


class Begun(NamedTuple):
    """A frame whose beginning has come."""

    at_s: float
    kind: int
    nbytes: int


class Stream:
    """Frames of one connection, of which only the kinds, the sizes and the times are kept."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.client.socket.setblocking(False)
        self.begun: list[Begun] = []
        self._head = bytearray()
        self._skip = 0  # bytes of the frame that is coming

    def take(self, nbytes: int) -> None:
        """Read at most so many bytes; PINGs are answered. Raises ConnectionError."""
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
                wanted = 10 - len(self._head)  # two lengths, and the field that says of which kind the command is
                self._head += data[:wanted]
                data = data[wanted:]
                if len(self._head) == 10:
                    self._begin(int.from_bytes(self._head[:4], "big"), self._head[9])
                    self._head.clear()

    def _begin(self, nbytes: int, kind: int) -> None:
        self._skip = nbytes - 6
        if kind == Type.PING:
            self.client.write(frame(Type.PONG))
        else:
            self.begun.append(Begun(time.perf_counter(), kind, nbytes))

    def count(self, *kinds: int) -> int:
        """Frames of these kinds that have begun, all but the last of them whole."""
        return sum(one.kind in kinds for one in self.begun)

    @property
    def whole(self) -> bool:
        """Whether no frame is half here."""
        return not self._skip and not self._head

    def has_lists(self, count: int) -> bool:
        """Whether so many requests were answered, with lists or errors."""
        return self.whole and self.count(LISTED, Type.ERROR) == count


class Connections(selectors.DefaultSelector):
    """Connections to one broker, and a wait for all of those that are registered."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self.address = address
        self.clients: list[RawClient] = []

    def open(self) -> RawClient:
        """One more."""
        self.clients.append(RawClient(self.address.port, through=self.address.through))
        return self.clients[-1]

    def streams(self, count: int) -> list[Stream]:
        """So many more, with what comes on them."""
        return [Stream(self.open()) for _ in range(count)]

    def watch(self, streams: Iterable[Stream]) -> None:
        """Wait for these, too."""
        for stream in streams:
            self.register(stream.client.socket, selectors.EVENT_READ, stream)

    def receive(self, timeout_s: float) -> list[Stream]:
        """Wait once, and read; returns the streams on which something came."""
        came = [key.data for key, _ in self.select(timeout_s)]
        for stream in came:
            stream.take(READ_BYTES)
        return came

    def close(self) -> None:
        """Close all of them."""
        super().close()
        for client in self.clients:
            client.close()


# -- all at once ------------------------------------------------------------------------------------------------------


def at_once(address: Address, sizes: Sizes, figures: Figures) -> None:
    """A thousand who come back at the same moment."""
    all_ask(address, sizes, figures, lambda _: list_topics(1))
    figures.expect("all got a list", kept=not figures.values["refused"])


def distinct(address: Address, sizes: Sizes, figures: Figures) -> None:
    """The same, each with a pattern of its own, so that no two share an answer: some may be refused."""
    all_ask(address, sizes, figures, lambda number: list_topics(1, topics_pattern=f"{NAMESPACE}/(once|{number}).*"))


def unread(address: Address, sizes: Sizes, figures: Figures) -> None:
    """A thousand ask, each with a pattern of its own, and read nothing; then they are gone, and somebody else asks."""
    make_topics(address, "once", sizes.topics, sizes.topic_bytes)
    before_mib = start_growth(address)
    with Connections(address) as connections:
        for number in range(sizes.connections):
            pattern = f"{NAMESPACE}/(once|{number}).*"
            connections.open().write(list_topics(1, topics_pattern=pattern))
        time.sleep(sizes.unread_s)
        figures.values["held, MiB"] = permits_held(address) / MIB
    began_s = time.perf_counter()
    with Connections(address) as connections:
        (stream,) = connections.streams(1)
        stream.client.write(list_topics(1))
        connections.watch((stream,))
        while not stream.has_lists(1):
            connections.receive(TIMEOUT_S)
        figures.expect("the next one gets a list", kept=not stream.count(Type.ERROR))
    figures.values["the next is answered, s"] = time.perf_counter() - began_s
    figures.values["growth, MiB"] = growth(address, before_mib)


def all_ask(address: Address, sizes: Sizes, figures: Figures, request: Callable[[int], bytes]) -> None:
    """All connections send their request at the same moment."""
    make_topics(address, "once", sizes.topics, sizes.topic_bytes)
    with Connections(address) as connections:
        streams = connections.streams(sizes.connections)
        before_mib, began_s = start_growth(address), time.perf_counter()
        for number, stream in enumerate(streams):
            stream.client.write(request(number))
        connections.watch(streams)
        taken_ms: list[float] = []
        while len(taken_ms) < len(streams):
            for stream in connections.receive(TIMEOUT_S):
                if stream.has_lists(1):
                    connections.unregister(stream.client.socket)
                    taken_ms.append((time.perf_counter() - began_s) * 1e3)
        lengths = {begun.nbytes for stream in streams for begun in stream.begun if begun.kind == LISTED}
        figures.values["all answered, s"] = time.perf_counter() - began_s
        figures.values["an answer, p50, ms"] = percentiles(sorted(taken_ms))["p50"]
        figures.values["growth, MiB"] = growth(address, before_mib)
        figures.values["refused"] = sum(stream.count(Type.ERROR) for stream in streams)
        whole = len(lengths) == 1 and min(lengths) >= sizes.topics * (sizes.topic_bytes - 5)
        figures.expect("all lists are whole and the same", kept=whole)


# -- watchers ---------------------------------------------------------------------------------------------------------


def watchers(address: Address, sizes: Sizes, figures: Figures) -> None:
    """Consumers of a pattern, as Java's client makes them: a list, then a watcher with its hash, then updates."""
    make_topics(address, "watched-a", sizes.watched, sizes.watched_bytes)
    pattern = f"{NAMESPACE}/watched-.*"
    with Connections(address) as connections:
        clients = [connections.open() for _ in range(sizes.watchers)]
        before_mib, began_s = start_growth(address), time.perf_counter()
        for client in clients:
            client.write(list_topics(1, topics_pattern=pattern))
        for client in clients:
            listed = client.next(LISTED, Type.ERROR, timeout_s=TIMEOUT_S).command.getTopicsOfNamespaceResponse
            figures.expect("a list is whole", kept=len(listed.topics) == sizes.watched)
            client.write(watch_topics(2, topics_pattern=pattern, topics_hash=listed.topics_hash))
        for client in clients:
            answer = client.next(Type.WATCH_TOPIC_LIST_SUCCESS, Type.ERROR, timeout_s=TIMEOUT_S).command
            figures.expect("a watcher is let in", kept=answer.type != Type.ERROR)
        figures.values["all watch, s"] = time.perf_counter() - began_s
        began_s = time.perf_counter()
        make_topics(address, "watched-b", sizes.watched, sizes.watched_bytes)
        for client in clients:
            figures.expect("a watcher hears of each topic once", kept=heard_of(client, sizes.watched))
        figures.values["all heard, s"] = time.perf_counter() - began_s
        figures.values["growth, MiB"] = growth(address, before_mib)


def heard_of(client: RawClient, count: int) -> bool:
    """Whether so many new topics are told, each once."""
    heard: set[str] = set()
    while len(heard) < count:
        new = client.next(Type.WATCH_TOPIC_UPDATE, timeout_s=TIMEOUT_S).command.watchTopicUpdate.new_topics
        if heard & set(new):
            return False
        heard |= set(new)
    return True


def many_patterns(address: Address, sizes: Sizes, figures: Figures) -> None:
    """Watchers of one connection, each with a pattern of its own."""
    make_topics(address, "watched-a", sizes.topics // 10, 100)
    with Connections(address) as connections:
        client = connections.open()
        before_mib, began_s = start_growth(address), time.perf_counter()
        refused = 0
        for number in range(sizes.watched_patterns):
            client.write(watch_topics(number, topics_pattern=f".*[wx].{{10}}.*a{number}|.*t{number % 9}x*"))
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


# -- slow readers -----------------------------------------------------------------------------------------------------


def slow(address: Address, sizes: Sizes, figures: Figures) -> None:
    """Half of those who ask read slowly."""
    make_topics(address, "slow", sizes.topics, 100)
    with Connections(address) as connections:
        streams = connections.streams(sizes.slow)
        lazy = streams[::2]
        for stream in lazy:
            stream.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        connections.watch(streams[1::2])
        before_mib, cpu_s, began_s = start_growth(address), usage(address.pid).cpu_s, time.perf_counter()
        for stream in streams:
            stream.client.write(b"".join(list_topics(number) for number in range(sizes.listings)))
        unfinished = set(streams)
        next_s = began_s
        fast_done_s: list[float] = []
        while unfinished and time.perf_counter() - began_s < LIMIT_S:
            done = {stream for stream in connections.receive(0.05) if stream.has_lists(sizes.listings)} & unfinished
            fast_done_s += [time.perf_counter() - began_s] * len(done)
            if time.perf_counter() >= next_s:
                next_s += SLOW_READ_S
                for stream in unfinished.intersection(lazy):
                    stream.take(int(SLOW_BYTES_PER_S * SLOW_READ_S))
                    if stream.has_lists(sizes.listings):
                        done.add(stream)
            unfinished -= done
        refused = sum(stream.count(Type.ERROR) for stream in streams)
        answers = sum(stream.count(LISTED) for stream in streams)
        figures.values |= {"answered": answers, "refused": refused, "not finished": len(unfinished)}
        if fast_done_s:
            figures.values |= {f"fast, all four, {name}, s": at for name, at in percentiles(fast_done_s).items()}
        figures.values["all read, s"] = time.perf_counter() - began_s
        figures.values["growth, MiB"] = growth(address, before_mib)
        figures.values["broker's CPU, s"] = usage(address.pid).cpu_s - cpu_s
        figures.expect("all lists come", kept=not refused and not unfinished)


def beside_slow(address: Address, sizes: Sizes, figures: Figures) -> None:
    """A client that reads lists at once, beside a few that have asked ten times and read slowly."""
    make_topics(address, "slow", sizes.topics // 5, 100)
    with Connections(address) as connections:
        lazy = connections.streams(sizes.beside)
        for stream in lazy:
            stream.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            stream.client.write(b"".join(list_topics(number) for number in range(BESIDE_LISTINGS)))
        (fast,) = connections.streams(1)
        connections.watch([fast])
        waits_s: list[float] = []
        next_s = began_s = time.perf_counter()
        while (asked_s := time.perf_counter()) < began_s + sizes.beside_s:
            fast.client.write(list_topics(1))
            while not fast.has_lists(len(waits_s) + 1):
                connections.receive(SLOW_READ_S)
                if time.perf_counter() >= next_s:
                    next_s += SLOW_READ_S
                    for stream in lazy:
                        stream.take(int(BESIDE_BYTES_PER_S * SLOW_READ_S))
            waits_s.append(time.perf_counter() - asked_s)
        refused = fast.count(Type.ERROR)
        figures.values |= {"asked": len(waits_s), "refused": refused}
        figures.values |= {f"wait {name}, ms": 1e3 * at_s for name, at_s in percentiles(sorted(waits_s)).items()}
        figures.expect("the fast one is never refused", kept=not refused)


# -- many patterns ----------------------------------------------------------------------------------------------------


class Publisher(Stream):
    """Sends its next message when it has the receipt of the last."""

    def __init__(self, client: RawClient) -> None:
        super().__init__(client)
        self.taken_ms: list[float] = []
        self._send()

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self.client.write(STORED)

    def take(self, nbytes: int) -> None:
        """Read at most so many bytes."""
        super().take(nbytes)
        if self.count(Type.SEND_RECEIPT):
            self.begun.clear()
            self.taken_ms.append((time.perf_counter() - self._sent_s) * 1e3)
            self._send()


def patterns(address: Address, sizes: Sizes, figures: Figures) -> None:
    """One client's patterns, and what others feel."""
    make_topics(address, "matched", sizes.matched, 100)
    with Connections(address) as connections:
        publishers = []
        for number in range(sizes.publishers):
            client = connections.open()
            client.produce(f"persistent://{NAMESPACE}/beside-{number}")
            publishers.append(Publisher(client))
        connections.watch(publishers)
        before_cpu_s, before_s = usage(address.pid).cpu_s, time.perf_counter()
        while time.perf_counter() - before_s < sizes.before_s:
            connections.receive(0.05)
        publishing(address, publishers, "before", before_cpu_s, before_s, figures)
        greedy, modest = connections.streams(2)
        before_mib, cpu_s, began_s = start_growth(address), usage(address.pid).cpu_s, time.perf_counter()
        greedy.client.write(b"".join(by_pattern(number) for number in range(sizes.patterns)))
        connections.watch((greedy, modest))
        asked_s, waits_ms = 0.0, list[float]()
        while time.perf_counter() - began_s < LIMIT_S and not greedy.has_lists(sizes.patterns):
            connections.receive(0.05)
            if modest.begun and modest.whole:
                waits_ms.append((modest.begun[-1].at_s - asked_s) * 1e3)
                figures.expect("a modest client is answered", kept=not modest.count(Type.ERROR))
                modest.begun.clear()
                asked_s = 0.0
            if not asked_s:
                asked_s = time.perf_counter()
                modest.client.write(by_pattern(1_000_000))
        answered_s = [begun.at_s for begun in greedy.begun if begun.kind == LISTED]
        figures.values |= {
            "first answer, s": answered_s[0] - began_s if answered_s else float("nan"),
            "answered": len(answered_s),
            "refused": greedy.count(Type.ERROR),
            "last word, s": (greedy.begun[-1].at_s if greedy.begun else time.perf_counter()) - began_s,
            "another's list, p50, ms": percentiles(sorted(waits_ms))["p50"] if waits_ms else float("nan"),
        }
        publishing(address, publishers, "meanwhile", cpu_s, began_s, figures)
        figures.values["growth, MiB"] = growth(address, before_mib)


def publishing(
    address: Address, publishers: list[Publisher], title: str, cpu_s: float, began_s: float, figures: Figures
) -> None:
    """What publishers felt since then; they begin to count anew."""
    seconds, cpu_s = time.perf_counter() - began_s, usage(address.pid).cpu_s - cpu_s
    taken_ms = sorted(ms for publisher in publishers for ms in publisher.taken_ms)
    for publisher in publishers:
        publisher.taken_ms.clear()
    if taken_ms:  # A small load may be over before a receipt came.
        named = percentiles(taken_ms)
        figures.values |= {f"publish {title}, {name}, ms": named[name] for name in ("p50", "p99")}
    figures.values[f"published {title}, 1/s"] = len(taken_ms) / seconds
    figures.values[f"broker's CPU {title}, %"] = 100 * cpu_s / seconds


def by_pattern(number: int) -> bytes:
    """A request with a pattern of its own."""
    pattern = f"{NAMESPACE}/matched.*(-partition)?x{{0,{number % 50}}}.*{'' if number < 50 else f'|{number}'}"
    return list_topics(number, topics_pattern=pattern[-50:])


LOADS: Final[Mapping[str, Callable[[Address, Sizes, Figures], None]]] = {
    "at-once": at_once,
    "distinct": distinct,
    "unread": unread,
    "watchers": watchers,
    "slow": slow,
    "beside-slow": beside_slow,
    "patterns": patterns,
    "many-patterns": many_patterns,
}
