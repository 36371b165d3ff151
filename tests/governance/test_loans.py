# SPDX-License-Identifier: Apache-2.0
"""What is not used is lent to those where something waits, once, and soon or not at all."""

from __future__ import annotations

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.core.usage_report import Borrower
from penstock.governance.loans import Loans
from penstock.governance.resource_group import TokenBucket

QUOTA = 1_000_000
ENOUGH = QUOTA // 50  # the quota of 20 ms: one report of one member


def lent(loans: Loans) -> dict[str, int]:
    return {
        borrower.broker: sum(loan.amount for loan in borrower.loans)
        for borrower in loans.take(lambda number: (f"b{number}", 1, 0))
    }


def test_nothing_is_lent_while_nothing_waits() -> None:
    loans = Loans(NS_PER_S)
    loans.collect(0, 0, 7, ENOUGH, QUOTA, members=1)
    assert lent(loans) == {}


def test_amounts_are_collected_until_they_are_worth_a_report() -> None:
    loans = Loans(NS_PER_S)
    loans.waits(0, 1, (QUOTA, 0, 0, 0))
    loans.collect(0, 0, 7, ENOUGH - 1, QUOTA, members=1)
    assert not loans.granted
    loans.collect(0, 0, 7, 1, QUOTA, members=1)
    assert lent(loans) == {"b1": ENOUGH}


def test_each_gets_what_it_can_use_and_in_want_of_it_the_same() -> None:
    loans = Loans(NS_PER_S)
    loans.waits(0, 1, (QUOTA, 0, 0, 0))
    loans.waits(0, 2, (QUOTA, 0, 0, 0))
    loans.waits(0, 3, (ENOUGH // 10, 0, 0, 0))
    total = {"b1": 0, "b2": 0, "b3": 0}
    for _ in range(100):
        loans.collect(0, 0, 7, ENOUGH, QUOTA, members=4)
        for name, amount in lent(loans).items():
            total[name] += amount
    assert total["b3"] == 10 * ENOUGH
    assert total["b1"] == total["b2"] == 45 * ENOUGH


def test_a_loan_that_was_under_way_for_too_long_is_void_whatever_clocks_say() -> None:
    loans = Loans(NS_PER_S)
    loan = Borrower("us", sequence=5, heard_ms_ago=300, loans=())
    assert loans.are_new(loan, NS_PER_S, NS_PER_S + 400 * NS_PER_MS)
    assert not loans.are_new(loan, NS_PER_S, NS_PER_S + 401 * NS_PER_MS)


def test_a_loan_to_an_earlier_process_of_our_name_is_void() -> None:
    loans = Loans(NS_PER_S)
    assert not loans.are_new(Borrower("us", sequence=900, heard_ms_ago=0, loans=()), None, NS_PER_S)
    assert not loans.are_new(Borrower("us", sequence=5, heard_ms_ago=60_000, loans=()), NS_PER_S, NS_PER_S)


def test_a_bucket_uses_what_was_added_once_here_or_elsewhere() -> None:
    bucket = TokenBucket(100, 0, burst_ns=NS_PER_S // 10)
    used = 0
    given = 0
    for step in range(1, 101):
        now_ns = step * NS_PER_S // 50
        if step % 7 == 0:
            used += 9
            bucket.consume(9, now_ns)
        given += bucket.spilled(now_ns)
    left = bucket.available(2 * NS_PER_S)
    assert used + given // NS_PER_S + left == 10 + 200


def test_what_was_given_may_be_used_until_the_bucket_is_looked_at_again() -> None:
    bucket = TokenBucket(100, 0, burst_ns=NS_PER_S // 10)
    bucket.give(50 * NS_PER_S, 0)
    assert bucket.available(0) == 60
    assert bucket.spilled(0) == 50 * NS_PER_S
    assert bucket.available(0) == 10
