# SPDX-License-Identifier: Apache-2.0
"""What sharing quotas costs at the scale of PIP-82: 100,000 groups, 100 brokers, 5 of them for each group.

One broker is real, with its 5,000 groups, its exchange and its codec. The reports of the 99 others have the same number
of groups with similar traffic, so all bytes of the cluster are 100 times those of the real one. Steady state: each
group has a constant mean of 20 to 2,000 messages per second, arriving by chance, and one group in fifty changes by half
in each cycle. Budgets: 1.2 MB per broker; a tenth of the PIP's 56 MB sent and 5.6 GB received per cycle; 100 ms to
divide all quotas of a broker.

Run: python -m benchmarks.shared_quotas
"""

from __future__ import annotations

import random
import statistics
from time import process_time_ns
from typing import Final

from penstock.core.units import NS_PER_S
from penstock.core.usage_report import Acknowledgement, GroupUsage, UsageReport, member_id
from penstock.governance.quota_exchange import MEASURED_AT_ONCE, MEASURED_PER_INTERVAL, ExchangeOptions, QuotaExchange
from penstock.governance.resource_group import GroupLimiter, GroupRates
from penstock.wire.usage_reports import decode, encode, group_id

BROKERS: Final = 100
GROUPS: Final = 100_000
BROKERS_OF_A_GROUP: Final = 5
OWN: Final = GROUPS * BROKERS_OF_A_GROUP // BROKERS
TOPICS: Final = (1, 8)  # usage topics
CYCLES: Final = 5
DIVISIONS: Final = 5  # the fastest counts
KEY: Final = b"the key of the cluster"
WALL_MS: Final = 1_700_000_000_000
# The PIP's estimate for one cycle.
PIP_SENT_BYTES: Final = 56_000_000
PIP_RECEIVED_BYTES: Final = 5_600_000_000
MESSAGE_BYTES: Final = 900


class Group(GroupLimiter):
    """A group with publish and dispatch traffic, which grows by chance around mean rates."""

    __slots__ = ("rates",)
    topics = 3

    def __init__(self, rate: float) -> None:
        super().__init__(GroupRates(), 0)
        self.rates = [rate, rate]

    def grow(self, seconds: float, chance: random.Random, now_ns: int) -> None:
        for rate, limiter in zip(self.rates, (self.publish, self.dispatch), strict=True):
            mean = rate * seconds
            count = max(0, round(chance.gauss(mean, mean**0.5)))
            limiter.charge(count, count * MESSAGE_BYTES, now_ns)


def quotas(rate: float) -> tuple[int, int, int, int]:
    """Quotas of a group of which this broker uses a part, in thousandths per second."""
    messages = round(rate * BROKERS_OF_A_GROUP * 1_500)
    return messages, messages * MESSAGE_BYTES, messages, messages * MESSAGE_BYTES


