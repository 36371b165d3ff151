# SPDX-License-Identifier: Apache-2.0
"""How many topics each namespace has, for the maximum that it may have.

Why here: brokers create topics at the same time, and each has its own view of what exists. Only the transaction that
stores a topic sees every other, so the maximum is compared there, in the step that takes the place.
Where: changes of `shared_changes` take and give back places, on the metadata thread.

Persistent topics count, each partition for itself; system topics do not. Partitions that are being created count before
they exist: their partitioned topic says `creating`, the first of them and the number after the last. So a partitioned
topic gets all its partitions or is refused, whatever else is created meanwhile.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import NotAllowed
from penstock.core.names import parent_text
from penstock.core.system_topics import is_system_topic
from penstock.storage.shared_view import PARTITIONED, TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.storage.shared_tables import SharedTables

TOO_MANY_TOPICS: Final = "Exceed maximum number of topics in namespace."
CREATING: Final = "creating"

_PERSISTENT: Final = "persistent://"


class TopicCounts:
    """The numbers of topics of those namespaces that have a maximum.

    A namespace is counted when its maximum is compared first. Afterwards its number is kept up to date, because a
    namespace may have a hundred thousand topics. An exception after a place is taken makes the whole file fail, so
    numbers never have to be taken back.
    """

    def __init__(self, tables: SharedTables) -> None:
        self._tables = tables
        self._counts: dict[str, int] = {}

    def take(self, topic: str, topics_max: int) -> None:
        """Take the place of a topic that is created now. Raises NotAllowed. `topics_max`: 0 for no maximum."""
        namespace = _namespace(topic)
        if (topics_max or namespace in self._counts) and not self._has_place(topic):
            self._take(namespace, 1, topics_max, taken=1)

    def give_back(self, topic: str) -> None:
        """Give back the place of a topic that is deleted now."""
        namespace = _namespace(topic)
        if namespace in self._counts and not self._has_place(topic):
            self._add(namespace, -1)

    def resize(self, topic: str, before: str | None, after: Mapping[str, Any] | None, topics_max: int) -> None:
        """Take and give back the places of partitions, as a partitioned topic is created, changed or deleted now.

        Args:
            topic: its full name.
            before: its document, as JSON; None if it is created.
            after: its new document; None if it is deleted.
            topics_max: maximum number of topics in its namespace; 0: no maximum.

        Raises:
            NotAllowed: it declares more partitions than the namespace has room for.
        """
        namespace = _namespace(topic)
        if not ((topics_max or namespace in self._counts) and _counts(topic)):
            return
        old, new = json.loads(before) if before is not None else {}, after or {}
        if (_declared(old), _creating(old)) == (_declared(new), _creating(new)):
            return
        existing = set(self._partitions(topic))
        declared = _missing(_declared(new), existing) - _missing(_declared(old), existing)
        taken = _missing(_creating(new), existing) - _missing(_creating(old), existing)
        self._take(namespace, max(declared, taken), topics_max, taken=taken)

    def of(self, namespace: str) -> int:
        """Number of topics that count."""
        if namespace not in self._counts:
            return self._counted(namespace)
        return self._counts[namespace]

    # -- inside

    def _take(self, namespace: str, wanted: int, topics_max: int, *, taken: int) -> None:
        """Take places, if there are as many as wanted: partitions that are created on first use take theirs then."""
        if topics_max and wanted > 0:
            count = self.of(namespace)
            if count:  # One without topics may be deleted next, and costs nothing to count again.
                self._counts[namespace] = count
            if count + wanted > topics_max:
                raise NotAllowed(TOO_MANY_TOPICS)
        self._add(namespace, taken)

    def _add(self, namespace: str, taken: int) -> None:
        if namespace in self._counts:
            self._counts[namespace] += taken
            if not self._counts[namespace]:
                del self._counts[namespace]

    def _has_place(self, topic: str) -> bool:
        """Whether a topic takes no place by itself: it does not count, or its partitioned topic has taken it."""
        if not _counts(topic):
            return True
        parent = parent_text(topic)
        if parent == topic:
            return False
        document = self._tables.text(PARTITIONED, parent)
        return document is not None and _index(topic) in _creating(json.loads(document))

    def _counted(self, namespace: str) -> int:
        start = f"{_PERSISTENT}{namespace}/"
        count = sum(map(_counts, self._tables.names(TOPICS, start)))
        for name, document in self._tables.documents_with(PARTITIONED, start, CREATING):
            if _counts(name):
                count += _missing(_creating(document), set(self._partitions(name)))
        return count

    def _partitions(self, topic: str) -> Iterator[int]:
        """The existing partitions of a partitioned topic."""
        found = self._tables.names(TOPICS, f"{topic}-partition-")
        return (_index(name) for name in found if parent_text(name) == topic)


def _counts(topic: str) -> bool:
    return topic.startswith(_PERSISTENT) and not is_system_topic(topic)


def _namespace(topic: str) -> str:
    _, _, tenant, namespace, _ = topic.split("/", 4)
    return f"{tenant}/{namespace}"


def _index(partition: str) -> int:
    return int(partition.rpartition("-")[2])


def _declared(document: Mapping[str, Any]) -> range:
    return range(int(document.get("partitions", 0)))


def _creating(document: Mapping[str, Any]) -> range:
    return range(*document.get(CREATING, (0, 0)))


def _missing(partitions: range, existing: set[int]) -> int:
    return len(partitions) - sum(index in partitions for index in existing)
