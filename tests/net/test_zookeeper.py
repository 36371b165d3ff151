# SPDX-License-Identifier: Apache-2.0
"""Membership by registration in ZooKeeper, with a real server."""
# ruff: noqa: SLF001 -- to break what has no other handle: a session, a connection, kazoo's threads

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import READ_ACL_UNSAFE

from penstock.core.member_record import MemberRecord
from penstock.core.setting import ZooKeeperUrl
from penstock.net import zookeeper, zookeeper_session
from penstock.net.clock import SystemClock
from penstock.net.zookeeper import ZooKeeperMembers
from tests.zookeeper_server import TIMEOUT_MS, running_zookeeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.zookeeper_server import ZooKeeperServer

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("zookeeper")]

WITHIN_S = 30.0
FOREVER_NS = 1 << 62
CLOCK = SystemClock()
_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


class Place:
    """A path of the test's own, the members there, and somebody who writes there with ZooKeeper's own tools."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self.server = server
        self.path = f"/test-{next(_numbers)}"
        self.members: list[ZooKeeperMembers] = []
        self.processes: list[subprocess.Popen[str]] = []
        self._stranger: KazooClient | None = None

    @property
    def url(self) -> str:
        return f"zk:127.0.0.1:{self.server.port}{self.path}"

    def started(
        self, name: str, *, instance: str = "", start_ms: int = 1, timeout_ms: int = TIMEOUT_MS, port: int = 0
    ) -> ZooKeeperMembers:
        """A member, or one to be."""
        members = ZooKeeperMembers(
            ZooKeeperUrl.parse(f"zk:127.0.0.1:{port or self.server.port}{self.path}"),
            "brokers",
            MemberRecord(name=name, instance=instance or f"where {name} runs", start_ms=start_ms, host="here", pid=7),
            timeout_ms=timeout_ms,
            clock=CLOCK,
            loop=asyncio.get_running_loop(),
            chance=random.Random(1),
        )
        self.members.append(members)
        members.start()
        return members

    def process(self, name: str, instance: str = "a process") -> subprocess.Popen[str]:
        """A member in a process of its own."""
        arguments = [sys.executable, "-m", "tests.net.zookeeper_member", self.url, name, instance, str(TIMEOUT_MS)]
        process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    async def stranger(self) -> KazooClient:
        if self._stranger is None:
            self._stranger = KazooClient(f"127.0.0.1:{self.server.port}")
            await asyncio.to_thread(self._stranger.start)
        return self._stranger

    async def writes(self, name: str, data: bytes, *, ephemeral: bool = True) -> None:
        client = await self.stranger()
        await asyncio.to_thread(client.create, self.node(name), data, ephemeral=ephemeral, makepath=True)

    def node(self, name: str) -> str:
        return f"{self.path}/brokers/{name}"

    async def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for members in self.members:
            await members.close()
        if self._stranger is not None:
            await asyncio.to_thread(self._stranger.stop)
            self._stranger.close()


@pytest_asyncio.fixture
async def place(server: ZooKeeperServer) -> AsyncIterator[Place]:
    place = Place(server)
    try:
        yield place
    finally:
        await place.close()


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "that did not happen in time"
        await asyncio.sleep(0.005)


async def agree(members: list[ZooKeeperMembers], *names: str) -> None:
    """Wait until all of them know these members."""
    await until(lambda: all(one.names == set(names) for one in members))


async def told(process: subprocess.Popen[str], line: str) -> None:
    """Wait until a member's process prints this."""
    assert process.stdout is not None
    while (read := await asyncio.to_thread(process.stdout.readline)) != f"{line}\n":
        assert read, "the process has ended"


def changes(members: ZooKeeperMembers) -> list[frozenset[str]]:
    """What the members are after each change from now on."""
    seen: list[frozenset[str]] = []
    members.listen(lambda: seen.append(members.names))
    return seen


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# -- joining and leaving ----------------------------------------------------------------------------------------------


async def test_those_that_register_are_members_for_all_and_leave_when_they_close(place: Place) -> None:
    one, two, three = (place.started(name) for name in ("a", "b", "c"))
    await agree([one, two, three], "a", "b", "c")
    assert one.registration.problem is None
    assert one.registration.registered_ms is not None
    assert one.registration.members == 3
    await two.close()
    await agree([one, three], "a", "c")


async def test_a_killed_process_is_no_member_after_the_timeout_of_its_session(place: Place) -> None:
    one = place.started("a")
    process = place.process("b")
    await agree([one], "a", "b")
    begin = time.monotonic()
    process.send_signal(signal.SIGKILL)
    await agree([one], "a")
    assert time.monotonic() - begin > TIMEOUT_MS / 1_000 / 4, "it was told of the end, not of the silence"


