# SPDX-License-Identifier: Apache-2.0
"""Topic watchers of one client that is connected to a broker, with permits for what they are sent (PIP-442).

Theory of operation
    Connection. The watchers of a client are at its broker, on a connection of their own (`watcher_connection`): what
                waits for memory there keeps no message and no receipt waiting.
    Request.    A heap permit for an estimate is acquired before a WATCH_TOPIC_LIST is sent on.
    Answer.     The permit becomes the size of the answer before that is read. It then moves to direct memory, until the
                client's socket has taken the answer, which is inserted between two frames of the broker. What watchers
                of the same topics are being sent is held once, as for listings.
    Updates.    The same, but an update that waits is never refused. The next is read when the client has this one; the
                broker combines those that come meanwhile.
    Refusal.    The answer is read and dropped, the client gets the error that a lookup would give, and the broker is
                told to close the watcher.
    End.        If the connection is lost, so is the client's: it watches again when it has connected again.
Where: `session` makes one for the first WATCH_TOPIC_LIST.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError, ServiceNotReady, TooManyRequests, forget_frames
from penstock.core.units import KIB, NS_PER_S
from penstock.governance.budget import Charge
from penstock.governance.permits import (
    PermitAcquireAlreadyClosed,
    PermitAcquireCancelled,
    PermitError,
    PermitsBeyondLimit,
)
from penstock.net.listing_memory import INITIAL_BYTES, LimitType, Owner
from penstock.proxy.relay import OwnList
from penstock.proxy.watcher_connection import Large, WatcherConnection
from penstock.wire import codec
from penstock.wire.client.connection import encode
from penstock.wire.client.events import RequestRefused
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.net.connection import Connection
    from penstock.net.listing_memory import Permit
    from penstock.net.send_queue import Buffer
    from penstock.proxy.client_identity import ClientIdentity
    from penstock.proxy.listings import Answer
    from penstock.proxy.proxy import Services
    from penstock.wire.client.frames import Body, Frame
    from penstock.wire.client.lookup import Address

log = logging.getLogger(__name__)

# Clients wait for 30 s; what is left is for the way.
ANSWER_NS: Final = 28 * NS_PER_S
# After so many keep-alive intervals without a byte, a connection that is read is lost: brokers send PINGs.
SILENT_INTERVALS: Final = 4
# Requests of the proxy's own count down from here, those of clients up from 0.
_OWN_REQUESTS: Final = 2**63
# Memory of a connection, with its socket.
_CONNECTION_BYTES: Final = 8 * KIB
_SIZES_BYTES: Final = 8


class _Request:
    """A request that is not answered yet."""

    __slots__ = ("answered", "body", "deadline_ns", "ended", "permit", "sent", "watcher_id")

    def __init__(self, body: Body, deadline_ns: int, loop: asyncio.AbstractEventLoop) -> None:
        self.body = body
        self.watcher_id = body.watcher_id
        self.deadline_ns = deadline_ns
        self.permit: Permit | None = None
        self.sent = False
        self.answered: asyncio.Future[None] = loop.create_future()  # with an error, if it is to be answered with that
        self.ended = asyncio.Event()


class RelayedWatchers:
    """The topic watchers of one client."""

    def __init__(
        self,
        connection: Connection,
        services: Services,
        client: ClientIdentity,
        target: Address,
        *,
        send_list: Callable[[OwnList], Awaitable[None]],
        reply: Callable[[bytes], None],
        end: Callable[[str], None],
    ) -> None:
        """Args: target: the client's broker; end: closes the client's connection."""
        self._connection = connection
        self._services = services
        self._client = client
        self._target = target
        self._send_list = send_list
        self._reply = reply
        self._end = end
        self._limiter = services.listings.limiter
        self._requests: dict[int, _Request] = {}
        self._opening = asyncio.Lock()
        self._upstream: WatcherConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._own_requests = 0
        self._memory = Charge(services.sessions_memory)
        self._seen = (0, 0)  # bytes that had come at the last look, and when they were first seen
        self._excused_ns = 0

    def close(self) -> None:
        """The client is gone."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._upstream is not None:
            self._upstream.close("the client is gone")
        self._memory.release()
        del self._send_list, self._reply, self._end  # They refer to the session.

    # -- from the client ----------------------------------------------------------------------------------------------

    async def watch(self, body: codec.CommandWatchTopicList) -> None:
        """Send a WATCH_TOPIC_LIST on when there is memory for its answer; returns when the answer is queued.

        Raises:
            PermitError: there is no memory for it.
            RequestRefused: as the broker answered.
            ServiceNotReady: the broker cannot be asked.
        """
        owner = Owner(body.namespace.partition("/")[0], self._connection.id)
        request = self._begin(body)
        try:
            request.permit = await self._limiter.acquire(
                INITIAL_BYTES, LimitType.HEAP_MEMORY, owner=owner, deadline_ns=request.deadline_ns
            )
            await self._ask(body, request)
        except PermitError as error:
            log.warning("[%s] Failed to acquire memory permits for WatchTopicList: %s", self._connection.peer, error)
            raise
        finally:
            self._requests.pop(body.request_id, None)
            request.ended.set()
            if request.permit is not None:
                self._limiter.release(request.permit)
            if request.sent and (not request.answered.done() or request.answered.cancelled()):
                self._close_watcher(request.watcher_id)

    async def stop_watching(self, body: codec.CommandWatchTopicListClose) -> None:
        """Send a WATCH_TOPIC_LIST_CLOSE on when the watcher is answered. Raises as `watch`."""
        for request in list(self._requests.values()):
            if request.watcher_id == body.watcher_id:
                await request.ended.wait()
        request = self._begin(body)
        try:
            await self._ask(body, request)
        finally:
            self._requests.pop(body.request_id, None)
            request.ended.set()

    def _begin(self, body: Body) -> _Request:
        if body.request_id in self._requests or body.request_id >= _OWN_REQUESTS:
            raise ServiceNotReady(f"request {body.request_id} is not answered yet; use another id")
        deadline_ns = self._services.clock.monotonic_ns() + ANSWER_NS
        request = self._requests[body.request_id] = _Request(body, deadline_ns, self._services.loop)
        return request

    async def _ask(self, body: Body, request: _Request) -> None:
        upstream = await self._connected()
        request.sent = True
        upstream.send(encode(body))
        await request.answered

    async def _connected(self) -> WatcherConnection:
        async with self._opening:
            if self._upstream is None:
                identity = self._client.identity
                assert identity is not None, "the client is authenticated first"
                self._memory.recharge_for("watching topics", _CONNECTION_BYTES)
                upstream = await WatcherConnection.open(self._services, self._target, identity)
                self._upstream = upstream
                self._reading = self._services.loop.create_task(self._read(upstream))
            return self._upstream

    def _close_watcher(self, watcher_id: int) -> None:
        """Tell the broker that nobody wants this watcher."""
        if self._upstream is not None:
            self._own_requests += 1
            closing = codec.CommandWatchTopicListClose(
                request_id=2 * _OWN_REQUESTS - self._own_requests, watcher_id=watcher_id
            )
            self._upstream.send(encode(closing))

    # -- from the broker ----------------------------------------------------------------------------------------------

    async def _read(self, upstream: WatcherConnection) -> None:
        reason = "internal error; the proxy's log has it"
        try:
            while True:
                frame = await upstream.next()
                if not isinstance(frame, Large):
                    await self._on_small(upstream, frame)
                elif frame.kind == BaseCommand.WATCH_TOPIC_LIST_SUCCESS:
                    await self._on_list(upstream, frame)
                else:
                    await self._on_update(upstream, frame)
        except (OSError, PenstockError) as error:
            forget_frames(error)
            reason = str(error)
        except Exception:
            log.exception("topic watchers of %s failed", self._connection.peer)
        upstream.close(reason)
        if self._connection.is_open:
            self._end(f"broker {self._target}, topic watchers: {reason}")

    async def _on_small(self, upstream: WatcherConnection, frame: Frame) -> None:
        if frame.kind == BaseCommand.AUTH_CHALLENGE:
            await self._answer_challenge(upstream)
            return
        if frame.kind not in (BaseCommand.SUCCESS, BaseCommand.ERROR):
            raise ProtocolError(f"a frame of type {frame.kind} for a topic watcher")
        request = self._requests.get(frame.body.request_id)
        if request is None or request.answered.done():
            return  # It is for the proxy, or too late.
        if frame.kind == BaseCommand.ERROR:
            request.answered.set_exception(RequestRefused(frame.body.error, frame.body.message, "watching topics"))
        else:
            self._reply(encode(frame.body))
            request.answered.set_result(None)

    async def _on_list(self, upstream: WatcherConnection, frame: Large) -> None:
        """Send a watcher's first list on; if there is no memory for it until its deadline, refuse it."""
        request = self._requests.get(frame.number)
        if request is None or request.permit is None or request.answered.done():
            await upstream.skip(frame)  # It is too late.
            return
        permit, request.permit = request.permit, None
        sizes = b""
        answer: Answer | None = None
        try:
            permit = await self._limiter.update(permit, frame.nbytes, deadline_ns=request.deadline_ns)
            data = await upstream.rest(frame)
            sizes, sending = bytes(data[:_SIZES_BYTES]), self._services.listings.sending(_wanted(request.body))
            cut_answer = sending.cut(memoryview(data)[_SIZES_BYTES:])
            del data  # The permit is for one copy.
            answer = await sending.charged(cut_answer, permit.owner, request.deadline_ns)
            answer.take()
        except TooManyRequests as error:
            self._refuse(request, error)
        finally:
            self._limiter.release(permit)
        if not sizes:
            await upstream.skip(frame)
        elif answer is not None and request.answered.done():  # It has taken too long.
            answer.release()
        elif answer is not None:
            request.answered.set_result(None)
            await self._send(sizes, answer.buffers, answer.release)

    def _refuse(self, request: _Request, error: TooManyRequests) -> None:
        """Refuse a watcher that the broker has made."""
        if not request.answered.done():
            forget_frames(error)
            request.answered.set_exception(error)
            self._close_watcher(request.watcher_id)

    async def _on_update(self, upstream: WatcherConnection, frame: Large) -> None:
        """Send an update on, however long it waits for memory."""
        owner = Owner("", self._connection.id)
        permit = await self._acquired(frame.nbytes, LimitType.HEAP_MEMORY, owner)
        try:
            data = await upstream.rest(frame)
            direct = await self._acquired(frame.nbytes, LimitType.DIRECT_MEMORY, owner)
        finally:
            self._limiter.release(permit)
        rest = (memoryview(data)[_SIZES_BYTES:],)
        await self._send(bytes(data[:_SIZES_BYTES]), rest, partial(self._limiter.release, direct))

    async def _acquired(self, nbytes: int, kind: LimitType, owner: Owner) -> Permit:
        while True:
            try:
                return await self._limiter.acquire(nbytes, kind, owner=owner)
            except (PermitAcquireCancelled, PermitAcquireAlreadyClosed, PermitsBeyondLimit):
                raise
            except PermitError as error:
                log.debug("an update for a topic watcher of %s waits: %s", self._connection.peer, error)
                await asyncio.sleep(1)

    async def _send(self, sizes: bytes, rest: Sequence[Buffer], release: Callable[[], None]) -> None:
        """Send a frame to the client; returns when its socket has taken it."""
        sent = asyncio.Event()

        def passed() -> None:
            release()
            sent.set()

        await self._send_list(OwnList(sizes, rest, passed))
        await sent.wait()

    # -- keep-alive ---------------------------------------------------------------------------------------------------

    def check(self, now_ns: int, keep_alive_ns: int) -> None:
        """Close the client's connection if its watchers' is silent; answer PINGs that are not read."""
        upstream = self._upstream
        if upstream is None:
            return
        if not upstream.reading:
            if now_ns - self._excused_ns > keep_alive_ns // 2:
                self._excused_ns = now_ns
                upstream.send(codec.pong())
        elif upstream.came == self._seen[0] and now_ns - self._seen[1] > SILENT_INTERVALS * keep_alive_ns:
            upstream.close("it has sent nothing for several keep-alive intervals")
            return
        if upstream.came != self._seen[0] or not upstream.reading or not self._seen[1]:
            self._seen = upstream.came, now_ns

    async def _answer_challenge(self, upstream: WatcherConnection) -> None:
        """Show the broker new credentials: the proxy's, or after asking for them the client's."""
        client, identity = self._client, upstream.identity
        forwards = identity.own is None or bool(identity.original_data)
        if forwards:
            if not await client.renewed(identity):
                raise ServiceNotReady("the client has not shown new credentials")
            assert client.identity is not None
            upstream.identity = identity = client.identity
        answer = codec.CommandAuthResponse(client_version=identity.hello().client_version)
        answer.response.auth_method_name = identity.original_method or identity.method
        answer.response.auth_data = identity.original_data.encode() if identity.original_data else identity.shown()
        upstream.send(encode(answer))


def _wanted(body: Body) -> bytes:
    """Return the key of watchers that get the same list: `listings` shares what is sent to them."""
    wanted = codec.CommandWatchTopicList()
    wanted.CopyFrom(body)
    wanted.ClearField("topics_hash")
    wanted.request_id = wanted.watcher_id = 0
    return b"watcher " + wanted.SerializePartialToString()