class Scale:
    """The real broker, with one exchange per usage topic."""

    def __init__(self, topics: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topics = topics
        self.now_ns = 0
        self.sequence = 0  # of the reports of others
        self.rates = {
            group_id(f"tenant-{number // 50}/namespace-{number}"): 20 * 100 ** self.chance.random()
            for number in range(OWN)
        }
        self.groups = {one: Group(rate) for one, rate in self.rates.items()}
        names = [f"broker-{number}.example.com:6650" for number in range(BROKERS)]
        options = ExchangeOptions(measured_at_once=-(-MEASURED_AT_ONCE // topics))
        self.exchanges = [QuotaExchange(names[0], 1, options, 0) for _ in range(topics)]
        for exchange in self.exchanges:
            exchange.set_members(names, 0)
        for one, group in self.groups.items():
            self._exchange(one).set_group(one, quotas(self.rates[one]), group, 0)
        self.others: list[list[int]] = [[] for _ in names]  # the groups that another broker has, too
        for one in self.groups:
            for number in self.chance.sample(range(1, BROKERS), BROKERS_OF_A_GROUP - 1):
                self.others[number].append(one)
        self.names = names

    def _exchange(self, group: int) -> QuotaExchange:
        return self.exchanges[group % self.topics]

    def cycle(self) -> tuple[list[bytes], int]:
        """Let one interval pass; return the payloads that were sent, and the nanoseconds of CPU."""
        interval_ns = ExchangeOptions().interval_ns
        payloads = []
        took_ns = 0
        for one in self.chance.sample(sorted(self.groups), OWN // 50):
            self.groups[one].rates = [self.rates[one] * self.chance.choice([0.5, 1, 1.5]) for _ in range(2)]
        for step in range(MEASURED_PER_INTERVAL):
            self.now_ns += interval_ns // MEASURED_PER_INTERVAL
            if step % 5 == 0:
                for group in self.groups.values():
                    group.grow(5 * interval_ns / MEASURED_PER_INTERVAL / NS_PER_S, self.chance, self.now_ns)
            started_ns = process_time_ns()
            for exchange in self.exchanges:
                reports = exchange.poll(self.now_ns, WALL_MS)
                payloads += [encode(report, KEY) for report in reports]
                if reports:
                    self._acknowledge(exchange, reports[-1].sequence)
            took_ns += process_time_ns() - started_ns
        return payloads, took_ns

    def _acknowledge(self, exchange: QuotaExchange, sequence: int) -> None:
        """All others acknowledge a report: at once if it asks for that, else in their next regular ones."""
        self.sequence += 1
        heard = (Acknowledgement(member_id(self.names[0]), sequence),)
        for name in self.names[1:]:
            exchange.receive(UsageReport(name, 1, self.sequence, WALL_MS, heard=heard), self.now_ns, WALL_MS)

    def hear(self, part: float) -> tuple[int, int]:
        """Receive a report of each other broker that lists this part of its groups; return its bytes and the CPU."""
        nbytes = took_ns = 0
        self.sequence += 1
        for number in range(1, BROKERS):
            for topic, exchange in enumerate(self.exchanges):
                payload = encode(self._report(number, topic, part), KEY)
                nbytes += len(payload)
                started_ns = process_time_ns()
                exchange.receive(decode(payload, KEY, exchange.serves), self.now_ns, WALL_MS)
                took_ns += process_time_ns() - started_ns
        return nbytes, took_ns

    def _report(self, number: int, topic: int, part: float) -> UsageReport:
        chance = self.chance
        shared = set(self.others[number])
        ids = {one for one in shared if one % self.topics == topic}
        ids |= {one for one in (chance.getrandbits(64) for _ in range(OWN - len(shared))) if one % self.topics == topic}
        usages = []
        for one in sorted(ids):
            if chance.random() >= part:
                continue
            messages = round(self.rates.get(one, 20 * 100 ** chance.random()) * 1_000 * chance.uniform(0.9, 1.1))
            used = (messages, messages * MESSAGE_BYTES, messages, messages * MESSAGE_BYTES)
            usages.append(GroupUsage(one, 3, used, (0, 0, 0, 0)))
        last = self.exchanges[topic]._sequence  # noqa: SLF001
        heard = tuple(Acknowledgement(member_id(name), last) for name in self.names)
        return UsageReport(self.names[number], 1, self.sequence, WALL_MS, tuple(usages), heard=heard)


def measure(topics: int) -> dict[str, float]:
    scale = Scale(topics, seed=1)
    heard_bytes, heard_ns = scale.hear(1)  # as after a start: all groups of all brokers
    for exchange in scale.exchanges:
        for sender in exchange._members._senders.values():  # noqa: SLF001 -- as if their reports had been complete
            sender.complete = True
        exchange._review(0)  # noqa: SLF001
    complete, _ = scale.cycle()
    sent, spent = [], []
    for _ in range(CYCLES):
        payloads, took_ns = scale.cycle()
        sent.append(sum(map(len, payloads)))
        spent.append(took_ns)
    part = statistics.mean(sent) / max(1, sum(map(len, complete)))
    _, steady_ns = scale.hear(min(1, part))
    divide_ns = []
    for _ in range(DIVISIONS):
        started_ns = process_time_ns()
        for exchange in scale.exchanges:
            exchange._apply_all(scale.now_ns)  # noqa: SLF001 -- all quotas of the broker, as when a member leaves
        divide_ns.append(process_time_ns() - started_ns)
    return {
        "memory of the broker, MB": sum(exchange.nbytes for exchange in scale.exchanges) / 1e6,
        "complete report of the broker, KB": heard_bytes / (BROKERS - 1) / 1e3,
        "sent by the broker in a cycle, KB": statistics.mean(sent) / 1e3,
        "sent by all, MB": statistics.mean(sent) * BROKERS / 1e6,
        "received by all, GB": statistics.mean(sent) * BROKERS * BROKERS / 1e9,
        "of the PIP's estimate, %": statistics.mean(sent) * BROKERS / PIP_SENT_BYTES * 100,
        "measure and encode in a cycle, ms": statistics.mean(spent) / 1e6,
        "decode and receive in a cycle, ms": steady_ns / 1e6,
        "decode and receive all groups, ms": heard_ns / 1e6,
        "divide all quotas once, ms": min(divide_ns) / 1e6,
    }


def main() -> None:
    figures = {f"{topics} usage topic{'s' if topics > 1 else ''}": measure(topics) for topics in TOPICS}
    rows = next(iter(figures.values()))
    print(f"{GROUPS:,} groups, {BROKERS} brokers, {BROKERS_OF_A_GROUP} for each group; {OWN:,} groups per broker\n")
    print(f"| figure | {' | '.join(figures)} |\n|---|{'---|' * len(figures)}")
    for name in rows:
        print(f"| {name} | {' | '.join(f'{column[name]:,.2f}' for column in figures.values())} |")


if __name__ == "__main__":
    main()
