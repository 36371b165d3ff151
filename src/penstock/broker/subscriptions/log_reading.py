# SPDX-License-Identifier: Apache-2.0
"""Log reads of one subscription, one at a time, and their cancellation.

Why one at a time: entries are delivered in order, and a read takes outbound memory. A failed read is repeated as long
as consumers wait; nothing after it is delivered before.
Where: `NewEntries` and `Redelivery` start reads here. Moving the read position backwards (seek, rewind, a new active
consumer) increments `generation`; the result of a read of an earlier generation is dropped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.dispatch import HEADER_BYTES
from penstock.core.units import KIB

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

# Maximum size of one read, two of the log; it is also limited by the room of the consumers.
READ_BYTES_MAX: Final = 2_176 * KIB
# Delay before a failed read is repeated; it doubles each time, up to a maximum.
READ_RETRY_S: Final = 0.25
READ_RETRY_MAX_S: Final = 5.0


class LogReading:
    """The read position of a subscription, and its running read."""

    __slots__ = (
        "_failed",
        "_large_bytes",
        "_retry",
        "_services",
        "_state",
        "_wake",
        "failing_since_ns",
        "generation",
        "under_way",
    )

    def __init__(self, state: SubscriptionState, services: DispatchServices, wake: Callable[[], None]) -> None:
        self._state = state
        self._services = services
        self._wake = wake
        self.under_way = False  # or waiting to repeat a failed read
        self.generation = 0
        self.failing_since_ns: int | None = None  # since when reads fail; None after one that did not
        self._failed = 0  # consecutive failed reads
        self._retry: Timer | None = None
        self._large_bytes = 0  # size of an entry that was too large for one read; usually several follow one another

    # -- the read position --------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Move the read position to the first unacknowledged entry."""
        state = self._state
        self.generation += 1
        if self._retry is not None:
            self._retry.cancel()
            self._try_again()
        state.read_entry_id = state.cursor.mark_delete + 1
        if state.view is not None:
            state.view.rewind()

    def step_back(self, entry_id: int) -> None:
        """Move the read position back to this entry."""
        if entry_id < self._state.read_entry_id:
            self.generation += 1
            self._state.read_entry_id = entry_id

    def source_changed(self) -> None:
        """Entries must be read from another ledger: repeat the running read."""
        self.generation += 1
        self._wake()

    # -- reads --------------------------------------------------------------------------------------------------------

    @property
    def bytes_max(self) -> int:
        """Maximum size of the next read; larger than usual while entries are large."""
        return max(READ_BYTES_MAX, self._large_bytes)

    def charge(self, ready: Sequence[Consumer], bytes_max: int) -> Reading:
        """Charge outbound memory for a read for these consumers."""
        return self._services.outlets.outbound.charge_read([consumer.outlet for consumer in ready], bytes_max)

    def release(self, room: Reading) -> None:
        """Release the charge without a read, because the entries were in memory."""
        self._services.outlets.outbound.release_read(room)

    def wait_for(
        self, future: asyncio.Future[ReadResult], room: Reading, deliver: Callable[[Dispatcher, ReadResult], None]
    ) -> None:
        """Deliver the result of this read, if it is still of the current generation."""
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
        # The charged memory is used by the result, in this turn of the loop.
        services.outlets.outbound.release_read(room)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._put_off(error)
            services.outlets.outbound_freed()
            return
        self.under_way = False
        if done.cancelled():
            return
        self._failed, self.failing_since_ns = 0, None
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
        """Repeat a failed read later; no entries are lost."""
        state = self._state
        if not self._failed:  # Logged once: the disk may fail for hours.
            self.failing_since_ns = self._services.clock.monotonic_ns()
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
