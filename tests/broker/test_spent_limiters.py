# SPDX-License-Identifier: Apache-2.0
"""What is left of limiters whose topics and subscriptions are gone."""

from __future__ import annotations

from penstock.broker.publishing.limiters import SpentLimiters
from penstock.core.clock import ManualClock


class Limiter:
    """One that is full again after its time."""

    asked = 0

    def __init__(self, owner: str, full_ns: int) -> None:
        self.owner = owner
        self.full_ns = full_ns

    def full(self, now_ns: int) -> bool:
        Limiter.asked += 1
        return now_ns >= self.full_ns


def test_many_names_with_long_periods_are_not_looked_at_again_for_each() -> None:
    Limiter.asked = 0
    spent = SpentLimiters[Limiter](ManualClock())
    for number in range(8_000):
        spent.leave(f"topic-{number}", Limiter("s", 2**62))
    assert Limiter.asked <= 5 * 8_000


def test_those_that_are_full_again_are_forgotten() -> None:
    clock = ManualClock()
    spent = SpentLimiters[Limiter](clock)
    for number in range(5_000):
        spent.leave(f"topic-{number}", Limiter("s", clock.monotonic_ns() + 1))
        clock.advance(ms=1)
    assert len(spent._left) <= 1_000  # noqa: SLF001
