# SPDX-License-Identifier: Apache-2.0
"""Explains what slows a tenant, a namespace, a topic or a producer: the hold, its numbers, since when, and the remedy.

Why: half a dozen limits may slow a client, and most of them belong to somebody else: a group that another namespace
uses up, or a rate of another topic on the same connection. Metrics say how much; this says which, and what to do.
Where: `penstock why`, the routes under `/admin/v3/why`, and the metric of holds. It collects the holds that were made
where somebody began to wait.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from penstock.broker.elsewhere import NOWHERE
from penstock.broker.publishing.limiters import DispatchRate, gate_of
from penstock.broker.publishing.ports import ProducerClient
from penstock.broker.publishing.rates import BROKER
from penstock.broker.topics.topic import subscribed_topic
from penstock.core.errors import NotFound, TopicNotFound
from penstock.governance.holds import Hold, HoldKind
from penstock.stats.explanations import Explanations, Question, Seen
from penstock.stats.findings import merged
from penstock.stats.limit_holds import Said, per

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.policies.quotas import Quotas
    from penstock.broker.publishing.checks import Waiting
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.dispatcher import Dispatcher, HeldConsumer
    from penstock.broker.subscriptions.holds import DispatchHolds
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.broker.topics.topic import Topic
    from penstock.broker.transactions.coordinator import Coordinator
    from penstock.core.clock import Clock
    from penstock.core.names import NamespaceName, TopicName
    from penstock.governance.budget import Budget
    from penstock.governance.muting import Mute
    from penstock.net.listing_memory import TopicListMemoryLimiter
    from penstock.stats.explanations import Walk
    from penstock.stats.findings import Json
    from penstock.stats.limit_holds import LimitHolds


_RAISE: Final = {
    "Subscription": "raise subscriptionDispatchRate of the topic or its namespace",
    "Replicator": "raise replicatorDispatchRate of the topic or its namespace",
    "Topic": "raise dispatchRate of the topic or its namespace",
    "Broker": "raise dispatchThrottlingRateInMsg and dispatchThrottlingRateInByte",
}


def holds_of(subscription: Subscription, limits: LimitHolds, transactions: Coordinator, now_ns: int) -> Iterator[Hold]:
    """The holds of a subscription's delivery. Only entries that exist can wait."""
    what = f"subscription {subscription.name} of {subscription.topic.text}"
    dispatcher, reading, waiting = subscription.dispatcher, subscription.reading, subscription.waiting
    numbers, holds = {"waiting_entries": waiting}, subscription.holds
    if holds is not None and subscription.has_more:
        yield from _of_gate(subscription, holds, limits, what, now_ns)
    if subscription.topic.persistent and subscription.topic.holds_back:
        yield _of_transaction(subscription, transactions, what)
    if not subscription.topic.persistent or not subscription.backlog:
        return
    replicator = subscription.replicator
    if replicator is not None and replicator.problem is not None:
        yield Hold(
            kind=HoldKind.REPLICATION,
            what=f"replication of {subscription.topic.text}",
            of=f"{replicator.cluster}: {replicator.problem}",
            since_ns=replicator.since_ns,
            numbers=numbers,
        )
    elif dispatcher is None:
        yield Hold(kind=HoldKind.NO_CONSUMER, what=what, since_ns=subscription.idle_since_ns, numbers=numbers)
    elif subscription.fenced:
        yield Hold(kind=HoldKind.RESETTING, what=what, numbers=numbers)
    elif reading.failing_since_ns is not None:
        yield Hold(kind=HoldKind.UNREADABLE, what=what, since_ns=reading.failing_since_ns, numbers=numbers)
    elif holds is not None and subscription.has_more:
        yield from _of_consumers(subscription, dispatcher, holds, what, now_ns)
        yield from _of_keys(dispatcher, holds, what, now_ns)
    delayed = subscription.delayed
    if delayed:
        yield Hold(kind=HoldKind.DELAYED, what=what, numbers={"delayed_entries": delayed, **_next_of(subscription)})


