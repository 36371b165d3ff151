# SPDX-License-Identifier: Apache-2.0
"""The resource groups that limit loaded topics: one limiter per group on this broker, shared by all its topics.

Why one object per group: a limiter that lived with its topics would forgive its debt whenever they are unloaded. So a
group in use stays until it is deleted, and its counters never decrease.
Where: `rates` asks for the groups of a topic whose policies changed; `refresh` applies changed quotas to all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.policies.group_quotas import RESOURCE_GROUP, rates_in
from penstock.groups.group import Group

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.core.clock import Clock
    from penstock.groups.group import Sharing
    from penstock.storage.catalog import Catalog


class Groups:
    """All groups in use on this broker.

    Attributes:
        sharing: divides quotas between brokers; None: this broker has the whole quotas.
    """

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        limits: Callable[[], PolicyDefaults],
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._loop = loop
        self._limits = limits
        self._groups: dict[str, Group] = {}
        self._missing: set[str] = set()  # names of groups that were asked for and do not exist
        self.sharing: Sharing | None = None

    @property
    def in_use(self) -> Mapping[str, Group]:
        """Groups that limit a loaded topic, or did so and still exist."""
        return self._groups

    def named(self, names: Iterable[str]) -> tuple[Group, ...]:
        """The groups of these names that exist."""
        return tuple(group for name in names if (group := self._of(name)) is not None)

    def _of(self, name: str) -> Group | None:
        group = self._groups.get(name)
        if group is None:
            stored = self._catalog.documents(RESOURCE_GROUP).get(name)
            if stored is None:
                self._missing.add(name)
            else:
                group = self._groups[name] = Group(
                    name, stored, rates_in(stored), self._clock, self._loop, self._by_usage
                )
                if self.sharing is not None:
                    self.sharing.share(group)
        return group

    def _by_usage(self) -> bool:
        return self._limits().resource_group_topic_shares == "usage"

    def refresh(self) -> bool:
        """Apply changed quotas; returns whether a group was made or deleted that topics name, so that they must look.

        Called for each change of any policy: budget 0.1 µs for each group.
        """
        documents = self._catalog.documents(RESOURCE_GROUP)
        changed = [group for name, group in self._groups.items() if documents.get(name) is not group.stored]
        deleted = False
        for group in changed:
            stored = documents.get(group.name)
            if stored is None:
                deleted = True
                del self._groups[group.name]
                if self.sharing is not None:
                    self.sharing.forget(group)
            else:
                group.stored, group.quota = stored, rates_in(stored)
                if self.sharing is not None:
                    self.sharing.share(group)
                else:
                    group.set_share(group.quota, self._clock.monotonic_ns())
        if self.sharing is not None:
            self.sharing.review()
        made = not self._missing.isdisjoint(documents)
        if made:
            self._missing.clear()
        return deleted or made
