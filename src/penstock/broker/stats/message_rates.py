# SPDX-License-Identifier: Apache-2.0
"""Rates, computed from samples of counters.

Why samples: counters are updated once per run on the hot paths, and rates are requested rarely. So the counters of all
loaded topics are sampled every half a minute. A rate is the increase since the older of two samples, divided by the
time since: a mean over the last 30 to 60 seconds.
Where: the broker's tick samples; statistics and snapshots read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.broker.publishing.producer import Producer
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock

    Counted: TypeAlias = Topic | Subscription | Producer | Consumer
    Key: TypeAlias = tuple[int, object]

NOTE_INTERVAL_NS: Final = 30 * NS_PER_S
# Objects sampled in one turn of the loop: about half a millisecond.
ROWS_PER_TURN: Final = 500


class In(NamedTuple):
    """Counters or rates of messages received by a topic or from a producer."""

    messages: float
    bytes: float


class Out(NamedTuple):
    """Counters or rates of messages delivered by a subscription or to a consumer, and acknowledged."""

    messages: float
    bytes: float
    acks: float
    redelivered: float
    expired: float
    dropped: float


_NO_IN: Final = In(0, 0)
_NO_OUT: Final = Out(0, 0, 0, 0, 0, 0)


class _Notes(NamedTuple):
    """One sample, by `_key`: it must not keep removed objects and their buffers alive."""

    at_ns: int
    rates_in: dict[Key, In]
    rates_out: dict[Key, Out]


class MessageRates:
    """The last two samples of all loaded topics."""

    def __init__(self, loaded: Callable[[], Iterable[Topic]], *, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._loaded = loaded  # returns the loaded topics
        self._clock = clock
        self._loop = loop
        now_ns = clock.monotonic_ns()
        # An object without a sample was created after it, with counters of zero.
        self._older = self._newer = _Notes(now_ns, {}, {})
        self._noting: asyncio.Task[None] | None = None

    def tick(self, now_ns: int) -> None:
        """Start the next sample if it is due; it is taken in portions."""
        if now_ns - self._newer.at_ns >= NOTE_INTERVAL_NS and self._noting is None:
            self._noting = self._loop.create_task(self._note(now_ns))
            self._noting.add_done_callback(self._noted)

    def stop(self) -> None:
        if self._noting is not None:
            self._noting.cancel()

    def _noted(self, _task: asyncio.Task[None]) -> None:
        self._noting = None

    async def _note(self, now_ns: int) -> None:
        notes = _Notes(now_ns, {}, {})
        rows = 0
        for topic in self._loaded():
            rows += 1 + _note_topic(notes, topic)
            if rows >= ROWS_PER_TURN:
                rows = 0
                await asyncio.sleep(0)
        self._older, self._newer = self._newer, notes

    def rates_in(self, what: Topic | Producer) -> In:
        """Messages and bytes received per second."""
        now = what.messages_in, what.bytes_in
        before = self._older.rates_in.get(_key(what), _NO_IN)
        return _NO_IN if now == before else In(*self._grown(now, before))

    def rates_out(self, what: Subscription | Consumer) -> Out:
        """Messages and bytes delivered, and acknowledgements, per second."""
        now = _out(what)
        before = self._older.rates_out.get(_key(what), _NO_OUT)
        return _NO_OUT if now == before else Out(*self._grown(now, before))

    def _grown(self, now: Iterable[float], before: Iterable[float]) -> list[float]:
        # A minimum of seconds, so that one message does not look like a high rate.
        seconds = max(1.0, (self._clock.monotonic_ns() - self._older.at_ns) / NS_PER_S)
        # A counter below its sample belongs to a new object of the same name.
        return [(count - then if count >= then else count) / seconds for count, then in zip(now, before, strict=True)]


def _note_topic(notes: _Notes, topic: Topic) -> int:
    """Sample the non-zero counters of a topic; returns the number of objects visited."""
    rows = len(topic.producers)
    if topic.messages_in:
        notes.rates_in[_key(topic)] = In(topic.messages_in, topic.bytes_in)
        for producer in topic.producers.values():
            notes.rates_in[_key(producer)] = In(producer.messages_in, producer.bytes_in)
    for subscription in topic.subscriptions.values():
        notes.rates_out[_key(subscription)] = _out(subscription)
        for consumer in subscription.consumers:
            notes.rates_out[_key(consumer)] = _out(consumer)
        rows += 1 + len(subscription.consumers)
    return rows


def _key(what: Counted) -> Key:
    return id(what), what.name


def _out(what: Subscription | Consumer) -> Out:
    return Out(
        what.messages_out,
        what.bytes_out,
        what.acks,
        what.messages_redelivered,
        getattr(what, "expired", 0),
        getattr(what, "dropped", 0),
    )
