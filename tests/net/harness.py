# SPDX-License-Identifier: Apache-2.0
"""A whole broker on a test's own event loop, and clients that may misbehave.

Why not a process: a test of request memory must read it to the byte, hold the disk still, and own the clock.

On a virtual loop (`penstock.testing.loop`), which is what tests of the broker have unless they are marked `real`,
sockets, disk and threads are in memory, and time passes only when nothing else can happen. On any other loop they are
the system's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.commands.sessions import refusal
from penstock.broker.composition.commands import commands
from penstock.broker.configuration import Keys, NoKeys
from penstock.broker.limits import BrokerLimits, LimitsInForce
from penstock.core.checksum import is_sealed
from penstock.core.clock import ManualClock
from penstock.core.units import KIB, MIB, NS_PER_S
from penstock.governance.budget import ROWS, Budget
from penstock.governance.outbound import Outbound
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import LENGTH_BYTES, RequestLimits
from penstock.net.listener import Connections, Listener, listen_for_clients
from penstock.net.listing_memory import LimitType
from penstock.net.posted_calls import PostedCalls
from penstock.storage.catalog import Catalog
from penstock.storage.directory import open_data_directory
from penstock.storage.entry_log import EntryLog
from penstock.storage.files import OsFile, OsFiles
from penstock.storage.limits import LogLimits
from penstock.storage.metadata import Change, MetadataFile
from penstock.storage.shared_store import LocalPart
from penstock.storage.snapshots import Snapshots
from penstock.testing.client import Type, entry, frame, send
from penstock.testing.disk import VirtualDisk
from penstock.testing.loop import WALL_MS, VirtualClock, VirtualLoop
from penstock.testing.vfs import sqlite_on
from penstock.wire.client.frames import Frame, decode_frame

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Self

    from penstock.authentication.authenticator import Authenticator
    from penstock.broker.elsewhere import Requests
    from penstock.broker.topics.topic import Topic
    from penstock.core.membership import Membership, Registry
    from penstock.core.service_urls import Addresses
    from penstock.governance.request_values import RequestMemorySnapshot
    from penstock.net.connection import Connection
    from penstock.net.usage_topic import Reporting
    from penstock.storage.shared_store import SharedPart
    from penstock.wire.codec import BaseCommand

TIMEOUT_S = 90.0
KEEP_ALIVE_S = 30
TOPIC = "persistent://public/default/t"
# A start looks through a whole segment, which is 64 MiB by default.
LOG_LIMITS = LogLimits(segment_bytes=16 * MIB)


# ------------------------------------------------------------------------------------------------------------- the disk


class Disk(OsFiles):
    """The real disk, whose log and snapshots can be held in the middle of a sync: nothing is durable until let go.

    With `read_error` no byte of the log's segments can be read.
    """

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self.read_error: OSError | None = None
        self.failed_reads = 0

    def hold(self) -> None:
        """Let the next sync of the log, or of a snapshot, wait."""
        self._free.clear()

    def release(self) -> None:
        """Let it end."""
        self._free.set()

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        file = super().open(path, create=create)
        return _HeldFile(file, self._free, self) if path.suffix in {".seg", ".draft"} else file


class _HeldFile(OsFile):
    def __init__(self, file: OsFile, free: threading.Event, disk: Disk) -> None:
        super().__init__(file._descriptor)  # noqa: SLF001 - it is the same file
        self._free = free
        self._disk = disk

    def read(self, size: int, offset: int) -> bytes:
        if self._disk.read_error is not None:
            self._disk.failed_reads += 1
            raise self._disk.read_error
        return super().read(size, offset)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        data = self.read(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        return super().read_cached(buffer, offset) if self._disk.read_error is None else 0

    def sync(self) -> None:
        assert self._free.wait(TIMEOUT_S), "the disk was held and never let go"
        super().sync()


# ----------------------------------------------------------------------------------------------------------- the broker


@dataclass(slots=True)
class Harness:
    """A running broker and everything a test wants to look at."""

    broker: Broker
    memory: RequestMemory
    connections: Connections
    clock: ManualClock | VirtualClock
    disk: Disk | VirtualDisk
    port: int
    tls_port: int
    peer_port: int  # for the other brokers

    @property
    def used(self) -> int:
        """Bytes of request memory in use."""
        return self.memory.size - self.memory.available

    def snapshot(self) -> RequestMemorySnapshot:
        """The request memory as others see it."""
        return self.memory.snapshot(self.clock.monotonic_ns())

    def muted(self) -> list[Connection]:
        """Connections that are not read."""
        return [connection for connection in self.connections.all() if connection.muted]

    @contextlib.contextmanager
    def catalog_held(self) -> Iterator[None]:
        """Nothing that is submitted to the catalog from now on is stored, or answered, before the end of this."""
        loop = self.broker.loop
        free = loop.threads.event() if isinstance(loop, VirtualLoop) else threading.Event()
        for file in metadata_files(self.broker.catalog):
            file.submit(Change(lambda _db: free.wait(TIMEOUT_S), lambda _: None, lambda _: None))
        try:
            yield
        finally:
            free.set()

    def connection_of(self, client: Client) -> Connection:
        """The broker's end of a client's socket."""
        host, port = client.writer.get_extra_info("sockname")[:2]
        (found,) = [one for one in self.connections.all() if one.peer == f"{host}:{port}"]
        return found


@asynccontextmanager
async def running(directory: Path, **how: Any) -> AsyncIterator[Harness]:  # noqa: ANN401
    """Run a broker, as `compose` makes it; at the end it must stop, and leave no memory in use."""
    async with contextlib.AsyncExitStack() as stack:
        harness = compose(stack, directory, **how)
        yield harness
    await nothing_left(harness)


def compose(
    stack: contextlib.AsyncExitStack,
    directory: Path,
    *,
    pool_bytes: int = 64 * MIB,
    frame_bytes_max: int = MIB,
    requests_max: int = -1,
    outbound_bytes: int = 64 * MIB,
    tls: ssl.SSLContext | None = None,
    authenticator: Authenticator | None = None,
    log_limits: LogLimits | None = None,
    keys: Callable[[BrokerLimits], Keys] = NoKeys,
    addresses: Addresses | None = None,
    membership: Membership | None = None,
    peers: Requests | None = None,
    reporting: Reporting | None = None,
    registry: Registry | None = None,
    shared: SharedPart | None = None,
    shut_down: Callable[[], None] | None = None,
    remote_defaults: Mapping[str, str] | None = None,
    **limits: Any,  # noqa: ANN401 - of the broker, beside what a test has always
) -> Harness:
    """Compose a broker as `penstock.app` does, on this loop; closing `stack` stops it."""
    request_limits = RequestLimits(
        request_bytes_max=pool_bytes, requests_max=requests_max, frame_bytes_max=frame_bytes_max
    )
    return start_broker(
        stack,
        directory,
        request_limits=request_limits,
        outbound_bytes=outbound_bytes,
        tls=tls,
        authenticator=authenticator,
        log_limits=log_limits or LOG_LIMITS,
        limits=with_rows(broker_limits(frame_bytes_max), limits),
        keys=keys,
        addresses=addresses,
        membership=membership,
        peers=peers,
        reporting=reporting,
        registry=registry,
        shared=shared,
        shut_down=shut_down,
        remote_defaults=remote_defaults,
    )


class Transport(NamedTuple):
    """A way in which clients may connect to a broker, and a broker to try it on."""

    directory: Path
    server_tls: ssl.SSLContext
    client_tls: ssl.SSLContext | None  # None: without TLS

    @asynccontextmanager
    async def running(self, **how: Any) -> AsyncIterator[tuple[Harness, tuple[int, ssl.SSLContext | None]]]:  # noqa: ANN401
        """A broker as `running` makes it; and the port and context with which clients connect."""
        async with running(self.directory, tls=self.server_tls, **how) as harness:
            yield harness, (harness.port if self.client_tls is None else harness.tls_port, self.client_tls)


def start_broker(
    stack: contextlib.AsyncExitStack,
    directory: Path,
    *,
    request_limits: RequestLimits,
    outbound_bytes: int,
    limits: BrokerLimits,
    log_limits: LogLimits,
    tls: ssl.SSLContext | None = None,
    authenticator: Authenticator | None = None,
    keys: Callable[[BrokerLimits], Keys] = NoKeys,
    addresses: Addresses | None = None,
    membership: Membership | None = None,
    peers: Requests | None = None,
    reporting: Reporting | None = None,
    registry: Registry | None = None,
    shared: SharedPart | None = None,
    shut_down: Callable[[], None] | None = None,
    remote_defaults: Mapping[str, str] | None = None,
    clock: ManualClock | VirtualClock | None = None,
) -> Harness:
    """Build a broker on the running loop; closing `stack` stops it. One that loses its power never closes it."""
    number = membership.own if membership is not None and shared is not None else 0
    loop = asyncio.get_running_loop()
    disk: Disk | VirtualDisk
    vfs: str | None = None
    new_socket: Callable[[int, int], socket.socket] = socket.socket
    if isinstance(loop, VirtualLoop):
        clock, disk = clock or VirtualClock(loop.virtual_time), disk_of(loop)
        vfs, new_socket = stack.enter_context(sqlite_on(disk)), loop.network.socket
    else:
        clock, disk = clock or ManualClock(wall_ms=WALL_MS), Disk()
    data = open_data_directory(directory / "data", disk, brokers=number + 1)
    stack.push_async_callback(close_clients)
    posted = PostedCalls(loop, loop.call_soon_threadsafe)
    entry_log = EntryLog.open(data.broker(number), disk, log_limits, posted.post, clock=clock, index_vfs=vfs)
    stack.callback(entry_log.close)
    catalog = Catalog.open(data, posted.post, disk, broker=number, shared=shared, vfs=vfs, exclusive=vfs is not None)
    stack.callback(catalog.close)
    memory = RequestMemory(request_limits)
    in_force = LimitsInForce(limits)
    budget = Budget(limits.memory_rows)
    budget.row("http")
    connections = Connections(
        loop=loop,
        memory=memory,
        outbound=Outbound(outbound_bytes),
        clock=clock,
        frame_bytes_max=request_limits.frame_bytes_max - LENGTH_BYTES,
        admit=partial(refusal, in_force),
        flush_soon=posted.flush_soon,
    )
    broker = Broker(
        entry_log=entry_log,
        catalog=catalog,
        connections=connections,
        limits=in_force,
        keys=keys(in_force.now),
        addresses=addresses,
        membership=membership,
        peers=peers,
        reporting=reporting,
        registry=registry,
        shut_down=shut_down,
        clock=clock,
        loop=loop,
        authenticator=authenticator,
        snapshots=Snapshots(data.broker(number) / "delayed", disk),
        budget=budget,
        loop_turns=loop.turns if isinstance(loop, VirtualLoop) else None,
        dispatch_soon=posted.call_soon,
        remote_defaults=remote_defaults,
    )
    stack.push_async_callback(broker.stop)
    stack.callback(disk.release)
    ports: list[int] = []
    for_clients, for_brokers = (commands(broker, for_peers=each).open_session for each in (False, True))
    for context, open_session in ((None, for_clients), (tls, for_clients), (None, for_brokers)):
        listener = Listener(connections, listen_for_clients("127.0.0.1", 0, new_socket), tls=context)
        stack.callback(listener.close)
        listener.start(open_session)
        ports.append(listener.port)
    return Harness(broker, memory, connections, clock, disk, *ports)


def metadata_files(catalog: Catalog) -> list[MetadataFile]:
    """The files that a catalog has open; if it follows a writer, that one has the shared part."""
    shared = catalog._shared  # noqa: SLF001
    own = catalog._own._file  # noqa: SLF001
    return [shared._store._file, own] if isinstance(shared, LocalPart) else [own]  # noqa: SLF001


def topic_of(harness: Harness, name: str = TOPIC) -> Topic:
    """A topic that is loaded."""
    topic = harness.broker.topics.get(name)
    assert topic is not None
    return topic


async def nothing_left(harness: Harness) -> None:
    """Wait until a broker that has stopped has given all its memory back."""
    broker, memory = harness.broker, harness.memory
    await until(lambda: memory.available == memory.size)
    await until(lambda: listings_free(broker))
    await until(lambda: broker.sessions_memory.used_bytes == 0)


def listings_free(broker: Broker) -> bool:
    """Whether nobody has any memory of topic listings, or waits for some."""
    semaphores = [broker.listings.limiter(kind) for kind in LimitType]
    return not (len(broker.shared_listings) or any(one.acquired or one.queue_size for one in semaphores))


def broker_limits(frame_bytes_max: int) -> BrokerLimits:
    return BrokerLimits(
        message_bytes_max=frame_bytes_max,
        keep_alive_ns=KEEP_ALIVE_S * NS_PER_S,
        liveness_check_ns=NS_PER_S,
        failover_delay_s=0.0,
        round_robin_entries_max=20,
        memory_limit_bytes=0,
        memory_rows={"tail-cache": 0},
        cluster_name="test",
    )


def with_rows(limits: BrokerLimits, changes: Mapping[str, Any]) -> BrokerLimits:
    """Change limits; rows of the memory budget are named by themselves, such as `tail_cache_bytes`."""
    rows = {row.name: f"{row.name.replace('-', '_')}_bytes" for row in ROWS}
    sizes = {name: changes[field] for name, field in rows.items() if field in changes}
    others = {name: value for name, value in changes.items() if name not in rows.values()}
    return replace(limits, memory_rows={**limits.memory_rows, **sizes}, **others)


def disk_of(loop: VirtualLoop) -> VirtualDisk:
    """The disk of this loop: a broker that is started again finds what the last one left."""
    if loop.files is None:
        loop.files = VirtualDisk(loop)
    disk: VirtualDisk = loop.files
    return disk


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something is so; fails when it cannot come to that."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        await loop.until(condition, TIMEOUT_S)
        return
    deadline_s = loop.time() + TIMEOUT_S
    while not condition():
        assert loop.time() < deadline_s, "it did not come to that"
        await asyncio.sleep(0.001)


async def turns(count: int = 20) -> None:
    """Give the broker the opportunity to do what it must not do. On a virtual loop that takes no time."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        await loop.quiet()
        return
    for _ in range(count):
        await asyncio.sleep(0.001)


