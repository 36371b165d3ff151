# SPDX-License-Identifier: Apache-2.0
"""The delayed messages of one topic: connects the pure index with the log, the clock and the subscriptions.

Why: the index (`governance/delayed`) is pure. It is told what was published and asked what is due. This module feeds it
the durable entries of each run, runs its timer, and starts the log reads that it asks for.
Where: created with the first Shared or Key_Shared consumer of a topic, or from the snapshot of an earlier run.
Publishing reports runs, dispatchers query it through their views, and its timer wakes subscriptions with due messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.governance.delayed import TIME_MAX_MS, DelayedOptions
from penstock.wire import metadata

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.broker.topics.delayed import DelayedIndexes
    from penstock.broker.topics.topic import Topic
    from penstock.core.checksum import Buffer
    from penstock.governance.delayed import TopicDelayedDeliveryTrackerManager
    from penstock.governance.delayed_view import DelayedDeliveryView
    from penstock.storage.entry_log import Batch

# The timer never waits longer than this, because the wall clock may be changed.
CHECK_S_MIN: Final = 0.005
CHECK_S_MAX: Final = 5.0


class DelayedIndex:
    """Delayed messages of one topic, shared by its Shared and Key_Shared subscriptions.

    `lateness_ms_sum` adds up, over all `delivered` messages, how much later than due they were given to consumers, as
    precisely as the index's time slots allow. Waiting for permits counts too.
    """

    __slots__ = (
        "_check_at_ms",
        "_indexes",
        "_options",
        "_timer",
        "added",
        "delivered",
        "lateness_ms_max",
        "lateness_ms_sum",
        "manager",
        "reading",
        "topic",
    )

    def __init__(self, topic: Topic, delayed_indexes: DelayedIndexes) -> None:
        self.topic = topic
        self._indexes = delayed_indexes
        self._options = self._wanted_options()
        self.manager: TopicDelayedDeliveryTrackerManager = delayed_indexes.factory.manager(
            topic.text, topic.durable_entry_id + 1, self._options
        )
        self.added = 0  # since the last snapshot
        self.delivered = 0
        self.lateness_ms_sum = 0
        self.lateness_ms_max = 0
        self.reading = False  # released entries are being read from the log again
        self._timer: asyncio.TimerHandle | None = None
        self._check_at_ms = TIME_MAX_MS

    def now_ms(self) -> int:
        """The wall clock in ms since 1970; if the topic may not delay messages, a time at which all are due."""
        return self._indexes.clock.wall_ms() if self.topic.delays else TIME_MAX_MS

    def due_until_ms(self) -> int:
        """Messages with a delivery time up to this one, in ms since 1970, may be delivered now."""
        return self.now_ms() + self._options.early_ms

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def view_of(self, subscription: SubscriptionState) -> DelayedDeliveryView:
        """The subscription's view; created if missing."""
        return self.manager.create_or_get_view(subscription.name, subscription.cursor)

    def leave(self, subscription: SubscriptionState) -> None:
        self.manager.unregister(subscription.name)
        if self._indexes.factory.find(self.topic.text) is not self.manager:  # That was the last view.
            self._indexes.forget(self.topic)

    # -- what is published --------------------------------------------------------------------------------------------

    def published(self, first_entry_id: int, data: Buffer, offsets: Sequence[int], lengths: Sequence[int]) -> None:
        """Add durable entries with consecutive ids. Called before any consumer can read them.

        Budget: 0.15 µs per entry that is not delayed, 4 µs per one that is (benchmarks/delayed_delivery.py).
        """
        if not self.topic.delays:
            return
        rows = metadata.may_be_delayed(data, offsets, lengths)
        if not rows:
            return
        ids, times_ms = metadata.delivery_times(data, offsets, lengths, rows, first_entry_id)
        if ids:
            self.count_added(self.manager.add_run(ids, times_ms, self.now_ms()))

    def look(self, view: DelayedDeliveryView, batch: Batch, row: int, stop: int) -> list[int]:
        """Decode entries that the index does not know; returns the rows of those that are still delayed."""
        offsets, lengths = batch.offsets[row:stop], batch.lengths[row:stop]
        rows = metadata.may_be_delayed(batch.data, offsets, lengths)
        if not rows:
            return []
        places, times_ms = metadata.delivery_times(batch.data, offsets, lengths, rows, row)
        ids = [batch.entry_ids[place] for place in places]
        held = view.look(ids, times_ms, self.now_ms()) if ids else []
        self.count_added(len(held))
        return held

    def count_added(self, count: int) -> None:
        """Note that `count` entries were added: a snapshot may be due, and the timer may have to fire earlier."""
        if count:
            self.added += count
            self._indexes.changed(self)
            self.set_timer()

    # -- time ---------------------------------------------------------------------------------------------------------

    def set_timer(self) -> None:
        """Set the timer to the earliest delivery time that is not known to be due yet."""
        next_ms = self.manager.next_delivery_ms()
        if self.manager.horizon.is_finite:
            next_ms = min(next_ms or TIME_MAX_MS, self._next_check_ms())
        if next_ms is not None and (self._timer is None or next_ms < self._check_at_ms):
            self._arm(next_ms)

    def _next_check_ms(self) -> int:
        """Time of the next check whether missing entries should be read from the log."""
        return self._indexes.clock.wall_ms() + self._options.tick_ms

    def _arm(self, at_ms: int) -> None:
        self.disarm()
        if self._indexes.stopping():
            return
        wait_s = (at_ms - self._indexes.clock.wall_ms()) / 1000
        self._check_at_ms = at_ms
        self._timer = self._indexes.loop.call_later(min(max(wait_s, CHECK_S_MIN), CHECK_S_MAX), self.deliver_due)

    def deliver_due(self) -> None:
        """Wake the subscriptions that have due messages, and set the timer for the next ones."""
        self.disarm()
        now_ms, later_ms = self.now_ms(), TIME_MAX_MS
        for subscription in self.topic.subscriptions.values():
            view = subscription.view
            if view is None or not subscription.consumers:
                continue
            if view.has_message_available(now_ms, subscription.read_entry_id):
                subscription.wake()
            next_ms = view.next_delivery_ms()
            if next_ms is not None and now_ms < next_ms < later_ms:
                later_ms = next_ms
        self._indexes.start_back_fill(self)
        if self.manager.horizon.is_finite:
            later_ms = min(later_ms, self._next_check_ms())
        if later_ms < TIME_MAX_MS:
            self._arm(later_ms)

    def start_back_fill(self) -> None:
        """Read entries that the index does not hold from the log, in the background."""
        self._indexes.start_back_fill(self)

    def count_delivered(self, slots: Sequence[tuple[int, int]]) -> None:
        """Count delivered delayed entries: per slot, how many, and the latest delivery time in ms since 1970."""
        self.delivered += sum(count for count, _ in slots)
        self._indexes.changed(self)
        if self.topic.delays:
            now_ms = self._indexes.clock.wall_ms()
            for count, due_ms in slots:
                late_ms = max(0, now_ms - due_ms)
                self.lateness_ms_sum += late_ms * count
                self.lateness_ms_max = max(self.lateness_ms_max, late_ms)

    # -- changes ------------------------------------------------------------------------------------------------------

    def policies_changed(self) -> None:
        """Apply the changed delayed-delivery policy, also to messages that are already held."""
        options = self._wanted_options()
        if options != self._options:
            self._options = options
            self.manager.on_options_updated(options)
        self.deliver_due()

    def _wanted_options(self) -> DelayedOptions:
        """Options from the topic's policies and the broker's settings."""
        tick_ms = max(1, self.topic.policies.delayed_delivery.tick_ms)
        return DelayedOptions(tick_ms=tick_ms, strict=self._indexes.limits().delayed_strict)

    def disarm(self) -> None:
        """Cancel the timer: the topic is unloaded, needs no index, or the broker stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
