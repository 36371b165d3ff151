# SPDX-License-Identifier: Apache-2.0
"""What passed for whoever pays, as the player's own clients saw it, beside what may pass.

The sentence: what passed for the payer <= limit x time + one burst, in every stretch of the play.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Verdict:
    """The worst of one payer: what passed, and what might have."""

    payer: str
    passed: float
    allowed: float
    seconds: float = 0.0  # of the stretch in which it passed; 0: at one moment

    @property
    def ratio(self) -> float:
        """1 is all that was allowed."""
        return self.passed / self.allowed

    @property
    def over(self) -> bool:
        """Whether the limit was escaped."""
        return self.passed > self.allowed

    def __str__(self) -> str:
        when = f" in {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.payer}: {self.passed:.0f} passed{when}, {self.allowed:.0f} allowed ({self.ratio:.2f})"


class Counter(Protocol):
    """Counts for one limit."""

    def verdict(self) -> Verdict:
        """The worst."""

    @property
    def excessive(self) -> bool:
        """Whether so much has passed that the play need not go on."""


@dataclass
class Stretches:
    """What passed of a rate, for one payer.

    The worst stretch is the one with the most above `rate` x its length. It is known at once: of all starts, the one
    with the least passed until then is the worst for every end.
    """

    payer: str
    rate: float
    burst: float
    total: float = 0.0
    _began: tuple[float, float] | None = None  # when and with how much the worst stretch of now began
    _worst: tuple[float, float] = (0.0, 0.0)  # what passed, and in how many seconds

    def add(self, amount: float, now_s: float) -> None:
        """So much passed."""
        began = self._began
        if began is None or self.total - self.rate * now_s < began[1] - self.rate * began[0]:
            began = self._began = (now_s, self.total)
        self.total += amount
        found = (self.total - began[1], now_s - began[0])
        if found[0] - self.rate * found[1] > self._worst[0] - self.rate * self._worst[1]:
            self._worst = found

    def verdict(self) -> Verdict:
        passed, seconds = self._worst
        return Verdict(self.payer, passed, self.rate * seconds + self.burst, seconds)

    @property
    def excessive(self) -> bool:
        return self._worst[0] > 2 * (self.rate * self._worst[1] + self.burst)


@dataclass
class Payers:
    """A rate that each of many has, such as a topic."""

    rate: float
    burst: float
    each: dict[str, Stretches] = field(default_factory=dict)

    def add(self, payer: str, amount: float, now_s: float) -> None:
        """So much passed for a payer."""
        if payer not in self.each:
            self.each[payer] = Stretches(payer, self.rate, self.burst)
        self.each[payer].add(amount, now_s)

    def verdict(self) -> Verdict:
        verdicts = [one.verdict() for one in self.each.values()]
        return max(verdicts, key=lambda one: one.ratio, default=Verdict("nobody", 0.0, self.burst))

    @property
    def excessive(self) -> bool:
        return any(one.excessive for one in self.each.values())


@dataclass
class Levels:
    """How many things of each payer there are at once: each is known by its name."""

    limit: int
    most: Verdict | None = None
    each: dict[str, set[str]] = field(default_factory=dict)

    def begun(self, payer: str, thing: str) -> None:
        """There is one more."""
        there = self.each.setdefault(payer, set())
        there.add(thing)
        if self.most is None or len(there) > self.most.passed:
            self.most = Verdict(payer, len(there), self.limit)

    def ended(self, payer: str, thing: str) -> None:
        """It is gone, or told to go."""
        self.each.get(payer, set()).discard(thing)

    def verdict(self) -> Verdict:
        return self.most or Verdict("nobody", 0, self.limit)

    @property
    def excessive(self) -> bool:
        return self.verdict().over


@dataclass
class Retained:
    """Bytes that a topic keeps. Its quota is checked now and then: what comes until the next check is allowed."""

    limit: float
    check_s: float
    each: dict[str, Kept] = field(default_factory=dict)

    def add(self, topic: str, nbytes: int, now_s: float) -> None:
        """So much was stored."""
        kept = self.each.setdefault(topic, Kept(self.limit))
        kept.total += nbytes
        if kept.total > self.limit:
            if kept.exceeded_s is None:
                kept.exceeded_s = now_s
            if now_s <= kept.exceeded_s + self.check_s:
                kept.allowed = kept.total

    def deleted(self, topic: str) -> None:
        """Nothing of it is kept any more."""
        self.each = {name: kept for name, kept in self.each.items() if name.partition(" at ")[0] != topic}

    def verdict(self) -> Verdict:
        verdicts = [Verdict(topic, kept.total, kept.allowed) for topic, kept in self.each.items()]
        return max(verdicts, key=lambda one: one.ratio, default=Verdict("nobody", 0, self.limit))

    @property
    def excessive(self) -> bool:
        return self.verdict().ratio > 2


@dataclass
class Kept:
    """The bytes of one topic."""

    allowed: float
    total: float = 0.0
    exceeded_s: float | None = None
