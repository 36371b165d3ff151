# SPDX-License-Identifier: Apache-2.0
"""A connected consumer: its identity, its permits, and its counters.

Where: a session makes one for each SUBSCRIBE; its subscription keeps it while it is connected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.accounting.totals import NOT_SEEN
from penstock.broker.subscriptions.entry_counts import EntryCounts
from penstock.broker.subscriptions.key_ranges import AUTO_SPLIT
from penstock.governance.outbound import Holder

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.broker.subscriptions.cursor_memory import Waiting
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.key_ranges import KeySharing
    from penstock.broker.subscriptions.replay_reads import ReplayReads
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.broker.subscriptions.tail import Tail
    from penstock.core.clock import Clock
    from penstock.core.durations import Durations
    from penstock.core.errors import PenstockError
    from penstock.core.names import TopicName
    from penstock.governance.budget import Row
    from penstock.governance.delayed import TopicDelayedDeliveryTrackerManager
    from penstock.governance.delayed_view import DelayedDeliveryView
    from penstock.governance.holds import HoldKind
    from penstock.governance.outbound import Reading
    from penstock.net.loop_turns import LoopTurns
    from penstock.net.send_queue import Buffer, QueuedEntries
    from penstock.storage.compacted import CompactedLedger
    from penstock.storage.cursor import Cursor
    from penstock.storage.entry_log import EntryLog
    from penstock.storage.results import Batch, ReadResult
    from penstock.wire.events import AckRun


# ---------------------------------------------------------------------------------------------------------------------
# What a subscription needs of the parts above it.
#
# Why: a subscription knows neither the broker nor sessions nor sockets, so tests run it with plain objects. Where:
# `Topic`, `Session`, `Connection`, `DispatchGate` and `DelayedIndex` satisfy these protocols as they are; the broker
# makes one `DispatchServices` for all subscriptions.

T = TypeVar("T")


class Outlet(Holder, Protocol):
    """The way to a consumer's client: its connection."""

    @property
    def peer(self) -> str:
        """Address of the client, as `host:port`."""

    @property
    def is_open(self) -> bool: ...

    @property
    def room_bytes(self) -> int:
        """How many more bytes of entries may be queued; 0 if the client is disconnected."""

    def takes_entries(self) -> bool:
        """Whether entries may be queued now; if not, the consumer's subscription is woken when they may."""

    def has_no_room(self, nbytes: int, wanting: object) -> None:
        """There was no room for `nbytes`: the subscription of the consumer `wanting` is woken when there is."""

    def deliver(self, buffers: Sequence[Buffer], nbytes: int, entries: QueuedEntries | None = None) -> None:
        """Queue encoded entries of `nbytes` bytes; through `entries` those not read in time are returned."""

    def write_frame(self, frame: bytes) -> None: ...


class Client(Protocol):
    """The session of a consumer's client."""

    @property
    def protocol_version(self) -> int: ...

    @property
    def payer_role(self) -> str | None: ...  # whose client it is: the proven role, behind a proxy the original one

    @property
    def client_version(self) -> str:
        """Name and version sent by the client."""

    @property
    def through_proxy(self) -> bool: ...  # whether it says that it is a proxy's

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Detach the consumer and tell its client to subscribe again."""

    async def probe(self) -> bool:
        """Whether the client still answers; if not, it is closed."""


class ConsumedSubscription(Protocol):
    """A subscription, as used by its consumers and their sessions."""

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
        """Number of unacknowledged entries."""

    def conflicting(self, consumer: Consumer, kind: int) -> list[Consumer]:
        """Consumers that prevent this one from being attached."""

    def remove(self, consumer: Consumer) -> None:
        """Detach a consumer; its unacknowledged messages are redelivered to others."""

    def wake(self) -> None:
        """Schedule a dispatch."""

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits for this many messages."""

    def acknowledge(self, consumer: Consumer, ack: AckRun) -> PenstockError | None:
        """Apply one ACK; returns an error if some of it was not applied."""

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> None: ...

    async def move_to(self, entry_id: int, members: Sequence[int] = ()) -> None:
        """Deliver this entry next, or only these messages of it; consumers are disconnected."""

    async def save_cursor(self) -> None:
        """Store the cursor, if the subscription is durable. Raises MetadataFailed."""

    def entries_returned(self, consumer: Consumer, entry_ids: list[int], messages: int) -> None:
        """Redeliver entries that were queued and not sent."""


