# SPDX-License-Identifier: Apache-2.0
"""What a subscription needs of the parts above it, each as narrow as its use.

Why: a subscription knows neither the broker nor sessions nor sockets, so tests run it with plain objects.
Where: `Topic`, `Session`, `Connection`, `DispatchGate` and `DelayedIndex` satisfy these as they are; the broker fills
one `DispatchServices` for all subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.governance.outbound import Holder

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.memory_waits import Waiting
    from penstock.broker.subscriptions.replay_reads import ReplayReads
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.broker.subscriptions.tail import Tail
    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.core.names import TopicName
    from penstock.governance.delayed import TopicDelayedDeliveryTrackerManager
    from penstock.governance.delayed_view import DelayedDeliveryView
    from penstock.governance.memory_row import MemoryRow
    from penstock.governance.outbound import Reading
    from penstock.net.connection import QueuedEntries
    from penstock.net.send_queue import Buffer
    from penstock.storage.compacted import CompactedLedger
    from penstock.storage.cursor import Cursor
    from penstock.storage.entry_log import EntryLog
    from penstock.storage.results import Batch, ReadResult
    from penstock.wire.events import AckRun


T = TypeVar("T")


class Outlet(Holder, Protocol):
    """The way to a consumer's client. A connection is one."""

    @property
    def peer(self) -> str:
        """Address of the client, as `host:port`."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the client is still connected."""
        ...

    @property
    def room_bytes(self) -> int:
        """How many more bytes of entries may be queued; 0 when the client is gone."""
        ...

    def takes_entries(self) -> bool:
        """Whether entries may be queued now; if not, the consumer's subscription is woken when they may."""
        ...

    def has_no_room(self, nbytes: int, wanting: object) -> None:
        """Entries of `nbytes` bytes found no room: the subscription of the consumer `wanting` is woken when they do."""
        ...

    def deliver(self, buffers: Sequence[Buffer], nbytes: int, entries: QueuedEntries | None = None) -> None:
        """Queue encoded entries of `nbytes` bytes; `entries` takes back what the client does not read in time."""
        ...

    def write_frame(self, frame: bytes) -> None:
        """Queue one command."""
        ...


class Client(Protocol):
    """The client's session, which attached the consumer."""

    @property
    def protocol_version(self) -> int:
        """Version of the protocol that the client speaks."""
        ...

    @property
    def client_version(self) -> str:
        """Name and version that the client gave itself."""
        ...

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Detach the consumer and tell its client to subscribe again."""
        ...

    async def probe(self) -> bool:
        """Whether the client still answers; it is closed if it does not."""
        ...


class ConsumedSubscription(Protocol):
    """A subscription as its consumers know it, and what their clients ask of it."""

    name: str
    kind: int
    durable: bool
    fenced: bool  # being reset or deleted
    topic: SubscribedTopic
    cursor: Cursor
    consumers: list[Consumer]
    dispatcher: Dispatcher | None

    @property
    def backlog(self) -> int:
        """Entries not yet acknowledged."""
        ...

    def conflicting(self, consumer: Consumer, kind: int) -> list[Consumer]:
        """Consumers because of which this one may not be attached."""
        ...

    def remove(self, consumer: Consumer) -> None:
        """Detach a consumer; what it has not acknowledged goes to others."""
        ...

    def wake(self) -> None:
        """Look whether there is something to deliver."""
        ...

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The client permits so many more messages."""
        ...

    def acknowledge(self, consumer: Consumer, ack: AckRun) -> PenstockError | None:
        """Acknowledge what the client says; returns why it could not be done."""
        ...

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> None:
        """Deliver again what the client asks for."""
        ...

    async def move_to(self, entry_id: int, members: Sequence[int] = ()) -> None:
        """Deliver from this entry on, and of it only these messages if any are named; consumers are disconnected."""
        ...

    async def save_cursor(self) -> None:
        """Store the cursor, unless it is not durable. Raises MetadataFailed."""
        ...

    def entries_returned(self, consumer: Consumer, entry_ids: list[int], messages: int) -> None:
        """Take back entries that were queued and not sent."""
        ...


class Gate(Protocol):
    """Dispatch rates that hold for one subscription."""

    @property
    def throttled(self) -> Mapping[tuple[str, str], int]:
        """How often each limit stopped the subscription."""
        ...

    def is_open(self) -> bool:
        """Whether entries may be delivered now; if not, the subscription is woken when they may."""
        ...

    def stop_row(self, batch: Batch, row: int, stop: int) -> int:
        """The row after the last of these rows that may be delivered now, at least one."""
        ...

    def entries_at_most(self, entries: int) -> int:
        """How many of so many entries the rates would let out now."""
        ...

    def delivered(self, entries: int, messages: int, nbytes: int) -> None:
        """Count what was delivered."""
        ...


