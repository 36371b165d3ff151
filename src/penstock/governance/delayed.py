# SPDX-License-Identifier: Apache-2.0
"""One index of delayed messages per topic, shared by its subscriptions (PIP-448).

Why: an index per subscription stores each message once per subscription. Here a message is stored once, in the slot of
the time at which it is due. A subscription has a small view, which says how far it has come.

Where: a topic has one manager; each Shared or Key_Shared subscription has one view. The broker adds published messages,
asks views for messages that are due, and reads from the log again what the index had to drop. `now_ms` is wall time and
always an argument; it is `TIME_MAX_MS` when delayed delivery is switched off, so that everything is due. Positions are
entry ids of the topic's one ledger.

How the broker uses it (docs/internals/delayed-messages.md has the theory):

    publish   manager.add_run(entry_ids, deliver_at_ms, now_ms), once per run with delayed entries, before a reader can
              reach them. Entries without a deliver time are left out.
    read      Before delivering entries [first, stop): if manager.unknown(first, stop), read their metadata and call
              view.look(...) with those that have a deliver time; it returns the entries to skip. Otherwise
              view.held(first, stop) returns them without any metadata. view.next_wanted() skips stretches that are
              all held.
    deliver   view.get_scheduled_messages(now_ms, n, read_entry_id) returns entries that were skipped and are due now,
              to be replayed.
    timer     manager.next_delivery_ms() says when to check again.
    cursor    view.update_mark_delete_position() whenever it moves; view.acknowledged(ids) for individual
              acknowledgements; view.rewind() when the reader starts again from the first unacknowledged entry; before
              that view.was_reset() if the cursor was set to another position.
    refill    view.back_fill(...) and manager.back_fill(...) return ranges to read from the log again.

The file has more than four hundred lines because it is the whole contract between the broker and the index. The parts
are in the modules beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.governance.delayed_contents import Contents
from penstock.governance.delayed_memory import DelayedMemory
from penstock.governance.delayed_options import TIME_MAX_MS, DamagedSnapshotError, DelayedOptions, Progress
from penstock.governance.delayed_ranges import INFINITY, BackFill, Horizon, Ranges
from penstock.governance.delayed_view import DelayedDeliveryView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.governance.delayed_snapshot import Bounds, Snapshot

__all__ = [
    "TIME_MAX_MS",
    "BackFill",
    "DamagedSnapshotError",
    "DelayedDeliveryTrackerFactory",
    "DelayedDeliveryView",
    "DelayedMemory",
    "DelayedOptions",
    "Progress",
    "TopicDelayedDeliveryTrackerManager",
]


class TopicDelayedDeliveryTrackerManager:
    """The delayed index of one topic and the views of its subscriptions.

    Args:
        topic: the topic's name, for `on_empty`.
        next_entry_id: the id of the topic's next entry. `add_run` adds delayed entries from this id on. Earlier ones
        are
            unknown until a reader finds them (`view.look`) or a snapshot contains them.
        options: tick and strictness.
        memory: the account that the index's bytes are charged to.
        on_empty: called with this manager when the last view is unregistered.
    """

    __slots__ = (
        "__weakref__",
        "_judged_ms",
        "_judged_since_ms",
        "_known",
        "_memory",
        "_on_empty",
        "_pruned",
        "_shed_bytes",
        "_views",
        "_widest_ms",
        "charged_bytes",
        "contents",
        "horizon",
        "options",
        "topic",
        "views_bytes",
    )

    def __init__(
        self,
        topic: str,
        next_entry_id: int,
        options: DelayedOptions,
        memory: DelayedMemory,
        on_empty: Callable[[TopicDelayedDeliveryTrackerManager], None],
    ) -> None:
        self.topic = topic
        self.options = options
        self.charged_bytes = 0
        self.contents = Contents()
        self.horizon = Horizon()
        self._memory = memory
        self._on_empty = on_empty
        self._views: dict[str, DelayedDeliveryView] = {}
        self._known = Ranges()  # delayed entries in here are in the index, unless they were due when they were added
        self._known.add(next_entry_id, INFINITY)
        self._judged_ms = 0  # the latest deliver time that was ever found due
        self._pruned = -1  # the highest entry id up to which all views had acknowledged everything
        self._judged_since_ms = 0  # `_judged_ms` since `_pruned` moved
        self._widest_ms = options.slot_ms  # the widest slot in the index
        self.views_bytes = 0  # bytes of the bitmaps of all views
        self._shed_bytes = 0  # the size of the index when it last dropped something

    # -- views: the seed's operations ---------------------------------------------------------------------------------

    def create_or_get_view(self, name: str, progress: Progress) -> DelayedDeliveryView:
        """Return the view of the subscription `name`, whose reader starts at its first unacknowledged entry.

        A view belongs to the name, not to a dispatcher. A subscription that changes between Shared and Key_Shared keeps
        its view (call `view.rewind()` when its reader starts again).
        """
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = DelayedDeliveryView(self, name, progress)
        return view

    def unregister(self, name: str) -> None:
        """Remove the view of a subscription. With the last view, empty the index and call `on_empty`."""
        view = self._views.pop(name, None)
        if view is None:
            return
        view.closed()
        if self._views:
            self.prune(min(other.progress.mark_delete for other in self._views.values()))
        else:
            self.close()
            self._on_empty(self)

    def on_options_updated(self, options: DelayedOptions) -> None:
        """Change tick and strictness for all views at once. Messages that were due stay due."""
        self.options = options

    def topic_buffer_memory_bytes(self) -> int:
        """Return the bytes that this index uses. The number is maintained, not computed."""
        if self.contents.slots is not None:
            self.contents.slots.settle()
        self.account()
        return self.charged_bytes

    def topic_delayed_messages(self) -> int:
        """Messages in the index that are not due, and those left on disk only (`spilled`)."""
        return self.spilled + self.contents.count

    # -- adding -------------------------------------------------------------------------------------------------------

    def add_run(self, entry_ids: Sequence[int], deliver_at_ms: Sequence[int], now_ms: int) -> int:
        """Entries just appended that carry a deliver time, ids increasing. Returns how many are delayed.

        What is due already is not delayed. Call it before any reader can come to them.
        """
        if not entry_ids:
            return 0
        due_ms = self._judge(now_ms)
        if min(deliver_at_ms) <= due_ms:
            rows = [row for row, at_ms in enumerate(deliver_at_ms) if at_ms > due_ms]
            entry_ids, deliver_at_ms = [entry_ids[row] for row in rows], [deliver_at_ms[row] for row in rows]
        if entry_ids:
            self._add(entry_ids, deliver_at_ms)
        return len(entry_ids)

    def look(self, entry_ids: Sequence[int], deliver_at_ms: Sequence[int], now_ms: int) -> list[int]:
        """For views: add entries that the index does not hold yet; return those that are delayed."""
        due_ms, horizon_ms = self._judge(now_ms), self.horizon.after_ms
        once_ms, again_ms = max(due_ms, self._judged_ms), max(due_ms, self._judged_since_ms)
        rows = [
            row
            for row, (entry_id, at_ms) in enumerate(zip(entry_ids, deliver_at_ms, strict=True))
            if at_ms > horizon_ms
            # The clock may have been set back after another view was given this entry: once due, it stays due.
            or (at_ms > (again_ms if entry_id <= self._pruned else once_ms) and not self._known.has(entry_id))
        ]
        held = [entry_ids[row] for row in rows]
        if held:
            # An entry that is known and not in the index was counted when it was left on disk.
            self._add(held, [deliver_at_ms[row] for row in rows], counted=self._known)
        return held

    def _add(self, entry_ids: Sequence[int], deliver_at_ms: Sequence[int], *, counted: Ranges | None = None) -> None:
        """Put these entries into their slots; none of them is due.

        Entries due after the index's horizon are left on disk.
        """
        until_ms = self.horizon.takes_until_ms
        if max(deliver_at_ms) > until_ms:
            late = [entry_ids[row] for row, at_ms in enumerate(deliver_at_ms) if at_ms > until_ms]
            count = len(late) if counted is None else sum(not counted.has(entry_id) for entry_id in late)
            self.horizon.leave(late[0], late[-1] + 1, count)
            rows = [row for row, at_ms in enumerate(deliver_at_ms) if at_ms <= until_ms]
            entry_ids, deliver_at_ms = [entry_ids[row] for row in rows], [deliver_at_ms[row] for row in rows]
        if entry_ids:
            self._begin()
            self.contents.add(entry_ids, self._slot_times(deliver_at_ms))
            self.account()
            self._memory.make_room()

    def _slot_times(self, deliver_at_ms: Sequence[int]) -> list[int]:
        """Round deliver times up to their slots, so that a slot is due when all of it is.

        `TIME_MAX_MS` and more is never due.
        """
        slot_ms = self.options.slot_ms
        self._widest_ms = max(self._widest_ms, slot_ms)
        due_ms = [-(-at_ms // slot_ms) * slot_ms for at_ms in deliver_at_ms]
        if max(due_ms) > TIME_MAX_MS or min(due_ms) < 0:  # a clock may stand before 1970
            due_ms = [max(0, min(one_ms, TIME_MAX_MS)) for one_ms in due_ms]
        return due_ms

    def _begin(self) -> None:
        if self.contents.slots is None:
            self.contents.begin()
            for view in self._views.values():
                view.index_begins()

    def cancel(self, entry_id: int) -> bool:
        """Never deliver this message; return whether it was in the index.

        The index keeps cancelled ids (also in its snapshot) and holds them forever. The broker acknowledges them in
        every cursor, and in cursors that are created later (`cancelled`).
        """
        self.contents.cancelled.add(entry_id)
        found = self.contents.discard(entry_id)
        self.account()
        return found

    def cancelled(self) -> list[int]:
        """Return the cancelled ids in ascending order."""
        return sorted(self.contents.cancelled)

    # -- what the index knows -----------------------------------------------------------------------------------------

    def unknown(self, first: int, stop: int) -> bool:
        """Return whether the metadata of [first, stop) must be read to know which entries are delayed."""
        return not self._known.covers(first, stop) or self.horizon.concerns(first, stop)

    def unknown_ranges(self, first: int, stop: int) -> list[BackFill]:
        """Return the parts of [first, stop) that the index knows nothing about, in order."""
        return [BackFill(*part) for part in self._known.missing(first, stop)]

    def look_ahead(
        self, first: int, stop: int, entry_ids: Sequence[int], deliver_at_ms: Sequence[int], now_ms: int
    ) -> None:
        """Add the delayed entries of [first, stop), which the broker has read before any reader reached them.

        From now on the range is known. No view's reader may have passed any of these entries.
        """
        if now_ms >= TIME_MAX_MS:
            self.add_run(entry_ids, deliver_at_ms, now_ms)
        elif entry_ids:
            # Due entries are added too: the index offers them at once, and the reader may reach them much later.
            self._add(entry_ids, deliver_at_ms)
        self._known.add(first, stop)

    # -- time ---------------------------------------------------------------------------------------------------------

    def next_delivery_ms(self) -> int | None:
        """Return the wall time at which the next message is due; None when the index is empty.

        The time may be in the past when something is due that no view has asked for yet.
        """
        first_ms = self.contents.first_ms
        return None if first_ms is None else self.ready_ms(first_ms)

    def ready_ms(self, due_ms: int) -> int:
        """Return the first time at which the slot of `due_ms` is delivered."""
        return due_ms - self.options.early_ms

    def furthest_delivery_ms(self) -> int | None:
        """Return the latest deliver time in the index, rounded up to its slot; None when the index is empty."""
        return self.contents.last_ms

    def _judge(self, now_ms: int) -> int:
        """Return the deliver time up to which messages are due now; never a time after the horizon."""
        due_ms = min(now_ms + self.options.early_ms, self.horizon.after_ms)
        if now_ms < TIME_MAX_MS:
            self._judged_ms = max(self._judged_ms, due_ms)
            self._judged_since_ms = max(self._judged_since_ms, due_ms)
        return due_ms

    def come_due(self, now_ms: int) -> bool:
        """For views that have passed all due messages: move the next slot to the due list.

        False if its time has not come.
        """
        first_ms = self.contents.first_ms
        if first_ms is None or first_ms > self._judge(now_ms):
            return False
        self.contents.come_due(first_ms)
        self.account()
        return True

    # -- letting go ---------------------------------------------------------------------------------------------------

    def prune(self, entry_id: int) -> None:
        """For views, when a mark-delete position has moved to `entry_id`: forget what all have acknowledged."""
        lowest = self.contents.lowest
        if lowest is None:
            lowest = INFINITY
        if self.horizon.is_finite:
            lowest = min(lowest, self.horizon.all_left.first)
        if lowest > entry_id:
            return
        through = min(view.progress.mark_delete for view in self._views.values())
        if lowest > through:
            return
        self.contents.discard_through(through)
        self.horizon.cut_before(through + 1)
        # A reader that seeks to an earlier entry, or starts there, finds the range unknown and reads its metadata.
        self._known.cut_before(through + 1)
        if through > self._pruned:
            self._pruned, self._judged_since_ms = through, 0
        self.account()

    def spill(self, bytes_min: int) -> bool:
        """Drop messages from memory, up to `bytes_min` bytes; they stay in the log.

        Return False when nothing may be dropped.

        Due messages that only stuck subscriptions still want are dropped first. Messages that are due very soon stay.
        """
        contents = self.contents
        self._shed_bytes = self.charged_bytes
        # The horizon never moves below the next due time, so the index always has something to wait for.
        least_ms = max(self._judged_ms, contents.first_ms or 0) + self._widest_ms
        gone = None if contents.due_segments > 1 else contents.take_last(least_ms, bytes_min)
        if gone is not None:
            if gone.ids:
                self.horizon.leave(gone.ids.min(), gone.ids.max() + 1, len(gone.ids))
                self.horizon.lower(gone.from_ms - self._widest_ms, self._judged_ms)
        elif contents.due_segments:
            segment = contents.head
            for view in self._views.values():
                view.lose(segment)
        else:
            return False
        self.account()
        return True

    @property
    def spilled(self) -> int:
        """Messages left on disk for lack of memory since the last back-fill; an upper bound."""
        return self.horizon.spilled

    def spilled_after(self, entry_id: int) -> int:
        """Estimate how many of the `spilled` messages come after this entry, as if they were spread evenly."""
        left = self.horizon.all_left
        if not left or entry_id < left.first:
            return self.spilled
        return self.spilled * max(0, left.stop - entry_id - 1) // (left.stop - left.first)

    def back_fill(self, now_ms: int) -> BackFill | None:
        """Return the range of the log to read again now; None when that is not needed.

        It is needed when messages left on disk will be due soon, or when there is memory for them. The broker then
        calls `begin_back_fill`, `found` with all delayed entries of the range in chunks, and `end_back_fill`. Until
        then nothing is lost: a message left on disk may be delivered late, never early.
        """
        horizon = self.horizon
        if not horizon.left or horizon.filling:
            return None
        memory = self._memory
        roomy = 2 * self.charged_bytes <= self._shed_bytes or 2 * memory.used_bytes <= memory.limit_bytes
        if roomy or horizon.is_near(now_ms + self.options.early_ms):
            return BackFill(horizon.left.first, horizon.left.stop)
        return None

    def begin_back_fill(self) -> BackFill:
        """Start a back-fill, or restart it, and return its range."""
        self.horizon.begin()
        return BackFill(self.horizon.left.first, self.horizon.left.stop)

    def found(self, entry_ids: Sequence[int], deliver_at_ms: Sequence[int]) -> None:
        """Add entries of the back-filled range that have a deliver time.

        Ids ascend; some may be in the index already.
        """
        after_ms, cancelled = self.horizon.after_ms, self.contents.cancelled
        rows = [
            row
            for row, at_ms in enumerate(deliver_at_ms)
            if at_ms > after_ms and entry_ids[row] not in cancelled and not self.contents.holds(entry_ids[row])
        ]
        if rows:
            self._add([entry_ids[row] for row in rows], [deliver_at_ms[row] for row in rows])

    def end_back_fill(self, now_ms: int) -> None:
        """Finish a back-fill whose whole range was read."""
        self.horizon.end(now_ms + self.options.early_ms)
        self._shed_bytes = self.charged_bytes

    def abort_back_fill(self) -> None:
        """Give up a back-fill because a read failed; `back_fill` will return the range again."""
        self.horizon.abort()

    def account(self) -> None:
        """Charge the current size of the index to its memory."""
        if self.contents.is_empty:
            self._widest_ms = self.options.slot_ms
        self._memory.recharge(self, self.contents.size_bytes() + self.views_bytes)

    # -- the end, and over a restart ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Release all memory. The manager and its views must not be used afterwards."""
        for view in self._views.values():
            view.closed()
        self._views.clear()
        self.contents.clear()
        self._memory.recharge(self, 0)

    def snapshot_pieces(self, next_entry_id: int) -> Iterator[bytes]:
        """Yield the index as pieces of bytes, to be stored one after another.

        Each piece takes about a millisecond to make.

        The index may change between pieces. All entries before `next_entry_id` have been added to the index.
        """
        from penstock.governance.delayed_snapshot import encode  # noqa: PLC0415 - it imports the bitmaps

        return encode(self.contents.slots, self._watch, self._watched, next_entry_id)

    def snapshot(self, next_entry_id: int) -> bytes:
        """Return all pieces as one. A caller that must not block for long uses `snapshot_pieces`."""
        return b"".join(self.snapshot_pieces(next_entry_id))

    def _watch(self) -> Bounds:
        self.horizon.watch()
        return self._watched()

    def _watched(self) -> Bounds:
        from penstock.governance.delayed_snapshot import Bounds  # noqa: PLC0415 - see above

        after_ms, left = self.horizon.watched()
        return Bounds(list(self._known), after_ms, (left.first, left.stop), self.cancelled(), self._widest_ms)

    def restore(self, snapshot: Snapshot) -> None:
        """Load a snapshot of this topic (`delayed_snapshot.decode`), before anything is added or read.

        Entries between the snapshot's end and this manager's first entry are unknown: readers look at them, or the
        broker reads them in advance (`unknown_ranges`, `look_ahead`). Call it on the loop: it charges the memory.
        """
        assert self.contents.slots is None, "a snapshot is taken in first of all"
        bounds = snapshot.bounds
        self.contents.begin(snapshot.slots)
        for first, stop in bounds.known:
            self._known.add(first, stop)
        self.horizon.restore(bounds.after_ms, *bounds.left)
        self.contents.cancelled.update(bounds.cancelled)
        self._widest_ms = max(self._widest_ms, bounds.widest_ms)
        self.account()


class DelayedDeliveryTrackerFactory:
    """Keeps one manager per topic, and forgets a manager that is empty."""

    __slots__ = ("_managers", "memory")

    def __init__(self, memory: DelayedMemory) -> None:
        self.memory = memory
        self._managers: dict[str, TopicDelayedDeliveryTrackerManager] = {}

    def manager(self, topic: str, next_entry_id: int, options: DelayedOptions) -> TopicDelayedDeliveryTrackerManager:
        """Return the manager of this topic; create it with these arguments if there is none."""
        manager = self._managers.get(topic)
        if manager is None:
            manager = TopicDelayedDeliveryTrackerManager(topic, next_entry_id, options, self.memory, self._on_empty)
            self._managers[topic] = manager
        return manager

    def find(self, topic: str) -> TopicDelayedDeliveryTrackerManager | None:
        """Return the manager of this topic, or None."""
        return self._managers.get(topic)

    def remove(self, topic: str) -> None:
        """Close the manager of a topic that is unloaded or deleted."""
        manager = self._managers.pop(topic, None)
        if manager is not None:
            manager.close()

    def _on_empty(self, manager: TopicDelayedDeliveryTrackerManager) -> None:
        if self._managers.get(manager.topic) is manager:
            del self._managers[manager.topic]
