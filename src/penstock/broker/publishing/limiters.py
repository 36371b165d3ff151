# SPDX-License-Identifier: Apache-2.0
"""Rate limiters of topics, subscriptions and the broker.

Publish rates are lines in which producers wait, as those of resource groups. A dispatch limiter is a pair of token
buckets, and a queue of subscriptions: in debt it has one timer, which wakes them in order, one at a time.
Where: `rates` makes them from policies; `publish` charges publish rates, `dispatch_gate` dispatch limiters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from penstock.broker.policies.policy_values import Rate
from penstock.broker.subscriptions.memory_waits import Waiting
from penstock.core.units import NS_PER_S
from penstock.governance.buckets import TokenBucket
from penstock.governance.muting import MuteReason
from penstock.governance.resource_group import ClassLimiter, GroupRate
from penstock.groups.group_publish import GroupPublish

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.core.clock import Clock

T = TypeVar("T")


class Limiter(Generic[T]):
    """Two token buckets, messages and bytes, either of which may be missing, and a queue of waiters."""

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
        release: Callable[[T], None],
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
        self._waiting: dict[T, int] = {}  # in order of arrival, and since when
        self._timer: asyncio.Handle | None = None

    def set_rate(self, rate: Rate) -> None:
        """Change the rate; debts remain. The first waiter is checked again."""
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
        """Remove the limit and wake the waiters."""
        self._messages = self._bytes = None
        self._look_again()

    def vacate(self) -> None:
        """Release all waiters; the balance stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for who in waiting:
            self._release(who)

    def full(self, now_ns: int) -> bool:
        """Whether nothing is left of what was charged."""
        return all(bucket.full(now_ns) for bucket in (self._messages, self._bytes) if bucket is not None)

    def charge(self, messages: int, nbytes: int, now_ns: int) -> None:
        if self._messages is not None:
            self._messages.consume(messages, now_ns)
        if self._bytes is not None:
            self._bytes.consume(nbytes, now_ns)

    def short_of(self, now_ns: int) -> str | None:
        """Which bucket is empty: "msg" or "bytes"; None if neither is."""
        if self._messages is not None and self._messages.in_debt(now_ns):
            return "msg"
        if self._bytes is not None and self._bytes.in_debt(now_ns):
            return "bytes"
        return None

    def messages_left(self, now_ns: int) -> int | None:
        """Messages allowed before the next wait; None: no limit."""
        return None if self._messages is None else max(1, self._messages.available(now_ns))

    def bytes_left(self, now_ns: int) -> int | None:
        """Bytes allowed before the next wait; None: no limit."""
        return None if self._bytes is None else max(1, self._bytes.available(now_ns))

    # -- waiting

    def waits(self, who: T) -> bool:
        return who in self._waiting

    def waits_since_ns(self, who: T) -> int | None:
        return self._waiting.get(who)

    def balances(self, now_ns: int) -> dict[str, int]:
        """Whole messages and bytes that are left, negative in debt; without those that are not limited."""
        buckets = (("messages", self._messages), ("bytes", self._bytes))
        return {name: bucket.available(now_ns) for name, bucket in buckets if bucket is not None}

    def wait(self, who: T, now_ns: int) -> None:
        """Add a waiter; it is woken in its turn when the debt is repaid."""
        self._waiting.setdefault(who, now_ns)
        if self._timer is None:
            self._set_timer(now_ns)

    def forget(self, who: T) -> None:
        self._waiting.pop(who, None)

    def delay_ns(self, now_ns: int) -> int:
        """After how many nanoseconds a limiter in debt is ready if nothing more is charged."""
        ready_ns = max((b.ready_at_ns() for b in (self._messages, self._bytes) if b is not None), default=now_ns)
        return max(0, ready_ns - now_ns)

    def _set_timer(self, now_ns: int) -> None:
        self._timer = self._loop.call_later(self.delay_ns(now_ns) / NS_PER_S, self.wake)

    def _look_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self.wake()

    def wake(self) -> None:
        """Wake the first waiter; the next one follows after the first one's amount is known."""
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
            # After the read that was just scheduled, in the same turn of the loop.
            self._timer = self._loop.call_soon(self.wake)


class RatePublish(GroupPublish):
    """Publish rate of one topic or of the broker: its producers wait in turn, and others on their connections go on.

    Attributes:
        rate: as it was set.
    """

    reason: ClassVar[MuteReason] = MuteReason.PUBLISH_RATE

    __slots__ = ("rate",)

    def __init__(self, owner: str, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(owner, ClassLimiter(burst_ns=NS_PER_S), clock, loop, _evenly)
        self.rate = Rate()

    def set_rate(self, rate: Rate) -> None:
        """Change the rate; debts remain. Waiters that may pass now do."""
        if rate != self.rate:
            self.rate = rate
            self.limiter.set_share(GroupRate(rate.messages or None, rate.bytes or None), self._clock.monotonic_ns())
            self.look_again()


class DispatchLimiter(Limiter[Waiting]):
    """Dispatch rate of a subscription, a topic or the broker. The waiters are subscriptions."""

    __slots__ = ("_published", "_published_ns", "_topic", "base")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, owner: str, topic: PublishedTopic | None) -> None:
        super().__init__(clock, loop, owner, _wake, stepwise=True)
        self.base = Rate()
        self._topic = topic
        self._published = (0, 0)
        self._published_ns = 0

    def vacate(self) -> None:
        super().vacate()
        self._topic = None

    def adopt(self, owner: str, topic: PublishedTopic | None) -> None:
        """Limit another topic or subscription from now on; the balance stays."""
        self.owner = owner
        self._topic = topic
        self.base = Rate()

    def set_base(self, rate: Rate) -> None:
        """Set the rate; a relative one is added to the publish rate."""
        if rate == self.base:
            return
        self.base = rate
        if rate.relative and self._topic is not None:
            self._published = (self._topic.messages_in, self._topic.bytes_in)
            self._published_ns = self._clock.monotonic_ns()
        self.set_rate(rate)

    def follow(self, now_ns: int) -> None:
        """Once a period, update the publish rate that a relative rate is based on."""
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


def _evenly() -> bool:
    return False


def _wake(subscription: Waiting) -> None:
    subscription.wake()
