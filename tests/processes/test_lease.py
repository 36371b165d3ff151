# SPDX-License-Identifier: Apache-2.0
"""The lease of a broker, second by second; and by seed, with brokers that freeze, crash and are busy."""

from __future__ import annotations

import os
import random

import pytest

from penstock.core.broker_states import ALLOWS, RENEW_EVERY_NS, BrokerState
from penstock.core.units import NS_PER_S
from penstock.processes.lease import (
    ELAPSED_NS_MAX,
    FENCED_NS,
    HUNG_NS,
    LOOK_EVERY_NS,
    START_IDLE_NS,
    SUSPECT_NS,
    Lease,
)
from penstock.processes.restarts import FORGIVEN_S, Restarts

SEEDS = int(os.environ.get("PENSTOCK_FAULT_SEEDS", "100"))


def ready() -> Lease:
    lease = Lease()
    lease.started()
    lease.ready()
    return lease


def pass_time(lease: Lease, ns: int, *, works: bool = False) -> BrokerState:
    for _ in range(0, ns, LOOK_EVERY_NS):
        lease.pass_time(LOOK_EVERY_NS, works=works)
    return lease.state


def test_a_broker_that_is_late_is_suspect_and_ready_again_when_it_says_that_it_works() -> None:
    lease = ready()
    assert pass_time(lease, SUSPECT_NS - LOOK_EVERY_NS) is BrokerState.READY
    assert pass_time(lease, LOOK_EVERY_NS) is BrokerState.SUSPECT
    lease.renew(BrokerState.READY)
    assert lease.state is BrokerState.READY
    assert pass_time(lease, SUSPECT_NS - LOOK_EVERY_NS) is BrokerState.READY


def test_a_broker_that_stays_silent_is_fenced_and_what_it_says_then_comes_too_late() -> None:
    lease = ready()
    assert pass_time(lease, FENCED_NS - LOOK_EVERY_NS) is BrokerState.SUSPECT
    assert pass_time(lease, LOOK_EVERY_NS) is BrokerState.FENCED
    lease.renew(BrokerState.READY)
    lease.ready()
    assert lease.state is BrokerState.FENCED


def test_a_broker_that_works_and_is_silent_has_a_minute() -> None:
    lease = ready()
    assert pass_time(lease, HUNG_NS - LOOK_EVERY_NS, works=True) is BrokerState.SUSPECT
    assert pass_time(lease, LOOK_EVERY_NS, works=True) is BrokerState.FENCED


def test_a_broker_whose_disk_hangs_says_so_and_is_never_fenced_for_it() -> None:
    lease = ready()
    for _ in range(100):
        lease.renew(BrokerState.SUSPECT)
        assert pass_time(lease, RENEW_EVERY_NS) is BrokerState.SUSPECT


@pytest.mark.parametrize("state", [BrokerState.READ_ONLY, BrokerState.FULL])
def test_a_broker_that_takes_no_messages_still_has_to_renew(state: BrokerState) -> None:
    lease = ready()
    lease.renew(state)
    assert lease.state is state
    assert pass_time(lease, SUSPECT_NS) is BrokerState.SUSPECT
    lease.renew(state)
    assert lease.state is state
    assert pass_time(lease, FENCED_NS) is BrokerState.FENCED


def test_a_broker_that_drains_owes_nothing_more() -> None:
    lease = ready()
    lease.renew(BrokerState.DRAINING)
    assert pass_time(lease, HUNG_NS) is BrokerState.DRAINING
    lease.ended()
    assert lease.state is BrokerState.ENDED


def test_a_start_takes_as_long_as_it_works_and_is_fenced_if_it_does_nothing_for_a_minute() -> None:
    lease = Lease()
    lease.started()
    assert pass_time(lease, 10 * HUNG_NS, works=True) is BrokerState.STARTING
    assert pass_time(lease, START_IDLE_NS - LOOK_EVERY_NS) is BrokerState.STARTING
    assert pass_time(lease, LOOK_EVERY_NS) is BrokerState.FENCED


def test_a_broker_that_crashes_too_often_gets_new_topics_when_it_has_served_for_a_minute() -> None:
    lease = crash_looping()
    lease.renew(BrokerState.READY)  # Its loop runs before it serves.
    assert not ALLOWS[lease.state].lookups
    assert pass_time(lease, START_IDLE_NS - LOOK_EVERY_NS) is BrokerState.CRASH_LOOPING
    lease.ready()
    assert pass_time(lease, 0) is BrokerState.PROVING
    for _ in range(FORGIVEN_S - 1):
        assert pass_time(lease, NS_PER_S) is BrokerState.PROVING
        lease.renew(BrokerState.READY)
    pass_time(lease, NS_PER_S)
    lease.renew(BrokerState.READY)
    assert lease.state is BrokerState.READY


