# SPDX-License-Identifier: Apache-2.0
"""Shares the quotas of resource groups with the other brokers of the cluster, live (PIP-82).

Why apart from `QuotaExchange`: it decides, and needs no clock, topic or membership. Here are its timer, its connection
to the usage topic, the groups that it limits and the brokers that it counts.
Where: `Groups` asks for the share of each group in use.

Nothing of it exists while this broker is the only one, or while no namespace or tenant has a group: no timer, no task,
no connection. A broker without traffic of any group takes part, too: others must know that it uses nothing.

Failures leave shares as they are for a while; then leases end, and shares shrink (see `quota_exchange`). They are
counted and logged, and never stop the broker.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.broker.policies.policy_values import OF_NAMESPACE, OF_TENANT, RESOURCE_GROUP
from penstock.core.errors import AlreadyExists
from penstock.core.membership import BrokerNames, InBoth
from penstock.core.names import TopicName
from penstock.core.units import NS_PER_S
from penstock.governance.allocation import Strategy
from penstock.governance.quota_exchange import ExchangeOptions
from penstock.groups.live_exchange import SharedQuotas, SharingOptions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container, Mapping

    from penstock.broker.changes import Changes, Submit
    from penstock.broker.limit_rows import SharingLimits
    from penstock.broker.publishing.resource_groups import Groups
    from penstock.core.clock import Clock
    from penstock.core.membership import Membership, Registry
    from penstock.core.names import NamespaceName
    from penstock.net.usage_topic import Reporting
    from penstock.storage.catalog import Catalog

log = logging.getLogger(__name__)

# Looking for an attachment in 100,000 namespaces takes ten milliseconds, and each change of a policy may ask for
# it: look again after so many times what it took, and soon.
SEARCH_PAUSE: Final = 20

# The namespace of the topic may not exist. Its topics are created whatever allowAutoTopicCreation says.
_NAMESPACE_POLICIES: Final = {
    "autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
}


# What has a group: where its record is, its name, and the member that names the group.
_Attached: TypeAlias = "tuple[Callable[[], Mapping[str, Mapping[str, Any]]], str, str]"


def sharing_options(limits: SharingLimits) -> SharingOptions:
    """Return the options of these settings."""
    return SharingOptions(
        topic=TopicName.parse(limits.resource_usage_publish_topic_name),
        enabled=limits.resource_usage_publish_to_topic,
        exchange=ExchangeOptions(
            interval_ns=round(limits.resource_usage_publish_interval_in_secs * NS_PER_S),
            complete_every=limits.resource_usage_complete_report_cycles,
            strategy=Strategy(limits.resource_group_share_strategy),
        ),
    )


class QuotaSharing(SharedQuotas):
    """One broker's part in the exchange."""

    def __init__(
        self,
        groups: Groups,
        reporting: Reporting,
        *,
        membership: Membership,
        registry: Registry | None = None,
        owner: Callable[[TopicName], int],
        options: Callable[[], SharingOptions],
        catalog: Catalog,
        changes: Changes,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Receive what this uses.

        Args:
            groups: the groups whose quotas are shared.
            reporting: how brokers report.
            membership: the brokers of the cluster.
            registry: where those register that share quotas; None: it is all brokers that serve.
            owner: returns the broker that serves the topic, or would.
            options: returns how quotas are shared now.
            catalog: says what has a group.
            changes: stores the topic's namespace.
            clock: of shares and reports.
            loop: on which everything is called.
        """
        brokers = BrokerNames(membership)
        names = brokers if registry is None else InBoth(brokers, registry)
        super().__init__(groups, names, registry, reporting, options, clock, loop)
        self._membership = membership
        self._owner = owner
        self._changes = changes
        self._catalog = catalog
        self._attached: _Attached | None = None
        self._search_at_ns = 0  # not before
        self._search_timer: asyncio.TimerHandle | None = None

    async def stop(self) -> None:
        """See `SharedQuotas`."""
        if self._search_timer is not None:
            self._search_timer.cancel()
        await super().stop()

    def _wanted(self) -> bool:
        return len(self._membership.members) > 1 and self._is_attached()

    def _is_attached(self) -> bool:
        """Whether a namespace or tenant has a group that exists. What was found last is looked at first."""
        existing = self._catalog.documents(RESOURCE_GROUP)
        if not existing:
            return False
        if self._attached is not None:
            records, name, member = self._attached
            if records().get(name, {}).get(member) in existing:
                return True
        now_ns = self.clock.monotonic_ns()
        if now_ns < self._search_at_ns:
            if self._search_timer is None:
                wait_s = (self._search_at_ns - now_ns) / NS_PER_S
                self._search_timer = self.loop.call_later(wait_s, self._search_again)
            return self._running is not None
        self._attached = self._search(existing)
        self._search_at_ns = now_ns + (self.clock.monotonic_ns() - now_ns) * SEARCH_PAUSE
        return self._attached is not None

    def _search(self, existing: Container[object]) -> _Attached | None:
        for records, member in ((self._catalog.tenants, OF_TENANT), (self._catalog.namespaces, OF_NAMESPACE)):
            for name, record in records().items():
                if record.get(member) in existing:
                    return records, name, member
        return None

    def _search_again(self) -> None:
        self._search_timer = None
        self.review()

    def owner(self, topic: TopicName) -> int:
        """See `SharedQuotas`."""
        return self._owner(topic)

    async def create_namespace(self, name: NamespaceName) -> None:
        """Create the namespace of the usage topic and its tenant, if they do not exist. Raises MetadataFailed."""
        catalog, tenant, namespace = self._catalog, name.tenant, str(name)

        def put_tenant() -> Submit:
            if tenant in catalog.tenants():
                raise AlreadyExists(tenant)
            return partial(catalog.put_tenant, tenant, {}, expected=None)

        def put_namespace() -> Submit:
            if namespace in catalog.namespaces():
                raise AlreadyExists(namespace)
            return partial(catalog.put_namespace, namespace, _NAMESPACE_POLICIES, expected=None)

        for put, exists in (
            (put_tenant, tenant in catalog.tenants()),
            (put_namespace, namespace in catalog.namespaces()),
        ):
            if not exists:
                with contextlib.suppress(AlreadyExists):
                    await self._changes.store_alone(put)
