# SPDX-License-Identifier: Apache-2.0
"""`make evade`: generated players with a tenant's rights try to get more than a limiter allows.

The oracle is one sentence: what passed for whoever pays <= limit x time + one burst. What passed is counted by the
player's own clients. A play takes 0.15 s of a processor, because its time and its network are virtual.

    python -m tests.evade.run --plays 1000 --write
    python -m tests.evade.run --limiter group-publish-messages --seed 7
    python -m tests.evade.run --limiter topic --brokers 3
    python -m tests.evade.run --proxy --plays 100
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Final

from tests.evade.limiters import LIMITERS
from tests.evade.play import Played, play
from tests.evade.table import Tried, write
from tests.evade.world import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Plays that one process does before it reports.
CHUNK: Final = 25
SHOWN_MAX: Final = 5


def play_some(limiter: str, place: Place, seeds: Sequence[int]) -> tuple[list[Played], list[str]]:
    """Play these seeds; returns what was done, and what failed in words."""
    logging.disable(logging.CRITICAL)  # Each play has its warnings, and means them.
    done, wrong = [], []
    for seed in seeds:
        try:
            done.append(play(limiter, seed, place))
        except Exception:  # noqa: BLE001 - a play that cannot be played is a finding, too
            wrong.append(f"{limiter}, {place}, SEED={seed}: {traceback.format_exc(limit=-4)}")
    return done, wrong


def chunks(limiters: Iterable[str], places: Iterable[Place], seeds: range) -> list[tuple[str, Place, Sequence[int]]]:
    """All plays, in parts."""
    return [
        (name, place, seeds[start : start + CHUNK])
        for name in limiters
        for place in places
        if place in LIMITERS[name].places
        for start in range(0, len(seeds), CHUNK)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print what passed, and say whether something escaped."""
    parser = argparse.ArgumentParser(description="try to escape the limiters with a tenant's rights")
    parser.add_argument("--plays", type=int, default=1_000, help="of each limiter at each place")
    parser.add_argument("--seed", type=int, help="play only this one, and print it")
    parser.add_argument("--limiter", default="", help="only limiters whose names begin with this")
    parser.add_argument("--brokers", type=int, choices=(1, 3), help="only with so many brokers")
    parser.add_argument("--proxy", action="store_true", help="only through a proxy")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write the table into the documentation")
    options = parser.parse_args(argv)
    limiters = [name for name in LIMITERS if name.startswith(options.limiter)]
    if not limiters:
        parser.error(f"no limiter begins with {options.limiter!r}: want {', '.join(LIMITERS)}")
    seeds = range(options.plays) if options.seed is None else range(options.seed, options.seed + 1)
    began = time.monotonic()
    tried: dict[tuple[str, Place], Tried] = {}
    wrong: list[str] = []
    with ProcessPoolExecutor(options.processes) as pool:
        parts = chunks(limiters, _places(options), seeds)
        for played, failed in pool.map(play_some, *zip(*parts, strict=True)):
            for each in played:
                tried.setdefault((each.limiter, each.place), Tried(each.limiter, each.place)).add(each)
            wrong += failed
            if options.seed is not None:
                print(*played, sep="\n")
    seconds = time.monotonic() - began
    for one in tried.values():
        print(one.line(), *one.escapes[:SHOWN_MAX], sep="\n  ")
    plays = sum(one.plays for one in tried.values())
    escapes = sum(len(one.escapes) for one in tried.values())
    print(f"\n{plays} plays in {seconds:.0f} s, {plays / seconds:.0f} a second; {escapes} over", *wrong, sep="\n")
    if options.write:
        write(tried.values())
    return 1 if escapes or wrong else 0


def _places(options: argparse.Namespace) -> list[Place]:
    if options.proxy:
        return [Place(proxy=True)]
    if options.brokers is not None:
        return [Place(brokers=options.brokers)]
    # A seed alone is that of one broker, as it is printed.
    return [Place()] if options.seed is not None else [Place(), Place(brokers=3), Place(proxy=True)]


if __name__ == "__main__":
    sys.exit(main())
