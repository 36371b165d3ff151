# SPDX-License-Identifier: Apache-2.0
"""Explains what slows a tenant, a namespace, a topic or a producer: the hold, its numbers, since when, and the remedy.

Why: half a dozen limits may slow a client, and most of them belong to somebody else: a group that another namespace
uses up, or a rate of another topic on the same connection. Metrics say how much; this says which, and what to do.
Where: `penstock why`, the routes under `/admin/v3/why`, and the metric of holds. It collects the holds that were made
where somebody began to wait.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from penstock.broker.elsewhere import NOWHERE
from penstock.broker.publishing.dispatch_gate import gate_of
from penstock.broker.publishing.limiters import DispatchRate
from penstock.broker.publishing.ports import ProducerClient
from penstock.broker.publishing.rates import BROKER
from penstock.broker.stats.delivery_holds import holds_of
from penstock.core.errors import NotFound, TopicNotFound
from penstock.governance.holds import Hold, HoldKind
from penstock.stats.explanations import Explanations, Question, Seen
from penstock.stats.findings import merged
from penstock.stats.limit_holds import LimitHolds, Muted, balances, per_s

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.policies.quotas import Quotas
    from penstock.broker.publishing.access_modes import Waiting
    from penstock.broker.publishing.groups import Groups
    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.namespace_resources import NamespaceResources
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.core.names import NamespaceName, TopicName
    from penstock.governance.budget import Budget
    from penstock.governance.muting import Mute
    from penstock.groups.adaptive_throttling import AdaptiveThrottling
    from penstock.net.listener import Connections
    from penstock.net.topic_list_limiter import TopicListMemoryLimiter
    from penstock.stats.explanations import Walk
    from penstock.stats.findings import Json
    from penstock.stats.limit_holds import Sharing

_RAISE_DISPATCH: Final = {
    "Subscription": "raise subscriptionDispatchRate of the topic or its namespace",
    "Topic": "raise dispatchRate of the topic or its namespace",
    "Broker": "raise dispatchThrottlingRateInMsg and dispatchThrottlingRateInByte",
}


class Client(ProducerClient, Protocol):
    """The session of a client."""

    @property
    def consumers(self) -> Mapping[int, Consumer]: ...


class Why(Explanations):
    """Explanations of a broker."""

    def __init__(
        self,
        *,
        topics: TopicDirectory,
        resources: NamespaceResources,
        partitions: Callable[[TopicName], int],
        quotas: Quotas[Topic],
        groups: Groups,
        connections: Connections,
        clients: Collection[Client],
        clock: Clock,
        holds_of_all: Callable[[], Iterable[Hold]],
        listings: TopicListMemoryLimiter,
        budget: Budget,
        sharing: Sharing | None = None,
        throttling: AdaptiveThrottling[PublishedTopic] | None = None,
        elsewhere: Elsewhere = NOWHERE,
    ) -> None:
        """Receive what this reads.

        Args: sharing: usage of the other brokers. throttling: None if disabled. elsewhere: what other brokers explain.
        """
        super().__init__(clock, listings, budget)
        self._topics = topics
        self._resources = resources
        self._partitions = partitions
        self._quotas = quotas
        self._clients = clients
        self._holds_of_all = holds_of_all
        self._limits = LimitHolds(
            clock,
            lambda: groups.in_use,
            sharing,
            connections.memory,
            lambda: throttling.measured if throttling is not None else None,
        )
        self._elsewhere = elsewhere

    async def of_tenant(self, tenant: str) -> Json:
        self._resources.check_tenant(tenant)
        return await super().of_tenant(tenant)

    async def of_namespace(self, namespace: NamespaceName) -> Json:
        self._resources.check_namespace(namespace)
        return await super().of_namespace(namespace)

    async def of_topic(self, name: TopicName) -> Json:
        if not (self._topics.exists(name) or self._partitions(name)):
            raise TopicNotFound(str(name))
        return await super().of_topic(name)

    async def of_producer(self, name: str) -> Json:
        """Explain what slows the connected producers of this name."""
        path = f"producers/{quote(name, safe='')}"
        found = await self._answer(Question(of=f"producer {name}", path=path, client=name))
        if not found["producers"]:
            raise NotFound(f"no producer {name!r} is connected")
        return found

    async def _answer(self, question: Question) -> Json:
        """Answer, with what the other brokers answer."""
        own = await super()._answer(question)
        answers, missing = await self._elsewhere.answers(f"/admin/v3/why/{question.path}")
        return merged(own, answers, missing)

    async def _walk(self, question: Question) -> Walk:
        for hold in self._holds_of_all():
            yield hold
        name, concerns = question.client, question.concerns
        for topic in self._topics.loaded():
            yield None
            if not concerns(topic.name) or not (name is None or _knows(topic, name)):
                continue
            if question.quotas:
                for hold in await self._backlog_quota(topic):
                    yield hold
            for producer in list(topic.producers.values()):
                if name in {None, producer.name}:
                    yield Seen.PRODUCER
                    for hold in self._producer(producer):
                        yield hold
            for place, waiting in enumerate(list(topic.write_access.waiting)):
                if name in {None, waiting.producer.name}:
                    yield Seen.PRODUCER
                    yield _waits_for_access(topic, waiting, place)
            for subscription in list(topic.subscriptions.values()) if name is None else ():
                yield Seen.SUBSCRIPTION
                for hold in self._subscription(subscription):
                    yield hold
        for client in list(self._clients) if name is None else ():
            yield None
            if client.connection.muted:
                for hold in self._client(client, concerns):
                    yield hold

    # -- publishing

    async def _backlog_quota(self, topic: Topic) -> list[Hold]:
        """Producers that were refused, or what would happen to a new one; those that publish go on."""
        refusal = await self._quotas.refusal(topic)
        if refusal is None:
            return []
        hold = Hold(
            kind=HoldKind.WOULD_REFUSE,
            what=f"topic {topic.text}",
            of=str(refusal),
            numbers={
                "backlog_bytes": await self._quotas.backlog_bytes(topic),
                "backlog_bytes_max": topic.policies.backlog_quota.size.limit,
                "backlog_age_s": await self._quotas.backlog_age_s(topic),
                "backlog_age_s_max": topic.policies.backlog_quota.age.limit,
            },
        )
        refused = topic.refusals
        if refused is None or not refused.goes_on(self._clock.monotonic_ns()):
            return [hold]
        numbers = {**hold.numbers, "refused_times": refused.times}
        what = f"new producers of {topic.text}"
        return [replace(hold, kind=HoldKind.BACKLOG_QUOTA, what=what, since_ns=refused.since_ns, numbers=numbers)]

    def _producer(self, producer: Producer) -> Iterator[Hold]:
        what = f"producer {producer.name} of {producer.topic.text} at {producer.address}"
        session = producer.session
        waiting = session.held.waiting_of(producer.producer_id) if session.held is not None else None
        yield from self._limits.of_producer(what, producer, waiting)
        for mute in session.connection.muted.snapshot():
            hold = self._limits.of_mute(what, mute, _muted(session))
            yield replace(hold, tenants=_tenants(producer.topic.name.tenant, session, mute))

    def _client(self, client: Client, concerns: Callable[[TopicName], bool]) -> Iterator[Hold]:
        """A client that is not read, and is not named as a producer's: nobody knows what it would ask for."""
        consumed = [consumer.subscription.topic.name for consumer in client.consumers.values()]
        if any(concerns(producer.topic.name) for producer in client.producers.values()):
            return
        topic = next(filter(concerns, consumed), None)
        if topic is None and (consumed or client.producers):
            return
        for mute in client.connection.muted.snapshot():
            hold = self._limits.of_mute(f"client at {client.connection.peer}", mute, _muted(client))
            # Whose client it is that has neither a producer nor a consumer, only administrators of the broker may know.
            tenants = frozenset[str]() if topic is None else _tenants(topic.tenant, client, mute)
            yield replace(hold, tenants=tenants)

    # -- delivery

    def _subscription(self, subscription: Subscription) -> Iterator[Hold]:
        now_ns = self._clock.monotonic_ns()
        yield from holds_of(subscription, now_ns)
        gate, holds = gate_of(subscription), subscription.holds
        if gate is None or gate.held_by is None or holds is None or not subscription.has_more:
            return
        limiter = gate.held_by
        episode = holds.episode(gate.stopped_by, now_ns)
        if episode is None or limiter not in gate.limits:
            return
        what = f"subscription {subscription.name} of {subscription.topic.text}"
        waiting = {"waiting_entries": subscription.waiting}
        numbers = {**waiting, **episode.numbers(now_ns, got=subscription.messages_out)}
        if not isinstance(limiter, DispatchRate):
            yield self._limits.of_group(what, "dispatch", limiter, episode.since_ns, numbers)
            return
        rate = limiter.rate
        yield Hold(
            kind=HoldKind.DISPATCH_RATE,
            what=what,
            of=limiter.kind.lower(),
            since_ns=episode.since_ns,
            ready_ns=limiter.limiter.delay_ns(now_ns),
            lifted_by=_RAISE_DISPATCH[limiter.kind],
            numbers={
                **balances(limiter.limiter, now_ns),
                **{
                    name.replace("per_s", "per_period"): one
                    for name, one in per_s("", rate.messages, rate.bytes).items()
                },
                "period_s": rate.period_s,
                **numbers,
            },
        )


