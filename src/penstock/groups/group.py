# SPDX-License-Identifier: Apache-2.0
"""One resource group on a broker or a proxy: its limiter, and the lines of those who wait for it.

Why one object per group: a limiter that lived with its topics would forgive its debt whenever they are unloaded.
Where: a broker's `publishing.groups` and a proxy's `groups` keep those in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.governance.resource_group import GroupLimiter
from penstock.groups.group_dispatch import GroupDispatch
from penstock.groups.group_publish import GroupPublish

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.governance.resource_group import GroupRates


class Group:
    """One resource group on this broker, or on this proxy.

    Attributes:
        stored: what the quota was made from; a changed quota has another object here.
        quota: what is configured for all members together.
        limiter: this member's share, its balances and its counters.
        publish: producers that wait.
        dispatch: subscriptions that wait.
        topics: how many topics in use it limits.
    """

    __slots__ = ("dispatch", "limiter", "name", "publish", "quota", "stored", "topics")

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
        self.limiter = GroupLimiter(self.quota, clock.monotonic_ns())
        self.publish = GroupPublish(name, self.limiter.publish, clock, loop, by_usage)
        self.dispatch = GroupDispatch(name, self.limiter.dispatch, clock, loop)

    def set_share(self, share: GroupRates, now_ns: int) -> None:
        """Change this broker's share; waiters that may pass now do."""
        if share != self.limiter.share:
            self.limiter.set_share(share, now_ns)
            self.publish.look_again()
            self.dispatch.look_again()


class Sharing(Protocol):
    """Divides quotas between the members of a cluster."""

    def share(self, group: Group) -> None:
        """Set the share of a group that is new here, or whose quota changed."""

    def forget(self, group: Group) -> None:
        """A group was deleted."""

    def review(self) -> None:
        """Begin or end to divide quotas: attachments or settings may have changed."""
