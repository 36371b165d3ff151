# SPDX-License-Identifier: Apache-2.0
"""Periodic checks of all loaded topics, such as retention, expiry, idle subscriptions and backlog quotas.

Why in one place: each check visits all loaded topics and reads a little of the log for some. It must not block the
loop, must not run twice at a time, and must not end because one topic failed.
Where: the broker's tick calls `tick`; the checks themselves are in `retention` and `quotas`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from penstock.broker.publishing.deduplication import SNAPSHOTS_OFF_CHECK_S
from penstock.core.errors import PenstockError
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.policies.quotas import Quotas
    from penstock.broker.policies.retention import Retention
    from penstock.broker.publishing.deduplication import Deduplication
    from penstock.broker.topics.compaction import Compactor
    from penstock.broker.topics.topic import Topic

log = logging.getLogger(__name__)

# Skipping a topic takes well under a microsecond.
_TOPICS_PER_TURN: Final = 1_000


class Visited(Protocol):
    """A topic, as used here."""

    @property
    def text(self) -> str: ...

    @property
    def fenced(self) -> bool:
        """Whether it is being unloaded or deleted."""


T = TypeVar("T", bound=Visited)


@dataclass(frozen=True, slots=True)
class PeriodicCheck(Generic[T]):
    """One kind of check: its interval, the topics that it concerns, and the check of one topic."""

    name: str
    interval_s: Callable[[], int]
    concerns: Callable[[T], bool]
    work: Callable[[T], Awaitable[object]]


class PeriodicChecks(Generic[T]):
    """Starts checks when they are due; one of each kind at a time."""

    def __init__(
        self,
        checks: tuple[PeriodicCheck[T], ...],
        *,
        topics: Callable[[], Sequence[T]],
        changes: Changes,
        stopping: Callable[[], bool],
        now_ns: int,
    ) -> None:
        """Args: topics: returns the loaded topics. stopping: whether the broker is stopping."""
        self._checks = checks
        self._topics = topics
        self._changes = changes
        self._stopping = stopping
        self._last_ns = dict.fromkeys((one.name for one in checks), now_ns)
        self._running: set[str] = set()

    def tick(self, now_ns: int) -> None:
        for one in self._checks:
            due = now_ns - self._last_ns[one.name] >= one.interval_s() * NS_PER_S
            if due and one.name not in self._running and not self._stopping():
                self._last_ns[one.name] = now_ns
                self._changes.finish(self.run(one.name))

    async def run(self, name: str) -> None:
        """Run one check of all topics now."""
        (one,) = [each for each in self._checks if each.name == name]
        self._running.add(name)
        try:
            topics = self._topics()
            for start in range(0, len(topics), _TOPICS_PER_TURN):
                for topic in topics[start : start + _TOPICS_PER_TURN]:
                    if self._stopping():
                        return
                    if one.concerns(topic) and not topic.fenced:
                        await self._work(one, topic)
                await asyncio.sleep(0)
        finally:
            self._running.discard(name)

    async def _work(self, one: PeriodicCheck[T], topic: T) -> None:
        try:
            await one.work(topic)
        except PenstockError as error:
            log.warning("%s of %s failed: %s", one.name, topic.text, error)
        except Exception:
            log.exception("%s of %s failed", one.name, topic.text)


def periodic_checks(
    limits: Callable[[], BrokerLimits],
    *,
    retention: Retention[Topic],
    quotas: Quotas[Topic],
    deduplication: Deduplication,
    compaction: Compactor,
) -> tuple[PeriodicCheck[Topic], ...]:
    return (
        PeriodicCheck(
            "retention",
            lambda: limits().policies.retention_check_interval_in_seconds,
            retention.may_trim,
            retention.trim,
        ),
        PeriodicCheck(
            "message expiry",
            lambda: limits().policies.message_expiry_check_interval_in_minutes * 60,
            retention.may_expire,
            retention.expire_topic,
        ),
        PeriodicCheck(
            "subscription expiry",
            lambda: limits().policies.subscription_expiry_check_interval_in_minutes * 60,
            retention.may_end_subscriptions,
            retention.end_idle_subscriptions,
        ),
        PeriodicCheck(
            "backlog quota check",
            lambda: limits().policies.backlog_quota_check_interval_in_seconds,
            quotas.checks,
            quotas.check,
        ),
        PeriodicCheck(
            "deduplication snapshot",
            lambda: limits().deduplication_snapshot_check_s or SNAPSHOTS_OFF_CHECK_S,
            deduplication.concerns,
            deduplication.check,
        ),
        PeriodicCheck("compaction", lambda: limits().compaction_check_s, compaction.concerns, compaction.check),
    )
