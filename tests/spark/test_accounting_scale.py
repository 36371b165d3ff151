# SPDX-License-Identifier: Apache-2.0
"""The scale scenario: a group is the same wherever it is replayed."""

from __future__ import annotations

from penstock.spark.accounting.scale import QUOTA, added, of_group


def test_a_group_depends_on_its_number_and_the_seed_alone() -> None:
    one = of_group(7, brokers=10, minutes=3, seed=1)
    assert one == of_group(7, brokers=10, minutes=3, seed=1)
    assert one != of_group(8, brokers=10, minutes=3, seed=1)
    assert one != of_group(7, brokers=10, minutes=3, seed=2)


def test_groups_that_want_more_than_their_quota_get_about_the_quota_and_others_all() -> None:
    busy, calm = (of_group(group, brokers=20, minutes=3, seed=1) for group in (4, 5))
    assert busy.limited == 3
    assert 0.9 * QUOTA * 180 < busy.passed < 1.06 * QUOTA * 180
    assert calm.passed > 0.99 * calm.wanted
    assert added(busy, calm).groups == 2
    assert busy.fairness > 0.95 * busy.minutes
