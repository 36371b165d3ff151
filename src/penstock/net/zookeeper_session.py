# SPDX-License-Identifier: Apache-2.0
"""A session with ZooKeeper, by kazoo: requests as coroutines, and changes of the connection as calls on the loop.

Why kazoo: docs/adr/0036. It has threads of its own: one for the connection, two for answers and watches. Nothing of
ours runs on them but passing results to the loop.
Where: `zookeeper` registers a process with it. Imported only where ZooKeeper is used; needs `penstock[zookeeper]`.

Kazoo connects again by itself, to any of the servers, for as long as it takes. If a session has expired, it begins
another one. It has no limit of time for requests, so each gets one here. And it never gives up a session that the
servers do not know any more because they have lost their data (its issue 42): `renew` begins another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import READ_ACL_UNSAFE

from penstock.core.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.core.setting import ZooKeeperUrl

log = logging.getLogger(__name__)

# Time for an answer, also to requests that wait for a connection.
REQUEST_S: Final = 10.0
# Time to end the session and kazoo's threads. One of these may hang in an attempt to connect for a session's timeout.
CLOSE_S: Final = 3.0
# Pauses between attempts to connect.
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 2.0
# Kazoo finds out up to so much later than it should that a ping was not answered, for its own jitter.
PING_JITTER_NS: Final = 400 * NS_PER_MS


class RequestFailed(Exception):
    """A request was not answered, or refused by ZooKeeper; it may be repeated."""


class NodeMissing(RequestFailed):
    """There is no such node."""


class NodeExists(RequestFailed):
    """There is such a node already."""


@dataclass(frozen=True, slots=True)
class Node:
    """The properties of a node.

    Attributes:
        version: counts changes of its data.
        owner: the session whose end deletes it; 0: none.
        created: the transaction that created it, and the one that changed it last.
        nbytes: the length of its data.
        children: how many there are.
    """

    version: int
    owner: int
    created: tuple[int, int]
    nbytes: int
    children: int


class ZooKeeperSession:
    """A connection that is kept. All methods and callbacks are of the loop.

    Attributes:
        session_id: of the present session, or 0.
        connected: whether it is connected, as far as is known.
        timeout_ms: of the session; first as asked for, then as agreed with the server.
        error: why the last attempt to connect failed.
    """

    def __init__(
        self,
        url: ZooKeeperUrl,
        timeout_ms: int,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        connected: Callable[[], None],
        suspended: Callable[[int], None],
        expired: Callable[[], None],
    ) -> None:
        """Receive what this uses.

        Args:
            url: of the servers.
            timeout_ms: how long the servers wait for a process that is silent.
            clock: for the end of that time.
            loop: on which everything is called.
            connected: called for each connection, in a new session or an old one.
            suspended: called when the connection is lost, with the time until which the servers certainly keep the
                session, in nanoseconds.
            expired: called when the session has ended; another one will follow.
        """
        self.session_id = 0
        self.connected = False
        self.timeout_ms = timeout_ms
        self._clock = clock
        self._loop = loop
        self._on_connected = connected
        self._on_suspended = suspended
        self._on_expired = expired
        self._closed = False
        self._said = _LastWarning()
        self._url = url
        self._wanted_ms = timeout_ms
        self._ending: set[asyncio.Task[bool]] = set()
        self._client = self._make()

    @property
    def error(self) -> str:
        return self._said.text

    def start(self) -> None:
        """Begin to connect."""
        self._client.start_async()

    def renew(self) -> None:
        """Give up the session, and begin another one as soon as a server is reached."""
        old, self._client = self._client, self._make()
        self._end(old)
        self.session_id = 0
        self.connected = False
        self._client.start_async()

    async def close(self) -> None:
        """End the session at once, so that its nodes are deleted, and kazoo's threads."""
        self._closed = True
        self._end(self._client)
        if not all(await asyncio.gather(*self._ending)):
            log.warning("a thread still waits for ZooKeeper; it ends with the process, or with its attempt to connect")

    # -- requests: each raises RequestFailed

    async def create(self, path: str, data: bytes) -> None:
        """Create a node that ends with the session, and that cannot be changed. Raises NodeExists, NodeMissing.

        Whether it can be deleted depends on the node above it.
        """
        await self._answer(self._client.create_async(path, data, acl=READ_ACL_UNSAFE, ephemeral=True))

    async def create_folder(self, path: str) -> None:
        """Create a node that stays, and those above it, if they do not exist; all may be used by everybody."""
        await self._answer(self._client.ensure_path_async(path))

    async def delete(self, path: str, version: int) -> None:
        """Delete a node if it has this version."""
        await self._answer(self._client.delete_async(path, version))

    async def node(self, path: str) -> Node | None:
        """Return the properties of a node; None: there is none."""
        found = await self._answer(self._client.exists_async(path))
        return None if found is None else _node(found)

    async def read(self, path: str, changed: Callable[[str], None]) -> tuple[bytes, Node]:
        """Return data and properties; `changed` is called with the path once, when they change. Raises NodeMissing."""
        data, found = await self._answer(self._client.get_async(path, watch=_Watch(self._post, changed, path)))
        return data, _node(found)

    async def children(self, path: str, changed: Callable[[str], None]) -> list[str]:
        """Return the names of the children; `changed` is called with the path once, when they change."""
        watch = _Watch(self._post, changed, path)
        names: list[str] = await self._answer(self._client.get_children_async(path, watch=watch))
        return names

    # -- inside

    def _make(self) -> Any:  # noqa: ANN401 -- kazoo has no types
        # Without a thread's log lines for each attempt: what matters is logged here, and once.
        quiet = logging.Logger(f"{__name__}.kazoo")  # noqa: LOG001 -- its filter is of this session alone
        quiet.parent = log
        quiet.addFilter(self._said)
        client = KazooClient(
            hosts=",".join(self._url.servers),
            timeout=self._wanted_ms / 1_000,
            connection_retry=KazooRetry(max_tries=-1, delay=FIRST_PAUSE_S, max_delay=LAST_PAUSE_S),
            logger=quiet,
        )
        client.add_listener(partial(self._changed, client))
        connection = client._connection  # noqa: SLF001 -- kazoo does not say which timeout the server has agreed to
        connect = connection._connect  # noqa: SLF001

        def connect_and_tell(*args: object) -> Any:  # noqa: ANN401
            times = connect(*args)
            self._post(partial(self._agreed, round(times[0] * 1.5)))  # It reads for two thirds of the timeout.
            return times

        connection._connect = connect_and_tell  # noqa: SLF001
        return client

    def _changed(self, client: Any, state: str) -> None:  # noqa: ANN401
        """Pass a change of the connection on; called on kazoo's thread."""
        client_id = client.client_id
        session_id = client_id[0] if client_id is not None else 0
        self._post(partial(self._take, client, state, session_id, self._clock.monotonic_ns()))

    def _take(self, client: Any, state: str, session_id: int, at_ns: int) -> None:  # noqa: ANN401
        if self._closed or client is not self._client:
            return
        self.connected = state == KazooState.CONNECTED
        if self.connected:
            self.session_id = session_id
            self._said.text = ""
            self._on_connected()
        elif state == KazooState.SUSPENDED:
            # The servers have heard this process two thirds of the timeout ago, or later: see `PING_JITTER_NS`.
            left_ns = self.timeout_ms * NS_PER_MS // 3 - PING_JITTER_NS
            self._on_suspended(at_ns + max(0, left_ns))
        else:
            self.session_id = 0
            self._on_expired()
            if client.client_state in {KeeperState.CLOSED, KeeperState.AUTH_FAILED}:
                # Kazoo gave up, for an error of its own: begin again, or this process would be lost for good.
                log.error(
                    "the client of ZooKeeper has ended, beginning again: %s", self._said.text or "no reason given"
                )
                self._loop.call_later(LAST_PAUSE_S, self._begin_again, client)

    def _begin_again(self, client: Any) -> None:  # noqa: ANN401
        if not self._closed and client is self._client:
            self.renew()

    def _agreed(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms

    def _end(self, client: Any) -> None:  # noqa: ANN401
        task = self._loop.create_task(self._in_thread(partial(_end, client)))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _in_thread(self, work: Callable[[], None]) -> bool:
        """Do what blocks in a thread of its own, and leave it alone after a while; returns whether it has ended."""
        done = asyncio.Event()

        def run() -> None:
            try:
                work()
            except Exception:
                log.exception("a session with ZooKeeper was not ended properly")
            finally:
                self._post(done.set)

        # Not one of the loop's pool: the loop's end waits for these.
        thread = threading.Thread(target=run, daemon=True, name="zookeeper-end")
        thread.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await done.wait()
        if done.is_set():
            thread.join()
        return done.is_set()

    async def _answer(self, result: Any) -> Any:  # noqa: ANN401
        """Wait for one of kazoo's results."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def take() -> None:
            if answer.done():
                return
            if result.exception is not None:
                answer.set_exception(_error(result.exception))
            else:
                answer.set_result(result.value)

        result.rawlink(lambda _: self._post(take))
        try:
            async with asyncio.timeout(REQUEST_S):
                return await answer
        except TimeoutError:
            raise RequestFailed(f"ZooKeeper has not answered within {REQUEST_S:.0f} s") from None

    def _post(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(call)


@dataclass(frozen=True, slots=True)
class _Watch:
    """A watch. Equal ones count once: kazoo keeps those that have not fired, and there may be one for each request."""

    post: Callable[[Callable[[], object]], None]
    changed: Callable[[str], None]
    path: str

    def __call__(self, _event: object) -> None:
        self.post(partial(self.changed, self.path))


# A line that says what follows, not why.
_NO_REASON: Final = "Transition to"


class _LastWarning(logging.Filter):
    """Keeps the last line of kazoo's log, and lets only errors pass."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.levelno >= logging.WARNING and not text.startswith(_NO_REASON):
            self.text = text
        return record.levelno >= logging.ERROR


def _end(client: Any) -> None:  # noqa: ANN401
    client.stop()
    client.close()


def _node(found: Any) -> Node:  # noqa: ANN401
    return Node(found.version, found.ephemeralOwner, (found.czxid, found.mzxid), found.dataLength, found.numChildren)


def _error(error: BaseException) -> RequestFailed:
    text = str(error) or type(error).__name__
    if isinstance(error, kazoo_errors.NoNodeError):
        return NodeMissing(text)
    if isinstance(error, kazoo_errors.NodeExistsError):
        return NodeExists(text)
    return RequestFailed(f"ZooKeeper: {text}")
