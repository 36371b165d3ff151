# SPDX-License-Identifier: Apache-2.0
"""Cancelling a delayed message: it is not delivered to any current or future subscription.

Why by acknowledgement: a message that every subscription has acknowledged is not delivered, even after a restart, and
its space is reclaimed like any other's. The cancellation is also stored with the topic until the entry is trimmed,
because a subscription that is created or moved back must not deliver the message.
Where: called by the admin API; `topic_states` stores; new and reset cursors call `cancelled_of`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.topics.topic_states import CANCELLED, cancelled_of
from penstock.core.errors import NotAllowed, NotFound, PreconditionFailed
from penstock.wire import metadata

if TYPE_CHECKING:
    from penstock.broker.administration.finder import Finder
    from penstock.broker.changes import Changes
    from penstock.broker.log_reads import LogReads
    from penstock.broker.subscriptions.acknowledging import CursorSaves
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_states import TopicStates
    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.core.position import Position

log = logging.getLogger(__name__)

# Maximum of cancelled messages per topic: each takes a few bytes of a document that is stored as a whole.
CANCELLED_MAX: Final = 10_000


class DelayedAdmin:
    """Admin operations on delayed messages."""

    def __init__(
        self,
        *,
        changes: Changes,
        reads: LogReads,
        cursors: CursorSaves,
        states: TopicStates,
        clock: Clock,
        finder: Finder,
    ) -> None:
        self._changes = changes
        self._reads = reads
        self._cursors = cursors
        self._states = states
        self._clock = clock
        self._finder = finder

    async def cancel(self, name: TopicName, position: Position) -> None:
        """Cancel a delayed message; returns when that is durable.

        Raises:
            NotAllowed: the topic is not persistent.
            NotFound: there is no such message.
            PreconditionFailed: it is due or was never delayed, or too many messages are cancelled.
            MetadataFailed: it could not be stored.
        """
        if not name.is_persistent:
            raise NotAllowed(f"Cancel a delayed message on a non-persistent topic is not allowed: {name} keeps none")
        topic = await self._finder.topic(name, "Cancel a delayed message")
        ours = position.ledger_id == topic.ledger_id and position.entry_id <= topic.last_entry_id
        entry = await self._reads.read_entry(topic.ledger_id, position.entry_id) if ours else None
        if entry is None:
            raise NotFound(f"Message not found: {name} has no {position.ledger_id}:{position.entry_id}")
        deliver_at_ms, now_ms = metadata.routing(memoryview(entry)).deliver_at_ms, self._clock.wall_ms()
        if deliver_at_ms <= now_ms:
            said = f"was due {now_ms - deliver_at_ms} ms ago" if deliver_at_ms else "was not delayed"
            raise PreconditionFailed(f"message {position.ledger_id}:{position.entry_id} of {name} {said}: too late")
        await self._changes.finish(self._cancel(topic, position.entry_id))

    async def _cancel(self, topic: Topic, entry_id: int) -> None:
        known = [one for one in cancelled_of(self._states.of(topic.text)) if one >= topic.first_entry_id]
        if entry_id not in known:
            if len(known) >= CANCELLED_MAX:
                raise PreconditionFailed(
                    f"{len(known)} messages of {topic.text} are cancelled and not given up yet; "
                    f"let subscriptions acknowledge what is before them, or trim the topic"
                )
            await self._states.change(topic, **{CANCELLED: sorted((*known, entry_id))})
        for subscription in topic.subscriptions.values():
            subscription.moves.acknowledge_one(entry_id)
        await self._cursors.save(*topic.subscriptions.values())
        log.info("delayed message %d:%d of %s cancelled", topic.ledger_id, entry_id, topic.text)
