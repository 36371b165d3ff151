# SPDX-License-Identifier: Apache-2.0
"""Explains what slows a tenant, a namespace, a topic or a producer: the limit, its numbers, since when, and the remedy.

Why: half a dozen limits may slow a client, and most of them belong to somebody else: a group that another namespace
uses up, or a rate of another topic on the same connection. Metrics say how much; this says which, and what to do.
Where: `penstock why` and the routes under `/admin/v3/why`. It reads live objects on the loop, in portions, and returns
plain values.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import quote

from penstock.broker.elsewhere import NOWHERE
from penstock.broker.publishing.dispatch_gate import gate_of
from penstock.broker.publishing.limiters import RatePublish
from penstock.broker.publishing.rates import BROKER
from penstock.core.errors import BacklogQuotaExceeded, BacklogQuotaHold, NotFound, TopicNotFound
from penstock.core.units import NS_PER_MS
from penstock.governance.muting import MuteReason
from penstock.groups.adaptive_publish import AdaptivePublish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.policies.quotas import Quotas
    from penstock.broker.publishing.groups import Groups
    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.namespace_resources import NamespaceResources
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.core.names import NamespaceName, TopicName
    from penstock.core.usage_report import FourNumbers
    from penstock.governance.adaptive_throttle import Pressures, Throttle
    from penstock.governance.muting import Mute
    from penstock.governance.resource_group import ClassLimiter
    from penstock.groups.adaptive_throttling import AdaptiveThrottling
    from penstock.groups.group_publish import GroupPublish
    from penstock.net.connection import Connection
    from penstock.net.listener import Connections

Json: TypeAlias = dict[str, Any]

# Findings in one answer; more would be the same limits again, and are not looked for.
FINDINGS_MAX: Final = 200
# Topics, producers and subscriptions looked at in one turn of the loop: a finding takes 20 µs.
_ROWS_PER_TURN: Final = 50

_RAISE_PUBLISH: Final = "publishRate of the topic or its namespace, or maxPublishRatePerTopicInMessages and …InBytes"
_RAISE_PUBLISH_OF_BROKER: Final = "brokerPublisherThrottlingMaxMessageRate and …MaxByteRate"
_RAISE_DISPATCH: Final = {
    "Subscription": "subscriptionDispatchRate of the topic or its namespace",
    "Topic": "dispatchRate of the topic or its namespace",
    "Broker": "dispatchThrottlingRateInMsg and dispatchThrottlingRateInByte",
}


class Line(Protocol):
    """Topics or subscriptions that wait for a group."""

    owner: str

    @property
    def waiting(self) -> int: ...


class Sharing(Protocol):
    """The other brokers, and what they use."""

    def others(self, group: str) -> Mapping[str, FourNumbers]:
        """What each of them wants of a group, in thousandths per second."""

    @property
    def members(self) -> int:
        """How many brokers share quotas now, this one included; 0 while there is nothing to share."""

    @property
    def problem(self) -> str | None:
        """Why this broker is not registered, and what follows; None if it is, or need not be."""


class Why:
    """Explanations. All methods are called on the broker's loop, and raise NotFound for what does not exist."""

    def __init__(
        self,
        *,
        topics: TopicDirectory,
        resources: NamespaceResources,
        partitions: Callable[[TopicName], int],
        quotas: Quotas[Topic],
        groups: Groups,
        connections: Connections,
        clock: Clock,
        sharing: Sharing | None = None,
        throttling: AdaptiveThrottling[PublishedTopic] | None = None,
        elsewhere: Elsewhere = NOWHERE,
    ) -> None:
        """Receive what this reads.

        Args: sharing: usage of the other brokers. throttling: None if disabled. elsewhere: what other brokers explain.
        """
        self._topics = topics
        self._resources = resources
        self._partitions = partitions
        self._quotas = quotas
        self._groups = groups
        self._connections = connections
        self._clock = clock
        self._sharing = sharing
        self._throttling = throttling
        self._elsewhere = elsewhere
        # One at a time: sixty at once, each with its portion, would be sixty portions in a turn of the loop.
        self._one = asyncio.Lock()

    async def of_tenant(self, tenant: str) -> Json:
        """Explain what slows the topics of a tenant."""
        self._resources.check_tenant(tenant)
        found = await self._explain(f"tenant {tenant}", lambda topic: topic.name.tenant == tenant)
        return await self._with_others(found, f"tenants/{quote(tenant, safe='')}")

    async def of_namespace(self, namespace: NamespaceName) -> Json:
        """Explain what slows the topics of a namespace."""
        self._resources.check_namespace(namespace)
        found = await self._explain(f"namespace {namespace}", lambda topic: topic.name.namespace_name == namespace)
        return await self._with_others(found, f"namespaces/{namespace}")

    async def of_topic(self, name: TopicName) -> Json:
        """Explain what slows a topic, or the partitions of a partitioned topic."""
        if not (self._topics.exists(name) or self._partitions(name)):
            raise TopicNotFound(str(name))
        found = await self._explain(f"topic {name}", lambda topic: name in {topic.name, topic.name.parent})
        path = f"{name.domain}/{name.tenant}/{name.namespace}/{quote(name.local, safe='')}"
        return await self._with_others(found, path)

    async def of_producer(self, name: str) -> Json:
        """Explain what slows the connected producers of this name."""
        found = await self._explain(f"producer {name}", lambda topic: name in topic.producers, producer=name)
        found = await self._with_others(found, f"producers/{quote(name, safe='')}")
        if not found["producers"]:
            raise NotFound(f"no producer {name!r} is connected")
        return found

    async def _with_others(self, own: Json, path: str) -> Json:
        """Add what the other brokers answer."""
        answers, missing = await self._elsewhere.answers(f"/admin/v3/why/{path}")
        findings = own["findings"] + [finding for each in answers for finding in each["findings"]]
        return {
            "of": own["of"],
            "slowed": bool(findings),
            **{count: own[count] + sum(each[count] for each in answers) for count in ("producers", "subscriptions")},
            "findings": findings[:FINDINGS_MAX],
            "more": own["more"] or any(each["more"] for each in answers) or len(findings) > FINDINGS_MAX,
            "unanswered": missing,
        }

    async def _explain(self, of: str, concerns: Callable[[Topic], bool], producer: str | None = None) -> Json:
        findings: list[Json] = []
        producers = subscriptions = rows = 0
        async with self._one:
            for topic in self._topics.loaded():
                if len(findings) > FINDINGS_MAX:
                    break
                rows += 1
                if concerns(topic):
                    findings += await self._backlog_quota(topic)
                    findings += self._adaptive_throttle(topic)
                    for one in list(topic.producers.values()):
                        if producer in {None, one.name}:
                            findings += self._producer(one)
                            producers += 1
                            rows = await _pace(rows + 1)
                    for subscription in list(topic.subscriptions.values()) if producer is None else ():
                        findings += self._subscription(subscription)
                        subscriptions += 1
                        rows = await _pace(rows + 1)
                rows = await _pace(rows)
        return {
            "of": of,
            "slowed": bool(findings),
            "producers": producers,
            "subscriptions": subscriptions,
            "findings": findings[:FINDINGS_MAX],
            "more": len(findings) > FINDINGS_MAX,
            "unanswered": [],
        }

    # -- publishing

    async def _backlog_quota(self, topic: Topic) -> list[Json]:
        try:
            await self._quotas.check_producer(topic)
        except (BacklogQuotaHold, BacklogQuotaExceeded) as error:
            size, age = topic.policies.backlog_quota
            numbers = {
                "backlog_bytes": await self._quotas.backlog_bytes(topic),
                "backlog_bytes_max": size.limit,
                "backlog_age_s": await self._quotas.backlog_age_s(topic),
                "backlog_age_s_max": age.limit,
            }
            remedy = "its consumers acknowledge messages, or the backlog is cleared, or backlogQuota is raised"
            return [self._finding(topic.text, f"backlog quota: {error}", "backlog-quota", None, numbers, remedy)]
        return []

    def _producer(self, producer: Producer) -> Iterable[Json]:
        subject = f"producer {producer.name} of {producer.topic.text} at {producer.address}"
        held = producer.session.held
        waiting = held.waiting_of(producer.producer_id) if held is not None else None
        if waiting is not None:
            numbers = {"held_messages": waiting.amount.messages, "held_bytes": waiting.amount.bytes}
            if waiting.line is not None:
                yield self._waits(subject, waiting.line, waiting.since_ns, numbers)
        for mute in producer.session.connection.muted.snapshot():
            found = self._mute(subject, producer, mute)
            tenants = _tenants(producer, mute)
            yield found if tenants is None else {**found, "tenants": sorted(tenants)}

    def _adaptive_throttle(self, topic: Topic) -> Iterable[Json]:
        for line in topic.throttle_lines:
            yield self._throttled(f"topic {topic.text}", line, None, {})

    def _throttled(self, subject: str, line: AdaptivePublish, since_ns: int | None, more: dict[str, int]) -> Json:
        """A topic or payer that is throttled adaptively; without `since_ns`, since it was activated."""
        throttle, now_ns = line.throttle, self._clock.monotonic_ns()
        pressures, share = throttle.pressures, line.limiter.share
        left = zip(("messages_left", "bytes_left"), line.limiter.left(now_ns), strict=True)
        numbers: dict[str, float] = {
            "memory_pressure": round(pressures.memory, 3),
            "backlog_pressure": round(pressures.backlog, 3),
            "queueing_pressure": round(pressures.queueing, 3),
            "weight": round(pressures.weight, 3),
            **{f"natural_{name}_per_s": round(value, 1) for name, value in _natural(throttle)},
            **{f"{name}_per_s": round(value, 1) for name, value in _rates(share.messages, share.bytes).items()},
            **{name: value for name, value in left if value is not None},
            **(self._memory_in_use() if pressures.memory > 0 else {}),
            **more,
        }
        since = throttle.since_ns if since_ns is None else since_ns
        limit = f"adaptive publish throttle of {line.owner_text}"
        return self._finding(subject, limit, "adaptive-publish-rate", since, numbers, _relief(pressures))

    def _memory_in_use(self) -> dict[str, float]:
        measured = self._throttling.measured if self._throttling is not None else None
        if measured is None:
            return {}
        owners = {f"memory_{owner}_bytes": nbytes for owner, nbytes in measured.owners.items()}
        return {
            "memory_used_bytes": measured.used,
            "memory_limit_bytes": measured.limit,
            "resident_bytes": measured.resident,
            **owners,
        }

    def _mute(self, subject: str, producer: Producer, mute: Mute) -> Json:
        connection, reason, since_ns = producer.session.connection, mute.reason, mute.since_ns
        memory = self._connections.memory
        pool = {"used_bytes": memory.used, "size_bytes": memory.size}
        line = self._line_of(producer, mute)
        if line is not None:
            found = self._waits(subject, line, since_ns, pool)
            found["limit"] += ": its connection holds as much of it as it may, and is not read"
            return found
        limit, numbers, remedy = _of_connection(reason, connection, pool)
        return self._finding(subject, limit, reason.value, since_ns, numbers, remedy)

    def _line_of(self, producer: Producer, mute: Mute) -> GroupPublish | None:
        """The limit that muted a connection: of this producer's topic, or of another one on it."""
        topics = (producer.topic, *(one.topic for one in producer.session.producers.values()))
        lines = (line for topic in topics for line in topic.publish_lines)
        return next((line for line in lines if (line.reason, line.owner) == (mute.reason, mute.owner)), None)

    def _waits(self, subject: str, line: GroupPublish, since_ns: int, more: dict[str, int]) -> Json:
        """A producer that waits for a limit."""
        if isinstance(line, AdaptivePublish):
            return self._throttled(subject, line, since_ns, more)
        if isinstance(line, RatePublish):
            return self._publish_rate(subject, line, since_ns, more)
        return self._group(subject, "publish", line, line.limiter, since_ns, more)

    def _publish_rate(self, subject: str, line: RatePublish, since_ns: int, more: dict[str, int]) -> Json:
        now_ns = self._clock.monotonic_ns()
        left = zip(("messages_left", "bytes_left"), line.limiter.left(now_ns), strict=True)
        numbers: dict[str, float] = {
            **{name: value for name, value in left if value is not None},
            **{f"{name}_per_s": rate for name, rate in _rates(line.rate.messages, line.rate.bytes).items()},
            **more,
        }
        remedy = _wait(line.limiter.delay_ns(now_ns)) + (
            f"raise {_RAISE_PUBLISH_OF_BROKER}" if line.owner == BROKER else f"raise {_RAISE_PUBLISH}"
        )
        limit = f"publish rate of {'the broker' if line.owner == BROKER else line.owner}"
        return self._finding(subject, limit, "publish-rate", since_ns, numbers, remedy)

    # -- delivery

    def _subscription(self, subscription: Subscription) -> Iterable[Json]:
        subject = f"subscription {subscription.name} of {subscription.topic.text}"
        gate, now_ns = gate_of(subscription), self._clock.monotonic_ns()
        for kind, limiter in gate.limiters if gate is not None else ():
            since_ns = limiter.waits_since_ns(subscription)
            if since_ns is not None:
                numbers: dict[str, float] = {f"{name}_left": left for name, left in limiter.balances(now_ns).items()}
                rate = limiter.rate
                numbers |= {f"{name}_per_period": one for name, one in _rates(rate.messages, rate.bytes).items()}
                numbers["period_s"] = rate.period_s
                remedy = _wait(limiter.delay_ns(now_ns)) + f"raise {_RAISE_DISPATCH[kind]}"
                limit = f"dispatch rate of the {kind.lower()}"
                yield self._finding(subject, limit, "dispatch-rate", since_ns, numbers, remedy)
        for group in gate.groups if gate is not None else ():
            if group.waits(subscription):
                yield self._group(subject, "dispatch", group, group.limiter, group.limiter.waits_since_ns, {})
        if subscription.blocked:
            policies = subscription.topic.policies
            numbers = {"unacked": subscription.unacked, "unacked_max": policies.max_unacked_per_subscription}
            remedy = "its consumers acknowledge half of these messages, or maxUnackedMessagesPerSubscription is raised"
            yield self._finding(subject, "unacknowledged messages", "unacked-messages", None, numbers, remedy)
        for consumer in list(subscription.consumers):
            if consumer.blocked:
                numbers = {
                    "unacked": consumer.unacked,
                    "unacked_max": subscription.topic.policies.max_unacked_per_consumer,
                }
                remedy = "it acknowledges half of these messages, or maxUnackedMessagesPerConsumer is raised"
                whose = f"consumer {consumer.name} of {subject}"
                yield self._finding(whose, "unacknowledged messages", "unacked-messages", None, numbers, remedy)

    # -- both

    def _group(
        self,
        subject: str,
        traffic: str,
        line: Line,
        limiter: ClassLimiter,
        since_ns: int | None,
        more: dict[str, int],
    ) -> Json:
        now_ns, share = self._clock.monotonic_ns(), limiter.share
        left = zip(("messages_left", "bytes_left"), limiter.left(now_ns), strict=True)
        group = self._groups.in_use.get(line.owner)
        quota = getattr(group.quota, traffic) if group is not None else share
        numbers: dict[str, float] = {
            **{name: value for name, value in left if value is not None},
            **{f"share_{name}_per_s": value for name, value in _rates(share.messages, share.bytes).items()},
            **{f"quota_{name}_per_s": value for name, value in _rates(quota.messages, quota.bytes).items()},
            **({"members": self._sharing.members} if self._sharing is not None and self._sharing.members else {}),
            **self._wanted_elsewhere(line.owner, traffic),
            "waiting": line.waiting,
            **more,
        }
        problem = self._sharing.problem if self._sharing is not None else None
        remedy = (
            (f"{problem}; " if problem is not None else "")
            + _wait(limiter.delay_ns(now_ns))
            + (f"raise {traffic}RateInMsgs or {traffic}RateInBytes of the group, or detach the namespace or tenant")
        )
        limit = f"{traffic} quota of resource group {line.owner}"
        return self._finding(subject, limit, "group-quota", since_ns, numbers, remedy)

    def _wanted_elsewhere(self, group: str, traffic: str) -> dict[str, float]:
        """What other brokers want of the group per second, by their reports."""
        start = 0 if traffic == "publish" else 2
        wanted: dict[str, float] = {}
        for broker, demand in (self._sharing.others(group) if self._sharing is not None else {}).items():
            messages, nbytes = (round(thousandths / 1_000, 3) for thousandths in demand[start : start + 2])
            wanted |= {f"{broker}_wants_messages_per_s": messages, f"{broker}_wants_bytes_per_s": nbytes}
        return wanted

    def _finding(
        self, subject: str, limit: str, reason: str, since_ns: int | None, numbers: dict[str, Any], remedy: str
    ) -> Json:
        now_ns = self._clock.monotonic_ns()
        return {
            "what": subject,
            "limit": limit,
            "reason": reason,
            "forMs": None if since_ns is None else max(0, now_ns - since_ns) // NS_PER_MS,
            "numbers": dict(numbers),
            "liftedBy": remedy,
        }


