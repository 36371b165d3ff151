# SPDX-License-Identifier: Apache-2.0
"""Why topics of other brokers wait, as their statistics tell it; these have the shape of Apache Pulsar's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from tests.console.statistics import ONE_LOOK, TWO_LOOKS, stats
from tests.console.test_behind_a_proxy import complaints_but_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.console.window import Window

Tell: TypeAlias = "Callable[..., list[tuple[str, str, str]]]"


@pytest.fixture
def tell(window: Window) -> Tell:
    """Ask the console what statistics, and those of the look before, tell: reasons with what waits."""
    window.show("/settings")

    def told(now: dict[str, Any], before: dict[str, Any] | None = None) -> list[tuple[str, str, str]]:
        call = f"told('topic', {json.dumps(now)}, {json.dumps(before) if before is not None else 'undefined'})"
        script = f"import('/console/told.js').then(({{ told }}) => {call})"
        explained = window.page.evaluate(script)
        assert (explained["producers"], explained["subscriptions"]) == (1, 1)
        assert explained["slowed"] == any(one["effect"] == "slows" for one in explained["findings"])
        return [(one["reason"], one["effect"], one["what"]) for one in explained["findings"]]

    return told


@pytest.mark.parametrize(("now", "found"), ONE_LOOK)
def test_one_look_tells_what_says_so_by_itself(
    tell: Tell, now: dict[str, Any], found: list[tuple[str, str, str]]
) -> None:
    assert tell(now) == found


@pytest.mark.parametrize(("before", "found"), TWO_LOOKS)
def test_two_looks_tell_what_may_be_normal_for_a_moment(
    tell: Tell, before: dict[str, Any], found: list[tuple[str, str, str]]
) -> None:
    assert tell(stats(), before) == found


def test_older_brokers_that_tell_less_are_no_trouble(tell: Tell) -> None:
    bare = {"publishers": [{}], "subscriptions": {"s": {"msgBacklog": 4}}}
    assert tell(bare, bare) == [("no-consumer", "slows", "subscription s")]


def test_nothing_is_complained_of(tell: Tell, window: Window) -> None:
    tell(stats())
    assert complaints_but_for(window) == []
