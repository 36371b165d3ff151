# SPDX-License-Identifier: Apache-2.0
"""Finishes what several brokers do together and what was interrupted: deletions, and added partitions.

Why: a broker that does not answer, or a crash, would leave half of it for ever. What is done is noted in the shared
metadata first (docs/adr/0080, 0095). Whoever noted it goes on when brokers return, every ten seconds, or when it is
started again itself.
Where: `Broker` starts it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound, PenstockError
from penstock.core.names import TopicName
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from penstock.broker.changes import Changes
    from penstock.broker.topics.deleting import Deleting
    from penstock.broker.topics.partitions import Partitions
    from penstock.core.membership import Membership

log = logging.getLogger(__name__)

# A broker that returns is heard of. This is for one that was there, and did not answer.
RETRY_NS: Final = 10 * NS_PER_S


class Unfinished:
    """Operations that this broker has to finish. All methods are called on the event loop."""

    def __init__(self, *, changes: Changes, deleting: Deleting, partitions: Partitions, membership: Membership) -> None:
        self._changes = changes
        self._deleting = deleting
        self._partitions = partitions
        self._membership = membership
        self._finishing = self._stopped = False
        self._look_ns = 0

    def start(self) -> None:
        """Finish what the last run has begun, and from now on whatever can be finished."""
        self._membership.listen(self._members_changed)
        self._members_changed()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    def tick(self, now_ns: int) -> None:
        """Try again now and then: a broker may be there that did not answer."""
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + RETRY_NS
            self._look()

    def _members_changed(self) -> None:
        self._partitions.find_unfinished()
        self._look()

    def _look(self) -> None:
        deletions, creations = self._deleting.unfinished(), self._partitions.unfinished()
        if (deletions or creations) and not (self._finishing or self._stopped):
            self._finishing = True
            self._changes.finish(self._finish(deletions, creations))

    async def _finish(self, deletions: Iterable[str], creations: Iterable[str]) -> None:
        try:
            for name in deletions:
                await _finish_one(f"the deletion of {name}", self._deleting.finish, name)
            for name in creations:
                await _finish_one(f"adding partitions to {name}", self._create, name)
        finally:
            self._finishing = False

    async def _create(self, name: str) -> None:
        await self._partitions.finish_creation(TopicName.parse(name))


async def _finish_one(what: str, finish: Callable[[str], Awaitable[None]], name: str) -> None:
    try:
        await finish(name)
    except NotFound:
        log.info("%s ends: it does not exist any more", what)
    except PenstockError as error:
        log.warning("%s is not finished, and is tried again: %s", what, error)
    else:
        log.info("%s is finished", what)
