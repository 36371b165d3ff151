# SPDX-License-Identifier: Apache-2.0
"""Walks over what waits: in turns of the loop, bounded, one at a time."""

from __future__ import annotations

import asyncio
from itertools import repeat
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import NotFound
from penstock.core.names import NamespaceName
from penstock.governance.budget import Row
from penstock.governance.holds import Hold, HoldKind
from penstock.net.listing_memory import TopicListLimits, TopicListMemoryLimiter
from penstock.stats.explanations import ROWS_PER_TURN, Explanations, Question, Seen
from penstock.stats.findings import FINDINGS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.stats.explanations import Walk

NAMESPACE = NamespaceName.parse("public/default")
WAITS = Hold(kind=HoldKind.NO_PERMITS, what="a consumer")


class Walked(Explanations):
    """Walks over what a test gives."""

    def __init__(self, *rows: tuple[Seen, Iterable[Hold]], used_only: bool = False) -> None:
        clock = ManualClock()
        listings = TopicListMemoryLimiter(TopicListLimits(), clock=clock, loop=asyncio.get_running_loop())
        self.row = Row("sessions", 0)
        super().__init__(clock, listings, [self.row], used_only=used_only)
        self._rows = rows
        self.looked = self.inside = self.inside_max = 0

    async def _walk(self, question: Question) -> Walk:
        self.inside += 1
        self.inside_max = max(self.inside, self.inside_max)
        try:
            for row in self._rows:
                self.looked += 1
                yield row
        finally:
            self.inside -= 1


async def test_what_was_looked_at_and_what_waits_is_counted() -> None:
    why = Walked((Seen.PRODUCER, ()), (Seen.SUBSCRIPTION, (WAITS,)), (Seen.OTHER, ()), (Seen.SUBSCRIPTION, (WAITS,)))
    answer = await why.of_namespace(NAMESPACE)
    assert (answer["producers"], answer["subscriptions"], len(answer["findings"])) == (1, 2, 2)
    why.row.try_charge(1)
    assert await why.counts() == {HoldKind.NO_PERMITS: 2, HoldKind.MEMORY_ROW: 1}


async def test_a_walk_ends_when_there_is_more_to_tell_than_is_told() -> None:
    why = Walked(*[(Seen.SUBSCRIPTION, (WAITS,))] * (3 * FINDINGS_MAX))
    answer = await why.of_namespace(NAMESPACE)
    assert (len(answer["findings"]), answer["more"], why.looked) == (FINDINGS_MAX, True, FINDINGS_MAX + 1)
    assert why.inside == 0


async def test_a_subscription_with_any_number_of_consumers_ends_a_walk_too() -> None:
    why = Walked((Seen.SUBSCRIPTION, repeat(WAITS)))
    assert (await why.of_namespace(NAMESPACE))["more"]
    assert await Walked((Seen.SUBSCRIPTION, repeat(WAITS))).counts() == {HoldKind.NO_PERMITS: FINDINGS_MAX + 1}


async def test_others_have_their_turns_during_a_walk_and_a_second_walk_waits() -> None:
    why, turns = Walked(*[(Seen.OTHER, ())] * (10 * ROWS_PER_TURN)), 0
    walks = asyncio.gather(*[why.counts() for _ in range(3)])
    while not walks.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 30
    assert why.inside_max == 1


async def test_a_proxy_does_not_find_what_none_of_its_clients_uses() -> None:
    with pytest.raises(NotFound, match="no client of this proxy uses namespace public/default"):
        await Walked((Seen.OTHER, ()), used_only=True).of_namespace(NAMESPACE)
    assert (await Walked((Seen.CLIENT, ()), used_only=True).of_namespace(NAMESPACE))["findings"] == []
