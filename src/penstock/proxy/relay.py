# SPDX-License-Identifier: Apache-2.0
"""One client connected to one broker: passes frames on in both directions.

Theory of operation
    To the broker. What a client sends is charged to request memory until the broker's socket has taken it. While that
                   socket takes nothing, the client is not read.
    To the client. No more is read from the broker than the client's connection has room for, and unsent bytes are
                   charged to the outbound memory, as a broker's own are.
    Handshake.     The broker is sent a CONNECT for the client's (see `client_identity`). Its answer is sent back, and
                   so are challenges that mean the client.
    Draining.      The producers are closed at the broker, which answers that after their receipts (`AwaitedAnswers`).
    End.           If one side closes, so does the other: clients then look their topics up again.
Where: `session` makes one for a CONNECT with `proxy_to_broker_url`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.errors import PenstockError
from penstock.core.units import KIB
from penstock.governance.holds import HoldKind
from penstock.net.upstream_socket import UpstreamSocket
from penstock.proxy.consumers import RelayedConsumers
from penstock.proxy.greeting import Greeting, agreed_sizes
from penstock.proxy.relayed_sends import RelayedSends
from penstock.proxy.response_stream import ResponseStream
from penstock.wire import bounds, codec
from penstock.wire.client.connection import encode
from penstock.wire.client.frames import FRAME_BYTES_MAX, decode_frame, frame_bytes
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError
from penstock.wire.events import PublishRun, RefusedCommand, Relayed
from penstock.wire.relayed import RelayReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.governance.memory_pool import Lease
    from penstock.net.connection import Connection
    from penstock.net.send_queue import Buffer
    from penstock.proxy.client_identity import ClientIdentity
    from penstock.proxy.proxy import Services
    from penstock.proxy.rates import Rates
    from penstock.wire.client.frames import Body
    from penstock.wire.client.lookup import Address
    from penstock.wire.events import Command, Event
    from penstock.wire.relayed import SpareBuffers


# ---------------------------------------------------------------------------------------------------------------------
# Requests of the proxy's own on a client's connection to its broker: whether the broker has answered all of them.
#
# Why: a broker answers CLOSE_PRODUCER after the receipts of all that the producer has sent. So a proxy that stops knows
# by the answer that no receipt is missing, and need not count them all the time. Where: `relay`, when it is drained.
# Frames are looked into from then on only. Pure.

# Answers are shorter; longer frames are not looked into. An ERROR may say some words.
ANSWER_BYTES_MAX: Final = 4 * KIB
# The producer of a request that only shows that the broker has handled all requests before it. Clients count from 0.
NO_PRODUCER: Final = 2**64 - 1
# Request ids are counted down from here, those of clients up from 0.
_FIRST_REQUEST: Final = 2**64 - 2
_HEAD_BYTES: Final = 8
_ANSWERS: Final = frozenset({BaseCommand.SUCCESS, BaseCommand.ERROR})


class AwaitedAnswers:
    """Takes the answers to the proxy's own requests out of what a broker sends."""

    def __init__(self, unfinished_bytes: int, unfinished_size: bytes) -> None:
        """Begin in the middle of a frame, of which so many bytes are missing, or a part of its size was passed on."""
        self._left_bytes = unfinished_bytes
        self._kept = unfinished_size  # the beginning of a frame that has not come whole
        self._kept_passed = len(unfinished_size)  # of it, what was passed on before
        self._awaited: set[int] = set()
        self._next = _FIRST_REQUEST

    @property
    def all_came(self) -> bool:
        """Whether all requests are answered."""
        return not self._awaited

    def close_producer(self, producer_id: int) -> bytes:
        """Return the frame of a request that is answered when all SENDs of this producer are."""
        self._next -= 1
        self._awaited.add(self._next)
        return codec.close_producer(producer_id, self._next)

    def without(self, data: bytes) -> bytes:
        """Return what is to be passed on: the next bytes of the broker without answers to these requests.

        Raises:
            ProtocolError: a frame that cannot be read.
        """
        if self._left_bytes >= len(data):
            self._left_bytes -= len(data)
            return data
        stream = self._kept + data
        return b"".join(self._parts(stream))

    def _parts(self, stream: bytes) -> Iterator[bytes]:
        pos, self._left_bytes = self._left_bytes, 0
        begin, self._kept_passed = self._kept_passed, 0  # where what is passed on begins
        self._kept = b""
        while len(stream) - pos >= _HEAD_BYTES:
            stop = pos + frame_bytes(stream, pos)
            if stop - pos <= ANSWER_BYTES_MAX:
                if stop > len(stream):
                    break
                if self._is_answer(stream, pos, stop):
                    yield stream[begin:pos]
                    begin = stop
            pos = stop
        if pos > len(stream):
            self._left_bytes = pos - len(stream)
            yield stream[begin:]
            return
        self._kept = stream[pos:]
        self._kept_passed = max(begin - pos, 0)
        yield stream[begin:pos]

    def _is_answer(self, stream: bytes, begin: int, stop: int) -> bool:
        """Whether a frame answers one of these requests, which is awaited no longer."""
        if stop - begin < _HEAD_BYTES:
            return False
        frame = decode_frame(stream, begin, stop)
        if frame.kind not in _ANSWERS or frame.body.request_id not in self._awaited:
            return False
        self._awaited.discard(frame.body.request_id)
        return True


