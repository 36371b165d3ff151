# SPDX-License-Identifier: Apache-2.0
"""A minimum of messages in a micro-batch, with a maximum delay."""

from __future__ import annotations

from penstock.core.clock import ManualClock
from penstock.core.units import NS_PER_S
from penstock.spark.trigger_delay import TriggerDelay


def test_a_micro_batch_waits_for_enough_messages_but_no_longer_than_the_delay() -> None:
    clock = ManualClock()
    delay = TriggerDelay(100, 60.0, clock=clock)
    assert delay.waits(99)
    assert not delay.waits(100)
    clock.advance(ns=59 * NS_PER_S)
    assert delay.waits(1)
    clock.advance(ns=NS_PER_S)
    assert not delay.waits(1)
    assert delay.waits(1), "the delay counts from the micro-batch before"


def test_without_a_minimum_nothing_waits() -> None:
    delay = TriggerDelay(None, 60.0, clock=ManualClock())
    assert not delay.is_wanted
    assert not delay.waits(1)
