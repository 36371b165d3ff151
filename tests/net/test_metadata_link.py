# SPDX-License-Identifier: Apache-2.0
"""Brokers that follow the metadata of another process, which is killed again and again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import ChangedMeanwhile, MetadataFailed
from penstock.net.metadata_link import follow
from penstock.storage.shared_changes import Put
from tests.net import metadata_writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from penstock.core.errors import PenstockError
    from penstock.storage.shared_follower import Follower

LIVES = 4
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
