# SPDX-License-Identifier: Apache-2.0
"""Rate limits: publish and dispatch rates of topics, and the subscribe rate of consumers.

Why: one fast producer or consumer must not take what others need. A fast client is never refused: while a publish rate
is in debt, SENDs of its producers are held; while a dispatch rate is in debt, its subscriptions deliver nothing.
Where: rates are policies. This module creates the `limiters` of topics and the gates of subscriptions, and
replaces them when policies change. Without a rate there is no limiter, and no cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.broker.policies.policy_values import Rate
from penstock.broker.publishing.limiters import (
    NOBODY,
    DispatchGate,
    DispatchRate,
    RatePublish,
    SpentLimiters,
    gate_of,
    share_of,
)
from penstock.core.errors import NotAllowed, TooManyRequests
from penstock.core.names import REPLICATOR_PREFIX
from penstock.core.units import NS_PER_S
from penstock.groups.group import set_groups
from penstock.groups.limit import blocker

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.publishing.resource_groups import Groups
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.core.clock import Clock
    from penstock.groups.limit import DispatchLimit
    from penstock.groups.ports import Throttles

# The owner of a mute for the broker's rate; topics use their names, which contain a scheme.
BROKER: Final = "broker"
_SUBSCRIPTION: Final = "Subscription"
_REPLICATOR: Final = "Replicator"
# Counts kept for the subscribe rate; beyond this number, those whose period has ended are removed.
_SUBSCRIBERS_KEPT: Final = 1_000


class Rates:
    """All rate limiters of the broker."""

    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, limits: Callable[[], PolicyDefaults], groups: Groups
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._limits = limits
        self._groups = groups
        self._publish: RatePublish | None = None
        self._dispatch: DispatchRate | None = None
        self._spent_publish = SpentLimiters[RatePublish](clock)
        self._spent_dispatch = SpentLimiters[DispatchRate](clock)  # of topics
        self._spent_subscriptions = SpentLimiters[DispatchRate](clock)  # by topic: names are the client's choice
        self._subscribes: dict[tuple[str, str | None], _Subscribes] = {}  # by topic and role
        self.throttling: Throttles[PublishedTopic] | None = None  # None: adaptive throttling is disabled
        self.refresh()

    # -- changes

    def refresh(self) -> bool:
        """Apply changed settings; returns whether all topics must be refreshed."""
        of = self._limits()
        before = (self._publish, self._dispatch)
        self._publish = self._publish_limiter(self._publish, BROKER, _broker_publish_rate(of))
        self._dispatch = self._dispatch_limiter(self._dispatch, "Broker", BROKER, None, _broker_dispatch_rate(of))
        group_deleted = self._groups.refresh()
        return group_deleted or before != (self._publish, self._dispatch)

    def topic_changed(self, topic: PublishedTopic) -> None:
        """Update the limiters of a topic that was loaded or whose policies changed."""
        old, rate = _own_limiter(topic), Rate() if topic.system else topic.policies.publish_rate
        own = self._publish_limiter(old or self._spent_publish.take(topic.text, topic.text), topic.text, rate)
        shared = None if topic.system else self._publish
        set_groups(topic, self._groups.named(topic.policies.resource_groups))
        self._set_publish_lines(topic, *(one for one in (own, shared) if one is not None))
        dispatch = topic.dispatch_limiter or _adopted(
            self._spent_dispatch.take(topic.text, topic.text), topic.text, topic
        )
        topic.dispatch_limiter = self._dispatch_limiter(
            dispatch, "Topic", topic.text, topic, topic.policies.dispatch_rate
        )
        for subscription in topic.subscriptions.values():
            self.subscription_changed(topic, subscription)

    def adaptive_changed(self, topic: PublishedTopic) -> None:
        """Update the limiters of a topic that is throttled adaptively from now on, or is not any more."""
        self._set_publish_lines(topic, *(one for one in topic.publish_lines if isinstance(one, RatePublish)))

    def _set_publish_lines(self, topic: PublishedTopic, *rates: RatePublish) -> None:
        before = topic.publish_lines
        throttles = self.throttling.lines(topic) if self.throttling is not None else ()
        groups = () if topic.system else (group.publish for group in topic.resource_groups)
        topic.publish_lines = (*rates, *groups, *throttles)
        if topic.publish_lines != before:
            for producer in list(topic.producers.values()):
                if topic.publish_lines:
                    producer.session.hold_sends()
                if producer.session.held is not None:
                    producer.session.held.look_again(producer)

    def subscription_changed(self, topic: PublishedTopic, subscription: Subscription) -> None:
        """Update the gate of a subscription that is new or whose rates changed."""
        if subscription.of_broker:
            return
        gate = gate_of(subscription)
        groups = tuple(group.dispatch for group in topic.resource_groups)
        policies = topic.policies
        kind, shared = _SUBSCRIPTION, (topic.dispatch_limiter, self._dispatch)
        rate = policies.subscription_dispatch_rates.get(subscription.name, policies.subscription_dispatch_rate)
        if subscription.name.startswith(REPLICATOR_PREFIX):
            # What goes to other clusters has a rate of its own, and leaves that of consumers to them.
            kind, shared, groups, rate = _REPLICATOR, (None, None), (), policies.replicator_dispatch_rate
        if gate is None and shared == (None, None) and not rate.limited and not groups:
            return
        gate = gate or DispatchGate(subscription, self._clock, self._limits)
        left = self._spent_subscriptions.take
        own = _own_rate(gate) or _adopted(left(topic.text, subscription.name), subscription.name, topic)
        own = self._dispatch_limiter(own, kind, subscription.name, topic, rate)
        rates = (own, *shared)
        before, gate.limits = gate.limits, (*(one for one in rates if one is not None), *groups)
        for limit in before:
            if limit not in gate.limits:
                limit.forget(subscription)
        subscription.gate = gate if gate.limits or gate.throttled else None
        subscription.wake()

    def exempt(self, subscription: Subscription) -> None:
        """Remove all limits of a subscription whose consumer is another broker; it has no other consumers."""
        self.forget_subscription(subscription)
        subscription.of_broker, subscription.gate = True, None

    @staticmethod
    def producer_added(producer: Producer) -> None:
        """Hold SENDs of a new producer when its topic has a limit."""
        if producer.topic.publish_lines:
            producer.session.hold_sends().added(producer)

    def forget_topic(self, topic: PublishedTopic) -> None:
        """Remove the limiters of a topic that is unloaded or deleted."""
        own = _own_limiter(topic)
        if own is not None:
            self._spent_publish.leave(topic.text, own)
        topic.publish_lines = ()
        if self.throttling is not None:
            self.throttling.forget_topic(topic)
        set_groups(topic, ())
        for subscription in topic.subscriptions.values():
            self._leave(subscription)
        if topic.dispatch_limiter is not None:
            topic.dispatch_limiter.vacate()
            self._spent_dispatch.leave(topic.text, topic.dispatch_limiter)
            topic.dispatch_limiter = None

    def topic_deleted(self, topic: str) -> None:
        """Its subscriptions do not come back: others inherit what is left of their limiters."""
        self._spent_subscriptions.orphan(topic)

    def forget_subscription(self, subscription: Subscription) -> None:
        """Remove the limiters of a subscription that does not come back: whoever is next inherits what is left."""
        self._leave(subscription, owner=NOBODY)

    def _leave(self, subscription: Subscription, owner: str | None = None) -> None:
        gate = gate_of(subscription)
        if gate is not None:
            for limit in gate.limits:
                limit.forget(subscription)
            own, gate.limits = _own_rate(gate), ()
            if own is not None:
                own.vacate()
                own.owner = subscription.name if owner is None else owner
                self._spent_subscriptions.leave(subscription.topic.text, own)

    def _publish_limiter(self, old: RatePublish | None, owner: str, rate: Rate) -> RatePublish | None:
        if not rate.limited:
            return None
        line = old or RatePublish(owner, self._clock, self._loop)
        line.set_share(share_of(rate))
        return line

    def _dispatch_limiter(
        self, old: DispatchRate | None, kind: str, owner: str, topic: PublishedTopic | None, rate: Rate
    ) -> DispatchRate | None:
        if not rate.limited:
            if old is not None:
                old.close()
            return None
        limiter = old or DispatchRate(kind, owner, topic, self._clock, self._loop)
        limiter.set_base(rate)
        return limiter

    # -- publishing without a producer

    def charge_publish(self, topic: PublishedTopic, nbytes: int) -> None:
        """Charge one message that is published over REST to all publish limits of its topic.

        Raises TooManyRequests if one of them is in debt: nothing waits here, as SENDs do.
        """
        now_ns = self._clock.monotonic_ns()
        limit = blocker(topic.publish_lines, now_ns)
        if limit is not None:
            what = f"what the {limit.hold.value} limit of {limit.owner} allows"
            raise TooManyRequests(f"{topic.text} has received {what}: try again in a second")
        for line in topic.publish_lines:
            line.accepted(1, nbytes, 1)

    # -- reading without a subscription

    def check_read(self, topic: PublishedTopic) -> None:
        """Check the dispatch limits that subscriptions of a topic share. Raises TooManyRequests if one is in debt."""
        limiter = blocker(self._shared_dispatch(topic), self._clock.monotonic_ns())
        if limiter is not None:
            what = f"what the dispatch rate of {limiter.owner} allows"
            raise TooManyRequests(f"{topic.text} has delivered {what}: try again in a second")

    def charge_read(self, topic: PublishedTopic, messages: int, nbytes: int) -> None:
        """Charge what was read over REST to the limits that all subscriptions of a topic share.

        Raises TooManyRequests as `check_read`: others may have used the rest while it was read.
        """
        self.check_read(topic)
        now_ns = self._clock.monotonic_ns()
        for limiter in self._shared_dispatch(topic):
            limiter.limiter.charge(messages, nbytes, now_ns)

    def _shared_dispatch(self, topic: PublishedTopic) -> list[DispatchLimit]:
        rates = (topic.dispatch_limiter, self._dispatch)
        return [*(group.dispatch for group in topic.resource_groups), *(rate for rate in rates if rate is not None)]

    # -- subscribing

    def check_subscribe(self, topic: PublishedTopic, role: str | None) -> None:
        """Count one SUBSCRIBE of a role. Raises NotAllowed if its clients exceed the rate.

        The rate is per consumer. But a client chooses the names of its consumers, and each could be a new one. So the
        consumers of a role are counted together: in each period, they may subscribe `rate` times for each that was
        attached at the same time, and for one more.
        """
        rate = topic.policies.subscribe_rate
        if not rate.limited:
            return
        now_ns = self._clock.monotonic_ns()
        key = (topic.text, role)
        seen = self._subscribes.get(key)
        if seen is None or now_ns - seen.began_ns >= rate.period_s * NS_PER_S:
            self._forget_subscribers(now_ns)
            seen = self._subscribes[key] = _Subscribes(now_ns, rate.period_s * NS_PER_S)
        attached = sum(
            consumer.session.payer_role == role
            for subscription in topic.subscriptions.values()
            for consumer in subscription.consumers
        )
        seen.consumers = max(seen.consumers, attached + 1)
        if seen.count >= rate.messages * seen.consumers:
            raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")
        seen.count += 1

    def _forget_subscribers(self, now_ns: int) -> None:
        """Remove counts whose period has ended."""
        if len(self._subscribes) >= _SUBSCRIBERS_KEPT:
            over = [key for key, seen in self._subscribes.items() if now_ns - seen.began_ns >= seen.period_ns]
            for key in over:
                del self._subscribes[key]


@dataclass(eq=False, slots=True)
class _Subscribes:
    """SUBSCRIBEs of one role to one topic in a period."""

    began_ns: int
    period_ns: int
    count: int = 0
    consumers: int = 0  # at most, at the same time


def _adopted(left: DispatchRate | None, owner: str, topic: PublishedTopic) -> DispatchRate | None:
    if left is not None:
        left.adopt(owner, topic)
    return left


def _own_rate(gate: DispatchGate) -> DispatchRate | None:
    """The subscription's own rate."""
    own = {_SUBSCRIPTION, _REPLICATOR}
    return next((one for one in gate.limits if isinstance(one, DispatchRate) and one.kind in own), None)


def _own_limiter(topic: PublishedTopic) -> RatePublish | None:
    """The topic's own rate."""
    return next((one for one in topic.publish_lines if isinstance(one, RatePublish) and one.owner != BROKER), None)


def _broker_publish_rate(of: PolicyDefaults) -> Rate:
    messages, nbytes = of.broker_publisher_throttling_max_message_rate, of.broker_publisher_throttling_max_byte_rate
    return Rate(max(0, messages), max(0, nbytes))


def _broker_dispatch_rate(of: PolicyDefaults) -> Rate:
    return Rate(max(0, of.dispatch_throttling_rate_in_msg), max(0, of.dispatch_throttling_rate_in_byte))
