# SPDX-License-Identifier: Apache-2.0
"""The one read of the log that a subscription has under way, and what makes it out of date.

Why one at a time: what it brings is delivered in order, and takes room of the outbound memory while it is read. A read
that failed is tried again for as long as a consumer waits; nothing that comes after it is delivered before.
Where: `NewEntries` and `Redelivery` start reads here. Whatever moves the reading position backwards (seek, rewind, a
new active consumer) bumps `generation`, and the read that was under way then is dropped when it comes back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.dispatch import HEADER_BYTES
from penstock.core.units import MIB

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.ports import DispatchServices, Timer
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.governance.outbound import Reading
    from penstock.storage.results import ReadResult

log = logging.getLogger(__name__)

# One read of the log takes at most this much, and no more than the consumers it is for have room for.
READ_BYTES_MAX: Final = 2 * MIB
# A read of the log that failed is tried again after this long, and after twice as long each time, up to a bound.
READ_RETRY_S: Final = 0.25
READ_RETRY_MAX_S: Final = 5.0


class LogReading:
    """Where a subscription reads, and its read under way."""

    __slots__ = ("_failed", "_large_bytes", "_retry", "_services", "_state", "_wake", "generation", "under_way")

    def __init__(self, state: SubscriptionState, services: DispatchServices, wake: Callable[[], None]) -> None:
        self._state = state
        self._services = services
        self._wake = wake
        self.under_way = False  # ... or it waits before it reads again
        self.generation = 0
        self._failed = 0  # reads in a row
        self._retry: Timer | None = None
        self._large_bytes = 0  # of an entry that was too large for one read; such ones mostly follow one another

    # -- the reading position -----------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        state = self._state
        self.generation += 1
        if self._retry is not None:
            self._retry.cancel()
            self._try_again()
        state.read_entry_id = state.cursor.mark_delete + 1
        if state.view is not None:
            state.view.rewind()

    def step_back(self, entry_id: int) -> None:
        """Read again from this entry on."""
        if entry_id < self._state.read_entry_id:
            self.generation += 1
            self._state.read_entry_id = entry_id

    def source_changed(self) -> None:
        """Entries are read from elsewhere now: what is being read is read again."""
        self.generation += 1
        self._wake()

    # -- reads --------------------------------------------------------------------------------------------------------

    @property
    def bytes_max(self) -> int:
        """How much to read at once: more than usual while entries are large."""
        return max(READ_BYTES_MAX, self._large_bytes)

    def take_room(self, ready: Sequence[Consumer], bytes_max: int) -> Reading:
        """Take room for what is read for these consumers, until it is handed out."""
        return self._services.outlets.outbound.start_read([consumer.outlet for consumer in ready], bytes_max)

    def give_back(self, room: Reading) -> None:
        """Give room back without a read: what was wanted is in memory."""
        self._services.outlets.outbound.end_read(room)

    def wait_for(
        self, future: asyncio.Future[ReadResult], room: Reading, deliver: Callable[[Dispatcher, ReadResult], None]
    ) -> None:
        """Have what this read brings delivered, if it is still wanted then."""
        self.under_way = True
        generation = self.generation
        future.add_done_callback(lambda done: self._on_read(done, room, generation, deliver))

    def _on_read(
        self,
        done: asyncio.Future[ReadResult],
        room: Reading,
        generation: int,
        deliver: Callable[[Dispatcher, ReadResult], None],
    ) -> None:
        services = self._services
        # What was taken for the read is there for what it brought, in this turn of the loop.
        services.outlets.outbound.end_read(room)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._put_off(error)
            services.outlets.outbound_freed()
            return
        self.under_way = False
        if done.cancelled():
            return
        self._failed = 0
        dispatcher = self._state.dispatcher
        if generation == self.generation and not self._state.fenced and dispatcher is not None:
            result = done.result()
            self._large_bytes = result.too_large_bytes or self._large_bytes * _begins_large(result)
            if result.too_large_bytes:
                for consumer in dispatcher.ready():
                    consumer.outlet.has_no_room(result.too_large_bytes + HEADER_BYTES, consumer)
            deliver(dispatcher, result)
        self._wake()
        services.outlets.outbound_freed()

    def _put_off(self, error: BaseException) -> None:
        """A read failed: what it was to bring is not lost, but read later."""
        state = self._state
        if not self._failed:  # Said once: the disk may be ill for hours.
            log.error("reading %s for subscription %s failed, trying again: %s", state.topic.text, state.name, error)
        wait_s = min(READ_RETRY_S * 2 ** min(self._failed, 16), READ_RETRY_MAX_S)
        self._failed += 1
        self._retry = self._services.loop.call_later(wait_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.under_way = False
        self._wake()


def _begins_large(result: ReadResult) -> bool:
    return not result.batches or result.batches[0].lengths[0] > READ_BYTES_MAX
