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
    from penstock.broker.publishing.limiters import DispatchRate
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.core.clock import Clock
    from penstock.groups.group_dispatch import GroupDispatch
    from penstock.storage.entry_log import Batch

# A subscription this close to the end of its topic counts as caught up, as in Pulsar.
_KEEPS_UP_ENTRIES: Final = 1_000


class DispatchGate:
    """All limiters of a subscription, and how often each has stopped it."""

    __slots__ = ("_clock", "_limits", "_subscription", "groups", "held_by", "limiters", "throttled")

    def __init__(self, subscription: Subscription, clock: Clock, limits: Callable[[], PolicyDefaults]) -> None:
        self._clock = clock
        self._limits = limits
        self._subscription = subscription
        self.limiters: tuple[tuple[str, DispatchRate], ...] = ()
        self.groups: tuple[GroupDispatch, ...] = ()  # these limit every subscription, also one that has caught up
        self.held_by: tuple[str, GroupDispatch] | None = None  # that has stopped it last
        # ("msg" or "bytes", "Subscription", "Topic", "Broker" or "Group") -> count
        self.throttled: dict[tuple[str, str], int] = {}

    def _excused(self) -> bool:
        subscription = self._subscription
        if self._limits().dispatch_throttling_on_non_backlog_consumer_enabled:
            return False
        return subscription.topic.last_entry_id - subscription.read_entry_id < _KEEPS_UP_ENTRIES

    def is_open(self) -> bool:
        """Whether the subscription may dispatch now. If not, it is woken when it may."""
        now_ns = self._clock.monotonic_ns()
        for kind, limiter in self.limiters:
            limiter.follow(now_ns)
            spent = limiter.short_of(now_ns)
            if spent is not None and not self._excused():
                self._stop(kind, spent, limiter, now_ns)
                return False
        for group in self.groups:
            spent = group.short_of(now_ns)
            if spent is not None:
                self._stop("Group", spent, group, now_ns)
                return False
        for one in self._all():
            one.forget(self._subscription)
        return True

    def _all(self) -> list[GroupDispatch]:
        return [*(limiter for _, limiter in self.limiters), *self.groups]

    @property
    def stopped_by(self) -> HoldKind:
        """Which kind of limit has stopped the subscription last."""
        return (
            HoldKind.GROUP_QUOTA if self.held_by is not None and self.held_by[0] == "Group" else HoldKind.DISPATCH_RATE
        )

    def limits_by(self, limiter: GroupDispatch) -> bool:
        """Whether a limit is still one of the subscription's."""
        return any(limiter is one for one in self._all())

    def _stop(self, kind: str, spent: str, limiter: GroupDispatch, now_ns: int) -> None:
        subscription = self._subscription
        self.held_by = (kind, limiter)
        if limiter.waits(subscription):
            return
        limiter.wait(subscription, now_ns)
        if subscription.read_entry_id <= subscription.topic.last_entry_id:  # else nothing is delayed
            self.throttled[spent, kind] = self.throttled.get((spent, kind), 0) + 1

    def stop_row(self, batch: Batch, row: int, stop: int) -> int:
        """The end of the rows of a batch that may be dispatched: at least one row, within the limiters' balance."""
        now_ns = self._clock.monotonic_ns()
        for limiter in self._in_force():
            stop = _affordable(limiter.left(now_ns), batch, row, stop)
        return stop

    def _in_force(self) -> list[GroupDispatch]:
        return [*self.groups, *(() if self._excused() else (limiter for _, limiter in self.limiters))]

    def unstored_stop(self, batch: Batch, stop: int) -> int:
        """The end of the rows of a non-persistent topic that may be delivered; the others are dropped.

        Nothing waits, because nothing is stored.
        """
        now_ns = self._clock.monotonic_ns()
        for _, rate in self.limiters:
            rate.follow(now_ns)
        for limiter in self._in_force():
            if limiter.short_of(now_ns) is not None:
                return 0
            stop = _affordable(limiter.left(now_ns), batch, 0, stop)
        return stop

    def entries_at_most(self, entries: int) -> int:
        """Limit of entries to read from the disk: more could not be dispatched."""
        now_ns = self._clock.monotonic_ns()
        lefts = [limiter.left(now_ns)[0] for limiter in self._all()]
        return min([entries, *(left for left in lefts if left is not None)])

    def delivered(self, entries: int, messages: int, nbytes: int) -> None:
        """Charge what was dispatched."""
        now_ns = self._clock.monotonic_ns()
        for group in self.groups:
            group.charge(self._subscription, messages, nbytes, now_ns, entries)
        if not self.limiters or self._excused():
            return
        if self._limits().dispatch_throttling_on_batch_message_enabled:
            messages = entries
        for _, limiter in self.limiters:
            limiter.charge(self._subscription, messages, nbytes, now_ns)


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
