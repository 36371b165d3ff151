# SPDX-License-Identifier: Apache-2.0
"""Listing: the index of names, what a pattern matches, and the hash that clients compute too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.topics.listing import Mode, NameIndex, PatternNotServed, list_topics, matcher, topics_hash
from penstock.core.errors import InvalidTopicName
from penstock.core.names import is_system_topic, parent_text

ORDERS = "persistent://acme/sales/orders"
NAMESPACE = "acme/sales"


# -- the index --------------------------------------------------------------------------------------------------------


async def test_a_listing_holds_the_names_of_its_namespace_only_sorted_and_partitions_one_by_one() -> None:
    index = NameIndex(
        [f"{ORDERS}-partition-1", f"{ORDERS}-partition-0", "persistent://acme/sales2/t", "persistent://a/b/t"]
    )
    index.add("persistent://acme/sales/a")
    names = ["persistent://acme/sales/a", f"{ORDERS}-partition-0", f"{ORDERS}-partition-1"]
    assert await list_topics(index, NAMESPACE) == names


async def test_the_mode_chooses_the_domains() -> None:
    index = NameIndex([ORDERS, "non-persistent://acme/sales/ticks"])
    assert await list_topics(index, NAMESPACE, Mode.PERSISTENT) == [ORDERS]
    assert await list_topics(index, NAMESPACE, Mode.NON_PERSISTENT) == ["non-persistent://acme/sales/ticks"]
    assert await list_topics(index, NAMESPACE, Mode.ALL) == ["non-persistent://acme/sales/ticks", ORDERS]


async def test_pulsars_own_topics_are_hidden_unless_asked_for() -> None:
    own = "persistent://acme/sales/__change_events-partition-0"
    index = NameIndex([own, ORDERS])
    assert await list_topics(index, NAMESPACE) == [ORDERS]
    assert await list_topics(index, NAMESPACE, system=True) == [own, ORDERS]


async def test_a_long_list_is_the_list_of_the_moment_it_was_asked_for() -> None:
    index = NameIndex(f"persistent://acme/sales/t-{i:05d}" for i in range(2_000))

    def matches(name: str) -> bool:
        index.discard(name)  # As if it were deleted while we look.
        return True

    assert len(await list_topics(index, NAMESPACE, matches=matches)) == 2_000
    assert await list_topics(index, NAMESPACE) == []


def test_a_name_is_added_and_taken_out_once() -> None:
    index = NameIndex()
    assert index.add(ORDERS)
    assert not index.add(ORDERS)
    assert index.discard(ORDERS)
    assert not index.discard(ORDERS)
    assert not index.discard("persistent://nobody/knows/t")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefg"), st.sampled_from(["x", "y"]))))
async def test_the_index_holds_what_was_added_and_not_taken_out(steps: list[tuple[bool, str, str]]) -> None:
    index, model = NameIndex(), set[str]()
    for add, local, namespace in steps:
        name = f"persistent://t/{namespace}/{local}"
        assert (index.add(name) if add else index.discard(name)) == ((name not in model) == add)
        (model.add if add else model.discard)(name)
    for namespace in ("x", "y"):
        wanted = sorted(name for name in model if f"/{namespace}/" in name)
        assert await list_topics(index, f"t/{namespace}") == wanted


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
    assert matcher(pattern)(name) is wanted


@pytest.mark.parametrize("pattern", ["acme/sales/(?!orders).*", r"acme/(\w)\1"])
def test_what_only_backtracking_can_match_is_left_to_the_client(pattern: str) -> None:
    with pytest.raises(PatternNotServed):
        matcher(pattern)


@pytest.mark.parametrize("pattern", ["acme/sales/(", "acme/[", "segment://acme/sales/.*"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidTopicName):
        matcher(pattern)


def test_a_pattern_made_to_backtrack_takes_no_longer_than_any_other() -> None:
    # With a backtracking matcher this line would not end in our lifetime.
    assert not matcher("acme/sales/(a*)*(a*)*(a*)*b")("persistent://acme/sales/" + 5_000 * "a")


# -- the hash ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ([], "00000000"),
        (["persistent://public/default/topic-1"], "67d0aead"),
        (["persistent://public/default/a", "persistent://public/default/b"], "c7559e98"),
        (["persistent://public/default/b", "persistent://public/default/a"], "c7559e98"),
        (["123456789"], "839206e3"),  # the check value of CRC-32C, its bytes from the last to the first
    ],
)
def test_the_hash_is_the_one_clients_compute(names: list[str], wanted: str) -> None:
    assert topics_hash(names) == wanted


def test_names_are_hashed_in_the_order_of_javas_strings() -> None:
    # U+FF21 sorts behind U+1F600 in Java, whose strings are UTF-16, and before it by code point.
    wide, smiley = "persistent://a/b/\uff21", "persistent://a/b/\U0001f600"
    joined = topics_hash([f"{smiley},{wide}"])
    assert topics_hash([wide, smiley]) == topics_hash([smiley, wide]) == joined


# -- names as text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("persistent://a/b/__change_events", True),
        ("persistent://a/b/__change_events-partition-2", True),
        ("persistent://a/b/__transaction_buffer_snapshot", True),
        ("persistent://a/b/__transaction_buffer_snapshot_segments", True),
        ("persistent://a/b/__transaction_buffer_snapshot_indexes", True),
        ("persistent://a/b/t-s__transaction_pending_ack", True),
        ("persistent://pulsar/system/transaction_coordinator_assign-partition-3", True),
        ("persistent://pulsar/system/__transaction_log_7", True),
        ("persistent://a/b/my__change_events", False),
        ("persistent://a/b/orders", False),
        ("persistent://a/b/__mine", False),
    ],
)
def test_pulsars_own_topics_are_known_by_their_names(name: str, *, wanted: bool) -> None:
    assert is_system_topic(name) is wanted


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
