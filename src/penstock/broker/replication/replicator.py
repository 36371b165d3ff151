# SPDX-License-Identifier: Apache-2.0
"""Replicates one topic to one other cluster.

Why a consumer: a replicator needs what every consumer needs, reads in order from the tail cache or the log, a durable
cursor that holds trimming back, rates, and holds that say why it waits. So it is the one consumer of an exclusive
subscription, `pulsar.repl.CLUSTER`, whose client is a producer elsewhere. Where: `Replication` makes and ends them.

Theory of operation
    Entries that dispatch delivers are sent on at once, as they were stored, but for three things in their metadata:
    which cluster they come from, where they are here, and which version their schema has there. Receipts come in order
    and acknowledge. Entries that came from another cluster, or are not for this one, are acknowledged with the one
    before them.
    The producer is opened when there is something to send, and closed when there was nothing for IDLE_S: a topic
    without messages costs no connection and no timer.
    Nothing is sent again: if the link or the producer ends, the consumer is detached and everything given up. When it
    is attached again, dispatch begins with the first entry that was not acknowledged, so that each entry arrives at
    least once, and with deduplication there, once.
    Markers of replicated subscriptions are not in the log. They are sent between entries, and kept until they have
    arrived.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.publishing.replicated import POSITION_PROPERTY
from penstock.broker.replication.remote import ANSWER_S, FIRST_PAUSE_S, LAST_PAUSE_S, RemoteProblem, said
from penstock.broker.subscriptions.consumer import Consumer
from penstock.broker.subscriptions.delivery import QueuedEntries as DeliveredEntries
from penstock.broker.subscriptions.replicating import SubscribedReplicator
from penstock.broker.subscriptions.state import EXCLUSIVE
from penstock.core.clock import Backoff
from penstock.core.errors import PenstockError
from penstock.core.names import REPLICATOR_PREFIX
from penstock.core.position import Position
from penstock.wire import metadata
from penstock.wire.client.events import RequestRefused
from penstock.wire.client.frames import decode_frame, frame_bytes, payload_in
from penstock.wire.client.producer import ForwardingProducer
from penstock.wire.errors import ProtocolError
from penstock.wire.markers import Response, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from penstock.broker.replication.remote import Link, Remote
    from penstock.broker.schemas.schema_registry import SchemaRegistry
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.governance.replication_window import ReplicationWindow
    from penstock.net.send_queue import QueuedEntries
    from penstock.wire.codec import MessageMetadata
    from penstock.wire.markers import Marker

log = logging.getLogger(__name__)

# Room decides how much is on its way; there is no other client that has to ask for messages.
PERMITS: Final = 1 << 20
# Entries that are sent, or passed over, in one turn of the loop by all replicators together: some milliseconds.
HANDLED_PER_TURN: Final = 200
# A producer that had nothing to send for this long is closed.
IDLE_S: Final = 60.0
# Questions of the other cluster that wait for entries to arrive there. Apache Pulsar asks once a second, and waits for
# 30 seconds.
ANSWERS_MAX: Final = 32
_ANSWER: Final = "answer "
# Before the first entry.
NOTHING: Final = -1


class _Entry(NamedTuple):
    """An entry that was delivered, with what it is charged."""

    entry_id: int
    data: memoryview
    nbytes: int


@dataclass(slots=True)
class _Sent:
    """An entry or a marker that was sent, with entries behind it that need not be."""

    through: int | None  # the last of the entries; None without any
    nbytes: int
    marker: _WaitingMarker | None = None


@dataclass(slots=True, eq=False)
class _WaitingMarker:
    """A marker without a receipt."""

    key: str
    marker: Marker
    behind: int  # it goes when all entries up to this one have arrived
    sent: bool = False


class Turns:
    """The line of replicators that have something to send: each has its turn, and all have one turn of the loop.

    Why: a hundred topics that catch up at once would make it a hundred times as long.
    """

    def __init__(self) -> None:
        self._line: deque[Callable[[int], int]] = deque()
        self._is_due = False

    def enter(self, go_on: Callable[[int], int]) -> None:
        """Call this with how many entries may be handled, when it is its turn; it returns how many were."""
        self._line.append(go_on)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        left = HANDLED_PER_TURN
        try:
            for _ in range(len(self._line)):
                left -= self._line.popleft()(left)
                if left <= 0:
                    break
        finally:  # What is wrong with one replicator holds up no other.
            self._is_due = bool(self._line)
            if self._is_due:
                asyncio.get_running_loop().call_soon(self._next)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorServices:
    """Parts that all replicators share."""

    cluster: str  # this one
    window: ReplicationWindow[Replicator]
    granted: Callable[[], None]  # called when bytes were released
    schemas: SchemaRegistry
    partitions: Callable[[TopicName], int]
    clock: Clock
    chance: Random
    turns: Turns


class ReplicatorFollower(ABC):
    """The part that takes snapshots of a topic, as its replicators see it."""

    @abstractmethod
    def traffic(self) -> None:
        """Entries have come."""

    @abstractmethod
    def resumed(self) -> None:
        """A replicator goes on."""

    @abstractmethod
    def close(self) -> None:
        """A replicator has ended."""


class Replicator(SubscribedReplicator):
    """One topic to one cluster; the client and the outlet of its consumer. All methods are called on the event loop.

    Attributes:
        bytes_out: of entries that were sent there.
        markers_sent: of replicated subscriptions.
        wanted_bytes: the least room that dispatch needs.
    """

    # As its consumer's client.
    protocol_version = 0
    payer_role = None
    through_proxy = False
    client_version = "penstock replicator"

    def __init__(self, subscription: Subscription, remote: Remote, services: ReplicatorServices) -> None:
        super().__init__(remote.name)
        self.subscription = subscription
        self.remote = remote
        self.bytes_out = 0
        self.markers_sent = 0
        self.wanted_bytes = 1
        self._services = services
        self._consumer: Consumer | None = None
        self._queued: deque[_Entry] = deque()
        self._sent: deque[_Sent] = deque()
        self._acknowledged: int | None = None  # by receipts of this turn of the loop
        self._link: Link | None = None
        self._producer: ForwardingProducer | None = None
        self._versions: dict[bytes, bytes] = {}  # of schemas: here -> there
        self._work: asyncio.Task[None] | None = None  # opens the producer, or registers a schema
        self._pauses = Backoff(services.chance, first_s=FIRST_PAUSE_S, last_s=LAST_PAUSE_S)
        self._timer: asyncio.TimerHandle | None = None  # to try again
        self._idle: asyncio.TimerHandle | None = None  # while the producer is open
        self._busy = False  # something was sent since the timer was set
        self._in_line = False
        self._settling = False  # receipts of this turn are to be settled
        self._ended = False
        self._markers: dict[str, _WaitingMarker] = {}
        self._refused_markers = False
        self.snapshots: ReplicatorFollower | None = None  # None while no subscription of the topic is replicated
        subscription.replicator = self

    @property
    def name(self) -> str:
        """Name of its producer there."""
        return f"{REPLICATOR_PREFIX}{self._services.cluster}-->{self.cluster}"

    @property
    def is_connected(self) -> bool:
        """Whether its producer is open."""
        return self._producer is not None

    # -- life ---------------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Ask dispatch for entries."""
        subscription = self.subscription
        if self._ended or self._consumer is not None:
            return
        if subscription.topic.closed or subscription.topic.subscriptions.get(subscription.name) is not subscription:
            self.end()
            return
        consumer = Consumer(
            session=self,
            outlet=self,
            consumer_id=0,
            name=self.name,
            priority_level=0,
            subscription=subscription,
            epoch=None,
            connected_at_ms=self._services.clock.wall_ms(),
        )
        consumer.takes_any_schema = True
        try:
            subscription.add(consumer, EXCLUSIVE)
        except PenstockError as error:
            self._retry(error)
            return
        self._consumer = consumer
        subscription.attached(consumer)
        subscription.flow(consumer, PERMITS)
        if self.snapshots is not None:
            self.snapshots.resumed()
        self._go_on()

    def end(self) -> None:
        """Stop for good: the topic is unloaded, or is not replicated there any more."""
        self._ended = True
        self._markers.clear()
        if self.snapshots is not None:
            self.snapshots.close()
        self._detach()
        self.remote.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.subscription.replicator is self:
            self.subscription.replicator = None

    def resume(self) -> None:
        """Go on after a pause."""
        self._timer = None
        self.attach()

    def failed(self, error: Exception) -> None:
        """Give up what is on its way, and go on later."""
        if self._ended:
            return
        self._detach()
        self.remote.compare_again(self.subscription.topic.name)
        if isinstance(error, RemoteProblem | RequestRefused):
            self._retry(error)
        else:
            self._stopped(error)
            self.remote.down(error, self)

    def _retry(self, error: Exception) -> None:
        """Something is wrong with this topic there; others may go on."""
        self._stopped(error)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pauses.next_s(), self.resume)

    def _stopped(self, error: Exception) -> None:
        if self.problem is None:
            self.since_ns = self._services.clock.monotonic_ns()
            log.info("%s is not replicated to cluster %s now: %s", self.subscription.topic.text, self.cluster, error)
        self.problem = said(error)

    def _detach(self) -> None:
        """Close the producer, detach the consumer and release everything. Twice does no harm."""
        work, self._work = self._work, None
        if work is not None and work is not asyncio.current_task():
            work.cancel()
        self._close_producer()
        consumer, self._consumer = self._consumer, None
        self._services.window.forget(self)
        self._queued.clear()
        self._sent.clear()
        for waiting in self._markers.values():
            waiting.sent = False
        if self.out_bytes:
            self._services.window.release(self.out_bytes)
            self.out_bytes = 0
            self._services.granted()
        if consumer is not None:
            self._acknowledge()
            self.subscription.remove(consumer)

    def _close_producer(self) -> None:
        link, producer = self._link, self._producer
        self._link = self._producer = None
        self.connection = ""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if link is not None and producer is not None:
            link.close_producer(producer)

    # -- the client of its consumer -----------------------------------------------------------------------------------

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """The cursor is moved, or the topic unloaded: begin again, if there is still something to replicate."""
        del consumer
        self._detach()
        if not self._ended and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pauses.next_s(), self.resume)

    async def probe(self) -> bool:
        """Return whether it lives: always."""
        return True

    # -- the outlet of its consumer -----------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self.cluster

    @property
    def is_open(self) -> bool:
        return self._consumer is not None

    @property
    def room_bytes(self) -> int:
        return self._services.window.room_bytes(self) if self._consumer is not None else 0

    def takes_entries(self) -> bool:
        """Return whether entries may be delivered now; if not, the subscription is woken when they may."""
        if self.room_bytes >= self.wanted_bytes:
            return True
        self._services.window.wait(self)
        return False

    def has_no_room(self, nbytes: int, wanting: object) -> None:
        """Dispatch has an entry of this size: wake the subscription when there is room."""
        del wanting
        self.wanted_bytes = nbytes
        self._services.window.wait(self)

    def write_frame(self, frame: bytes) -> None:
        """Pass over what consumers are told."""

    def deliver(self, buffers: Sequence[Buffer], nbytes: int, entries: QueuedEntries | None = None) -> None:
        """Take delivered entries."""
        ids = iter(entries.entry_ids) if isinstance(entries, DeliveredEntries) else None
        data = memoryview(b"".join(buffers))
        self.wanted_bytes = 1
        self.out_bytes += nbytes
        self._services.window.charge(nbytes)
        if self.snapshots is not None:
            self.snapshots.traffic()
        at = 0
        while at < nbytes:
            stop = at + frame_bytes(data, at)
            entry_at = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
            entry_id = next(ids) if ids is not None else decode_frame(data, at, entry_at).body.message_id.entryId
            self._queued.append(_Entry(entry_id, data[entry_at:stop], stop - at))
            at = stop
        self._go_on()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Send what is queued, when it is its turn."""
        if self._work is None and not self._in_line and (self._queued or self._due_markers()):
            self._in_line = True
            self._services.turns.enter(self._turn)

    def _turn(self, most: int) -> int:
        """Send what is queued, and return how many entries that were, at most this many.

        If that needs an answer of the other cluster first, work on that.
        """
        self._in_line = False
        markers = self._due_markers()
        queued = len(self._queued)
        if self._work is not None or not (queued or markers):
            return 0
        if self._producer is not None and self._link is not None:
            self._busy = True
            if markers:
                self._send_markers(self._link, self._producer, markers)
            if not queued:
                return len(markers)
            try:
                version = self._send_queued(self._link, self._producer, most)
            except RemoteProblem as error:
                self.failed(error)
                return 1
            if version is None:
                return len(markers) + queued - len(self._queued)
            work = self._register(self._link, version)
        elif markers:
            work = self._open()
        else:
            for _ in range(min(most, queued)):
                if self._wanted(self._queued[0]) is not None:
                    work = self._open()
                    break
                self._passed_over(self._queued[0])
            else:
                self._go_on()
                return queued - len(self._queued)  # Nobody there needs a producer for these.
        self._work = asyncio.get_running_loop().create_task(self._carried_out(work))
        return 1 + queued - len(self._queued)

    async def _carried_out(self, work: object) -> None:
        try:
            await work  # type: ignore[misc]
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the topic waits and says so
            self._work = None
            self.failed(error)
        else:
            self._work = None
            self._go_on()

    async def _open(self) -> None:
        """Open the producer. Raises OSError, TimeoutError, PenstockError."""
        topic = self.subscription.topic
        await self.remote.make_topic(topic.name, self._services.partitions(topic.name.parent))
        link = await self.remote.link(topic.text)
        producer = ForwardingProducer(link.add(self), topic.text, name=self.name)
        try:
            await link.client.open_producer(producer, timeout_s=ANSWER_S)
        except BaseException:
            link.close_producer(producer)  # It may have been opened, and nobody else may have its name then.
            raise
        self._link, self._producer, self.connection = link, producer, link.peer
        self._versions.clear()
        self.problem = None
        self._pauses.reset()
        self.connected_ms = self._services.clock.wall_ms()
        self._watch()

    async def _register(self, link: Link, version: bytes) -> None:
        """Register the schema of this version there. Raises OSError, TimeoutError, PenstockError."""
        topic = self.subscription.topic
        stored = self._services.schemas.version(topic.name, int.from_bytes(version, "big"))
        there = b"" if stored is None else await self.remote.register(link, topic.text, stored.schema)
        self._versions[version] = there

    def _send_queued(self, link: Link, producer: ForwardingProducer, most: int) -> bytes | None:
        """Send at most this many entries; stops at one whose schema is not registered there, and returns its version.

        What may be refused waits until nothing is on its way: it would be sent again each time that this is tried.

        Budget: 30 µs per entry on one core. Raises RemoteProblem for an entry that the other cluster never takes.
        """
        if link.is_over:
            return None  # It is about to say so.
        ledger_id, own, needed = self.subscription.topic.ledger_id, self._services.cluster, None
        connection = link.client.connection
        entry_bytes_max = link.entry_bytes_max
        for _ in range(min(most, len(self._queued))):
            entry = self._queued[0]
            about = self._wanted(entry)
            if about is None:
                self._passed_over(entry)
                continue
            if len(entry.data) > entry_bytes_max and not self._sent:
                # It would end the connection that all topics share, again and again.
                size = (
                    f"entry {ledger_id}:{entry.entry_id} has {len(entry.data)} bytes, and {entry_bytes_max} are taken"
                )
                skip = f"raise maxMessageSize there, or skip the message in {self.subscription.name}"
                raise RemoteProblem(f"{size} there: {skip}")
            if len(entry.data) > entry_bytes_max:
                break
            if about.schema_version:
                there = self._versions.get(about.schema_version)
                if there is None:
                    needed = None if self._sent else about.schema_version
                    break
                about.ClearField("schema_version")
                if there:
                    about.schema_version = there
            about.replicated_from = own
            about.properties.add(key=POSITION_PROPERTY, value=f"{ledger_id}:{entry.entry_id}")
            about.ClearField("txnid_most_bits")
            about.ClearField("txnid_least_bits")
            messages = about.num_messages_in_batch
            chunk = about.HasField("chunk_id") and about.num_chunks_from_msg > 1
            connection.send(producer, about, payload_in(entry.data), messages=messages, is_chunk=chunk)
            self._queued.popleft()
            self._sent.append(_Sent(entry.entry_id, entry.nbytes))
            self.bytes_out += entry.nbytes
        else:
            self._go_on()
        link.client.flush()
        return needed

    def _due_markers(self) -> list[_WaitingMarker]:
        if not self._markers or self._consumer is None:
            return []
        arrived = self.subscription.cursor.mark_delete
        due = (waiting for waiting in self._markers.values() if not waiting.sent and waiting.behind <= arrived)
        return list(islice(due, HANDLED_PER_TURN))

    def _send_markers(self, link: Link, producer: ForwardingProducer, markers: list[_WaitingMarker]) -> None:
        if link.is_over:
            return  # It is about to say so.
        now_ms = self._services.clock.wall_ms()
        for waiting in markers:
            about, payload = encode(waiting.marker, cluster=self._services.cluster, publish_time_ms=now_ms)
            link.client.connection.send(producer, about, payload, is_marker=True)
            waiting.sent = True
            self.markers_sent += 1
            self._sent.append(_Sent(None, 0, waiting))
        link.client.flush()

    def _wanted(self, entry: _Entry) -> MessageMetadata | None:
        """Return the metadata of an entry; None if it is not for the other cluster, or cannot be read."""
        try:
            about = metadata.decode(entry.data)
        except ProtocolError:
            return None
        if about.replicated_from or about.HasField("marker_type"):
            return None
        return None if about.replicate_to and self.cluster not in about.replicate_to else about

    def _passed_over(self, entry: _Entry) -> None:
        self._queued.popleft()
        if self._sent:
            self._sent[-1].through = entry.entry_id
            self._sent[-1].nbytes += entry.nbytes
        else:
            self._arrived(entry.entry_id, entry.nbytes)

    def receipt(self) -> None:
        """The oldest entry or marker has arrived."""
        if self._sent:
            arrived = self._sent.popleft()
            if (waiting := arrived.marker) is not None and self._markers.get(waiting.key) is waiting:
                del self._markers[waiting.key]
            self._arrived(arrived.through, arrived.nbytes)

    def _arrived(self, through: int | None, nbytes: int) -> None:
        """Acknowledge at the end of this turn of the loop: receipts come by the hundred."""
        self.out_bytes -= nbytes
        self._services.window.release(nbytes)
        if not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._settle)
        if through is not None:
            self._acknowledged = through

    def _settle(self) -> None:
        self._settling = False
        self._acknowledge()
        self._services.granted()
        if self._markers or not self._sent:
            self._go_on()
        consumer = self._consumer
        if consumer is not None and consumer.permits < PERMITS // 2:
            self.subscription.flow(consumer, PERMITS - consumer.permits)

    def _acknowledge(self) -> None:
        through, self._acknowledged = self._acknowledged, None
        if through is not None and not self.subscription.topic.closed:
            self.subscription.acks += self.subscription.acknowledge_through(through)
            self.subscription.last_acked_ms = self._services.clock.wall_ms()

    # -- markers of replicated subscriptions --------------------------------------------------------------------------

    def send_marker(self, key: str, marker: Marker, *, behind: int = NOTHING) -> None:
        """Send a marker, again and again until it has arrived; one that waits under the same key is given up.

        Args:
            key: what it is about.
            marker: to be sent.
            behind: all entries up to this one have to arrive first.
        """
        self._markers.pop(key, None)
        self._markers[key] = _WaitingMarker(key, marker, behind)
        self._go_on()

    def answer(self, snapshot_id: str) -> None:
        """Answer how far the topic is. If that many cannot be answered, the oldest questions are forgotten."""
        topic = self.subscription.topic
        answers = [key for key in self._markers if key.startswith(_ANSWER)]
        for key in answers[: max(0, len(answers) + 1 - ANSWERS_MAX)]:
            self.withdraw_marker(key)
        position = Position(topic.ledger_id, topic.last_entry_id)
        response = Response(snapshot_id, self._services.cluster, position, to=self.cluster)
        self.send_marker(f"{_ANSWER}{snapshot_id}", response, behind=topic.last_entry_id)

    def refuse_markers(self, error: PenstockError) -> None:
        """Say once that markers of the other cluster are ignored: whoever sends them may send many."""
        if not self._refused_markers:
            self._refused_markers = True
            log.warning(
                "%s: markers of cluster %s are ignored, so replicated subscriptions keep no places: %s; permit its "
                "role to consume",
                self.subscription.topic.text,
                self.cluster,
                error,
            )

    def withdraw_marker(self, key: str) -> None:
        """Do not send a marker any more."""
        self._markers.pop(key, None)

    # -- rest ---------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._busy = False
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._look)

    def _look(self) -> None:
        """Close the producer if it had nothing to do; it is opened again with the next entry."""
        if self._busy or self._sent or self._queued:
            self._watch()
        else:
            self._close_producer()