def _of_transaction(subscription: Subscription, transactions: Coordinator, what: str) -> Hold:
    """The open transaction that began first, of those that have sent something."""
    topic = subscribed_topic(subscription)
    assert topic.transactions is not None, "nothing else keeps entries back"
    kept_back = topic.durable_entry_id - topic.last_entry_id
    numbers: dict[str, float] = {"kept_back_entries": kept_back, "open_transactions": len(topic.transactions.open)}
    found = transactions.find(topic.transactions.oldest)
    assert found is not None, "topics are told in the step that ends it"
    return Hold(
        kind=HoldKind.TRANSACTION,
        what=what,
        of=f"{found.id} of role {found.owner!r}" if found.owner else str(found.id),
        since_ns=found.since_ns,
        lifted_by=f"penstock transactions abort {found.id.coordinator} {found.id.number}",
        numbers={**numbers, "timeout_s": found.timeout_ms / 1_000},
    )


def _next_of(subscription: Subscription) -> dict[str, float]:
    """When the next delayed message of its topic is due."""
    index = subscription.topic.delayed
    next_ms = index.manager.next_delivery_ms() if index is not None else None
    return {"next_in_s": max(0, next_ms - index.now_ms()) / 1_000} if index is not None and next_ms is not None else {}


def _of_gate(
    subscription: Subscription, holds: DispatchHolds, limits: LimitHolds, what: str, now_ns: int
) -> Iterator[Hold]:
    """The limit that stopped dispatch last, while it is in force."""
    gate = gate_of(subscription)
    limit = gate.held_by if gate is not None else None
    episode = holds.episode(limit.hold, now_ns) if limit is not None else None
    if gate is None or limit is None or episode is None or limit not in gate.limits:
        return
    numbers = {"waiting_entries": subscription.waiting, **episode.numbers(now_ns, got=subscription.messages_out)}
    yield limits.of_limit(
        what, limit, episode.since_ns, numbers, _said_of(limit) if isinstance(limit, DispatchRate) else None
    )


def _said_of(limit: DispatchRate) -> Said:
    rate = limit.rate
    numbers = {**per("period", "", rate.messages, rate.bytes), "period_s": rate.period_s}
    return Said(limit.kind.lower(), _RAISE[limit.kind], numbers)


def _of_consumers(
    subscription: Subscription, dispatcher: Dispatcher, holds: DispatchHolds, what: str, now_ns: int
) -> Iterator[Hold]:
    episode = holds.of_consumers(now_ns)
    if episode is None:
        return
    numbers = {"waiting_entries": subscription.waiting, **episode.numbers(now_ns, got=subscription.messages_out)}
    if not subscription.blocked:
        for held in dispatcher.held_consumers():
            yield _of_consumer(held, what, episode.since_ns, numbers)
        return
    unacked_max = subscription.topic.policies.max_unacked_per_subscription
    yield Hold(
        kind=HoldKind.UNACKED,
        what=what,
        since_ns=episode.since_ns,
        lifted_by="maxUnackedMessagesPerSubscription",
        numbers={"unacked": subscription.unacked, "unacked_max": unacked_max, **numbers},
    )


def _of_keys(dispatcher: Dispatcher, holds: DispatchHolds, what: str, now_ns: int) -> Iterator[Hold]:
    """Entries that are set aside for consumers that cannot take them, while others may be delivered."""
    episode = holds.episode(HoldKind.KEY_BLOCKED, now_ns)
    for held in dispatcher.held_keys() if episode is not None else ():
        if episode is not None and (held.holder is not None or holds.of_consumers(now_ns) is None):
            yield _of_consumer(held, what, episode.since_ns, {"waiting_entries": held.entries})
    ahead = holds.episode(HoldKind.LOOK_AHEAD, now_ns)
    if ahead is not None:
        entries, entries_max = dispatcher.look_ahead
        numbers = {"set_aside_entries": entries, "set_aside_entries_max": entries_max, **ahead.numbers(now_ns)}
        yield Hold(kind=HoldKind.LOOK_AHEAD, what=what, since_ns=ahead.since_ns, numbers=numbers)


