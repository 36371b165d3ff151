# SPDX-License-Identifier: Apache-2.0
"""Adaptive publish throttling of a broker: who pays for the pressure, and what is counted.

Why apart from `adaptive_throttle`: the backlog of a topic is its own, but memory and the disk belong to all topics. A
law that slows all of them alike punishes those who did nothing (A8). So topics are weighted by what they contribute.

Accounts. The payer of a topic is its resource group, else its tenant. A client chooses the names of its topics, but not
who pays. So each payer has an account: the law itself, with the sums of all its topics. What a new topic would begin
anew is there already: the natural rate, the limit and its debt. A topic that is new, renamed or one of fifty takes part
in what its payer has left. The limits of topics then say only which of its topics are slowed first.

Weights. A payer whose bytes per second are at least the mean of all payers has weight 1; one with half of the mean or
less has weight 0, and is not slowed; a straight line between. The topics of a payer are weighted alike among
themselves, and both weights are multiplied. So a single tenant with equal topics has weight 1 everywhere, which is the
law without weights. Rates are natural ones, so that a payer that is slowed does not become a small one.

Where: `groups.adaptive_throttling` visits topics and payers in turns; `penstock replay` and simulations visit them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.governance.adaptive_throttle import HELD_FAILURES, Kind, Pressures, Seen, Throttle, ThrottleOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.governance.adaptive_throttle import ThrottleDecision

# Begins the name of a payer that is a resource group. Others are tenants: no tenant has a slash in its name.
GROUP: Final = "group/"
# Below this part of the mean nobody pays.
CALM_PART: Final = 0.5


class Contributions:
    """Bytes per second by payer, and by topic of a payer, as one round of visits has found them."""

    __slots__ = ("_of_payers", "_of_topics", "_total")

    def __init__(self) -> None:
        self._of_payers: dict[str, float] = {}
        self._of_topics: dict[str, tuple[float, int]] = {}  # their sum, and how many
        self._total = 0.0

    def add_payer(self, payer: str, bytes_per_s: float) -> None:
        """Count a payer."""
        self._of_payers[payer] = bytes_per_s
        self._total += bytes_per_s

    def add_topic(self, payer: str, bytes_per_s: float) -> None:
        """Count a topic."""
        total, count = self._of_topics.get(payer, (0.0, 0))
        self._of_topics[payer] = total + bytes_per_s, count + 1

    def of_payer(self, payer: str) -> float:
        """Return the part in a pressure of the whole broker that a payer has to pay, from 0 to 1."""
        bytes_per_s = self._of_payers.get(payer, 0.0)
        return _weight(bytes_per_s * len(self._of_payers), self._total) if bytes_per_s > 0.0 else 1.0  # 1: new

    def of_topic(self, payer: str, bytes_per_s: float) -> float:
        """Return the part that a topic of this payer has to pay."""
        total, count = self._of_topics.get(payer, (0.0, 0))
        among_its_own = _weight(bytes_per_s * count, total) if total > 0.0 else 1.0
        return self.of_payer(payer) * among_its_own


class Account:
    """What a payer is known for, whatever its topics are called.

    Attributes:
        throttle: the law, with the sums of all topics.
        messages: published to all of them; and `bytes`.
    """

    __slots__ = ("_held_bytes", "_held_messages", "_rounds", "_topics_limited", "bytes", "messages", "throttle")

    def __init__(self, payer: str, now_ns: int) -> None:
        self.throttle = Throttle("", payer, Seen(0, 0), now_ns)
        self.messages = 0
        self.bytes = 0
        self._rounds = 0  # in which it was visited
        self._held_messages = 0
        self._held_bytes = 0
        self._topics_limited = False

    def count(self, messages: int, nbytes: int) -> None:
        """Count what was published to a topic since it was counted last."""
        self.messages += messages
        self.bytes += nbytes

    def topic_seen(self, seen: Seen, throttle: Throttle) -> None:
        """Take part in what waits for the limit of a topic."""
        self._held_messages += seen.held_messages
        self._held_bytes += seen.held_bytes
        self._topics_limited |= throttle.limited

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost if this account were dropped."""
        return self._rounds > 1 and self.throttle.idle

    def measure(self, seen: Seen, options: ThrottleOptions, now_ns: int) -> bool:
        """Update the natural rates, after those of the topics. What waits is known from these.

        The first round only begins: what it has counted was published nobody knows since when.
        """
        self._rounds += 1
        seen = seen._replace(
            held_messages=self._held_messages,
            held_bytes=self._held_bytes,
            limited_elsewhere=self.throttle.enforced and self._topics_limited,
        )
        self._held_messages = self._held_bytes = 0
        self._topics_limited = False
        if self._rounds == 1:
            self.throttle.restart(seen, now_ns)
            return False
        return self.throttle.measure(seen, options, now_ns)


def _weight(value: float, mean: float) -> float:
    ratio = value / mean
    return min(1.0, max(0.0, (ratio - CALM_PART) / (1.0 - CALM_PART)))


