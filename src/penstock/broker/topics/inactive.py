# SPDX-License-Identifier: Apache-2.0
"""Deletes inactive topics, as `inactiveTopicPolicies` says.

A topic is active while it has a producer or consumer, or had one since the last check; also while it has a subscription
or, with the mode `delete_when_subscriptions_caught_up`, a backlog. Messages that retention keeps are kept until their
time is over.

Stored messages also keep a topic, unless a mode was set explicitly: with `brokerDeleteInactiveTopicsMode`, or with
`inactiveTopicPolicies` of the namespace or topic. (Pulsar deletes a topic without subscriptions with its messages.)

Where: the broker's tick calls this; a check of many topics takes several turns of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.core.names import is_brokers_own
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.changes import Changes
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.policies.policies import PolicyService
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_life import TopicLife

log = logging.getLogger(__name__)

# A check takes well under a microsecond per topic; one turn may hold the loop for a few milliseconds only.
TOPICS_PER_TURN: Final = 1_000
POLICY: Final = "inactiveTopicPolicies"
NS_PER_MINUTE: Final = 60 * NS_PER_S


class InactiveTopics:
    """Checks for inactive topics every `brokerDeleteInactiveTopicsFrequencySeconds`."""

    def __init__(
        self,
        *,
        topics: TopicDirectory,
        life: TopicLife,
        partitions: Partitions,
        policies: PolicyService,
        changes: Changes,
        limits: Callable[[], BrokerLimits],
        stopping: Callable[[], bool],
        now_ns: int,
    ) -> None:
        """Args: stopping: whether the broker is stopping."""
        self._topics = topics
        self._life = life
        self._partitions = partitions
        self._policies = policies
        self._changes = changes
        self._limits = limits
        self._stopping = stopping
        self._looking = False
        self._last_look_ns = now_ns

    def tick(self, now_ns: int) -> None:
        defaults = self._limits().policies
        if not defaults.broker_delete_inactive_topics_enabled or self._looking or self._stopping():
            return
        if now_ns - self._last_look_ns >= defaults.broker_delete_inactive_topics_frequency_seconds * NS_PER_S:
            self._last_look_ns = now_ns
            self._looking = True
            self._changes.finish(self._look(now_ns))

    async def _look(self, now_ns: int) -> None:
        try:
            topics = self._topics.loaded()
            for start in range(0, len(topics), TOPICS_PER_TURN):
                for topic in [topic for topic in topics[start : start + TOPICS_PER_TURN] if self.is_due(topic, now_ns)]:
                    await self._delete(topic)
                await asyncio.sleep(0)
        finally:
            self._looking = False

    async def _delete(self, topic: Topic) -> None:
        async with self._topics.locked(topic.text) as current:
            if current is not topic or topic.used or seems_active(topic) or self._keeps_messages(topic):
                return
            log.info("topic %s goes, for nobody uses it (brokerDeleteInactiveTopicsEnabled)", topic.text)
            try:
                await self._life.carry_out(topic.name)
            except PenstockError as error:
                log.warning("topic %s, which nobody uses, cannot be deleted: %s", topic.text, error)
                return
        if self._limits().delete_inactive_partitioned:
            await self._partitions.forget_if_empty(topic.name.parent)

    def is_due(self, topic: Topic, now_ns: int) -> bool:
        """Whether the topic has been inactive long enough to be deleted. Records since when; call it regularly."""
        inactive = topic.policies.inactive
        if not inactive.delete or topic.fenced or topic.system:
            return False
        if topic.used or seems_active(topic):
            topic.used = False
            topic.idle_since_ns = now_ns
            return False
        idle_ns = now_ns - topic.idle_since_ns
        minutes = topic.policies.retention.minutes
        long_enough = idle_ns >= inactive.max_inactive_s * NS_PER_S and 0 <= minutes * NS_PER_MINUTE <= idle_ns
        return long_enough and not self._keeps_messages(topic)

    def _keeps_messages(self, topic: Topic) -> bool:
        """Whether the topic holds messages, and no explicit mode allows to delete it with them."""
        compacted = topic.compacted is not None and topic.compacted.entries > 0
        first = max(topic.first_entry_id, topic.unneeded_before)
        if not topic.persistent or not (compacted or first <= topic.durable_entry_id):
            return False
        return not (
            self._limits().delete_inactive_with_messages
            or self._policies.set_in_topic(topic.name, POLICY)
            or self._policies.set_in_namespace(f"{topic.name.tenant}/{topic.name.namespace}", POLICY)
        )


def seems_active(topic: Topic) -> bool:
    """Whether the topic is in use, by the mode of its policies."""
    subscriptions = [one for name, one in topic.subscriptions.items() if not is_brokers_own(name)]
    if topic.producers or any(subscription.consumers for subscription in subscriptions):
        return True
    if any(one.replicator is not None and one.backlog for one in topic.subscriptions.values()):
        return True  # Another cluster waits for its messages.
    if topic.policies.inactive.mode == "delete_when_subscriptions_caught_up":
        return any(subscription.backlog for subscription in subscriptions)
    return bool(subscriptions)
