# SPDX-License-Identifier: Apache-2.0
"""Which entries a cursor has acknowledged, as the statistics of penstock and of Apache Pulsar say it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.exits import CommandFailed
from penstock.cli.rewind import Cursor, Place


def stats(mark: str, ranges: str, **more: object) -> dict[str, Any]:
    """Three ledgers; of the last one, which is written to, the number is not told."""
    cursor = {"markDeletePosition": mark, "individuallyDeletedMessages": ranges, **more}
    ledgers = [{"ledgerId": 3, "entries": 4}, {"ledgerId": 5, "entries": 2}, {"ledgerId": 9, "entries": 0}]
    return {"cursors": {"s": cursor}, "lastConfirmedEntry": "9:2", "ledgers": ledgers}


@pytest.mark.parametrize(
    ("mark", "ranges", "first", "end", "wanted"),
    [
        ("3:1", "[]", "3:0", None, "3:0 3:1"),
        ("3:-1", "[]", "3:0", None, ""),
        ("5:1", "[]", "3:2", "5:1", "3:2 3:3 5:0"),
        ("9:2", "[]", "5:1", None, "5:1 9:0 9:1 9:2"),
        ("3:0", "[(3:1..3:3],(9:0..9:1]]", "3:0", None, "3:0 3:2 3:3 9:1"),
        ("3:0", "[(3:2..9:0]]", "3:1", "9:0", "3:3 5:0 5:1"),
        ("3:3", "[]", "-1:-1", "3:1", "3:0"),
    ],
)
def test_what_was_acknowledged_of_a_range(mark: str, ranges: str, first: str, end: str | None, wanted: str) -> None:
    cursor = Cursor.of(stats(mark, ranges), "s")

    def place(text: str) -> Place:
        return Place(*map(int, text.split(":")))

    found = cursor.acknowledged(place(first), place(end) if end else None)
    assert " ".join(f"{one.ledger_id}:{one.entry_id}" for one in found) == wanted


def test_acknowledgements_that_are_not_told_are_noticed() -> None:
    assert Cursor.of(stats("3:0", "[]"), "s").is_whole
    assert not Cursor.of(stats("3:0", "[(3:1..3:3]]", totalNonContiguousDeletedMessagesRange=2), "s").is_whole


def test_a_subscription_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandFailed, match="there is no subscription 'other'"):
        Cursor.of(stats("3:0", "[]"), "other")
