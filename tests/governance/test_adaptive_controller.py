# SPDX-License-Identifier: Apache-2.0
"""Who pays for a pressure of the whole broker, and what becomes of failures.

A number like A8 is that of a defect in `docs/adr/0040-adaptive-throttling.md`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from time import process_time_ns
from typing import TYPE_CHECKING

import pytest

from penstock.core.units import NS_PER_S
from penstock.governance.adaptive_throttle import (
    CALM_CYCLES,
    HELD_FAILURES,
    Contributions,
    Kind,
    Seen,
    Throttle,
    ThrottleController,
    ThrottleOptions,
)
from penstock.governance.allocation import water_level

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.governance.adaptive_throttle import ThrottleDecision

OPTIONS = ThrottleOptions()


class World:
    """Topics with steady rates, named `tenant/topic`, whose publishers obey their limits and that of their tenant."""

    def __init__(self, per_s: Mapping[str, float], options: ThrottleOptions = OPTIONS) -> None:
        self.per_s = dict(per_s)
        self.options = options
        self.decisions: list[ThrottleDecision] = []
        self.of_payers: list[ThrottleDecision] = []
        self.controller = ThrottleController(options, self._decided)
        self.now_ns = 0
        self.passed = dict.fromkeys(per_s, 0.0)
        self.last: dict[str, float] = {}  # in the last cycle
        self.throttles = {name: Throttle(name, tenant_of(name), Seen(0, 0), 0) for name in per_s}
        self.limited_ns: Counter[str] = Counter()  # of tenants

    def _decided(self, decision: ThrottleDecision) -> None:
        (self.decisions if decision.topic else self.of_payers).append(decision)

    def cycle(self, memory: float = 0.0, queueing_s: float = 0.0, backlog: float = 0.0) -> None:
        """Let a second pass, and visit all topics, and then their payers."""
        self.now_ns += NS_PER_S
        self._publish()
        self.controller.begin(self.options, memory=memory, queueing_s=queueing_s)
        for name in self.per_s:
            if name not in self.throttles:  # As a broker that finds a topic with messages.
                self.throttles[name] = Throttle(name, tenant_of(name), self._seen(name), self.now_ns)
                continue
            self.controller.visit(self.throttles[name], self._seen(name), backlog, self.now_ns)
        for payer, account in self.controller.accounts.items():
            seen = Seen(account.messages, account.bytes, limited_ns=self.limited_ns[payer])
            self.controller.visit_payer(account, seen, self.now_ns)
        self.controller.end_round()
        self.controller.cycle_succeeded()

    def _publish(self) -> None:
        for payer, names in by_tenant(self.per_s).items():
            account = self.controller.account(payer, self.now_ns - NS_PER_S)
            self.last |= {name: self._limited(name) for name in names}
            total = sum(self.last[name] for name in names)
            rate = account.throttle.messages.rate if account.throttle.enforced else None
            if rate is not None and rate < total:
                self.limited_ns[payer] += NS_PER_S
                level = water_level(round(1_000 * rate), [round(1_000 * self.last[name]) for name in names]) / 1_000
                self.last |= {name: min(self.last[name], level) for name in names}
            for name in names:
                before = round(self.passed.setdefault(name, 0.0))
                self.passed[name] += self.last[name]
                messages = round(self.passed[name]) - before
                account.count(messages, messages * 1_000)

    def _limited(self, name: str) -> float:
        throttle = self.throttles.get(name)
        rate = throttle.messages.rate if throttle is not None and throttle.enforced else None
        return self.per_s[name] if rate is None else min(rate, self.per_s[name])

    def _seen(self, name: str) -> Seen:
        messages = round(self.passed[name])
        limited_ns = self.now_ns if self._limited(name) < self.per_s[name] else 0
        return Seen(messages, messages * 1_000, limited_ns=limited_ns)

    def cycles(self, count: int, memory: float = 0.0) -> None:
        """Several."""
        for _ in range(count):
            self.cycle(memory)

    def share(self, name: str) -> float:
        """The part of what it wants that a topic published in the last cycle."""
        return self.last[name] / self.per_s[name]

    def of_tenant(self, tenant: str) -> float:
        """What all topics of a tenant published in the last cycle."""
        return sum(count for name, count in self.last.items() if tenant_of(name) == tenant and name in self.per_s)

    def rename(self, tenant: str, names: Mapping[str, float]) -> None:
        """A tenant goes on with these topics instead of those that it had."""
        self.per_s = {name: rate for name, rate in self.per_s.items() if tenant_of(name) != tenant} | dict(names)


def tenant_of(name: str) -> str:
    """The tenant of a topic of this world."""
    return name.partition("/")[0]


def by_tenant(names: Iterable[str]) -> dict[str, list[str]]:
    """Topics of this world by their tenants."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(tenant_of(name), []).append(name)
    return found