class Gate(Protocol):
    """Dispatch rate limits of one subscription."""

    @property
    def throttled(self) -> Mapping[tuple[str, str], int]:
        """How often each limit has stopped the subscription."""

    @property
    def stopped_by(self) -> HoldKind:
        """Which kind of limit has stopped the subscription last."""

    def is_open(self) -> bool:
        """Whether entries may be delivered now; if not, the subscription is woken when they may."""

    def stop_row(self, batch: Batch, row: int, stop: int) -> int:
        """The end of the rows that may be delivered now: at least one row."""

    def unstored_stop(self, batch: Batch, stop: int) -> int:
        """The end of the rows of a non-persistent topic that may be delivered now; the others are dropped."""

    def entries_at_most(self, entries: int) -> int:
        """The number of entries, up to this one, that the rates allow now."""

    def delivered(self, entries: int, messages: int, nbytes: int) -> None: ...


class DelayedMessages(Protocol):
    """The delayed messages of a topic, shared by its Shared and Key_Shared subscriptions."""

    @property
    def manager(self) -> TopicDelayedDeliveryTrackerManager: ...

    def look(self, view: DelayedDeliveryView, batch: Batch, row: int, stop: int) -> list[int]:
        """Decode entries that the index does not know; returns the rows of those that are still delayed."""

    def now_ms(self) -> int:
        """Time in ms since 1970 that decides which messages are due."""

    def set_timer(self) -> None:
        """Wake subscriptions when the next entry is due."""

    def count_delivered(self, slots: Sequence[tuple[int, int]]) -> None:
        """Count delivered delayed entries: per slot, how many, and the latest delivery time in ms since 1970."""

    def start_back_fill(self) -> None:
        """Read entries that the index does not hold from the log, in the background."""


class UnackedBounds(Protocol):
    """Limits of unacknowledged messages, 0 for none."""

    @property
    def max_unacked_per_consumer(self) -> int: ...

    @property
    def max_unacked_per_subscription(self) -> int: ...


class ConsumerCounts(Protocol):
    """Counts what consumers use."""

    def consumer_left(self, topic: str, subscription: str, consumer: Consumer) -> None:
        """A consumer was detached; its counters do not change any more."""


class SubscribedTopic(Protocol):
    """A topic, as used by its subscriptions."""

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
    def holds_back(self) -> bool: ...  # whether an open transaction keeps entries back
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
    def dispatch_waits(self) -> Durations: ...  # from when an entry is durable until it is sent; of its namespace
    @property
    def delayed(self) -> DelayedMessages | None: ...

    @property
    def clients(self) -> ConsumerCounts | None: ...  # None: nobody counts

    first_entry_id: int

    def retained_from(self) -> int:
        """The first entry that its durable subscriptions and its policies keep."""

    def join_delayed(self, subscription: SubscriptionState) -> DelayedDeliveryView:
        """The subscription's view of the delayed messages; creates the index if necessary."""

    def leave_delayed(self, subscription: SubscriptionState) -> None:
        """Remove the subscription's view; the index is removed with the last view."""

    def pass_cancelled(self, cursor: Cursor) -> None:
        """Mark cancelled messages as acknowledged in a cursor that is new or was moved back."""

    def end_if_idle(self, subscription: SubscriptionState) -> None:
        """Remove a non-durable subscription without consumers."""


class DispatchLimits(Protocol):
    """Limits of the broker used by subscriptions. They may change at run time."""

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
    """Outbound memory, as reads of the log charge it."""

    def charge_read(self, holders: Iterable[Holder], bytes_max: int) -> Reading:
        """Charge a read whose entries are for these outlets."""

    def release_read(self, reading: Reading) -> None:
        """Release it: the entries are about to be queued, or were dropped."""


class Outlets(Protocol):
    """All outlets, and their common memory."""

    @property
    def outbound(self) -> ReadRoom: ...

    def outbound_freed(self) -> None:
        """A read has ended: other reads may use its memory."""


