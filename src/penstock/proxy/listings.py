# SPDX-License-Identifier: Apache-2.0
"""Topic listings through the proxy, in bounded memory (PIP-442).

Theory of operation
    Charge. A heap permit for an estimate is acquired before the broker is asked. When the size of its answer has come,
            the permit becomes that size; only then the rest is read. When the answer is complete, its bytes move to a
            direct permit, which is held until the sockets of all clients that it is for have taken it.
    Sharing. Clients with the same credentials that ask the same question before it is sent to a broker share the
            answer: it is read, held and charged once. A client that asks later is answered later, so that no answer is
            older than its question. What that answer has in common with one that is still being sent is not held
            twice, and not charged twice (`answer_pieces`, `unsent_pieces`).
    Turns.  A few questions at a time are asked, of tenants and their connections in turn. An answer that waits for
            direct memory keeps no turn, or clients that read slowly would keep other lists from being asked for.
    Time.   A client gives up after 30 s. The waits of the proxy and of the broker together end before.
    Errors. Errors of the broker are passed on with their code: TooManyRequests stays that.
Where: `lookups` calls `answer`, also for clients that are connected to a broker. The limiter is that of the broker,
with its six settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from penstock.core.errors import PenstockError, ServiceNotReady, forget_frames
from penstock.core.units import KIB, MIB, NS_PER_S
from penstock.governance.permits import PermitError
from penstock.net.listing_memory import INITIAL_BYTES, LimitType, Owner
from penstock.net.loop import LoopShare
from penstock.net.unsent_pieces import UnsentPieces
from penstock.proxy.answer_pieces import cut
from penstock.proxy.upstreams import own_refused
from penstock.wire import codec
from penstock.wire.client.connection import encode
from penstock.wire.client.events import RequestRefused
from penstock.wire.client.frames import Frame, decode_frame
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError
from penstock.wire.varints import read_varint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.net.connection import Connection
    from penstock.net.listing_memory import Permit, TopicListMemoryLimiter
    from penstock.proxy.answer_pieces import CutAnswer, Piece
    from penstock.proxy.upstreams import Identity, UpstreamOptions, Upstreams
    from penstock.wire.client.lookup import Address


# ---------------------------------------------------------------------------------------------------------------------
# A connection to a broker for one topic listing at a time, which is read only as far as there is memory for it.
#
# Why not the shared connection of lookups: a client that reads whole frames has a listing in memory before anybody has
# agreed to its size. Here the four bytes of the size come first, then a permit of that size, and then the rest. Where:
# `listings`.

# The request id of every request: each is alone on its connection.
REQUEST_ID: Final = 1
# Frames up to this size are read without a permit: answers to CONNECT, PINGs, errors.
SMALL_BYTES: Final = 4 * KIB
# A namespace of a million topics with long names; a broker that announces more is not believed.
LISTING_BYTES_MAX: Final = 256 * MIB
# PINGs of a broker while it makes one list.
PINGS_MAX: Final = 10
_HANDSHAKE_BYTES_MAX: Final = 128 * KIB
_SIZES_BYTES: Final = 8
# Six numbers of at most ten bytes come before the list.
_HEAD_BYTES_MAX: Final = _SIZES_BYTES + 6 * 10
_TAG_REQUEST_ID: Final = 0x08
_BODY_TAG: Final = BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE << 3 | 2


class Listed(NamedTuple):
    """A broker's answer: the fields of its body without the request id, encoded."""

    fields: memoryview
    nbytes: int  # of memory that it holds