def test_a_single_tenant_has_the_law_without_weights() -> None:
    world = World({"a/1": 1_000, "a/2": 1_000})
    world.cycles(10)
    world.cycles(10, memory=1.0)
    assert [world.share(name) for name in ("a/1", "a/2")] == pytest.approx([0.1, 0.1])


def test_a8_the_tenant_that_causes_the_pressure_is_slowed_and_a_calm_one_keeps_its_rate() -> None:
    world = World({"loud/1": 9_000, "calm/1": 500, "calm/2": 500})
    world.cycles(10)
    world.cycles(10, memory=1.0)
    assert world.share("loud/1") == pytest.approx(0.1)
    assert world.share("calm/1") >= 0.9
    assert world.share("calm/2") >= 0.9


def test_a8_a_tenant_does_not_become_calm_by_being_slowed() -> None:
    world = World({"loud/1": 9_000, "calm/1": 1_000})
    world.cycles(10)
    world.cycles(300, memory=1.0)
    assert world.share("loud/1") == pytest.approx(0.1)
    assert world.share("calm/1") == 1.0


def test_a8_a_tenant_with_many_topics_pays_for_all_of_them() -> None:
    world = World({f"loud/{number}": 10.0 for number in range(900)} | {"calm/1": 1_000.0})
    world.cycles(10)
    world.cycles(10, memory=1.0)
    assert all(world.share(name) <= 0.11 for name in world.per_s if name.startswith("loud"))
    assert world.share("calm/1") == 1.0


def test_a8_the_loud_topic_of_a_tenant_pays_before_its_calm_ones() -> None:
    world = World({"a/loud": 9_000, "a/1": 100, "a/2": 100})
    world.cycles(10)
    world.cycles(10, memory=1.0)
    assert world.share("a/1") == world.share("a/2") == 1.0
    assert world.of_tenant("a") == pytest.approx(920)  # A tenth of what all three publish: the loud one pays for all.


def test_a_new_topic_each_second_takes_part_in_what_its_tenant_has_left() -> None:
    world = World({"a/0": 1_000})
    world.cycles(10)
    world.cycles(10, memory=1.0)
    passed = []
    for number in range(1, 61):
        world.rename("a", {f"a/{number}": 1_000})
        world.cycle(memory=1.0)
        passed.append(world.of_tenant("a"))
    assert max(passed) <= 101


def test_a_tenant_that_only_ever_had_new_topics_is_found_and_the_calm_one_is_not_slowed() -> None:
    world = World({"calm/1": 500})
    world.cycles(10)
    passed = []
    for number in range(60):
        world.rename("a", {f"a/{number}": 5_000})
        world.cycle(memory=1.0)
        passed.append(world.of_tenant("a"))
        assert number < 5 or world.share("calm/1") == 1.0
    assert sum(passed[5:]) <= 0.11 * 5_000 * len(passed[5:])


@pytest.mark.parametrize("others", [1, 50, 500])
def test_half_on_one_topic_and_half_on_many_passes_as_much_as_all_on_one(others: int) -> None:
    world = World({"a/0": 5_000} | {f"a/{number}": 5_000 / others for number in range(1, others + 1)})
    world.cycles(10)
    world.cycles(20, memory=1.0)
    assert world.of_tenant("a") == pytest.approx(1_000, rel=0.02)


def test_the_natural_rate_of_a_payer_outlives_its_topics_and_a_pause() -> None:
    world = World({"a/0": 1_000, "b/0": 10})
    world.cycles(10)
    world.rename("a", {})
    world.cycles(3)
    world.rename("a", {"a/1": 1_000})
    world.cycles(1)
    world.cycles(5, memory=1.0)
    assert world.of_tenant("a") <= 120


def test_a_payer_whose_topic_is_held_for_its_backlog_does_not_become_a_small_one() -> None:
    world = World({"a/0": 1_000})
    world.cycles(10)
    for _ in range(60):
        world.cycle(memory=0.775, backlog=1.0)  # Half of the pressure of memory, and all of the backlog's.
    account = world.controller.accounts["a"]
    assert account.throttle.messages.natural == pytest.approx(1_000, rel=0.01)


def test_decisions_about_a_payer_name_no_topic() -> None:
    world = World({"a/1": 1_000})
    world.cycles(10)
    world.cycles(1, memory=1.0)
    assert [(one.kind, one.payer, one.topic) for one in world.decisions] == [(Kind.ACTIVATED, "a", "a/1")]
    assert [(one.kind, one.payer, one.topic) for one in world.of_payers] == [(Kind.ACTIVATED, "a", "")]
    assert world.controller.activations == 1


def test_equal_tenants_pay_alike() -> None:
    world = World({f"{tenant}/1": 1_000 for tenant in "abcd"})
    world.cycles(10)
    world.cycles(10, memory=1.0)
    assert [world.share(f"{tenant}/1") for tenant in "abcd"] == pytest.approx([0.1] * 4)


