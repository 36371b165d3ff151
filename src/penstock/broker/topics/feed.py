# SPDX-License-Identifier: Apache-2.0
"""The feed of topics created and deleted in a namespace, in order and exactly once.

Why events have a number and an encoding: a listener may be in another process, behind a byte stream. A gap in the
numbers tells it that it missed events and must list again; the encoding's version tells it whether it can decode them.
Where: the directory reports topics that become visible or are deleted; shared listings listen to one namespace each.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

FORM: Final = 1


class TopicEvent(NamedTuple):
    """A topic was created or deleted."""

    number: int  # one more than the previous event's, over all namespaces of this broker
    topic: str  # full name; a partition counts as a topic
    created: bool

    def encode(self) -> bytes:
        """One line of JSON, for another process."""
        form = {"form": FORM, "number": self.number, "topic": self.topic, "created": self.created}
        return json.dumps(form, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> TopicEvent:
        """Decode the output of `encode`. Raises ValueError for anything else, including later versions."""
        form = json.loads(data)
        match form:
            case {"form": 1, "number": int(number), "topic": str(topic), "created": bool(created)}:
                return cls(number, topic, created)
        raise ValueError(f"no event of form {FORM}: {data[:200]!r}")


class TopicFeed:
    """Calls listeners immediately, in the order in which they were added."""

    def __init__(self) -> None:
        self.last_number = 0  # the number of the last event
        self._listeners: dict[str, dict[int, Callable[[TopicEvent], None]]] = {}
        self._next_key = 0

    def listen(self, namespace: str, listener: Callable[[TopicEvent], None]) -> Callable[[], None]:
        """Call `listener` for each event in `tenant/namespace`. Call the returned function to unsubscribe."""
        key = self._next_key
        self._next_key += 1
        self._listeners.setdefault(namespace, {})[key] = listener

        def stop() -> None:
            listeners = self._listeners.get(namespace, {})
            listeners.pop(key, None)
            if not listeners:
                self._listeners.pop(namespace, None)

        return stop

    def report(self, topic: str, *, created: bool) -> None:
        """Report a topic as created or deleted. An exception of one listener does not affect the others."""
        self.last_number += 1
        event = TopicEvent(self.last_number, topic, created)
        namespace = topic.partition("://")[2].rpartition("/")[0]
        for listener in list(self._listeners.get(namespace, {}).values()):
            try:
                listener(event)
            except Exception:
                log.exception("a listener of namespace %s failed on %s", namespace, event)