class DelayedMessages(Protocol):
    """The delayed messages of a topic, for all its Shared and Key_Shared subscriptions."""

    @property
    def manager(self) -> TopicDelayedDeliveryTrackerManager:
        """The index itself."""
        ...

    def look(self, view: DelayedDeliveryView, batch: Batch, row: int, stop: int) -> list[int]:
        """Entries of these rows that are held, found in their metadata because the index did not know them."""
        ...

    def now_ms(self) -> int:
        """The time that decides what is due."""
        ...

    def set_timer(self) -> None:
        """Wake subscriptions when the next entry is due."""
        ...

    def handed_out(self, slots: Sequence[tuple[int, int]]) -> None:
        """Count due entries: of each slot, how many, and when its last one was due in ms since 1970."""
        ...

    def look_after(self) -> None:
        """Read in the background what the index does not know."""
        ...


class UnackedBounds(Protocol):
    """Bounds of unacknowledged messages, 0 for none."""

    @property
    def max_unacked_per_consumer(self) -> int:
        """Of one consumer."""
        ...

    @property
    def max_unacked_per_subscription(self) -> int:
        """Of all consumers of a subscription together."""
        ...


class SubscribedTopic(Protocol):
    """A topic as its subscriptions see it."""

    @property
    def name(self) -> TopicName: ...
    @property
    def text(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def persistent(self) -> bool: ...
    @property
    def ledger_id(self) -> int: ...
    @property
    def last_entry_id(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def subscriptions(self) -> Mapping[str, SubscriptionState]: ...
    @property
    def terminated(self) -> bool: ...
    @property
    def policies(self) -> UnackedBounds: ...
    @property
    def compacted(self) -> CompactedLedger | None: ...
    @property
    def tail(self) -> Tail: ...
    @property
    def replay_reads(self) -> ReplayReads: ...
    @property
    def delays(self) -> bool: ...
    @property
    def delayed(self) -> DelayedMessages | None: ...

    first_entry_id: int

    def retained_from(self) -> int:
        """The first entry that must be kept, as far as its durable subscriptions and its policies say."""
        ...

    def join_delayed(self, subscription: SubscriptionState) -> DelayedDeliveryView:
        """The subscription's view of the delayed messages; the index is made if there is none."""
        ...

    def leave_delayed(self, subscription: SubscriptionState) -> None:
        """The subscription has no view any more; the index goes with the last one."""
        ...

    def pass_cancelled(self, cursor: Cursor) -> None:
        """Acknowledge cancelled messages in a cursor that is new or was moved back."""
        ...

    def end_if_idle(self, subscription: SubscriptionState) -> None:
        """A subscription that is not durable ends with its last consumer."""
        ...


class DispatchLimits(Protocol):
    """Limits of the broker that subscriptions read. They change while the broker runs."""

    @property
    def failover_delay_s(self) -> float: ...
    @property
    def round_robin_entries_max(self) -> int: ...
    @property
    def batch_index_acks(self) -> bool: ...
    @property
    def key_shared_consistent_hashing(self) -> bool: ...
    @property
    def key_shared_points(self) -> int: ...


class ReadRoom(Protocol):
    """Outbound memory that reads of the log take before they start."""

    def start_read(self, holders: Iterable[Holder], bytes_max: int) -> Reading:
        """Take room for a read whose entries are for these outlets."""
        ...

    def end_read(self, reading: Reading) -> None:
        """Give it back: the entries are about to be queued, or nobody wants them."""
        ...


class Outlets(Protocol):
    """All outlets, and the memory that they share."""

    @property
    def outbound(self) -> ReadRoom:
        """The memory."""
        ...

    def outbound_freed(self) -> None:
        """A read has ended: others may have its room."""
        ...


class Reads(Protocol):
    """Reads of the log, carried out in threads."""

    def read(
        self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int, first_bytes_max: int | None = None
    ) -> asyncio.Future[ReadResult]:
        """Read entries in sequence, as `EntryLog.read`."""
        ...

    def in_thread(self, read: Callable[[], T]) -> asyncio.Future[T]:
        """Carry out a read that takes more than one call of the log."""
        ...


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """It is not made."""
        ...


class Timers(Protocol):
    """Calls later on. An event loop satisfies it."""

    def call_soon(self, callback: Callable[[], object], /) -> Timer:
        """Call this in the next turn of the loop."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call this after so many seconds."""
        ...


class KeyHashes(Protocol):
    """Hashes long keys without holding up the loop."""

    def start(self, keys: Sequence[bytes], done: Callable[[list[int]], None], again: Callable[[], None]) -> None:
        """Call `done` with the hashes; or `again`, when the caller may ask again."""
        ...


class Cursors(Protocol):
    """Saves of cursors."""

    def moved(self, subscription: SubscriptionState) -> None:
        """A cursor changed: it is stored soon."""
        ...

    async def save(self, *subscriptions: SubscriptionState) -> None:
        """Store these cursors now. Raises MetadataFailed."""
        ...


class MemoryWaiters(Protocol):
    """Subscriptions that wait for dispatch memory."""

    def add(self, waiting: Waiting) -> None:
        """Wake this one soon."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchServices:
    """What all subscriptions of a broker share."""

    clock: Clock
    loop: Timers
    limits: Callable[[], DispatchLimits]
    log: EntryLog
    reads: Reads
    outlets: Outlets
    memory: MemoryRow  # of pending acknowledgements, and of cursors
    memory_waits: MemoryWaiters
    long_keys: KeyHashes
    cursors: Cursors
    properties: Callable[[str, str], Mapping[str, str]]  # as stored, of a topic's name and a subscription's
