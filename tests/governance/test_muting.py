# SPDX-License-Identifier: Apache-2.0
"""What a set of mute reasons promises: it stops once, and reads again only when nobody objects."""

from __future__ import annotations

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.holds import Episode, HoldKind
from penstock.governance.muting import EPISODES_MAX, Mute, MuteReasons


def test_a_connection_without_reasons_is_reading() -> None:
    assert not MuteReasons()
    assert MuteReasons().since_ns is None


def test_only_the_first_reason_stops_the_connection() -> None:
    reasons = MuteReasons()
    assert reasons.add(HoldKind.REQUEST_MEMORY, now_ns=1)
    assert not reasons.add(HoldKind.STORAGE, now_ns=2)
    assert reasons


def test_two_topics_that_mute_for_the_same_reason_do_not_undo_each_other() -> None:
    reasons = MuteReasons()
    reasons.add(HoldKind.STORAGE, "persistent://a/b/one", now_ns=1)
    reasons.add(HoldKind.STORAGE, "persistent://a/b/two", now_ns=2)
    assert not reasons.discard(HoldKind.STORAGE, "persistent://a/b/one", now_ns=9)
    assert reasons
    assert reasons.discard(HoldKind.STORAGE, "persistent://a/b/two", now_ns=9)
    assert not reasons


def test_two_reasons_of_one_owner_do_not_undo_each_other() -> None:
    reasons = MuteReasons()
    reasons.add(HoldKind.REQUEST_MEMORY, now_ns=1)
    reasons.add(HoldKind.REQUEST_COUNT, now_ns=2)
    assert not reasons.discard(HoldKind.REQUEST_COUNT, now_ns=9)
    assert reasons.discard(HoldKind.REQUEST_MEMORY, now_ns=9)


def test_lifting_a_reason_that_is_not_in_force_does_not_unmute() -> None:
    reasons = MuteReasons()
    assert not reasons.discard(HoldKind.OUTBOUND, now_ns=9)
    reasons.add(HoldKind.OUTBOUND, now_ns=1)
    assert not reasons.discard(HoldKind.OUTBOUND, "persistent://a/b/one", now_ns=9)
    assert reasons


def test_the_same_reason_twice_is_one_reason_and_keeps_its_first_time() -> None:
    reasons = MuteReasons()
    reasons.add(HoldKind.STORAGE, now_ns=5)
    assert not reasons.add(HoldKind.STORAGE, now_ns=9)
    assert reasons.snapshot() == (Mute(HoldKind.STORAGE, None, 5, Episode(5)),)
    assert reasons.discard(HoldKind.STORAGE, now_ns=9)


def test_it_says_since_when_and_lists_the_oldest_reason_first() -> None:
    reasons = MuteReasons()
    reasons.add(HoldKind.STORAGE, now_ns=7)
    reasons.add(HoldKind.OUTBOUND, now_ns=3)
    assert reasons.since_ns == 3
    assert [mute.reason for mute in reasons.snapshot()] == [HoldKind.OUTBOUND, HoldKind.STORAGE]
    reasons.discard(HoldKind.OUTBOUND, now_ns=9)
    assert reasons.since_ns == 7


def test_a_connection_that_is_muted_for_each_read_waits_since_the_first_one() -> None:
    reasons = MuteReasons()
    for second in range(10):
        reasons.add(HoldKind.REQUEST_MEMORY, now_ns=second * NS_PER_S)
        reasons.discard(HoldKind.REQUEST_MEMORY, now_ns=second * NS_PER_S + 900 * NS_PER_MS)
    reasons.add(HoldKind.REQUEST_MEMORY, now_ns=10 * NS_PER_S)
    (mute,) = reasons.snapshot()
    assert (mute.since_ns, mute.waits.since_ns) == (10 * NS_PER_S, 0)
    assert mute.waits.numbers(10 * NS_PER_S)["held_percent"] == 90


def test_mutes_that_have_ended_are_not_remembered_without_bound() -> None:
    reasons = MuteReasons()
    for number in range(10 * EPISODES_MAX):
        reasons.add(HoldKind.PUBLISH_RATE, f"persistent://a/b/{number}", now_ns=number)
        reasons.discard(HoldKind.PUBLISH_RATE, f"persistent://a/b/{number}", now_ns=number)
    assert len(reasons._episodes) <= EPISODES_MAX  # noqa: SLF001
