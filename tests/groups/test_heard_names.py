# SPDX-License-Identifier: Apache-2.0
"""Membership by report: heard lately is a member."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.core.units import NS_PER_S
from penstock.groups.live_exchange import MEMBERS_MAX, HeardNames
from penstock.testing.loop import VirtualClock, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable


def heard() -> tuple[HeardNames, list[frozenset[str]], Callable[[], int]]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    clock = VirtualClock(loop.virtual_time)
    names = HeardNames("me", clock, loop)
    changes: list[frozenset[str]] = []
    names.listen(lambda: changes.append(names.names))
    return names, changes, clock.monotonic_ns


async def test_a_process_is_a_member_of_its_own_from_the_start() -> None:
    names, changes, _ = heard()
    assert names.names == {"me"}
    names.hear("me", 10 * NS_PER_S)
    assert not changes


async def test_a_member_is_lost_when_nothing_is_heard_of_it_any_more() -> None:
    names, changes, now_ns = heard()
    names.hear("other", now_ns() + 3 * NS_PER_S)
    assert changes == [{"me", "other"}]
    await asyncio.sleep(2)
    names.hear("other", now_ns() + 3 * NS_PER_S)
    await asyncio.sleep(2)
    assert names.names == {"me", "other"}
    await asyncio.sleep(1.1)
    assert changes == [{"me", "other"}, {"me"}]


async def test_an_earlier_end_does_not_shorten_a_membership() -> None:
    names, _, now_ns = heard()
    names.hear("other", now_ns() + 3 * NS_PER_S)
    names.hear("other", now_ns() + NS_PER_S)
    await asyncio.sleep(2)
    assert "other" in names.names
    names.close()


async def test_only_so_many_names_are_remembered() -> None:
    names, _, now_ns = heard()
    for number in range(MEMBERS_MAX + 10):
        names.hear(f"proxy-{number}", now_ns() + NS_PER_S)
    assert len(names.names) == MEMBERS_MAX + 1
    names.close()