# ---------------------------------------------------------------------------------------------------------------------
# Lists of topics that a proxy sends to a client between the frames of the client's broker.
#
# Why not as other answers of the proxy: a list is charged to permits of its own until the client has it, also while it
# waits for the end of a frame. The request that waits stays charged to its client, which bounds their number. Where:
# each `relay` has one.


class OwnList(NamedTuple):
    """A frame of the proxy: a head, and the rest in pieces, of which `release` releases the memory."""

    head: bytes
    rest: Sequence[Buffer]
    release: Callable[[], None]


class InsertedLists:
    """The lists for one client.

    Attributes:
        waiting: those that wait for the end of a frame; while there are any, `deliver` must be called.
    """

    def __init__(self, connection: Connection, stream: ResponseStream, loop: asyncio.AbstractEventLoop) -> None:
        """Args: stream: the frames of the broker."""
        self._connection = connection
        self._stream = stream
        self._loop = loop
        self.waiting: list[tuple[OwnList, asyncio.Future[None]]] = []

    async def send(self, listed: OwnList) -> None:
        """Send a list; returns when it is queued. It is released when the client has it, or is gone."""
        if self._stream.between_frames:
            write_list(self._connection, listed)
            return
        waiting = listed, self._loop.create_future()
        self.waiting.append(waiting)
        try:
            await waiting[1]
        except asyncio.CancelledError:
            if waiting in self.waiting:
                self.waiting.remove(waiting)
                listed.release()
            raise

    def deliver(self, data: bytes, pass_on: Callable[[Iterable[bytes]], None]) -> bytes:
        """Pass the next bytes of the broker on as far as lists wait, with these in between; return what is left."""
        stream = self._stream
        while data and self.waiting:
            stop = stream.next_stop
            pass_on(stream.passed(data[:stop]))
            data = data[stop:]
            if stream.between_frames:
                waiting, self.waiting = self.waiting, []
                for listed, queued in waiting:
                    write_list(self._connection, listed)
                    if not queued.done():
                        queued.set_result(None)
        return data


def write_list(connection: Connection, listed: OwnList) -> None:
    """Queue a list. No frame of a broker may be unfinished."""
    connection.write_shared(listed.head, listed.rest, sum(map(len, listed.rest)), listed.release)


# Beyond this many unsent bytes, a client is not read while its broker's socket is blocked.
UNSENT_BYTES_MAX: Final = 64 * KIB
# Answers of the proxy that may wait for the end of a frame of the broker.
ANSWERS_BYTES_MAX: Final = 64 * KIB
_SIZE_BYTES: Final = 4
# Commands about lists of topics, which take permits.
_LISTS: Final = frozenset(
    {BaseCommand.GET_TOPICS_OF_NAMESPACE, BaseCommand.WATCH_TOPIC_LIST, BaseCommand.WATCH_TOPIC_LIST_CLOSE}
)
# Lookups on a connection to a broker, in which proxies may say for whom they ask.
_LOOKUPS: Final = frozenset({BaseCommand.LOOKUP, BaseCommand.PARTITIONED_METADATA})
_ORIGINAL_FIELDS: Final = ("original_principal", "original_auth_data", "original_auth_method")