class ListingConnection:
    """One connection. Open it with `open`, and close it when it has failed or is not needed any more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Made by `open`."""
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address, identity: Identity, options: UpstreamOptions) -> Self:
        """Connect and shake hands. Raises ServiceNotReady, RequestRefused."""
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=options.context(address, identity), limit=SMALL_BYTES
                )
                connection = cls(reader, writer)
                try:
                    await connection._shake_hands(identity)
                except RequestRefused as error:
                    connection.close()
                    raise own_refused(address, identity, error) or error from error
                except BaseException:
                    connection.close()
                    raise
        except (OSError, EOFError, TimeoutError, ProtocolError) as error:
            reason = str(error) or "it did not answer in time"
            raise ServiceNotReady(f"broker {address} cannot be asked for topics: {reason}") from error
        return connection

    async def is_usable(self) -> bool:
        """Return whether nothing has come since the last answer, and the broker has not closed the connection.

        If something has come, its first byte is lost: close the connection.
        """
        try:
            async with asyncio.timeout(0):  # What the socket has is read first; nothing is waited for.
                await self._reader.read(1)
        except TimeoutError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the connection now."""
        with contextlib.suppress(OSError):
            self._writer.transport.abort()

    async def closed(self) -> None:
        """Wait until the socket of a connection that was closed is."""
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, body: codec.CommandGetTopicsOfNamespace, permit: Callable[[int], Awaitable[None]]) -> Listed:
        """Ask for topics; `permit` waits until so many bytes of memory may be used, and may be called once.

        Raises:
            RequestRefused: the broker answered with an error.
            OSError, EOFError, ProtocolError: the connection is lost, or is not one to a broker.
        """
        body.request_id = REQUEST_ID
        pings = 0
        self._writer.write(encode(body))
        await self._writer.drain()
        while True:
            head = await self._reader.readexactly(_SIZES_BYTES)
            frame_bytes = 4 + int.from_bytes(head[:4], "big")
            if not _SIZES_BYTES <= frame_bytes <= LISTING_BYTES_MAX:
                raise ProtocolError(f"an answer of {frame_bytes} bytes")
            if frame_bytes > SMALL_BYTES:
                await permit(frame_bytes)
                return _listed(await self._read_whole(head, frame_bytes))
            frame = head + await self._reader.readexactly(frame_bytes - _SIZES_BYTES)
            decoded = decode_frame(frame, 0, len(frame))
            if decoded.kind == BaseCommand.PING:
                pings += 1
                if pings > PINGS_MAX:
                    raise ProtocolError(f"{pings} PINGs where a list of topics was due")
                self._writer.write(codec.pong())
            elif decoded.kind == BaseCommand.ERROR:
                raise RequestRefused(decoded.body.error, decoded.body.message, f"listing {body.namespace}")
            elif decoded.kind == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE:
                return _listed(bytearray(frame))
            elif decoded.kind != BaseCommand.PONG:
                raise ProtocolError(f"a frame of type {decoded.kind} where a list of topics was due")

    async def _read_whole(self, head: bytes, frame_bytes: int) -> bytearray:
        """Read the rest of a large frame, into a buffer of exactly its size."""
        frame = bytearray(frame_bytes)
        frame[: len(head)] = head
        at = len(head)
        while at < frame_bytes:
            piece = await self._reader.read(frame_bytes - at)
            if not piece:
                raise EOFError(f"the broker closed the connection after {at} of {frame_bytes} bytes")
            frame[at : at + len(piece)] = piece
            at += len(piece)
        return frame

    async def _shake_hands(self, identity: Identity) -> None:
        self._writer.write(encode(identity.hello().body(identity.shown())))
        while True:
            answer = await self._read_small(_HANDSHAKE_BYTES_MAX)
            if answer.kind == BaseCommand.CONNECTED:
                return
            if answer.kind == BaseCommand.ERROR:
                raise RequestRefused(answer.body.error, answer.body.message, "the connection")
            raise ProtocolError(f"a frame of type {answer.kind} where CONNECTED was due")

    async def _read_small(self, bytes_max: int) -> Frame:
        size = await self._reader.readexactly(4)
        frame_bytes = int.from_bytes(size, "big")
        if frame_bytes > bytes_max:
            raise ProtocolError(f"an answer of {frame_bytes} bytes")
        frame = size + await self._reader.readexactly(frame_bytes)
        return decode_frame(frame, 0, len(frame))


def _listed(frame: bytearray) -> Listed:
    """Return the fields of a GET_TOPICS_OF_NAMESPACE_RESPONSE without its request id, which all brokers write first.

    Raises:
        ProtocolError: it is another command, or written in a way that no broker does.
    """
    head = bytes(frame[:_HEAD_BYTES_MAX])
    try:
        kind_tag, at = read_varint(head, _SIZES_BYTES)
        kind, at = read_varint(head, at)
        body_tag, at = read_varint(head, at)
        body_bytes, at = read_varint(head, at)
        stop = at + body_bytes
        id_tag, at = read_varint(head, at)
        request_id, at = read_varint(head, at)
    except (IndexError, OverflowError):
        raise ProtocolError("a list of topics that cannot be read") from None
    usual = kind_tag == 0x08 and kind == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE and body_tag == _BODY_TAG
    if not usual or id_tag != _TAG_REQUEST_ID or request_id != REQUEST_ID or stop != len(frame) or at > stop:
        raise ProtocolError("an answer that is no list of topics")
    return Listed(memoryview(frame)[at:], len(frame))


log = logging.getLogger(__name__)

# Clients wait for 30 s; what is left is for the way.
ANSWER_NS: Final = 28 * NS_PER_S
# Listings that brokers are asked for at a time, each over a connection of its own.
AT_ONCE: Final = 8
# Sizes of earlier answers that are remembered as estimates.
ESTIMATES_MAX: Final = 1_000


class _Question(NamedTuple):
    """Key of a request: requests with equal keys are the same."""

    identity: Identity
    command: bytes  # encoded, without the request id


class Answer:
    """One answer while it is being sent to its clients.

    Attributes:
        buffers: its fields without the request id.
        fields_bytes: their size.
    """

    __slots__ = ("_passed", "_users", "buffers", "fields_bytes")

    def __init__(self, buffers: Sequence[bytes], passed: Callable[[], None]) -> None:
        self.buffers = buffers
        self.fields_bytes = sum(map(len, self.buffers))
        self._passed = passed
        self._users = 0

    def take(self) -> None:
        self._users += 1

    def release(self) -> None:
        """One client has it, or is gone."""
        self._users -= 1
        if not self._users:
            self._passed()


class Sending:
    """The answers to one question that are being sent, or wait for memory: they share their pieces."""

    __slots__ = ("_forget", "_latest", "_unsent", "answers")

    def __init__(self, unsent: UnsentPieces, forget: Callable[[], object]) -> None:
        self._unsent = unsent
        self._forget = forget
        self._latest: Sequence[weakref.ref[Piece]] = ()  # of the newest answer
        self.answers = 0

    def cut(self, fields: memoryview) -> CutAnswer:
        """Cut an answer. The next one shares its pieces, also while both wait for memory."""
        cut_answer = cut(fields, filter(None, (known() for known in self._latest)))
        self._latest = list(map(weakref.ref, cut_answer.pieces))
        return cut_answer

    async def charged(self, cut_answer: CutAnswer, owner: Owner, deadline_ns: int) -> Answer:
        """Return this answer when there is memory for it. Raises PermitError, TooManyRequests."""
        pieces = cut_answer.pieces
        try:
            permit = await self._unsent.charge(cut_answer.own_bytes, None, pieces, owner, deadline_ns)
        except BaseException:
            self._ended()
            raise

        def passed() -> None:
            self._unsent.passed(permit, None, pieces)
            self._ended()

        return Answer(cut_answer.buffers, passed)

    def _ended(self) -> None:
        self.answers -= 1
        if not self.answers:
            self._forget()


class Listings:
    """All topic listings of one proxy."""

    def __init__(
        self, limiter: TopicListMemoryLimiter, upstreams: Upstreams, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.limiter = limiter
        self._upstreams = upstreams
        self._clock = clock
        self.loop = loop
        self._joinable: dict[_Question, _Shared] = {}  # not sent to a broker yet
        self._sending: dict[bytes, Sending] = {}  # by the question, of all clients
        self._estimates: OrderedDict[bytes, int] = OrderedDict()
        self._share = LoopShare(limiter, clock, loop, slots=AT_ONCE)
        self._idle: list[tuple[Identity, ListingConnection]] = []

    async def answer(
        self, connection: Connection, identity: Identity, body: codec.CommandGetTopicsOfNamespace
    ) -> Answer:
        """Ask a broker; return its answer, which the caller must send to the client, or release.

        Raises:
            PermitError: there is no memory for it.
            RequestRefused: as the broker answered.
            ServiceNotReady: no broker answers.
        """
        asked = codec.CommandGetTopicsOfNamespace()
        asked.CopyFrom(body)
        asked.ClearField("request_id")
        question = _Question(identity, asked.SerializePartialToString())
        shared = self._joinable.get(question)
        if shared is None:
            owner = Owner(body.namespace.partition("/")[0], connection.id)
            shared = self._joinable[question] = _Shared(self, question, asked, owner)
        try:
            return await shared.wait()
        except PermitError as error:
            log.warning(
                "[%s] Failed to acquire %s memory permits for GetTopicsOfNamespace: %s",
                connection.peer, shared.stage, error,
            )  # fmt: skip
            raise
        except PenstockError as error:
            log.warning("[%s] Failed to get TopicsOfNamespace %s: %s", connection.peer, body.namespace, error)
            raise

    async def run(self, shared: _Shared) -> Answer:
        """Ask a broker, with permits for what it answers. Raises as `answer`."""
        deadline_ns = self._clock.monotonic_ns() + ANSWER_NS
        try:
            async with asyncio.timeout(ANSWER_NS / NS_PER_S):
                return await self._ask(shared, deadline_ns)
        except TimeoutError:
            raise ServiceNotReady("no broker has listed the topics in time; try again") from None
        finally:
            self._send(shared)

    async def _ask(self, shared: _Shared, deadline_ns: int) -> Answer:
        limiter, question = self.limiter, shared.question
        permit: Permit | None = None

        async def grow(nbytes: int) -> None:
            nonlocal permit
            assert permit is not None
            shared.stage = "actual heap"
            permit = await limiter.update(permit, nbytes, deadline_ns=deadline_ns)

        try:
            async with self._share.slot(shared.owner, deadline_ns):
                estimate_bytes = self._estimates.get(question.command, INITIAL_BYTES)
                permit = await limiter.acquire(
                    estimate_bytes, LimitType.HEAP_MEMORY, owner=shared.owner, deadline_ns=deadline_ns
                )
                self._send(shared)
                try:
                    listed = await self._listed(question.identity, shared.body, grow)
                except (OSError, EOFError, ProtocolError) as error:
                    forget_frames(error)
                    raise ServiceNotReady(f"the broker did not list the topics: {error}; try again") from None
            self._remember(question.command, listed.nbytes)
            shared.stage = "actual direct"
            shared.body.ClearField("topics_hash")  # Nothing depends on it but whether an answer has topics.
            sending = self.sending(shared.body.SerializePartialToString())
            cut_answer = sending.cut(listed.fields)
            del listed  # The permit is for one copy.
            return await sending.charged(cut_answer, shared.owner, deadline_ns)
        finally:
            if permit is not None:
                limiter.release(permit)

    def sending(self, wanted: bytes) -> Sending:
        """Return what shares the answers to this question, also of watchers; one more answer is counted."""
        sending = self._sending.get(wanted)
        if sending is None:
            unsent = UnsentPieces(self.limiter, self._clock, self.loop)
            sending = self._sending[wanted] = Sending(unsent, partial(self._sending.pop, wanted))
        sending.answers += 1
        return sending

    def _send(self, shared: _Shared) -> None:
        """Let no further client join."""
        if self._joinable.get(shared.question) is shared:
            del self._joinable[shared.question]

    def _remember(self, command: bytes, nbytes: int) -> None:
        self._estimates[command] = nbytes
        self._estimates.move_to_end(command)
        if len(self._estimates) > ESTIMATES_MAX:
            self._estimates.popitem(last=False)

    async def _listed(
        self, identity: Identity, body: codec.CommandGetTopicsOfNamespace, permit: Callable[[int], Awaitable[None]]
    ) -> Listed:
        """Ask over a kept connection, or over a fresh one if there is none or it has ended. Raises as `_asked`."""
        kept = await self._take_idle(identity)
        if kept is not None:
            try:
                return await self._asked(kept, identity, body, permit)
            except (OSError, EOFError) as error:  # It ended while it was kept.
                forget_frames(error)
        address = await self._upstreams.cluster(identity)
        fresh = await ListingConnection.open(address, identity, self._upstreams.options)
        return await self._asked(fresh, identity, body, permit)

    async def _asked(
        self,
        connection: ListingConnection,
        identity: Identity,
        body: codec.CommandGetTopicsOfNamespace,
        permit: Callable[[int], Awaitable[None]],
    ) -> Listed:
        """Ask; the connection is kept for the next listing if this one is answered. Raises as `ListingConnection`."""
        try:
            listed = await connection.ask(body, permit)
        except BaseException:
            connection.close()
            raise
        self._idle.append((identity, connection))
        while len(self._idle) > AT_ONCE:
            self._idle.pop(0)[1].close()
        return listed

    async def _take_idle(self, identity: Identity) -> ListingConnection | None:
        """Return the connection that was used last and can be used, or None."""
        while True:
            at = next((at for at in reversed(range(len(self._idle))) if self._idle[at][0] == identity), None)
            if at is None:
                return None
            connection = self._idle.pop(at)[1]
            try:
                if await connection.is_usable():
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()

    async def close(self) -> None:
        """Close idle connections; requests that wait get an error."""
        self.limiter.close()
        idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()
            await connection.closed()


class _Shared:
    """One question to a broker, and the clients that wait for its answer."""

    def __init__(
        self, listings: Listings, question: _Question, body: codec.CommandGetTopicsOfNamespace, owner: Owner
    ) -> None:
        self.question = question
        self.body = body
        self.owner = owner
        self.stage = "initial heap"  # the permit that is asked for
        self._waiting = 0
        self._task = listings.loop.create_task(listings.run(self))
        self._task.add_done_callback(self._ended)

    async def wait(self) -> Answer:
        """Return the answer, of which the caller must send its part. Raises as `Listings.answer`."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._has_answer():  # This client was counted among those who send it.
                self._task.result().release()
            raise
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._task.cancel()

    def _has_answer(self) -> bool:
        return self._task.done() and not self._task.cancelled() and self._task.exception() is None

    def _ended(self, task: asyncio.Task[Answer]) -> None:
        if not self._has_answer():
            return
        # Each of those that wait now will send it. If nobody does any more, it is released at once.
        answer = task.result()
        for _ in range(self._waiting + 1):
            answer.take()
        answer.release()
