# SPDX-License-Identifier: Apache-2.0
"""Patterns of topic names: what they match one by one and many at a time, and what they take in memory."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
import re2
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.broker.topics import patterns, plain_patterns
from penstock.broker.topics.patterns import PATTERN_BYTES, PROGRAM_BYTES, Pattern, PatternNotServed
from penstock.core.errors import InvalidTopicName
from penstock.core.units import KIB, MIB

PIECES = [
    "a", "b", ".", "[^a]", "[^/]*", r"\s", r"\S", r"\W", "a*", "(a|bb)", ".*", "^", "$", r"\b", r"\B", "b?", "(?i)A",
    "é", "[a-x]+", "x{2}", r"\d", r"\n", "[^é]", "(?:ab|b)*?", "(?s).", r"\A", r"\z", r"\C", "(?m)", "(?-s)", r"\Qa",
    "(?P<n>a)", "n/", "-partition-1", "-partition-2147483648",
]  # fmt: skip
NAMES = st.lists(
    st.tuples(
        st.sampled_from(["persistent", "non-persistent"]),
        st.text(st.sampled_from("abxAé/1 \n"), max_size=5),
        st.sampled_from(["", "-partition-0", "-partition-01", "-partition-12", "-partition-2147483648", "-partition-"]),
    ),
    max_size=12,
)
LOCAL_NAMES = st.lists(st.text(st.sampled_from("abxAé/1.-"), max_size=9), max_size=12)


@given(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), NAMES)
def test_many_names_are_matched_as_one_by_one(text: str, parts: list[tuple[str, str, str]]) -> None:
    try:
        pattern = Pattern(text)
    except (InvalidTopicName, PatternNotServed):
        assume(False)
    names = [f"{domain}://t/n/{local}{suffix}" for domain, local, suffix in parts]
    assert pattern.for_many().of(names) == [name for name in names if pattern.matches(name)]


def test_a_stretch_of_names_that_all_match_is_found_whole_wherever_it_is() -> None:
    names = [f"persistent://t/n/{'x' if 100 <= number < 900 else 'y'}-{number}" for number in range(1_000)]
    many = Pattern("t/n/x.*").for_many()
    assert many.of(names) == names[100:900]
    assert many.of(names[:100]) == []
    assert many.of(names[300:500]) == names[300:500]
    assert many.of([]) == []


def test_a_pattern_that_is_too_large_is_left_to_the_client() -> None:
    with pytest.raises(PatternNotServed):
        Pattern(r"t/n/(\pL{100}|\pN{100})+")


def test_nothing_is_kept_of_patterns_that_nobody_uses() -> None:
    for number in range(10):
        Pattern(f"t/n/{number}.*").for_many()
    assert re2._Regexp._make.cache_info().currsize == 0  # noqa: SLF001


def test_patterns_that_last_take_about_what_they_are_charged_whatever_they_have_matched() -> None:
    chance = random.Random(1)
    letters = string.ascii_letters + string.digits + "-_."
    names = [f"persistent://t/n/{''.join(chance.choices(letters, k=80))}" for _ in range(200)]
    before = _resident_bytes()
    patterns = [Pattern(f".*[{letters[number % 60]}x].{{12}}{number}|t/n/.*{number}.*") for number in range(1_500)]
    for pattern in patterns:
        for name in names[:40]:
            pattern.matches(name)
    grown = _resident_bytes() - before
    charged = sum(pattern.size_bytes for pattern in patterns)
    assert PATTERN_BYTES <= charged / len(patterns) <= PROGRAM_BYTES[0]
    assert grown < charged * 5 // 4 + MIB


@pytest.fixture
def no_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where RE2 is not installed."""
    monkeypatch.setattr(patterns, "has_re2", lambda: False)


@given(
    st.lists(st.sampled_from([*PIECES, ".*", "|", "(.*a|b)", ".+", "a{3}", "("]), max_size=8).map("".join), LOCAL_NAMES
)
def test_a_plain_pattern_matches_what_it_matches_in_re2(text: str, names: list[str]) -> None:
    try:
        plain = plain_patterns.compiled(text)
    except plain_patterns.NotPlain:
        assume(False)
    known = re2.compile(text)
    assert [plain.fullmatch(name) is not None for name in names] == [
        known.fullmatch(name) is not None for name in names
    ]


@pytest.mark.usefixtures("no_re2")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("persistent://t/n/orders-.*", ["t/n/orders-1", "t/n/orders-"]),
        ("t/n/(a|b)-[0-9]{2}", ["t/n/a-07", "t/n/b-10"]),
        ("t/n/[a-z]+", ["t/n/a", "t/n/orders"]),
        ("t/n/.*a.*b.*", ["t/n/ab", "t/n/xxaxxbxx"]),
        ("(?i)t/n/A?x", ["t/n/ax", "t/n/x"]),
    ],
)
def test_without_re2_plain_patterns_are_matched(text: str, names: list[str]) -> None:
    others = ["t/n/other!", "t/n/A-1", "t/n/c-07", "t/n/"]
    found = Pattern(text).for_many().of([f"persistent://{name}" for name in names + others])
    assert found == [f"persistent://{name}" for name in names]


@pytest.mark.usefixtures("no_re2")
@pytest.mark.parametrize("text", ["t/n/(a|b)*", r"t/n/\bx", "t/n/[^/]*a.*", "t/n/" + "a?" * 20, "t/n/" + "." * 300])
def test_without_re2_other_patterns_are_left_to_the_client(text: str) -> None:
    with pytest.raises(PatternNotServed, match="without RE2, only plain ones are"):
        Pattern(text)


@pytest.mark.usefixtures("no_re2")
def test_without_re2_text_that_is_no_pattern_is_an_error() -> None:
    with pytest.raises(InvalidTopicName, match="no regular expression"):
        Pattern("t/n/(a")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 * KIB
