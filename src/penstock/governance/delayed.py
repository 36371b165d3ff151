# SPDX-License-Identifier: Apache-2.0
"""One index of delayed messages per topic, shared by its subscriptions (PIP-448).

Why: kept per subscription, the same message is remembered as often as there are subscriptions. Here it is remembered
once, in the slot of the time at which it is due, and a subscription is a light view: how far it has come.
Where: a topic has one manager, a Shared or Key_Shared subscription one view. The broker adds what is published, asks
views what is due, and reads from the log again what the index says it had to let go. `now_ms` is wall time, always an
argument, and `TIME_MAX_MS` when delays are switched off: then everything is due. Positions are entry ids of the
topic's one ledger.

How the broker uses it (docs/internals/delayed-messages.md has the theory)
    publish   manager.add_run(entry_ids, deliver_at_ms, now_ms), once per run with delayed entries in it, before anybody
              reads them. Entries without a deliver time are not told.
    read      before delivering entries [first, stop): if manager.unknown(first, stop), read their metadata and call
              view.look(...) with those that carry a deliver time: it says which to step over. Else view.held(first,
              stop) says it without looking at any metadata. view.next_wanted() skips stretches that are all held.
    deliver   view.get_scheduled_messages(now_ms, n, read_entry_id): stepped over before, due now, to be replayed.
    timer     manager.next_delivery_ms(): when to look again.
    cursor    view.update_mark_delete_position() whenever it moved; view.acknowledged(ids) for individual ones;
              view.rewind() when the reader starts again from the first unacknowledged entry, view.was_reset() before it
              when the cursor was set to another position.
    let go    view.back_fill(...) and manager.back_fill(...): ranges to be read from the log again.

More than four hundred lines, because this is the whole contract between the broker and the index, most of it words;
what the parts do is in the modules beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.governance.delayed_contents import Contents
from penstock.governance.delayed_horizon import INFINITY, Horizon
from penstock.governance.delayed_memory import DelayedMemory
from penstock.governance.delayed_options import TIME_MAX_MS, DamagedSnapshotError, DelayedOptions, Progress
from penstock.governance.delayed_ranges import BackFill, Ranges
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
    """The index of one topic and the views on it.

    Args:
        topic: its name, for `on_empty`.
        next_entry_id: the id that the topic's next entry gets. Delayed entries from here on are told by `add_run`;
            those before are unknown until a reader comes across them (`view.look`) or a snapshot brings them.
        options: tick and strictness.
        memory: where its bytes are charged.
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
        self._known = Ranges()  # what is delayed in here is in the index, unless it was due when it was told
        self._known.add(next_entry_id, INFINITY)
        self._judged_ms = 0  # what is due by this was judged due, once
        self._pruned = -1  # up to here all views had acknowledged everything, once
        self._judged_since_ms = 0  # the same as `_judged_ms`, since then
        self._widest_ms = options.slot_ms  # of all slots there are
        self.views_bytes = 0  # what views take besides themselves
        self._shed_bytes = 0  # how much it took when it last let something go

    # -- views: the seed's operations ---------------------------------------------------------------------------------

    def create_or_get_view(self, name: str, progress: Progress) -> DelayedDeliveryView:
        """The view of the subscription of this name, whose reader starts at its first unacknowledged entry.

        A view belongs to the name, not to a dispatcher: a subscription that changes its type among those that delay
        keeps it (call `view.rewind()` when its reader starts again).
        """
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = DelayedDeliveryView(self, name, progress)
        return view

    def unregister(self, name: str) -> None:
        """This subscription needs no view any more; with the last one the index is emptied and `on_empty` called."""
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
        """Tick and strictness, in force for all views at once. What was due before stays due.

        Messages added from now on go by the new tick; those in the index keep their slots.
        """
        self.options = options

    def topic_buffer_memory_bytes(self) -> int:
        """Bytes this index takes; a maintained number."""
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
        """For views: entries that are not held by what the index knows; which of them are, by their deliver times."""
        due_ms, horizon_ms = self._judge(now_ms), self.horizon.after_ms
        once_ms, again_ms = max(due_ms, self._judged_ms), max(due_ms, self._judged_since_ms)
        rows = [
            row
            for row, (entry_id, at_ms) in enumerate(zip(entry_ids, deliver_at_ms, strict=True))
            if at_ms > horizon_ms
            # Another view may have been given it before the clock was set back: what was due once is.
            or (at_ms > (again_ms if entry_id <= self._pruned else once_ms) and not self._known.has(entry_id))
        ]
        held = [entry_ids[row] for row in rows]
        if held:
            # What is known and not in the index was counted when it was left on disk.
            self._add(held, [deliver_at_ms[row] for row in rows], counted=self._known)
        return held

    def _add(self, entry_ids: Sequence[int], deliver_at_ms: Sequence[int], *, counted: Ranges | None = None) -> None:
        """Put these, none of which is due, into their slots; what is due too late for the index is left on disk."""
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
        """Rounded up: a slot is due when all of it is. Where there is no more room to round up, it is due never."""
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
        """Never deliver this message; True if it was in the index.

        The index remembers cancelled ids (also in its snapshot) and holds them for ever: the broker acknowledges them
        in every cursor, and in those that come later (`cancelled`).
        """
        self.contents.cancelled.add(entry_id)
        found = self.contents.discard(entry_id)
        self.account()
        return found

    def cancelled(self) -> list[int]:
        """The ids that were cancelled, in order."""
        return sorted(self.contents.cancelled)

    # -- what the index knows -----------------------------------------------------------------------------------------

    def unknown(self, first: int, stop: int) -> bool:
        """Whether the metadata of entries [first, stop) must be looked at: the index cannot say what is delayed."""
        return not self._known.covers(first, stop) or self.horizon.concerns(first, stop)

    def unknown_ranges(self, first: int, stop: int) -> list[BackFill]:
        """The parts of [first, stop) of which the index knows nothing, in order."""
        return [BackFill(*part) for part in self._known.missing(first, stop)]

    def look_ahead(
        self, first: int, stop: int, entry_ids: Sequence[int], deliver_at_ms: Sequence[int], now_ms: int
    ) -> None:
        """The broker read entries [first, stop) before any reader did; of these, the given ones carry a deliver time.

        From now on the range is known. Only for entries that no view's reader has passed.
        """
        if now_ms >= TIME_MAX_MS:
            self.add_run(entry_ids, deliver_at_ms, now_ms)
        elif entry_ids:
            # Also what is due: the reader may take a while to come to it, and the index offers it at once.
            self._add(entry_ids, deliver_at_ms)
        self._known.add(first, stop)

    # -- time ---------------------------------------------------------------------------------------------------------

    def next_delivery_ms(self) -> int | None:
        """When to look again: the first moment at which something in the index is due; None when nothing is in it.

        May lie in the past when something is due that no view has asked for yet.
        """
        first_ms = self.contents.first_ms
        return None if first_ms is None else self.ready_ms(first_ms)

    def ready_ms(self, due_ms: int) -> int:
        """The first moment at which the slot of this time is delivered."""
        return due_ms - self.options.early_ms

    def furthest_delivery_ms(self) -> int | None:
        """The last deliver time in the index, rounded up to its slot; None when nothing is in it."""
        return self.contents.last_ms

    def _judge(self, now_ms: int) -> int:
        """Up to which deliver time everything is due now. Nothing past the horizon is, before the log is read again."""
        due_ms = min(now_ms + self.options.early_ms, self.horizon.after_ms)
        if now_ms < TIME_MAX_MS:
            self._judged_ms = max(self._judged_ms, due_ms)
            self._judged_since_ms = max(self._judged_since_ms, due_ms)
        return due_ms

    def come_due(self, now_ms: int) -> bool:
        """For views that have passed all that was due: have the next slot come due; False when it is not time."""
        first_ms = self.contents.first_ms
        if first_ms is None or first_ms > self._judge(now_ms):
            return False
        self.contents.come_due(first_ms)
        self.account()
        return True

    # -- letting go ---------------------------------------------------------------------------------------------------

    def prune(self, entry_id: int) -> None:
        """For views, one of which has its mark-delete position here now: forget what all have acknowledged."""
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
        # Whoever seeks to before it, or begins there, finds the log unknown and looks.
        self._known.cut_before(through + 1)
        if through > self._pruned:
            self._pruned, self._judged_since_ms = through, 0
        self.account()

    def let_go(self, bytes_min: int) -> bool:
        """For the memory, of which there is too little: let go of so many bytes or a part; False when nothing may go.

        What stuck subscriptions alone still want goes first. What is due so soon that it is as good as due stays.
        """
        contents = self.contents
        self._shed_bytes = self.charged_bytes
        # The horizon never comes down below what is due next: there is always something to wait for.
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
        """Messages that were left on disk for lack of memory since the last back-fill; an upper bound."""
        return self.horizon.spilled

    def spilled_after(self, entry_id: int) -> int:
        """How many of them come after this entry, if they are spread evenly."""
        left = self.horizon.all_left
        if not left or entry_id < left.first:
            return self.spilled
        return self.spilled * max(0, left.stop - entry_id - 1) // (left.stop - left.first)

    def back_fill(self, now_ms: int) -> BackFill | None:
        """What to read from the log again now, for what was left there will be due soon or there is room for it.

        None when there is no need. Otherwise: `begin_back_fill`, then `found` with all delayed entries of the range in
        chunks, then `end_back_fill`. Until then nothing is lost: what was left is delivered late, never early.
        """
        horizon = self.horizon
        if not horizon.left or horizon.filling:
            return None
        memory = self._memory
        roomy = 2 * self.charged_bytes <= self._shed_bytes or 2 * memory.used_bytes <= memory.size_bytes
        if roomy or horizon.is_near(now_ms + self.options.early_ms):
            return BackFill(horizon.left.first, horizon.left.stop)
        return None

    def begin_back_fill(self) -> BackFill:
        """Start, or start over."""
        self.horizon.begin()
        return BackFill(self.horizon.left.first, self.horizon.left.stop)

    def found(self, entry_ids: Sequence[int], deliver_at_ms: Sequence[int]) -> None:
        """Entries of the range that carry a deliver time, ids increasing; some may be in the index already."""
        after_ms, cancelled = self.horizon.after_ms, self.contents.cancelled
        rows = [
            row
            for row, at_ms in enumerate(deliver_at_ms)
            if at_ms > after_ms and entry_ids[row] not in cancelled and not self.contents.holds(entry_ids[row])
        ]
        if rows:
            self._add([entry_ids[row] for row in rows], [deliver_at_ms[row] for row in rows])

    def end_back_fill(self, now_ms: int) -> None:
        """The whole range was read."""
        self.horizon.end(now_ms + self.options.early_ms)
        self._shed_bytes = self.charged_bytes

    def abort_back_fill(self) -> None:
        """Reading failed; `back_fill` will ask again."""
        self.horizon.abort()

    def account(self) -> None:
        """Charge what the index takes now."""
        if self.contents.is_empty:
            self._widest_ms = self.options.slot_ms
        self._memory.charge(self, self.contents.size_bytes() + self.views_bytes)

    # -- the end, and over a restart ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Give all bytes back; the manager and its views are of no use afterwards."""
        for view in self._views.values():
            view.closed()
        self._views.clear()
        self.contents.clear()
        self._memory.charge(self, 0)

    def snapshot_pieces(self, next_entry_id: int) -> Iterator[bytes]:
        """The index as pieces of bytes to be stored one after another, each a millisecond's work when it is asked for.

        The index may change between pieces. `next_entry_id`: all entries before it were told to the index.
        """
        from penstock.governance.delayed_snapshot import encode  # noqa: PLC0415 - it imports the bitmaps

        return encode(self.contents.slots, self._watch, self._watched, next_entry_id)

    def snapshot(self, next_entry_id: int) -> bytes:
        """All pieces in one; a caller that may not be held up takes `snapshot_pieces`."""
        return b"".join(self.snapshot_pieces(next_entry_id))

    def _watch(self) -> Bounds:
        self.horizon.watch()
        return self._watched()

    def _watched(self) -> Bounds:
        from penstock.governance.delayed_snapshot import Bounds  # noqa: PLC0415 - see above

        after_ms, left = self.horizon.watched()
        return Bounds(list(self._known), after_ms, (left.first, left.stop), self.cancelled(), self._widest_ms)

    def restore(self, snapshot: Snapshot) -> None:
        """Take in a snapshot of this topic (`delayed_snapshot.decode`), before anything was added or looked at.

        Entries between the snapshot's end and this manager's first are unknown: readers look at them, or the broker
        reads them before (`unknown_ranges`, `look_ahead`). To be called where all else is: it charges the memory.
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
    """Gives each topic its one manager, and forgets it when it is empty."""

    __slots__ = ("_managers", "memory")

    def __init__(self, memory: DelayedMemory) -> None:
        self.memory = memory
        self._managers: dict[str, TopicDelayedDeliveryTrackerManager] = {}

    def manager(self, topic: str, next_entry_id: int, options: DelayedOptions) -> TopicDelayedDeliveryTrackerManager:
        """The manager of this topic; made, with these arguments, if there is none."""
        manager = self._managers.get(topic)
        if manager is None:
            manager = TopicDelayedDeliveryTrackerManager(topic, next_entry_id, options, self.memory, self._on_empty)
            self._managers[topic] = manager
        return manager

    def find(self, topic: str) -> TopicDelayedDeliveryTrackerManager | None:
        """The manager of this topic, if there is one."""
        return self._managers.get(topic)

    def remove(self, topic: str) -> None:
        """The topic is unloaded or deleted: its manager is closed."""
        manager = self._managers.pop(topic, None)
        if manager is not None:
            manager.close()

    def _on_empty(self, manager: TopicDelayedDeliveryTrackerManager) -> None:
        if self._managers.get(manager.topic) is manager:
            del self._managers[manager.topic]
