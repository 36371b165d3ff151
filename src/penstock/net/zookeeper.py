# SPDX-License-Identifier: Apache-2.0
"""Membership by registration in ZooKeeper: who shares quotas, on any machine (PIP-82).

Where: `app` registers the brokers of a supervisor if `membershipUrl` is set; proxies use it in the same way. It is a
`core.membership.Registry`.

**Registration.** Each process creates an ephemeral node with its name in a folder, and lists that folder. Watches tell
when to list it again. Nodes are read once, and again when they change. Nodes that are no record of a process are
ignored, and counted by reason: anybody who may write there can write anything.

**Loss.** ZooKeeper deletes the node when the process has been silent for the session's timeout. Without contact for
that long, the process assumes that this has happened, and no longer counts itself; `governance.presence` says why it
stays a member while its reports are heard. Kazoo connects again for as long as it takes, and the process registers
again, in the old session or a new one.

**Twins.** If a node with the own name exists, its owner is an earlier process with the same `instance`, which has
ended: then its node is replaced. Or it is another process with this name: it keeps the name, and this one is no member
until that node is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.clock import Backoff
from penstock.core.member_record import RECORD_BYTES_MAX, decoded, is_name
from penstock.core.membership import Registration
from penstock.core.units import NS_PER_S
from penstock.governance.presence import Presence
from penstock.net.zookeeper_session import NodeExists, NodeMissing, RequestFailed, ZooKeeperSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from penstock.core.clock import Clock
    from penstock.core.member_record import MemberRecord
    from penstock.core.setting import ZooKeeperUrl

log = logging.getLogger(__name__)

# Members, and nodes that are none, that are looked at; PIP-82 speaks of 100 brokers.
NODES_MAX: Final = 1_000
# A folder with more children is not listed: the answer would be large.
CHILDREN_MAX: Final = 10_000
# Nodes that are read at the same time.
READS_AT_ONCE: Final = 50
# Between two listings: a hundred processes that start together cause a few listings, not a hundred.
PAUSE_S: Final = 0.05
# And so much longer for each node: listing again and again must not load ZooKeeper.
PAUSE_PER_NODE_S: Final = 0.001
# Between attempts after an error.
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 5.0
# A warning is logged if ZooKeeper was not reached for so long.
WARN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Known:
    """A node that was read."""

    created: tuple[int, int]
    is_member: bool  # whether it is the record of a process


class ZooKeeperMembers:
    """The processes in one folder of ZooKeeper. All methods are called on the event loop.

    Attributes:
        own: the name of this process.
        names: the members.
    """

    def __init__(
        self,
        url: ZooKeeperUrl,
        folder: str,
        record: MemberRecord,
        *,
        timeout_ms: int,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        chance: Random,
    ) -> None:
        """Args: folder: of processes that share quotas, below the path of the URL; timeout_ms: of the session."""
        self.own = record.name
        self.names: frozenset[str] = frozenset()
        self._url = url
        self._folder = f"{url.path}/{folder}"
        self._record = record
        self._data = record.encoded()
        self._clock = clock
        self._loop = loop
        self._chance = chance
        self._presence = Presence(record.name)
        self._listeners: list[Callable[[], None]] = []
        self._known: dict[str, _Known] = {}
        self._stale: set[str] = set()  # names of nodes that have changed since they were read
        self._ignored: Counter[str] = Counter()
        self._logged: set[str] = set()  # reasons that were logged
        self._losses = 0
        self._registered_ms: int | None = None
        self._twin: str | None = None  # whoever has the own name
        self._failure: str | None = None  # why members were not listed at the last attempt
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._session = ZooKeeperSession(
            url,
            timeout_ms,
            clock=clock,
            loop=loop,
            connected=self._connected,
            suspended=self._suspended,
            expired=self._expired,
        )

    def start(self) -> None:
        """Register as soon as ZooKeeper is reached."""
        self._session.start()
        self._task = self._loop.create_task(self._follow())
        self._later(WARN_S, self._warn)

    async def close(self) -> None:
        """Leave: the node is deleted at once."""
        for timer in self._timers.values():
            timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._session.close()

    # -- `MemberNames`

    def hear(self, name: str, until_ns: int) -> None:
        self._presence.hear(name, until_ns, self._clock.monotonic_ns())

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    # -- for metrics and people

    @property
    def registration(self) -> Registration:
        return Registration(
            registered_ms=self._registered_ms,
            problem=self._problem(),
            members=len(self.names),
            losses=self._losses,
            ignored=dict(self._ignored),
        )

    def _problem(self) -> str | None:
        if self._registered_ms is not None:
            if self._failure is None:
                return None
            return f"{self.own} is registered at {self._url}, but members are as they were: {self._failure}"
        if self._twin is not None:
            why = f"the name is taken by {self._twin}; give the processes different names or paths in membershipUrl"
        elif self._session.connected:
            why = f"{self._failure or 'it is about to'}; trying again"
        else:
            why = f"ZooKeeper is not reached ({self._session.error or 'no answer yet'})"
        if self.own in self.names:
            follows = "it counts as a member while the others hear its usage reports"
        else:
            follows = "of shared quotas it has only its part of the reserve of 1 %"
        return f"{self.own} is not registered at {self._url}: {why}; {follows}"

    # -- the session

    def _connected(self) -> None:
        self._cancel(self._presume_lost)
        self._cancel(self._warn)
        # Watches have ended with the connection.
        self._known.clear()
        self._work.set()

    def _suspended(self, kept_until_ns: int) -> None:
        log.warning(
            "the connection to ZooKeeper is lost: %s; connecting again", self._session.error or "no reason given"
        )
        self._at(kept_until_ns, self._presume_lost)

    def _presume_lost(self) -> None:
        if self._registered_ms is not None:
            log.warning(
                "no contact with ZooKeeper: after the timeout of %d ms it deletes the registration of %s",
                self._session.timeout_ms,
                self.own,
            )
            self._lose()
        self._session.renew()

    def _expired(self) -> None:
        self._cancel(self._presume_lost)
        if self._registered_ms is not None:
            log.warning("the session with ZooKeeper has expired: registering again as %s", self.own)
            self._lose()

    def _lose(self) -> None:
        self._losses += 1
        self._registered_ms = None
        self._presence.lose()
        self._publish()

    def _warn(self) -> None:
        log.warning("%s; connecting goes on", self._problem())

    # -- registering and listing

    async def _follow(self) -> None:
        pauses = Backoff(self._chance, first_s=FIRST_PAUSE_S, last_s=LAST_PAUSE_S)
        while True:
            await self._work.wait()
            self._work.clear()
            pause_s = PAUSE_S + PAUSE_PER_NODE_S * len(self._known)
            try:
                if self._session.connected:
                    await self._register_and_list()
                pauses.reset()
                self._failure = None
            except RequestFailed as error:
                self._work.set()
                pause_s = pauses.next_s()
                if self._failure != str(error):
                    self._failure = str(error)
                    log.warning("members are not listed, trying again: %s", error)
            except Exception as error:
                self._work.set()
                pause_s = pauses.next_s()
                self._failure = f"an error of penstock's own: {error}"
                log.exception("members are not listed, trying again")
            await asyncio.sleep(pause_s)

    async def _register_and_list(self) -> None:
        session_id = self._session.session_id
        is_registered = await self._register(session_id)
        await self._read_nodes(await self._list())
        if self._session.session_id != session_id or not self._session.connected:
            return  # This may be old. There is work as soon as there is a connection.
        if is_registered and self._registered_ms is None:
            self._registered_ms = self._clock.wall_ms()
            log.info(
                "registered as %s at %s%s, with a timeout of %d ms",
                self.own, self._url, self._folder.removeprefix(self._url.path), self._session.timeout_ms,
            )  # fmt: skip
        elif not is_registered:
            self._registered_ms = None
            self._presence.give_way()
        own = {self.own} if is_registered else set()
        others = {name for name, known in self._known.items() if known.is_member} - {self.own}
        self._presence.set_listed(others | own, self._clock.monotonic_ns())
        self._publish()

    async def _register(self, session_id: int) -> bool:
        """Create the own node, if it does not exist; returns whether it is of this session."""
        path = f"{self._folder}/{self.own}"
        try:
            await self._create(path)
        except NodeExists:
            node = await self._session.node(path)
            if node is None:
                raise RequestFailed("the node with the own name has just been deleted") from None
            if node.owner != session_id:
                return await self._replace(path)
        self._twin = None
        return True

    async def _create(self, path: str) -> None:
        try:
            await self._session.create(path, self._data)
        except NodeMissing:
            await self._session.create_folder(self._folder)
            await self._session.create(path, self._data)

    async def _replace(self, path: str) -> bool:
        """Replace the node of an earlier process of this instance; a twin's stays."""
        twin: object = "a node that no process of penstock has written"
        node = await self._session.node(path)
        if node is not None and node.owner and node.nbytes <= RECORD_BYTES_MAX:
            data, node = await self._session.read(path, self._look)
            try:
                record = decoded(self.own, data)
            except ValueError:
                pass
            else:
                twin = record
                if record.instance == self._record.instance and record.start_ms <= self._record.start_ms:
                    await self._session.delete(path, node.version)
                    await self._create(path)
                    self._twin = None
                    return True
        if self._twin != str(twin):
            self._twin = str(twin)
            log.error("%s", self._problem())
        return False

    async def _list(self) -> list[str]:
        """Return the names of the nodes to be looked at: members, and then others."""
        folder = await self._session.node(self._folder)
        if folder is not None and folder.children > CHILDREN_MAX:
            raise RequestFailed(f"{self._folder} has {folder.children} nodes, and {CHILDREN_MAX} are the limit")
        names = await self._session.children(self._folder, self._look)
        members = {name for name, known in self._known.items() if known.is_member}
        names.sort(key=lambda name: (name != self.own, name not in members, not is_name(name), name))
        if len(names) > NODES_MAX:
            self._ignore("beyond the limit", f"{len(names)} nodes, and {NODES_MAX} are looked at")
        return names[:NODES_MAX]

    async def _read_nodes(self, names: list[str]) -> None:
        """Read the nodes that are new or have changed; forget those that are gone."""
        for name in self._known.keys() - set(names):
            del self._known[name]
            self._stale.discard(name)
        for start in range(0, len(names), READS_AT_ONCE):
            await asyncio.gather(*map(self._read_node, names[start : start + READS_AT_ONCE]))

    async def _read_node(self, name: str) -> None:
        known = self._known.get(name)
        if known is not None and known.is_member and name not in self._stale:
            return
        # Nodes without a record are not watched, but looked at again: anybody may create and delete any number.
        path = f"{self._folder}/{name}"
        node = await self._session.node(path)
        if node is None or (known is not None and not known.is_member and known.created == node.created):
            return
        is_member, created = False, node.created
        if not is_name(name):
            self._ignore("malformed", f"{name[:100]!r}: no name of a process")
        elif not node.owner:
            self._ignore("permanent", f"{name}: the node does not end with a session")
        elif node.nbytes > RECORD_BYTES_MAX:
            self._ignore("too large", f"{name}: {node.nbytes} bytes, and {RECORD_BYTES_MAX} are the limit")
        else:
            self._stale.discard(name)
            try:
                data, node = await self._session.read(path, self._changed)
                created = node.created
                decoded(name, data)
                is_member = True
            except NodeMissing:
                return
            except ValueError as error:
                self._ignore("malformed", f"{name}: {error}")
        self._known[name] = _Known(created, is_member)

    def _changed(self, path: str) -> None:
        name = path.rpartition("/")[2]
        if name in self._known:
            self._stale.add(name)
            self._work.set()

    def _look(self, _path: str) -> None:
        self._work.set()

    def _ignore(self, reason: str, what: str) -> None:
        self._ignored[reason] += 1
        self._log_once(
            reason, "ignored in ZooKeeper's folder %s as %s: %s; others are only counted", self._folder, reason, what
        )

    # -- telling

    def _publish(self) -> None:
        """Tell the listeners if the members have changed; come back when one that is only heard may be gone."""
        now_ns = self._clock.monotonic_ns()
        names = self._presence.names(now_ns)
        end_ns = self._presence.next_end_ns(now_ns)
        self._cancel(self._publish)
        if end_ns is not None:
            self._at(end_ns, self._publish)
        if names != self.names:
            _log_changes(self.names, names)
            self.names = names
            for changed in self._listeners:
                changed()

    def _log_once(self, reason: str, text: str, *values: object) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            log.warning(text, *values)

    # -- timers, one for each callback

    def _at(self, at_ns: int, call: Callable[[], None]) -> None:
        self._later(max(0, at_ns - self._clock.monotonic_ns()) / NS_PER_S, call)

    def _later(self, wait_s: float, call: Callable[[], None]) -> None:
        self._cancel(call)
        self._timers[call] = self._loop.call_later(wait_s, call)

    def _cancel(self, call: Callable[[], None]) -> None:
        timer = self._timers.pop(call, None)
        if timer is not None:
            timer.cancel()


def _log_changes(before: Iterable[str], now: Iterable[str]) -> None:
    joined, left = sorted(set(now) - set(before)), sorted(set(before) - set(now))
    if joined:
        log.info("members of quotas since now: %s", ", ".join(joined))
    if left:
        log.info("no members of quotas any more: %s", ", ".join(left))
