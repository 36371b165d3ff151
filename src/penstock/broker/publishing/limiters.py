# SPDX-License-Identifier: Apache-2.0
"""Rates of topics, subscriptions and the broker, as limits; the gates of subscriptions; and rates whose owner is gone.

Where: `rates` makes limits from policies, and gives a subscription its gate, or none if no rate is set; the
subscription sees it as a port. `publish` charges publish rates, gates charge dispatch rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypedDict, TypeVar

from penstock.broker.policies.policy_values import Rate
from penstock.core.units import NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.resource_group import UNLIMITED, ClassLimiter, GroupRate
from penstock.groups.limit import DispatchLimit, PublishLimit

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.core.clock import Clock
    from penstock.storage.entry_log import Batch


# The owner of a limiter whose owner will not come back.
NOBODY: Final = ""


class Spent(Protocol):
    """A limiter, and whose it is."""

    owner: str

    def full(self, now_ns: int) -> bool:
        """Whether nothing is left of what was charged."""


LimiterT = TypeVar("LimiterT", bound=Spent)

# Beyond this number of names, those whose limiters are full again are removed. They are after a period, which may be
# long: so the next look is at twice as many as were left.
_NAMES_KEPT: Final = 1_000


class SpentLimiters(Generic[LimiterT]):
    """Limiters until they are full again, by the name of what they limited: each lets pass its rate and one burst.

    A limiter that went with its topic would forgive its debt whenever a client has the topic unloaded, or deletes it,
    and one that went with its subscription whenever a reader is opened anew. So who comes next takes what was left.
    """

    __slots__ = ("_clock", "_left", "_look_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[str, list[LimiterT]] = {}
        self._look_at = _NAMES_KEPT

    def leave(self, name: str, limiter: LimiterT) -> None:
        """Keep a limiter that nobody uses any more."""
        if len(self._left) >= self._look_at:
            for one in list(self._left):
                self._forget_full(one)
            self._look_at = max(_NAMES_KEPT, 2 * len(self._left))
        self._left.setdefault(name, []).append(limiter)
        self._forget_full(name)

    def take(self, name: str, owner: str) -> LimiterT | None:
        """Return what the owner has left under this name and is not full yet, or one that nobody will come back for.

        If owners that come back took those of others, some would be free of debt, and have the rest of all in turn.
        """
        self._forget_full(name)
        left = self._left.get(name, [])
        place = next((place for one in (owner, NOBODY) for place, at in enumerate(left) if at.owner == one), None)
        if place is None:
            return None
        limiter = left.pop(place)
        if not left:
            del self._left[name]
        return limiter

    def orphan(self, name: str) -> None:
        """Let others have what is left under this name: its owners are deleted."""
        for limiter in self._left.get(name, ()):
            limiter.owner = NOBODY

    def _forget_full(self, name: str) -> None:
        now_ns = self._clock.monotonic_ns()
        spent = [one for one in self._left.get(name, ()) if not one.full(now_ns)]
        if spent:
            self._left[name] = spent
        else:
            self._left.pop(name, None)


class RatePublish(PublishLimit):
    """Publish rate of one topic or of the broker: its producers wait in turn, and others on their connections go on."""

    hold: ClassVar[HoldKind] = HoldKind.PUBLISH_RATE

    __slots__ = ()

    def __init__(self, owner: str, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(owner, ClassLimiter(burst_ns=NS_PER_S), clock, loop)


class DispatchRate(DispatchLimit):
    """Dispatch rate of a subscription, a topic or the broker: its subscriptions wait in turn.

    Attributes:
        base: as it was set.
        rate: as it is in force: a relative rate has the publish rate added.
    """

    hold: ClassVar[HoldKind] = HoldKind.DISPATCH_RATE
    is_rate: ClassVar[bool] = True

    __slots__ = ("_published", "_published_ns", "_topic", "base", "kind", "rate")

    def __init__(
        self, kind: str, owner: str, topic: PublishedTopic | None, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(owner, ClassLimiter(), clock, loop)
        self.kind = kind
        self.base = self.rate = Rate()
        self._topic = topic
        self._published = (0, 0)
        self._published_ns = 0

    def vacate(self) -> None:
        """Wake all subscriptions that wait; the balance stays."""
        self._topic = None
        while self._line:
            self._line.pop().wake()
        self._rest_if_nobody_waits()

    def adopt(self, owner: str, topic: PublishedTopic | None) -> None:
        """Limit another topic or subscription from now on; the balance stays."""
        self.owner = owner
        self._topic = topic
        self.base = Rate()

    def close(self) -> None:
        """Remove the limit, and wake all subscriptions that wait."""
        self.limiter.set_share(UNLIMITED, self._clock.monotonic_ns())
        self.vacate()

    def set_base(self, rate: Rate) -> None:
        """Set the rate; a relative one is added to the publish rate."""
        if rate == self.base:
            return
        self.base = rate
        if rate.relative and self._topic is not None:
            self._published = (self._topic.messages_in, self._topic.bytes_in)
            self._published_ns = self._clock.monotonic_ns()
        self._set_rate(rate)

    def _set_rate(self, rate: Rate) -> None:
        self.rate = rate
        self.set_share(share_of(rate), rate.period_s * NS_PER_S)

    def follow(self, now_ns: int) -> None:
        """Once a period, update the publish rate that a relative rate is based on."""
        topic, base = self._topic, self.base
        passed_ns = now_ns - self._published_ns
        if topic is None or not base.relative or passed_ns < base.period_s * NS_PER_S:
            return
        messages, nbytes = topic.messages_in - self._published[0], topic.bytes_in - self._published[1]
        self._published, self._published_ns = (topic.messages_in, topic.bytes_in), now_ns
        period_ns = base.period_s * NS_PER_S
        self._set_rate(
            base._replace(
                messages=base.messages and base.messages + messages * period_ns // passed_ns,
                bytes=base.bytes and base.bytes + nbytes * period_ns // passed_ns,
            )
        )


def share_of(rate: Rate) -> GroupRate:
    return GroupRate(rate.messages or None, rate.bytes or None)


# A subscription this close to the end of its topic counts as caught up, as in Pulsar.
_KEEPS_UP_ENTRIES: Final = 1_000


class DispatchGate:
    """All limiters of a subscription, and how often each has stopped it."""

    __slots__ = ("_clock", "_limits", "_subscription", "held_by", "limits", "throttled")

    def __init__(self, subscription: Subscription, clock: Clock, limits: Callable[[], PolicyDefaults]) -> None:
        self._clock = clock
        self._limits = limits
        self._subscription = subscription
        self.limits: tuple[DispatchLimit, ...] = ()  # in the order in which they are asked
        self.held_by: DispatchLimit | None = None  # that has stopped it last
        # ("msg" or "bytes", "Subscription", "Topic", "Broker" or "Group") -> count
        self.throttled: dict[tuple[str, str], int] = {}

    def _excused(self) -> bool:
        """Whether rates do not limit a subscription that has caught up; groups always do."""
        subscription = self._subscription
        if self._limits().dispatch_throttling_on_non_backlog_consumer_enabled:
            return False
        return subscription.topic.last_entry_id - subscription.read_entry_id < _KEEPS_UP_ENTRIES

    def is_open(self) -> bool:
        """Whether the subscription may dispatch now. If not, it is woken when it may."""
        now_ns = self._clock.monotonic_ns()
        for limit in self.limits:
            limit.follow(now_ns)
            spent = limit.short_of(now_ns)
            if spent is not None and not (limit.is_rate and self._excused()):
                self._stop(spent, limit, now_ns)
                return False
        for limit in self.limits:
            limit.forget(self._subscription)
        return True

    @property
    def stopped_by(self) -> HoldKind:
        """Which kind of limit has stopped the subscription last."""
        return HoldKind.DISPATCH_RATE if self.held_by is None else self.held_by.hold

    def _stop(self, spent: str, limit: DispatchLimit, now_ns: int) -> None:
        subscription = self._subscription
        self.held_by = limit
        if limit.waits(subscription):
            return
        limit.wait(subscription, now_ns)
        if subscription.read_entry_id <= subscription.topic.last_entry_id:  # else nothing is delayed
            self.throttled[spent, limit.kind] = self.throttled.get((spent, limit.kind), 0) + 1

    def stop_row(self, batch: Batch, row: int, stop: int) -> int:
        """The end of the rows of a batch that may be dispatched: at least one row, within the limits' balance."""
        now_ns = self._clock.monotonic_ns()
        for limit in self._in_force():
            stop = _affordable(limit.left(now_ns), batch, row, stop)
        return stop

    def _in_force(self) -> Sequence[DispatchLimit]:
        return self.limits if not self._excused() else [limit for limit in self.limits if not limit.is_rate]

    def unstored_stop(self, batch: Batch, stop: int) -> int:
        """The end of the rows of a non-persistent topic that may be delivered; the others are dropped.

        Nothing waits, because nothing is stored.
        """
        now_ns = self._clock.monotonic_ns()
        for limit in self._in_force():
            limit.follow(now_ns)
            if limit.short_of(now_ns) is not None:
                return 0
            stop = _affordable(limit.left(now_ns), batch, 0, stop)
        return stop

    def entries_at_most(self, entries: int) -> int:
        """Limit of entries to read from the disk: more could not be dispatched."""
        now_ns = self._clock.monotonic_ns()
        lefts = [limit.left(now_ns)[0] for limit in self.limits]
        return min([entries, *(left for left in lefts if left is not None)])

    def delivered(self, entries: int, messages: int, nbytes: int) -> None:
        """Charge what was dispatched."""
        now_ns = self._clock.monotonic_ns()
        by_entry = self._limits().dispatch_throttling_on_batch_message_enabled
        for limit in self._in_force():
            count = entries if by_entry and limit.is_rate else messages
            limit.charge(self._subscription, count, nbytes, now_ns, entries)


