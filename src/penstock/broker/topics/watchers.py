# SPDX-License-Identifier: Apache-2.0
"""Watching the topics of a namespace that match a pattern: one client's WATCH_TOPIC_LIST.

Why no queue of updates: what a client was told is known, and what has happened since is one entry per topic, whatever
came and went meanwhile. So nothing overflows, a client that reads slowly hears less often, and always the truth.
Where: discovery makes watchers, the directory's feed tells them, the session holds and stops them.

The watcher listens before it lists: no event falls between the two.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from penstock.broker.topics.listing import list_topics, topics_hash
from penstock.core.names import is_system_topic
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.commands.session import Session
    from penstock.broker.topics.feed import TopicEvent


class TopicListWatcher:
    """What one client wants to know of one namespace, and what it was told."""

    def __init__(self, session: Session, watcher_id: int, namespace: str, matches: Callable[[str], bool]) -> None:
        self._session = session
        self._watcher_id = watcher_id
        self._namespace = namespace
        self._matches = matches
        self._known: list[str] = []  # sorted; what the client was told
        self._changes: dict[str, bool] = {}  # what happened since, by topic: whether it is there now
        self._answered = False
        self._scheduled = False
        self.stop = session.broker.topics.feed.listen(namespace, self._heard)

    async def answer(self, request_id: int, client_hash: str) -> None:
        """Tell the client that it is watching, and what there is; nothing is said of later events before this."""
        self._answered = False
        self._changes.clear()
        names = await list_topics(self._session.broker.topics.names, self._namespace, matches=self._matches)
        # What happened while they were gathered is told as an update, right after.
        self._known = names
        digest = topics_hash(names)
        self._session.reply(
            codec.watch_topic_list_success(request_id, self._watcher_id, () if digest == client_hash else names, digest)
        )
        self._answered = True
        self.tell()

    def _heard(self, event: TopicEvent) -> None:
        if event.topic.startswith("persistent:") and not is_system_topic(event.topic) and self._matches(event.topic):
            if self._answered and event.created == self._knows(event.topic):
                # As the client knows it: topics that come and go while it does not read leave nothing behind.
                self._changes.pop(event.topic, None)
                return
            self._changes[event.topic] = event.created
            self.tell()

    def tell(self) -> None:
        """Tell the client what has changed, once in this turn of the loop, unless it has too much to read already."""
        if self._changes and not self._scheduled:
            self._scheduled = True
            self._session.broker.loop.call_soon(self._update)

    def _update(self) -> None:
        self._scheduled = False
        connection = self._session.connection
        if not (self._answered and connection.is_open and connection.writable):
            return  # `answer`, or the connection when it has drained, comes back to it.
        changes, self._changes = self._changes, {}
        new = [topic for topic, there in changes.items() if there and not self._knows(topic)]
        deleted = [topic for topic, there in changes.items() if not there and self._knows(topic)]
        if not (new or deleted):
            return
        for topic in new:
            insort(self._known, topic)
        for topic in deleted:
            del self._known[bisect_left(self._known, topic)]
        self._session.reply(codec.watch_topic_update(self._watcher_id, new, deleted, topics_hash(self._known)))

    def _knows(self, topic: str) -> bool:
        at = bisect_left(self._known, topic)
        return at < len(self._known) and self._known[at] == topic
