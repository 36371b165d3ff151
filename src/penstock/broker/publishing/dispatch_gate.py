# SPDX-License-Identifier: Apache-2.0
"""The dispatch rate limiters of one subscription.

Where: `rates` gives a subscription its gate, or none if no rate is set; the subscription sees it as a port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from penstock.governance.holds import HoldKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.core.clock import Clock
    from penstock.groups.dispatch_limit import DispatchLimit
    from penstock.storage.entry_log import Batch

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
