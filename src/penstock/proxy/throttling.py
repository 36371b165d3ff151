# SPDX-License-Identifier: Apache-2.0
"""Adaptive throttling of what clients publish through a proxy: connects the controller with what is measured here.

Memory is the proxy's own; backlogs are those of the cluster, if its admin port is known. The proxy has no disk.
Where: `proxy_app`, if adaptivePublisherThrottlingEnabled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.groups.adaptive_throttling import AdaptiveThrottling
from penstock.proxy.published_topics import PublishedTopic, PublishedTopics
from penstock.proxy.upstream_backlogs import UpstreamBacklogs
from penstock.stats.process_memory import MemorySensor, give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack

    from penstock.core.clock import Clock
    from penstock.governance.budget import Row
    from penstock.groups.adaptive_publish import AdaptiveTopic
    from penstock.groups.ports import ThrottleSettings
    from penstock.net.stopping import Stopping
    from penstock.proxy.admin_polls import AdminPolls

log = logging.getLogger(__name__)


class NoBacklogs:
    """Of a cluster whose admin port is not known."""

    @staticmethod
    def part(_topic: PublishedTopic, _adaptive: AdaptiveTopic, _low: float) -> float:
        """See `Backlogs`."""
        return 0.0


def throttle(
    settings: ThrottleSettings,
    topics: PublishedTopics,
    *,
    memory_limit_bytes: int,
    owners: Callable[[], Mapping[str, int]],
    polls: AdminPolls | None,
    row: Row,
    clock: Clock,
    stack: AsyncExitStack,
    stopping: Stopping,
) -> AdaptiveThrottling[PublishedTopic]:
    """Begin to throttle; `stopping` and closing `stack` end it.

    Args:
        settings: of the controller.
        topics: those with producers.
        memory_limit_bytes: of the process.
        owners: returns the bytes in use by the rows of the budget.
        polls: asks the cluster; None: nothing is known of backlogs.
        row: is charged for the states of topics.
        clock: for rates.
        stack: of the proxy.
        stopping: of the proxy.
    """
    loop = asyncio.get_running_loop()
    backlogs: UpstreamBacklogs | NoBacklogs = NoBacklogs()
    if polls is not None:
        backlogs = UpstreamBacklogs(polls, topics.loaded, lambda: settings.adaptive_interval_ms / 1_000, clock, loop)
        stopping.add("the last look at backlogs", lambda _limit_s: backlogs.stop())
    else:
        log.warning("[AdaptiveThrottle] brokerWebServiceURL is not set: backlogs of the cluster do not count")
    throttling = AdaptiveThrottling[PublishedTopic](
        limits=lambda: settings,
        topics=topics.loaded,
        changed=topics.changed,
        backlogs=backlogs,
        memory=MemorySensor(memory_limit_bytes, owners),
        disk_delay=lambda: 0.0,
        give_back=lambda: loop.run_in_executor(None, give_back),
        row=row,
        clock=clock,
        loop=loop,
    )
    topics.throttling = throttling

    def count_failure() -> None:
        throttling.controller.failures += 1

    if isinstance(backlogs, UpstreamBacklogs):
        backlogs.failed = count_failure
    stack.callback(throttling.stop)
    return throttling
