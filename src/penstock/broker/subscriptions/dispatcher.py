# SPDX-License-Identifier: Apache-2.0
"""The dispatcher of a subscription type: decides which consumers are ready, and which entries they get.

Why planners: a dispatcher decides and remembers, `Delivery` performs. A dispatcher neither sends nor reads, so it is
tested without sockets, disk or loop.
Where: a subscription makes the dispatcher of its type when its first consumer is attached, and drops it with the last;
redelivery counts and the active consumer are dropped with it, as in Pulsar.

A plan names rows of a batch. `Delivery` carries it out, and reports `sent` entries and those `not_sent` for lack of
room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.governance.holds import HoldKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.key_shared_order import Draining
    from penstock.storage.results import Batch


class Send(NamedTuple):
    """Ascending rows of a batch for one consumer, and their number of messages."""

    consumer: Consumer
    rows: Sequence[int]
    messages: int


class Plan(NamedTuple):
    """The rows for each consumer, in sending order.

    `reached` is the row after the last one that the plan handles. With `in_order`, the plan ends at the first row
    without room; otherwise each consumer is sent what it has room for.
    """

    sends: Sequence[Send]
    reached: int
    in_order: bool = True


class HeldConsumer(NamedTuple):
    """A consumer that cannot be sent entries which wait for it.

    `entries` are those that wait for it alone, 0 if all consumers share what waits. If other consumers hold its keys,
    `holder` is one of them, and `entry_id` its first unacknowledged entry of such a key.
    """

    kind: HoldKind
    consumer: Consumer
    entries: int = 0
    holder: Consumer | None = None
    entry_id: int = 0


class Dispatcher:
    """The planner of one subscription type.

    `counts` are the messages in each entry of a batch; None when every entry holds one.
    """

    __slots__ = ("consumers",)

    individual = False  # whether consumers acknowledge entries individually: acknowledgements are pending until then
    blocked: bool = False  # dispatch stops until consumers acknowledge messages

    def __init__(self, consumers: list[Consumer]) -> None:
        self.consumers = consumers  # of the subscription, which updates it

    # -- attaching and detaching consumers ----------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if this consumer cannot be attached beside the others."""

    def conflicting(self, consumer: Consumer) -> list[Consumer]:
        """Consumers that prevent this one from being attached."""
        del consumer
        return []

    def join(self, consumer: Consumer) -> None:
        """Add a consumer. Raises ConsumerAssignFailed."""

    def attached(self, consumer: Consumer) -> None:
        """The consumer's client has been told that it is subscribed."""

    def leave(self, consumer: Consumer) -> None: ...

    def close(self) -> None:
        """Release everything: the last consumer was removed."""

    @property
    def active_consumer(self) -> Consumer | None:
        """The active consumer of an Exclusive or Failover subscription."""
        return None

    # -- ready consumers ----------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether no new entries may be read, because too many wait already."""
        return False

    def ready(self) -> list[Consumer]:
        """Consumers that can be sent entries now."""
        raise NotImplementedError

    def rows_max(self, ready: list[Consumer]) -> int:
        """Maximum number of entries that these consumers can be sent now."""
        raise NotImplementedError

    # -- holds --------------------------------------------------------------------------------------------------------

    def stopped_by(self) -> HoldKind:
        """Why no consumer is ready."""
        return self._hold_of(self.consumers[0])

    def held_consumers(self) -> Iterator[HeldConsumer]:
        """All consumers, and why each is not ready, after none was."""
        for consumer in self.consumers:
            yield HeldConsumer(self._hold_of(consumer), consumer)

    def held_keys(self) -> Iterator[HeldConsumer]:
        """Consumers of the keys of entries that are set aside, and why each cannot be sent them."""
        return iter(())

    def _hold_of(self, consumer: Consumer) -> HoldKind:
        """Why a consumer is not ready."""
        if consumer.permits <= 0:
            return HoldKind.QUEUE_FULL if consumer.last_flow_ms else HoldKind.NO_PERMITS
        return HoldKind.OUTBOUND

    # -- plans --------------------------------------------------------------------------------------------------------

    def plan(
        self, batch: Batch, rows: Sequence[int], stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """Plan new entries: these rows, all before `stop`. Rows left out are delayed."""
        raise NotImplementedError

    def plan_unstored(self, batch: Batch, rows: range, counts: Sequence[int] | None, ready: list[Consumer]) -> Plan:
        """Plan entries of a non-persistent topic; what is not sent is dropped."""
        return self.plan(batch, rows, rows.stop, counts, ready)

    def plan_replay(
        self, batch: Batch, row: int, stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """Plan those of the entries `row..stop-1` that wait for redelivery."""
        raise NotImplementedError

    def sent(
        self, consumer: Consumer, entry_ids: Sequence[int], counts: Sequence[int] | None, messages: int
    ) -> None: ...

    def not_sent(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """There was no room for these planned entries."""

    def returned(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Redeliver entries that were queued for this consumer, but not sent."""
        raise NotImplementedError

    # -- redelivery ---------------------------------------------------------------------------------------------------

    @property
    def has_replay(self) -> bool:
        return False

    @property
    def replay_size(self) -> int:
        return 0

    def next_replay(self, ready: list[Consumer]) -> list[int]:  # noqa: ARG002 - others need to know
        """The next entries to redeliver, ascending; they go before new entries."""
        return []

    def due_room(self, ready: list[Consumer]) -> int:  # noqa: ARG002 - likewise
        """How many due delayed entries these consumers can take."""
        return 0

    def add_replay(self, entry_ids: Iterable[int]) -> None:
        """Add due delayed entries to those that wait for redelivery."""
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> int:
        """Redeliver these entries, or if empty, all that the consumer has not acknowledged.

        Returns the number of messages, if consumers acknowledge individually.
        """
        raise NotImplementedError

    def redelivery_counts(self, entry_ids: Sequence[int]) -> list[int] | None:
        """How often each of these entries was delivered before; None if none was."""
        assert entry_ids
        return None

    def missing(self, entry_ids: Iterable[int]) -> None:
        """Remove entries that are not in the log."""

    # -- acknowledged -------------------------------------------------------------------------------------------------

    def acknowledged(
        self,
        consumer: Consumer,
        entry_ids: Sequence[int],  # noqa: ARG002 - others need them
        newly: int,
    ) -> None:
        """Note acknowledged entries; `newly` of them were unacknowledged before."""
        consumer.acks += newly

    def acknowledged_in_part(self, consumer: Consumer, entry_id: int, wanted: int | None) -> None:
        """Some messages of a batch were acknowledged; `wanted` are left, or None if unknown."""

    def acknowledged_through(self, entry_id: int) -> None:
        """All entries up to this one were acknowledged without a consumer: skipped or expired."""

    def acknowledged_elsewhere(self, entry_id: int) -> None:
        """This entry was acknowledged without a consumer: cancelled."""

    def limits_changed(self, unacked_per_consumer: int, unacked_per_subscription: int) -> None:
        """Apply changed limits of unacknowledged messages; 0 for none."""

    # -- for statistics -----------------------------------------------------------------------------------------------

    @property
    def unacked(self) -> int:
        """Messages delivered and not acknowledged."""
        return 0

    @property
    def pending(self) -> int:
        """Entries delivered and not acknowledged, if consumers acknowledge individually."""
        return 0

    @property
    def look_ahead(self) -> tuple[int, int]:
        """Entries that are set aside, and their maximum; 0 where none are."""
        return 0, 0

    @property
    def key_sharing_mode(self) -> str | None:
        """The Key_Shared mode, as Pulsar spells it."""
        return None

    @property
    def out_of_order(self) -> bool:
        """Whether messages of a key may be delivered out of order."""
        return False

    def hash_ranges(self) -> dict[Consumer, list[tuple[int, int]]]:
        """The hash ranges of each consumer, both ends inclusive."""
        return {}

    def draining(self, consumer: Consumer) -> list[Draining]:
        """Slots of other consumers of which this one still has unacknowledged messages."""
        del consumer
        return []

    def drained(self, consumer: Consumer) -> int:
        """Number of slots that this consumer has drained since it was attached."""
        del consumer
        return 0
