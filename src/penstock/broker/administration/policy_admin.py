# SPDX-License-Identifier: Apache-2.0
"""Admin operations on policies: read or change one policy of an existing namespace or topic.

Where: routes call these on the broker's loop; `policies` stores and applies the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.policies.policy_table import policy
from penstock.broker.policies.unenforced_policies import EMPTY_NAMESPACE, UNENFORCED_OF_TOPICS
from penstock.core.errors import NotAllowed, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.administration.clusters import Clusters
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.policies.policies import PolicyService
    from penstock.broker.policies.shapes import Json
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.partitions import Partitions
    from penstock.core.names import NamespaceName, TopicName

QUOTAS: Final = "backlogQuotaMap"
_RATES_OF_SUBSCRIPTIONS: Final = "subscriptionPolicies"
_CLUSTERS: Final = "replicationClusters"


class PolicyAdmin:
    """Policies of namespaces and topics, by the keys of `policy_table`."""

    def __init__(
        self,
        *,
        policies: PolicyService,
        topics: TopicDirectory,
        partitions: Partitions,
        clusters: Clusters,
        limits: Callable[[], BrokerLimits],
    ) -> None:
        self._policies = policies
        self._topics = topics
        self._partitions = partitions
        self._clusters = clusters
        self._limits = limits

    # -- namespaces ---------------------------------------------------------------------------------------------------

    def of_namespace(self, name: NamespaceName, key: str) -> Json:
        """A policy as set for a namespace, or None."""
        return self._policies.set_in_namespace(str(name), key)

    async def set_of_namespace(self, name: NamespaceName, key: str, value: Json) -> None:
        """Set a policy of a namespace; None removes it."""
        if value is None and policy(key) is None:
            value = EMPTY_NAMESPACE.get(key)
        await self._policies.set_namespace(str(name), key, value)

    async def set_replication(self, name: NamespaceName, clusters: list[str]) -> None:
        """Set the clusters of a namespace. Raises as `Clusters.check_replication`."""
        self._check_clusters(name, clusters)
        await self._policies.set_namespace(str(name), "replication_clusters", clusters)

    def _check_clusters(self, namespace: NamespaceName, clusters: list[str]) -> None:
        allowed = self._policies.set_in_namespace(str(namespace), "allowed_clusters") or ()
        self._clusters.check_replication(namespace.tenant, allowed, clusters)

    def quotas_of_namespace(self, name: NamespaceName) -> dict[str, Json]:
        return dict(self._policies.set_in_namespace(str(name), QUOTAS) or {})

    async def set_quota_of_namespace(self, name: NamespaceName, kind: str, quota: Json) -> None:
        """Set a backlog quota of a namespace; None removes it."""
        await self._policies.set_namespace_quota(str(name), kind, quota)

    def properties_of_namespace(self, name: NamespaceName) -> dict[str, str]:
        return dict(self._policies.namespace(str(name)).get("properties") or {})

    async def change_properties_of_namespace(
        self, name: NamespaceName, put: dict[str, str], remove: list[str] | None = None
    ) -> dict[str, str]:
        """Add `put` to a namespace's properties and remove `remove` (None: all); returns the previous ones."""
        before: dict[str, str] = {}

        def change(stored: dict[str, Json]) -> None:
            before.update(stored.get("properties") or {})
            kept = {} if remove is None else {key: value for key, value in before.items() if key not in remove}
            stored["properties"] = {**kept, **put}

        await self._policies.update_namespace(str(name), change)
        return before

    # -- topics -------------------------------------------------------------------------------------------------------

    def _check_topic(self, name: TopicName) -> None:
        """Raises TopicNotFound unless the topic exists, partitioned or not."""
        if not (self._topics.exists(name) or self._partitions.count(name)):
            raise TopicNotFound(str(name))

    def check_topic_policies(self, name: TopicName) -> None:
        """Raises NotAllowed if topic policies are disabled, TopicNotFound if the topic does not exist."""
        if not self._limits().policies.topic_level_policies_enabled:
            raise NotAllowed("Topic level policies is disabled, to enable the topic level policy and retry.")
        self._check_topic(name)

    def of_topic(self, name: TopicName, key: str, *, applied: bool = False) -> Json:
        """A policy as set for a topic, or with `applied` as in force; None if there is none."""
        self.check_topic_policies(name)
        own = self._policies.set_in_topic(name, key)
        if not applied:
            return own
        if policy(key) is not None:
            in_force = self._policies.applied_to_topic(name, key)
            return in_force or [self._clusters.own] if key == _CLUSTERS else in_force
        level = UNENFORCED_OF_TOPICS[key].namespace
        if own is not None or level is None:
            return own
        of_its_namespace = self.of_namespace(name.namespace_name, level.key)
        return of_its_namespace or (_IN_FORCE[key](self._clusters.own) if key in _IN_FORCE else None)

    async def set_of_topic(self, name: TopicName, key: str, value: Json) -> None:
        """Set a policy of a topic; None removes it."""
        self.check_topic_policies(name)
        if key == _CLUSTERS and value is not None:
            self._check_clusters(name.namespace_name, value)
        await self._policies.set_topic(name, key, value)

    def quotas_of_topic(self, name: TopicName, *, applied: bool = False) -> dict[str, Json]:
        return dict(self.of_topic(name, QUOTAS, applied=applied) or {})

    async def set_quota_of_topic(self, name: TopicName, kind: str, quota: Json) -> None:
        """Set a backlog quota of a topic; None removes it."""
        self.check_topic_policies(name)
        await self._policies.set_topic_quota(name, kind, quota)

    def rate_of_subscription(self, name: TopicName, subscription: str, *, applied: bool = False) -> Json:
        """The dispatch rate of one subscription; with `applied`, the topic's rate if it has none."""
        own = (self.of_topic(name, _RATES_OF_SUBSCRIPTIONS) or {}).get(subscription)
        if own is not None:
            return own["dispatchRate"]
        return self.of_topic(name, "subscriptionDispatchRate", applied=True) if applied else None

    async def set_rate_of_subscription(self, name: TopicName, subscription: str, rate: Json) -> None:
        """Set the dispatch rate of one subscription; None removes it."""
        self.check_topic_policies(name)
        await self._policies.set_subscription_rate(name, subscription, rate)

    async def delete_topic_policies(self, name: TopicName) -> None:
        self.check_topic_policies(name)
        await self._policies.delete_topic_policies(name)


# Values in force for policies without effect, by cluster name, where nothing is set.
_IN_FORCE: Final[dict[str, Callable[[str], Json]]] = {
    "entryFilters": lambda _: {"entryFilterNames": ""},
    "persistence": lambda _: {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 1.0,
    },
}
