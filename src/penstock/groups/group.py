# SPDX-License-Identifier: Apache-2.0
"""The resource groups in use on a broker or a proxy: of each its limiter, and the lines of those who wait for it.

Why one object per group: a limiter that lived with its topics would forgive its debt whenever they are unloaded. So a
group in use stays until it is deleted, and its counters never decrease.
Where: a broker's `publishing.groups` and a proxy's `groups` say which there are, and what their quotas are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.governance.observed_rate import ObservedRate
from penstock.governance.resource_group import GroupLimiter, GroupRate, GroupRates
from penstock.groups.limit import DispatchLimit, PublishLimit

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from penstock.core.clock import Clock


class Group:
    """One resource group on this broker, or on this proxy.

    Attributes:
        stored: the object that the quota was made from; a changed quota has another one.
        quota: as configured for all members together.
        limiter: this member's share, its balances and its counters.
        publish: producers that wait.
        dispatch: subscriptions that wait.
        topics: how many topics in use it limits.
        observed_quota: one that is only observed; None: nobody asks.
    """

    __slots__ = ("dispatch", "limiter", "name", "observed_quota", "publish", "quota", "stored", "topics")

    def __init__(
        self,
        name: str,
        stored: object,
        quota: GroupRates,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        by_usage: Callable[[], bool],
    ) -> None:
        self.name = name
        self.stored = stored
        self.quota = quota
        self.topics = 0
        self.observed_quota: GroupRates | None = None
        self.limiter = GroupLimiter(self.quota, clock.monotonic_ns())
        self.publish = PublishLimit(name, self.limiter.publish, clock, loop, by_usage)
        self.dispatch = DispatchLimit(name, self.limiter.dispatch, clock, loop)

    def set_share(self, share: GroupRates, now_ns: int) -> None:
        """Change this broker's share; waiters that may pass now do."""
        if share != self.limiter.share:
            self.limiter.set_share(share, now_ns)
            if self.observed_quota is not None:
                self.observe(self.observed_quota, now_ns)
            self.publish.look_again()
            self.dispatch.look_again()

    def observe(self, quota: GroupRates | None, now_ns: int) -> None:
        """Count from now on what another quota would do, beside the one in force; None: no more.

        This member's part of it is its part of the quota in force, kind by kind, and all of it without one.
        """
        self.observed_quota = quota
        for limiter, in_force, other in (
            (self.limiter.publish, self.quota.publish, None if quota is None else quota.publish),
            (self.limiter.dispatch, self.quota.dispatch, None if quota is None else quota.dispatch),
        ):
            if other is None or not other.limited:
                limiter.observed = None
                continue
            share = _part_of(other, in_force, limiter.share)
            if limiter.observed is None:
                limiter.observed = ObservedRate(share, limiter, now_ns)
            else:
                limiter.observed.set_share(share, now_ns)

    def borrow(self, kind: int, amount: int, now_ns: int) -> None:
        """Take what another member did not use (`GroupLimiter.borrow`); waiters that may pass now do."""
        self.limiter.borrow(kind, amount, now_ns)
        (self.publish, self.dispatch)[kind // 2].look_again()


class Limited(Protocol):
    """A topic, or what a client of a proxy has of one."""

    resource_groups: tuple[Group, ...]


def set_groups(one: Limited, groups: tuple[Group, ...]) -> None:
    """Set the groups that limit a topic, and count it in each of them."""
    for group in one.resource_groups:
        group.topics -= 1
    for group in groups:
        group.topics += 1
    one.resource_groups = groups


def _part_of(other: GroupRate, in_force: GroupRate, share: GroupRate) -> GroupRate:
    """The same part of another quota as the share is of the one in force."""
    return GroupRate(
        _scaled(other.messages, in_force.messages, share.messages), _scaled(other.bytes, in_force.bytes, share.bytes)
    )


def _scaled(rate: float | None, quota: float | None, part: float | None) -> float | None:
    return rate if rate is None or not quota or part is None else rate * min(1.0, part / quota)


class Sharing(Protocol):
    """Divides quotas between the members of a cluster: `SharedQuotas`, which knows this module."""

    def share(self, group: Group) -> None: ...
    def forget(self, group: Group) -> None: ...
    def review(self) -> None: ...


class GroupsInUse:
    """Groups that limit a topic, or did so and still exist.

    Attributes:
        sharing: divides quotas between members of a cluster; None: this one has the whole quotas.
    """

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, by_usage: Callable[[], bool]) -> None:
        """Args: by_usage: whether topics get parts of a share by what they send, or the same."""
        self.sharing: Sharing | None = None
        self._clock = clock
        self._loop = loop
        self._by_usage = by_usage
        self._groups: dict[str, Group] = {}

    @property
    def in_use(self) -> Mapping[str, Group]:
        """All of them, by name."""
        return self._groups

    def _use(self, name: str, stored: object, quota: GroupRates) -> Group:
        """Return a group, which is made if it was not in use."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name, stored, quota, self._clock, self._loop, self._by_usage)
            self._share(group)
        return group

    def _change(self, group: Group, stored: object, quota: GroupRates) -> None:
        """Put another quota in force; balance and counters stay."""
        group.stored, group.quota = stored, quota
        self._share(group)

    def _end(self, group: Group) -> None:
        """A group is deleted: its waiters go on."""
        del self._groups[group.name]
        group.set_share(GroupRates(), self._clock.monotonic_ns())
        if self.sharing is not None:
            self.sharing.forget(group)

    def _share(self, group: Group) -> None:
        if self.sharing is not None:
            self.sharing.share(group)
        else:
            group.set_share(group.quota, self._clock.monotonic_ns())
