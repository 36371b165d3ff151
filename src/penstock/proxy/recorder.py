# SPDX-License-Identifier: Apache-2.0
"""A proxy's part in recording: usage records and decision records on topics of the cluster, if they are switched on.

Where: `proxy_app` makes one; the proxy ticks it, and stops it after its clients.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.accounting.records import DECISION, USAGE
from penstock.proxy.record_topic import RecordTopic
from penstock.proxy.usage_records import FAREWELL_S as USAGE_FAREWELL_S
from penstock.proxy.usage_records import UsageRecords
from penstock.records.decisions import FAREWELL_S as DECISIONS_FAREWELL_S
from penstock.records.decisions import DecisionRecords
from penstock.records.limiters_seen import LimitersSeen
from penstock.stats.recorded import snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proxy.recorder_parts import RecorderParts
    from penstock.stats.server_snapshot import RecordsSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderOptions:
    """What is recorded, and where.

    Attributes:
        name: of this proxy, in records; unique among proxies and brokers.
        usage_topic: None: no usage records.
        decision_topic: None: no decision records.
        interval_s: of usage records.
        per_second: how many decision records may be made each second.
    """

    name: str
    usage_topic: str | None
    decision_topic: str | None
    interval_s: float
    per_second: int


class Recorder:
    """What this proxy records. All methods are called on the event loop.

    Attributes:
        usage: counts and records usage; None: it is switched off.
        decisions: records decisions of limiters; None: it is switched off.
    """

    def __init__(self, options: RecorderOptions, parts: RecorderParts) -> None:
        self._options = options
        self._parts = parts
        self._topics: list[RecordTopic] = []
        self.usage = self._usage_records(options.usage_topic) if options.usage_topic is not None else None
        self.decisions = self._decision_records(options.decision_topic) if options.decision_topic is not None else None

    def tick(self, now_ns: int) -> None:
        if self.usage is not None:
            self.usage.tick()
        if self.decisions is not None:
            self.decisions.tick(now_ns)

    async def stop(self, limit_s: float, cut_off: Callable[[str], None]) -> None:
        """Record what is left, for `limit_s` seconds at most; no client is connected any more.

        `cut_off` is told of what was not recorded.
        """
        await asyncio.gather(self._stop_decisions(limit_s, cut_off), self._stop_usage(limit_s, cut_off))
        await asyncio.gather(*(topic.close() for topic in self._topics))

    async def _stop_decisions(self, limit_s: float, cut_off: Callable[[str], None]) -> None:
        if self.decisions is not None:
            lost = await self.decisions.stop(min(limit_s, DECISIONS_FAREWELL_S))
            if lost:
                cut_off(f"{lost} decision records were not stored")

    async def _stop_usage(self, limit_s: float, cut_off: Callable[[str], None]) -> None:
        if self.usage is not None and not await self.usage.stop(min(limit_s, USAGE_FAREWELL_S)):
            cut_off("the last usage records were not stored")

    def snapshot(self) -> RecordsSnapshot | None:
        """Counters for metrics; None if nothing is recorded."""
        return snapshot_of(self.usage, self.decisions)

    def _usage_records(self, topic: str) -> UsageRecords:
        parts, options = self._parts, self._options
        return UsageRecords(
            self._topic(topic, USAGE.definition),
            parts.groups,
            parts.memory,
            parts.unanswered,
            name=options.name,
            own_topics=[name for name in (options.usage_topic, options.decision_topic) if name is not None],
            interval_s=options.interval_s,
            clock=parts.clock,
            loop=parts.loop,
        )

    def _decision_records(self, topic: str) -> DecisionRecords:
        parts = self._parts
        return DecisionRecords(
            self._topic(topic, DECISION.definition),
            LimitersSeen(
                connections=parts.connections.all,
                groups=lambda: parts.groups.in_use,
                listings=parts.listings,
                refused=parts.traffic.take_refused,
                now_ns=parts.clock.monotonic_ns(),
            ),
            name=self._options.name,
            epoch=self.usage.epoch if self.usage is not None else parts.clock.wall_ms(),
            per_second=lambda: self._options.per_second,
            clock=parts.clock,
            loop=parts.loop,
        )

    def _topic(self, name: str, definition: bytes) -> RecordTopic:
        parts = self._parts
        topic = RecordTopic(name, definition, upstreams=parts.upstreams, identity=parts.identity, clock=parts.clock)
        self._topics.append(topic)
        return topic