class Relay:
    """Passes frames between a client and its broker.

    Attributes:
        target: the broker.
        is_connected: whether the handshake is complete.
        lists: lists of topics for the client.
        read_count: reads that brought bytes of the broker.
        passed_bytes: bytes of the client that were passed on to the broker.
        since_ns: when this began.
        rates: of reads and bytes of the client, from the first request for them on.
    """

    def __init__(
        self,
        connection: Connection,
        services: Services,
        target: Address,
        client: ClientIdentity,
        list_topics: Callable[[Command], None],
    ) -> None:
        """Args: list_topics: handles a command about lists of topics."""
        self.target = target
        self.is_connected = False
        self.read_count = 0
        self.passed_bytes = 0
        self.since_ns = services.clock.monotonic_ns()
        self.rates: Rates | None = None
        self._connection = connection
        self._services = services
        self._traffic = services.traffic
        self._client = client
        self._list_topics = list_topics
        self._upstream: UpstreamSocket | None = None
        self.sends = RelayedSends(connection, services, self._forward)
        self._stream = ResponseStream(frame_bytes_max=FRAME_BYTES_MAX)
        self.lists = InsertedLists(connection, self._stream, services.loop)
        self.consumers = RelayedConsumers(services, self._stream, self._send_flow, self.sends.usage)
        self._spare: SpareBuffers | None = None  # for large frames
        self._answers: AwaitedAnswers | None = None  # while it is drained
        self._drained: asyncio.Event | None = None
        self._greeting = Greeting()

    async def open(self, connect: codec.CommandConnect) -> None:
        """Connect to the broker, and send this CONNECT on. Raises ServiceNotReady."""
        upstreams = self._services.upstreams
        try:
            sock = await upstreams.dial(self.target)
        except PenstockError:
            self._traffic.connected["failed"] += 1
            raise
        if not self._connection.is_open:
            sock.close()
            return
        self._traffic.relays += 1
        identity = self._client.identity
        assert identity is not None, "the client is authenticated first"
        self._upstream = UpstreamSocket(
            sock,
            self._services.loop,
            self,
            tls=upstreams.options.context(self.target, identity),
            server_name=self.target.host,
        )
        self._send(encode(self._client.greeting(connect)))
        self._upstream.start()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the broker's socket has not taken yet."""
        return self._upstream.unsent_bytes if self._upstream is not None else 0

    def excuse(self) -> None:
        """Answer PINGs for a client that is not read."""
        if not self.unsent_bytes:
            self._send(codec.pong())

    def answer_challenge(self, body: codec.CommandAuthResponse) -> None:
        """Answer the broker's challenge."""
        self._send(encode(body))

    def _send(self, frame: bytes) -> None:
        if self._upstream is not None:
            self._upstream.write((frame,), len(frame))

    async def drain(self) -> None:
        """Return when the broker has answered what was sent to it, or the connection is over.

        The client is not read meanwhile. Its held frames are sent as its groups allow.
        """
        if self._upstream is None or not self._upstream.is_open:
            return
        self._drained = asyncio.Event()
        self._answers = AwaitedAnswers(*self._stream.unfinished)
        for producer_id in [*self.sends.producers, NO_PRODUCER]:
            frame = self._answers.close_producer(producer_id)
            self.sends.closed(producer_id, partial(self._forward, frame, None))
        await self._drained.wait()

    def _end_draining(self) -> None:
        if self._drained is not None:
            self._drained.set()

    def close(self, reason: str) -> None:
        """The client is gone."""
        self._end_draining()
        self.sends.close()
        self.consumers.close()
        if self._upstream is not None:
            self._upstream.close(reason)
        del self.sends, self.consumers, self._list_topics  # They refer to this; see `Session.closed`.

    # -- from the client ----------------------------------------------------------------------------------------------

    def client_sent(self, events: list[Event], lease: Lease | None) -> None:
        """Pass the events of one read on. The lease is released when the broker's socket has taken all of it."""
        self._traffic.reads += 1
        upstream, passed = self._upstream, []
        before_bytes = self._traffic.to_brokers_bytes
        if upstream is not None:
            upstream.cork()
        for event in events:
            if type(event) is PublishRun:
                run = event if lease is None else self.sends.pass_on(event, lease)
                if run is not None:
                    self._forward(run.data, None)
                    if run is event:
                        passed.append(run.data)
            elif type(event) is Relayed:
                if event.command is None:
                    self._forward(event.data, None)
                else:
                    self._on_command(event.command, event.data)
            else:
                assert type(event) is RefusedCommand
                self._refuse(event)
            if not self._connection.is_open:
                break
        if lease is not None:
            self._forward(b"", lease)
        elif upstream is not None:
            self._charge_unleased(upstream, self._traffic.to_brokers_bytes - before_bytes)
        if upstream is not None:
            upstream.uncork()
            if not upstream.unsent_bytes and self._spare is not None:
                for data in passed:
                    self._spare.give_back(data)

    def _charge_unleased(self, upstream: UpstreamSocket, nbytes: int) -> None:
        """Charge commands that were read without request memory, until the broker's socket has taken them.

        They are few: a client is not read once `UNSENT_BYTES_MAX` wait. So they always fit.
        """
        memory = self._services.sessions_memory
        memory.charge(nbytes)
        upstream.write((), 0, partial(memory.release, nbytes))

    def _forward(self, data: bytes | memoryview, lease: Lease | None) -> None:
        """Send frames to the broker; the lease is released when its socket has taken them, and all before."""
        release = partial(self._services.release, lease) if lease is not None else None
        self.passed_bytes += len(data)
        self._traffic.to_brokers_bytes += len(data)
        if self._upstream is not None:
            self._upstream.write((data,) if data else (), len(data), release)
        elif release is not None:
            release()

    def _on_command(self, command: Command, frame: bytes) -> None:
        """Learn from a command, and pass it on."""
        kind: int = command.type
        body: Any = command.body
        if kind == BaseCommand.CLOSE_PRODUCER:
            self.sends.closed(body.producer_id, partial(self._forward, frame, None))
            return
        if kind in (BaseCommand.PRODUCER, BaseCommand.SUBSCRIBE):
            opened = self.sends.opened if kind == BaseCommand.PRODUCER else self.consumers.opened
            try:
                opened(body)
            except PenstockError as error:
                self._answer(codec.error(body.request_id, error.wire_code, str(error)))
                return
        elif kind == BaseCommand.FLOW:
            if not self.consumers.flow(body):
                return
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self.consumers.forget(body.consumer_id)
        elif kind == BaseCommand.UNSUBSCRIBE:
            self.consumers.unsubscribed(body.consumer_id)
        elif kind == BaseCommand.AUTH_RESPONSE:
            self._client.answered(body, self.answer_challenge)
            return
        elif kind == BaseCommand.CONNECT:
            # On a connection that the proxy has authenticated, no client may say who it is.
            self._connection.close("CONNECT came twice")
            return
        elif kind in _LISTS:
            self._list_topics(command)
            return
        elif kind in _LOOKUPS and self._client.own is not None:
            for name in _ORIGINAL_FIELDS:
                body.ClearField(name)
            frame = encode(body)
        self._forward(frame, None)

    def _send_flow(self, consumer_id: int, permits: int) -> None:
        self._forward(encode(codec.CommandFlow(consumer_id=consumer_id, messagePermits=permits)), None)

    def _refuse(self, refused: RefusedCommand) -> None:
        self._traffic.refuse(self._connection.peer.rpartition(":")[0], refused.type)
        answer = bounds.answer(refused)
        if answer is None:
            self._connection.close(refused.text)
        else:
            self._answer(answer)

    def say(self, frame: bytes) -> None:
        """Send the client a frame of the proxy's own."""
        self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        """Send a frame of the proxy's own. A client that does not read such answers is muted, and at last closed."""
        for buffer in self._stream.add(frame):
            self._connection.write_frame(buffer)
        if self._stream.waiting_bytes > ANSWERS_BYTES_MAX:
            self.end("answers of the proxy wait behind a message that the client does not read")

    # -- from the broker ----------------------------------------------------------------------------------------------

    def room_bytes(self) -> int:
        """See UpstreamHandler."""
        connection = self._connection
        if connection.closing_reason is not None or not connection.writable:
            return 0
        return max(connection.room_bytes, _SIZE_BYTES)

    def resume(self) -> None:
        """The client's connection has room again."""
        if self._upstream is not None:
            self._upstream.resume()

    def broker_sent(self, data: bytes) -> None:
        """See UpstreamHandler."""
        self.read_count += 1
        self._traffic.reads += 1
        self._traffic.to_clients_bytes += len(data)
        try:
            if not self.is_connected:
                data = self._greet(data)
                if not data:
                    return
            if self._answers is not None:
                data = self._answers.without(data)
            if self.lists.waiting:
                data = self.lists.deliver(data, self._deliver)
            if data:
                self._deliver(self._stream.passed(data))
            if self._stream.counter is not None:
                self.consumers.delivered(self._stream.counter.take())
                if self.sends.usage is not None:
                    self.sends.usage.answered(self._stream.counter.take_answered())
            if self._answers is not None and self._answers.all_came:
                self._end_draining()
        except ProtocolError as error:
            self.end(f"broker {self.target}: {error}")

    def _deliver(self, buffers: Iterable[bytes]) -> None:
        passed = tuple(buffers)
        self._connection.pass_on(passed, sum(map(len, passed)))

    def _greet(self, data: bytes) -> bytes:
        """Handle the broker's frames up to CONNECTED; return what follows it."""
        self._greeting.add(data)
        while (came := self._greeting.next_frame()) is not None:
            frame, decoded = came
            if decoded.kind == BaseCommand.CONNECTED:
                self._connected(decoded.body)
                rest, self._greeting.rest = self._greeting.rest, b""
                return rest
            if decoded.kind == BaseCommand.PING:
                self._send(codec.pong())
                continue
            if decoded.kind == BaseCommand.AUTH_CHALLENGE and self._client.own is not None:
                self._client.answer_for_proxy(self.answer_challenge)
                continue
            if decoded.kind == BaseCommand.ERROR:
                frame = self._client.explained(frame, decoded.body, self.target)
            self._connection.write_frame(frame)
            if decoded.kind != BaseCommand.AUTH_CHALLENGE:
                self._traffic.connected["refused"] += 1
                self.end(f"broker {self.target} refused the connection")
                break
        return b""

    def _connected(self, body: Body) -> None:
        """Send CONNECTED to the client, with the smaller limit of message sizes, and relay from now on."""
        self._stream.frame_bytes_max = agreed_sizes(body, self._services.frame_bytes_max)
        frames = self._connection.frames
        assert isinstance(frames, RelayReader), "a proxy's connections have such readers"
        frames.relaying = True
        self._spare = frames.spare
        self.is_connected = True
        self._traffic.connected["made"] += 1
        self._connection.write_frame(encode(body))

    def broker_blocked(self) -> None:
        """See UpstreamHandler."""
        if self._upstream is not None and self._upstream.unsent_bytes > UNSENT_BYTES_MAX:
            self._connection.mute(HoldKind.UPSTREAM)

    def broker_took(self) -> None:
        """See UpstreamHandler."""
        self._connection.unmute(HoldKind.UPSTREAM)

    def broker_closed(self, reason: str) -> None:
        """See UpstreamHandler."""
        self._traffic.relays -= 1
        self.end(f"broker {self.target}: {reason}")

    def end(self, reason: str) -> None:
        """Send the client what has come, then close both connections."""
        self._end_draining()
        self._connection.close_after_flush(reason)
        if self._upstream is not None:
            self._upstream.close(reason)
