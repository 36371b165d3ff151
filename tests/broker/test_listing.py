# SPDX-License-Identifier: Apache-2.0
"""Listing: the index of names, and what of it a pattern and a mode want."""

from __future__ import annotations

from inspect import GEN_CREATED, getgeneratorstate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.topics.listing import Filter, Mode, NameIndex, Wanted, gather
from penstock.broker.topics.listing_blocks import Listing, in_order
from penstock.broker.topics.patterns import Pattern, PatternNotServed
from penstock.core.errors import InvalidTopicName
from penstock.core.names import parent_text

if TYPE_CHECKING:
    from collections.abc import Generator

ORDERS = "persistent://acme/sales/orders"
NAMESPACE = "acme/sales"


# -- the index --------------------------------------------------------------------------------------------------------


def gathered(steps: Generator[None, int, Listing]) -> Listing:
    """What comes of it."""
    try:
        while True:
            steps.send(None if getgeneratorstate(steps) == GEN_CREATED else 0)  # type: ignore[arg-type]
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def listed(
    index: NameIndex, namespace: str = NAMESPACE, mode: Mode = Mode.PERSISTENT, *, system: bool = False
) -> list[str]:
    return list(gathered(gather(index, Filter(Wanted(namespace, mode, system=system)).compile())).names())


async def test_a_listing_holds_the_names_of_its_namespace_only_sorted_and_partitions_one_by_one() -> None:
    index = NameIndex(
        [f"{ORDERS}-partition-1", f"{ORDERS}-partition-0", "persistent://acme/sales2/t", "persistent://a/b/t"]
    )
    index.add("persistent://acme/sales/a")
    names = ["persistent://acme/sales/a", f"{ORDERS}-partition-0", f"{ORDERS}-partition-1"]
    assert await listed(index) == names


async def test_the_mode_chooses_the_domains() -> None:
    index = NameIndex([ORDERS, "non-persistent://acme/sales/ticks"])
    assert await listed(index, mode=Mode.PERSISTENT) == [ORDERS]
    assert await listed(index, mode=Mode.NON_PERSISTENT) == ["non-persistent://acme/sales/ticks"]
    assert await listed(index, mode=Mode.ALL) == ["non-persistent://acme/sales/ticks", ORDERS]


async def test_system_topics_are_hidden_unless_asked_for() -> None:
    mine, records = "persistent://pulsar/system/t", "persistent://pulsar/system/usage-partition-0"
    index = NameIndex([records, mine])
    assert await listed(index, "pulsar/system") == [mine]
    assert await listed(index, "pulsar/system", system=True) == [mine, records]


async def test_a_long_list_is_the_list_of_the_moment_it_was_asked_for() -> None:
    index = NameIndex(f"persistent://acme/sales/t-{i:05d}" for i in range(2_000))
    steps = gather(index, Filter(Wanted(NAMESPACE, pattern=".*")).compile())
    next(steps)
    for i in range(2_000):
        index.discard(f"persistent://acme/sales/t-{i:05d}")
    assert gathered(steps).count == 2_000
    assert await listed(index) == []


@pytest.mark.parametrize(
    ("wanted", "name", "in_it"),
    [
        (Wanted(NAMESPACE), ORDERS, True),
        (Wanted(NAMESPACE), "non-persistent://acme/sales/orders", False),
        (Wanted(NAMESPACE, Mode.ALL), "non-persistent://acme/sales/orders", True),
        (Wanted(NAMESPACE, Mode.NON_PERSISTENT), ORDERS, False),
        (Wanted(NAMESPACE), "persistent://acme/sales/__change_events", True),
        (Wanted("pulsar/system"), "persistent://pulsar/system/usage-partition-0", False),
        (Wanted("pulsar/system", system=True), "persistent://pulsar/system/usage-partition-0", True),
        (Wanted(NAMESPACE, pattern="acme/sales/o.*"), ORDERS, True),
        (Wanted(NAMESPACE, pattern="acme/sales/p.*"), ORDERS, False),
    ],
)
async def test_a_topic_that_comes_later_is_wanted_if_it_would_be_gathered(
    wanted: Wanted, name: str, *, in_it: bool
) -> None:
    wanting = Filter(wanted).compile()
    assert wanting.wants(name) is in_it
    assert (gathered(gather(NameIndex([name]), wanting)).count == 1) is in_it


