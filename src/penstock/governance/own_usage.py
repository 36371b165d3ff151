# SPDX-License-Identifier: Apache-2.0
"""Usage of each group on this broker: counters read, demand estimated, and reported usage, in columns.

Why columns: a broker has thousands of groups, and objects would take ten times the memory. Where: `quota_exchange` has
one. Groups are places (small numbers) here.

The four numbers of a group are those of `core.usage_report.KINDS`. Amounts are thousandths per second, and are kept
with 24 significant bits.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from operator import gt
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.core.units import NS_PER_MS, NS_PER_S, NS_PER_US
from penstock.core.usage_report import KINDS, NOTHING, FourNumbers
from penstock.governance.demand import (
    REMEMBERED_GAPS,
    Before,
    changed,
    changed_with_gaps,
    fallen,
    follow,
    held_back,
    next_gap_ms,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.governance.resource_group import Amount, GroupRate, GroupRates

# A change of demand is reported if it is more than 10 %, or more than 1 % of the quota; at once, if it is more than 1 %
# of the quota, or if it is more than 10 % and more than a quarter percent of the quota.
_CHANGED_PART: Final = 10
_CHANGED_QUOTA_PART: Final = 100
_MUCH_QUOTA_PART: Final = 400

# Reports of rising demand of a group that are waited for at the same time; beyond that, only the last one.
_REPORTS_MAX: Final = 8
# After this time without traffic, there will be no more.
_GAP_MS_MAX: Final = 2_500

_THOUSAND: Final = 1_000
# Counters of a group: those of `KINDS`, and the waiting times of publish and dispatch in microseconds.
_COUNTERS: Final = KINDS + 2
_LOW_32: Final = (1 << 32) - 1

# Quotas in thousandths per second; None: no limit.
FourQuotas = tuple[int | None, int | None, int | None, int | None]


class Demands(NamedTuple):
    """Lowest demands that all members reckon with once they have acknowledged a report."""

    sequence: int
    demand: array[float]


class Change(IntEnum):
    """Whether something is to be reported."""

    NONE = 0
    REGULAR = 1
    EARLY = 2


class CountedTraffic(Protocol):
    """Publish or dispatch traffic of a group; `resource_group.ClassLimiter` is one."""

    @property
    def share(self) -> GroupRate:
        """The share that `LimitedGroup.set_share` has set last."""

    @property
    def messages_passed(self) -> int: ...

    @property
    def bytes_passed(self) -> int: ...

    def limited_ns(self, now_ns: int) -> int:
        """For how long something has been waiting, in all."""

    @property
    def waits_since_ns(self) -> int | None:
        """Since when something waits; None: nothing does."""

    @property
    def held(self) -> Amount:
        """The amount that waits, if it is known."""

    def spilled(self, now_ns: int) -> tuple[int, int]:
        """Return the part of the share not used since the last call: thousandths of messages and bytes."""


class LimitedGroup(Protocol):
    """A group on this broker, which counts its traffic and enforces its share."""

    @property
    def publish(self) -> CountedTraffic: ...

    @property
    def dispatch(self) -> CountedTraffic: ...

    @property
    def topics(self) -> int: ...

    def set_share(self, share: GroupRates, now_ns: int) -> None: ...

    def borrow(self, kind: int, amount: int, now_ns: int) -> None:
        """Add what another broker did not use, in thousandths of one of `KINDS`; it may be used now, not later."""


class OwnUsage:
    """Counters, demand, and what was reported, of each group.

    Attributes:
        stale: by place: whether something of that which shares follow from has changed since they were computed.
    """

    __slots__ = (
        "_active_ms",
        "_contended",
        "_counted",
        "_demand",
        "_gap_ms",
        "_known_demand",
        "_measured_ms",
        "_sent_demand",
        "_waits",
        "stale",
    )

    def __init__(self) -> None:
        self.stale = bytearray()
        self._counted = array("I")  # the lowest 32 bits of each counter
        self._contended = bytearray()
        self._waits = bytearray()  # a bit for each kind for which something waits most of the time
        self._measured_ms = array("I")  # its lowest 32 bits
        # By place and class of traffic: when something was measured last, and the gaps between.
        self._active_ms = array("I")
        self._gap_ms = array("I")
        self._demand = array("f")
        self._sent_demand = array("f")
        self._known_demand = array("f")  # as far as all members have acknowledged it

    @property
    def nbytes(self) -> int:
        """Memory of all columns."""
        columns = (
            self._counted,
            self._measured_ms,
            self._active_ms,
            self._gap_ms,
            self._demand,
            self._sent_demand,
            self._known_demand,
        )
        return (
            len(self._contended)
            + len(self._waits)
            + len(self.stale)
            + sum(column.buffer_info()[1] * column.itemsize for column in columns)
        )

    def begin(self, place: int) -> None:
        """Begin a group at a place that was removed, or at the next one."""
        if place * KINDS == len(self._demand):
            self._counted.extend((0,) * _COUNTERS)
            self._measured_ms.append(0)
            self._active_ms.extend((0, 0))
            self._gap_ms.extend((0, 0))
            self._waits.append(0)
            self._contended.append(False)
            self.stale.append(True)
            self._demand.extend((0.0,) * KINDS)
            self._sent_demand.extend((0.0,) * KINDS)
            self._known_demand.extend((0.0,) * KINDS)
        self._waits[place] = 0
        self._active_ms[place * 2 : place * 2 + 2] = self._gap_ms[place * 2 : place * 2 + 2] = array("I", (0, 0))
        _set(self._demand, place, NOTHING)
        _set(self._sent_demand, place, NOTHING)
        _set(self._known_demand, place, NOTHING)

    def known(self, place: int, kind: int) -> int:
        """The demand of one kind that all members reckon with."""
        return int(self._known_demand[place * KINDS + kind])

    def know_nothing(self, place: int) -> None:
        """No member reckons with anything that was reported."""
        _set(self._known_demand, place, NOTHING)
        self.stale[place] = True

    def report(self, place: int, reports: list[Demands], *, rises: bool) -> bool:
        """Let the estimates be those that are reported; return whether that changes anything.

        Less than before counts at once, more when all members have acknowledged one of `reports`; unless it `rises`,
        no more is reported than all members know.
        """
        here = slice(place * KINDS, (place + 1) * KINDS)
        known = self._known_demand[here]
        demand = self._demand[here] if rises else _least(self._demand[here], known)
        changes = self._sent_demand[here] != demand
        self._sent_demand[here] = demand
        self._known_demand[here] = _least(known, demand)
        reports[:] = [Demands(sequence, _least(before, demand)) for sequence, before in reports]
        self.stale[place] = self.stale[place] or self._known_demand[here] != known
        return changes

    def sent(self, place: int, reports: list[Demands], sequence: int) -> None:
        """A report with the demand was sent; `reports` are those before it that not all members have acknowledged."""
        demand = self._sent_demand[place * KINDS : (place + 1) * KINDS]
        if not reports or reports[-1].demand != demand:
            del reports[_REPORTS_MAX - 1 :]
            reports.append(Demands(sequence, demand))

    def all_know(self, place: int, reports: list[Demands], sequence: float) -> bool:
        """All members have acknowledged this report; return whether they know the latest demand."""
        here = slice(place * KINDS, (place + 1) * KINDS)
        while reports and reports[0].sequence <= sequence:
            self._known_demand[here] = reports.pop(0).demand
        self.stale[place] = True
        return not reports and self._known_demand[here] == self._sent_demand[here]

    def rises(self, place: int) -> bool:
        """Whether more was reported than all members know."""
        here = slice(place * KINDS, (place + 1) * KINDS)
        return any(map(gt, self._sent_demand[here], self._known_demand[here]))

    def reported(self, place: int) -> FourNumbers:
        return _get(self._sent_demand, place)

    # -- measuring

    def count(self, place: int, group: LimitedGroup, now_ns: int) -> list[int]:
        """Return what the counters of a group counted since the last call."""
        publish, dispatch = group.publish, group.dispatch
        counters = (
            publish.messages_passed & _LOW_32,
            publish.bytes_passed & _LOW_32,
            dispatch.messages_passed & _LOW_32,
            dispatch.bytes_passed & _LOW_32,
            publish.limited_ns(now_ns) // NS_PER_US & _LOW_32,
            dispatch.limited_ns(now_ns) // NS_PER_US & _LOW_32,
        )
        start = place * _COUNTERS
        before = self._counted[start : start + _COUNTERS]
        self._counted[start : start + _COUNTERS] = array("I", counters)
        self._measured_ms[place] = now_ns // NS_PER_MS & _LOW_32
        return [last - first & _LOW_32 for first, last in zip(before, counters, strict=True)]

    def measure(self, place: int, quotas: FourQuotas, group: LimitedGroup, now_ns: int, *, with_held: bool) -> Change:
        """Estimate the demand since the last call; return whether it is to be reported."""
        elapsed_ns = self.elapsed_ns(place, now_ns)
        if not elapsed_ns:
            return Change.NONE
        counted = self.count(place, group, now_ns)
        demand = _get(self._demand, place)
        if demand == NOTHING and not any(counted):
            return Change.NONE
        grains = _grains(counted, demand, elapsed_ns)
        estimates = []
        waits = False
        waiting = 0
        windows_ns = [self._window_ns(place, number, counted, elapsed_ns, now_ns) for number in (0, 1)]
        contended = bool(self._contended[place])
        for kind, quota in enumerate(quotas):
            used = counted[kind] * _THOUSAND * NS_PER_S // elapsed_ns
            waited_ns = counted[KINDS + kind // 2] * NS_PER_US
            held = 0
            if quota is not None and waited_ns and with_held:
                # What waits may wait for the other limit of its class: then less is used of this one.
                short = _used_part(group, kind, counted) * 2 >= _used_part(group, kind ^ 1, counted)
                short = short or used <= grains[kind]
                amount = (group.publish, group.dispatch)[kind // 2].held[kind % 2] * _THOUSAND
                before = Before(demand[kind], self.known(place, kind))
                held = held_back(used, waited_ns, elapsed_ns, quota, before, amount) if short else 0
                waits = waits or held > 0
                waiting |= (short and waited_ns * 2 > elapsed_ns) << kind
            window_ns = windows_ns[kind // 2]
            if used + held < demand[kind] and window_ns > elapsed_ns:
                estimates.append(fallen(demand[kind], used + held, elapsed_ns, window_ns))
            else:
                estimates.append(follow(demand[kind], used, held, quota or used, grains[kind], contended=contended))
        _set(self._demand, place, estimates)
        change = self._demand_change(place, quotas, grains, group)
        if waiting != self._waits[place]:
            self._waits[place] = waiting
            change = Change.EARLY
        if waits and not self._contended[place]:
            self._contended[place] = self.stale[place] = True
        return change if self._contended[place] else min(change, Change.REGULAR)

    def waits(self, place: int) -> bool:
        """Whether something waited for most of the last measurement."""
        return self._waits[place] > 0

    def waiting(self, place: int, quotas: FourQuotas, group: LimitedGroup) -> FourNumbers:
        """Return amounts that could be used at once, in thousandths: what is held, if known, and at most a quota."""
        found = [0, 0, 0, 0]
        for kind, quota in enumerate(quotas):
            if quota is not None and self._waits[place] >> kind & 1:
                held = (group.publish, group.dispatch)[kind // 2].held[kind % 2] * _THOUSAND
                found[kind] = min(held or quota, quota)
        return found[0], found[1], found[2], found[3]

    def _window_ns(self, place: int, number: int, counted: Sequence[int], elapsed_ns: int, now_ns: int) -> int:
        """For how long demand of a class of traffic is remembered: some of its gaps; 0 if it has none."""
        at = place * 2 + number
        now_ms, elapsed_ms = now_ns // NS_PER_MS & _LOW_32, elapsed_ns // NS_PER_MS
        quiet_ms = (now_ms - self._active_ms[at] & _LOW_32) - elapsed_ms
        active = counted[number * 2] or counted[KINDS + number]
        if quiet_ms > _GAP_MS_MAX:
            self._gap_ms[at] = 0
        elif active:
            self._gap_ms[at] = next_gap_ms(self._gap_ms[at], quiet_ms, elapsed_ms)
        if active:
            self._active_ms[at] = now_ms
        return self._gap_ms[at] * REMEMBERED_GAPS * NS_PER_MS

    def is_contended(self, place: int) -> bool:
        """See `set_contended`."""
        return bool(self._contended[place])

    def elapsed_ns(self, place: int, now_ns: int) -> int:
        """For how long the group was not measured."""
        return (now_ns // NS_PER_MS - self._measured_ms[place] & _LOW_32) * NS_PER_MS

    def set_contended(self, place: int, quotas: FourQuotas, group: LimitedGroup, *, contended: bool) -> Change:
        """Say whether brokers demand about as much as the quota. Otherwise no change is urgent.

        Returns what is to be reported because it begins now.
        """
        if contended == self._contended[place]:
            return Change.NONE
        self._contended[place] = contended
        self.stale[place] = True  # a change of the share may be urgent now
        return self._demand_change(place, quotas, NOTHING, group) if contended else Change.NONE

    def _demand_change(self, place: int, quotas: FourQuotas, grains: Sequence[int], group: LimitedGroup) -> Change:
        change = Change.NONE
        contended = bool(self._contended[place])
        for kind, quota in enumerate(quotas):
            now, sent = int(self._demand[place * KINDS + kind]), int(self._sent_demand[place * KINDS + kind])
            amount = abs(now - sent)
            if not amount or (contended and min(now, sent) > 2 * share_of(group, kind) > 0):
                continue  # It is far above what can be had.
            if self._gap_ms[place * 2 + kind // 2]:
                if changed_with_gaps(sent, now, quota or sent):
                    change = Change.EARLY
                continue
            much = amount * _CHANGED_PART > max(now, sent)
            if contended and sent * 2 // 3 < now < sent:
                change = max(change, Change.REGULAR if much else Change.NONE)
                continue
            large = quota is not None and amount * (_MUCH_QUOTA_PART if much else _CHANGED_QUOTA_PART) > quota
            if (large or much) and (not now or not sent or changed(sent, now, grains[kind], contended=contended)):
                change = max(change, Change.EARLY if large else Change.REGULAR)
        return change


def share_of(group: LimitedGroup, kind: int) -> int:
    """Return the present share of one kind in thousandths per second; 0 if there is no limit."""
    rate = (group.publish, group.dispatch)[kind // 2].share
    return round(((rate.bytes if kind % 2 else rate.messages) or 0) * _THOUSAND)


def _used_part(group: LimitedGroup, kind: int, counted: Sequence[int]) -> float:
    """How much was used in comparison with the share; 0 if there is no limit."""
    share = share_of(group, kind)
    return counted[kind] / share if share else 0.0


def _least(one: array[float], other: array[float]) -> array[float]:
    return array("f", map(min, one, other))


def _grains(counted: Sequence[int], demand: Sequence[int], elapsed_ns: int) -> FourNumbers:
    """One message, and the bytes of an average one, of an interval in thousandths per second."""
    message = _THOUSAND * NS_PER_S // elapsed_ns
    published, dispatched = (
        max(counted[kind + 1] // max(1, counted[kind]), demand[kind + 1] // max(1, demand[kind])) for kind in (0, 2)
    )
    return message, message * published, message, message * dispatched


def _get(column: array[float], place: int) -> FourNumbers:
    first, second, third, fourth = column[place * KINDS : (place + 1) * KINDS]
    return int(first), int(second), int(third), int(fourth)


def _set(column: array[float] | array[int], place: int, numbers: Iterable[int]) -> None:
    column[place * KINDS : (place + 1) * KINDS] = array(column.typecode, numbers)