def _knows(topic: Topic, name: str) -> bool:
    """Whether a topic has a producer of this name, or one that waits for access."""
    return name in topic.producers or any(name == one.producer.name for one in topic.write_access.waiting)


def _waits_for_access(topic: Topic, waiting: Waiting, place: int) -> Hold:
    """A producer that has asked to wait for exclusive access. Args: place: how many wait before it."""
    holder = topic.write_access.holder or next(iter(topic.producers.values()), None)
    return Hold(
        kind=HoldKind.EXCLUSIVE_ACCESS,
        what=f"producer {waiting.producer.name} of {topic.text}",
        of=f"producer {holder.name}" if holder is not None else "those that wait before it",
        since_ns=waiting.since_ns,
        numbers={"connected_producers": len(topic.producers), "waiting_before": place},
    )


def _muted(client: ProducerClient) -> Muted:
    return Muted(
        connection=client.connection,
        lines=[line for one in client.producers.values() for line in one.topic.publish_lines],
        freed_by="it is freed",
    )


def _tenants(tenant: str, client: ProducerClient, mute: Mute) -> frozenset[str] | None:
    """The tenants whose limit mutes a tenant's connection; None if it is its own limit, or the broker's."""
    if mute.owner is None or mute.owner == BROKER:
        return None
    # Of an owner that is not known here, nobody is told.
    tenants = frozenset(
        one.topic.name.tenant
        for one in client.producers.values()
        if any((line.reason, line.owner) == (mute.reason, mute.owner) for line in one.topic.publish_lines)
    )
    return None if tenant in tenants else tenants
