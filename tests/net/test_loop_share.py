# SPDX-License-Identifier: Apache-2.0
"""Work in slices: what is left to others, what is done first, who may begin, and who comes too late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import ManualClock
from penstock.core.units import NS_PER_MS, NS_PER_US
from penstock.governance.permits import GatheringTimeout, PermitAcquireQueueFull
from penstock.net.listing_memory import Owner, TopicListLimits, TopicListMemoryLimiter
from penstock.net.loop import CREDIT_NS, OTHERS, PART_NS, SLICE_NS, SLOTS, LoopShare
from tests.net.harness import until

if TYPE_CHECKING:
    from collections.abc import Generator

GREEDY, MODEST = Owner("t", "greedy"), Owner("t", "modest")


def share_of(clock: ManualClock, limits: TopicListLimits | None = None) -> LoopShare:
    """One on this loop."""
    loop = asyncio.get_running_loop()
    return LoopShare(TopicListMemoryLimiter(limits or TopicListLimits(), clock=clock, loop=loop), clock, loop)


def work(clock: ManualClock, steps: int, step_ns: int, spent: list[int], name: int = 0) -> Generator[None, int, int]:
    """So many steps that take so long; says in `spent` whose each was."""
    for _ in range(steps):
        clock.advance(ns=step_ns)
        spent.append(name)
        yield
    return name


async def test_what_is_short_is_done_before_anybody_else_has_a_turn() -> None:
    clock, spent = ManualClock(), list[int]()
    running = share_of(clock).run(work(clock, 2, 100 * NS_PER_US, spent))
    with pytest.raises(StopIteration):
        running.send(None)
    assert spent == [0, 0]


@pytest.mark.real
async def test_while_others_have_work_they_get_three_quarters_of_the_loop_beyond_what_is_short() -> None:
    clock, spent = ManualClock(), list[int]()
    share = share_of(clock)
    slices = 4 * CREDIT_NS // SLICE_NS
    others_ns = 0
    running = asyncio.ensure_future(share.run(work(clock, slices, SLICE_NS, spent)))
    while not running.done():
        clock.advance(ns=200 * NS_PER_US)  # in each round of the loop
        others_ns += 200 * NS_PER_US
        await asyncio.sleep(0)
    assert len(spent) == slices
    assert others_ns >= (OTHERS - 1) * (slices * SLICE_NS - CREDIT_NS)


async def test_an_ordinary_list_waits_for_one_round_of_the_loop_between_slices_whatever_others_do() -> None:
    clock, spent = ManualClock(), list[int]()
    share = share_of(clock)
    slices = CREDIT_NS // SLICE_NS
    rounds = 0
    running = asyncio.ensure_future(share.run(work(clock, slices, SLICE_NS, spent)))
    while not running.done():
        clock.advance(ns=NS_PER_MS)
        rounds += 1
        await asyncio.sleep(0)
    assert rounds <= 3 * slices


async def test_what_was_begun_first_is_done_first_unless_it_is_long() -> None:
    clock, spent = ManualClock(), list[int]()
    share = share_of(clock)
    long = 2 * PART_NS // SLICE_NS
    running = [
        asyncio.ensure_future(share.run(work(clock, steps, SLICE_NS, spent, name)))
        for name, steps in enumerate((5, 5, long, 5))
    ]
    assert await asyncio.gather(*running) == [0, 1, 2, 3]
    order = list(dict.fromkeys(spent))
    assert order == [0, 1, 2, 3]
    assert [spent.index(1), spent.index(2)] == [5, 10]
    assert spent[-1] == 2  # It gave way to the last one.


async def test_work_whose_deadline_comes_is_given_up() -> None:
    clock, spent = ManualClock(), list[int]()
    with pytest.raises(GatheringTimeout, match="not gathered within 10 ms"):
        await share_of(clock).run(work(clock, 1_000, NS_PER_MS, spent), deadline_ns=10 * NS_PER_MS)
    assert len(spent) < 20


async def test_what_the_work_raises_is_raised_and_the_next_goes_on() -> None:
    def failing() -> Generator[None, int, None]:
        yield
        raise ValueError("wrong")

    clock, spent = ManualClock(), list[int]()
    share = share_of(clock)
    both = await asyncio.gather(
        share.run(work(clock, 10, SLICE_NS, spent)), share.run(failing()), return_exceptions=True
    )
    assert both[0] == 0
    assert isinstance(both[1], ValueError)


async def test_who_is_cancelled_does_no_more() -> None:
    clock, spent = ManualClock(), list[int]()
    share = share_of(clock)
    first = asyncio.ensure_future(share.run(work(clock, 1_000, SLICE_NS, spent)))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(share.run(work(clock, 3, SLICE_NS, spent, 1)))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1
    assert len(spent) < 100


# -- slots ------------------------------------------------------------------------------------------------------------


class Gathering:
    """Requests for a slot, each of which keeps it until told."""

    def __init__(self, share: LoopShare) -> None:
        self.share = share
        self.begun: list[tuple[Owner, int]] = []
        self.tasks: dict[tuple[Owner, int], asyncio.Task[None]] = {}
        self._free: dict[tuple[Owner, int], asyncio.Event] = {}

    def ask(self, owner: Owner, number: int, deadline_ns: int | None = None) -> asyncio.Task[None]:
        """One more."""
        key = (owner, number)
        self._free[key] = asyncio.Event()
        self.tasks[key] = asyncio.ensure_future(self._gather(key, deadline_ns))
        return self.tasks[key]

    async def _gather(self, key: tuple[Owner, int], deadline_ns: int | None) -> None:
        async with self.share.slot(key[0], deadline_ns):
            self.begun.append(key)
            await self._free[key].wait()

    async def end_one(self) -> None:
        """The first of those who have begun ends."""
        key = next(key for key in self.begun if not self.tasks[key].done())
        self._free[key].set()
        await self.tasks[key]
        await asyncio.sleep(0)


async def test_a_modest_client_begins_next_whatever_a_greedy_one_has_asked_before() -> None:
    gathering = Gathering(share_of(ManualClock()))
    for number in range(100):
        gathering.ask(GREEDY, number)
    await until(lambda: gathering.share.waiting == 100 - SLOTS)
    gathering.ask(MODEST, 0)
    await until(lambda: gathering.share.waiting == 101 - SLOTS)
    await gathering.end_one()
    await gathering.end_one()
    assert (MODEST, 0) in gathering.begun[: SLOTS + 2]
    while gathering.share.inside:
        await gathering.end_one()
    assert gathering.begun[:SLOTS] == [(GREEDY, number) for number in range(SLOTS)]
    assert len(gathering.begun) == 101


async def test_who_waits_until_the_deadline_is_refused_and_the_slots_stay_as_they_are() -> None:
    share = share_of(ManualClock())
    gathering = Gathering(share)
    for number in range(SLOTS):
        gathering.ask(GREEDY, number)
    late = [gathering.ask(MODEST, number, deadline_ns=NS_PER_MS) for number in range(50)]
    errors = await asyncio.gather(*late, return_exceptions=True)
    assert {type(error) for error in errors} == {GatheringTimeout}
    assert (share.inside, share.waiting) == (SLOTS, 0)
    for _ in range(SLOTS):
        await gathering.end_one()
    assert share.inside == 0


async def test_no_more_wait_than_may_and_the_greedy_one_gives_way() -> None:
    share = share_of(ManualClock(), TopicListLimits(heap_queue_max=3))
    gathering = Gathering(share)
    asked = [gathering.ask(GREEDY, number) for number in range(SLOTS + 3)]
    await until(lambda: share.waiting == 3)
    gathering.ask(MODEST, 0)
    with pytest.raises(PermitAcquireQueueFull, match="all 3 waiting places are taken"):
        await asked[-1]
    while share.inside:
        await gathering.end_one()
    assert (MODEST, 0) in gathering.begun


async def test_a_slot_comes_free_however_whoever_has_it_or_waits_for_it_ends() -> None:
    share = share_of(ManualClock())
    gathering = Gathering(share)
    tasks = [gathering.ask(GREEDY, number) for number in range(3 * SLOTS)]
    await until(lambda: share.waiting == 2 * SLOTS)
    tasks[SLOTS].cancel()  # waits
    tasks[0].cancel()  # has one, which goes to whoever is next
    await asyncio.sleep(0)
    tasks[SLOTS + 1].cancel()  # was given it, and does not know
    await asyncio.wait((tasks[0], tasks[SLOTS], tasks[SLOTS + 1]))
    await until(lambda: share.inside == SLOTS)
    assert share.waiting == 2 * SLOTS - 3
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert (share.inside, share.waiting) == (0, 0)