def test_time_in_which_a_broker_does_not_serve_proves_nothing() -> None:
    lease = crash_looping()
    lease.ready()
    for _ in range(FORGIVEN_S):
        lease.renew(BrokerState.SUSPECT)
        pass_time(lease, NS_PER_S)
    lease.renew(BrokerState.READY)
    assert pass_time(lease, 0) is BrokerState.PROVING
    assert pass_time(lease, SUSPECT_NS) is BrokerState.SUSPECT
    lease.crashed(often=False)
    lease.ready()
    assert lease.state is BrokerState.READY


def crash_looping() -> Lease:
    lease = ready()
    lease.crashed(often=True)
    lease.started()
    return lease


def test_each_state_says_what_it_allows_and_only_ready_ones_get_topics() -> None:
    assert ALLOWS.keys() == set(BrokerState)
    assert [state for state, allows in ALLOWS.items() if allows.new_topics] == [BrokerState.READY]
    for state, allows in ALLOWS.items():
        assert allows.lookups or not allows.serves, state


# -- by seed -----------------------------------------------------------------------------------------------------------

STEP_NS = NS_PER_S // 10
STEPS = 6_000  # ten minutes
NOTICED_NS = 5 * NS_PER_S
KILLED_NS = 10 * NS_PER_S
SAID = (BrokerState.READY, BrokerState.READY, BrokerState.FULL)


class Process:
    """A broker process: it starts, renews its lease, and has troubles."""

    def __init__(self, chance: random.Random, now_ns: int) -> None:
        self.chance = chance
        self.ready_ns = now_ns + chance.randrange(NS_PER_S, 5 * NS_PER_S)
        self.renew_ns = self.ready_ns
        self.frozen = False
        self.crashed = False
        self.busy_until_ns = 0
        self.sent: list[BrokerState] = []  # what the supervisor has not read

    def step(self, now_ns: int) -> None:
        if self.frozen or self.crashed or now_ns < max(self.ready_ns, self.busy_until_ns):
            return
        match self.chance.randrange(1_500):
            case 0:
                self.frozen = True
            case 1:
                self.crashed = True
            case 2 | 3:  # A turn of its loop takes long, on a machine that has no time for it.
                self.busy_until_ns = now_ns + self.chance.randrange(40 * NS_PER_S)
        if now_ns >= self.renew_ns:
            self.sent.append(self.chance.choice(SAID))
            self.renew_ns = now_ns + RENEW_EVERY_NS

    def works(self, now_ns: int) -> bool:
        return not self.frozen and now_ns < max(self.ready_ns, self.busy_until_ns)


class World:
    """One broker, and its supervisor, which is frozen now and then, too."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ns = 0
        self.lease = Lease()
        self.restarts = Restarts()
        self.process: Process | None = None
        self.start_ns = 0
        self.awake_from_ns = 0  # when the supervisor runs again
        self.looked_ns = 0
        self.frozen_ns = 0  # for how long the broker is, while the supervisor runs
        self.killed = 0

    def step(self) -> None:
        self.now_ns += STEP_NS
        if self.process is not None:
            self.process.step(self.now_ns)
        if self.now_ns >= self.awake_from_ns:
            self.supervise()
            if self.chance.randrange(2_000) == 0:
                self.awake_from_ns = self.now_ns + self.chance.randrange(120 * NS_PER_S)

    def supervise(self) -> None:
        if self.process is None:
            if self.now_ns >= self.start_ns:
                self.process = Process(self.chance, self.now_ns)
                self.lease.started()
            return
        if self.process.crashed:
            self.end()
            return
        if self.now_ns >= self.process.ready_ns and self.lease.state in {
            BrokerState.STARTING,
            BrokerState.CRASH_LOOPING,
        }:
            self.lease.ready()
            self.restarts.ready(self.now_ns)
        while self.process.sent:
            self.lease.renew(self.process.sent.pop(0))
        self.frozen_ns = self.frozen_ns + STEP_NS if self.process.frozen else 0
        if self.now_ns - self.looked_ns >= LOOK_EVERY_NS:
            self.look(self.process)

    def look(self, process: Process) -> None:
        elapsed_ns, self.looked_ns = min(self.now_ns - self.looked_ns, ELAPSED_NS_MAX), self.now_ns
        self.lease.pass_time(elapsed_ns, works=self.lease.is_doubtful and process.works(self.now_ns))
        assert self.frozen_ns < NOTICED_NS or not ALLOWS[self.lease.state].new_topics, "not noticed"
        assert self.frozen_ns < KILLED_NS or self.lease.state is BrokerState.FENCED, "not killed"
        if self.lease.state is BrokerState.FENCED:
            assert process.frozen, "killed, and it worked"
            self.killed += 1
            self.end()

    def end(self) -> None:
        self.process, self.frozen_ns = None, 0
        self.start_ns = self.now_ns + int(self.restarts.pause_after_crash(self.now_ns) * NS_PER_S)
        self.lease.crashed(often=self.restarts.is_crash_looping)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_frozen_broker_is_noticed_and_killed_in_time_and_no_other_is_killed(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    if seed < 10:
        assert world.killed, "nothing was tested"
