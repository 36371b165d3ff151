# SPDX-License-Identifier: Apache-2.0
"""Exclusive and Failover: one consumer at a time gets everything, in order.

When another consumer becomes the active one (the first, too), Failover waits a moment: the one that was active before
may still be acknowledging. Then reading starts over from what is not acknowledged, and every consumer is told.
Where: the dispatcher of a subscription whose consumers said Exclusive or Failover; `dispatch` has the choice itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker.subscriptions.dispatch import ConsumerRank, choose_active, take
from penstock.broker.subscriptions.dispatcher import Dispatcher, Plan, Send
from penstock.core.errors import ConsumerBusy
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.ports import Timer
    from penstock.storage.results import Batch


class Position(Protocol):
    """Where the subscription reads."""

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        ...

    def step_back(self, entry_id: int) -> None:
        """Read again from this entry on."""
        ...


class SingleActive(Dispatcher):
    """One consumer is active.

    Args:
        consumers: of the subscription.
        position: where it reads.
        call_later: how to wait, in seconds.
        wake: to be called when there is something to deliver.
        topic: its full name; it decides who is active when the topic has no partitions.
        partition: its number, or -1.
        subscription: its name, for messages.
        failover_delay_s: of a Failover subscription, read at each change; None for an Exclusive one.
    """

    __slots__ = (
        "_call_later",
        "_failover_delay_s",
        "_partition",
        "_position",
        "_subscription",
        "_timer",
        "_topic",
        "_wake",
        "active",
    )

    def __init__(
        self,
        consumers: list[Consumer],
        *,
        position: Position,
        call_later: Callable[[float, Callable[[], None]], Timer],
        wake: Callable[[], None],
        topic: str,
        partition: int,
        subscription: str,
        failover_delay_s: Callable[[], float] | None,
    ) -> None:
        super().__init__(consumers)
        self.active: Consumer | None = None
        self._position = position
        self._call_later = call_later
        self._wake = wake
        self._topic = topic
        self._partition = partition
        self._subscription = subscription
        self._failover_delay_s = failover_delay_s
        self._timer: Timer | None = None

    # -- consumers come and go ----------------------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """An Exclusive subscription has one consumer."""
        del consumer
        if self._failover_delay_s is None and self.consumers:
            raise ConsumerBusy(f"Exclusive consumer is already connected to {self._subscription!r} of {self._topic}")

    def conflicting(self, consumer: Consumer) -> list[Consumer]:
        """The consumer of an Exclusive subscription."""
        del consumer
        return list(self.consumers) if self._failover_delay_s is None else []

    def attached(self, consumer: Consumer) -> None:
        """Choose anew; when nothing changes, only the newcomer is told."""
        if not self._choose():
            self._tell(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Choose anew when it was the active one."""
        if consumer is self.active:
            self.active = None
            if self.consumers:
                self._choose()

    def close(self) -> None:
        """Nobody is active."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def active_consumer(self) -> Consumer | None:
        """The one that gets everything."""
        return self.active

    def _choose(self) -> bool:
        """Choose the active consumer; True if that is another one than before."""
        ranks = [ConsumerRank(consumer.priority_level, consumer.name) for consumer in self.consumers]
        chosen = self.consumers[choose_active(ranks, self._partition, self._topic)]
        if chosen is self.active:
            return False
        self.active = chosen
        delay_s = self._failover_delay_s() if self._failover_delay_s is not None else 0
        if delay_s <= 0:
            self._start_over()
        elif self._timer is None:  # A change during the wait does not prolong it.
            self._timer = self._call_later(delay_s, self._start_over)
        return True

    def _start_over(self) -> None:
        self._timer = None
        self._position.rewind()
        for consumer in self.consumers:
            self._tell(consumer)
        self._wake()

    def _tell(self, consumer: Consumer) -> None:
        if consumer.session.protocol_version >= codec.PROTOCOL_ACTIVE_CONSUMER_CHANGE:
            frame = codec.active_consumer_change(consumer.consumer_id, is_active=consumer is self.active)
            consumer.outlet.write_frame(frame)

    # -- plans --------------------------------------------------------------------------------------------------------

    def ready(self) -> list[Consumer]:
        """The active consumer, once it is its turn."""
        active = self.active
        if active is None or self._timer is not None or active.permits <= 0:
            return []
        return [active] if active.outlet.takes_entries() else []

    def rows_max(self, ready: list[Consumer]) -> int:
        """One entry for each permit."""
        return ready[0].permits

    def plan(
        self, batch: Batch, rows: Sequence[int], stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """As much as the consumer has permits for."""
        del batch, stop
        row = rows[0]
        entries, messages = take(counts, row, row + len(rows), ready[0].permits)
        if not entries:
            return Plan((), row)
        return Plan((Send(ready[0], range(row, row + entries), messages),), row + entries)

    def returned(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Read them again; if another consumer has become the active one, it has what they are among."""
        if consumer is self.active:
            self._position.step_back(entry_ids[0])

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> int:
        """All of it, from what is not acknowledged on; single entries are not asked for here."""
        if not entry_ids and consumer is self.active:
            if epoch is not None:
                consumer.epoch = epoch
            consumer.messages_redelivered += 1
            self._position.rewind()
        return 0
