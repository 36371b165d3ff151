# SPDX-License-Identifier: Apache-2.0
"""One play: a limiter, a place and a seed, which decide everything that happens in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from penstock.testing.loop import VirtualLoop
from tests.evade.limiters import LIMITERS
from tests.evade.moves import Moves, chosen
from tests.evade.world import Place, world

if TYPE_CHECKING:
    from tests.evade.counting import Verdict
    from tests.evade.rows import Limiter


@dataclass(frozen=True)
class Played:
    """What a play did."""

    limiter: str
    place: Place
    seed: int
    moves: Moves
    verdict: Verdict

    def __str__(self) -> str:
        return (
            f"{self.limiter}, {self.place}: {self.verdict}\n"
            f"    moves: {self.moves}\n"
            f"    repeat it with: make evade LIMITER={self.limiter} SEED={self.seed}{self.place.flags}"
        )


def play(limiter: str, seed: int, place: Place | None = None, moves: Moves | None = None) -> Played:
    """Play once; `moves` are chosen by the seed if they are not given."""
    row, place = LIMITERS[limiter], place or Place()
    chance = Random(f"{limiter} {seed}")
    chosen_moves = chosen(chance, row.tries)
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)) as runner:
        verdict = runner.run(_play(row, place, moves or chosen_moves, chance))
    return Played(limiter, place, seed, moves or chosen_moves, verdict)


async def _play(row: Limiter, place: Place, moves: Moves, chance: Random) -> Verdict:
    async with world(place, **row.settings) as made:
        return await row.play(made, moves, chance)