def gate_of(subscription: Subscription) -> DispatchGate | None:
    gate = subscription.gate
    assert gate is None or isinstance(gate, DispatchGate), "no one else gives subscriptions a gate"
    return gate


class ThrottledEvents(TypedDict):
    """How often each kind of limiter has stopped a subscription, with the names of Pulsar's statistics."""

    dispatchThrottledMsgEventsBySubscriptionLimit: int
    dispatchThrottledBytesEventsBySubscriptionLimit: int
    dispatchThrottledMsgEventsByTopicLimit: int
    dispatchThrottledBytesEventsByTopicLimit: int
    dispatchThrottledMsgEventsByBrokerLimit: int
    dispatchThrottledBytesEventsByBrokerLimit: int


def throttled_events(subscription: Subscription) -> ThrottledEvents:
    counts = subscription.gate.throttled if subscription.gate is not None else {}
    return {
        "dispatchThrottledMsgEventsBySubscriptionLimit": counts.get(("msg", "Subscription"), 0),
        "dispatchThrottledBytesEventsBySubscriptionLimit": counts.get(("bytes", "Subscription"), 0),
        "dispatchThrottledMsgEventsByTopicLimit": counts.get(("msg", "Topic"), 0),
        "dispatchThrottledBytesEventsByTopicLimit": counts.get(("bytes", "Topic"), 0),
        "dispatchThrottledMsgEventsByBrokerLimit": counts.get(("msg", "Broker"), 0),
        "dispatchThrottledBytesEventsByBrokerLimit": counts.get(("bytes", "Broker"), 0),
    }


def _affordable(left: tuple[int | None, int | None], batch: Batch, row: int, stop: int) -> int:
    """The end of the rows that these messages and bytes pay for, at least one."""
    messages, nbytes = left
    if messages is not None:
        stop = _rows_of(messages, batch.message_counts, row, stop)
    return stop if nbytes is None else _rows_of(nbytes, batch.lengths, row, stop)


def _rows_of(left: int, amounts: Sequence[int] | None, row: int, stop: int) -> int:
    """The end of the rows whose amounts use up `left`."""
    if amounts is None:
        return min(stop, row + left)
    for at in range(row, stop):
        left -= amounts[at]
        if left <= 0:
            return at + 1
    return stop