def test_a_tenant_that_becomes_loud_pays_soon() -> None:
    world = World({"a/1": 1_000, "b/1": 1_000})
    world.cycles(10)
    world.per_s["b/1"] = 20_000
    world.cycles(10, memory=0.70)
    world.cycles(10, memory=1.0)
    assert world.share("b/1") <= 0.12
    assert world.share("a/1") == 1.0


def test_weights_go_from_half_of_the_mean_to_the_mean() -> None:
    contributions = Contributions()
    for payer, nbytes in (("a", 150.0), ("b", 75.0), ("c", 50.0), ("d", 125.0)):
        contributions.add_payer(payer, nbytes)  # The mean is 100.
    assert [contributions.of_payer(payer) for payer in ("a", "b", "c", "new")] == [1.0, 0.5, 0.0, 1.0]


def test_the_topics_of_a_payer_are_weighted_among_themselves() -> None:
    contributions = Contributions()
    contributions.add_payer("b", 75.0)
    contributions.add_payer("a", 125.0)
    for nbytes in (60.0, 10.0, 5.0):
        contributions.add_topic("b", nbytes)  # The mean is 25.
    assert [contributions.of_topic("b", nbytes) for nbytes in (60.0, 18.75, 10.0)] == [0.5, 0.25, 0.0]


def test_a_backlog_is_the_topics_own_and_has_no_weight() -> None:
    world = World({"loud/1": 9_000, "calm/1": 100})
    world.cycles(10)
    for _ in range(10):
        world.cycle(backlog=1.0)
    assert world.share("calm/1") == pytest.approx(0.1)


def test_a_slow_disk_is_a_pressure_too() -> None:
    world = World({"a/1": 1_000})
    world.cycles(10)
    for _ in range(10):
        world.cycle(queueing_s=0.2)
    assert world.share("a/1") == 1.0
    for _ in range(10):
        world.cycle(queueing_s=1.5)
    assert world.share("a/1") == pytest.approx(0.1)


def test_decisions_are_told_to_the_observer_in_their_order() -> None:
    world = World({"a/1": 1_000})
    world.cycles(10)
    world.cycles(5, memory=1.0)
    world.cycles(CALM_CYCLES)
    kinds = [decision.kind for decision in world.decisions]
    assert kinds == [Kind.ACTIVATED, *[Kind.STEP] * 7, Kind.DEACTIVATED]
    assert world.controller.activations == 1
    assert not world.controller.active


def test_observe_only_counts_no_active_topic_and_no_activation() -> None:
    world = World({"a/1": 1_000}, replace(OPTIONS, observe_only=True))
    world.cycles(10)
    world.cycles(5, memory=1.0)
    assert (len(world.controller.active), len(world.controller.observed), world.controller.activations) == (0, 1, 0)
    assert {decision.kind for decision in world.decisions} == {Kind.WOULD_ACTIVATE, Kind.WOULD_STEP}


def test_a12_limits_are_held_while_cycles_fail_and_then_released_in_steps() -> None:
    world = World({"a/1": 1_000})
    world.cycles(10)
    world.cycles(10, memory=1.0)
    (throttle,) = world.controller.active
    for _ in range(HELD_FAILURES):
        assert not world.controller.cycle_failed()
    rates = []
    while throttle.active:
        assert world.controller.cycle_failed()
        world.controller.release_step(throttle, world.now_ns)
        rates.append(throttle.messages.rate)
    assert rates == [pytest.approx(350), pytest.approx(600), pytest.approx(850), None]
    assert world.controller.failures == HELD_FAILURES + len(rates)
    assert not world.controller.active


def test_a12_a_cycle_that_succeeds_ends_the_series() -> None:
    controller = ThrottleController(OPTIONS, lambda _: None)
    for _ in range(10):
        for _ in range(HELD_FAILURES):
            assert not controller.cycle_failed()
        controller.cycle_succeeded()


def test_a_topic_that_cannot_be_measured_is_released_alone() -> None:
    world = World({"a/1": 1_000, "a/2": 1_000})
    world.cycles(10)
    world.cycles(10, memory=1.0)
    sick = world.throttles["a/1"]
    for _ in range(HELD_FAILURES + 5):
        world.controller.visit_failed(sick, world.now_ns)
    assert not sick.active
    assert world.throttles["a/2"].active


def test_a_visit_of_a_calm_topic_takes_microseconds() -> None:
    world = World({f"t{number % 50}/{number}": 100.0 for number in range(2_000)})
    world.cycles(3)
    visit, now_ns = world.controller.visit, world.now_ns + NS_PER_S
    seen = [(throttle, Seen(1_000, 100_000)) for throttle in world.throttles.values()]
    before = process_time_ns()
    for throttle, one in seen:
        visit(throttle, one, 0.0, now_ns)
    assert (process_time_ns() - before) / len(seen) < 20_000, "2 µs, where nothing else runs"