# ---------------------------------------------------------------------------------------------------------- the clients


async def open_streams(port: int, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Both halves of a new connection to a broker on this machine."""
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=4 * MIB)


class Client:
    """One connection, over TCP or TLS, with every byte in the test's hands. A fixture closes all that are left.

    Attributes:
        connect: how connections are opened; may be replaced by one without sockets.
    """

    opened: ClassVar[list[Client]] = []
    connect = staticmethod(open_streams)

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened.append(self)
        self.reader = reader
        self.writer = writer
        self.requests = 0

    @classmethod
    async def open(cls, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """Connect a socket, and say nothing."""
        return cls(*await cls.connect(port, tls))

    @classmethod
    async def connected(cls, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """Connect and shake hands."""
        client = await cls.open(port, tls)
        client.write(connect())
        await client.expect(Type.CONNECTED)
        return client

    @classmethod
    async def producing(cls, port: int, tls: ssl.SSLContext | None = None, topic: str = TOPIC) -> Self:
        """Connect and open producer 0."""
        client = await cls.connected(port, tls)
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=0)
        return client

    @classmethod
    async def consuming(cls, port: int, tls: ssl.SSLContext | None = None, *, permits: int = 1000) -> Self:
        """Connect and subscribe consumer 0 from the earliest entry on."""
        client = await cls.connected(port, tls)
        await client.request(
            Type.SUBSCRIBE,
            Type.SUCCESS,
            topic=TOPIC,
            subscription="s",
            consumer_id=0,
            subType=1,
            initialPosition=1,
        )
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=permits))
        return client

    def write(self, data: bytes) -> None:
        """Send bytes as they are, whenever the broker reads them."""
        self.writer.write(data)

    def publish(self, *payloads: bytes, first: int = 0) -> None:
        """Send messages; await their receipts with `receipts`."""
        self.write(b"".join(publish(payload, row) for row, payload in enumerate(payloads, first)))

    async def published(self, *payloads: bytes, first: int = 0) -> None:
        """Send messages, and wait for their receipts."""
        self.publish(*payloads, first=first)
        await self.receipts(len(payloads))

    async def receipts(self, count: int) -> list[int]:
        """The sequence ids of the next receipts, in the order they came."""
        return [(await self.expect(Type.SEND_RECEIPT)).send_receipt.sequence_id for _ in range(count)]

    async def request(self, kind: int, answer: int, **fields: Any) -> BaseCommand:  # noqa: ANN401
        """Send a request and wait for its answer."""
        self.requests += 1
        self.write(frame(kind, request_id=self.requests, **fields))
        return await self.expect(answer)

    async def expect(self, kind: int) -> BaseCommand:
        """The next command, which must be of this type."""
        command = await self.read()
        assert command.type == kind, command
        return command

    async def read(self) -> BaseCommand:
        """The next command. Raises asyncio.IncompleteReadError when the broker has closed the connection."""
        return (await self.read_frame()).command

    async def message(self) -> bytes:
        """The entry of the next frame, which must be a MESSAGE."""
        frame = await self.read_frame()
        assert frame.kind == Type.MESSAGE, frame.command
        assert is_sealed(frame.entry)
        return frame.entry

    async def read_frame(self) -> Frame:
        """The next frame. Raises as `read`."""
        async with asyncio.timeout(TIMEOUT_S):
            size = await self.reader.readexactly(4)
            data = size + await self.reader.readexactly(int.from_bytes(size, "big"))
        return decode_frame(data, 0, len(data))

    def stop_reading(self) -> None:
        """Take nothing more from the socket, as a client does that is stopped in a debugger."""
        self.transport.pause_reading()

    def go_on_reading(self) -> None:
        """Take what has come."""
        self.transport.resume_reading()

    @property
    def transport(self) -> asyncio.Transport:
        """The socket's owner."""
        return self.writer.transport  # type: ignore[return-value]

    async def closed(self) -> None:
        """Wait until the broker closes the connection, whatever it says before."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self.read()

    async def close(self) -> None:
        """Close the socket in good order."""
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await self.writer.wait_closed()

    def abort(self) -> None:
        """Be gone, without a word."""
        self.transport.abort()


async def close_clients() -> None:
    """Close all that a test has left open."""
    while Client.opened:
        client = Client.opened.pop()
        client.abort()
        await client.close()


def connect() -> bytes:
    """A CONNECT frame."""
    return frame(Type.CONNECT, client_version="test", protocol_version=20)


def publish(payload: bytes, sequence_id: int = 0, producer_id: int = 0) -> bytes:
    """A SEND frame with one message."""
    return send(producer_id, sequence_id, entry(payload, sequence_id=sequence_id))


def payload_for(frame_bytes: int) -> bytes:
    """A payload that makes a SEND frame of exactly this many bytes."""
    payload = bytes(frame_bytes)
    payload = payload[: frame_bytes - (len(publish(payload)) - frame_bytes)]
    assert len(publish(payload)) == frame_bytes
    return payload


SMALL = bytes(1 * KIB)
