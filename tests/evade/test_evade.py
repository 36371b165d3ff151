# SPDX-License-Identifier: Apache-2.0
"""A share of `make evade` for every day: some plays of each limiter, those that once escaped, and the oracle itself."""

from __future__ import annotations

import logging

import pytest

from penstock.governance.resource_group import ClassLimiter
from tests.evade.counting import Payers, Stretches, Verdict
from tests.evade.limiters import LIMITERS
from tests.evade.moves import Moves
from tests.evade.play import play
from tests.evade.world import Place

SEEDS = range(3)
# Each of these once passed a limit, alone.
ESCAPED = (
    ("group-publish-messages", Moves(topics="x__transaction_pending_ack")),
    ("group-publish-messages", Moves(topics="__change_events")),
    ("group-publish-messages", Moves(topics="__transaction_buffer_snapshot")),
    ("group-dispatch-messages", Moves(topics="x__transaction_pending_ack")),
    ("backlog-quota", Moves(topics="x__transaction_pending_ack")),
    ("producers-per-topic", Moves(topics="__change_events")),
    ("topics-per-namespace", Moves(topics="x__transaction_pending_ack")),
    ("group-publish-messages", Moves(producer="pulsar.repl.east")),
    ("adaptive-throttling", Moves(spread="a new topic each cycle", visits="each 100 ms")),
    ("adaptive-throttling", Moves(spread="half on one, half on fifty", hands="12")),
    ("topics-per-namespace", Moves()),
    ("subscriptions-per-topic", Moves()),
    ("topic-publish-messages", Moves(visits="after 7", leaves="at once")),
    ("broker-publish-messages", Moves(visits="after 7", leaves="at once")),
    ("topic-publish-messages", Moves(deeds="unloads the topics")),
    ("topic-dispatch", Moves(deeds="unloads the topics")),
    ("topic-dispatch", Moves(topics="non-persistent")),
    ("broker-dispatch", Moves(topics="non-persistent")),
    ("group-dispatch-messages", Moves(reads="peeks over REST", permits="1")),
    ("topic-dispatch", Moves(reads="examines over REST")),
    ("group-publish-messages", Moves(shape="batches of ten that say they are one")),
    ("group-dispatch-messages", Moves(shape="batches of ten that say they are -9")),
)
# And each of these before a broker without limits, through a proxy.
ESCAPED_AT_PROXY = (
    ("group-dispatch-messages", Moves(shape="batches of ten that say they are one")),
    ("group-publish-messages", Moves(hands="12", shape="32 KiB")),
)
ALL = [(limiter, place) for limiter, row in LIMITERS.items() for place in row.places]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize(("limiter", "place"), ALL, ids=lambda one: str(one).replace(" ", "-"))
def test_nobody_gets_more_than_the_limit_and_one_burst(limiter: str, place: Place) -> None:
    for seed in SEEDS:
        played = play(limiter, seed, place)
        assert not played.verdict.over, played


@pytest.mark.parametrize(("limiter", "moves"), ESCAPED, ids=str)
def test_what_once_escaped_does_not(limiter: str, moves: Moves) -> None:
    played = play(limiter, 0, moves=moves)
    assert not played.verdict.over, played


@pytest.mark.parametrize(("limiter", "moves"), ESCAPED_AT_PROXY, ids=str)
def test_what_once_escaped_at_a_proxy_does_not(limiter: str, moves: Moves) -> None:
    for seed in SEEDS:
        played = play(limiter, seed, Place(proxy=True), moves=moves)
        assert not played.verdict.over, played


def test_a_seed_makes_the_same_play_each_time() -> None:
    limiter = "group-publish-messages"
    assert play(limiter, 3) == play(limiter, 3)


def test_a_limiter_that_forgets_what_it_charged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassLimiter, "charge", lambda *_: None)
    played = play("group-publish-messages", 0, moves=Moves())
    assert played.verdict.over
    assert "SEED=0" in str(played)


def test_the_worst_stretch_is_found_wherever_it_begins() -> None:
    counter = Stretches("somebody", rate=10, burst=9)
    for now_s, amount in ((0, 5), (10, 20), (11, 15)):
        counter.add(amount, now_s)
    assert counter.verdict() == Verdict("somebody", 35, 19, 1)


def test_each_payer_has_its_own_burst() -> None:
    counter = Payers(rate=10, burst=9)
    for payer in ("one", "other"):
        counter.add(payer, 9, 0)
    assert not counter.verdict().over
    counter.add("other", 1, 0)
    assert counter.verdict() == Verdict("other", 10, 9)
