# SPDX-License-Identifier: Apache-2.0
"""What the tests of the delayed index share: a topic whose entries are published one by one, and a clock by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.governance.delayed import (
    DelayedDeliveryView,
    DelayedMemory,
    DelayedOptions,
    TopicDelayedDeliveryTrackerManager,
)
from penstock.storage.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = 1_700_000_000_000
STRICT = DelayedOptions(strict=True)
LOOSE = DelayedOptions(strict=False)
ROOMY = 1 << 30


class Topic:
    """An index, its views and their cursors; all readers are at the topic's end unless a test says otherwise."""

    def __init__(
        self, options: DelayedOptions = STRICT, *, memory: DelayedMemory | None = None, first: int = 0
    ) -> None:
        self.now_ms = NOW
        self.memory = memory or DelayedMemory(ROOMY)
        self.emptied: list[TopicDelayedDeliveryTrackerManager] = []
        self.manager = TopicDelayedDeliveryTrackerManager("topic", first, options, self.memory, self.emptied.append)
        self.stop = first
        self.cursors: dict[str, Cursor] = {}

    def view(self, name: str = "a", mark_delete: int = -1) -> DelayedDeliveryView:
        """A subscription's view whose reader has begun."""
        self.cursors[name] = Cursor(mark_delete)
        view = self.manager.create_or_get_view(name, self.cursors[name])
        view.held(0, 1)
        return view

    def publish(self, *after_ms: int) -> range:
        """Entries due so long after now, in one run; returns their ids."""
        return self.publish_at([self.now_ms + ms for ms in after_ms])

    def publish_at(self, deliver_at_ms: Sequence[int]) -> range:
        """Entries due at these times, in one run."""
        ids = range(self.stop, self.stop + len(deliver_at_ms))
        self.stop = ids.stop
        self.manager.add_run(ids, deliver_at_ms, self.now_ms)
        return ids

    def take(self, view: DelayedDeliveryView, entries_max: int = 1_000_000) -> list[int]:
        """What is due for a view."""
        return view.get_scheduled_messages(self.now_ms, entries_max, self.stop)

    def available(self, view: DelayedDeliveryView) -> bool:
        """Whether anything is."""
        return view.has_message_available(self.now_ms, self.stop)

    def acknowledge(self, view: DelayedDeliveryView, entry_ids: Sequence[int]) -> None:
        """As the broker does it."""
        cursor = self.cursors[view.name]
        cursor.acknowledge_many(entry_ids)
        view.acknowledged(entry_ids)
        view.update_mark_delete_position(cursor.mark_delete)


def viewed(options: DelayedOptions = STRICT) -> tuple[Topic, DelayedDeliveryView]:
    """A topic with one view."""
    topic = Topic(options)
    return topic, topic.view()
