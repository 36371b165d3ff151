# SPDX-License-Identifier: Apache-2.0
"""Members: those that are registered, and those that go on reporting when the registration fails."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.governance.presence import Presence

LEASE = 3_000


def of(*names: str) -> Presence:
    """Members that are registered at time 0, seen by "a"."""
    presence = Presence("a")
    presence.set_listed(names, now_ns=0)
    return presence


def test_those_that_are_registered_are_members() -> None:
    presence = of("a", "b")
    assert presence.names(0) == {"a", "b"}
    presence.set_listed(["a", "c"], now_ns=1)
    assert presence.names(1) == {"a", "c"}
    assert presence.next_end_ns(1) is None


def test_a_process_that_is_only_heard_does_not_become_a_member() -> None:
    presence = of("a")
    presence.hear("stranger", until_ns=LEASE, now_ns=0)
    assert presence.names(0) == {"a"}


def test_a_member_that_lost_its_registration_stays_while_it_is_heard() -> None:
    presence = of("a", "b")
    presence.hear("b", until_ns=LEASE, now_ns=0)
    presence.set_listed(["a"], now_ns=1)
    assert presence.names(1) == {"a", "b"}
    assert presence.next_end_ns(1) == LEASE
    presence.hear("b", until_ns=2 * LEASE, now_ns=LEASE - 1)
    assert presence.names(LEASE) == {"a", "b"}
    assert presence.names(2 * LEASE) == {"a"}


def test_a_member_that_is_gone_is_not_brought_back_by_a_report() -> None:
    presence = of("a", "b")
    presence.hear("b", until_ns=LEASE, now_ns=0)
    presence.set_listed(["a"], now_ns=1)
    presence.hear("b", until_ns=3 * LEASE, now_ns=LEASE)
    assert presence.names(LEASE) == {"a"}


def test_a_silent_member_that_lost_its_registration_is_gone_at_once() -> None:
    presence = of("a", "b")
    presence.hear("b", until_ns=LEASE, now_ns=0)
    presence.set_listed(["a"], now_ns=LEASE)
    assert presence.names(LEASE) == {"a"}


def test_a_process_without_a_registration_is_a_member_while_its_reports_come_back() -> None:
    presence = of("a", "b")
    presence.hear("a", until_ns=LEASE, now_ns=0)
    presence.lose()
    assert presence.names(1) == {"a", "b"}
    assert presence.names(LEASE) == {"b"}


def test_a_process_whose_reports_do_not_come_back_is_no_member_without_its_registration() -> None:
    presence = of("a", "b")
    presence.lose()
    assert presence.names(0) == {"b"}


def test_a_process_whose_name_another_one_has_is_no_member_whatever_is_heard() -> None:
    presence = of("a", "b")
    presence.hear("a", until_ns=LEASE, now_ns=0)
    presence.give_way()
    presence.hear("a", until_ns=2 * LEASE, now_ns=1)
    assert presence.names(1) == {"b"}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from(["list", "hear", "lose", "give way"]), st.sets(st.sampled_from("abcd"))
        ),
        max_size=30,
    )
)
def test_every_member_was_registered_once_and_is_registered_or_was_heard_lately(
    steps: list[tuple[int, str, set[str]]],
) -> None:
    presence, now = Presence("a"), 0
    was_listed: set[str] = set()
    listed: set[str] = set()
    heard: dict[str, int] = {}
    for passed, kind, names in steps:
        now += passed
        if kind == "list":
            presence.set_listed(names, now)
            listed = set(names)
            was_listed |= names
        elif kind == "hear":
            for name in names:
                presence.hear(name, now + 3, now)
                heard[name] = now + 3
        else:
            presence.lose() if kind == "lose" else presence.give_way()
            listed.discard("a")
        assert listed <= presence.names(now) <= was_listed
        assert all(name in listed or heard.get(name, 0) > now for name in presence.names(now))
