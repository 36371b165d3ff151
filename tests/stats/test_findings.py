# SPDX-License-Identifier: Apache-2.0
"""Sentences of holds, and their order."""

from __future__ import annotations

import pytest

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.holds import Effect, Hold, HoldKind
from penstock.stats.findings import SENTENCES, explanation, finding, merged


@pytest.mark.parametrize("kind", list(HoldKind))
def test_each_kind_has_a_sentence_that_says_whose_it_is_and_what_lifts_it(kind: HoldKind) -> None:
    found = finding(Hold(kind=kind, what="it", of="OWNER", lifted_by="SETTING", ready_ns=1), NS_PER_S)
    assert found["reason"] == kind.value
    assert found["limit"]
    assert found["liftedBy"]
    assert "{" not in found["limit"] + found["liftedBy"]


def test_a_finding_says_since_when_and_after_what_time_it_ends() -> None:
    hold = Hold(kind=HoldKind.PUBLISH_RATE, what="it", of="t", since_ns=0, ready_ns=20 * NS_PER_MS, lifted_by="raise r")
    found = finding(hold, 3 * NS_PER_S)
    assert (found["forMs"], found["liftedBy"]) == (3_000, "wait 20 ms for its turn, or raise r")


def test_what_refuses_everybody_comes_first_then_holds_down_the_stream() -> None:
    holds = [Hold(kind=kind, what="it") for kind in reversed(HoldKind)]
    answer = explanation("all", holds, 0, producers=1, subscriptions=1)
    assert [found["reason"] for found in answer["findings"]] == [kind.value for kind in HoldKind]
    assert answer["findings"][0]["reason"] == "log-read-only"


@pytest.mark.parametrize("kind", list(HoldKind))
def test_only_what_slows_somebody_says_that_something_is_slowed(kind: HoldKind) -> None:
    answer = explanation("it", [Hold(kind=kind, what="it")], 0, producers=0, subscriptions=0)
    assert answer["slowed"] is (SENTENCES[kind].effect is Effect.SLOWS)


def test_answers_of_several_brokers_are_one_in_the_same_order() -> None:
    own = explanation("t", [Hold(kind=HoldKind.NO_PERMITS, what="a")], 0, producers=1, subscriptions=2)
    other = explanation("t", [Hold(kind=HoldKind.LOG_READ_ONLY, what="b")], 0, producers=3, subscriptions=4)
    answer = merged(own, [other], [2])
    assert [found["what"] for found in answer["findings"]] == ["b", "a"]
    assert (answer["producers"], answer["subscriptions"], answer["unanswered"]) == (4, 6, [2])
