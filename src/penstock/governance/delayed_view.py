# SPDX-License-Identifier: Apache-2.0
"""One subscription's view of its topic's delayed messages: how far it has come, and little else.

Where: created by `TopicDelayedDeliveryTrackerManager.create_or_get_view`; see there how the broker uses it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.governance.delayed_id_set import IdSet
from penstock.governance.delayed_ranges import BackFill, Hull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.governance.delayed import TopicDelayedDeliveryTrackerManager
    from penstock.governance.delayed_due import Segment
    from penstock.governance.delayed_options import Progress

# The most slots that one call walks, so that a clock set forward by a year does not block the caller for long.
SLOTS_PER_CALL_MAX: Final = 256


class DelayedDeliveryView:
    """The delayed messages that one subscription still has to get.

    For a view, every delayed message is either held (its reader skips it) or passed. When a held message is due and the
    view comes to it, the view returns it once if the reader has skipped it (its id is below `read_entry_id`). Otherwise
    the reader finds it not held and delivers it.

    Where the index does not know the entries in between, the reader reads the metadata of every entry and may need
    seconds to reach the message, for example after a restart with a full index. Then the view returns it at once and
    the reader skips it (`_ahead`).
    """

    __slots__ = (
        "_acknowledged",
        "_after",
        "_ahead",
        "_begun",
        "_lost",
        "_lost_since",
        "_manager",
        "_segment",
        "name",
        "progress",
        "slots_taken",
    )

    def __init__(self, manager: TopicDelayedDeliveryTrackerManager, name: str, progress: Progress) -> None:
        self._manager = manager
        self.name = name
        self.progress = progress
        self.slots_taken: list[tuple[int, int]] = []  # ids that were returned last, of each slot, and its time
        self._segment: Segment | None = (
            None  # its position; None: the end of the list, as soon as it asks for something
        )
        self._after = -1  # the last id of that segment that it has passed
        self._begun = False  # whether its reader has begun to read
        self._acknowledged = IdSet()  # held, but acknowledged one by one
        self._ahead = IdSet()  # offered before the reader has come to them
        self._lost = Hull()  # due and skipped, but dropped from the index
        self._lost_since = Hull()  # the part of it that was dropped since `back_fill` was last called

    # -- the reader ---------------------------------------------------------------------------------------------------

    def held(self, first: int, stop: int) -> list[int]:
        """Return the entries of [first, stop) that the reader skips, in order.

        Call it only if not `manager.unknown`.
        """
        self._attach()
        held = self._manager.contents.held(first, stop)
        pending = [
            entry_id for segment, after in self._pending() for entry_id in segment.within(max(first, after + 1), stop)
        ]
        ahead = self._ahead.within(first, stop)
        return sorted({*held, *pending, *ahead}) if pending or ahead else held

    def next_wanted(self, first: int, stop: int) -> int:
        """Return the first of entries [first, stop) that is not held; `stop` if all are.

        Logarithmic in what it skips.
        """
        self._attach()
        at = -1
        while at != first and first < stop:
            at = first
            first = self._manager.contents.first_not_held(first, stop)
            for segment, after in self._pending():
                if first > after:
                    first = segment.first_absent(first, stop)
            first = self._ahead.first_absent(first, stop)
        return first

    def look(self, entry_ids: Sequence[int], deliver_at_ms: Sequence[int], now_ms: int) -> list[int]:
        """Return which of these entries the reader skips, in order. It has just read their deliver times; ids ascend.

        Entries that the index did not know are added to it. Entries that it knows may be included.
        """
        if not entry_ids:
            return []
        held = set(self.held(entry_ids[0], entry_ids[-1] + 1))
        rows = [row for row, entry_id in enumerate(entry_ids) if entry_id not in held]
        added = self._manager.look([entry_ids[row] for row in rows], [deliver_at_ms[row] for row in rows], now_ms)
        held.update(added)
        return [entry_id for entry_id in entry_ids if entry_id in held]

    def add_message(self, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
        """Look at one entry; return whether the reader skips it."""
        return bool(self.look((entry_id,), (deliver_at_ms,), now_ms))

    # -- what is due --------------------------------------------------------------------------------------------------

    def get_scheduled_messages(self, now_ms: int, entries_max: int, read_entry_id: int) -> list[int]:
        """Remove and return up to `entries_max` unacknowledged ids that are due and below `read_entry_id`.

        Ids from `read_entry_id` on are included if the reader must read the metadata of entries before them; the reader
        skips them later. The earliest slot comes first, and ids ascend within a slot. An id is returned only once.
        `slots_taken` tells afterwards how many ids came from each slot.
        """
        taken: list[int] = []
        self.slots_taken = []
        for _ in range(SLOTS_PER_CALL_MAX):
            if len(taken) >= entries_max or not self._stand(now_ms):
                break
            assert self._segment is not None, "the view stands in a due segment"
            due_ms = self._segment.due_ms
            of_slot = self._take(entries_max - len(taken), read_entry_id)
            if of_slot:
                self.slots_taken.append((len(of_slot), due_ms))
                taken += of_slot
        self._change_ids(self._ahead.cut_through, read_entry_id - 1)
        ahead = [entry_id for entry_id in taken if entry_id >= read_entry_id]
        if ahead:
            self._change_ids(self._ahead.add, ahead)
        return taken

    def has_message_available(self, now_ms: int, read_entry_id: int) -> bool:
        """Return whether `get_scheduled_messages` has something, or so much is due that it must be asked again."""
        for _ in range(SLOTS_PER_CALL_MAX):
            if not self._stand(now_ms):
                return False
            wanted = next(self._wanted(read_entry_id), None)
            if wanted is not None:
                self._pass(wanted - 1)
                return True
            self._step()
        return True

    def next_delivery_ms(self) -> int | None:
        """Return when to ask again; see the manager's method of this name."""
        if self._segment is not None and self._segment.later is not None:
            return self._manager.ready_ms(self._segment.due_ms)
        return self._manager.next_delivery_ms()

    def furthest_delivery_ms(self) -> int | None:
        """Return the latest deliver time in the topic's index."""
        return self._manager.furthest_delivery_ms()

    def _stand(self, now_ms: int) -> bool:
        """Move to a due segment; return False when nothing more is due."""
        self._attach()
        if self._segment is None or (self._segment.later is None and not self._manager.come_due(now_ms)):
            return False
        return self._segment.later is not None  # it may have been dropped at once, for lack of memory

    def _take(self, entries_max: int, read_entry_id: int) -> list[int]:
        """Take up to `entries_max` ids of the current segment, and leave the segment if that was all."""
        taken = list(islice(self._wanted(read_entry_id), entries_max))
        if len(taken) < entries_max:
            self._step()
        else:
            self._pass(taken[-1])
        return taken

    def _wanted(self, read_entry_id: int) -> Iterator[int]:
        """Iterate over the ids of the current segment that this view still has to return."""
        assert self._segment is not None, "nothing is taken from nowhere"
        progress = self.progress
        crawls = self._manager.horizon.concerns(read_entry_id, self._segment.last + 1)
        for entry_id in self._segment.from_id(max(self._after, progress.mark_delete) + 1, self._acknowledged):
            if entry_id >= read_entry_id and (not crawls or self._ahead.holds(entry_id)):
                return
            if not (progress.acknowledged_above and progress.is_acknowledged(entry_id)):
                yield entry_id

    def _pass(self, entry_id: int) -> None:
        assert self._segment is not None, "nothing is passed nowhere"
        if entry_id > self._after:
            self._after = entry_id
            self._segment.begun = True

    def _step(self) -> None:
        assert self._segment is not None, "there is somewhere to step from"
        self._segment, self._after = self._manager.contents.step(self._segment), -1
        self._manager.account()

    def _attach(self) -> None:
        if self._segment is None:
            self._begun = True
            self._segment = self._manager.contents.enter()

    def index_begins(self) -> None:
        """Enter the list before the topic's first delayed message is added, if the reader has begun to read."""
        if self._begun:
            self._attach()

    def _detach(self) -> None:
        segment, self._segment, self._after, self._begun = self._segment, None, -1, False
        if segment is not None:
            self._manager.contents.leave(segment)
            self._manager.account()

    def _pending(self) -> Iterator[tuple[Segment, int]]:
        """Yield due segments that this view has not passed, each with the id after which it is held."""
        segment, after = self._segment, self._after
        while segment is not None and segment.later is not None:
            yield segment, after
            segment, after = segment.later, -1

    # -- how much -----------------------------------------------------------------------------------------------------

    @property
    def number_of_delayed_messages(self) -> int:
        """Held messages that this subscription has not acknowledged: not due yet, or due and not returned.

        Messages left on disk for lack of memory are not counted. It costs a few additions for a view that keeps up.
        """
        mark_delete = self.progress.mark_delete
        count = self._manager.contents.count_after(mark_delete, self._acknowledged)
        for segment, after in self._pending():
            count += segment.count_after(max(after, mark_delete), self._acknowledged)
        return count

    @property
    def may_hold(self) -> bool:
        """Whether anything is held, acknowledged or not; cheaper than the number."""
        return not self._manager.contents.is_empty or (self._segment is not None and self._segment.later is not None)

    @property
    def size_bytes(self) -> int:
        """The bytes of this view's own bitmaps, which are a part of the index's."""
        return self._acknowledged.size_bytes + self._ahead.size_bytes

    def buffer_memory_bytes(self) -> int:
        """Return the bytes of the topic's index, which all its subscriptions share."""
        return self._manager.topic_buffer_memory_bytes()

    # -- the cursor ---------------------------------------------------------------------------------------------------

    def update_mark_delete_position(self, entry_id: int) -> None:
        """Follow the cursor's mark-delete position, forward or back.

        For a seek, also call `was_reset` and `rewind`.
        """
        self._change_ids(self._acknowledged.cut_through, entry_id)
        self._manager.prune(entry_id)

    def acknowledged(self, entry_ids: Sequence[int]) -> None:
        """Stop counting these individually acknowledged messages. The cursor must know the acknowledgements already."""
        if not self.may_hold:
            return
        mark_delete, contents = self.progress.mark_delete, self._manager.contents
        above = [entry_id for entry_id in entry_ids if entry_id > mark_delete]
        held = list(filter(contents.holds, above))
        for segment, after in self._pending():
            held += [entry_id for entry_id in above if entry_id > after and segment.holds(entry_id)]
        if held:
            self._change_ids(self._acknowledged.add, held)

    def _change_ids(self, change: Callable[..., None], *what: object) -> None:
        before = self.size_bytes
        change(*what)
        if self.size_bytes != before:
            self._manager.views_bytes += self.size_bytes - before
            self._manager.account()

    def was_reset(self) -> None:
        """The cursor was reset (seek): acknowledgements above its mark-delete position are gone."""
        self._change_ids(self._acknowledged.clear)

    def rewind(self) -> None:
        """Start again from the first unacknowledged entry, as the reader does."""
        self._detach()
        self._change_ids(self._ahead.clear)
        self._lost.clear()
        self._lost_since.clear()

    # -- what was let go ----------------------------------------------------------------------------------------------

    def back_fill(self, read_entry_id: int) -> BackFill | None:
        """Return the range of due entries that the index dropped while the subscription was stuck.

        The broker reads the range and replays the entries that `look` does not hold, that are not acknowledged and not
        on their way to a consumer. Then it calls `back_filled`. Returns None when nothing was dropped.
        """
        self._lost_since.clear()
        if not self._lost:
            return None
        self._lost.cut_before(self.progress.mark_delete + 1)
        self._lost.cut_from(read_entry_id)  # the rest is left to the reader
        return BackFill(self._lost.first, self._lost.stop) if self._lost else None

    def back_filled(self, stop: int) -> None:
        """The entries before `stop` that the last `back_fill` named were read from the log."""
        self._lost.cut_before(stop)
        if self._lost_since:
            self._lost.add(self._lost_since.first, self._lost_since.stop)

    def lose(self, segment: Segment) -> None:
        """Leave this segment, which the index drops, and remember the range that this view has not passed."""
        if self._segment is not segment:
            return
        first = next(segment.from_id(max(self._after, self.progress.mark_delete) + 1, self._acknowledged), None)
        if first is not None:
            self._lost.add(first, segment.last + 1)
            self._lost_since.add(first, segment.last + 1)
        self._step()

    # -- the end ------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop everything that waits for this subscription: its backlog was cleared."""
        self.rewind()
        self.update_mark_delete_position(self.progress.mark_delete)

    def close(self) -> None:
        """Remove this view; the same as `manager.unregister`."""
        self._manager.unregister(self.name)

    def closed(self) -> None:
        """The manager has removed this view: release its memory."""
        self._detach()
        self._change_ids(self._acknowledged.clear)
        self._change_ids(self._ahead.clear)
        self._lost.clear()
        self._lost_since.clear()
