# SPDX-License-Identifier: Apache-2.0
"""Quotas: the size and age that a topic's backlog may have, and the number of producers of a topic.

Why: a subscription without consumers keeps everything that is published. A backlog quota says when producers must wait
or fail, or when the oldest messages are dropped.
Where: `periodic_checks` checks backlogs periodically, and `producers` asks before it adds a producer. The backlog of a
topic is that of its slowest durable subscription, in bytes of entries as they are stored, with the precision of a
block. When a topic exceeds its quota, its producers are disconnected. Their clients reconnect at once and get an error:
to keep their messages and try again (`producer_request_hold`), or that they failed (`producer_exception`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from penstock.broker.policies.policies import TopicPort, WritersPort
from penstock.broker.policies.policy_values import EVICTION, EXCEPTION
from penstock.core.errors import BacklogQuotaExceeded, BacklogQuotaHold, ProducerBusy
from penstock.core.names import COMPACTION_SUBSCRIPTION
from penstock.governance.holds import Refusals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.policies import SubscriptionPort
    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.broker.policies.policy_values import BacklogQuota
    from penstock.broker.policies.retention import Retention
    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError

T = TypeVar("T", bound=TopicPort)

log = logging.getLogger(__name__)

# Eviction reduces the backlog to this percentage of the quota, so that the next message does not trigger it again; as
# in Pulsar.
_EVICT_TO_PERCENT: Final = 90
# Pulsar's texts, word for word.
REFUSED: Final = "Cannot create producer on topic with backlog quota exceeded"


class Sizes(NamedTuple):
    """Size of a topic, and of the backlog of each subscription, in bytes."""

    storage: int
    backlogs: Mapping[str, int]


class Quotas(Generic[T]):
    """Measures backlogs, and enforces quotas."""

    def __init__(
        self,
        *,
        defaults: Callable[[], PolicyDefaults],
        reads: LogReads,
        retention: Retention[T],
        clock: Clock,
        disconnect_producers: Callable[[T], Awaitable[None]],
    ) -> None:
        self._defaults = defaults
        self._reads = reads
        self._retention = retention
        self._clock = clock
        self._disconnect_producers = disconnect_producers

    # -- sizes

    async def sizes(self, topic: TopicPort) -> Sizes:
        if not topic.persistent:
            return Sizes(0, dict.fromkeys(topic.subscriptions, 0))
        subscriptions = list(topic.subscriptions.values())
        entry_ids = [topic.first_entry_id, *(subscription.cursor.mark_delete + 1 for subscription in subscriptions)]
        storage, *backlogs = await self._reads.bytes_from(topic.ledger_id, entry_ids)
        return Sizes(storage, {one.name: nbytes for one, nbytes in zip(subscriptions, backlogs, strict=True)})

    async def bytes_from(self, topic: TopicPort, entry_id: int) -> int:
        """The size of an entry and all later ones, in bytes."""
        return (await self._reads.bytes_from(topic.ledger_id, [entry_id]))[0] if topic.persistent else 0

    async def backlog_bytes(self, topic: TopicPort) -> int:
        """Bytes in the backlog of the slowest durable subscription; 0 without one."""
        slowest = _slowest(topic)
        return await self.bytes_from(topic, slowest.cursor.mark_delete + 1) if slowest is not None else 0

    async def backlog_age_s(self, topic: TopicPort) -> int:
        """Age in seconds of the oldest message in the backlog of the slowest durable subscription; 0 without one."""
        slowest = _slowest(topic)
        if slowest is None:
            return 0
        end = topic.last_entry_id + 1
        first = slowest.cursor.mark_delete + 1
        entry_id, published_ms = await self._retention.published(topic.ledger_id, first, end)
        return max(0, self._clock.wall_ms() - published_ms) // 1000 if entry_id < end else 0

    # -- backlogs

    def concerns(self, topic: TopicPort) -> bool:
        policies = topic.policies
        bounded = policies.backlog_quota.size.limit > 0 or policies.backlog_quota.age.limit > 0
        return bounded and topic.persistent

    def checks(self, topic: TopicPort) -> bool:
        """Whether the periodic check must visit this topic."""
        return self._defaults().backlog_quota_check_enabled and self.concerns(topic)

    async def check(self, topic: T) -> None:
        """Disconnect producers or drop messages if the backlog exceeds a quota, as its policy says."""
        size, age = topic.policies.backlog_quota
        if size.limit > 0 and await self.backlog_bytes(topic) > size.limit:
            if size.policy == EVICTION:
                await self._evict_to_size(topic, size.limit * _EVICT_TO_PERCENT // 100)
            else:
                await self._disconnect(topic, "size", size)
        elif age.limit > 0 and await self.backlog_age_s(topic) > age.limit:
            if age.policy == EVICTION:
                await self._evict_to_age(topic, age.limit * _EVICT_TO_PERCENT // 100)
            else:
                await self._disconnect(topic, "age", age)

    async def _disconnect(self, topic: T, what: str, quota: BacklogQuota) -> None:
        if topic.producers:
            log.warning(
                "backlog of %s is over its quota of %s, %d (%s): its %d producers are disconnected",
                topic.text,
                what,
                quota.limit,
                quota.policy,
                len(topic.producers),
            )
            await self._disconnect_producers(topic)

    async def _evict_to_size(self, topic: TopicPort, nbytes: int) -> None:
        last = await self._reads.entry_within(topic.ledger_id, nbytes) - 1
        for subscription in _durable(topic):
            if subscription.cursor.mark_delete < last:
                _tell_of_eviction(subscription, subscription.acknowledge_through(last))

    async def _evict_to_age(self, topic: TopicPort, seconds: int) -> None:
        for subscription in list(_durable(topic)):
            _tell_of_eviction(subscription, await self._retention.expire(subscription, seconds))

    async def check_producer(self, topic: TopicPort) -> None:
        """Check the backlog quotas before a producer is added. Raises BacklogQuotaHold or BacklogQuotaExceeded."""
        refusal = await self.refusal(topic)
        if refusal is None:
            topic.refusals = None
            return
        now_ns = self._clock.monotonic_ns()
        if topic.refusals is None or not topic.refusals.goes_on(now_ns):
            topic.refusals = Refusals(now_ns)
        else:
            topic.refusals.again(now_ns)
        raise refusal

    async def refusal(self, topic: TopicPort) -> PenstockError | None:
        """The error that a new producer would get; None if it would be added."""
        if not self.concerns(topic):
            return None
        size, age = topic.policies.backlog_quota
        if size.limit > 0 and size.policy != EVICTION and await self.backlog_bytes(topic) > size.limit:
            return _refusal(size)
        if age.limit > 0 and age.policy != EVICTION and await self.backlog_age_s(topic) > age.limit:
            return _refusal(age)
        return None

    # -- maximum number of producers

    def check_room(self, topic: WritersPort, address: str, name: str | None = None) -> None:
        """Check the number of producers, before the checks of a new producer and again right before it is added.

        Args:
            topic: the topic of the producer.
            address: where its client is, as `host:port`.
            name: the producer that it replaces.

        Raises:
            ProducerBusy: the topic, or this client's host, has the maximum number of producers.
        """
        bound = topic.policies.max_producers
        same_address_max = self._defaults().max_same_address_producers_per_topic
        if (bound <= 0 and same_address_max <= 0) or topic.system:
            return
        others = [producer for producer in topic.producers.values() if producer.name != name]
        if 0 < bound <= len(others):
            raise ProducerBusy(f"Topic '{topic.text}' reached max producers limit")
        host = _host(address)
        if 0 < same_address_max <= sum(_host(producer.address) == host for producer in others):
            raise ProducerBusy(f"Topic '{topic.text}' reached max same address producers limit")


def _durable(topic: TopicPort) -> Iterable[SubscriptionPort]:
    """Durable subscriptions, without the one of compaction: its backlog does not count."""
    return (one for one in topic.subscriptions.values() if one.durable and one.name != COMPACTION_SUBSCRIPTION)


def _slowest(topic: TopicPort) -> SubscriptionPort | None:
    return min(_durable(topic), key=lambda subscription: subscription.cursor.mark_delete, default=None)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _refusal(quota: BacklogQuota) -> PenstockError:
    return (BacklogQuotaExceeded if quota.policy == EXCEPTION else BacklogQuotaHold)(REFUSED)


def _tell_of_eviction(subscription: SubscriptionPort, count: int) -> None:
    if count:
        topic = subscription.topic.text
        log.warning("%s: subscription %s lost %d entries to the backlog quota", topic, subscription.name, count)
