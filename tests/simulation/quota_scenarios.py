# SPDX-License-Identifier: Apache-2.0
"""Situations in which brokers share a quota: named ones for the table, and random ones by seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tests.simulation.arrivals import Arrivals, Pattern
from tests.simulation.quota_world import INTERVAL_S, Faults, Scenario

QUOTA: Final = 10_000
EVENT_S: Final = 20
HOG = 2 * QUOTA


def _cold(brokers: int) -> Scenario:
    return Scenario(
        name=f"cold start of {brokers}", brokers=brokers, demand=lambda *_: 2 * QUOTA / brokers, seconds=30, event_s=0
    )


def _noisy(broker: int, now_s: float, _: random.Random) -> float:
    """Two brokers above the level and two below it, each up to 20 % more or less for a second."""
    factor = random.Random(int(now_s) * 97 + broker).uniform(0.8, 1.2)
    return (0.4 if broker < 2 else 0.2) * QUOTA * factor


def _moving(broker: int, now_s: float, _: random.Random) -> float:
    """Each broker is busy, quiet and in between in turn, for 15 seconds each, and stays as it is after a minute."""
    return QUOTA * (0.1, 0.4, 0.8)[(int(min(now_s, 60)) // 15 + broker) % 3]


NAMED: Final = (
    _cold(4),
    _cold(16),
    _cold(100),
    Scenario(
        name="late riser", brokers=4, demand=lambda broker, now_s, _: QUOTA if broker < 3 or now_s > EVENT_S else 0
    ),
    Scenario(
        name="hog and three risers",
        brokers=4,
        demand=lambda broker, now_s, _: HOG if broker == 0 else QUOTA / 2 if now_s > EVENT_S else 0,
    ),
    Scenario(
        name="hog leaves",
        brokers=4,
        demand=lambda broker, now_s, _: QUOTA / 2 if broker else HOG if now_s <= EVENT_S else 0,
    ),
    Scenario(
        name="idle broker wakes",
        brokers=4,
        demand=lambda broker, now_s, _: QUOTA / 10 if broker else HOG if now_s > EVENT_S else 0,
    ),
    Scenario(name="quota raised", brokers=4, demand=lambda *_: QUOTA, quotas=((EVENT_S, 2 * QUOTA),)),
    Scenario(name="quota lowered", brokers=4, demand=lambda *_: QUOTA, quotas=((EVENT_S, QUOTA // 2),)),
    Scenario(name="quota removed", brokers=4, demand=lambda *_: QUOTA, quotas=((EVENT_S, None),)),
    Scenario(name="demand noise", brokers=4, demand=_noisy, event_s=0),
    Scenario(name="broker killed", brokers=4, demand=lambda *_: QUOTA, faults=Faults(kills=((EVENT_S, 1, 0),))),
    Scenario(
        name="reports lost, late, repeated",
        brokers=4,
        demand=_moving,
        seconds=80,
        event_s=60,
        faults=Faults(delay_s=(0.01, 1), loss=0.2, repeated=0.2, clocks_ms=(0, 600_000, -600_000, 0)),
    ),
    Scenario(
        name="partition of half the brokers",
        brokers=4,
        demand=lambda broker, now_s, _: HOG if broker == 0 or now_s > EVENT_S + 10 else QUOTA / 20,
        seconds=80,
        event_s=60,
        faults=Faults(partition=(EVENT_S, 60, frozenset({0, 1}))),
    ),
)


def _irregular(pattern: Pattern, brokers: int, seconds: int = 40) -> Scenario:
    """A broker that could use twice the quota, and others that need half of it together, but not evenly."""
    rates = (HOG, *[QUOTA / 2 / (brokers - 1)] * (brokers - 1))
    return Scenario(
        name=f"hog and {brokers - 1} others, {pattern}",
        brokers=brokers,
        demand=Arrivals((Pattern.STEADY, *[pattern] * (brokers - 1)), rates, seconds),
        seconds=seconds,
        event_s=0,
        keeps=True,
        interval_s=1,
    )


IRREGULAR: Final = tuple(
    _irregular(pattern, brokers)
    for pattern in (Pattern.STEADY, Pattern.POISSON, Pattern.BATCH, Pattern.TIMER, Pattern.ON_OFF)
    for brokers in (4, 16)
)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Demand that is constant between its steps, with noise that lasts for half a second."""

    steps: tuple[tuple[tuple[float, float], ...], ...]  # by broker: (from second, messages per second)
    noise: float
    seed: int

    def __call__(self, broker: int, now_s: float, _: random.Random) -> float:
        rate = 0.0
        for start_s, demand in self.steps[broker]:
            if start_s > now_s:
                break
            rate = demand
        if not self.noise or not rate:
            return rate
        chance = random.Random((self.seed * 1_009 + int(now_s * 2)) * 1_009 + broker)
        return rate * chance.uniform(1 - self.noise, 1 + self.noise)