def _tenants(producer: Producer, mute: Mute) -> set[str] | None:
    """The tenants whose limit mutes a producer's connection; None if it is the producer's own, or the broker's."""
    if mute.owner is None or mute.owner == BROKER:
        return None
    # Of an owner that is not known here, nobody is told.
    tenants = {
        one.topic.name.tenant
        for one in producer.session.producers.values()
        if any((line.reason, line.owner) == (mute.reason, mute.owner) for line in one.topic.publish_lines)
    }
    return None if producer.topic.name.tenant in tenants else tenants


async def _pace(rows: int) -> int:
    """Yield to the loop after so many rows; returns the rows since then."""
    if rows < _ROWS_PER_TURN:
        return rows
    await asyncio.sleep(0)
    return 0


def _of_connection(reason: MuteReason, connection: Connection, pool: dict[str, int]) -> tuple[str, dict[str, int], str]:
    """The limit, its numbers and the remedy for a reason that belongs to a connection itself."""
    match reason:
        case MuteReason.REQUEST_MEMORY:
            held = {"connection_bytes": connection.held_bytes}
            return "request memory is used up", {**pool, **held}, "it is freed, or queued.max.request.bytes is raised"
        case MuteReason.REQUEST_COUNT:
            return "too many requests are unanswered", pool, "some are answered, or queued.max.requests is raised"
        case MuteReason.STORAGE:
            return "the disk holds a write for too long", {}, "the journal writes again; see /healthz"
        case MuteReason.COMMANDS:
            return "too many of its commands wait", {"held_bytes": connection.held_bytes}, "half of them have ended"
        case MuteReason.OUTBOUND:
            unsent = {"unsent_bytes": connection.out_bytes}
            return "its client does not read what it is sent", unsent, "the client reads"
        case MuteReason.UPSTREAM:
            return "the broker behind the proxy takes nothing", {}, "the broker takes what was sent"
        case MuteReason.STOPPING:
            return "the proxy is stopping", {}, "the client connects to another proxy"
        case MuteReason.PUBLISH_RATE | MuteReason.GROUP_QUOTA | MuteReason.ADAPTIVE_RATE:
            return "a limit that was removed just now", {}, "the next turn of the loop"


def _natural(throttle: Throttle) -> tuple[tuple[str, float], ...]:
    return ("messages", throttle.messages.natural), ("bytes", throttle.bytes.natural)


def _relief(pressures: Pressures) -> str:
    """What ends a throttle with these pressures."""
    causes = []
    if pressures.backlog > 0:
        causes.append("consumers of the topic acknowledge, or its backlogQuota is raised")
    if pressures.memory > 0:
        causes.append("the broker needs less memory, or memoryLimitMB is raised")
    if pressures.queueing > 0:
        causes.append("the disk keeps up")
    return ("; ".join(causes) or "some cycles without pressure") + (
        "; or at once: adaptivePublisherThrottlingObserveOnly=true"
    )


def _rates(messages: float | None, nbytes: float | None) -> dict[str, float]:
    return {name: value for name, value in (("messages", messages), ("bytes", nbytes)) if value}


def _wait(delay_ns: int) -> str:
    return f"wait {-(-delay_ns // NS_PER_MS)} ms for its turn, or "
