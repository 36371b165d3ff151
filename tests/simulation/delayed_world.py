# SPDX-License-Identifier: Apache-2.0
"""A broker in miniature around the delayed index: a log, cursors, readers and consumers, on a clock that a test owns.

Why: the index answers questions; whether every message reaches every subscription, in time and once, depends on how
questions and events interleave. Here they interleave at random, by seed, as often as one likes.
Where: tests/simulation/test_delayed.py runs it. It follows the protocol at the head of `governance/delayed.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.governance.delayed import (
    TIME_MAX_MS,
    DelayedDeliveryTrackerFactory,
    DelayedDeliveryView,
    DelayedMemory,
    DelayedOptions,
    TopicDelayedDeliveryTrackerManager,
)
from penstock.governance.delayed_snapshot import decode
from penstock.storage.cursor import Cursor

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

BATCH = 7  # entries read at once
MEMORY_BYTES = 1 << 30


class Member:
    """A subscription: its cursor, its reader, and what its consumers owe."""

    def __init__(self, name: str, cursor: Cursor) -> None:
        self.name = name
        self.cursor = cursor
        self.view: DelayedDeliveryView | None = None
        self.read_entry_id = cursor.mark_delete + 1
        self.owed: set[int] = set()
        self.again: set[int] = set()  # to be delivered again, or passed over and due
        self.stalled = False


class World:
    """One topic, its subscriptions and its clock."""

    def __init__(self, chance: random.Random, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self.chance = chance
        self.now_ms = 1_000_000
        self.options = DelayedOptions(tick_ms=1_000, strict=chance.random() < 0.5)
        self.log: list[int] = []  # the deliver time of each entry; 0 for none
        self.waiting: set[int] = set()  # delayed entries whose time has not been reached
        self.cancelled: set[int] = set()
        self.members: dict[str, Member] = {}
        self.deliveries = 0
        self.memory = DelayedMemory(memory_bytes)
        self.factory = DelayedDeliveryTrackerFactory(self.memory)
        self._manager: TopicDelayedDeliveryTrackerManager | None = None
        self._pieces: Iterator[bytes] | None = None
        self._piece_list: list[bytes] = []
        self.stored: bytes | None = None
        self._filling: tuple[int, int] | None = None

    @property
    def manager(self) -> TopicDelayedDeliveryTrackerManager:
        """The topic's, made if there is none."""
        manager = self.factory.manager("topic", len(self.log), self.options)
        if manager is not self._manager:
            self._manager = manager
            for entry_id in self.cancelled:
                manager.cancel(entry_id)
        return manager

    # -- time ----------------------------------------------------------------------------------------------------------

    def pass_time(self, ms: int) -> None:
        """Time passes, or the clock is set."""
        self.now_ms = max(self.now_ms + ms, 0)
        self.look_at_clock()

    def look_at_clock(self) -> None:
        """Whose time is reached may be delivered, now and ever after."""
        until_ms = self.now_ms + (0 if self.options.strict else self.options.tick_ms)
        self.waiting -= {entry for entry in self.waiting if self.log[entry] <= until_ms}

    def set_options(self, options: DelayedOptions) -> None:
        """Another tick or strictness."""
        self.options = options
        if self.members:
            self.manager.on_options_updated(options)
        self.look_at_clock()

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, deliver_at_ms: list[int]) -> None:
        """Entries in one run; 0 for those without a deliver time."""
        first = len(self.log)
        rows = [row for row, at_ms in enumerate(deliver_at_ms) if at_ms]
        manager = self.manager if self.members else None
        self.log += deliver_at_ms
        self.waiting.update(first + row for row in rows)
        self.look_at_clock()
        if manager is not None and rows:
            manager.add_run([first + row for row in rows], [deliver_at_ms[row] for row in rows], self.now_ms)

    def cancel(self, entry_id: int) -> None:
        """An administrator takes a message back; nobody may be sent it from now on."""
        self.cancelled.add(entry_id)
        if self.members:
            self.manager.cancel(entry_id)
        for member in self.members.values():
            self._forget(member, {entry_id})
            self.acknowledge(member, [entry_id])

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def join(self, name: str, mark_delete: int) -> Member:
        """A new subscription."""
        member = self.members[name] = Member(name, Cursor(mark_delete))
        self._attach(member)
        self._pass_cancelled(member)
        return member

    def _attach(self, member: Member) -> None:
        manager = self.manager
        member.view = manager.create_or_get_view(member.name, member.cursor)

    def _pass_cancelled(self, member: Member) -> None:
        gone = [entry for entry in sorted(self.cancelled) if not member.cursor.is_acknowledged(entry)]
        self.acknowledge(member, gone)

    def unsubscribe(self, name: str) -> None:
        """A subscription is gone."""
        member = self.members.pop(name)
        assert member.view is not None
        member.view.close()
        if not self.members:
            self._pieces = self._filling = None

    def disconnect(self, member: Member) -> None:
        """All consumers leave; what they owed is read again."""
        member.owed.clear()
        member.again.clear()
        member.read_entry_id = member.cursor.mark_delete + 1
        assert member.view is not None
        member.view.rewind()

    def seek(self, member: Member, entry_id: int) -> None:
        """Everything from this entry on is wanted again."""
        member.cursor.reset(entry_id)
        assert member.view is not None
        member.view.was_reset()
        self.disconnect(member)
        self._moved(member)
        self._pass_cancelled(member)

    def skip_through(self, member: Member, entry_id: int) -> None:
        """Everything up to this entry is acknowledged on nobody's behalf."""
        member.cursor.acknowledge_through(entry_id)
        self._forget(member, {entry for entry in member.owed | member.again if entry <= entry_id})
        member.read_entry_id = max(member.read_entry_id, entry_id + 1)
        self._moved(member)

    def clear_backlog(self, member: Member) -> None:
        """Everything is acknowledged."""
        member.cursor.acknowledge_through(len(self.log) - 1)
        member.owed.clear()
        member.again.clear()
        member.read_entry_id = len(self.log)
        assert member.view is not None
        member.view.clear()

    def acknowledge(self, member: Member, entry_ids: list[int]) -> None:
        """One by one, whether they were delivered or not."""
        before = member.cursor.mark_delete
        member.cursor.acknowledge_many(entry_ids)
        self._forget(member, set(entry_ids))
        assert member.view is not None
        member.view.acknowledged(entry_ids)
        if member.cursor.mark_delete != before:
            self._moved(member)

    def give_back(self, member: Member, entry_ids: list[int]) -> None:
        """A consumer does not want these now."""
        member.owed.difference_update(entry_ids)
        member.again.update(entry_ids)

    def _forget(self, member: Member, entry_ids: set[int]) -> None:
        member.owed -= entry_ids
        member.again -= entry_ids

    def _moved(self, member: Member) -> None:
        assert member.view is not None
        member.view.update_mark_delete_position(member.cursor.mark_delete)

    # -- delivering ----------------------------------------------------------------------------------------------------

    def dispatch(self, member: Member, permits: int) -> int:
        """Deliver so much at most: what comes again, what is due, what is new; how many it was."""
        view = member.view
        assert view is not None
        sent = 0
        self._read_lost(member, view)
        while sent < permits:
            member.again.update(view.get_scheduled_messages(self.now_ms, permits - sent, member.read_entry_id))
            if member.again:
                entry_id = min(member.again)
                member.again.discard(entry_id)
                self._deliver(member, entry_id)
                sent += 1
            elif self._read_on(member, view, permits - sent):
                sent = permits - (permits - sent - self._last_sent)
            else:
                break
        return sent

    _last_sent = 0

    def _read_on(self, member: Member, view: DelayedDeliveryView, permits: int) -> bool:
        """One read of the log; False at its end."""
        self._last_sent = 0
        first = member.cursor.next_unacknowledged(member.read_entry_id)
        stop = min(first + BATCH, len(self.log))
        if not self.manager.unknown(first, len(self.log)):
            first = view.next_wanted(first, len(self.log))
            stop = min(first + BATCH, len(self.log))
        member.read_entry_id = max(member.read_entry_id, min(first, len(self.log)))
        if first >= stop:
            return False
        held = self._held(view, first, stop)
        for entry_id in range(first, stop):
            if entry_id not in held and not member.cursor.is_acknowledged(entry_id):
                if self._last_sent == permits:
                    return True
                self._deliver(member, entry_id)
                self._last_sent += 1
            member.read_entry_id = entry_id + 1
        return True

    def _held(self, view: DelayedDeliveryView, first: int, stop: int) -> set[int]:
        if not self.manager.unknown(first, stop):
            return set(view.held(first, stop))
        ids = [entry for entry in range(first, stop) if self.log[entry]]
        return set(view.look(ids, [self.log[entry] for entry in ids], self.now_ms))

    def _read_lost(self, member: Member, view: DelayedDeliveryView) -> None:
        """What was due and is not in the index any more is read from the log."""
        wanted = view.back_fill(member.read_entry_id)
        if wanted is None:
            return
        stop = min(wanted.first + BATCH, wanted.stop)
        ids = [entry for entry in range(wanted.first, stop) if self.log[entry]]
        held = set(view.look(ids, [self.log[entry] for entry in ids], self.now_ms))
        for entry in ids:
            if entry not in held | member.owed and not member.cursor.is_acknowledged(entry):
                member.again.add(entry)
        view.back_filled(stop)

    def _deliver(self, member: Member, entry_id: int) -> None:
        assert entry_id not in member.owed, f"{entry_id} was sent to {member.name} a moment ago"
        assert not member.cursor.is_acknowledged(entry_id), f"{member.name} has acknowledged {entry_id}"
        assert entry_id not in self.waiting, f"{entry_id}, due at {self.log[entry_id]}, was sent at {self.now_ms}"
        assert entry_id not in self.cancelled, f"{entry_id} was cancelled"
        member.owed.add(entry_id)
        self.deliveries += 1

    # -- what the index let go -----------------------------------------------------------------------------------------

    def fill_index(self) -> None:
        """One step of reading again what did not fit."""
        manager = self.manager
        if self._filling is None:
            if manager.back_fill(self.now_ms) is not None:
                self._filling = tuple(manager.begin_back_fill())  # type: ignore[assignment]
            return
        first, stop = self._filling
        reached = min(first + 5 * BATCH, stop)
        ids = [entry for entry in range(first, min(reached, len(self.log))) if self.log[entry]]
        manager.found(ids, [self.log[entry] for entry in ids])
        self._filling = (reached, stop)
        if reached >= stop:
            manager.end_back_fill(self.now_ms)
            self._filling = None

    def break_off_filling(self) -> None:
        """The read failed."""
        if self._filling is not None:
            self.manager.abort_back_fill()
            self._filling = None

    # -- crash and restart ---------------------------------------------------------------------------------------------

    def write_snapshot(self) -> None:
        """One piece of a snapshot, which is stored with its last."""
        if self._pieces is None:
            self._pieces, self._piece_list = self.manager.snapshot_pieces(len(self.log)), []
        piece = next(self._pieces, None)
        if piece is not None:
            self._piece_list.append(piece)
            return
        self.stored, self._pieces = b"".join(self._piece_list), None

    def restart(self, *, tail_first: bool) -> None:
        """The broker dies and comes back with what was stored: the log, the cursors, the last snapshot."""
        self.factory.remove("topic")
        self.memory = DelayedMemory(self.memory.limit_bytes)
        self.factory = DelayedDeliveryTrackerFactory(self.memory)
        self._pieces = self._filling = None
        if not self.members:
            self.stored = None
            return
        manager = self.manager
        if self.stored is not None:
            manager.restore(decode(self.stored))
            for first, stop in manager.unknown_ranges(0, len(self.log)) if tail_first else ():
                ids = [entry for entry in range(first, stop) if self.log[entry]]
                manager.look_ahead(first, stop, ids, [self.log[entry] for entry in ids], self.now_ms)
        for entry_id in self.cancelled:
            manager.cancel(entry_id)  # since the snapshot
        for name, member in list(self.members.items()):
            self.members[name] = Member(name, _restarted(member.cursor))
            self._attach(self.members[name])

    # -- the end -------------------------------------------------------------------------------------------------------

    def check_counts(self) -> None:
        """Each subscription's count is what one gets by counting."""
        for member in self.members.values():
            view = member.view
            assert view is not None
            held = [
                entry
                for entry in view.held(member.cursor.mark_delete + 1, len(self.log))
                if entry not in self.cancelled
            ]
            # What it was offered ahead of its reader is stepped over, and not delayed any more.
            offered = member.owed | member.again
            wanted = sum(not member.cursor.is_acknowledged(entry) for entry in held if entry not in offered)
            # What was acknowledged before the index held it for this view may be counted: a rewound reader or a clock
            # that was set back can bring such messages.
            count = view.number_of_delayed_messages
            assert wanted <= count <= len(held), (member.name, wanted, count, len(held))

    def drain(self) -> None:
        """All time passes, and everybody acknowledges what comes."""
        self.pass_time(TIME_MAX_MS // 2 + 10_000 - self.now_ms)
        idle = 0
        while idle < 3:
            before = self.deliveries, self.manager.topic_delayed_messages()
            self.fill_index()
            for member in self.members.values():
                self.dispatch(member, 50)
                self.acknowledge(member, sorted(member.owed))
            lost = any(member.view and member.view.back_fill(member.read_entry_id) for member in self.members.values())
            moved = before != (self.deliveries, self.manager.topic_delayed_messages())
            idle = 0 if moved or lost or self._filling is not None else idle + 1


def _restarted(cursor: Cursor) -> Cursor:
    """The cursor as it comes back."""
    again = Cursor(cursor.mark_delete)
    above = range(cursor.mark_delete + 1, cursor.last_acknowledged + 1)
    again.acknowledge_many([entry_id for entry_id in above if cursor.is_acknowledged(entry_id)])
    return again