def _of_consumer(held: HeldConsumer, what: str, since_ns: int, numbers: Mapping[str, float]) -> Hold:
    consumer, holder, topic = held.consumer, held.holder, held.consumer.subscription.topic
    of = lifted_by = ""
    own: dict[str, float] = {"unacked": consumer.unacked}
    if held.kind is HoldKind.UNACKED:
        lifted_by = "maxUnackedMessagesPerConsumer"
        own["unacked_max"] = topic.policies.max_unacked_per_consumer
    elif held.kind is HoldKind.OUTBOUND:
        own = {"unsent_bytes": consumer.outlet.out_bytes}
    elif holder is not None:
        of = f"message {topic.ledger_id}:{held.entry_id} of consumer {holder.name} at {holder.address}"
        own = {"unacked_by_it": holder.unacked}
    return Hold(
        kind=held.kind,
        what=f"consumer {consumer.name} at {consumer.address} of {what}",
        of=of,
        since_ns=since_ns,
        lifted_by=lifted_by,
        numbers={**numbers, **own},
    )


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
        transactions: Coordinator,
        resources: NamespaceResources,
        partitions: Callable[[TopicName], int],
        quotas: Quotas[Topic],
        limits: LimitHolds,
        clients: Collection[Client],
        clock: Clock,
        holds_of_all: Callable[[], Iterable[Hold]],
        listings: TopicListMemoryLimiter,
        budget: Budget,
        elsewhere: Elsewhere = NOWHERE,
    ) -> None:
        """Receive what this reads. Args: elsewhere: what other brokers explain."""
        super().__init__(clock, listings, budget)
        self._topics = topics
        self._transactions = transactions
        self._resources = resources
        self._partitions = partitions
        self._quotas = quotas
        self._clients = clients
        self._holds_of_all = holds_of_all
        self._limits = limits
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
        found = await self._answer(Question(f"producer {name}", path, client=name))
        if not found["producers"]:
            raise NotFound(f"no producer {name!r} is connected")
        return found

    async def _answer(self, question: Question) -> Json:
        """Answer, with what the other brokers answer."""
        own = await super()._answer(question)
        answers, missing = await self._elsewhere.answers(f"/admin/v3/why/{question.path}")
        return merged(own, answers, missing)

    async def _walk(self, question: Question) -> Walk:
        yield Seen.OTHER, self._holds_of_all()
        name, concerns = question.client, question.concerns
        for topic in self._topics.loaded():
            yield Seen.OTHER, ()
            if not concerns(topic.name) or not (name is None or _knows(topic, name)):
                continue
            if question.quotas:
                yield Seen.OTHER, await self._backlog_quota(topic)
            for producer in list(topic.producers.values()):
                if name in {None, producer.name}:
                    yield Seen.PRODUCER, self._producer(producer)
            for place, waiting in enumerate(list(topic.write_access.waiting)):
                if name in {None, waiting.producer.name}:
                    yield Seen.PRODUCER, (_waits_for_access(topic, waiting, place),)
            for subscription in list(topic.subscriptions.values()) if name is None else ():
                now_ns = self._clock.monotonic_ns()
                yield Seen.SUBSCRIPTION, holds_of(subscription, self._limits, self._transactions, now_ns)
        for client in list(self._clients) if name is None else ():
            yield Seen.OTHER, self._client(client, concerns) if client.connection.muted else ()

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
        if session.connection.muted:
            yield from self._mutes(what, session, producer.topic.name.tenant)

    def _client(self, client: Client, concerns: Callable[[TopicName], bool]) -> Iterable[Hold]:
        """A client that is not read, and is not named as a producer's: nobody knows what it would ask for."""
        consumed = [consumer.subscription.topic.name for consumer in client.consumers.values()]
        topic = next(filter(concerns, consumed), None)
        if any(concerns(producer.topic.name) for producer in client.producers.values()):
            return ()
        if topic is None and (consumed or client.producers):
            return ()
        what = f"client at {client.connection.peer}"
        return self._mutes(what, client, topic.tenant if topic is not None else None)

    def _mutes(self, what: str, client: ProducerClient, tenant: str | None) -> Iterator[Hold]:
        limits = [limit for one in client.producers.values() for limit in one.topic.publish_lines]
        return self._limits.of_mutes(what, client.connection, limits, tenants=partial(_tenants, tenant, client))


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


def _tenants(tenant: str | None, client: ProducerClient, mute: Mute) -> frozenset[str] | None:
    """The tenants whose limit mutes a tenant's connection; None if it is its own limit, or the broker's.

    Whose client it is that has neither a producer nor a consumer, only administrators of the broker may know.
    """
    if tenant is None:
        return frozenset()
    if mute.owner is None or mute.owner == BROKER:
        return None
    # Of an owner that is not known here, nobody is told.
    tenants = frozenset(
        one.topic.name.tenant
        for one in client.producers.values()
        if any((line.hold, line.owner) == (mute.reason, mute.owner) for line in one.topic.publish_lines)
    )
    return None if tenant in tenants else tenants
