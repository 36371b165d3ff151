# SPDX-License-Identifier: Apache-2.0
"""What is stored of partitioned topics: how many partitions a name has, and what therefore cannot be a topic.

A partitioned topic is a document of the catalog under its full name: `{"partitions": N, "properties": {}, "policies":
{}}`. Its partitions are topics like any other, called `NAME-partition-I`; the name itself is none, and nobody can
produce to it. A partition is made when the partitioned topic is, or when somebody first uses it.

Where: the directory asks before it creates a topic; `partitions` changes what is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import NotAllowed, NotFound, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.broker.topics.places import Places
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog

KIND: Final = "partitioned"


class PartitionedTopics:
    """Partitioned topics, as they are stored."""

    def __init__(self, catalog: Catalog, places: Places) -> None:
        self._catalog = catalog
        self._places = places

    def count(self, name: TopicName) -> int:
        """How many partitions this name has; 0 when it is not partitioned."""
        document = self._catalog.documents(KIND).get(str(name))
        return int(document["partitions"]) if document is not None else 0

    def names(self, name: TopicName) -> list[TopicName]:
        """Its partitions, by index, whether or not they were made yet; none when it is not partitioned."""
        return [name.of_partition(index) for index in range(self.count(name))]

    def of_namespace(self, namespace: str, domain: str) -> Iterator[str]:
        """Full names of the partitioned topics in a namespace."""
        start = f"{domain}://{namespace}/"
        return (name for name in self._catalog.documents(KIND) if name.startswith(start))

    def document(self, name: TopicName) -> Mapping[str, Any]:
        """What is stored of it. Raises NotFound when it is not partitioned, or being deleted."""
        document = self._catalog.documents(KIND).get(str(name))
        if document is None or str(name) in self._places.closing:
            raise NotFound(f"Partitioned Topic {name} not found")
        return document

    def check_usable(self, name: TopicName, *, exists: bool) -> None:
        """Raises NotAllowed when partitions keep this name from being a topic; TopicNotFound while they are deleted."""
        if str(name.parent) in self._places.closing:
            raise TopicNotFound(str(name))
        if name.partition < 0:
            if self.count(name):
                raise NotAllowed(f"Found partitioned metadata for non-partitioned topic: {name}")
            return
        partitions = self.count(name.parent)
        if exists and not partitions:
            return  # Made by an earlier version, or left when its partitioned topic went.
        if not partitions:
            raise NotAllowed(f"Partition metadata not found for the partitioned topic: {name}")
        if name.partition >= partitions:
            raise NotAllowed(f"Illegal topic partition name {name} with max allowed {partitions} partitions")
