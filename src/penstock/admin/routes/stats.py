# SPDX-License-Identifier: Apache-2.0
"""Routes of topic statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from penstock.admin import models_stats as models
from penstock.admin.gateway import Ask
from penstock.admin.routing import READS_ENTRY, TOPIC, Topic
from penstock.broker.stats.topic_stats import StatsOptions

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway


def _options(
    *,
    precise: Annotated[bool, Query(alias="getPreciseBacklog", description="The backlog is always precise")] = False,
    subscription_backlog_size: Annotated[bool, Query(alias="subscriptionBacklogSize")] = True,
    earliest_time: Annotated[bool, Query(alias="getEarliestTimeInBacklog")] = False,
    exclude_publishers: Annotated[bool, Query(alias="excludePublishers")] = False,
    exclude_consumers: Annotated[bool, Query(alias="excludeConsumers")] = False,
) -> StatsOptions:
    del precise
    return StatsOptions(
        subscription_backlog_size=subscription_backlog_size,
        earliest_time=earliest_time,
        exclude_publishers=exclude_publishers,
        exclude_consumers=exclude_consumers,
    )


Options = Annotated[StatsOptions, Depends(_options)]


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes of topic statistics."""
    router = APIRouter(tags=["statistics"], dependencies=[needs.topic_lookup], default_response_class=JSONResponse)
    ask = Ask(gateway)

    def shows(model: object) -> dict[str, Any]:
        return {"responses": {200: {"model": model}}, "response_model": None}

    @router.get(f"{TOPIC}/stats", dependencies=[READS_ENTRY], **shows(models.TopicStats))
    async def stats(name: Topic, options: Options) -> JSONResponse:
        """Return the statistics of a topic, its producers, subscriptions and consumers."""
        return JSONResponse(await ask(lambda broker: broker.stats.of_topic(name, options)))

    @router.get(f"{TOPIC}/partitioned-stats", dependencies=[READS_ENTRY], **shows(models.PartitionedTopicStats))
    async def partitioned_stats(
        name: Topic, options: Options, *, per_partition: Annotated[bool, Query(alias="perPartition")] = True
    ) -> JSONResponse:
        """Return the same for a partitioned topic, and for each partition."""
        found = await ask(lambda broker: broker.partitioned_stats.of_topic(name, options, per_partition=per_partition))
        return JSONResponse(found)

    @router.get(f"{TOPIC}/internalStats", **shows(models.InternalStats))
    async def internal_stats(name: Topic, *, metadata: bool = False) -> JSONResponse:
        """Return a topic's ledger, and the cursors of its subscriptions."""
        return JSONResponse(await ask(lambda broker: broker.internal_stats.of_topic(name, metadata=metadata)))

    @router.get(f"{TOPIC}/partitioned-internalStats", **shows(models.PartitionedInternalStats))
    async def partitioned_internal_stats(name: Topic) -> JSONResponse:
        """Return the same for each partition."""
        return JSONResponse(await ask(lambda broker: broker.partitioned_stats.internal(name)))

    @router.get(f"{TOPIC}/internal-info", **shows(models.InternalInfo | models.PartitionedInternalInfo))
    async def internal_info(name: Topic) -> JSONResponse:
        """Return the stored metadata of a topic, or of each of its partitions."""
        return JSONResponse(await ask(lambda broker: broker.partitioned_stats.info(name)))

    @router.post(
        f"{TOPIC}/subscription/{{subscription:twice}}/analyzeBacklog",
        dependencies=[needs.consume, READS_ENTRY],
        **shows(models.BacklogAnalysis),
    )
    async def analyze(name: Topic, subscription: str) -> JSONResponse:
        """Count the entries and messages in the backlog of a subscription."""
        return JSONResponse(await ask(lambda broker: broker.backlogs.analyze(name, subscription)))

    return router
