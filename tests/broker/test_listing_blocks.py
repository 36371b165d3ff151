# SPDX-License-Identifier: Apache-2.0
"""Lists made of shared blocks: whatever changes, they say what a plain sorted list would, and share what they can."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.topics.listing_blocks import (
    BLOCK_NAMES,
    STEP_BLOCKS_MAX,
    Block,
    Listing,
    changed,
    cut,
    differences,
    in_order,
    next_step,
    topics_hash,
)
from penstock.wire import listings
from penstock.wire.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespaceResponse,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
)

WIDE, SMILEY = "persistent://a/b/\uff21", "persistent://a/b/\U0001f600"


def name(number: int) -> str:
    return f"persistent://acme/sales/t-{number:06d}"


def listing(count: int) -> Listing:
    return Listing(list(cut([name(number) for number in range(count)])))


def after(before: Listing, *, new: list[str] | None = None, deleted: list[str] | None = None) -> Listing:
    changes = {**dict.fromkeys(new or [], True), **dict.fromkeys(deleted or [], False)}
    return Listing(list(changed(before.blocks, [(one, changes[one]) for one in in_order(changes)])))


def told(known: Listing, target: Listing) -> tuple[int, list[str], list[str]]:
    """How many updates it takes, and what they say, to one who follows them."""
    steps, new, deleted = 0, list[str](), list[str]()
    while known is not target:
        step = next_step(known, target)
        update = CommandWatchTopicUpdate.FromString(step.written + listings.changes((), ()))
        new += update.new_topics
        deleted += update.deleted_topics
        steps += bool(step.written)
        known = step.after
    return steps, new, deleted


# -- changes ----------------------------------------------------------------------------------------------------------


def test_one_topic_more_costs_one_block_however_many_there_are() -> None:
    before = listing(50_000)
    now = after(before, new=[name(25_000) + "-b"])
    assert len(now.only_in(before)) == 1
    assert now.count == 50_001


def test_a_change_that_says_what_is_so_already_makes_no_block() -> None:
    before = listing(3_000)
    assert not after(before, new=[name(7)], deleted=["persistent://acme/sales/never-there"]).only_in(before)


def test_blocks_stay_of_a_size_when_topics_come_one_by_one_and_when_most_of_them_go() -> None:
    grown = listing(1_000)
    for number in range(1_500):
        grown = after(grown, new=[f"{name(500)}-{number:05d}"])
    assert max(len(block.names) for block in grown.blocks) <= 2 * BLOCK_NAMES
    shrunk = after(grown, deleted=[one for row, one in enumerate(grown.names()) if row % 100])
    assert shrunk.count == 25
    assert len(shrunk.blocks) == 1


def test_a_list_that_loses_all_its_topics_is_empty_and_takes_new_ones() -> None:
    empty = after(listing(2_000), deleted=[name(number) for number in range(2_000)])
    assert (empty.blocks, empty.digest) == ((), "00000000")
    assert list(after(empty, new=[name(1)]).names()) == [name(1)]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), rounds=st.integers(1, 4))
def test_whatever_comes_and_goes_a_list_says_what_a_plain_sorted_one_does(seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    model = {name(chance.randrange(4_000)) for _ in range(chance.randrange(3_000))}
    lists = [Listing(list(cut(in_order(model))))]
    for _ in range(rounds):
        new = [name(chance.randrange(4_000)) for _ in range(chance.randrange(300))] + [WIDE, SMILEY]
        deleted = chance.sample(sorted(model), chance.randrange(len(model) + 1))
        model = model - set(deleted) | set(new)
        lists.append(after(lists[-1], deleted=[one for one in deleted if one not in new], new=new))
        now = lists[-1]
        assert list(now.names()) == in_order(model)
        assert now.digest == topics_hash(model)
        assert now.written_bytes == sum(len(block.listed()) for block in now.blocks)
    first, last = lists[0], lists[-1]
    assert [last.has(one) for one in (WIDE, *map(name, range(50)))] == [
        one in model for one in (WIDE, *map(name, range(50)))
    ]
    _, new, deleted = told(first, last)
    assert set(first.names()) - set(deleted) | set(new) == model
    assert not set(new) & set(first.names())
    assert set(deleted) <= set(first.names())


def test_what_is_the_same_block_in_both_is_not_compared() -> None:
    before = listing(10_000)
    now = after(before, new=[name(5) + "x"], deleted=[name(9_999)])
    assert list(differences(before, now)) == [([name(5) + "x"], []), ([], [name(9_999)])]


def test_a_change_everywhere_is_told_in_several_updates_each_of_a_bounded_size() -> None:
    before = listing(60_000)
    new = [f"{name(number)}-b" for number in range(0, 60_000, 200)]
    now = after(before, new=new)
    steps, told_new, told_deleted = told(before, now)
    assert steps == -(-len(now.only_in(before)) // STEP_BLOCKS_MAX)
    assert (told_new, told_deleted) == (new, [])


def test_nothing_is_said_of_topics_that_came_and_went() -> None:
    before = listing(10)
    back = after(after(before, new=[name(77)]), deleted=[name(77)])
    assert told(before, back) == (0, [], [])


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
    assert Listing([Block([one]) for one in in_order(names)]).digest == wanted


def test_names_are_hashed_in_the_order_of_javas_strings() -> None:
    # U+FF21 sorts behind U+1F600 in Java, whose strings are UTF-16, and before it by code point.
    joined = topics_hash([f"{SMILEY},{WIDE}"])
    assert topics_hash([WIDE, SMILEY]) == topics_hash([SMILEY, WIDE]) == joined


def test_the_hash_of_a_block_longer_than_the_zeros_at_hand_is_right() -> None:
    names = [f"persistent://a/b/{number:04d}-{number * 7 % 10 * 'x'}{2_000 * 'y'}" for number in range(200)]
    assert Listing(list(cut(names[:50])) + list(cut(names[50:]))).digest == topics_hash(names)


# -- frames -----------------------------------------------------------------------------------------------------------


def command(frame: bytes) -> BaseCommand:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == len(frame) - 8
    return BaseCommand.FromString(frame[8:])


@pytest.mark.parametrize("names", [[], ["a"], ["a" * 127, "b" * 128, "é" * 64], ["x" * 20_000, "y"] * 3])
def test_a_head_and_shared_pieces_are_the_frame_that_one_message_would_be(names: list[str]) -> None:
    pieces = [listings.listed(names[:2]), listings.listed(names[2:])]
    size = listings.listed_bytes([len(one.encode()) for one in names])
    assert size == sum(map(len, pieces))
    head = listings.topics_head(300, filtered=True, topics_hash="00c0ffee", changed=True, shared_bytes=size)
    got = command(head + b"".join(pieces))
    assert got.type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
    assert got.getTopicsOfNamespaceResponse == CommandGetTopicsOfNamespaceResponse(
        request_id=300, topics=names, filtered=True, topics_hash="00c0ffee", changed=True
    )


def test_a_watchers_frames_are_what_one_message_would_be() -> None:
    names = [name(1), name(2)]
    shared = listings.watched(names)
    success = command(listings.watching_head(1, 7, "00c0ffee", len(shared)) + shared)
    assert success.watchTopicListSuccess == CommandWatchTopicListSuccess(
        request_id=1, watcher_id=7, topic=names, topics_hash="00c0ffee"
    )
    shared = listings.changes(names, [name(3)])
    update = command(listings.update_head(7, "00c0ffee", len(shared)) + shared)
    assert update.watchTopicUpdate == CommandWatchTopicUpdate(
        watcher_id=7, new_topics=names, deleted_topics=[name(3)], topics_hash="00c0ffee"
    )
