# SPDX-License-Identifier: Apache-2.0
"""Watching the topics of a namespace that match a pattern: one client's WATCH_TOPIC_LIST.

Why no queue of updates: a watcher holds the list that its client was told, which it shares with all who were told the
same, and what there is to say is the difference to the list in force. So nothing overflows, whatever comes and goes
meanwhile; a client that reads slowly hears less often, and always the truth.
Where: discovery makes watchers; the shared listing wakes them, the session holds and stops them.

- The watcher listens before it lists: no event falls between the two.
- One thing is said at a time, and SUCCESS before any update. What is said next begins where the last one ended.
- Memory that is not there now is asked for again, with a back-off of this watcher's own: for SUCCESS until a deadline
  before which no client gives up; for an update as long as the client is there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.topics.listing_blocks import Block, Step
from penstock.core.backoff import Backoff
from penstock.core.errors import ServiceNotReady
from penstock.core.units import NS_PER_S
from penstock.net.topic_list_limiter import (
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
    from penstock.governance.memory_row import MemoryRow
    from penstock.net.connection import Connection
    from penstock.net.topic_list_limiter import Owner

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 25.0


class TopicListWatcher:
    """What one client wants to know of one namespace, and what it was told."""

    def __init__(
        self,
        watcher_id: int,
        shared: SharedListing,
        owner: Owner,
        *,
        connection: Connection,
        memory: MemoryRow,
        clock: Clock,
        chance: Random,
    ) -> None:
        """Args: memory: to which it is charged. chance: spreads what it asks for again."""
        self.known: Listing | None = None  # what the client was told; None: nothing yet
        self.charged_bytes = 0  # to the memory of sessions
        self._connection = connection
        self._memory = memory
        self._clock = clock
        self._watcher_id = watcher_id
        self._owner = owner
        self._shared = shared
        self._shared.keep(self)
        self._backoff = Backoff(chance, first_s=RETRY_FIRST_S, last_s=RETRY_LAST_S)
        self._said = self._sent = 0  # answers and updates: queued, and passed on by the transport
        self._answering: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def namespace(self) -> str:
        """Whose topics it watches."""
        return self._shared.namespace

    def stop(self) -> None:
        """Say nothing more."""
        for task in (self._answering, self._telling):
            if task is not None:
                task.cancel()
        self._telling = None
        self._shared.leave(self)
        self._memory.give_back(self.charged_bytes)
        self.charged_bytes = 0

    # -- the answer ---------------------------------------------------------------------------------------------------

    async def answer(self, request_id: int, client_hash: str, deadline_ns: int) -> None:
        """Tell the client that it is watching, and what there is; no update is sent before this.

        Raises:
            PermitError: there was no memory until the deadline, or never can be.
            ServiceNotReady: the watcher was stopped meanwhile.
        """
        if self._telling is not None:
            self._telling.cancel()  # What it would have said is in the list.
            self._telling = None
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
        self.tell()

    async def _answer(self, request_id: int, client_hash: str, deadline_ns: int) -> None:
        clock = self._clock
        while True:
            try:
                await self._say_all(request_id, client_hash, deadline_ns)
            except (PermitAcquireTimeout, PermitAcquireQueueFull):
                wait_s = self._backoff.next_s()
                if clock.monotonic_ns() + wait_s * NS_PER_S >= deadline_ns:
                    raise
                await asyncio.sleep(wait_s)
            else:
                self._backoff.reset()
                return

    async def _say_all(self, request_id: int, client_hash: str, deadline_ns: int) -> None:
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

    def tell(self) -> None:
        """Tell the client what it does not know, unless it has something to read already: then when it has drained."""
        if self.known is not None and self._telling is None and self._answering is None and self._may_say_more():
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    def is_ready(self) -> bool:
        """Whether the client was answered, and has taken what was said before.

        Without the latter, each topic that comes would leave an update of its own behind a list that is being read.
        """
        return self.known is not None and self._said == self._sent and self._connection.writable

    def _may_say_more(self) -> bool:
        return self.is_ready() and self._shared.is_news_to(self)

    def _was_sent(self) -> None:
        self._sent += 1
        self.tell()

    async def _tell(self) -> None:
        try:
            while self._may_say_more():
                await self._tell_next()
        except PermitError as error:
            log.debug("watcher %d of %s says no more: %s", self._watcher_id, self._connection.peer, error)
        except Exception:
            log.exception("watcher %d of %s failed", self._watcher_id, self._connection.peer)
        self._telling = None

    async def _tell_next(self) -> None:
        """One update, or a wait for the memory that it takes."""
        try:
            await self._shared.latest(self._owner)
            assert self.known is not None, "news before the answer"
            step = self._shared.step(self.known)
            if step is not None and step.written:
                head = listings.update_head(self._watcher_id, step.after.digest, len(step.written))
                await self._shared.write(
                    self._connection, head, Step.told, (step,), owner=self._owner, passed=self._was_sent
                )
                self._said += 1
            if step is not None:
                self.known = step.after
                self._shared.has_told(self)
        except (PermitAcquireCancelled, PermitAcquireAlreadyClosed):
            raise  # The client is gone, or the broker goes.
        except PermitError:
            await asyncio.sleep(self._backoff.next_s())
        else:
            self._backoff.reset()
