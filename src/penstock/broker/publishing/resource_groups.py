# SPDX-License-Identifier: Apache-2.0
"""The resource groups that limit loaded topics of a broker, with the quotas that its catalog has.

Where: `rates` asks for the groups of a topic whose policies changed; `refresh` applies changed quotas to all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.policies.policy_values import RESOURCE_GROUP, rates_in
from penstock.groups.group import GroupsInUse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.core.clock import Clock
    from penstock.groups.group import Group
    from penstock.storage.catalog import Catalog


class Groups(GroupsInUse):
    """All groups in use on this broker."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        limits: Callable[[], PolicyDefaults],
    ) -> None:
        super().__init__(clock, loop, lambda: limits().resource_group_topic_shares == "usage")
        self._catalog = catalog
        self._missing: set[str] = set()  # names of groups that were asked for and do not exist

    def named(self, names: Iterable[str]) -> tuple[Group, ...]:
        """The groups of these names that exist."""
        return tuple(group for name in names if (group := self._of(name)) is not None)

    def _of(self, name: str) -> Group | None:
        group = self._groups.get(name)
        if group is not None:
            return group
        stored = self._catalog.documents(RESOURCE_GROUP).get(name)
        if stored is None:
            self._missing.add(name)
            return None
        return self._use(name, stored, rates_in(stored))

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
                self._end(group)
            else:
                self._change(group, stored, rates_in(stored))
        if self.sharing is not None:
            self.sharing.review()
        made = not self._missing.isdisjoint(documents)
        if made:
            self._missing.clear()
        return deleted or made
