# SPDX-License-Identifier: Apache-2.0
"""Java's properties files, as `java.util.Properties` reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.settings.properties import Entry, NotAnEntry, parse


def pairs(text: str) -> list[tuple[str, str]]:
    return [(entry.name, entry.value) for entry in parse(text)]


@pytest.mark.parametrize(
    "line", ["key=value", "key = value", "  key=value  ", "key:value", "key : value", "key value", "key\tvalue"]
)
def test_a_key_ends_at_an_equals_sign_a_colon_or_a_blank(line: str) -> None:
    assert pairs(line) == [("key", "value")]


def test_only_the_first_separator_counts() -> None:
    assert pairs("advertisedListeners=internal:pulsar://host:6650") == [
        ("advertisedListeners", "internal:pulsar://host:6650")
    ]
    assert pairs("PULSAR=-Xmx2g -Da=b") == [("PULSAR", "-Xmx2g -Da=b")]


def test_comments_and_blank_lines_say_nothing() -> None:
    assert pairs("# a=1\n! b=2\n\n   # c=3\n\t\nd=4\n") == [("d", "4")]


def test_a_line_that_ends_in_a_backslash_goes_on_in_the_next_without_its_indent() -> None:
    assert pairs("superUserRoles=admin,\\\n    operator,\\\n    proxy\nnext=1") == [
        ("superUserRoles", "admin,operator,proxy"),
        ("next", "1"),
    ]


def test_a_comment_sign_inside_a_continued_line_is_part_of_it() -> None:
    assert pairs("a=1\\\n#2") == [("a", "1#2")]


def test_two_backslashes_at_the_end_are_one_and_continue_nothing() -> None:
    assert pairs("path=C:\\\\\nnext=1") == [("path", "C:\\"), ("next", "1")]


def test_escapes_mean_what_they_mean_in_java() -> None:
    assert pairs(r"a\ key\=with\:signs=1\t2\u00e9\q") == [("a key=with:signs", "1\t2éq")]


def test_an_empty_value_is_an_entry() -> None:
    assert pairs("webServicePort=\nadvertisedAddress =  ") == [("webServicePort", ""), ("advertisedAddress", "")]


def test_entries_know_the_line_they_begin_in() -> None:
    assert list(parse("# one\na=1,\\\n2\n\nb=3")) == [Entry(2, "a", "1,2"), Entry(5, "b", "3")]


@pytest.mark.parametrize("line", ["webServicePort", "=value", "  :x"])
def test_a_line_that_is_no_entry_is_refused_by_its_number(line: str) -> None:
    with pytest.raises(NotAnEntry, match="line 3") as refusal:
        pairs(f"a=1\n\n{line}")
    assert refusal.value.line == 3


def test_the_last_line_may_end_in_a_backslash() -> None:
    assert pairs("a=1\\") == [("a", "1")]
    assert pairs("a=1\n\\") == [("a", "1")]


@given(st.text())
def test_any_text_reads_or_is_refused(text: str) -> None:
    try:
        entries = list(parse(text))
    except NotAnEntry:
        return
    assert [entry.line for entry in entries] == sorted({entry.line for entry in entries})
