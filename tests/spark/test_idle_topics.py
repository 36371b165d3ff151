# SPDX-License-Identifier: Apache-2.0
"""A stream whose triggers are far apart is told that its topics may go."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.clock import ManualClock
from penstock.core.units import NS_PER_S
from penstock.spark.idle_topics import IdleTopics

if TYPE_CHECKING:
    import pytest


def test_triggers_that_are_minutes_apart_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    idle = IdleTopics(is_durable=False, clock=clock)
    with caplog.at_level(logging.WARNING):
        for wait_s in (0, 10, 180, 180):
            clock.advance(ns=wait_s * NS_PER_S)
            idle.planned()
    assert caplog.text.count("predefinedSubscription") == 1
    assert "180 s between" in caplog.text


def test_streams_with_subscriptions_or_short_triggers_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    durable, often = IdleTopics(is_durable=True, clock=clock), IdleTopics(is_durable=False, clock=clock)
    with caplog.at_level(logging.WARNING):
        for second in range(180):
            clock.advance(ns=NS_PER_S)
            often.planned()
            if second % 90 == 0:
                durable.planned()
    assert not caplog.text
