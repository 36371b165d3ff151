# SPDX-License-Identifier: Apache-2.0
"""The feed of topics that come and go: in order, numbered, to those who listen, and in a form for other processes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.topics.listing_blocks import FORM, TopicEvent, TopicFeed

A, OTHER = "persistent://acme/sales/a", "persistent://acme/other/a"


def test_a_listener_hears_of_its_namespace_only_in_order_with_the_numbers_of_all() -> None:
    feed, heard = TopicFeed(), list[TopicEvent]()
    feed.listen("acme/sales", heard.append)
    feed.report(A, created=True)
    feed.report(OTHER, created=True)
    feed.report(A, created=False)
    assert heard == [TopicEvent(1, A, created=True), TopicEvent(3, A, created=False)]
    assert feed.last_number == 3


def test_a_listener_that_has_stopped_hears_nothing_and_one_that_fails_keeps_nobody_from_hearing() -> None:
    def fail(_event: TopicEvent) -> None:
        raise RuntimeError

    feed, heard = TopicFeed(), list[TopicEvent]()
    stop = feed.listen("acme/sales", heard.append)
    feed.listen("acme/sales", fail)
    feed.listen("acme/sales", heard.append)
    stop()
    feed.report(A, created=True)
    assert len(heard) == 1


@given(number=st.integers(1), topic=st.text(), created=st.booleans())
def test_an_event_comes_out_of_its_written_form_as_it_was(number: int, topic: str, *, created: bool) -> None:
    event = TopicEvent(number, topic, created)
    data = event.encode()
    assert b"\n" not in data
    assert TopicEvent.decode(data) == event


@pytest.mark.parametrize(
    "form",
    [
        {"form": FORM + 1, "number": 1, "topic": A, "created": True},
        {"form": FORM, "number": "1", "topic": A, "created": True},
        {"form": FORM, "number": 1, "topic": A},
        [],
    ],
)
def test_what_is_no_event_of_this_form_is_refused(form: object) -> None:
    with pytest.raises(ValueError, match="no event of form 1"):
        TopicEvent.decode(json.dumps(form).encode())
