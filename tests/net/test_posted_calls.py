# SPDX-License-Identifier: Apache-2.0
"""Calls of other threads: in order, on the loop, with the flushes that they ask for."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.net.posted_calls import FOLLOWING_MAX, FOLLOWING_S, PostedCalls

pytestmark = pytest.mark.real


async def posted_by_threads(posted: PostedCalls, count: int) -> list[tuple[int, int]]:
    """Post `count` calls from each of three threads; return them in the order in which they were made."""
    made: list[tuple[int, int]] = []
    finished = asyncio.Event()

    def make(one: tuple[int, int]) -> None:
        made.append(one)
        if len(made) == 3 * count:
            finished.set()

    def post(thread: int) -> None:
        for row in range(count):
            posted.post(lambda one=(thread, row): make(one))  # type: ignore[misc]

    threads = [threading.Thread(target=post, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    await finished.wait()
    for thread in threads:
        thread.join()
    return made


async def test_calls_of_a_thread_are_all_made_in_order() -> None:
    posted = PostedCalls(asyncio.get_running_loop())
    made = await posted_by_threads(posted, 500)
    for thread in range(3):
        assert [row for one, row in made if one == thread] == list(range(500))
    posted.close()


async def test_the_loop_is_woken_once_for_calls_that_came_together() -> None:
    woken: list[Any] = []
    posted = PostedCalls(asyncio.get_running_loop(), woken.append)
    made: list[int] = []
    for row in range(3):
        posted.post(lambda row=row: made.append(row))  # type: ignore[misc]
    assert (len(woken), made) == (1, [])
    woken[0]()
    assert made == [0, 1, 2]
    posted.post(lambda: made.append(3))
    assert len(woken) == 2


async def test_what_calls_queue_is_flushed_after_all_of_them_and_before_the_loop_goes_on() -> None:
    woken: list[Any] = []
    posted = PostedCalls(asyncio.get_running_loop(), woken.append)
    made: list[str] = []

    def answer(name: str) -> None:
        made.append(name)
        posted.flush_soon(lambda: made.append(f"flush {name}"))

    posted.post(lambda: answer("one"))
    posted.post(lambda: answer("two"))
    woken[0]()
    assert made == ["one", "two", "flush one", "flush two"]


async def test_a_flush_outside_of_posted_calls_or_in_a_flush_is_left_to_the_next_turn() -> None:
    woken: list[Any] = []
    posted = PostedCalls(asyncio.get_running_loop(), woken.append)
    made: list[str] = []
    posted.flush_soon(lambda: made.append("outside"))
    posted.post(lambda: posted.flush_soon(lambda: posted.flush_soon(lambda: made.append("again"))))
    woken[0]()
    assert made == []
    await asyncio.sleep(0)
    assert made == ["outside", "again"]


async def test_calls_that_posted_ones_ask_for_follow_them_before_the_flush_which_includes_theirs() -> None:
    woken: list[Any] = []
    posted = PostedCalls(asyncio.get_running_loop(), woken.append)
    made: list[str] = []

    def dispatch() -> None:
        made.append("dispatch")
        posted.flush_soon(lambda: made.append("flush"))
        posted.call_soon(lambda: made.append("next turn"))

    posted.post(lambda: posted.call_soon(dispatch))
    posted.post(lambda: made.append("second"))
    woken[0]()
    assert made == ["second", "dispatch", "flush"]
    await asyncio.sleep(0)
    assert made == ["second", "dispatch", "flush", "next turn"]


async def test_only_a_few_calls_follow_posted_ones_in_the_same_turn() -> None:
    woken: list[Any] = []
    posted = PostedCalls(asyncio.get_running_loop(), woken.append)
    made: list[int] = []
    for row in range(FOLLOWING_MAX + 3):
        posted.post(lambda row=row: posted.call_soon(lambda: made.append(row)))  # type: ignore[misc]
    woken[0]()
    assert made == list(range(FOLLOWING_MAX))
    await asyncio.sleep(0)
    assert made == list(range(FOLLOWING_MAX + 3))


def test_no_call_follows_in_a_turn_that_has_taken_long() -> None:
    now_s, made = [0.0], list[str]()
    woken: list[Any] = []
    later: list[Any] = []
    loop = SimpleNamespace(time=lambda: now_s[0], call_soon=later.append)
    posted = PostedCalls(cast("asyncio.AbstractEventLoop", loop), woken.append)

    def slow() -> None:
        now_s[0] += FOLLOWING_S
        made.append("slow")

    posted.post(lambda: posted.call_soon(slow))
    posted.post(lambda: posted.call_soon(lambda: made.append("late")))
    woken[0]()
    assert made == ["slow"]
    later.pop()()
    assert made == ["slow", "late"]


async def test_a_call_that_posts_another_leaves_it_to_the_next_turn() -> None:
    woken: list[Any] = []
    posted = PostedCalls(asyncio.get_running_loop(), woken.append)
    made: list[str] = []
    posted.post(lambda: posted.post(lambda: made.append("second")))
    woken[0]()
    assert (made, len(woken)) == ([], 2)
    woken[1]()
    assert made == ["second"]


async def test_an_error_in_a_call_is_told_to_the_loop_and_keeps_no_other_from_being_made() -> None:
    loop = asyncio.get_running_loop()
    told: list[BaseException] = []
    loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
    posted = PostedCalls(loop)
    made: list[str] = []

    def fail() -> None:
        posted.flush_soon(lambda: made.append("flush"))
        raise ValueError("a bug")

    posted.post(fail)
    posted.post(lambda: made.append("call"))
    posted.close()
    assert made == ["call", "flush"]
    assert [str(error) for error in told] == ["a bug"]


async def test_closing_makes_the_calls_that_were_posted_and_drops_later_ones() -> None:
    posted = PostedCalls(asyncio.get_running_loop())
    made: list[str] = []
    before = len(list(Path("/proc/self/fd").iterdir()))
    posted.post(lambda: made.append("before"))
    posted.close()
    assert made == ["before"]
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1
    posted.post(lambda: made.append("after"))
    await asyncio.sleep(0)
    assert made == ["before"]