class Reads(Protocol):
    """Reads of the log in threads."""

    def read(
        self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int, first_bytes_max: int | None = None
    ) -> asyncio.Future[ReadResult]:
        """Read entries in sequence, as `EntryLog.read`."""

    def in_thread(self, read: Callable[[], T]) -> asyncio.Future[T]:
        """Run a read of several log calls in a reader thread."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Schedules calls, like an event loop."""

    def call_soon(self, callback: Callable[[], object], /) -> Timer: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call back after `delay` seconds."""


class KeyHashes(Protocol):
    """Hashes long keys without blocking the loop."""

    def start(self, keys: Sequence[bytes], done: Callable[[list[int]], None], again: Callable[[], None]) -> None:
        """Hash these keys and call `done` with the hashes; if busy, call `again` when the caller may try again."""


class Cursors(Protocol):
    """Saves of cursors."""

    def moved(self, subscription: SubscriptionState) -> None:
        """Note that a cursor moved; it is stored soon."""

    async def save(self, *subscriptions: SubscriptionState) -> None:
        """Store these cursors now. Raises MetadataFailed."""


class MemoryWaiters(Protocol):
    """Subscriptions that wait for dispatch memory."""

    def add(self, waiting: Waiting) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchServices:
    """Services shared by all subscriptions of a broker."""

    clock: Clock
    loop: Timers
    dispatch_soon: Callable[[Callable[[], object]], object]  # calls a dispatch soon on the loop
    limits: Callable[[], DispatchLimits]
    log: EntryLog
    reads: Reads
    outlets: Outlets
    memory: Row  # charged for pending acknowledgements and cursors
    memory_waits: MemoryWaiters
    long_keys: KeyHashes
    cursors: Cursors
    properties: Callable[[str, str], Mapping[str, str]]  # stored ones, by topic and subscription name
    turn: LoopTurns  # the time of all that happens in it: no dispatch looks at a clock


class Consumer:
    """One connected consumer of a subscription.

    `permits` counts messages, not entries, and may become negative when a batch was larger than the permits (FLOW). In
    Shared and Key_Shared subscriptions, `pending_acks` maps each delivered and unacknowledged entry to its number of
    unacknowledged messages; `unacked` is their sum. Times are 0 for never, and read once per run.
    """

    __slots__ = (
        "acks",
        "blocked",
        "bytes_out",
        "charged_bytes",
        "connected_at_ms",
        "consumer_id",
        "entries_out",
        "epoch",
        "key_sharing",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages_out",
        "messages_redelivered",
        "metadata",
        "name",
        "outlet",
        "pending_acks",
        "permits",
        "priority_level",
        "read_position_when_joining",
        "reads_compacted",
        "seen",
        "session",
        "subscription",
        "takes_any_schema",
        "told_of_end",
        "unacked",
    )

    def __init__(
        self,
        *,
        session: Client,
        outlet: Outlet,
        consumer_id: int,
        name: str,
        priority_level: int,
        subscription: ConsumedSubscription,
        epoch: int | None,
        connected_at_ms: int,
        metadata: Mapping[str, str] | None = None,
        key_sharing: KeySharing = AUTO_SPLIT,
    ) -> None:
        self.session = session
        self.outlet = outlet
        self.consumer_id = consumer_id
        self.name = name
        self.priority_level = priority_level
        self.subscription = subscription
        self.epoch = epoch
        self.connected_at_ms = connected_at_ms
        self.metadata: Mapping[str, str] = metadata or {}
        self.key_sharing = key_sharing
        self.charged_bytes = 0  # charged to the sessions' memory, see `session_memory`
        # It subscribed with AUTO_CONSUME: it accepts any schema.
        self.reads_compacted = False
        self.takes_any_schema = False
        self.permits = 0
        self.pending_acks = EntryCounts()
        self.unacked = 0
        self.blocked = False  # it has the maximum number of unacknowledged messages
        self.told_of_end = False
        self.messages_out = 0
        self.entries_out = 0
        self.bytes_out = 0
        self.seen = NOT_SEEN  # by usage records
        self.messages_redelivered = 0
        self.acks = 0  # in messages; in Exclusive and Failover subscriptions in entries
        self.last_flow_ms = 0
        self.last_acked_ms = 0
        self.last_consumed_ms = 0
        self.read_position_when_joining = 0  # the next entry to deliver when it was attached

    @property
    def address(self) -> str:
        """Address of its client, as `host:port`."""
        return self.outlet.peer

    @property
    def client_version(self) -> str:
        """Name and version sent by its client."""
        return self.session.client_version
