# SPDX-License-Identifier: Apache-2.0
"""Limiters: buckets of messages and bytes, and the waking of those who wait for them to fill.

One timer for each limiter in debt lets go of those who wait, in the order in which they came, one at a time, and again
only while the limiter is out of debt.
Where: `rates` makes them as policies say; `publish` charges those of publishing, `dispatch_gate` those of delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.broker.policies.policy_values import Rate
from penstock.broker.subscriptions.memory_waits import Waiting
from penstock.core.units import KIB, NS_PER_S
from penstock.governance.buckets import TokenBucket
from penstock.governance.muting import MuteReason
from penstock.net.connection import ARENA_BYTES, Connection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.core.clock import Clock

T = TypeVar("T")

# A connection that publishes at a bounded rate is read in pieces of about a tenth of a second's worth, counted at the
# smallest frames there are: what one read brings is let in as a whole, and its debt is what its sender waits for.
_READS_PER_S: Final = 10
_FRAME_BYTES_MIN: Final = 64
_READ_BYTES_MIN: Final = KIB


class Limiter(Generic[T]):
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
        self._waiting: dict[T, None] = {}  # in the order in which they came
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

    def waits(self, who: T) -> bool:
        """Whether this one is in the line."""
        return who in self._waiting

    def wait(self, who: T, now_ns: int) -> None:
        """Release this one when it is its turn and the debt is repaid."""
        self._waiting[who] = None
        if self._timer is None:
            self._set_timer(now_ns)

    def forget(self, who: T) -> None:
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


class PublishLimiter(Limiter[Connection]):
    """The rate at which one topic, or the whole broker, takes messages. Those who wait are muted connections."""

    __slots__ = ()

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, owner: str) -> None:
        super().__init__(clock, loop, owner, self._unmute, stepwise=False)

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


class DispatchLimiter(Limiter[Waiting]):
    """The rate at which a subscription, a topic or the broker delivers. Those who wait are subscriptions."""

    __slots__ = ("_published", "_published_ns", "_topic", "base")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, owner: str, topic: PublishedTopic | None) -> None:
        super().__init__(clock, loop, owner, _wake, stepwise=True)
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


def _wake(subscription: Waiting) -> None:
    subscription.wake()
