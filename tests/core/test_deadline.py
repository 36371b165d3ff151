# SPDX-License-Identifier: Apache-2.0
"""Whoever waits inside of a request has less time than the request."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import DEADLINE_S, REQUEST_S, announced, granted_s, inner_s

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def until(deadline_s: float) -> Iterator[None]:
    token = DEADLINE_S.set(deadline_s)
    try:
        yield
    finally:
        DEADLINE_S.reset(token)


@given(left_s=st.floats(0.01, REQUEST_S), depth=st.integers(1, 8))
def test_each_level_has_less_than_the_one_around_it_also_at_another_broker(left_s: float, depth: int) -> None:
    for _ in range(depth):
        with until(100.0 + left_s):
            inner = inner_s(100.0)
        assert 0 < inner < left_s
        assert granted_s(announced(inner)) < inner
        left_s = inner


def test_outside_of_a_request_and_after_it_there_is_time_as_for_a_new_one() -> None:
    assert inner_s(7.0) == 45.0
    with until(100.0):
        assert inner_s(100.0) == 45.0
        assert inner_s(99.0) == 0.9


def test_what_another_broker_says_is_not_trusted_beyond_a_requests_time() -> None:
    assert granted_s("1500") == 1.5
    assert granted_s("99999999") == granted_s("-1") == granted_s("x") == granted_s(None) == REQUEST_S
