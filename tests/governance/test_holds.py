# SPDX-License-Identifier: Apache-2.0
"""Episodes: waits with their pauses."""

from __future__ import annotations

from typing import Final

import pytest

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.holds import MINUTE_NS, QUIET_NS, Episode


def test_a_wait_that_has_just_begun_slows_only_if_it_is_a_limit() -> None:
    episode = Episode[None](0)
    assert episode.slows(NS_PER_MS, at_once=True)
    assert not episode.slows(NS_PER_MS)
    assert episode.slows(NS_PER_S)


def test_a_wait_that_pauses_for_tokens_goes_on_since_it_began() -> None:
    episode, now_ns = _episode_of(held_ms=80, free_ms=20, seconds=300)
    assert episode.since_ns == 0
    assert episode.slows(now_ns)
    assert episode.numbers(now_ns)["held_percent"] == pytest.approx(80, abs=1)


def test_short_waits_between_long_pauses_slow_nobody() -> None:
    episode, now_ns = _episode_of(held_ms=5, free_ms=995, seconds=60)
    assert not episode.slows(now_ns)


def test_the_share_is_that_of_the_last_minute() -> None:
    episode, now_ns = _episode_of(held_ms=10, free_ms=90, seconds=3_600)
    assert episode.numbers(now_ns)["held_percent"] == pytest.approx(10, abs=1)
    episode.begin(now_ns)
    now_ns += MINUTE_NS
    assert episode.numbers(now_ns)["held_percent"] >= 50


def test_an_episode_ends_when_nothing_was_held_for_a_while() -> None:
    episode = Episode[None](0)
    episode.end(NS_PER_S)
    assert not episode.slows(2 * NS_PER_S)
    later_ns = NS_PER_S + QUIET_NS
    episode.begin(later_ns)
    assert episode.since_ns == later_ns


def test_what_passed_and_what_was_wanted_are_told_per_second() -> None:
    episode = Episode[None](0, got=100, wanted=100)
    numbers = episode.numbers(10 * NS_PER_S, got=600, wanted=1_100)
    assert numbers == {"held_percent": 100, "got_messages_per_s": 50, "wanted_messages_per_s": 100}


_MS: Final = NS_PER_MS


def _episode_of(*, held_ms: int, free_ms: int, seconds: int) -> tuple[Episode[None], int]:
    """Waits of a length with pauses between them, and when the last one has ended."""
    now_ns, episode = 0, Episode[None](0)
    while now_ns < seconds * NS_PER_S:
        episode.begin(now_ns)
        now_ns += held_ms * _MS
        episode.end(now_ns)
        now_ns += free_ms * _MS
    return episode, now_ns