def test_a_name_is_added_and_taken_out_once() -> None:
    index = NameIndex()
    assert index.add(ORDERS)
    assert not index.add(ORDERS)
    assert index.discard(ORDERS)
    assert not index.discard(ORDERS)
    assert not index.discard("persistent://nobody/knows/t")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde\uff21\U0001f600"), st.sampled_from(["x", "y"]))))
async def test_the_index_holds_what_was_added_and_not_taken_out(steps: list[tuple[bool, str, str]]) -> None:
    index, model = NameIndex(), set[str]()
    for add, local, namespace in steps:
        name = f"persistent://t/{namespace}/{local}"
        assert (index.add(name) if add else index.discard(name)) == ((name not in model) == add)
        (model.add if add else model.discard)(name)
    for namespace in ("x", "y"):
        wanted = in_order(name for name in model if f"/{namespace}/" in name)
        assert await listed(index, f"t/{namespace}") == wanted


# -- patterns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "name", "wanted"),
    [
        ("acme/sales/.*", ORDERS, True),
        ("persistent://acme/sales/.*", ORDERS, True),
        ("non-persistent://acme/sales/.*", ORDERS, True),  # the domain is left out of account on both sides
        ("acme/sales/ord", ORDERS, False),  # all of the name must match
        ("acme/sales/orders", f"{ORDERS}-partition-3", True),
        ("acme/sales/orders-partition-3", f"{ORDERS}-partition-4", True),
        ("acme/sales/orders-partition-x", f"{ORDERS}-partition-x", True),  # that is no partition
        ("acme/.*/orders", ORDERS, True),
        ("acme/sales/(a|orders)", ORDERS, True),
        (r"acme/sales/\w+", ORDERS, True),
        ("", ORDERS, False),
        ("(persistent://acme/sales/.*)", ORDERS, True),
    ],
)
def test_a_pattern_matches_the_whole_name_without_domain_and_partition(
    pattern: str, name: str, *, wanted: bool
) -> None:
    assert Pattern(pattern).matches(name) is wanted
    assert Pattern(pattern).for_many().of([name]) == [name] * wanted


@pytest.mark.parametrize("pattern", ["acme/sales/(?!orders).*", r"acme/(\w)\1"])
def test_what_only_backtracking_can_match_is_left_to_the_client(pattern: str) -> None:
    with pytest.raises(PatternNotServed):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["acme/sales/(", "acme/[", "segment://acme/sales/.*"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidTopicName):
        Pattern(pattern)


def test_a_pattern_made_to_backtrack_takes_no_longer_than_any_other() -> None:
    # With a backtracking matcher this line would not end in our lifetime.
    assert not Pattern("acme/sales/(a*)*(a*)*(a*)*b").matches("persistent://acme/sales/" + 5_000 * "a")


# -- names as text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parent"),
    [
        ("persistent://a/b/t-partition-3", "persistent://a/b/t"),
        ("persistent://a/b/t-partition-03", "persistent://a/b/t-partition-03"),
        ("persistent://a/b/t-partition-99999999999", "persistent://a/b/t-partition-99999999999"),
        ("persistent://a/b/t-partition-2147483648", "persistent://a/b/t-partition-2147483648"),
        ("persistent://a/b/t-partition-1-partition-2", "persistent://a/b/t-partition-1"),
        ("persistent://a/b/t", "persistent://a/b/t"),
    ],
)
def test_a_partitions_name_leads_to_its_parents(name: str, parent: str) -> None:
    assert parent_text(name) == parent
