# SPDX-License-Identifier: Apache-2.0
"""Exclusive and Failover subscriptions: one active consumer gets all entries, in order.

When a consumer becomes active (also the first one), Failover waits a moment, because the previous one may still
acknowledge. Then reading starts from the first unacknowledged entry, and every consumer is told which one is active.
Where: the dispatcher of Exclusive and Failover subscriptions; `dispatch` chooses the consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker.subscriptions.dispatcher import (
    ConsumerRank,
    Dispatcher,
    HeldConsumer,
    Plan,
    Send,
    choose_active,
    take,
)
from penstock.core.errors import ConsumerBusy
from penstock.governance.holds import HoldKind
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.broker.subscriptions.consumer import Consumer, Timer
    from penstock.storage.results import Batch


class Position(Protocol):
    """The read position of a subscription."""

    def rewind(self) -> None:
        """Move the read position to the first unacknowledged entry."""

    def step_back(self, entry_id: int) -> None:
        """Move the read position back to this entry."""


class SingleActive(Dispatcher):
    """One consumer is active.

    Args:
        consumers: of the subscription.
        position: its read position.
        call_later: schedules a call, in seconds.
        wake: called when there may be something to deliver.
        topic: its full name; used to choose the consumer if there is no partition number.
        partition: its number, or -1.
        subscription: its name, for the log.
        failover_delay_s: delay of a Failover subscription, read at each change; None for an Exclusive one.
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

    # -- attaching and detaching consumers ----------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if an Exclusive subscription has a consumer."""
        del consumer
        if self._failover_delay_s is None and self.consumers:
            raise ConsumerBusy(f"Exclusive consumer is already connected to {self._subscription!r} of {self._topic}")

    def conflicting(self, consumer: Consumer) -> list[Consumer]:
        """The consumer of an Exclusive subscription."""
        del consumer
        return list(self.consumers) if self._failover_delay_s is None else []

    def attached(self, consumer: Consumer) -> None:
        """Choose the active consumer again; if it is the same, tell only the new one."""
        if not self._choose():
            self._tell(consumer)

    def leave(self, consumer: Consumer) -> None:
        """If it was active, choose another consumer."""
        if consumer is self.active:
            self.active = None
            if self.consumers:
                self._choose()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def active_consumer(self) -> Consumer | None:
        return self.active

    def _choose(self) -> bool:
        """Choose the active consumer; True if it changed."""
        ranks = [ConsumerRank(consumer.priority_level, consumer.name) for consumer in self.consumers]
        chosen = self.consumers[choose_active(ranks, self._partition, self._topic)]
        if chosen is self.active:
            return False
        self.active = chosen
        delay_s = self._failover_delay_s() if self._failover_delay_s is not None else 0
        if delay_s <= 0:
            self._start_over()
        elif self._timer is None:  # a change during the wait does not prolong it
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
        """The active consumer, after the failover delay."""
        active = self.active
        if active is None or self._timer is not None or active.permits <= 0:
            return []
        return [active] if active.outlet.takes_entries() else []

    def rows_max(self, ready: list[Consumer]) -> int:
        return ready[0].permits

    def stopped_by(self) -> HoldKind:
        """The active consumer is not ready, or there is none yet."""
        active = self.active
        return HoldKind.FAILOVER_DELAY if active is None or self._timer is not None else self._hold_of(active)

    def held_consumers(self) -> Iterator[HeldConsumer]:
        """The active consumer."""
        if self.active is not None:
            yield HeldConsumer(self.stopped_by(), self.active)

    def plan(
        self, batch: Batch, rows: Sequence[int], stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """As many entries as the consumer has permits for."""
        del batch, stop
        row = rows[0]
        entries, messages = take(counts, row, row + len(rows), ready[0].permits)
        if not entries:
            return Plan((), row)
        return Plan((Send(ready[0], range(row, row + entries), messages),), row + entries)

    def returned(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Read them again; if another consumer is active now, it reads them anyway."""
        if consumer is self.active:
            self._position.step_back(entry_ids[0])

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> int:
        """Redeliver everything from the first unacknowledged entry; single entries cannot be requested here."""
        if not entry_ids and consumer is self.active:
            if epoch is not None:
                consumer.epoch = epoch
            consumer.messages_redelivered += 1
            self._position.rewind()
        return 0