async def test_a_stopped_process_is_no_member_and_registers_again_when_it_goes_on(place: Place) -> None:
    one = place.started("a")
    process = place.process("b")
    await told(process, "a b")
    await agree([one], "a", "b")
    process.send_signal(signal.SIGSTOP)
    await agree([one], "a")
    process.send_signal(signal.SIGCONT)
    await told(process, "a")  # It notices that it was no member.
    await told(process, "a b")
    await agree([one], "a", "b")


async def test_a_hundred_members_are_found_and_one_that_leaves_is_missed(place: Place) -> None:
    client = await place.stranger()
    names = [f"m-{number:03d}" for number in range(100)]
    for name in names[:50]:
        data = MemberRecord(name=name, instance=name, start_ms=1).encoded()
        client.create_async(place.node(name), data, ephemeral=True, makepath=True)
    one = place.started("a")
    await agree([one], "a", *names[:50])
    listings = 0
    list_all = one._list

    async def counted() -> list[str]:
        nonlocal listings
        listings += 1
        return await list_all()

    one._list = counted  # type: ignore[method-assign]
    for name in names[50:]:
        data = MemberRecord(name=name, instance=name, start_ms=1).encoded()
        client.create_async(place.node(name), data, ephemeral=True, makepath=True)
    await agree([one], "a", *names)
    assert listings <= 10, "one listing for each that joins"
    await asyncio.to_thread(client.delete, place.node("m-077"))
    await agree([one], "a", *(set(names) - {"m-077"}))


# -- losing ZooKeeper -------------------------------------------------------------------------------------------------


async def test_a_process_whose_session_has_expired_registers_again(place: Place, server: ZooKeeperServer) -> None:
    one, two = place.started("a"), place.started("b")
    await agree([one, two], "a", "b")
    seen = changes(two)
    # A session that somebody else closes has expired for its owner.
    thief = KazooClient(f"127.0.0.1:{server.port}", client_id=one._session._client.client_id)
    await asyncio.to_thread(thief.start)
    await asyncio.to_thread(thief.stop)
    thief.close()
    await until(lambda: one.registration.losses == 1)
    await agree([one, two], "a", "b")
    assert seen[0] == {"b"}
    assert one.registration.problem is None


async def test_nobody_leaves_while_zookeeper_is_away_and_reports_are_heard(
    place: Place, server: ZooKeeperServer
) -> None:
    both = [place.started("a"), place.started("b")]
    await agree(both, "a", "b")
    for one in both:
        for name in ("a", "b"):
            one.hear(name, FOREVER_NS)
    seen = [changes(one) for one in both]
    server.stop()
    await until(lambda: all(one.registration.losses == 1 for one in both))
    assert "counts as a member while the others hear" in (both[0].registration.problem or "")
    server.start()
    await until(lambda: all(one.registration.problem is None for one in both))
    assert seen == [[], []]


async def test_without_zookeeper_and_reports_a_process_counts_the_others_but_not_itself(
    place: Place, server: ZooKeeperServer
) -> None:
    one, two = place.started("a"), place.started("b")
    await agree([one, two], "a", "b")
    server.stop()
    await agree([one], "b")
    problem = one.registration.problem or ""
    assert "a is not registered" in problem
    assert "Connection refused" in problem
    assert "only its part of the reserve" in problem
    server.start()
    await agree([one, two], "a", "b")


async def test_a_process_registers_again_after_zookeeper_has_lost_its_data(
    place: Place, server: ZooKeeperServer
) -> None:
    # A server refuses sessions that have seen later transactions than its own, and kazoo would come back with its
    # session for ever.
    one, two = place.started("a"), place.started("b")
    await agree([one, two], "a", "b")
    server.stop()
    await until(lambda: one.registration.losses == 1)
    server.forget()
    server.start()
    await agree([one, two], "a", "b")


async def test_a_process_that_starts_without_zookeeper_registers_when_it_is_there(
    place: Place, server: ZooKeeperServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "WARN_S", 0.3)
    caplog.set_level(logging.INFO)
    server.stop()
    one = place.started("a")
    await until(lambda: "connecting goes on" in caplog.text)
    assert one.names == frozenset()
    assert "ZooKeeper is not reached (Connection dropped: socket connection error: Connection refused)" in caplog.text
    server.start()
    await agree([one], "a")
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


