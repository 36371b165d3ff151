# SPDX-License-Identifier: Apache-2.0
"""Rates: how fast topics may be published to and delivered from, and how often consumers may subscribe.

Why: one loud producer or consumer shall not take what others on the machine need. A client is never refused for being
fast: while a publish rate is in debt its connection is not read, so TCP slows it down; while a delivery rate is in
debt its subscriptions deliver nothing.
Where: `publish` charges the limiters of a topic for each run it accepted; a subscription asks its gate before it
delivers and charges it after. One timer for each limiter in debt lets go of those who wait, in the order in which they
came, one at a time, and again only while the limiter is out of debt. Where no rate is set there is no limiter, and
nothing is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from penstock.broker.policies.policy_values import Rate
from penstock.core.errors import NotAllowed
from penstock.core.names import is_system_topic
from penstock.core.units import KIB, NS_PER_S
from penstock.governance.buckets import TokenBucket
from penstock.governance.muting import MuteReason
from penstock.net.connection import ARENA_BYTES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.core.clock import Clock
    from penstock.net.connection import Connection
    from penstock.storage.entry_log import Batch

# Who asks for a mute on behalf of the whole broker; topics ask in their own names, which hold a scheme.
BROKER: Final = "broker"
# A connection that publishes at a bounded rate is read in pieces of about a tenth of a second's worth, counted at the
# smallest frames there are: what one read brings is let in as a whole, and its debt is what its sender waits for.
_READS_PER_S: Final = 10
_FRAME_BYTES_MIN: Final = 64
_READ_BYTES_MIN: Final = KIB
# A subscription this close to the end of its topic keeps up, as Pulsar counts it.
_KEEPS_UP_ENTRIES: Final = 1_000
# So many consumers are remembered for the subscribe rate before those who are free to go on are forgotten.
_SUBSCRIBERS_KEPT: Final = 1_000


class Limiter:
    """Two buckets, messages and bytes, of which either may be missing, and the waking of those who wait for them."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_loop",
        "_messages",
        "_release",
        "_timer",
        "_waiting",
        "owner",
        "rate",
        "stepwise",
    )

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        owner: str,
        release: Callable[[object], None],
        *,
        stepwise: bool,
    ) -> None:
        self.owner = owner
        self.rate = Rate()
        self.stepwise = stepwise
        self._clock = clock
        self._loop = loop
        self._release = release
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._waiting: dict[object, None] = {}  # in the order in which they came
        self._timer: asyncio.Handle | None = None

    def set_rate(self, rate: Rate) -> None:
        """Go on at this rate; debts stay. Whoever waits is looked at again."""
        if rate == self.rate:
            return
        self.rate = rate
        self._messages = self._changed(self._messages, rate.messages)
        self._bytes = self._changed(self._bytes, rate.bytes)
        self._look_again()

    def _changed(self, bucket: TokenBucket | None, tokens: int) -> TokenBucket | None:
        if tokens <= 0:
            return None
        now_ns, period_ns = self._clock.monotonic_ns(), self.rate.period_s * NS_PER_S
        if bucket is None:
            return TokenBucket(tokens, now_ns, period_ns=period_ns, stepwise=self.stepwise)
        bucket.set_rate(tokens, now_ns, period_ns=period_ns)
        return bucket

    def close(self) -> None:
        """There is no limit any more."""
        self._messages = self._bytes = None
        self._look_again()

    def charge(self, messages: int, nbytes: int, now_ns: int) -> None:
        """So much went through."""
        if self._messages is not None:
            self._messages.consume(messages, now_ns)
        if self._bytes is not None:
            self._bytes.consume(nbytes, now_ns)

    def short_of(self, now_ns: int) -> str | None:
        """What is spent: "msg" or "bytes"; None while there is some of both."""
        if self._messages is not None and self._messages.in_debt(now_ns):
            return "msg"
        if self._bytes is not None and self._bytes.in_debt(now_ns):
            return "bytes"
        return None

    def messages_left(self, now_ns: int) -> int | None:
        """Messages that may go before the next wait; None: any number."""
        return None if self._messages is None else max(1, self._messages.available(now_ns))

    def bytes_left(self, now_ns: int) -> int | None:
        """Bytes that may go before the next wait; None: any number."""
        return None if self._bytes is None else max(1, self._bytes.available(now_ns))

    # -- waiting

    def waits(self, who: object) -> bool:
        """Whether this one is in the line."""
        return who in self._waiting

    def wait(self, who: object, now_ns: int) -> None:
        """Release this one when it is its turn and the debt is repaid."""
        self._waiting[who] = None
        if self._timer is None:
            self._set_timer(now_ns)

    def forget(self, who: object) -> None:
        """This one is gone."""
        self._waiting.pop(who, None)

    def _set_timer(self, now_ns: int) -> None:
        ready_ns = max((b.ready_at_ns() for b in (self._messages, self._bytes) if b is not None), default=now_ns)
        self._timer = self._loop.call_later(max(0, ready_ns - now_ns) / NS_PER_S, self.wake)

    def _look_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self.wake()

    def wake(self) -> None:
        """Let go of the first in line; of the next once it is seen what that one brings."""
        self._timer = None
        if not self._waiting:
            return
        now_ns = self._clock.monotonic_ns()
        if self.short_of(now_ns) is not None:
            self._set_timer(now_ns)
            return
        first = next(iter(self._waiting))
        del self._waiting[first]
        self._release(first)
        if self._waiting and self._timer is None:
            # Behind the read that was just asked for, in the same turn of the loop.
            self._timer = self._loop.call_soon(self.wake)


