# SPDX-License-Identifier: Apache-2.0
"""One topic: a ledger being written, the producers that write it and the subscriptions that read it.

Where: the directory loads or creates topics; publish gives entries their ids and tells the topic when they are durable;
sessions attach producers and consumers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.subscription import Subscription
from penstock.broker.tail import Tail
from penstock.core.errors import NotAllowed
from penstock.storage.cursor import Cursor

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.members import Producer
    from penstock.core.names import TopicName
    from penstock.storage.entry_log import Batch

# Acknowledged entries go in steps: whoever comes a moment later still finds the last ones, as in Pulsar, where they go
# with their whole ledger.
TRIM_STEP_ENTRIES: Final = 1_000


class Topic:
    """A topic of this broker, persistent or not.

    `next_entry_id` is the id that the next SEND gets; `last_entry_id` the last one that is durable and may be read.
    They differ by what is on its way to the disk. A non-persistent topic counts in the same way and stores nothing.
    """

    __slots__ = (
        "broker",
        "bytes_in",
        "entries_in",
        "first_entry_id",
        "last_entry_id",
        "ledger_id",
        "messages_in",
        "name",
        "next_entry_id",
        "partition",
        "persistent",
        "producers",
        "subscriptions",
        "tail",
        "text",
    )

    def __init__(
        self, broker: Broker, name: TopicName, *, ledger_id: int, last_entry_id: int, first_entry_id: int
    ) -> None:
        self.broker = broker
        self.name = name
        self.text = str(name)
        self.persistent = name.is_persistent
        self.partition = name.partition
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.last_entry_id = last_entry_id
        self.next_entry_id = last_entry_id + 1
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.tail = Tail()
        self.messages_in = 0
        self.bytes_in = 0
        self.entries_in = 0

    def add_subscription(self, name: str, *, cursor: Cursor, durable: bool) -> Subscription:
        """Attach a subscription whose cursor was loaded or made."""
        subscription = Subscription(self, name, cursor=cursor, durable=durable)
        self.subscriptions[name] = subscription
        return subscription

    async def open_subscription(self, name: str, *, durable: bool, start: int) -> Subscription:
        """The subscription of this name, made and stored if it is not there; then `start` is its first entry.

        Raises:
            NotAllowed: it is there, and durable where this one would not be, or the other way round.
            MetadataFailed: it could not be stored.
        """
        durable = durable and self.persistent
        existing = self.subscriptions.get(name)
        if existing is not None:
            if existing.durable != durable and self.persistent:
                kind = "durable" if existing.durable else "non-durable"
                raise NotAllowed(f"subscription {name!r} of {self.text} is {kind} already")
            return existing
        cursor = Cursor(start - 1)
        if durable:
            initial = "earliest" if start <= self.first_entry_id else "latest"
            await self.broker.store_subscription(self, name, cursor, initial=initial)
        # Somebody else may have made it while we waited.
        return self.subscriptions.get(name) or self.add_subscription(name, cursor=cursor, durable=durable)

    def appended(self, last_entry_id: int) -> None:
        """Entries up to this one are durable: whoever waits at the tail may have them."""
        self.last_entry_id = last_entry_id
        for subscription in self.subscriptions.values():
            if subscription.consumers:
                subscription.wake()

    def wants_tail(self) -> bool:
        """Whether a connected consumer is likely to read new entries soon, so that caching them pays."""
        return any(subscription.consumers for subscription in self.subscriptions.values())

    def pass_through(self, batch: Batch) -> None:
        """Hand entries of a non-persistent topic to whoever has permits now; nobody else will see them."""
        self.last_entry_id = batch.entry_ids[-1]
        for subscription in self.subscriptions.values():
            subscription.offer(batch)

    def retained_from(self) -> int:
        """The first entry to keep: all durable subscriptions have acknowledged what is before, a step or more ago.

        A topic without a durable subscription keeps everything: nobody has said yet that it may go.
        """
        marks = [s.cursor.mark_delete for s in self.subscriptions.values() if s.durable]
        if not marks:
            return self.first_entry_id
        return max(self.first_entry_id, (min(marks) + 1) // TRIM_STEP_ENTRIES * TRIM_STEP_ENTRIES)
