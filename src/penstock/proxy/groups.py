# SPDX-License-Identifier: Apache-2.0
"""The resource groups of a proxy: what they are, which namespaces and tenants have one, and those in use.

Definitions come from a file of the proxies' own (`group_file`), or from the cluster (`mirrored_groups`).
Where: sessions ask for the groups of the topics of their producers and consumers; `quota_sharing` divides the quotas
between proxies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.groups.group import GroupsInUse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.governance.resource_group import GroupRates
    from penstock.groups.group import Group


@dataclass(frozen=True, slots=True)
class Definitions:
    """All groups with their quotas, and the group of each namespace (`tenant/namespace`) and tenant that has one."""

    quotas: Mapping[str, GroupRates] = field(default_factory=dict)
    of_namespaces: Mapping[str, str] = field(default_factory=dict)
    of_tenants: Mapping[str, str] = field(default_factory=dict)

    def of_topic(self, topic: TopicName) -> tuple[str, ...]:
        """The groups of a topic: its namespace's and its tenant's, each once."""
        names = (self.of_namespaces.get(str(topic.namespace_name)), self.of_tenants.get(topic.tenant))
        return tuple(dict.fromkeys(name for name in names if name is not None and name in self.quotas))


class ProxyGroups(GroupsInUse):
    """The groups of one proxy.

    Attributes:
        definitions: as last read.
        is_known: returns whether it is known which groups a topic has; if not, that is found out, and clients are
            looked at again.
    """

    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, *, by_usage: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(clock, loop, by_usage)
        self.definitions = Definitions()
        self.is_known: Callable[[TopicName], bool] = lambda _topic: True
        self._changed: list[Callable[[], None]] = []

    def of_topic(self, topic: TopicName) -> tuple[Group, ...]:
        """The groups that limit a topic."""
        quotas = self.definitions.quotas
        return tuple(self._use(name, None, quotas[name]) for name in self.definitions.of_topic(topic))

    def when_changed(self, changed: Callable[[], None]) -> None:
        """Call this after each change of definitions: topics may have other groups."""
        self._changed.append(changed)

    def define(self, definitions: Definitions) -> None:
        """Put other definitions in force. Groups keep their balances and counters; changed quotas count at once."""
        if definitions == self.definitions:
            return
        self.definitions = definitions
        for name, group in list(self._groups.items()):
            quota = definitions.quotas.get(name)
            if quota is None:
                self._end(group)
            elif quota != group.quota:
                self._change(group, None, quota)
        self.look_again()
        if self.sharing is not None:
            self.sharing.review()

    def look_again(self) -> None:
        """Topics of clients may have other groups, or it is known now that they have none."""
        for changed in self._changed:
            changed()
