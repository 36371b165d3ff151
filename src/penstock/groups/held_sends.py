# SPDX-License-Identifier: Apache-2.0
"""SENDs of one connection that wait for a publish rate, a resource group or adaptive throttling; others go on.

Why: the protocol has no flow control per producer, so the only way to stop one is not to read its connection, which
stops all others on it, and acknowledgements and pings (S11, A11). So SENDs of a limit in debt are read and held here.

The bound: held SENDs stay charged to request memory. A connection may hold an eighth of it, all connections together a
quarter, in bytes and in number. At the bound the connection is muted for the limit, until half of what it holds has
passed; only then do others on it wait. Clients stop before: a producer has 1,000 messages in flight by default. What
the others have sent before they are muted may fill a second quarter; beyond it, they are disconnected. New connections
wait for their turn before they are read.

Order: SENDs of one producer are published in their order, and so are their receipts. A CLOSE_PRODUCER waits until held
SENDs are published. When the producer or the connection is gone, held SENDs are dropped: none was acknowledged.
Where: a session has one as soon as one of its producers has such a limit, and passes its runs through it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.governance.holds import Episode, HoldKind
from penstock.governance.resource_group import Amount
from penstock.groups.limit import blocker
from penstock.wire.batch_counts import counts_in
from penstock.wire.events import PublishRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.core.clock import Clock
    from penstock.governance.memory_pool import Lease
    from penstock.governance.request_memory import RequestMemory
    from penstock.groups.limit import PublishLimit
    from penstock.groups.ports import LimitedProducer, LimitedTopic, SendingClient


# Parts of request memory that may be held: by all connections, and by one. What connections have sent before they stand
# still may be as much again.
_PART_OF_ALL: Final = 4
_PART_AT_MOST: Final = 2
_PART_OF_ONE: Final = 8


class HeldMemory:
    """Held SENDs and bytes of all connections, or of one.

    It is no row: held bytes stay charged to request memory, and are charged once.
    """

    __slots__ = ("_part", "bytes", "clock", "of_all", "requests", "sends")

    def __init__(self, requests: RequestMemory, clock: Clock, of_all: HeldMemory | None = None) -> None:
        """Args: of_all: the memory of all connections; None: this is it."""
        self.requests = requests
        self.clock = clock
        self.of_all = of_all or self
        self._part = _PART_OF_ALL if of_all is None else _PART_OF_ONE
        self.bytes = 0
        self.sends = 0

    def of_connection(self) -> HeldMemory:
        """Return the part of a connection, which holds nothing yet."""
        return HeldMemory(self.requests, self.clock, self)

    def charge(self, nbytes: int, sends: int) -> None:
        """Hold this much more."""
        self.bytes += nbytes
        self.sends += sends
        if self.of_all is not self:
            self.of_all.charge(nbytes, sends)

    def release(self, nbytes: int, sends: int) -> None:
        """Hold this much less."""
        self.charge(-nbytes, -sends)

    @property
    def full(self) -> bool:
        """Whether connections that would hold more stand still."""
        return self._is(self._part)

    @property
    def half_full(self) -> bool:
        """Whether half of it is held."""
        return self._is(2 * self._part)

    @property
    def overfull(self) -> bool:
        """Whether not even what was read already can be held."""
        return self._is(_PART_AT_MOST)

    def _is(self, part: int) -> bool:
        """Whether it holds this part of request memory, or of the number of requests."""
        return self.bytes * part >= self.requests.size or self.sends * part >= self.requests.requests_max


class _HeldRun(NamedTuple):
    """SENDs of one producer, and the memory charged for them."""

    run: PublishRun
    lease: Lease
    since_ns: int


class HeldProducer:
    """A producer that waits, with its held SENDs. It may have none: then it waits for its connection to be read."""

    __slots__ = ("_next_row", "_runs", "after", "amount", "line", "of", "producer", "rows")

    def __init__(self, of: HeldSends, producer: LimitedProducer) -> None:
        self.of = of
        self.producer = producer
        self.line: PublishLimit | None = None  # in which it waits
        self.rows = 0
        self.amount = Amount()
        self.after: list[Callable[[], None]] = []  # called when all SENDs are published
        self._runs: deque[_HeldRun] = deque()
        self._next_row = 0  # of the first run

    @property
    def topic(self) -> LimitedTopic:
        return self.producer.topic

    def hold(self, run: PublishRun, lease: Lease) -> None:
        self._runs.append(_HeldRun(run, lease, self.of.now_ns()))
        self._count(len(run.offsets), _messages(run, 0, len(run.offsets)), sum(run.lengths))
        if self.line is not None:
            self.line.limiter.arrived(len(run.offsets), self.of.now_ns())
        self.of.memory.charge(lease.size_bytes, len(run.offsets))

    def go(self, messages: int | None, nbytes: int | None) -> tuple[int, int]:
        """See `Waiter.go`."""
        self._left_line()
        passed = (
            self.publish(messages, nbytes)
            if self.rows and blocker(self.topic.publish_lines, self.of.now_ns()) is None
            else (0, 0)
        )
        self.of.went(self)
        return passed

    def publish(self, messages: int | None, nbytes: int | None) -> tuple[int, int]:
        """Publish SENDs of the first run, up to these amounts, at least one; returns what it charged."""
        run, lease, since_ns = self._runs[0]
        start = self._next_row
        stop = start
        last = len(run.offsets)
        passed = 0
        passed_bytes = 0
        while stop < last and (
            stop == start or ((messages is None or passed < messages) and (nbytes is None or passed_bytes < nbytes))
        ):
            passed += 1 if run.message_counts is None else run.message_counts[stop]
            passed_bytes += run.lengths[stop]
            stop += 1
        self._count(start - stop, -passed, -passed_bytes)
        if stop == last:
            self._runs.popleft()
            self._next_row = 0
            part = run if start == 0 else self.of.pick(run, range(start, stop))
            part_lease = lease
        else:
            self._next_row = stop
            part = self.of.pick(run, range(start, stop))
            part_lease = self.of.split(lease, min(lease.size_bytes, part.charged_bytes), stop - start)
        self.of.memory.release(part_lease.size_bytes, stop - start)
        before = (self.producer.messages_in, self.producer.bytes_in)
        self.of.submit(part, part_lease, since_ns)
        return self.producer.messages_in - before[0], self.producer.bytes_in - before[1]

    def drop(self) -> list[Callable[[], None]]:
        """Release what is held: its producer is gone. Returns what waited for it."""
        self._left_line()
        nbytes = 0
        for held in self._runs:
            nbytes += held.lease.size_bytes
            self.of.release(held.lease)
        self.of.memory.release(nbytes, self.rows)
        self._runs.clear()
        self._count(-self.rows, -self.amount.messages, -self.amount.bytes)
        after, self.after = self.after, []
        return after

    def join(self, line: PublishLimit) -> None:
        """Wait in the line of a group."""
        self.line = line
        if self.producer.waits is not None:
            self.producer.waits.of = line
        self._tell_meter(self.amount.messages, self.amount.bytes)
        line.limiter.arrived(self.rows, self.of.now_ns())
        line.add(self)

    def leave(self) -> None:
        """Leave the line, wherever it stands in it."""
        if self.line is not None:
            self.line.remove(self)
            self._left_line()

    def _left_line(self) -> None:
        if self.line is not None:
            self._tell_meter(-self.amount.messages, -self.amount.bytes)
            self.line = None

    def _count(self, rows: int, messages: int, nbytes: int) -> None:
        self.rows += rows
        self.amount = self.amount.plus(messages, nbytes)
        self.topic.held(messages, nbytes)
        self._tell_meter(messages, nbytes)

    def _tell_meter(self, messages: int, nbytes: int) -> None:
        if self.line is not None:
            limiter = self.line.limiter
            limiter.held = limiter.held.plus(messages, nbytes)


class HeldSends:
    """All that one connection holds."""

    __slots__ = (
        "_mislabelled",
        "_muted_for",
        "_producers",
        "_release",
        "memory",
        "pick",
        "session",
        "submit",
    )

    def __init__(
        self,
        session: SendingClient,
        memory: HeldMemory,
        *,
        submit: Callable[[PublishRun, Lease, int], None],
        release: Callable[[Lease], None],
        pick: Callable[[PublishRun, Sequence[int]], PublishRun] = PublishRun.pick,
        mislabelled: Callable[[], None] | None = None,
    ) -> None:
        """Receive what this uses.

        Args:
            session: of the client.
            memory: how much may be held.
            submit: publishes a run and charges its producers' limits; the lease is released when that is done. It is
                told since when the run was held.
            release: gives memory back for what is dropped.
            pick: returns a run of some rows.
            mislabelled: is called for a SEND that says it holds fewer messages than its batch; its run is dropped.
                None: the receiver of the run counts by the numbers that are found here.
        """
        self.session = session
        self.submit = submit
        self.pick = pick
        self._release = release
        self._mislabelled = mislabelled
        self.memory = memory.of_connection()
        self._producers: dict[int, HeldProducer] = {}  # by producer id
        self._muted_for: tuple[HoldKind, str] | None = None  # and whose

    def now_ns(self) -> int:
        return self.memory.clock.monotonic_ns()

    # -- a run arrives

    def keep_back(self, run: PublishRun, lease: Lease) -> PublishRun | None:
        """Hold the SENDs of a run that must wait, and return the rest, None if nothing is left.

        `lease` is charged for all runs of the read; the part for what is held is taken from it.
        """
        producer_ids = run.producer_ids
        first = producer_ids[0]
        ids = (first,) if producer_ids.count(first) == len(producer_ids) else dict.fromkeys(producer_ids)
        limited = {one: producer for one in ids if (producer := self._limited(one)) is not None}
        if limited:
            counts = counts_in(run.data, run.offsets, run.lengths, run.message_counts)
            if counts is not None and counts is not run.message_counts:
                if self._mislabelled is not None:
                    self._mislabelled()
                    return None
                run.message_counts = list(counts)
        if not limited or (self._producers.keys().isdisjoint(limited) and _all_may_pass(run, limited.values())):
            return run
        waiting = self._rows_that_wait(run, limited)
        if not waiting:
            return run
        if self.memory.of_all.overfull and not lease.reserved_bytes:
            # To let it pass would be a way around the limit, and to hold it would take the memory of others.
            self.session.connection.close("no memory is left to hold what exceeds a limit; send it again later")
            return None
        # The reserve of small frames is not held: the run passes, and the limit is in debt for it.
        holds = not lease.reserved_bytes
        held_rows: set[int] = set()
        for producer_id, rows in waiting.items():
            held = self._producers.get(producer_id)
            if held is None:
                held = self._producers[producer_id] = HeldProducer(self, limited[producer_id])
                self._begin_to_wait(held)
            if holds or held.rows:
                part = self.pick(run, rows)
                held.hold(part, self.split(lease, min(lease.size_bytes, part.charged_bytes), len(rows)))
                held_rows.update(rows)
        self._mute_if_full(at_once=self.memory.of_all.full or not holds)
        if len(held_rows) == len(producer_ids):
            return None
        return self.pick(run, [row for row in range(len(producer_ids)) if row not in held_rows]) if held_rows else run

    def added(self, producer: LimitedProducer) -> None:
        """While nothing more can be held, a new producer of a limit in debt waits for its turn to be read.

        Otherwise the first SENDs of each new connection would pass.
        """
        if self.memory.of_all.full and blocker(producer.topic.publish_lines, self.now_ns()) is not None:
            held = self._producers[producer.producer_id] = HeldProducer(self, producer)
            self._begin_to_wait(held)
            self._mute_if_full(at_once=True)

    def _limited(self, producer_id: int) -> LimitedProducer | None:
        producer = self.session.producers.get(producer_id)
        return producer if producer is not None and producer.topic.publish_lines else None

    def _rows_that_wait(self, run: PublishRun, limited: dict[int, LimitedProducer]) -> dict[int, list[int]]:
        """The rows that must wait, by producer: those after the balance of a group is used up."""
        left: dict[PublishLimit, list[float]] = {}
        waiting: dict[int, list[int]] = {}
        counts = run.message_counts
        for row, producer_id in enumerate(run.producer_ids):
            producer = limited.get(producer_id)
            if producer is None:
                continue
            if producer_id in waiting:
                waiting[producer_id].append(row)
                continue
            lefts = [left.get(line) or left.setdefault(line, list(line.left)) for line in producer.topic.publish_lines]
            if producer_id in self._producers or any(min(one) <= 0 for one in lefts):
                waiting[producer_id] = [row]
                continue
            for one in lefts:
                one[0] -= 1 if counts is None else counts[row]
                one[1] -= run.lengths[row]
        return waiting

    def _begin_to_wait(self, held: HeldProducer) -> None:
        producer, now_ns, passed = held.producer, self.now_ns(), held.producer.messages_in
        producer.waits = Episode.begun(producer.waits, now_ns, passed, passed)
        self._line_up(held)
        if held.line is not None:
            held.line.throttled += 1
        held.topic.publish_limited_times += 1

    # -- its turn

    def went(self, held: HeldProducer) -> None:
        """A producer has had its turn: it waits again, or is done."""
        if not held.rows:
            self._producers.pop(held.producer.producer_id, None)
            if held.producer.waits is not None:
                held.producer.waits.end(self.now_ns())
            after, held.after = held.after, []
            for one in after:
                one()
        elif self._producers.get(held.producer.producer_id) is held:
            self._line_up(held)
        self._unmute_if_room()

    def _line_up(self, held: HeldProducer) -> None:
        """Let a producer wait for the first limit that it cannot pass now; for its turn if it could pass all."""
        lines = held.topic.publish_lines
        if lines:
            held.join(blocker(lines, self.now_ns()) or lines[0])
        else:
            while held.rows and self.session.connection.is_open:
                held.publish(None, None)
            self.went(held)

    # -- changes

    def look_again(self, producer: LimitedProducer) -> None:
        """The lines of a producer's topic have changed."""
        held = self._producers.get(producer.producer_id)
        if held is not None:
            held.leave()
            self._line_up(held)

    def forget(self, producer_id: int) -> None:
        """Drop what is held of a producer that is gone."""
        held = self._producers.pop(producer_id, None)
        if held is not None:
            held.leave()
            after = held.drop()
            self._unmute_if_room()
            if self.session.connection.is_open:
                for one in after:
                    one()

    def holds(self, producer_id: int) -> bool:
        """Whether SENDs of a producer are held."""
        held = self._producers.get(producer_id)
        return held is not None and held.rows > 0

    def after(self, producer_id: int, action: Callable[[], None]) -> None:
        """Call back when all held SENDs of a producer are published, or it is gone."""
        self._producers[producer_id].after.append(action)

    # -- memory

    def waiting_of(self, producer_id: int) -> HeldProducer | None:
        """Return the held SENDs of a producer; None without any."""
        return self._producers.get(producer_id)

    @property
    def waiting(self) -> Iterable[HeldProducer]:
        """All producers that wait."""
        return self._producers.values()

    def split(self, lease: Lease, nbytes: int, requests: int) -> Lease:
        return self.memory.requests.split(lease, nbytes, min(requests, lease.requests))

    def release(self, lease: Lease) -> None:
        self._release(lease)

    def _mute_if_full(self, *, at_once: bool) -> None:
        if self._muted_for is None and (at_once or self.memory.full):
            held = next(iter(self._producers.values()))
            line = held.line or held.topic.publish_lines[0]
            self._muted_for = (line.hold, line.owner)
            self.session.connection.mute(*self._muted_for)

    def _unmute_if_room(self) -> None:
        if self._muted_for is None:
            return
        half_empty = not self.memory.of_all.full and not self.memory.half_full
        if not self._producers or half_empty:
            muted_for, self._muted_for = self._muted_for, None
            self.session.connection.unmute(*muted_for)


def _all_may_pass(run: PublishRun, producers: Iterable[LimitedProducer]) -> bool:
    """Whether the balances of all lines exceed the run, judged by its totals, and nobody waits."""
    messages = len(run.offsets) if run.message_counts is None else sum(run.message_counts)
    nbytes = sum(run.lengths)
    for line in dict.fromkeys(line for producer in producers for line in producer.topic.publish_lines):
        messages_left, bytes_left = line.left
        if messages > messages_left or nbytes > bytes_left:
            return False
    return True


def _messages(run: PublishRun, start: int, stop: int) -> int:
    return stop - start if run.message_counts is None else sum(run.message_counts[start:stop])
