# SPDX-License-Identifier: Apache-2.0
"""Shares that are not computed again because nothing that they follow from has changed are what they would be."""

from __future__ import annotations

import random

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.core.usage_report import Acknowledgement, Covered, FourNumbers, GroupUsage, UsageReport, member_id
from penstock.governance.quota_exchange import ExchangeOptions, QuotaExchange, quotas_of
from penstock.governance.resource_group import GroupLimiter, GroupRate, GroupRates
from penstock.governance.usage_rows import UsageRows

QUOTA = 1_000
GROUPS = 8
OTHERS = ("b", "c", "d")
WALL_MS = 1_700_000_000_000
STEP_NS = 20 * NS_PER_MS


class Group(GroupLimiter):
    topics = 1


class AlwaysStale(bytearray):
    """All shares are always computed again."""

    def __getitem__(self, index: object) -> int:  # type: ignore[override]
        return 1


def history(seed: int, *, keep: bool) -> tuple[list[tuple[object, ...]], int]:
    """Reports and shares of a broker whose traffic and peers follow from a seed; how often it computed shares."""
    chance = random.Random(seed)
    rates = GroupRates(GroupRate(QUOTA, QUOTA * 100), GroupRate(messages=QUOTA))
    exchange = QuotaExchange("a", 1, ExchangeOptions(), 0)
    if not keep:
        exchange._own.stale = AlwaysStale()  # noqa: SLF001
    groups = [Group(rates, 0) for _ in range(GROUPS)]
    for number, group in enumerate(groups):
        exchange.set_group(number, quotas_of(rates), group, 0)
    exchange.set_members(["a", *OTHERS], 0)
    computed = 0
    apply = exchange._apply  # noqa: SLF001

    def counted(place: int, now_ns: int) -> list[int | None]:
        nonlocal computed
        computed += 1
        return apply(place, now_ns)

    exchange._apply = counted  # type: ignore[method-assign] # noqa: SLF001
    seen: list[tuple[object, ...]] = []
    offered = [0] * GROUPS
    peers: dict[tuple[str, int], FourNumbers] = {}
    sequence = now_ns = last = 0
    for step in range(1_500):
        now_ns += STEP_NS
        if chance.random() < 0.02:
            offered[chance.randrange(GROUPS)] = chance.choice([0, 200, 2_000])
        for group, rate in zip(groups, offered, strict=True):
            if rate and group.publish.ready(now_ns):
                group.publish.charge(rate * STEP_NS // NS_PER_S, rate * 100 * STEP_NS // NS_PER_S, now_ns)
            (group.publish.waits if rate > QUOTA // 2 else group.publish.waits_no_more)(now_ns)
        if chance.random() < 0.1:
            sequence += 1
            name = chance.choice(OTHERS)
            listed = sorted(chance.sample(range(GROUPS), chance.randrange(GROUPS)))
            for number in listed:
                if (name, number) not in peers or chance.random() < 0.2:
                    used = chance.choice([0, 100_000, 400_000])
                    peers[name, number] = used, used * 100, 0, 0
            usages = tuple(GroupUsage(one, 1, peers[name, one]) for one in listed)
            covered = Covered() if chance.random() < 0.3 else None
            report = UsageReport(name, 1, sequence, WALL_MS + now_ns // NS_PER_MS, usages, covered)
            report = report._replace(heard=(Acknowledgement(member_id("a"), last),))
            exchange.receive(report, now_ns, WALL_MS + now_ns // NS_PER_MS)
        if chance.random() < 0.003:
            members = ["a", *chance.sample(OTHERS, chance.randrange(1, 4))]
            exchange.set_members(members, now_ns)
        if now_ns >= exchange.poll_at_ns:
            reports = exchange.poll(now_ns, WALL_MS + now_ns // NS_PER_MS)
            last = reports[-1].sequence if reports else last
            seen += reports
        seen.append((step, *(group.share for group in groups)))
    return seen, computed


def test_shares_and_reports_are_the_same_as_if_all_shares_were_computed_with_each_report() -> None:
    computed_less = 0
    for seed in range(12):
        kept, few = history(seed, keep=True)
        anew, many = history(seed, keep=False)
        assert kept == anew, seed
        computed_less += few < many
    assert computed_less == 12


def test_a_row_has_changed_if_any_of_its_numbers_has() -> None:
    rows = UsageRows()
    rows.add_group(0)
    assert rows.put(0, 1, (1_000, 0, 0, 7))
    assert not rows.put(0, 1, (1_000, 0, 0, 7))
    assert rows.put(0, 1, (1_000, 0, 0, 8))
    assert rows.put(0, 2, (1_000, 0, 0, 7))
    assert rows.kind(rows.rows(0), 3) == [7, 8]
