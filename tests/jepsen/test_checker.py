# SPDX-License-Identifier: Apache-2.0
"""The checker finds what is wrong in histories, and nothing in one that is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.jepsen.checker import check
from tests.jepsen.table import read_rows, rows, sums

if TYPE_CHECKING:
    from tests.jepsen.history import Event

SUBSCRIPTION = "plain/a/exclusive"


def sent(first: int, at: float = 1.0, *, topic: str = "plain", count: int = 1, key: str = "", chunk: int = -1) -> Event:
    return ["send", at, topic, "p", first, count, key, chunk]


def stored(first: int, entry: int, at: float = 1.1, *, topic: str = "plain", count: int = 1, chunk: int = -1) -> Event:
    return ["stored", at, topic, "p", first, count, chunk, 1, entry]


def opened(epoch: int = 1, at: float = 0.5, subscription: str = SUBSCRIPTION) -> Event:
    return ["open", at, subscription, epoch]


def received(first: int, entry: int, at: float = 1.2, epoch: int = 1, **other: Any) -> Event:  # noqa: ANN401
    fields = {"subscription": SUBSCRIPTION, "count": 1, "chunk": -1, "indexes": None} | other
    return [
        "recv", at, fields["subscription"], epoch, "p", first, fields["count"], fields["chunk"], 1, entry,
        fields["indexes"],
    ]  # fmt: skip


def acked(entry: int, at: float, kind: str = "entry", indexes: list[int] | None = None) -> Event:
    return ["acked", at, SUBSCRIPTION, 1, entry, kind, indexes]


JOB = ["jobs-0", 1, 0]
SENT = [sent(0, topic="jobs-0"), stored(0, 0, topic="jobs-0")]


def transaction(name: str, end: str = "commit", *answer: str) -> list[Event]:
    return [
        ["txn", 2.0, name, "begun", [JOB], [0, 1]], ["txn", 2.1, name, end],
        *(["txn", 2.2, name, "ended", how] for how in answer),
    ]  # fmt: skip


def results(*names: str, topic: str = "a") -> Event:
    return ["results", 9.0, topic, [[name, number] for number, name in enumerate(names)]]


RIGHT = [
    opened(), sent(0), stored(0, 0), received(0, 0), sent(1), received(1, 1), stored(1, 1),
    acked(0, 2.0), opened(2, 3.0), received(1, 1, 3.1, 2), ["fault", 3.2, "kill_one", "broker 0"],
    ["backlog", 9.0, SUBSCRIPTION, 0], ["counting", 2.0, "plain", {"msgInCounter": 7}],
    ["counted", 3.0, "plain", {"msgInCounter": 7}],
    ["retained", 9.0, "plain", [[1, 0, 9], [1, 1, 9]], {"numberOfEntries": 2, "storageSize": 18}],
    ["trimmed", 9.0, "plain", 0], ["life", 1.0, "l", 2, "kept", 0], ["life", 1.0, "l", 2, "read", [[2, 0], [2, 1]]],
    ["life", 1.0, "l", 2, "deleted", 404], ["life", 1.0, "l", 1, "grown", 3, 3],
    *SENT, *transaction("t", "commit", "commit"), ["seen", 3.0, "a", "t"], *transaction("u", "abort", "abort"),
    results("t"), results("t", topic="b"),
]  # fmt: skip


def test_a_right_history_has_no_violations_and_is_counted() -> None:
    result = check(RIGHT)
    assert result.violations == []
    assert (result.messages, result.entries, result.received, result.again) == (3, 3, 3, 1)
    assert result.transactions == 1
    assert result.faults == {"kill_one": 1}


WRONG: dict[str, list[Event]] = {
    "lost": [opened(), sent(0), stored(0, 0), sent(1), stored(1, 1), received(1, 1)],
    "a receipt for": [stored(0, 0)],
    "which was never sent": [opened(), received(0, 0)],
    "is Entry": [opened(), sent(0), sent(1), received(0, 0), received(1, 0)],
    "stored twice": [
        opened(subscription="once/a/failover"),
        sent(0, topic="once"),
        received(0, 0, subscription="once/a/failover"),
        received(0, 1, subscription="once/a/failover"),
    ],
    "again": [opened(), sent(0), received(0, 0), acked(0, 2.0), opened(2, 3.0), received(0, 0, 3.1, 2)],
    "out of order": [opened(), sent(0), sent(1), received(1, 1), received(0, 0)],
    "a backlog of 3": [["backlog", 9.0, SUBSCRIPTION, 3]],
    "early": [opened(), sent(0), ["late", 1.0, "plain", "p", 0, 9.0], received(0, 0, 2.0)],
    "compacted": [
        opened(), sent(0, key="k"), sent(1, key="k"), stored(0, 0), stored(1, 1), received(0, 0), received(1, 1),
        ["compacted", 9.0, "plain", {"k": ["p", 0]}],
    ],
    "miscounted": [
        sent(0), stored(0, 0), ["counting", 2.0, "plain", {"msgInCounter": 7}], sent(1), stored(1, 1),
        ["counted", 3.0, "plain", {"msgInCounter": 9}],
    ],
    "untrimmed": [["trimmed", 9.0, "plain", 3]],
    "was not read": [sent(0), stored(0, 0), ["retained", 9.0, "plain", [], {"numberOfEntries": 0, "storageSize": 0}]],
    "its statistics say {'storageSize': 8}": [
        sent(0), stored(0, 0), ["retained", 9.0, "plain", [[1, 0, 9]], {"numberOfEntries": 1, "storageSize": 8}],
    ],
    "undead": [["life", 1.0, "l", 2, "read", [[1, 0]]]],
    "lost: entries [1] of life 2": [["life", 1.0, "l", 2, "kept", 1], ["life", 1.0, "l", 2, "read", [[2, 0]]]],
    "undeleted": [["life", 1.0, "l", 1, "deleted", 200]],
    "not grown": [["life", 1.0, "l", 1, "grown", 3, 2]],
    "not isolated": [["txn", 2.0, "t", "begun", [], [0, 1]], ["seen", 3.0, "a", "t"]],
    "not atomic": [*SENT, *transaction("t"), results("t"), results(topic="b")],
    "'a': 2": [*SENT, *transaction("t"), results("t", "t")],
    "t was committed, and nobody sees it": [*transaction("t", "commit", "commit"), results()],
    "undone": [*SENT, *transaction("t", "abort", "abort"), results("t")],
    "was done by nobody": [*SENT, *transaction("t", "abort", "abort"), results()],
    "was done by ['t', 'u']": [*SENT, *transaction("t"), *transaction("u"), results("t", "u")],
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_history_is_found(what: str) -> None:
    assert [what in violation for violation in check(WRONG[what]).violations] == [True]


def test_an_acknowledgement_up_to_an_entry_covers_what_is_before_it() -> None:
    before = [opened(), sent(0), sent(1), received(0, 0), received(1, 1), acked(1, 2.0, "up-to"), opened(2, 3.0)]
    assert check([*before, received(0, 0, 3.1, 2)]).violations != []


def test_what_was_sent_before_the_acknowledgement_may_come_again_to_who_had_subscribed_before() -> None:
    assert check([opened(), sent(0), received(0, 0), acked(0, 2.0), received(0, 0, 2.1)]).violations == []


def test_of_a_batch_only_what_was_acknowledged_must_not_come_again() -> None:
    before = [
        opened(), sent(0, count=3), received(0, 0, count=3), acked(0, 2.0, "indexes", [0, 1]), opened(2, 3.0)
    ]  # fmt: skip
    assert check([*before, received(0, 0, 3.1, 2, count=3, indexes=[2])]).violations == []
    assert check([*before, received(0, 0, 3.1, 2, count=3, indexes=[1, 2])]).violations != []
    assert check([*before, received(0, 0, 3.1, 2, count=3)]).violations != []


def test_each_chunk_of_a_message_counts() -> None:
    events = [opened(), *(sent(0, chunk=chunk) for chunk in range(2)), stored(0, 0, chunk=0), stored(0, 1, chunk=1)]
    assert check([*events, received(0, 0, chunk=0)]).violations != []
    assert check([*events, received(0, 0, chunk=0), received(0, 1, chunk=1)]).violations == []


def test_keys_have_an_order_of_their_own_and_shared_subscriptions_have_none() -> None:
    for subscription, keys, right in (
        ("plain/a/key_shared", ("j", "k"), True),
        ("plain/a/key_shared", ("k", "k"), False),
        ("plain/a/shared", ("", ""), True),
    ):
        came = [received(first, first, subscription=subscription) for first in (1, 0)]
        events = [opened(subscription=subscription), *(sent(first, key=key) for first, key in enumerate(keys)), *came]
        assert (check(events).violations == []) is right


def test_results_are_added_to_those_of_earlier_runs() -> None:
    first = check([*RIGHT, ["fault", 3.3, "kill_one", "broker 1"], ["fault", 3.4, "cut", "half"]])
    assert read_rows(rows(12_345, first)) == (12_345, first)
    assert sums([first, check(RIGHT)]).faults == {"kill_one": 3, "cut": 1}


def test_a_clock_that_jumped_excuses_what_comes_early() -> None:
    fault = ["fault", 3.0, "move_the_clock", "3600 s"]
    assert check([*WRONG["early"], fault]).violations == []
