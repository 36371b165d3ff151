# SPDX-License-Identifier: Apache-2.0
"""One subscription: a cursor on a topic and its consumers. It combines the parts of delivery.

Why one class for all types: the differences (which consumer gets the next entries, what is counted, what is
redelivered) are planned by the `Dispatcher` of the type; the rest is done by parts that are independent of types.
Where: the topic wakes it when entries are durable, sessions when permits, acknowledgements or consumers change; the
admin API moves it.

Theory of operation:
    `wake` schedules one dispatch in this turn of the loop, however often it is called. A dispatch asks the dispatcher
        which consumers are ready, and delivers entries waiting for redelivery (`Redelivery`), else entries from
        `read_entry_id` on (`NewEntries`). Both pass a batch to `Delivery`: the dispatcher plans the rows for each
        consumer, `Delivery` sends them. Entries not in the tail cache are read by `LogReading`, one read at a time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.acknowledging import Acknowledging
from penstock.broker.subscriptions.delivery import Delivery
from penstock.broker.subscriptions.holds import DispatchHolds
from penstock.broker.subscriptions.key_shared import KeyShared
from penstock.broker.subscriptions.reading import LogReading, NewEntries, Redelivery
from penstock.broker.subscriptions.replicating import REPLICATED, without_replicated
from penstock.broker.subscriptions.shared import Shared
from penstock.broker.subscriptions.single_active import SingleActive
from penstock.broker.subscriptions.state import FAILOVER, KEY_SHARED, SHARED, TYPE_NAMES, SubscriptionState
from penstock.broker.subscriptions.transactional import TransactionalAcks
from penstock.core.errors import ConsumerBusy, ServiceNotReady
from penstock.governance.holds import HoldKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.broker.subscriptions.consumer import Consumer, DispatchServices, SubscribedTopic
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.core.errors import PenstockError
    from penstock.governance.delayed_view import DelayedDeliveryView
    from penstock.storage.cursor import Cursor
    from penstock.storage.results import Batch
    from penstock.wire.events import AckRun


# -- moves of a cursor: seek, reset, skip, expire, and acknowledgements without a consumer -----------------------------

# After a seek, a non-durable subscription is kept this long without consumers: the client reconnects.
RECONNECT_S: Final = 60.0


class CursorMoves:
    """Moves the cursor of one subscription."""

    __slots__ = ("_reading", "_services", "_state", "_wake")

    def __init__(
        self, state: SubscriptionState, services: DispatchServices, reading: LogReading, wake: Callable[[], None]
    ) -> None:
        self._state = state
        self._services = services
        self._reading = reading
        self._wake = wake

    async def move_to(self, entry_id: int, members: Sequence[int] = ()) -> None:
        """Seek: disconnect the consumers, then deliver this entry next.

        Args:
            entry_id: the entry.
            members: the messages of its batch to deliver, as an ack set, if not all.

        Raises:
            ServiceNotReady: a seek is running.
            TooManyRequests: there is no memory for the ack set.
            MetadataFailed: the new position could not be stored.
        """
        state, services = self._state, self._services
        if state.fenced:
            raise ServiceNotReady(f"subscription {state.name!r} of {state.topic.text} is being reset already")
        state.memory.check_room(entry_id, members)
        state.fenced = True
        try:
            for consumer in list(state.consumers):
                consumer.session.disconnect_consumer(consumer)
            self.reset(entry_id, members if services.limits().batch_index_acks else ())
            await services.cursors.save(state)
        finally:
            state.fenced = False
            if not state.durable:
                services.loop.call_later(RECONNECT_S, partial(state.topic.end_if_idle, state))

    def reset(self, to_entry_id: int, members: Sequence[int] = ()) -> None:
        """Deliver this entry next; consumers must be detached."""
        state = self._state
        state.cursor.reset(to_entry_id, members)
        state.memory.measure()
        state.topic.pass_cancelled(state.cursor)
        if state.view is not None:
            state.view.was_reset()
            state.view.update_mark_delete_position(state.cursor.mark_delete)
        self._reading.rewind()
        self._services.cursors.moved(state)

    def skip(self, count: int) -> None:
        """Acknowledge the next `count` unacknowledged entries, delivered or not."""
        if count <= 0:
            return
        if count < self._state.backlog:
            self.acknowledge_through(self._state.cursor.nth_unacknowledged(count - 1))
        else:
            self.skip_all()

    def skip_all(self) -> None:
        """Acknowledge all entries, including delayed ones."""
        self.acknowledge_through(self._state.topic.last_entry_id)
        if self._state.view is not None:
            self._state.view.clear()

    def expire_through(self, entry_id: int) -> int:
        """Expire all messages up to this entry; returns the number of entries."""
        state = self._state
        count = self.acknowledge_through(min(entry_id, state.topic.last_entry_id))
        state.expired += count
        state.last_expired_ms = self._services.clock.wall_ms()
        return count

    def acknowledge_through(self, entry_id: int) -> int:
        """Acknowledge all entries up to this one, without a consumer; returns the number of entries."""
        state = self._state
        count = state.cursor.acknowledge_through(entry_id)
        if not count:
            return 0
        if state.view is not None:
            state.view.update_mark_delete_position(state.cursor.mark_delete)
        state.read_entry_id = max(state.read_entry_id, entry_id + 1)
        if state.dispatcher is not None:
            state.dispatcher.acknowledged_through(entry_id)
        self._moved()
        return count

    def acknowledge_one(self, entry_id: int) -> None:
        """Acknowledge one entry, without a consumer."""
        state = self._state
        if not state.cursor.acknowledge(entry_id):
            return
        state.acknowledged_for_view((entry_id,))
        if state.dispatcher is not None:
            state.dispatcher.acknowledged_elsewhere(entry_id)
        self._moved()

    def acknowledge_aborted(self, entries: range) -> None:
        """Acknowledge entries of an aborted transaction, which come into reach right now: nobody has got them."""
        state = self._state
        state.cursor.acknowledge_many(entries)
        state.acknowledged_for_view(entries)
        self._services.cursors.moved(state)

    def _moved(self) -> None:
        self._services.cursors.moved(self._state)
        self._state.tell_of_end()
        self._wake()


# Maximum of permits; more are ignored, because no client can hold so many messages.
PERMITS_MAX: Final = 2**31 - 1
# One dispatch delivers at most this many batches before the loop continues.
PIECES_PER_TURN_MAX: Final = 16


# Attributes of a subscription that refer back to it.
_PARTS: Final = (
    "_acknowledging",
    "_delivery",
    "_new_entries",
    "_redelivery",
    "gate",
    "moves",
    "reading",
    "transactional",
)


class Subscription(SubscriptionState):
    """A named cursor on a topic, and its consumers."""

    __slots__ = (
        "_acknowledging",
        "_delivery",
        "_new_entries",
        "_redelivery",
        "_scheduled",
        "_services",
        "moves",
        "reading",
        "transactional",
    )

    def __init__(
        self, topic: SubscribedTopic, name: str, *, cursor: Cursor, durable: bool, services: DispatchServices
    ) -> None:
        super().__init__(topic, name, cursor=cursor, durable=durable, memory=services.memory)
        self.idle_since_ns = services.clock.monotonic_ns()
        self._services = services
        self._scheduled = False
        self.reading = LogReading(self, services, self.wake)
        self._delivery = Delivery(self, services.clock, services.turn)
        self._new_entries = NewEntries(self, services, self.reading, self._delivery)
        self._redelivery = Redelivery(self, services, self.reading, self._delivery)
        self._acknowledging = Acknowledging(self, services)
        self.transactional = TransactionalAcks(self, services, rewind=self.reading.rewind, wake=self.wake)
        self.moves = CursorMoves(self, services, self.reading, self.wake)

    def let_go(self) -> None:
        """Drop the parts, which refer back: it has ended, and is freed without the garbage collector."""
        for name in _PARTS:
            if hasattr(self, name):
                delattr(self, name)

    # -- for statistics -----------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether no read is running, and no dispatch is scheduled."""
        return not self._scheduled and not self.reading.under_way

    @property
    def blocked(self) -> bool:
        """Whether dispatch waits until consumers acknowledge messages."""
        return self.dispatcher is not None and self.dispatcher.blocked

    @property
    def unacked(self) -> int:
        """Messages delivered and not acknowledged, in Shared and Key_Shared subscriptions."""
        return self.dispatcher.unacked if self.dispatcher is not None else 0

    @property
    def active_consumer(self) -> Consumer | None:
        return self.dispatcher.active_consumer if self.dispatcher is not None else None

    @property
    def properties(self) -> Mapping[str, str]:
        return without_replicated(self._services.properties(self.topic.text, self.name)) if self.durable else {}

    @property
    def replicated(self) -> bool:
        """Whether it is to have the same place in all clusters that its topic is replicated to."""
        return self.durable and REPLICATED in self._services.properties(self.topic.text, self.name)

    @property
    def delayed(self) -> int:
        """Entries held until their delivery time, including those known to be on disk only."""
        view, index = self.view, self.topic.delayed
        if view is None or index is None:
            return 0
        held = view.number_of_delayed_messages
        left = index.manager.spilled_after(self.cursor.mark_delete)
        return max(held, min(held + left, self.backlog)) if left else held

    @property
    def waiting(self) -> int:
        """Entries that could be delivered if nothing held them: not acknowledged, delivered or delayed."""
        dispatcher = self.dispatcher
        if dispatcher is None or dispatcher.individual:
            pending = dispatcher.pending if dispatcher is not None else 0
            return max(0, self.backlog - pending - self.delayed)
        return max(0, self.topic.last_entry_id + 1 - self.undelivered.next_unacknowledged(self.read_entry_id))

    # -- attaching and detaching consumers ----------------------------------------------------------------------------

    def add(self, consumer: Consumer, kind: int) -> None:
        """Attach a consumer.

        Raises:
            ConsumerBusy: consumers of another type are attached, or an Exclusive subscription has a consumer.
            ConsumerAssignFailed: the requested ranges of a Key_Shared consumer are not available.
            ServiceNotReady: the subscription is being reset.
        """
        if self.fenced:
            raise ServiceNotReady(f"subscription {self.name!r} of {self.topic.text} is being reset; try again")
        dispatcher = self.dispatcher
        if dispatcher is None:
            dispatcher = self._dispatcher_of(kind, consumer)
        elif kind != self.kind:
            raise ConsumerBusy(
                f"Subscription is of different type. Active subscription type of '{TYPE_NAMES[self.kind]}' is "
                f"different than the connecting consumer's type '{TYPE_NAMES[kind]}'."
            )
        dispatcher.check(consumer)
        dispatcher.join(consumer)
        if self.dispatcher is None:
            self.dispatcher, self.kind = dispatcher, kind
            if dispatcher.individual and self.topic.persistent:
                self.view = self.topic.join_delayed(self)
            else:
                self.delay_nothing()
            self.reading.rewind()
        consumer.read_position_when_joining = self.read_entry_id
        self.consumers.append(consumer)
        self.through_proxy = self.through_proxy or consumer.session.through_proxy

    def conflicting(self, consumer: Consumer, kind: int) -> list[Consumer]:
        """Consumers that make `add` refuse this one. If all of them are disconnected, `add` succeeds."""
        if self.dispatcher is None or kind != self.kind:
            return list(self.consumers)
        return self.dispatcher.conflicting(consumer)

    def _dispatcher_of(self, kind: int, first: Consumer) -> Dispatcher:
        dispatcher = self._new_dispatcher(kind, first)
        policies = self.topic.policies
        dispatcher.limits_changed(policies.max_unacked_per_consumer, policies.max_unacked_per_subscription)
        return dispatcher

    def _new_dispatcher(self, kind: int, first: Consumer) -> Dispatcher:
        services, limits = self._services, self._services.limits
        if kind not in {SHARED, KEY_SHARED}:
            return SingleActive(
                self.consumers,
                position=self.reading,
                call_later=services.loop.call_later,
                wake=self.wake,
                topic=self.topic.text,
                partition=self.topic.partition,
                subscription=self.name,
                failover_delay_s=(lambda: limits().failover_delay_s) if kind == FAILOVER else None,
            )
        if kind == SHARED:
            return Shared(
                self.consumers,
                memory=services.memory,
                wait_for_memory=self._wait_for_memory,
                wake=self.wake,
                round_robin_entries_max=lambda: limits().round_robin_entries_max,
            )
        of_broker = limits()
        return KeyShared(
            self.consumers,
            memory=services.memory,
            wait_for_memory=self._wait_for_memory,
            wake=self.wake,
            round_robin_entries_max=lambda: limits().round_robin_entries_max,
            sharing=first.key_sharing,
            ring_points=of_broker.key_shared_points if of_broker.key_shared_consistent_hashing else None,
            long_keys=services.long_keys,
        )

    def _wait_for_memory(self) -> None:
        self._services.memory_waits.add(self)

    def attached(self, consumer: Consumer) -> None:
        """The client was told that it is subscribed: its consumer can be sent entries now."""
        if self.dispatcher is not None and consumer in self.consumers:
            self.dispatcher.attached(consumer)
            self.tell_of_end()

    def remove(self, consumer: Consumer) -> None:
        """Detach a consumer; its unacknowledged messages are redelivered to others."""
        if consumer not in self.consumers:
            return
        assert self.dispatcher is not None
        self.consumers.remove(consumer)
        self.dispatcher.leave(consumer)
        if self.topic.clients is not None:
            self.topic.clients.consumer_left(self.topic.text, self.name, consumer)
        if not self.consumers:
            self.dispatcher.close()
            self.dispatcher = None
            self.through_proxy = False
            self.idle_since_ns = self._services.clock.monotonic_ns()
            self.holds = None
            self.reading.rewind()
            self.topic.end_if_idle(self)
        self.wake()

    def limits_changed(self) -> None:
        """Apply changed policies: dispatch may continue."""
        if self.dispatcher is not None:
            policies = self.topic.policies
            self.dispatcher.limits_changed(policies.max_unacked_per_consumer, policies.max_unacked_per_subscription)
        self.wake()

    # -- dispatch -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule one dispatch in this turn of the loop."""
        if not self._scheduled and self.consumers:
            self._scheduled = True
            self._services.dispatch_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        if not self.topic.persistent:
            return
        for _ in range(PIECES_PER_TURN_MAX):
            if self.reading.under_way or self.fenced or not self._send_next():
                return
        self.wake()

    def _send_next(self) -> bool:
        """Deliver one batch; False if there is nothing to send, no ready consumer, or a read was started."""
        dispatcher = self.dispatcher
        if dispatcher is None:
            return False
        if self.read_entry_id > self.topic.last_entry_id and self.view is None and not dispatcher.has_replay:
            return False  # The usual end of a dispatch: everything was delivered.
        ready = dispatcher.ready()
        if not ready:
            return self._stop(dispatcher.stopped_by())
        if self.gate is not None and not self.gate.is_open():
            return self._stop(self.gate.stopped_by)
        if self.holds is not None and self.holds.active:
            self._go_on(self.holds, dispatcher)
        if self.view is not None:
            self._redelivery.add_due(dispatcher, ready)
        if dispatcher.has_replay:
            waiting = dispatcher.next_replay(ready)
            if waiting:
                return self._redelivery.send(dispatcher, waiting, ready)
            self._set_aside(HoldKind.KEY_BLOCKED)
        if dispatcher.full:
            self._set_aside(HoldKind.LOOK_AHEAD)
            return False
        return self._new_entries.send_next(dispatcher, ready)

    # -- holds --------------------------------------------------------------------------------------------------------

    def _stop(self, kind: HoldKind) -> bool:
        """Dispatch stops; returns False. It is a hold if entries are left."""
        if self.has_more:
            self.holds = self.holds or DispatchHolds()
            self.holds.stop(kind, self._services.clock.monotonic_ns(), self.messages_out)
        return False

    def _set_aside(self, kind: HoldKind) -> None:
        """Entries wait for their consumers, while others are delivered."""
        self.holds = self.holds or DispatchHolds()
        self.holds.set_aside(kind, self._services.clock.monotonic_ns(), self.messages_out)

    def _go_on(self, holds: DispatchHolds, dispatcher: Dispatcher) -> None:
        """Dispatch is not stopped any more, or it never was."""
        now_ns = self._services.clock.monotonic_ns()
        holds.go_on(now_ns)
        if holds.keys and not dispatcher.full:
            holds.take_up(now_ns, all_keys=not dispatcher.has_replay)

    @property
    def has_more(self) -> bool:
        """Whether there may be entries to deliver now."""
        if self.read_entry_id <= self.topic.last_entry_id:
            return True
        if self.dispatcher is not None and self.dispatcher.has_replay:
            return True
        view, index = self.view, self.topic.delayed
        if view is None or index is None or not view.may_hold:
            return False
        return view.has_message_available(index.now_ms(), self.read_entry_id)

    def offer(self, batch: Batch) -> None:
        """Deliver entries of a non-persistent topic to consumers with permits; drop the rest."""
        dispatcher = self.dispatcher
        if dispatcher is None:
            self.dropped += len(batch.offsets)
        else:
            self.dropped += self._delivery.deliver_unstored(dispatcher, batch)

    def entries_returned(self, consumer: Consumer, entry_ids: list[int], messages: int) -> None:
        """Redeliver entries that were removed from the queue of a client that does not read."""
        if consumer in self.consumers:
            assert self.dispatcher is not None
            self._delivery.returned(self.dispatcher, consumer, entry_ids, messages)
            self.wake()

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> None:
        """Redeliver these entries, or if empty, all unacknowledged ones."""
        if self.dispatcher is not None:
            self.messages_redelivered += self.dispatcher.redeliver(consumer, entry_ids, epoch)
            self.wake()

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits = min(consumer.permits + permits, PERMITS_MAX)
        consumer.last_flow_ms = self.last_flow_ms = self._services.clock.wall_ms()
        self.wake()

    def delivers_by(self, view: DelayedDeliveryView) -> bool:
        """Whether it has consumers, and still uses this view."""
        return self.view is view and self.dispatcher is not None

    def replay_passed(self, entry_ids: Sequence[int]) -> None:
        """Deliver those of these delayed entries that are due, and neither acknowledged nor sent."""
        self._redelivery.add_passed(entry_ids)
        self.wake()

    def release(self) -> None:
        super().release()
        self.transactional.release()

    # -- delegated to its parts ---------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, ack: AckRun) -> PenstockError | None:
        return self._acknowledging.acknowledge(consumer, ack)

    async def move_to(self, entry_id: int, members: Sequence[int] = ()) -> None:
        await self.moves.move_to(entry_id, members)

    async def save_cursor(self) -> None:
        """Store the cursor, if the subscription is durable. Raises MetadataFailed."""
        await self._services.cursors.save(self)

    def expire_through(self, entry_id: int) -> int:
        return self.moves.expire_through(entry_id)

    def acknowledge_through(self, entry_id: int) -> int:
        """Acknowledge all entries up to this one, without a consumer; returns the number of entries."""
        return self.moves.acknowledge_through(min(entry_id, self.topic.last_entry_id))


def subscription_of(consumer: Consumer) -> Subscription:
    """The subscription of a consumer as a `Subscription`, for callers that need more than the port."""
    subscription = consumer.subscription
    assert isinstance(subscription, Subscription), "only subscriptions have consumers"
    return subscription
