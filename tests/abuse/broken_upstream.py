# SPDX-License-Identifier: Apache-2.0
"""Brokers that answer wrongly, and clients that are connected to them through a proxy.

Why: a proxy is not only attacked by clients. What stands behind it may be broken, or not a broker at all; that must
cost no more memory than a client may take, and clients of other brokers must not notice.
Where: `run --upstream` and `test_broken_upstream` put each behaviour behind a proxy, one after another.
"""

from __future__ import annotations

import asyncio
import random
import select
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from benchmarks.process import forget_peak, metrics, usage
from penstock.core.units import KIB, MIB
from penstock.testing.client import RawClient, Type, entry, frame
from penstock.testing.process import ProxyProcess
from penstock.wire.client.frames import Frame, Inbound
from penstock.wire.errors import ProtocolError
from tests.abuse.subject import (
    ALLOWANCE_BYTES,
    BOOKS_SLACK_BYTES,
    GIVEN_BACK_S_MAX,
    HEALTH_S_MAX,
    MEMORY_LIMIT_MB,
    PING_S_MAX,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

CLIENTS: Final = 60
# Clients wait so long for an answer to CONNECT, and then keep their connections, unread, for the same time.
PATIENCE_S: Final = 1.0
LONG_BYTES: Final = 250 * MIB
PIECE: Final = bytes(64 * KIB)
TOPIC: Final = "persistent://public/default/abused"
LATE_S: Final = 10.0


# What a broker may name instead of another one.
NO_BROKERS: Final = (
    "", "x", "pulsar://", "pulsar://a..b:6650", f"pulsar://{'h' * 64}:6650", "pulsar://h\0:6650", "pulsar://h:port",
    "pulsar://h:0", f"pulsar://h:{'9' * 5_000}", "pulsar://[::1:6650", "pulsar://[::1]x", "pulsar://u:p@127.0.0.1:22",
    "pulsar://u@127.0.0.1:22", "pulsar+ssl://127.0.0.1:6651", "http://127.0.0.1:8080", "pulsar://a:1,b:2",
    f"pulsar://{'a,' * 500_000}", "pulsar://\u00e9:6650", "pulsar://127.0.0.1\r\n:6650", "file:///etc/passwd",
)  # fmt: skip


class Talk:
    """One connection of the proxy, as the broken broker sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self.port = port
        self._reader = reader
        self._writer = writer

    async def frames(self) -> AsyncIterator[Frame]:
        """What the proxy sends, until it closes the connection."""
        inbound = Inbound()
        while data := await self._reader.read(64 * KIB):
            inbound.add(data)
            while (came := inbound.take_frame()) is not None:
                yield came

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def requests(self, **connected: Any) -> AsyncIterator[Frame]:  # noqa: ANN401 - fields of CONNECTED
        """Answer CONNECT, and return what is asked then."""
        async for came in self.frames():
            if came.kind == Type.CONNECT:
                await self.write(frame(Type.CONNECTED, server_version="s", protocol_version=20, **connected))
            elif came.kind == Type.PING:
                await self.write(frame(Type.PONG))
            else:
                yield came


# -- how a broker may be broken


async def _well(talk: Talk) -> None:
    async for _ in talk.requests():
        pass


async def _silent(talk: Talk) -> None:
    async for _ in talk.frames():
        pass


async def _closes(talk: Talk) -> None:
    async for _ in talk.frames():
        return


async def _closes_later(talk: Talk) -> None:
    async for _ in talk.requests():
        return


async def _half(talk: Talk) -> None:
    async for _ in talk.requests():
        await talk.write((MIB).to_bytes(4, "big") + (MIB - 4).to_bytes(4, "big") + PIECE * 8)


async def _long(talk: Talk) -> None:
    async for _ in talk.requests(max_message_size=256 * MIB):
        await talk.write(LONG_BYTES.to_bytes(4, "big") + b"\0\0\0\x20")
        for _ in range(LONG_BYTES // len(PIECE)):
            await talk.write(PIECE)


async def _endless(talk: Talk) -> None:
    async for came in talk.requests(max_message_size=2**31 - 1):
        await talk.write((2**31 - 1).to_bytes(4, "big") + frame(came.kind)[4:] + PIECE)


async def _garbage(talk: Talk) -> None:
    chance = random.Random(1)
    async for _ in talk.requests():
        while True:
            await talk.write(chance.randbytes(len(PIECE)))


async def _garbage_first(talk: Talk) -> None:
    async for _ in talk.frames():
        await talk.write(random.Random(2).randbytes(len(PIECE)))


async def _wrong(talk: Talk) -> None:
    async for came in talk.requests():
        request_id = getattr(came.body, "request_id", 0)
        await talk.write(frame(Type.SUCCESS, request_id=request_id) + frame(Type.SUCCESS, request_id=request_id + 1))


async def _messages(talk: Talk) -> None:
    message = frame(Type.MESSAGE, consumer_id=0, message_id={"ledgerId": 1, "entryId": 1})
    payload = entry(b"x" * MIB)
    command = message[4:]
    whole = (len(command) + len(payload)).to_bytes(4, "big") + command + payload
    async for _ in talk.requests():
        while True:
            await talk.write(whole)


async def _events(talk: Talk) -> None:
    many = frame(Type.CLOSE_CONSUMER, consumer_id=1, request_id=1) * 1_000
    async for _ in talk.requests():
        while True:
            await talk.write(many)


async def _pings(talk: Talk) -> None:
    """PINGs, and nobody reads what is answered."""
    async for _ in talk.requests():
        while True:
            await talk.write(frame(Type.PING) * 1_000)


async def _pings_first(talk: Talk) -> None:
    async for _ in talk.frames():
        while True:
            await talk.write(frame(Type.PING) * 1_000)


async def _challenges(talk: Talk) -> None:
    challenge = frame(Type.AUTH_CHALLENGE, challenge={"auth_method_name": "token", "auth_data": b"x"})
    async for _ in talk.requests():
        while True:
            await talk.write(challenge * 1_000)


async def _challenges_first(talk: Talk) -> None:
    challenge = frame(Type.AUTH_CHALLENGE, challenge={"auth_method_name": "token", "auth_data": b"x" * 1_000})
    async for _ in talk.frames():
        while True:
            await talk.write(challenge * 100)


async def _circle(talk: Talk) -> None:
    """Lookups are redirected to the broker that was asked."""
    async for came in talk.requests():
        if came.kind == Type.LOOKUP:
            await talk.write(_found(came, f"pulsar://127.0.0.1:{talk.port}", response=0))


async def _elsewhere(talk: Talk) -> None:
    """Lookups are redirected to ever new hosts, which do not answer."""
    chance = random.Random(3)
    async for came in talk.requests():
        if came.kind == Type.LOOKUP:
            await talk.write(_found(came, f"pulsar://127.0.0.{chance.randint(2, 254)}:{talk.port}", response=0))


async def _long_names(talk: Talk) -> None:
    async for came in talk.requests():
        if came.kind == Type.LOOKUP:
            await talk.write(_found(came, f"pulsar://{'h' * MIB}:6650", response=1))


async def _misleading(talk: Talk) -> None:
    """Lookups are redirected to what is no broker, or no address at all."""
    number = 0
    async for came in talk.requests():
        if came.kind == Type.LOOKUP:
            number += 1
            await talk.write(_found(came, NO_BROKERS[number % len(NO_BROKERS)], response=number % 2))


async def _long_errors(talk: Talk) -> None:
    async for came in talk.requests():
        request_id = getattr(came.body, "request_id", 0)
        await talk.write(frame(Type.ERROR, request_id=request_id, error=0, message="e" * MIB))


def _found(came: Frame, url: str, *, response: int) -> bytes:
    return frame(
        Type.LOOKUP_RESPONSE,
        request_id=came.body.request_id,
        response=response,
        brokerServiceUrl=url,
        brokerServiceUrlTls=url,
        authoritative=bool(random.Random(came.body.request_id).getrandbits(1)),
    )


BEHAVIOURS: Final[Mapping[str, Callable[[Talk], Awaitable[None]]]] = {
    "never answers": _silent,
    "closes": _closes,
    "closes later": _closes_later,
    "half frames": _half,
    "long frames": _long,
    "frames larger than announced": _endless,
    "garbage": _garbage,
    "garbage instead of CONNECTED": _garbage_first,
    "wrong answers": _wrong,
    "messages for nobody": _messages,
    "closes consumers that nobody has": _events,
    "pings, unread": _pings,
    "pings instead of CONNECTED": _pings_first,
    "challenges, unread": _challenges,
    "challenges instead of CONNECTED": _challenges_first,
    "redirects in a circle": _circle,
    "redirects to hosts that do not answer": _elsewhere,
    "names of a megabyte": _long_names,
    "redirects to what is no broker": _misleading,
    "errors of a megabyte": _long_errors,
}


class BrokenUpstream:
    """A broker that behaves as it is told, on a thread of its own."""

    def __init__(self) -> None:
        self.behaviour: Callable[[Talk], Awaitable[None]] = _well
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stopping: asyncio.Event
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        talks: set[asyncio.Task[None]] = set()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            talks.add(task)
            try:
                with suppress(OSError, ProtocolError, asyncio.CancelledError):
                    await self.behaviour(Talk(reader, writer, self.port))
            finally:
                writer.transport.abort()
                talks.discard(task)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


class BehindProxy:
    """A proxy before a broken broker, a client that asks whether it lives, and many that are connected through it."""

    def __init__(self, upstream: BrokenUpstream, proxy: ProxyProcess) -> None:
        self.proxy = proxy
        self._upstream = upstream
        self._innocent = RawClient(proxy.port, connect=False)
        self._innocent.write(_connect("innocent", ""))
        assert self._innocent.read().kind == Type.CONNECTED
        metrics(proxy.admin_port)
        self._idle_rss = usage(proxy.pid).rss_mib * MIB
        self._idle_books = self._books()

    def close(self) -> None:
        """Leave."""
        self._innocent.close()

    def put_to(self, name: str) -> dict[str, float]:
        """Let the broker behave like this, and clients come and go; return what it cost."""
        forget_peak(self.proxy.pid)
        self._upstream.behaviour = BEHAVIOURS[name]
        with ExitStack() as stack:
            sockets = self._connected(stack)
            self._ask(sockets)
            began = time.monotonic()
            self._innocent.write(frame(Type.PING))
            self._innocent.next(Type.PONG)
            ping_s = time.monotonic() - began
            began = time.monotonic()
            held_bytes = self._held_bytes()
            health_s = time.monotonic() - began
            threading.Event().wait(PATIENCE_S)
            held_bytes = max(held_bytes, self._held_bytes())
        given_back_s = self._given_back()
        self._upstream.behaviour = _well
        return {
            "rss": usage(self.proxy.pid).rss_peak_mib * MIB - self._idle_rss,
            "held": held_bytes,
            "ping_s": ping_s,
            "health_s": health_s,
            "given_back_s": given_back_s,
        }

    def is_given_back(self) -> bool:
        """Whether all that the last one cost is given back, however long a busy machine takes for it."""
        return any(self._given_back() <= GIVEN_BACK_S_MAX for _ in range(4))

    def _connected(self, stack: ExitStack) -> list[socket.socket]:
        """Clients, of whom every other one looks topics up, each with credentials of its own."""
        sockets = []
        for number in range(CLIENTS):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
            one.settimeout(LATE_S)
            one.connect(("127.0.0.1", self.proxy.port))
            one.sendall(_connect(f"client-{number}", "" if number % 2 else f"127.0.0.1:{self._upstream.port}"))
            sockets.append(one)
        return sockets

    def _ask(self, sockets: list[socket.socket]) -> None:
        """Ask as soon as CONNECT is answered, and read nothing more."""
        waiting, until_s = dict.fromkeys(sockets), time.monotonic() + PATIENCE_S
        while waiting and (left_s := until_s - time.monotonic()) > 0:
            for one in select.select(list(waiting), [], [], left_s)[0]:
                del waiting[one]
                with suppress(OSError):
                    if one.recv(12)[8:10] == bytes((0x08, Type.CONNECTED)):
                        one.sendall(_requests(looks_up=sockets.index(one) % 2 == 1))

    def _held_bytes(self) -> float:
        """What is held above the idle proxy; 0 if it does not say so in time."""
        with suppress(OSError):
            return self._books() - self._idle_books
        return 0.0

    def _books(self) -> float:
        figures = metrics(self.proxy.admin_port)
        return figures["penstock_memory_used_bytes"]

    def _given_back(self) -> float:
        began = time.monotonic()
        while (waited := time.monotonic() - began) <= GIVEN_BACK_S_MAX:
            with suppress(OSError):
                if self._books() - self._idle_books <= BOOKS_SLACK_BYTES:
                    break
            threading.Event().wait(0.05)
        return waited


def _connect(name: str, through: str) -> bytes:
    named = {"proxy_to_broker_url": through} if through else {}
    return frame(
        Type.CONNECT,
        client_version=name,
        protocol_version=20,
        auth_method_name="token",
        auth_data=name.encode() + b"x" * 1_000,
        feature_flags={"supports_auth_refresh": True},
        **named,
    )


def _requests(*, looks_up: bool) -> bytes:
    if not looks_up:
        return (
            frame(Type.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=0, request_id=1)
            + frame(Type.FLOW, consumer_id=0, messagePermits=1_000)
            + frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=2, namespace="public/default")
        )
    return b"".join(
        frame(Type.LOOKUP, topic=f"{TOPIC}-{number}", request_id=4 * number)
        + frame(Type.PARTITIONED_METADATA, topic=TOPIC, request_id=4 * number + 1)
        + frame(Type.GET_SCHEMA, topic=TOPIC, request_id=4 * number + 2)
        + frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=4 * number + 3, namespace=f"public/n-{number}")
        for number in range(5)
    )


def faults(figures: Mapping[str, float], *, timing: bool) -> list[str]:
    """Return the bounds that were broken; how long others wait is only looked at with `timing`."""
    found = []
    # Of the rows, the largest one that such a broker could fill is that of unsent bytes.
    allowed = max(figures["held"], 0) + ALLOWANCE_BYTES
    if figures["rss"] > allowed:
        found.append(f"RSS +{figures['rss'] / MIB:.0f} MiB, allowed {allowed / MIB:.0f}")
    if figures["held"] > MEMORY_LIMIT_MB * MIB / 2:
        found.append(f"{figures['held'] / MIB:.0f} MiB held")
    if figures["given_back_s"] > GIVEN_BACK_S_MAX:
        found.append(f"not all given back after {GIVEN_BACK_S_MAX:.0f} s")
    if timing and figures["health_s"] > HEALTH_S_MAX:
        found.append(f"/metrics after {figures['health_s']:.1f} s")
    if timing and figures["ping_s"] > PING_S_MAX:
        found.append(f"PING answered after {figures['ping_s'] * 1000:.0f} ms")
    return found


@contextmanager
def behind_proxy(scratch: Path) -> Iterator[BehindProxy]:
    """A proxy at memoryLimitMB=256 before a broker that will be broken."""
    with BrokenUpstream() as upstream, ExitStack() as stack:
        settings = scratch / "proxy.conf"
        settings.write_text(f"memoryLimitMB={MEMORY_LIMIT_MB}\nbrokerProxyAllowedTargetPorts=*\n")
        arguments = ["--config", str(settings)]
        process = ProxyProcess(f"pulsar://127.0.0.1:{upstream.port}", arguments, log_path=scratch / "proxy.log")
        stack.enter_context(process)
        running = BehindProxy(upstream, process)
        stack.callback(running.close)
        yield running
