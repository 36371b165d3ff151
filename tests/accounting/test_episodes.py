# SPDX-License-Identifier: Apache-2.0
"""Episodes: few records, whatever happens a thousand times a second."""

from __future__ import annotations

from penstock.accounting.episodes import GOES_ON_NS, NS_PER_S, QUIET_NS, Episodes, Slowed

ONE = Slowed("publish-rate", topic="t")


def test_a_thousand_waits_a_second_for_ten_seconds_are_one_beginning_and_one_end() -> None:
    episodes, records = Episodes(), []
    for second in range(30):
        now_ns = second * NS_PER_S
        if second < 10:
            records.append(episodes.seen(ONE, now_ns, second * 1_000, times=1_000, held_ns=NS_PER_S // 2))
        records += episodes.pass_time(now_ns)

    begun, ended = [record for record in records if record is not None]

    assert (begun["kind"], begun["since_ms"], begun["times"]) == ("begun", 0, 1_000)
    assert (ended["kind"], ended["since_ms"], ended["times"], ended["held_ms"]) == ("ended", 0, 10_000, 5_000)
    assert len(episodes) == 0


def test_an_episode_that_goes_on_is_recorded_once_a_minute() -> None:
    episodes, kinds = Episodes(), []
    for second in range(150):
        begun = episodes.seen(ONE, second * NS_PER_S, second * 1_000, times=1)
        kinds += [record["kind"] for record in (begun, *episodes.pass_time(second * NS_PER_S)) if record]

    assert kinds == ["begun", "goes-on", "goes-on"]
    assert GOES_ON_NS == 60 * NS_PER_S


def test_a_pause_shorter_than_the_quiet_time_does_not_end_an_episode() -> None:
    episodes = Episodes()
    episodes.seen(ONE, 0, 0, times=1)

    assert list(episodes.pass_time(QUIET_NS - 1)) == []
    assert [record["kind"] for record in episodes.pass_time(QUIET_NS)] == ["ended"]


def test_refusals_are_counted_together() -> None:
    episodes, who = Episodes(), Slowed("bounds", "PRODUCER", client="10.0.0.1", refuses=True)
    first = episodes.seen(who, 0, 0, times=3)
    episodes.seen(who, 1, 0, times=900)
    (last,) = episodes.pass_time(QUIET_NS + 1)

    assert first is not None
    assert (first["kind"], first["times"]) == (last["kind"], 3) == ("refused", 3)
    assert last["times"] == 903
    assert "refuses" not in last


def test_more_episodes_than_fit_are_counted_and_not_followed() -> None:
    episodes = Episodes(episodes_max=2)
    begun = [episodes.seen(Slowed("x", topic=str(number)), 0, 0, times=1) for number in range(5)]

    assert [record is not None for record in begun] == [True, True, False, False, False]
    assert (len(episodes), episodes.missed) == (2, 3)
