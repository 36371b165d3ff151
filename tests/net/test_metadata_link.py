# SPDX-License-Identifier: Apache-2.0
"""Brokers that follow the metadata of another process, which is killed again and again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest

from penstock.core.errors import ChangedMeanwhile, MetadataFailed
from penstock.core.units import KIB
from penstock.net.metadata_link import BEHIND_S, UNSENT_BYTES, UNSENT_BYTES_MAX, follow, serve
from penstock.storage.directory import open_data_directory
from penstock.storage.shared_changes import Put
from penstock.storage.shared_writer import Writer, encoded
from penstock.testing.vfs import sqlite_on
from tests.broker.cluster import socket_pair
from tests.net import metadata_writer
from tests.net.harness import disk_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from penstock.core.errors import PenstockError
    from penstock.storage.shared_writer import Follower
    from penstock.testing.loop import VirtualLoop

LIVES = 4
# The properties of a namespace may be so large.
LARGE_BYTES = 256 * KIB
BROKERS = 2


@contextlib.asynccontextmanager
async def writing(path: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], list[Follower]]]:
    """A process that writes, and followers of it."""
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(BROKERS)]
        for near, _ in pairs:
            stack.callback(near.close)
        descriptors = [far.fileno() for _, far in pairs]
        command = [sys.executable, "-m", metadata_writer.__name__, str(path), *map(str, descriptors)]
        process = subprocess.Popen(command, pass_fds=descriptors, stderr=subprocess.DEVNULL)
        stack.enter_context(process)
        stack.callback(process.kill)
        for _, far in pairs:
            far.close()
        followers = []
        for number, (near, _) in enumerate(pairs):
            follower, end = await follow(number, near)
            stack.callback(end)
            followers.append(follower)
        yield process, followers


async def add(follower: Follower) -> None:
    """Add one to the counter, however often another broker is faster."""
    while True:
        found: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None, found: asyncio.Future[None] = found) -> None:
            if error is None:
                found.set_result(None)
            else:
                found.set_exception(error)

        before = follower.view.documents("counter").get("n")
        value = {"n": (before or {"n": 0})["n"] + 1}
        follower.submit(Put("counter", "n", value, before, conditional=True), done)
        with contextlib.suppress(ChangedMeanwhile):
            return await found


@pytest.mark.real
async def test_what_a_killed_writer_has_answered_is_there_and_followers_hear_of_its_end(tmp_path: Path) -> None:
    chance, answered, unknown = random.Random(1), 0, 0

    async def adding(follower: Follower) -> None:
        nonlocal answered, unknown
        while True:
            try:
                await add(follower)
            except MetadataFailed:
                unknown += 1
                return
            answered += 1

    for _ in range(LIVES):
        async with writing(tmp_path) as (process, followers):
            counts = {(follower.view.documents("counter").get("n") or {"n": 0})["n"] for follower in followers}
            assert len(counts) == 1
            assert answered <= counts.copy().pop() <= answered + unknown
            answered, unknown = counts.pop(), 0
            wanted = answered + chance.randrange(1, 40)
            running = [asyncio.ensure_future(adding(follower)) for follower in followers for _ in range(2)]
            while answered < wanted:
                await asyncio.wait(running, timeout=0.001)
            process.kill()
            await asyncio.gather(*running)
            for follower in followers:
                assert follower.failed is not None
                with pytest.raises(MetadataFailed, match="is gone"):
                    await add(follower)


@pytest.mark.real
async def test_a_change_is_in_the_view_of_every_broker_soon_after_it_is_answered(tmp_path: Path) -> None:
    heard: list[Callable[[], None]] = []
    async with writing(tmp_path) as (_, followers):
        followers[1].listen(lambda _rows: heard[-1]())
        for count in range(1, 21):
            seen = asyncio.Event()
            heard.append(seen.set)
            await add(followers[0])
            await seen.wait()
            assert followers[1].view.documents("counter")["n"] == {"n": count}


@pytest.mark.real
async def test_a_broker_whose_writer_cannot_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "meta.sqlite").write_bytes(b"no database" * 1_000)
    (tmp_path / "FORMAT").write_text("penstock 2\n")
    with pytest.raises(MetadataFailed, match="the process that writes the metadata is gone"):
        async with writing(tmp_path):
            pass


async def test_what_waits_for_a_broker_that_reads_nothing_is_bounded_and_the_others_go_on(tmp_path: Path) -> None:
    """A tenant's admin writes large documents while a broker is frozen."""
    loop, written = cast("VirtualLoop", asyncio.get_running_loop()), 0
    disk = disk_of(loop)
    with sqlite_on(disk) as vfs:
        data = open_data_directory(tmp_path / "data", disk, brokers=2)

        def post(call: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(call)

        writer = Writer.open(data, post, disk, brokers=2, exclusive=True, vfs=vfs)
        links = [socket_pair(loop) for _ in range(2)]
        ends = [await serve(writer, near) for near, _ in links]
        follower, end = await follow(0, links[0][1])
        frozen = links[1][1]
        await loop.sock_sendall(frozen, encoded("begin"))
        for number in range(4 * UNSENT_BYTES_MAX // LARGE_BYTES):
            done = loop.create_future()
            follower.submit(Put("note", f"{number % 8}", {"text": "x" * LARGE_BYTES}), done.set_result)
            assert await done is None
            written += LARGE_BYTES
        received = 0
        while piece := await loop.sock_recv(frozen, 1_000_000):
            received += len(piece)
        assert received < UNSENT_BYTES_MAX + LARGE_BYTES < written, "it was cut off"
        assert follower.view.documents("note").keys() == {str(number) for number in range(8)}
        for each in (end, *ends):
            each()
        writer.close()
        await loop.quiet()


async def test_a_broker_that_is_behind_for_long_is_cut_off_and_takes_a_snapshot_when_it_returns(tmp_path: Path) -> None:
    loop = cast("VirtualLoop", asyncio.get_running_loop())
    disk = disk_of(loop)
    with sqlite_on(disk) as vfs:
        data = open_data_directory(tmp_path / "data", disk, brokers=1)

        def post(call: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(call)

        writer = Writer.open(data, post, disk, brokers=1, exclusive=True, vfs=vfs)
        near, far = socket_pair(loop)
        ends = [await serve(writer, near)]
        await loop.sock_sendall(far, encoded("begin"))
        for number in range(2 * UNSENT_BYTES // LARGE_BYTES):
            await loop.sock_sendall(
                far, encoded("change", number, "Put", "note", str(number), {"t": "x" * LARGE_BYTES})
            )
        await asyncio.sleep(BEHIND_S - 1)
        assert writer.failed is None
        await asyncio.sleep(2)
        while await loop.sock_recv(far, 1_000_000):
            pass  # What the kernel held; then the end.
        near, far = socket_pair(loop)
        ends.append(await serve(writer, near))
        follower, end = await follow(0, far)
        assert len(follower.view.documents("note")) == 2 * UNSENT_BYTES // LARGE_BYTES
        for each in (end, *ends):
            each()
        writer.close()
        await loop.quiet()
