# SPDX-License-Identifier: Apache-2.0
"""A proxy's part in recording: usage records and decision records on topics of the cluster, if they are switched on.

Where: `proxy_app` makes one; the proxy ticks it, and stops it after its clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.accounting.records import DECISION, USAGE
from penstock.proxy.record_topic import RecordTopic
from penstock.proxy.usage_records import UsageRecords
from penstock.records.decisions import DecisionRecords
from penstock.records.limiters_seen import LimitersSeen
from penstock.stats.recorded import snapshot_of

if TYPE_CHECKING:
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

    async def stop(self) -> None:
        """Record what is left, for a moment at most; no client is connected any more."""
        if self.decisions is not None:
            await self.decisions.stop()
        if self.usage is not None:
            await self.usage.stop()
        for topic in self._topics:
            await topic.close()

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