class PublishLimiter(Limiter):
    """The rate at which one topic, or the whole broker, takes messages. Those who wait are muted connections."""

    __slots__ = ()

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, owner: str) -> None:
        super().__init__(clock, loop, owner, self._unmute, stepwise=False)  # type: ignore[arg-type]

    def accepted(self, connection: Connection, messages: int, nbytes: int) -> bool:
        """A run was accepted: charge it, and in debt read no more from whoever sent it; True when that begins now."""
        now_ns = self._clock.monotonic_ns()
        self.charge(messages, nbytes, now_ns)
        if self.short_of(now_ns) is None or self.waits(connection):
            return False
        connection.mute(MuteReason.PUBLISH_RATE, self.owner)
        self.wait(connection, now_ns)
        return True

    def _unmute(self, connection: Connection) -> None:
        connection.unmute(MuteReason.PUBLISH_RATE, self.owner)

    @property
    def read_bytes(self) -> int:
        """How much of a connection that it limits is read at once."""
        rate = self.rate
        amounts = [rate.messages * _FRAME_BYTES_MIN if rate.messages else None, rate.bytes or None]
        least = min((amount for amount in amounts if amount is not None), default=ARENA_BYTES * _READS_PER_S)
        return max(_READ_BYTES_MIN, min(ARENA_BYTES, least // _READS_PER_S))


class DispatchLimiter(Limiter):
    """The rate at which a subscription, a topic or the broker delivers. Those who wait are subscriptions."""

    __slots__ = ("_published", "_published_ns", "_topic", "base")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, owner: str, topic: PublishedTopic | None) -> None:
        super().__init__(clock, loop, owner, _wake, stepwise=True)  # type: ignore[arg-type]
        self.base = Rate()
        self._topic = topic
        self._published = (0, 0)
        self._published_ns = 0

    def set_base(self, rate: Rate) -> None:
        """The rate as it is set; a relative one is what is published and so much more."""
        if rate == self.base:
            return
        self.base = rate
        if rate.relative and self._topic is not None:
            self._published = (self._topic.messages_in, self._topic.bytes_in)
            self._published_ns = self._clock.monotonic_ns()
        self.set_rate(rate)

    def follow(self, now_ns: int) -> None:
        """Once a period, learn of a relative rate's topic what was published in it."""
        topic, base = self._topic, self.base
        passed_ns = now_ns - self._published_ns
        if topic is None or not base.relative or passed_ns < base.period_s * NS_PER_S:
            return
        messages, nbytes = topic.messages_in - self._published[0], topic.bytes_in - self._published[1]
        self._published, self._published_ns = (topic.messages_in, topic.bytes_in), now_ns
        period_ns = base.period_s * NS_PER_S
        self.set_rate(
            base._replace(
                messages=base.messages and base.messages + messages * period_ns // passed_ns,
                bytes=base.bytes and base.bytes + nbytes * period_ns // passed_ns,
            )
        )


def _wake(subscription: Subscription) -> None:
    subscription.wake()


class DispatchGate:
    """What one subscription asks before it delivers: all limiters that hold for it, and how often each stopped it."""

    __slots__ = ("_clock", "_limits", "_subscription", "limiters", "throttled")

    def __init__(self, subscription: Subscription, clock: Clock, limits: Callable[[], PolicyDefaults]) -> None:
        self._clock = clock
        self._limits = limits
        self._subscription = subscription
        self.limiters: tuple[tuple[str, DispatchLimiter], ...] = ()
        # ("msg" or "bytes", "Subscription", "Topic" or "Broker") -> how often
        self.throttled: dict[tuple[str, str], int] = {}

    def _excused(self) -> bool:
        subscription = self._subscription
        if self._limits().dispatch_throttling_on_non_backlog_consumer_enabled:
            return False
        return subscription.topic.last_entry_id - subscription.read_entry_id < _KEEPS_UP_ENTRIES

    def is_open(self) -> bool:
        """Whether it may deliver now. If not, it is woken when it may."""
        now_ns = self._clock.monotonic_ns()
        for kind, limiter in self.limiters:
            limiter.follow(now_ns)
            spent = limiter.short_of(now_ns)
            if spent is not None and not self._excused():
                self._stop(kind, spent, limiter, now_ns)
                return False
        for _, limiter in self.limiters:
            limiter.forget(self._subscription)
        return True

    def _stop(self, kind: str, spent: str, limiter: DispatchLimiter, now_ns: int) -> None:
        subscription = self._subscription
        if limiter.waits(subscription):
            return
        limiter.wait(subscription, now_ns)
        if subscription.read_entry_id <= subscription.topic.last_entry_id:  # There is something that it holds up.
            self.throttled[spent, kind] = self.throttled.get((spent, kind), 0) + 1

    def stop_row(self, batch: Batch, row: int, stop: int) -> int:
        """How far into these rows of a batch it may go: at least one, and what the limiters have left."""
        if self._excused():
            return stop
        now_ns = self._clock.monotonic_ns()
        for _, limiter in self.limiters:
            messages, nbytes = limiter.messages_left(now_ns), limiter.bytes_left(now_ns)
            if messages is not None:
                stop = _rows_of(messages, batch.message_counts, row, stop)
            if nbytes is not None:
                stop = _rows_of(nbytes, batch.lengths, row, stop)
        return stop

    def entries_at_most(self, entries: int) -> int:
        """How many entries are worth reading from the disk: no more can go out."""
        now_ns = self._clock.monotonic_ns()
        lefts = [limiter.messages_left(now_ns) for _, limiter in self.limiters]
        return min([entries, *(left for left in lefts if left is not None)])

    def delivered(self, entries: int, messages: int, nbytes: int) -> None:
        """So much was delivered."""
        if self._excused():
            return
        if self._limits().dispatch_throttling_on_batch_message_enabled:
            messages = entries
        now_ns = self._clock.monotonic_ns()
        for _, limiter in self.limiters:
            limiter.charge(messages, nbytes, now_ns)


def _gate_of(subscription: Subscription) -> DispatchGate | None:
    gate = subscription.gate
    assert gate is None or isinstance(gate, DispatchGate), "no one else gives subscriptions a gate"
    return gate


class ThrottledEvents(TypedDict):
    """How often each kind of limiter stopped a subscription, under the names of Pulsar's statistics."""

    dispatchThrottledMsgEventsBySubscriptionLimit: int
    dispatchThrottledBytesEventsBySubscriptionLimit: int
    dispatchThrottledMsgEventsByTopicLimit: int
    dispatchThrottledBytesEventsByTopicLimit: int
    dispatchThrottledMsgEventsByBrokerLimit: int
    dispatchThrottledBytesEventsByBrokerLimit: int


def throttled_events(subscription: Subscription) -> ThrottledEvents:
    """How often each kind of limiter stopped a subscription."""
    counts = subscription.gate.throttled if subscription.gate is not None else {}
    return {
        "dispatchThrottledMsgEventsBySubscriptionLimit": counts.get(("msg", "Subscription"), 0),
        "dispatchThrottledBytesEventsBySubscriptionLimit": counts.get(("bytes", "Subscription"), 0),
        "dispatchThrottledMsgEventsByTopicLimit": counts.get(("msg", "Topic"), 0),
        "dispatchThrottledBytesEventsByTopicLimit": counts.get(("bytes", "Topic"), 0),
        "dispatchThrottledMsgEventsByBrokerLimit": counts.get(("msg", "Broker"), 0),
        "dispatchThrottledBytesEventsByBrokerLimit": counts.get(("bytes", "Broker"), 0),
    }


def _rows_of(left: int, amounts: Iterable[int] | None, row: int, stop: int) -> int:
    """The row behind the one with which `left` is used up."""
    if amounts is None:
        return min(stop, row + left)
    for at in range(row, stop):
        left -= amounts[at]  # type: ignore[index]
        if left <= 0:
            return at + 1
    return stop


class Rates:
    """All limiters of the broker."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, limits: Callable[[], PolicyDefaults]) -> None:
        self._clock = clock
        self._loop = loop
        self._limits = limits
        self._publish: PublishLimiter | None = None
        self._dispatch: DispatchLimiter | None = None
        self._subscribers: dict[tuple[str, str, str, int], TokenBucket] = {}
        self.refresh()

    # -- changes

    def refresh(self) -> bool:
        """The configuration may have changed; says whether all topics must be looked at for it."""
        of = self._limits()
        before = (self._publish, self._dispatch)
        self._publish = self._publish_limiter(self._publish, BROKER, _broker_publish_rate(of))
        self._dispatch = self._dispatch_limiter(self._dispatch, BROKER, None, _broker_dispatch_rate(of))
        return before != (self._publish, self._dispatch)

    def topic_changed(self, topic: PublishedTopic) -> None:
        """A topic was loaded, or its policies are others now."""
        exempt = is_system_topic(topic.text)
        old = next((one for one in topic.publish_limiters if one.owner != BROKER), None)
        own = self._publish_limiter(old, topic.text, Rate() if exempt else topic.policies.publish_rate)
        limiters = (own, None if exempt else self._publish)
        before = topic.publish_limiters
        topic.publish_limiters = tuple(one for one in limiters if one is not None)
        if before or topic.publish_limiters:
            for producer in list(topic.producers.values()):
                self.producer_changed(producer)
        topic.dispatch_limiter = self._dispatch_limiter(
            topic.dispatch_limiter, topic.text, topic, Rate() if exempt else topic.policies.dispatch_rate
        )
        for subscription in topic.subscriptions.values():
            self.subscription_changed(topic, subscription)

    def subscription_changed(self, topic: PublishedTopic, subscription: Subscription) -> None:
        """A subscription was loaded or made, or what holds for it is another rate now."""
        gate = _gate_of(subscription)
        policies = topic.policies
        rate = policies.subscription_dispatch_rates.get(subscription.name, policies.subscription_dispatch_rate)
        exempt = is_system_topic(topic.text)
        if gate is None and topic.dispatch_limiter is None and self._dispatch is None and not rate.limited:
            return
        limiters = dict(gate.limiters) if gate is not None else {}
        own = self._dispatch_limiter(limiters.get("Subscription"), subscription.name, topic, Rate() if exempt else rate)
        shared = None if exempt else self._dispatch
        found = (("Subscription", own), ("Topic", topic.dispatch_limiter), ("Broker", shared))
        gate = gate or DispatchGate(subscription, self._clock, self._limits)
        gate.limiters = tuple((kind, limiter) for kind, limiter in found if limiter is not None)
        subscription.gate = gate if gate.limiters or gate.throttled else None
        subscription.wake()

    def producer_changed(self, producer: Producer) -> None:
        """A producer came or went, or its topic's rate is another: read its connection in pieces that fit."""
        session = producer.session
        unbounded = session.connection.read_bytes_max == ARENA_BYTES and not producer.topic.publish_limiters
        if unbounded or not session.connection.is_open:
            return  # A connection may have very many producers: nothing is looked up where no rate is.
        limits = [one.read_bytes for each in session.producers.values() for one in each.topic.publish_limiters]
        session.connection.read_bytes_max = min(limits, default=ARENA_BYTES)

    def forget_topic(self, topic: PublishedTopic) -> None:
        """The topic is being unloaded or deleted: nobody waits for it any more."""
        for limiter in topic.publish_limiters:
            if limiter.owner != BROKER:
                limiter.close()
        topic.publish_limiters = ()
        for subscription in topic.subscriptions.values():
            self.forget_subscription(subscription)
        if topic.dispatch_limiter is not None:
            topic.dispatch_limiter.close()
            topic.dispatch_limiter = None

    def forget_subscription(self, subscription: Subscription) -> None:
        """It is gone."""
        gate = _gate_of(subscription)
        if gate is not None:
            for _, limiter in gate.limiters:
                limiter.forget(subscription)

    def _publish_limiter(self, old: PublishLimiter | None, owner: str, rate: Rate) -> PublishLimiter | None:
        if not rate.limited:
            if old is not None:
                old.close()
            return None
        limiter = old or PublishLimiter(self._clock, self._loop, owner)
        limiter.set_rate(rate)
        return limiter

    def _dispatch_limiter(
        self, old: DispatchLimiter | None, owner: str, topic: PublishedTopic | None, rate: Rate
    ) -> DispatchLimiter | None:
        if not rate.limited:
            if old is not None:
                old.close()
            return None
        limiter = old or DispatchLimiter(self._clock, self._loop, owner, topic)
        limiter.set_base(rate)
        return limiter

    # -- subscribing

    def check_subscribe(self, topic: PublishedTopic, address: str, consumer_name: str, consumer_id: int) -> None:
        """Count one subscribe of a consumer. Raises NotAllowed when it comes too often."""
        rate = topic.policies.subscribe_rate
        if not rate.limited:
            return
        now_ns = self._clock.monotonic_ns()
        key = (topic.text, address, consumer_name, consumer_id)
        bucket = self._subscribers.get(key)
        if bucket is None:
            self._forget_subscribers(now_ns)
            bucket = TokenBucket(rate.messages, now_ns, period_ns=rate.period_s * NS_PER_S, stepwise=True)
            self._subscribers[key] = bucket
        elif (bucket.rate, bucket.period_ns) != (rate.messages, rate.period_s * NS_PER_S):
            bucket.set_rate(rate.messages, now_ns, period_ns=rate.period_s * NS_PER_S)
        if bucket.in_debt(now_ns):
            raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")
        bucket.consume(1, now_ns)

    def _forget_subscribers(self, now_ns: int) -> None:
        """Whoever has not subscribed for a period is as one who never did."""
        if len(self._subscribers) >= _SUBSCRIBERS_KEPT:
            full = [key for key, bucket in self._subscribers.items() if bucket.available(now_ns) == bucket.rate]
            for key in full:
                del self._subscribers[key]


def _broker_publish_rate(of: PolicyDefaults) -> Rate:
    messages, nbytes = of.broker_publisher_throttling_max_message_rate, of.broker_publisher_throttling_max_byte_rate
    return Rate(max(0, messages), max(0, nbytes))


def _broker_dispatch_rate(of: PolicyDefaults) -> Rate:
    return Rate(max(0, of.dispatch_throttling_rate_in_msg), max(0, of.dispatch_throttling_rate_in_byte))
