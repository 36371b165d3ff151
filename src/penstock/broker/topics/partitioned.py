# SPDX-License-Identifier: Apache-2.0
"""Stored partitioned topics: their numbers of partitions, and which names cannot be topics because of them.

A partitioned topic is a document of the catalog under its full name: `{"partitions": N, "properties": {}, "policies":
{}}`. Its partitions are topics called `NAME-partition-I`. The name itself is not a topic; producing to it is
impossible. A partition is created with the partitioned topic, or on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import NotAllowed, NotFound, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog

KIND: Final = "partitioned"


class PartitionedTopics:
    """The stored partitioned topics."""

    def __init__(self, catalog: Catalog, resources: NamespaceResources) -> None:
        self._catalog = catalog
        self._resources = resources

    def count(self, name: TopicName) -> int:
        """Number of partitions; 0 if the name is not partitioned."""
        document = self._catalog.documents(KIND).get(str(name))
        return int(document["partitions"]) if document is not None else 0

    def names(self, name: TopicName) -> list[TopicName]:
        """Names of its partitions by index, whether created or not; empty if it is not partitioned."""
        return [name.of_partition(index) for index in range(self.count(name))]

    def of_namespace(self, namespace: str, domain: str) -> Iterator[str]:
        start = f"{domain}://{namespace}/"
        return (name for name in self._catalog.documents(KIND) if name.startswith(start))

    def document(self, name: TopicName) -> Mapping[str, Any]:
        """The stored document. Raises NotFound if it is not partitioned, or is being deleted."""
        document = self._catalog.documents(KIND).get(str(name))
        if document is None or self._resources.is_deleting(str(name)):
            raise NotFound(f"Partitioned Topic {name} not found")
        return document

    def check_usable(self, name: TopicName, *, exists: bool) -> None:
        """Raises NotAllowed if the name is partitioned or no valid partition; TopicNotFound while it is deleted."""
        if self._resources.is_deleting(str(name.parent)):
            raise TopicNotFound(str(name))
        if name.partition < 0:
            if self.count(name):
                raise NotAllowed(f"Found partitioned metadata for non-partitioned topic: {name}")
            return
        partitions = self.count(name.parent)
        if exists and not partitions:
            return  # Created by an earlier version, or left over from a deleted partitioned topic.
        if not partitions:
            raise NotAllowed(f"Partition metadata not found for the partitioned topic: {name}")
        if name.partition >= partitions:
            raise NotAllowed(f"Illegal topic partition name {name} with max allowed {partitions} partitions")
