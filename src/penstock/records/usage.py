# SPDX-License-Identifier: Apache-2.0
"""Usage of resource groups, as it is recorded. Where: the usage records of brokers and of proxies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.accounting.totals import Totals
from penstock.core.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.governance.resource_group import ClassLimiter, GroupLimiter
    from penstock.groups.group import Group


class Used(NamedTuple):
    """A group, with the counters of its record and when they were 0."""

    name: str
    since_ms: int
    totals: Totals
    more: Mapping[str, Any]


class _Recorded(NamedTuple):
    limiter: GroupLimiter
    since_ms: int
    seen: tuple[Any, ...]
    needed: Mapping[str, float]


class GroupUsage:
    """The groups as they were recorded last."""

    def __init__(self) -> None:
        self._recorded: dict[str, _Recorded] = {}
        self._watched = 0

    def repeat(self) -> None:
        """Yield all of them next time, because they could not be recorded."""
        self._recorded = {name: one._replace(seen=()) for name, one in self._recorded.items()}

    def watch(self, groups: Mapping[str, Group]) -> None:
        """Measure from now on what groups need; those that are new, if any are."""
        if len(groups) != self._watched:
            self._watched = len(groups)
            for group in groups.values():
                for _, limiter in _with_quota(group):
                    limiter.measure_needed()

    def changed(self, groups: Mapping[str, Group], now_ns: int, since_ms: Callable[[], int]) -> Iterator[Used]:
        """Yield the groups whose counters have changed; consume it whole. Args: since_ms: returns unique times."""
        for name in self._recorded.keys() - groups.keys():
            del self._recorded[name]
        for name, group in groups.items():
            limiter, before = group.limiter, self._recorded.get(name)
            publish, dispatch = limiter.publish, limiter.dispatch
            totals = Totals(
                publish.messages_passed, publish.bytes_passed, dispatch.messages_passed, dispatch.bytes_passed
            )
            more = {
                "publish_limited_ms": publish.limited_ns(now_ns) // NS_PER_MS,
                "dispatch_limited_ms": dispatch.limited_ns(now_ns) // NS_PER_MS,
                "quota_publish_messages": group.quota.publish.messages,
                "quota_publish_bytes": group.quota.publish.bytes,
                "quota_dispatch_messages": group.quota.dispatch.messages,
                "quota_dispatch_bytes": group.quota.dispatch.bytes,
                "share_publish_messages": publish.share.messages,
                "share_publish_bytes": publish.share.bytes,
                "share_dispatch_messages": dispatch.share.messages,
                "share_dispatch_bytes": dispatch.share.bytes,
                "held_publish_messages": publish.held.messages,
                "held_publish_bytes": publish.held.bytes,
            }
            seen = (totals, *more.values())
            again = before is not None and before.limiter is limiter
            began_ms = before.since_ms if before is not None and again else since_ms()
            if before is None or not again or before.seen != seen:
                needed = _needed(group)
                if before is not None and again and not before.seen:  # It is recorded together with what was not.
                    needed = {kind: max(rate, before.needed.get(kind, 0.0)) for kind, rate in needed.items()}
                self._recorded[name] = _Recorded(limiter, began_ms, seen, needed)
                yield Used(name, began_ms, totals, {**more, **needed})


def _with_quota(group: Group) -> Iterator[tuple[str, ClassLimiter]]:
    """The classes of traffic that have a quota; others need none, and measuring costs microseconds a publish."""
    if group.quota.publish.limited:
        yield "publish", group.limiter.publish
    if group.quota.dispatch.limited:
        yield "dispatch", group.limiter.dispatch


def _needed(group: Group) -> dict[str, float]:
    """Return the rates needed since the last call; the first one begins to measure and returns nothing."""
    found = {}
    for name, limiter in _with_quota(group):
        if limiter.needed is None:
            limiter.measure_needed()
            continue
        messages, nbytes = limiter.needed
        found[f"needed_{name}_messages"], found[f"needed_{name}_bytes"] = messages.take(), nbytes.take()
    return found
