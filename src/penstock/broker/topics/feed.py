# SPDX-License-Identifier: Apache-2.0
"""What happens to the topics of a namespace: created, deleted, in that order and once each.

Why events have a number and a written form: whoever listens may be in another process, with a stream of bytes between.
From the number it sees that it missed something, and lists anew; from the form's version, that it cannot read it.
Where: the directory tells the feed when a topic has become visible, or is gone; shared listings and whoever else wants
to know listen to one namespace.
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
    """A topic has come, or gone."""

    number: int  # one more than that of the event before, in any namespace of this broker
    topic: str  # in full; a partition by itself
    created: bool

    def encode(self) -> bytes:
        """For another process: JSON, on one line."""
        form = {"form": FORM, "number": self.number, "topic": self.topic, "created": self.created}
        return json.dumps(form, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> TopicEvent:
        """Read what `encode` wrote. Raises ValueError for anything else, later forms among it."""
        form = json.loads(data)
        match form:
            case {"form": 1, "number": int(number), "topic": str(topic), "created": bool(created)}:
                return cls(number, topic, created)
        raise ValueError(f"no event of form {FORM}: {data[:200]!r}")


class TopicFeed:
    """Tells listeners at once, in the order in which they came."""

    def __init__(self) -> None:
        self.told = 0  # the number of the last event
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

    def tell(self, topic: str, *, created: bool) -> None:
        """A topic has come, or gone. A listener that fails does not keep the others from hearing of it."""
        self.told += 1
        event = TopicEvent(self.told, topic, created)
        namespace = topic.partition("://")[2].rpartition("/")[0]
        for listener in list(self._listeners.get(namespace, {}).values()):
            try:
                listener(event)
            except Exception:
                log.exception("a listener of namespace %s failed on %s", namespace, event)