class ThrottleController:
    """Decides about all topics and payers of a broker.

    Cycles are `begin`, then `visit` of topics; a round of cycles ends with `visit_payer` of all payers and `end_round`.

    Attributes:
        options: the law's parameters.
        memory_pressure: of the current cycle; and `queueing_pressure`.
        accounts: by payer.
        active: topics that are throttled.
        observed: topics that would be.
        payers: those that are, or would be.
        activations: how often a topic was activated.
        failures: cycles in which something failed.
    """

    def __init__(self, options: ThrottleOptions, observer: Callable[[ThrottleDecision], None]) -> None:
        """Args: observer: is told every decision."""
        self.options = options
        self.memory_pressure = 0.0
        self.queueing_pressure = 0.0
        self.accounts: dict[str, Account] = {}
        self.active: dict[Throttle, None] = {}
        self.observed: dict[Throttle, None] = {}
        self.payers: dict[Throttle, None] = {}
        self.activations = 0
        self.failures = 0
        self._observer = observer
        self._failed_in_row = 0
        self._before = Contributions()
        self._now = Contributions()

    def begin(self, options: ThrottleOptions, *, memory: float, queueing_s: float) -> None:
        """Begin a cycle.

        Args:
            options: the law's parameters from now on.
            memory: part of the memory limit that is in use.
            queueing_s: seconds that an append has to wait until it is durable.
        """
        self.options = options
        self.memory_pressure = options.memory.pressure(memory)
        self.queueing_pressure = options.queueing.pressure(queueing_s)

    def account(self, payer: str, now_ns: int) -> Account:
        """Return the account of a payer; a payer that is not known gets one."""
        account = self.accounts.get(payer)
        if account is None:
            account = self.accounts[payer] = Account(payer, now_ns)
        return account

    def visit(self, throttle: Throttle, seen: Seen, backlog: float, now_ns: int) -> ThrottleDecision | None:
        """Measure one topic, and decide about it. Its payer has an account.

        Args:
            throttle: its state.
            seen: its counters.
            backlog: part of its backlog quota that is in use; 0 without a quota.
            now_ns: monotonic time.
        """
        options, account = self.options, self.accounts[throttle.payer]
        if account.throttle.limited:
            seen = seen._replace(limited_elsewhere=True)
        if not throttle.measure(seen, options, now_ns):
            return None
        account.topic_seen(seen, throttle)
        natural_bytes = throttle.bytes.natural
        self._now.add_topic(throttle.payer, natural_bytes)
        memory, queueing = self.memory_pressure, self.queueing_pressure
        # Most visits of most brokers end here.
        if not throttle.active and memory <= 0.0 and queueing <= 0.0 and backlog <= options.backlog.low:
            throttle.pressures = _NONE
            return None
        weight = self._before.of_topic(throttle.payer, natural_bytes)
        pressures = Pressures(memory, options.backlog.pressure(backlog), queueing, weight)
        return self._tell(throttle, throttle.step(pressures, options, now_ns))

    def visit_payer(self, account: Account, seen: Seen, now_ns: int) -> ThrottleDecision | None:
        """Measure a payer after its topics, and decide about it. `seen`: without what waits."""
        throttle, options = account.throttle, self.options
        if not account.measure(seen, options, now_ns):
            return None
        self._now.add_payer(throttle.payer, throttle.bytes.natural)
        weight = self._before.of_payer(throttle.payer)
        pressures = Pressures(self.memory_pressure, 0.0, self.queueing_pressure, weight)
        return self._tell(throttle, throttle.step(pressures, options, now_ns))

    def forget_payer(self, account: Account) -> None:
        """Drop an account that is idle: its next message begins it anew."""
        self.accounts.pop(account.throttle.payer, None)

    def end_round(self) -> None:
        """All topics and payers were visited: their contributions count from now on."""
        self._before, self._now = self._now, Contributions()

    # -- failures

    def cycle_succeeded(self) -> None:
        """A cycle ended without a failure."""
        self._failed_in_row = 0

    def cycle_failed(self) -> bool:
        """Pressures cannot be measured. Limits stay for some cycles; then returns True: `release_step` all topics."""
        self.failures += 1
        self._failed_in_row += 1
        return self._failed_in_row > HELD_FAILURES

    def visit_failed(self, throttle: Throttle, now_ns: int) -> None:
        """One topic cannot be measured; the same for it alone."""
        throttle.failures += 1
        if throttle.failures > HELD_FAILURES:
            self.release_step(throttle, now_ns)

    def release_step(self, throttle: Throttle, now_ns: int) -> None:
        """Raise the limit of a topic by a step, whatever the pressure is."""
        self._tell(throttle, throttle.release_step(self.options, now_ns))

    # -- ends

    def release(self, throttle: Throttle, now_ns: int, why: str) -> None:
        """Deactivate a topic at once, if it is active."""
        if throttle.active:
            self._tell(throttle, throttle.end(now_ns, why))

    def _tell(self, throttle: Throttle, decision: ThrottleDecision | None) -> ThrottleDecision | None:
        if decision is not None:
            if decision.kind is Kind.ACTIVATED and throttle.topic:
                self.activations += 1
            for kept in (self.active, self.observed, self.payers):
                kept.pop(throttle, None)
            if throttle.active:
                self._kept(throttle)[throttle] = None
            self._observer(decision)
        return decision

    @property
    def throttled(self) -> Sequence[Throttle]:
        """All topics and payers that are throttled, or would be."""
        return [*self.active, *self.observed, *self.payers]

    def _kept(self, throttle: Throttle) -> dict[Throttle, None]:
        if not throttle.topic:
            return self.payers
        return self.observed if throttle.observed else self.active


_NONE: Final = Pressures()
