# SPDX-License-Identifier: Apache-2.0
"""A stop whose steps share one deadline, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from penstock.net.stopping import SAYING_S, Stopping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

LIMIT_S = 9.5


def lasting(seconds: float, ended: list[str], name: str) -> Callable[[float], Awaitable[None]]:
    async def step(_limit_s: float) -> None:
        await asyncio.sleep(seconds)
        ended.append(name)

    return step


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "penstock.net.stopping"]


async def test_steps_run_at_once_and_the_longest_decides(caplog: pytest.LogCaptureFixture) -> None:
    loop, ended = asyncio.get_running_loop(), list[str]()
    stopping, began_s = Stopping(loop, LIMIT_S), loop.time()
    for seconds in (1.0, 2.0, 3.0):
        stopping.add(f"{seconds:g}", lasting(seconds, ended, f"{seconds:g}"))
    await stopping.finish()
    assert (ended, loop.time() - began_s) == (["1", "2", "3"], 3.0)
    assert not lines(caplog)


async def test_the_time_before_counts_and_all_that_was_cut_off_is_said_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, ended = asyncio.get_running_loop(), list[str]()
    stopping, began_s = Stopping(loop, LIMIT_S), loop.time()
    stopping.begin()
    await asyncio.sleep(9)
    stopping.cut_off("3 of 4 connections were not drained")
    stopping.add("the first", lasting(5, ended, "first"))
    stopping.add("the second", lasting(0.4, ended, "second"))
    await stopping.finish()
    assert ended == ["second"]
    assert round(loop.time() - began_s, 6) == LIMIT_S
    assert lines(caplog) == ["stopping has cut off, after 9.5 s: 3 of 4 connections were not drained; the first"]


async def test_a_step_that_does_not_react_to_being_cancelled_is_not_waited_for() -> None:
    loop, lets_go = asyncio.get_running_loop(), asyncio.Event()
    stopping, began_s = Stopping(loop, LIMIT_S), loop.time()

    async def stubborn(_limit_s: float) -> None:
        while not lets_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await lets_go.wait()

    stopping.add("it", stubborn)
    await stopping.finish()
    assert loop.time() - began_s == LIMIT_S
    lets_go.set()


async def test_steps_are_told_what_is_left_but_for_a_moment_to_say_what_they_have_lost() -> None:
    loop, told = asyncio.get_running_loop(), list[float]()
    stopping = Stopping(loop, LIMIT_S)

    async def step(limit_s: float) -> None:
        told.append(round(limit_s, 6))
        await asyncio.sleep(limit_s)
        stopping.cut_off("what it has lost")

    stopping.begin()
    await asyncio.sleep(4)
    stopping.add("it", step)
    await stopping.finish()
    assert told == [LIMIT_S - 4 - SAYING_S]


async def test_nothing_is_left_when_the_time_was_over_before(caplog: pytest.LogCaptureFixture) -> None:
    loop, ended = asyncio.get_running_loop(), list[str]()
    stopping = Stopping(loop, 0.0)
    stopping.add("at once", lasting(0, ended, "at once"))
    stopping.add("late", lasting(1, ended, "late"))
    began_s = loop.time()
    await stopping.finish()
    assert loop.time() == began_s
    assert "late" in lines(caplog)[0]
    assert stopping.left_s == 0


async def test_an_error_of_one_step_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    ended = list[str]()
    stopping = Stopping(asyncio.get_running_loop(), LIMIT_S)

    async def failing(_limit_s: float) -> None:
        raise OSError("it broke")

    stopping.add("the one that fails", failing)
    stopping.add("the other", lasting(1, ended, "other"))
    with caplog.at_level(logging.ERROR):
        await stopping.finish()
    assert ended == ["other"]
    assert lines(caplog) == ["an error while stopping: the one that fails"]


async def test_steps_run_once_also_if_it_is_finished_twice() -> None:
    ended = list[str]()
    stopping = Stopping(asyncio.get_running_loop(), LIMIT_S)
    stopping.add("it", lasting(0, ended, "it"))
    await stopping.finish()
    await stopping.finish()
    assert ended == ["it"]
