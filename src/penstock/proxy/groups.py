# SPDX-License-Identifier: Apache-2.0
"""The resource groups of a proxy: what they are, which namespaces and tenants have one, and those in use.

Definitions come from a file of the proxies' own (`group_file`), or from the cluster (`mirrored_groups`).
Where: sessions ask for the groups of the topics of their producers and consumers; `quota_sharing` divides the quotas
between proxies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.governance.resource_group import GroupRates
from penstock.groups.group import Group

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.groups.group import Sharing


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


class ProxyGroups:
    """The groups of one proxy.

    Attributes:
        sharing: divides quotas between proxies; None: this proxy has the whole quotas.
        definitions: as last read.
        is_known: returns whether it is known which groups a topic has; if not, that is found out, and clients are
            looked at again.
    """

    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, *, by_usage: Callable[[], bool] = lambda: False
    ) -> None:
        """Args: by_usage: whether topics get parts of a share by what they send, or the same."""
        self.sharing: Sharing | None = None
        self.definitions = Definitions()
        self.is_known: Callable[[TopicName], bool] = lambda _topic: True
        self._clock = clock
        self._loop = loop
        self._by_usage = by_usage
        self._in_use: dict[str, Group] = {}
        self._changed: list[Callable[[], None]] = []

    @property
    def in_use(self) -> Mapping[str, Group]:
        """Groups that have limited a topic of a client, and still exist."""
        return self._in_use

    def of_topic(self, topic: TopicName) -> tuple[Group, ...]:
        """The groups that limit a topic."""
        return tuple(self._group(name) for name in self.definitions.of_topic(topic))

    def when_changed(self, changed: Callable[[], None]) -> None:
        """Call this after each change of definitions: topics may have other groups."""
        self._changed.append(changed)

    def define(self, definitions: Definitions) -> None:
        """Put other definitions in force. Groups keep their balances and counters; changed quotas count at once."""
        if definitions == self.definitions:
            return
        self.definitions = definitions
        for name, group in list(self._in_use.items()):
            quota = definitions.quotas.get(name)
            if quota is None:
                del self._in_use[name]
                group.set_share(GroupRates(), self._clock.monotonic_ns())  # Whoever waits goes on.
                if self.sharing is not None:
                    self.sharing.forget(group)
            elif quota != group.quota:
                group.quota = quota
                self._share(group)
        self.look_again()
        if self.sharing is not None:
            self.sharing.review()

    def look_again(self) -> None:
        """Topics of clients may have other groups, or it is known now that they have none."""
        for changed in self._changed:
            changed()

    def _group(self, name: str) -> Group:
        group = self._in_use.get(name)
        if group is None:
            quota = self.definitions.quotas[name]
            group = self._in_use[name] = Group(name, None, quota, self._clock, self._loop, self._by_usage)
            self._share(group)
        return group

    def _share(self, group: Group) -> None:
        if self.sharing is not None:
            self.sharing.share(group)
        else:
            group.set_share(group.quota, self._clock.monotonic_ns())
