# SPDX-License-Identifier: Apache-2.0
"""What happens to the topics of a namespace: created, deleted, in that order and once each.

Where: the directory tells the feed when a topic has become visible, or is gone; watchers listen to one namespace.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class TopicEvent(NamedTuple):
    """A topic has come, or gone."""

    topic: str  # in full; a partition by itself
    created: bool


class TopicFeed:
    """Tells listeners at once, in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: dict[str, dict[int, Callable[[TopicEvent], None]]] = {}
        self._next_key = 0

    def listen(self, namespace: str, listener: Callable[[TopicEvent], None]) -> Callable[[], None]:
        """Be told of every event in `tenant/namespace` from now on, until the callable that this returns is called."""
        key = self._next_key
        self._next_key += 1
        self._listeners.setdefault(namespace, {})[key] = listener

        def stop() -> None:
            listeners = self._listeners.get(namespace, {})
            listeners.pop(key, None)
            if not listeners:
                self._listeners.pop(namespace, None)

        return stop

    def tell(self, event: TopicEvent) -> None:
        """Something happened. A listener that fails does not keep the others from hearing of it."""
        namespace = event.topic.partition("://")[2].rpartition("/")[0]
        for listener in list(self._listeners.get(namespace, {}).values()):
            try:
                listener(event)
            except Exception:
                log.exception("a listener of namespace %s failed on %s", namespace, event)
