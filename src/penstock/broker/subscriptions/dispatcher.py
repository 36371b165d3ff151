# SPDX-License-Identifier: Apache-2.0
"""What a subscription asks of its type: who is ready, and which entries go to whom.

Why planners: a dispatcher decides and remembers, `Delivery` performs. A dispatcher sends nothing and reads nothing, so
who gets what, what is counted and what comes back are tested without a socket, a disk or a loop.
Where: a subscription makes the dispatcher of its type when its first consumer attaches, and drops it with the last:
counts of redeliveries and the choice of the active consumer go with it, as in Pulsar.

A plan names rows of a batch. `Delivery` carries it out, tells `sent` what went out and `not_sent` what found no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.key_shared_order import Draining
    from penstock.storage.results import Batch


class Send(NamedTuple):
    """Rows of a batch, ascending, that go to one consumer, and how many messages they hold."""

    consumer: Consumer
    rows: Sequence[int]
    messages: int


class Plan(NamedTuple):
    """Who gets which rows, in the order in which they are sent.

    `reached` is the row after the last one that the plan deals with. With `in_order`, the plan ends at the first row
    that finds no room; otherwise each consumer is sent what it has room for.
    """

    sends: Sequence[Send]
    reached: int
    in_order: bool = True


class Dispatcher:
    """The planner of one subscription type.

    `counts` are the messages in each entry of a batch; None when every entry holds one.
    """

    __slots__ = ("consumers",)

    individual = False  # whether consumers acknowledge entries one by one: acknowledgements are pending until then
    blocked: bool = False  # nothing is delivered until consumers acknowledge more

    def __init__(self, consumers: list[Consumer]) -> None:
        self.consumers = consumers  # of the subscription, which adds and removes them

    # -- consumers come and go ----------------------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy when this consumer cannot join those that are attached."""

    def conflicting(self, consumer: Consumer) -> list[Consumer]:
        """Consumers that keep this one from joining."""
        del consumer
        return []

    def join(self, consumer: Consumer) -> None:
        """A consumer is added. Raises ConsumerAssignFailed."""

    def attached(self, consumer: Consumer) -> None:
        """The consumer's client knows that it is subscribed."""

    def leave(self, consumer: Consumer) -> None:
        """A consumer was removed."""

    def close(self) -> None:
        """The last consumer was removed."""

    @property
    def active_consumer(self) -> Consumer | None:
        """The one that an Exclusive or Failover subscription delivers to."""
        return None

    # -- who may be sent something ------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether no new entries may be read, because those that were read before still wait."""
        return False

    def ready(self) -> list[Consumer]:
        """Consumers that may be sent something now."""
        raise NotImplementedError

    def rows_max(self, ready: list[Consumer]) -> int:
        """How many entries these consumers could be sent now at most."""
        raise NotImplementedError

    # -- plans --------------------------------------------------------------------------------------------------------

    def plan(
        self, batch: Batch, rows: Sequence[int], stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """Plan new entries: these rows, all of them before `stop`. The rows between them are delayed."""
        raise NotImplementedError

    def plan_unstored(self, batch: Batch, rows: range, counts: Sequence[int] | None, ready: list[Consumer]) -> Plan:
        """Plan entries of a topic that stores nothing; what is not sent is dropped."""
        return self.plan(batch, rows, rows.stop, counts, ready)

    def plan_replay(
        self, batch: Batch, row: int, stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """Plan those of the entries `row..stop-1` that wait to be delivered again."""
        raise NotImplementedError

    def sent(self, consumer: Consumer, entry_ids: Sequence[int], counts: Sequence[int] | None, messages: int) -> None:
        """Planned entries were sent."""

    def not_sent(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Planned entries found no room on the way to this consumer."""

    def returned(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Entries that were queued for this consumer, ascending, did not go out: they are to be delivered again."""
        raise NotImplementedError

    # -- redelivery ---------------------------------------------------------------------------------------------------

    @property
    def has_replay(self) -> bool:
        """Whether entries wait to be delivered again."""
        return False

    @property
    def replay_size(self) -> int:
        """How many entries wait to be delivered again."""
        return 0

    def next_replay(self, ready: list[Consumer]) -> list[int]:  # noqa: ARG002 - others need to know
        """Entries to deliver again before anything new, ascending, a portion at a time."""
        return []

    def due_room(self, ready: list[Consumer]) -> int:  # noqa: ARG002 - likewise
        """How many delayed entries that are due these consumers can take."""
        return 0

    def add_replay(self, entry_ids: Iterable[int]) -> None:
        """Delayed entries are due: they wait like those to be delivered again."""
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> int:
        """A consumer wants these entries again, or with none named all that it did not acknowledge.

        Returns how many messages that are, where consumers acknowledge one by one.
        """
        raise NotImplementedError

    def redelivery_counts(self, entry_ids: Sequence[int]) -> list[int] | None:
        """How often each of these entries was delivered before; None when none was, which takes no look at them."""
        assert entry_ids
        return None

    def missing(self, entry_ids: Iterable[int]) -> None:
        """The log does not have these entries (any more)."""

    # -- acknowledged -------------------------------------------------------------------------------------------------

    def acknowledged(
        self,
        consumer: Consumer,
        entry_ids: Sequence[int],  # noqa: ARG002 - others need them
        newly: int,
    ) -> None:
        """Entries were acknowledged, `newly` of which were not before."""
        consumer.acks += newly

    def acknowledged_in_part(self, consumer: Consumer, entry_id: int, wanted: int | None) -> None:
        """Some messages of a batch were acknowledged; so many are still wanted, or None when that is not known."""

    def acknowledged_through(self, entry_id: int) -> None:
        """Everything up to this entry was acknowledged, by no consumer: skipped or expired."""

    def acknowledged_elsewhere(self, entry_id: int) -> None:
        """This entry was acknowledged by no consumer: cancelled."""

    def limits_changed(self, unacked_per_consumer: int, unacked_per_subscription: int) -> None:
        """Policies changed: bounds of unacknowledged messages, 0 for none."""

    # -- for statistics -----------------------------------------------------------------------------------------------

    @property
    def unacked(self) -> int:
        """Messages that consumers were sent and did not acknowledge."""
        return 0

    @property
    def key_sharing_mode(self) -> str | None:
        """How a Key_Shared subscription divides its keys, as Pulsar spells it."""
        return None

    @property
    def out_of_order(self) -> bool:
        """Whether messages of a key may overtake one another."""
        return False

    def hash_ranges(self) -> dict[Consumer, list[tuple[int, int]]]:
        """The key slots of each consumer, as ranges with both ends inclusive."""
        return {}

    def draining(self, consumer: Consumer) -> list[Draining]:
        """Slots that went to others while this consumer still has messages of them."""
        del consumer
        return []

    def drained(self, consumer: Consumer) -> int:
        """How many such slots it has let go since it came."""
        del consumer
        return 0
