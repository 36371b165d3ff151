# SPDX-License-Identifier: Apache-2.0
"""How a subscription hands entries to its consumers: what all types have in common, and the two that have one receiver.

Why apart from the subscription: reading, cursors and seeking are the same for all types; who gets what, what is counted
and what comes back when a consumer leaves is not. A subscription gets the delivery of its type when its first consumer
attaches, and forgets it with the last: counts of redeliveries and whoever was active go with it, as in Pulsar.
Where: `Subscription` reads and calls these; `dispatch` has the pure decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.subscriptions.dispatch import ConsumerRank, choose_active, take
from penstock.core.errors import ConsumerBusy
from penstock.wire import codec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.members import Consumer
    from penstock.storage.entry_log import Batch


class Delivery:
    """What a subscription asks of its type. A row range `row..stop-1` is always one of a batch."""

    __slots__ = ("subscription",)

    individual = False  # whether consumers acknowledge entries one by one, and are counted what they owe

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription

    def check(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy when this consumer cannot join those that are there."""

    def in_the_way(self, consumer: Consumer) -> list[Consumer]:
        """Those for whose sake it cannot."""
        del consumer
        return []

    def join(self, consumer: Consumer) -> None:
        """A consumer is added. Raises ConsumerAssignFailed."""

    def attached(self, consumer: Consumer) -> None:
        """It was told so."""

    def leave(self, consumer: Consumer) -> None:
        """A consumer was removed; others may be left."""

    def close(self) -> None:
        """The last consumer was removed."""

    def ready(self) -> list[Consumer]:
        """Consumers that may be sent something now."""
        raise NotImplementedError

    def allowance(self, consumer: Consumer) -> int:
        """Messages this consumer may be sent now."""
        return consumer.permits

    @property
    def full(self) -> bool:
        """Whether nothing new may be read, for what was read before still waits."""
        return False

    def take_due(self, ready: list[Consumer]) -> None:
        """Let wait what was held and is due by now, as much of it as these consumers can take."""

    def again(self, ready: list[Consumer]) -> list[int]:  # noqa: ARG002 - others need to know
        """Entries to deliver again before anything new, ascending, a portion at a time; empty when there are none."""
        return []

    def waits(self) -> bool:
        """Whether anything waits to be delivered again."""
        return False

    def deliver(self, batch: Batch, row: int, stop: int, ready: list[Consumer]) -> int:
        """Send new entries; returns the row after the last that was dealt with."""
        raise NotImplementedError

    def offer(self, batch: Batch, row: int, stop: int) -> int:
        """Send entries of a topic that stores nothing; returns how many nobody had permits for."""
        while row < stop:
            ready = self.ready()
            if not ready:
                break
            row = self.deliver(batch, row, stop, ready)
        return stop - row

    def deliver_again(self, batch: Batch, row: int, stop: int) -> bool:
        """Send those entries that wait to be delivered again; False when the consumers could not take all of them."""
        raise NotImplementedError

    def sent(self, consumer: Consumer, entry_ids: Sequence[int], counts: Sequence[int] | None, messages: int) -> None:
        """Entries were sent."""

    def take_back(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Entries that were queued for this consumer, ascending, were not sent: they are to be delivered again."""
        raise NotImplementedError

    def missing(self, entry_ids: Iterable[int]) -> None:
        """The log does not have these entries (any more)."""

    def acknowledged(
        self,
        consumer: Consumer,
        entry_ids: Sequence[int],  # noqa: ARG002 - others need them
        newly: int,
    ) -> None:
        """Entries were acknowledged, `newly` of which were not before."""
        consumer.acks += newly

    def members_acknowledged(self, consumer: Consumer, entry_id: int) -> None:
        """Some messages of a batch were acknowledged."""

    def passed(self, entry_id: int) -> None:
        """Everything up to this entry was acknowledged by nobody in particular: skipped, expired."""

    def given_up(self, entry_id: int) -> None:
        """This entry was acknowledged by nobody in particular: cancelled."""

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> None:
        """A consumer wants these entries again, or with none named all that it did not acknowledge."""
        raise NotImplementedError

    def redelivery_counts(self, entry_ids: Sequence[int]) -> list[int] | None:
        """How often each of these entries was delivered before; None when none was, which takes no look at them."""
        assert entry_ids
        return None

    def limits_changed(self) -> None:
        """Policies changed."""


class SingleActive(Delivery):
    """Exclusive and Failover: one consumer at a time gets everything, in order.

    When another one becomes the active one (the first, too), Failover waits a moment: whoever was active before may
    still be acknowledging. Then reading starts over from what is not acknowledged, and everybody is told.
    """

    __slots__ = ("_timer", "active", "failover")

    def __init__(self, subscription: Subscription, *, failover: bool) -> None:
        super().__init__(subscription)
        self.failover = failover
        self.active: Consumer | None = None
        self._timer: asyncio.TimerHandle | None = None

    def check(self, consumer: Consumer) -> None:
        """An exclusive place is taken by whoever has it."""
        del consumer
        subscription = self.subscription
        if not self.failover and subscription.consumers:
            raise ConsumerBusy(
                f"Exclusive consumer is already connected to {subscription.name!r} of {subscription.topic.text}"
            )

    def in_the_way(self, consumer: Consumer) -> list[Consumer]:
        """Whoever has the exclusive place."""
        del consumer
        return [] if self.failover else list(self.subscription.consumers)

    def attached(self, consumer: Consumer) -> None:
        """Choose anew; when nothing changes, only the newcomer is told."""
        if not self._choose():
            self._tell(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Choose anew when it was the active one."""
        if consumer is self.active:
            self.active = None
            if self.subscription.consumers:
                self._choose()

    def close(self) -> None:
        """Nobody is active."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _choose(self) -> bool:
        """Find out who is the active one; True if that is another one than before."""
        subscription = self.subscription
        topic, consumers = subscription.topic, subscription.consumers
        ranks = [ConsumerRank(consumer.priority_level, consumer.name) for consumer in consumers]
        chosen = consumers[choose_active(ranks, topic.partition, topic.text)]
        if chosen is self.active:
            return False
        self.active = chosen
        delay_s = topic.broker.limits.failover_delay_s if self.failover else 0
        if delay_s <= 0:
            self._start_over()
        elif self._timer is None:  # A change during the wait does not prolong it.
            self._timer = topic.broker.loop.call_later(delay_s, self._start_over)
        return True

    def _start_over(self) -> None:
        self._timer = None
        self.subscription.rewind()
        for consumer in self.subscription.consumers:
            self._tell(consumer)
        self.subscription.wake()

    def _tell(self, consumer: Consumer) -> None:
        if consumer.session.protocol_version >= codec.PROTOCOL_ACTIVE_CONSUMER_CHANGE:
            frame = codec.active_consumer_change(consumer.consumer_id, is_active=consumer is self.active)
            consumer.session.connection.write_frame(frame)

    def ready(self) -> list[Consumer]:
        """The active consumer, once it is its turn."""
        active = self.active
        if active is None or self._timer is not None or active.permits <= 0:
            return []
        return [active] if active.session.connection.takes_entries() else []

    def deliver(self, batch: Batch, row: int, stop: int, ready: list[Consumer]) -> int:
        """Send as much as the consumer has permits for."""
        counts = self.subscription.counts(batch, row, stop)
        entries, messages = take(counts, row, stop, ready[0].permits)
        return row + (self.subscription.send(ready[0], batch, range(row, row + entries), messages) if entries else 0)

    def take_back(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Read them again; if another consumer has become the active one, it has what they are among."""
        if consumer is self.active:
            self.subscription.step_back(entry_ids[0])

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> None:
        """All of it, from what is not acknowledged on; single entries are not asked for here."""
        if not entry_ids and consumer is self.active:
            if epoch is not None:
                consumer.epoch = epoch
            consumer.messages_redelivered += 1
            self.subscription.rewind()
