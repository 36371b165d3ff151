# SPDX-License-Identifier: Apache-2.0
"""Brokers that share the quota of one group, on a virtual clock, with the broker's own limiters and exchange.

Publishers offer messages to each broker at a given rate. When a tenth of a second's messages wait, the publishers stop;
or, if the scenario says so, all that arrives is kept until it is served. What is served is compared with what one
broker with the whole quota would serve, if it divided it fairly among those whose messages wait.
Reports go through the codec, and arrive late, twice or never, as the scenario says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import add, sub
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.allocation import Strategy, water_level
from penstock.governance.quota_exchange import ExchangeOptions, QuotaExchange, quotas_of
from penstock.governance.resource_group import Amount, GroupLimiter, GroupRate, GroupRates
from penstock.wire.usage_reports import decode, encode

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from penstock.core.usage_report import UsageReport

TICK_NS = 20 * NS_PER_MS
TICKS_PER_S = NS_PER_S // TICK_NS
INTERVAL_S = 5
MESSAGE_BYTES = 100
QUEUE_S = 0.1
GROUP = 7
KEY = b"the key of the cluster"
WALL_MS = 1_700_000_000_000


class Group(GroupLimiter):
    """The limiter of a broker, as the exchange sees it."""

    topics = 1


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What happens to reports and brokers. Times are seconds."""

    delay_s: tuple[float, float] = (0.002, 0.02)
    loss: float = 0.0
    repeated: float = 0.0
    partition: tuple[float, float, frozenset[int]] | None = None  # from, to, the brokers of one side
    kills: tuple[tuple[float, float, int], ...] = ()  # when, noticed after, broker
    restarts: tuple[tuple[float, int], ...] = ()  # when, the killed broker
    freezes: tuple[tuple[float, float, int], ...] = ()  # from, to, broker; what arrives meanwhile is read afterwards
    clocks_ms: tuple[int, ...] = ()  # by broker: how far its clock is ahead


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What happens. `demand(broker, second, chance)` is in messages per second.

    Attributes:
        keeps: publishers never stop; what waits is kept.
        interval_s: between two regular reports.
    """

    name: str
    brokers: int
    demand: Callable[[int, float, random.Random], float]
    quota: int | None = 10_000
    seconds: int = 50
    event_s: float = 20  # what happens
    events_s: tuple[float, ...] = ()  # if several things do
    quotas: tuple[tuple[float, int | None], ...] = ()
    faults: Faults = field(default_factory=Faults)
    keeps: bool = False
    interval_s: float = INTERVAL_S

    @property
    def all_events_s(self) -> tuple[float, ...]:
        return self.events_s or (self.event_s,)

    @property
    def faulty(self) -> bool:
        return self.faults != Faults()


class Second(NamedTuple):
    """What happened in one second."""

    quota: float | None
    demand: list[float]
    served: list[int]
    fair: list[float]  # max-min fair rates of what was demanded, or of what would wait at one broker

    @property
    def possible(self) -> float:
        """What could have been served."""
        return sum(self.fair)


def fair(quota: float | None, demand: list[float]) -> list[float]:
    """Return the max-min fair rates."""
    if quota is None or sum(demand) <= quota:
        return demand
    level = water_level(round(quota * 1_000), [round(rate * 1_000) for rate in demand]) / 1_000
    return [min(rate, level) for rate in demand]


class OneBroker:
    """What one broker with the whole quota would serve: all that waits, and in want of quota, fairly."""

    def __init__(self, brokers: int) -> None:
        self.waiting = [0.0] * brokers

    def serve(self, arrived: list[float], quota: float | None) -> list[float]:
        """Messages of one tick; returns what is served of each."""
        waiting = list(map(add, self.waiting, arrived))
        served = fair(quota, waiting)
        self.waiting = list(map(sub, waiting, served))
        return served


class Broker:
    """One broker: publishers that wait, the limiter, the exchange."""

    def __init__(
        self, number: int, quota: int | None, options: ExchangeOptions, clock_ms: int, now_ns: int = 0
    ) -> None:
        self.number = number
        self.alive = True
        self.waiting = 0.0
        self.clock_ms = clock_ms
        self.group = Group(rates(quota), now_ns)
        self.exchange = QuotaExchange(name(number), 1 + now_ns, options, now_ns)
        self.exchange.set_group(GROUP, quotas_of(rates(quota)), self.group, now_ns)

    def serve(self, offered: float, now_ns: int, *, keeps: bool) -> int:
        """Publishers offer messages for one tick; return how many are accepted."""
        waiting = self.waiting + offered / TICKS_PER_S
        if not keeps:
            waiting = min(waiting, offered * QUEUE_S + 1) if offered else 0.0
        accepted = 0
        limiter = self.group.publish
        if waiting >= 1 and limiter.ready(now_ns):
            left = limiter.left(now_ns)[0]
            accepted = int(waiting) if left is None else min(int(waiting), left)
            limiter.charge(accepted, accepted * MESSAGE_BYTES, now_ns)
            waiting -= accepted
        limiter.held = Amount(int(waiting), int(waiting) * MESSAGE_BYTES)
        if waiting >= 1:
            limiter.waits(now_ns)
        else:
            limiter.waits_no_more(now_ns)
        self.waiting = waiting
        return accepted


class World:
    """A scenario under one strategy."""

    def __init__(self, scenario: Scenario, strategy: Strategy, chance: random.Random) -> None:
        self.scenario = scenario
        self.faults = scenario.faults
        self.chance = chance
        self.options = options = ExchangeOptions(interval_ns=round(scenario.interval_s * NS_PER_S), strategy=strategy)
        clocks = self.faults.clocks_ms or (0,) * scenario.brokers
        self.quota = scenario.quota
        self.brokers = [Broker(number, self.quota, options, clocks[number]) for number in range(scenario.brokers)]
        self.seconds: list[Second] = []
        self.spent: list[int] = []  # by all brokers, in each tick
        self.shares: list[float] = []  # of all that are neither dead nor frozen, after each tick
        self.reports = self.report_bytes = 0
        self._one = OneBroker(scenario.brokers)
        self._mail: list[tuple[int, int, int, UsageReport]] = []
        self._posted = 0
        self._starts_ns = [chance.randrange(NS_PER_S // 2) for _ in self.brokers]

    def run(self) -> Sequence[Second]:
        scenario, brokers, chance = self.scenario, self.brokers, self.chance
        for broker in brokers:
            broker.exchange.set_members([name(other.number) for other in brokers], 0)
        quotas, kills = list(scenario.quotas), sorted(self.faults.kills)
        gone = sorted((at + noticed, number) for at, noticed, number in kills)
        restarts = sorted(self.faults.restarts)
        now_ns = 0
        for _ in range(scenario.seconds):
            served, demand, quota_sum = [0] * len(brokers), [0.0] * len(brokers), 0.0
            possible = [0.0] * len(brokers)
            for _ in range(TICKS_PER_S):
                now_ns += TICK_NS
                now_s = now_ns / NS_PER_S
                while quotas and quotas[0][0] < now_s:
                    self._set_quota(quotas.pop(0)[1], now_ns)
                while kills and kills[0][0] < now_s:
                    brokers[kills.pop(0)[2]].alive = False
                while gone and gone[0][0] < now_s:
                    gone.pop(0)
                    self._notice_members(now_ns)
                while restarts and restarts[0][0] < now_s:
                    self._restart(restarts.pop(0)[1], now_ns)
                self._deliver(now_ns)
                quota_sum += self.quota or 0
                arrived = [0.0] * len(brokers)
                before = sum(served)
                for number, broker in enumerate(brokers):
                    if not broker.alive:
                        self._one.waiting[number] = 0.0
                        continue
                    offered = scenario.demand(number, now_s, chance)
                    arrived[number] = offered / TICKS_PER_S
                    if self._thaws_ns(number, now_ns):
                        broker.waiting += arrived[number]
                        continue
                    served[number] += broker.serve(offered, now_ns, keeps=scenario.keeps)
                    if now_ns >= max(self._starts_ns[number], broker.exchange.poll_at_ns):
                        self._poll(broker, now_ns)
                self.spent.append(sum(served) - before)
                self.shares.append(sum(self._share(broker, now_ns) for broker in brokers))
                demand = list(map(add, demand, arrived))
                if scenario.keeps:
                    per_tick = None if self.quota is None else self.quota / TICKS_PER_S
                    possible = list(map(add, possible, self._one.serve(arrived, per_tick)))
            quota = None if self.quota is None else quota_sum / TICKS_PER_S
            self.seconds.append(Second(quota, demand, served, possible if scenario.keeps else fair(quota, demand)))
        return self.seconds

    def _share(self, broker: Broker, now_ns: int) -> float:
        working = broker.alive and not self._thaws_ns(broker.number, now_ns)
        return (broker.group.publish.share.messages or 0.0) if working else 0.0

    def _set_quota(self, quota: int | None, now_ns: int) -> None:
        self.quota = quota
        for broker in self.brokers:
            broker.exchange.set_group(GROUP, quotas_of(rates(quota)), broker.group, now_ns)

    def _restart(self, number: int, now_ns: int) -> None:
        self.brokers[number] = Broker(number, self.quota, self.options, self.brokers[number].clock_ms, now_ns)
        self._notice_members(now_ns)

    def _thaws_ns(self, number: int, now_ns: int) -> int:
        """When a broker that is frozen now goes on; 0: it is not frozen."""
        now_s = now_ns / NS_PER_S
        return next(
            (
                round(to_s * NS_PER_S)
                for from_s, to_s, one in self.faults.freezes
                if one == number and from_s <= now_s < to_s
            ),
            0,
        )

    def _notice_members(self, now_ns: int) -> None:
        members = [name(broker.number) for broker in self.brokers if broker.alive]
        for broker in self.brokers:
            if broker.alive:
                broker.exchange.set_members(members, now_ns)

    def _poll(self, broker: Broker, now_ns: int) -> None:
        for report in broker.exchange.poll(now_ns, self._wall_ms(broker, now_ns)):
            payload = encode(report, KEY)
            self.reports += 1
            self.report_bytes += len(payload)
            self._publish(broker, decode(payload, KEY, broker.exchange.serves), now_ns)

    def _publish(self, broker: Broker, report: UsageReport, now_ns: int) -> None:
        faults, chance = self.faults, self.chance
        for other in self.brokers:
            if other is broker or chance.random() < faults.loss or self._parted(broker.number, other.number, now_ns):
                continue
            self._post(report, other, now_ns)
            if chance.random() < faults.repeated:
                self._post(report, other, now_ns + NS_PER_S)

    def _parted(self, one: int, other: int, now_ns: int) -> bool:
        if self.faults.partition is None:
            return False
        first, last, side = self.faults.partition
        return first <= now_ns / NS_PER_S < last and (one in side) != (other in side)

    def _post(self, report: UsageReport, to: Broker, now_ns: int) -> None:
        delay_ns = int(self.chance.uniform(*self.faults.delay_s) * NS_PER_S)
        self._posted += 1
        heappush(self._mail, (now_ns + delay_ns, self._posted, to.number, report))

    def _deliver(self, now_ns: int) -> None:
        while self._mail and self._mail[0][0] <= now_ns:
            _, posted, number, report = heappop(self._mail)
            broker = self.brokers[number]
            if thaws_ns := self._thaws_ns(number, now_ns):
                heappush(self._mail, (thaws_ns, posted, number, report))
            elif broker.alive:
                broker.exchange.receive(report, now_ns, self._wall_ms(broker, now_ns))

    @staticmethod
    def _wall_ms(broker: Broker, now_ns: int) -> int:
        return WALL_MS + broker.clock_ms + now_ns // NS_PER_MS


def name(number: int) -> str:
    return f"broker-{number}"


def rates(quota: int | None) -> GroupRates:
    return GroupRates(publish=GroupRate(messages=quota))
