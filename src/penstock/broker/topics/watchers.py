# SPDX-License-Identifier: Apache-2.0
"""One client's WATCH_TOPIC_LIST: watches the topics of a namespace that match a pattern.

Why no queue of updates: a watcher keeps the list that its client received, which it shares with other watchers. The
next update is the difference to the current list. So nothing overflows; a client that reads slowly gets fewer updates,
and each is correct.
Where: discovery makes watchers; the shared listing notifies them, the session owns and stops them.

Invariants:
- The watcher registers before it lists, so no event is missed in between.
- One frame is sent at a time, SUCCESS before any update. Each update starts from the list of the previous frame.
- A refused memory request is repeated with a back-off of this watcher's own: for SUCCESS until a deadline earlier than
  any client's timeout; for an update as long as the client is connected.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.topics.listing_blocks import Block, Step
from penstock.core.clock import Backoff
from penstock.core.errors import ServiceNotReady
from penstock.core.units import NS_PER_S
from penstock.net.listing_memory import (
    PermitAcquireAlreadyClosed,
    PermitAcquireCancelled,
    PermitAcquireQueueFull,
    PermitAcquireTimeout,
    PermitError,
)
from penstock.wire import listings

if TYPE_CHECKING:
    from random import Random

    from penstock.broker.topics.listing_blocks import Listing
    from penstock.broker.topics.shared_listings import SharedListing
    from penstock.core.clock import Clock
    from penstock.governance.budget import Row
    from penstock.net.connection import Connection
    from penstock.net.listing_memory import Owner

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 25.0


class TopicListWatcher:
    """One client's watch of one namespace, and the list that the client received."""

    def __init__(
        self,
        watcher_id: int,
        shared: SharedListing,
        owner: Owner,
        *,
        connection: Connection,
        memory: Row,
        clock: Clock,
        chance: Random,
    ) -> None:
        """Args: memory: is charged for the watcher. chance: randomizes the back-off of retries."""
        self.known: Listing | None = None  # the list that the client received; None: none yet
        self.charged_bytes = 0  # charged to the sessions' memory
        self._connection = connection
        self._memory = memory
        self._clock = clock
        self._watcher_id = watcher_id
        self._owner = owner
        self._shared = shared
        self._shared.add_watcher(self)
        self._backoff = Backoff(chance, first_s=RETRY_FIRST_S, last_s=RETRY_LAST_S)
        self._said = self._sent = 0  # answers and updates: queued, and sent by the transport
        self._answering: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def namespace(self) -> str:
        return self._shared.namespace

    def stop(self) -> None:
        for task in (self._answering, self._sending):
            if task is not None:
                task.cancel()
        self._sending = None
        self._shared.remove_watcher(self)
        self._memory.release(self.charged_bytes)
        self.charged_bytes = 0

    # -- the answer ---------------------------------------------------------------------------------------------------

    async def answer(self, request_id: int, client_hash: str, deadline_ns: int) -> None:
        """Send SUCCESS with the list; no update is sent before it.

        Raises:
            PermitError: there was no memory until the deadline, or the list can never fit.
            ServiceNotReady: the watcher was stopped meanwhile.
        """
        if self._sending is not None:
            self._sending.cancel()  # The list contains the pending update.
            self._sending = None
        answering = asyncio.get_running_loop().create_task(self._answer(request_id, client_hash, deadline_ns))
        self._answering = answering
        try:
            await asyncio.wait((answering,))
        finally:
            answering.cancel()
            self._answering = None
        if answering.cancelled():
            raise ServiceNotReady(f"watcher {self._watcher_id} was closed before it watched")
        answering.result()
        self.notify()

    async def _answer(self, request_id: int, client_hash: str, deadline_ns: int) -> None:
        clock = self._clock
        while True:
            try:
                await self._send_list(request_id, client_hash, deadline_ns)
            except (PermitAcquireTimeout, PermitAcquireQueueFull):
                wait_s = self._backoff.next_s()
                if clock.monotonic_ns() + wait_s * NS_PER_S >= deadline_ns:
                    raise
                await asyncio.sleep(wait_s)
            else:
                self._backoff.reset()
                return

    async def _send_list(self, request_id: int, client_hash: str, deadline_ns: int) -> None:
        async with self._shared.asked(self._owner, deadline_ns) as listing:
            blocks = () if client_hash == listing.digest else listing.blocks
            shared_bytes = listing.written_bytes if blocks else 0
            head = listings.watching_head(request_id, self._watcher_id, listing.digest, shared_bytes)
            await self._shared.write(
                self._connection,
                head,
                Block.watched,
                blocks,
                owner=self._owner,
                deadline_ns=deadline_ns,
                passed=self._was_sent,
            )
            self._said += 1
            self.known = listing

    # -- updates ------------------------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Send an update. If the client has unread bytes, the update is sent when they have drained."""
        if self.known is not None and self._sending is None and self._answering is None and self._may_send():
            self._sending = asyncio.get_running_loop().create_task(self._send_updates())

    def is_ready(self) -> bool:
        """Whether the client was answered and has received the previous frames.

        Otherwise each new topic would queue an update of its own behind a list that is being read.
        """
        return self.known is not None and self._said == self._sent and self._connection.writable

    def _may_send(self) -> bool:
        return self.is_ready() and self._shared.has_changes_for(self)

    def _was_sent(self) -> None:
        self._sent += 1
        self.notify()

    async def _send_updates(self) -> None:
        try:
            while self._may_send():
                await self._send_next()
        except PermitError as error:
            log.debug("watcher %d of %s sends no more updates: %s", self._watcher_id, self._connection.peer, error)
        except Exception:
            log.exception("watcher %d of %s failed", self._watcher_id, self._connection.peer)
        self._sending = None

    async def _send_next(self) -> None:
        """Send one update, or schedule a retry if its memory was refused."""
        try:
            await self._shared.latest(self._owner)
            assert self.known is not None, "an update before the answer"
            step = self._shared.step(self.known)
            if step is not None and step.written:
                head = listings.update_head(self._watcher_id, step.after.digest, len(step.written))
                await self._shared.write(
                    self._connection, head, Step.encoded, (step,), owner=self._owner, passed=self._was_sent
                )
                self._said += 1
            if step is not None:
                self.known = step.after
                self._shared.was_notified(self)
        except (PermitAcquireCancelled, PermitAcquireAlreadyClosed):
            raise  # The client disconnected, or the broker stops.
        except PermitError:
            await asyncio.sleep(self._backoff.next_s())
        else:
            self._backoff.reset()
