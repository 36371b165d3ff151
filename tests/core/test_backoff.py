# SPDX-License-Identifier: Apache-2.0
"""Waits before the next attempt: they double, up to a bound, and are never quite the same."""

from __future__ import annotations

import random

from penstock.core.clock import JITTER_RATIO, Backoff


def backoff(seed: int = 1) -> Backoff:
    return Backoff(random.Random(seed), first_s=0.1, last_s=25.0)


def test_waits_double_within_their_jitter_and_stop_growing_at_the_last() -> None:
    waits = backoff()
    wanted = 0.1
    for _ in range(20):
        wait_s = waits.next_s()
        assert min(25.0, wanted) * (1 - JITTER_RATIO) <= wait_s <= min(25.0, wanted * (1 + JITTER_RATIO))
        wanted = min(25.0, 2 * wanted)
    assert wanted == 25.0


def test_a_success_begins_anew() -> None:
    waits = backoff()
    for _ in range(5):
        waits.next_s()
    waits.reset()
    assert waits.next_s() < 0.11


def test_two_who_were_refused_together_do_not_come_back_together() -> None:
    assert backoff(1).next_s() != backoff(2).next_s()
    assert backoff(1).next_s() == backoff(1).next_s()
