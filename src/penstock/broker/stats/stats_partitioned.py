# SPDX-License-Identifier: Apache-2.0
"""Statistics of a partitioned topic: the sums over its partitions, as Pulsar computes them.

Where: called by the admin API. The sums are pure functions of dicts that `stats` made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.elsewhere import of_topic
from penstock.broker.stats import shapes
from penstock.broker.stats.topic_stats import NO_COMPACTION, StatsOptions
from penstock.broker.topics.partitioned import KIND
from penstock.broker.topics.partitions import in_turns
from penstock.core.errors import NotFound, ServiceNotReady

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.stats.topic_stats import InternalStats, PartitionCounts, TopicStats
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.placement import Placement
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog

Json = dict[str, Any]
Part = Mapping[str, Any]

_ADDS: Final = shapes.adding(
    shapes.TopicStats,
    shapes.PublisherStats,
    shapes.SubscriptionStats,
    shapes.ConsumerStats,
    shapes.CompactionStats,
)


class PartitionedStats:
    """Statistics of partitioned topics."""

    def __init__(
        self,
        *,
        stats: TopicStats,
        internal: InternalStats,
        catalog: Catalog,
        topics: TopicDirectory,
        partitions: PartitionCounts,
        placement: Placement,
        elsewhere: Elsewhere,
    ) -> None:
        self._stats = stats
        self._internal = internal
        self._catalog = catalog
        self._topics = topics
        self._partitions = partitions
        self._placement = placement
        self._elsewhere = elsewhere

    async def of_topic(
        self, name: TopicName, options: StatsOptions | None = None, *, per_partition: bool = True
    ) -> Json:
        """Sums over the partitions; with `per_partition`, also each of them.

        Without the partitions of brokers that do not answer, which are named. Raises NotFound if it is not partitioned,
        ServiceNotReady if nobody answers.
        """
        options = options or StatsOptions()
        found, silent = await self._of_each(
            name, lambda one: self._stats.of_topic(one, options), f"/stats?{_query(options)}"
        )
        return {
            **added(list(found.values())),
            "metadata": self.described(name),
            "partitions": found if per_partition else {},
            **silent,
        }

    async def internal(self, name: TopicName) -> shapes.PartitionedInternalStats:
        """Internal statistics of each partition. Errors and partitions without an answer are as those of `of_topic`."""
        found, silent = await self._of_each(name, self._internal.of_topic, "/internalStats")
        return {"metadata": self.described(name), "partitions": found, **silent}

    async def info(self, name: TopicName) -> shapes.InternalInfo | shapes.PartitionedInternalInfo:
        """Stored metadata of a topic, or of each of its partitions. Raises TopicNotFound."""
        if not self._partitions.count(name):
            return await self._internal.info(name)
        found, silent = await self._of_each(name, self._internal.info, "/internal-info")
        return {"partitions": found, **silent}

    async def _of_each(
        self, name: TopicName, here: Callable[[TopicName], Awaitable[Any]], there: str
    ) -> tuple[dict[str, Any], shapes.Unanswered]:
        """JSON of each partition, made `here` or asked of its broker; and the partitions whose brokers do not answer.

        Raises NotFound if it is not partitioned, ServiceNotReady if nobody answers.
        """
        found: dict[str, Any] = {}
        failures: dict[str, ServiceNotReady] = {}

        async def read(one: TopicName) -> None:
            broker = self._placement.broker_of(one)
            try:
                if broker is None or broker == self._placement.own:
                    found[str(one)] = await here(one)
                else:
                    found[str(one)] = await self._elsewhere.read(broker, of_topic(one, there))
            except ServiceNotReady as error:
                failures[str(one)] = error

        existing = self._existing(name)
        await in_turns(read, existing)
        if failures and not found:
            raise next(iter(failures.values()))
        ordered = {str(one): found[str(one)] for one in existing if str(one) in found}
        return ordered, {"unansweredPartitions": sorted(failures)} if failures else {}

    def described(self, name: TopicName) -> shapes.PartitionedTopicMetadata:
        """Metadata of a partitioned topic, as shown in its statistics. Raises NotFound if it is not partitioned."""
        document = self._catalog.documents(KIND).get(str(name))
        if document is None:
            raise NotFound(f"Partitioned Topic {name} not found")
        metadata: shapes.PartitionedTopicMetadata = {"partitions": int(document["partitions"]), "deleted": False}
        if document.get("properties"):
            metadata["properties"] = dict(document["properties"])
        return metadata

    def _existing(self, name: TopicName) -> list[TopicName]:
        named = self._partitions.names(name)
        if not named:
            raise NotFound(f"Partitioned Topic {name} not found")
        return [one for one in named if self._topics.exists(one)]


def _query(options: StatsOptions) -> str:
    given = {
        "subscriptionBacklogSize": options.subscription_backlog_size,
        "getEarliestTimeInBacklog": options.earliest_time,
        "excludePublishers": options.exclude_publishers,
        "excludeConsumers": options.exclude_consumers,
    }
    return "&".join(f"{name}={str(value).lower()}" for name, value in given.items())


# -- sums -------------------------------------------------------------------------------------------------------------


def added(parts: Sequence[Part]) -> Json:
    """TopicStats of several topics combined; zeros for no topic."""
    total = _added(parts)
    total["publishers"] = _added_by_place([part["publishers"] for part in parts])
    total["subscriptions"] = _added_subscriptions([part["subscriptions"] for part in parts])
    replication = [part.get("replication") or {} for part in parts]
    total["replication"] = {
        cluster: _added([part[cluster] for part in replication if cluster in part])
        for cluster in dict.fromkeys(cluster for part in replication for cluster in part)
    }
    total["compaction"] = _added([part["compaction"] for part in parts]) or dict(NO_COMPACTION)
    return total


def _added(parts: Sequence[Part]) -> Json:
    """Combine dicts: sums of numbers, `or` of booleans, the first of texts."""
    total: Json = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        if _ADDS.get(key) is shapes.OF_ONE:
            continue
        values = [part[key] for part in parts if key in part]
        if isinstance(values[0], bool):
            total[key] = any(values)
        elif isinstance(values[0], int | float):
            total[key] = _number(key, values)
        elif isinstance(values[0], str):
            total[key] = values[0]
    return total


def _number(key: str, values: Sequence[float]) -> float:
    how = _ADDS.get(key)
    if how is shapes.LEAST:
        return min((value for value in values if value > 0), default=0)
    if how is shapes.MOST:
        return max(values)
    if how is shapes.MEAN:
        counted = [value for value in values if value]
        mean = sum(counted) / len(counted) if counted else 0
        return round(mean) if isinstance(values[0], int) else float(mean)
    return sum(values)


def _added_by_place(lists: Iterable[Sequence[Part]]) -> list[Json]:
    """Combine the first items of all lists, the second items, and so on: a client has one in each partition."""
    rows: list[list[Part]] = []
    for one in lists:
        for place, item in enumerate(one):
            if place == len(rows):
                rows.append([])
            rows[place].append(item)
    return [_member(row) for row in rows]


def _member(row: Sequence[Part]) -> Json:
    """Combine producers or consumers of one client. Producer ids belong to a connection and are not summed."""
    total = _added(row)
    if "producerId" in total:
        total["producerId"] = 0
    return total


def _added_subscriptions(maps: Sequence[Part]) -> Json:
    names = dict.fromkeys(name for one in maps for name in one)
    return {name: _added_subscription([one[name] for one in maps if name in one]) for name in names}


def _added_subscription(parts: Sequence[Part]) -> Json:
    total = _added(parts)
    total["consumers"] = _added_by_place([part["consumers"] for part in parts])
    total["consumersAfterMarkDeletePosition"] = {}
    total["subscriptionProperties"] = dict(parts[0]["subscriptionProperties"])
    return total
