# SPDX-License-Identifier: Apache-2.0
"""Requests that wait, told by plain objects: each is answered once, charged while it waits, and given back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from penstock.core.errors import ServiceNotReady, WireCode
from penstock.core.units import KIB, MIB
from penstock.governance.budget import Row
from penstock.governance.holds import HoldKind
from penstock.governance.memory_pool import WAITING_BYTES, CommandMemory, price
from penstock.net.keep_alive import Requests
from penstock.wire import codec

if TYPE_CHECKING:
    from penstock.net.connection import Connection


class Line:
    """A connection, as far as requests look at it."""

    peer = "there:1"

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.muted: set[HoldKind] = set()

    def write_frame(self, frame: bytes) -> None:
        self.frames.append(frame)

    def mute(self, reason: HoldKind) -> None:
        self.muted.add(reason)

    def unmute(self, reason: HoldKind) -> None:
        self.muted.discard(reason)


class Desk:
    """The requests of one client, and the memory that they are charged to."""

    def __init__(self, *, commands_bytes: int = MIB, sessions_bytes: int = MIB) -> None:
        self.line = Line()
        self.commands = CommandMemory(commands_bytes)
        self.sessions = Row("sessions", sessions_bytes)
        self.requests = Requests(
            cast("Connection", self.line),
            loop=asyncio.get_running_loop(),
            commands_memory=self.commands,
            sessions_memory=self.sessions,
        )


async def test_a_request_is_charged_for_as_long_as_it_waits() -> None:
    desk, ready = Desk(), asyncio.Event()
    desk.requests.command_bytes = 100

    async def answer() -> None:
        await ready.wait()

    task = desk.requests.start(1, answer)
    assert desk.requests.waiting_bytes == desk.commands.used_bytes == price(100)
    ready.set()
    await task
    await asyncio.sleep(0)
    assert desk.requests.waiting_bytes == desk.commands.used_bytes == 0


async def test_what_a_request_raises_is_its_answer_and_an_error_of_ours_says_no_more() -> None:
    desk = Desk()

    async def refuse() -> None:
        raise ServiceNotReady("not now")

    async def fail() -> None:
        raise ZeroDivisionError("secret")

    await asyncio.gather(desk.requests.start(1, refuse), desk.requests.start(2, fail))
    assert desk.line.frames == [
        codec.error(1, WireCode.SERVICE_NOT_READY, "not now"),
        codec.error(2, WireCode.UNKNOWN_ERROR, "internal error; the broker's log has it"),
    ]


async def test_a_client_is_not_read_while_too_much_of_it_waits() -> None:
    desk = Desk(commands_bytes=2 * WAITING_BYTES)
    first = desk.requests.charge()
    assert not desk.line.muted
    second = desk.requests.charge()
    assert desk.line.muted == {HoldKind.COMMANDS}
    desk.requests.charge_back(first)
    assert not desk.line.muted
    desk.requests.charge_back(second)


async def test_a_large_command_is_refused_while_another_takes_what_there_is() -> None:
    desk = Desk()
    desk.requests.check_large(128 * KIB)
    desk.requests.command_bytes = 128 * KIB
    charged = desk.requests.charge()
    with pytest.raises(ServiceNotReady, match="131,072 bytes is refused"):
        desk.requests.check_large(128 * KIB)
    desk.requests.charge_back(charged)
    desk.requests.check_large(128 * KIB)


async def test_a_long_wait_is_charged_to_the_memory_of_those_it_waits_for() -> None:
    desk, ready = Desk(), asyncio.Event()

    async def wait() -> None:
        with desk.requests.waiting_long("producer 'p'"):
            await ready.wait()

    task = desk.requests.start(1, wait)
    await asyncio.sleep(0)
    assert (desk.commands.used_bytes, desk.sessions.used_bytes) == (0, WAITING_BYTES)
    ready.set()
    await task
    assert (desk.commands.used_bytes, desk.sessions.used_bytes) == (0, 0)


async def test_a_long_wait_is_refused_when_that_memory_is_used_up() -> None:
    desk = Desk(sessions_bytes=WAITING_BYTES - 1)

    async def wait() -> None:
        with desk.requests.waiting_long("producer 'p'"):
            raise AssertionError("it waits")

    await desk.requests.start(7, wait)
    (frame,) = desk.line.frames
    assert b"producer 'p' that waits takes 6,144 bytes" in frame
    assert desk.sessions.used_bytes == 0


async def test_an_id_is_created_once_at_a_time_and_again_when_that_has_ended() -> None:
    desk, ready, made = Desk(), asyncio.Event(), []

    async def make() -> None:
        await ready.wait()
        made.append(1)

    first = asyncio.ensure_future(desk.requests.create_once(("producer", 1), make))
    await asyncio.sleep(0)
    with pytest.raises(ServiceNotReady, match="producer 1 is still being created"):
        await desk.requests.create_once(("producer", 1), make)
    ready.set()
    await first
    await desk.requests.create_once(("producer", 1), make)
    assert len(made) == 2


async def test_all_that_waits_is_cancelled_and_given_back_when_the_client_goes() -> None:
    desk = Desk()

    async def wait() -> None:
        await asyncio.Event().wait()

    tasks = [desk.requests.start(number, wait) for number in range(3)]
    await asyncio.sleep(0)
    desk.requests.close()
    assert desk.commands.used_bytes == 0
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert (desk.line.frames, desk.commands.used_bytes) == ([], 0)