def random_scenario(seed: int) -> Scenario:
    """A scenario of some brokers with some events. Every third one has faults, too."""
    chance = random.Random(seed)
    brokers = round(2 ** chance.uniform(1, 5))
    seconds = 60
    events = [0.0, *sorted(chance.uniform(10, seconds - 15) for _ in range(chance.randrange(3)))]
    steps: list[list[tuple[float, float]]] = [[] for _ in range(brokers)]
    for at_s in events:
        scale = 2 * QUOTA / brokers * 2 ** chance.uniform(-2, 2)
        for broker in range(brokers):
            if at_s == 0 or chance.random() < 0.5:
                steps[broker].append((at_s, scale * chance.choice([0, 0.1, 0.5, 1, 1, 2, brokers])))
    quotas: tuple[tuple[float, int | None], ...] = ()
    if chance.random() < 0.2:
        quotas = ((chance.uniform(10, seconds - 15), chance.choice([QUOTA // 3, QUOTA * 3])),)
    return Scenario(
        name=f"seed {seed}",
        brokers=brokers,
        demand=_Steps(tuple(map(tuple, steps)), chance.choice([0, 0, 0.1, 0.2, 0.3]), seed),
        seconds=seconds,
        quotas=quotas,
        events_s=tuple(sorted([*events, *(at_s for at_s, _ in quotas)])),
        faults=_random_faults(chance, brokers, seconds) if seed % 3 == 0 else Faults(),
    )


def _random_faults(chance: random.Random, brokers: int, seconds: int) -> Faults:
    partition = None
    if chance.random() < 0.4:
        start_s = chance.uniform(5, seconds / 2)
        side = frozenset(chance.sample(range(brokers), brokers // 2))
        partition = (start_s, start_s + chance.uniform(1, 6) * INTERVAL_S, side)
    kills = ((chance.uniform(5, seconds - 10), chance.uniform(0, 20), 0),) if chance.random() < 0.4 else ()
    return Faults(
        delay_s=(0.001, chance.choice([0.02, 0.5, 2])),
        loss=chance.choice([0, 0.05, 0.2, 0.4]),
        repeated=chance.choice([0, 0.2]),
        partition=partition,
        kills=kills,
        clocks_ms=tuple(chance.choice([0, 600_000, -600_000]) for _ in range(brokers)),
    )


def faulty_irregular(seed: int) -> Scenario:
    """Irregular arrivals of half the quota to three times; losses, delays, a kill, a freeze, a restart, a partition."""
    chance = random.Random(seed)
    brokers, seconds = round(2 ** chance.uniform(1, 4)), 30
    patterns = tuple(chance.choice(list(Pattern)) for _ in range(brokers))
    parts = [chance.uniform(0.1, 1) ** 2 for _ in range(brokers)]
    total = QUOTA * chance.uniform(0.5, 3)
    killed, frozen = chance.sample(range(brokers), 2)
    killed_s, frozen_s, parted_s = chance.uniform(5, 15), chance.uniform(5, 20), random.Random(~seed).uniform(0, 12)
    return Scenario(
        name=f"irregular seed {seed}",
        brokers=brokers,
        demand=Arrivals(patterns, tuple(total * part / sum(parts) for part in parts), seconds, seed),
        seconds=seconds,
        event_s=0,
        keeps=True,
        interval_s=1,
        faults=Faults(
            delay_s=(0.001, chance.choice([0.02, 0.1, 0.5])),
            loss=chance.choice([0, 0.05, 0.2, 0.4]),
            repeated=chance.choice([0, 0.2]),
            partition=(parted_s, parted_s + seed % 15, frozenset(range(1, brokers, 2))) if seed % 3 == 0 else None,
            kills=((killed_s, chance.uniform(0, 5), killed),),
            restarts=((killed_s + chance.uniform(0.5, 10), killed),) if chance.random() < 0.7 else (),
            freezes=((frozen_s, frozen_s + 2 ** chance.uniform(-3, 3), frozen),),
        ),
    )