class Relay:
    """Connections to ZooKeeper that can be cut off without a word, as by a firewall."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def start(self) -> Relay:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        await self._open.wait()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers.append(far_writer)
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._open.wait()
                sink.write(data)
        sink.close()


async def test_a_process_cut_off_from_zookeeper_stops_counting_on_itself_before_the_others_do(
    place: Place, server: ZooKeeperServer
) -> None:
    relay = await Relay(server.port).start()
    one, two = place.started("a", port=relay.port), place.started("b")
    await agree([one, two], "a", "b")
    order: list[str] = []
    one.listen(lambda: order.append(f"a sees {' '.join(sorted(one.names))}"))
    two.listen(lambda: order.append(f"b sees {' '.join(sorted(two.names))}"))
    relay.cut()
    await agree([two], "b")
    assert order == ["a sees b", "b sees b"]
    relay.mend()
    await agree([one, two], "a", "b")
    await one.close()
    await relay.close()


async def test_the_timeout_that_counts_is_the_one_that_the_server_has_agreed_to(place: Place) -> None:
    one = place.started("a", timeout_ms=60_000)
    await agree([one], "a")
    await until(lambda: one._session.timeout_ms == 5_000)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_that_ended_by_an_error_of_its_own_is_started_again(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_session, "LAST_PAUSE_S", 0.05)
    one = place.started("a")
    await agree([one], "a")
    connection = one._session._client._connection
    attempt = connection._connect_attempt

    def fail_once(*_: object) -> object:
        connection._connect_attempt = attempt
        raise RuntimeError("a bug of kazoo's")

    connection._connect_attempt = fail_once
    connection._socket.shutdown(2)
    await until(lambda: one.registration.losses == 1)
    await agree([one], "a")
    assert "beginning again" in caplog.text


# -- one name, two processes ------------------------------------------------------------------------------------------


async def test_a_twin_is_kept_out_and_named_until_the_name_is_free(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    first = place.started("a", instance="the first directory")
    await agree([first], "a")
    twin, other = place.started("a", instance="the second directory", start_ms=2), place.started("b")
    await until(lambda: "the first directory" in caplog.text)
    await agree([first, other], "a", "b")
    assert twin.names == {"b"}
    problem = twin.registration.problem or ""
    assert "the name is taken by a (process 7 on here, the first directory)" in problem
    twin.hear("a", FOREVER_NS)
    assert twin.names == {"b"}
    await first.close()
    await agree([twin, other], "a", "b")
    assert twin.registration.problem is None
    assert caplog.text.count("the name is taken by") == 1


async def test_a_restarted_process_does_not_wait_for_the_session_of_the_killed_one(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    other = place.started("b")
    process = place.process("a", instance="one directory")
    await agree([other], "a", "b")
    seen = changes(other)
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    begin = time.monotonic()
    one = place.started("a", instance="one directory", start_ms=CLOCK.wall_ms(), timeout_ms=TIMEOUT_MS)
    await until(lambda: one.registration.registered_ms is not None)
    # The session of the killed process ends later; that changes nothing.
    await asyncio.sleep(max(0, begin + 2 * TIMEOUT_MS / 1_000 - time.monotonic()))
    assert other.names == {"a", "b"}
    assert all(names in ({"b"}, {"a", "b"}) for names in seen)
    assert one.registration.losses == 0
    assert "the name is taken" not in caplog.text


async def test_of_two_processes_that_claim_one_instance_the_later_has_the_name_and_they_do_not_fight(
    place: Place,
) -> None:
    first = place.started("a", instance="a copied machine", start_ms=1)
    await agree([first], "a")
    second = place.started("a", instance="a copied machine", start_ms=2)
    await until(lambda: second.registration.registered_ms is not None)
    await until(lambda: first.registration.problem is not None)
    assert first.names == frozenset()
    registered_ms = second.registration.registered_ms
    await asyncio.sleep(0.5)
    assert second.registration.registered_ms == registered_ms
    assert second.names == {"a"}


# -- strangers --------------------------------------------------------------------------------------------------------


async def test_what_is_no_record_is_ignored_counted_and_logged_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    good = MemberRecord(name="good", instance="i", start_ms=1)
    await place.writes("garbage", b"\x00\xff garbage")
    await place.writes("nested", b"[" * 4_000)
    await place.writes("large", b"x" * 1_000_000)
    await place.writes("false", good.encoded())
    await place.writes("kept", replace(good, name="kept").encoded(), ephemeral=False)
    await place.writes("no name!", good.encoded())
    await place.writes("good", good.encoded())
    one = place.started("a")
    await agree([one], "a", "good")
    assert one.registration.ignored == {"malformed": 4, "too large": 1, "permanent": 1}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 3
    await place.writes("more-garbage", b"{}")
    await until(lambda: one.registration.ignored["malformed"] == 5)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 3


async def test_a_name_that_garbage_had_is_a_members_once_the_garbage_is_gone(place: Place) -> None:
    await place.writes("b", b"garbage")
    one, two = place.started("a"), place.started("b")
    await until(lambda: "no process of penstock has written" in (two.registration.problem or ""))
    await agree([one, two], "a")
    client = await place.stranger()
    await asyncio.to_thread(client.delete, place.node("b"))
    await agree([one, two], "a", "b")


async def test_a_node_that_somebody_deletes_is_created_again_and_nobody_can_change_it(place: Place) -> None:
    one, two = place.started("a"), place.started("b")
    await agree([one, two], "a", "b")
    client = await place.stranger()

    def created() -> int:
        found = client.exists(place.node("a"))
        return found.czxid if found is not None else 0

    first = created()
    client.delete(place.node("a"))
    await until(lambda: created() > first)
    with pytest.raises(NoAuthError):
        await asyncio.to_thread(client.set, place.node("a"), b"garbage")
    data, _ = await asyncio.to_thread(client.get, place.node("a"))
    assert data == one._data
    await agree([one, two], "a", "b")


async def test_a_folder_with_too_many_nodes_leaves_the_members_as_they_are(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = place.started("a"), place.started("b")
    await agree([one, two], "a", "b")
    monkeypatch.setattr(zookeeper, "NODES_MAX", 10)
    monkeypatch.setattr(zookeeper, "CHILDREN_MAX", 20)
    for number in range(15):
        await place.writes(f"0-{number}", b"garbage")
    await until(lambda: one.registration.ignored.get("beyond the limit"))
    assert one.names == {"a", "b"}
    for number in range(10):
        await place.writes(f"1-{number}", b"garbage")
    await until(lambda: "and 20 are the limit" in caplog.text)
    await until(
        lambda: "members are as they were: /test-" in (one.registration.problem or "")
    )  # `two` may log it first.
    assert one.names == {"a", "b"}
    client = await place.stranger()
    await asyncio.to_thread(client.delete, place.node("b"))
    for number in range(10):
        await asyncio.to_thread(client.delete, place.node(f"1-{number}"))
    await agree([one, two], "a", "b")
    await until(lambda: one.registration.problem is None)


async def test_a_process_that_may_not_write_in_the_folder_says_so(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    client = await place.stranger()
    await asyncio.to_thread(client.create, place.path)
    await asyncio.to_thread(client.create, f"{place.path}/brokers", acl=READ_ACL_UNSAFE)
    one = place.started("a")
    await until(lambda: "ZooKeeper: NoAuthError" in (one.registration.problem or ""))
    assert one.names == frozenset()
    await asyncio.sleep(0.3)  # Some attempts later
    assert caplog.text.count("members are not listed") == 1


async def test_watches_do_not_add_up_while_somebody_changes_nodes(place: Place) -> None:
    await place.writes("b", MemberRecord(name="b", instance="i", start_ms=1).encoded())
    one = place.started("a")
    await agree([one], "a", "b")
    client = await place.stranger()
    for number in range(20):
        record = MemberRecord(name="b", instance="i", start_ms=number)
        changed = await asyncio.to_thread(client.set, place.node("b"), record.encoded())
        await until(lambda: one._known["b"].created[1] == changed.mzxid)  # noqa: B023
    inner = one._session._client
    watches = [*inner._child_watchers.values(), *inner._data_watchers.values()]
    assert max(map(len, watches)) == 1
    assert sum(map(len, watches)) <= 3


# -- ending -----------------------------------------------------------------------------------------------------------


async def test_no_thread_and_no_descriptor_is_left(place: Place, server: ZooKeeperServer) -> None:
    threads, before = set(threading.enumerate()), descriptors()
    for _ in range(3):
        one = place.started("a")
        await agree([one], "a")
        assert len(threading.enumerate()) > len(threads)
        await one.close()
    server.stop()
    one = place.started("a")
    await until(lambda: one._session.error)
    await one.close()
    server.start()
    await until(lambda: set(threading.enumerate()) <= threads)
    assert descriptors() <= before


async def test_an_end_does_not_wait_for_a_server_that_does_not_answer(
    place: Place, server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_session, "CLOSE_S", 0.2)
    threads = set(threading.enumerate())
    relay = await Relay(server.port).start()
    relay.cut()
    one = place.started("a", port=relay.port)
    begin = time.monotonic()
    await one.close()
    assert time.monotonic() - begin < TIMEOUT_MS / 1_000
    await relay.close()
    await until(lambda: set(threading.enumerate()) <= threads)
