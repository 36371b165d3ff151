# SPDX-License-Identifier: Apache-2.0
"""Policies in force: those of a topic override its namespace's, which override the broker's settings.

Why: decisions about a topic (may a producer be added, what may be deleted, at which rate) need one value without a
search. `Topic.policies` is that value; it is replaced as a whole when a policy changes.
Where: the admin API reads and sets policies through this; the directory gets a topic's value when it loads it;
`policy_table` has the names and meanings of policies.

Namespaces store Pulsar's Policies JSON, as `GET namespaces/{tenant}/{namespace}` shows it; a topic stores its own
policies with the names of Pulsar's TopicPolicies. Policies of a partitioned topic apply to its partitions.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.broker.access.authorization import GRANTS
from penstock.broker.policies.policy_defaults import defaults_of_records
from penstock.broker.policies.policy_parts import BACKLOG_QUOTA
from penstock.broker.policies.policy_table import POLICIES, EffectivePolicies, effective, policy
from penstock.broker.policies.policy_values import (
    MIGRATION,
    OF_NAMESPACE,
    QUOTA_AGE,
    QUOTA_SIZE,
    RESOURCE_GROUP,
    tenant_group,
)
from penstock.broker.policies.unenforced_policies import EMPTY_NAMESPACE, UNENFORCED_OF_TOPICS
from penstock.core.errors import NamespaceNotFound, NotAllowed, PreconditionFailed, TopicNotFound
from penstock.core.names import TopicName, parent_text
from penstock.core.system_topics import is_record_topic

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized

    from penstock.broker.changes import Changes, Submit
    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.broker.policies.policy_rows import Policy
    from penstock.broker.policies.shapes import Json
    from penstock.governance.holds import Refusals
    from penstock.storage.catalog import Catalog
    from penstock.storage.cursor import Cursor


# -- what policies use of topics and subscriptions ---------------------------------------------------------------------


class SubscribedPort(Protocol):
    """A subscription's topic, as expiry uses it."""

    @property
    def text(self) -> str: ...

    @property
    def ledger_id(self) -> int: ...

    @property
    def last_entry_id(self) -> int:
        """The last durable entry."""

    @property
    def closed(self) -> bool:
        """Whether it was unloaded or deleted."""


class SubscriptionPort(Protocol):
    """A subscription, as retention and quotas use it."""

    name: str
    durable: bool
    cursor: Cursor
    idle_since_ns: int

    @property
    def topic(self) -> SubscribedPort: ...

    @property
    def consumers(self) -> Sized: ...

    @property
    def places(self) -> object | None: ...  # in other clusters, where its consumers may be; None: in this one alone

    def acknowledge_through(self, entry_id: int, /) -> int:
        """Acknowledge all entries up to this one; returns the number of entries."""

    def expire_through(self, entry_id: int, /) -> int:
        """Acknowledge all entries up to this one as expired; returns the number of entries."""


class ProducerPort(Protocol):
    """A producer, as limits of producers use it."""

    name: str

    @property
    def address(self) -> str:
        """Address of its client, as `host:port`."""


class WritersPort(Protocol):
    """A topic, as limits of producers use it."""

    @property
    def text(self) -> str: ...

    @property
    def policies(self) -> EffectivePolicies: ...

    @property
    def system(self) -> bool: ...  # whether only brokers publish to it

    @property
    def producers(self) -> Mapping[str, ProducerPort]: ...


class TopicPort(Protocol):
    """A loaded topic, as policies use it."""

    name: TopicName
    text: str
    persistent: bool
    policies: EffectivePolicies
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    counted_before: int  # entries from here on are needed to count usage after a crash
    closed: bool
    refusals: Refusals | None  # of producers, by its backlog quotas, since one was admitted

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionPort]: ...

    @property
    def producers(self) -> Mapping[str, ProducerPort]: ...

    def first_needed(self) -> int | None:
        """The first entry that a durable subscription needs, regardless of retention; None without one."""

    def policies_changed(self) -> None:
        """Apply the new value of `policies`."""


# A change is applied to this many loaded topics in one turn of the loop.
_TOPICS_PER_TURN: Final = 100
_RETENTION: Final = POLICIES["retention"]
_QUOTAS: Final = POLICIES["backlog_quota"]
PARTITIONED: Final = "partitioned"  # the kind of a partitioned topic's document


class PolicyService:
    """Policies of all namespaces and topics. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        loop: asyncio.AbstractEventLoop,
        cluster: str,
        defaults: Callable[[], PolicyDefaults],
        exists: Callable[[TopicName], bool],
        loaded: Callable[[], Sequence[TopicPort]],
        refresh_rates: Callable[[], bool],
        revoke: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """Receive the parts that this uses.

        Args:
            catalog: stores what is set.
            changes: carries changes of the catalog to their end, one document at a time.
            loop: applies a change to many topics in several turns.
            cluster: name of the cluster whose rates apply here.
            defaults: returns the settings in force.
            exists: returns whether a topic exists.
            loaded: returns the loaded topics.
            refresh_rates: applies changed rates of the whole broker; returns whether all topics must be refreshed.
            revoke: disconnects clients that are no longer authorized in a namespace (its tenant, its local name).
        """
        self._catalog = catalog
        self._changes = changes
        self._loop = loop
        self._cluster = cluster
        self._defaults = defaults
        self._exists = exists
        self._loaded = loaded
        self._refresh_rates = refresh_rates
        self._revoke = revoke
        self._of_namespaces: dict[str, EffectivePolicies] = {}
        # Called with a namespace whose JSON may have changed, or with none: with any.
        self.namespace_changed: Callable[[str | None], None] = lambda _name: None

    # -- in force

    def of_namespace(self, namespace: str) -> EffectivePolicies:
        """The policies in force for topics of a namespace without policies of their own."""
        found = self._of_namespaces.get(namespace)
        if found is None:
            found = self._effective(namespace, {})
            self._of_namespaces[namespace] = found
        return found

    def of_topic(self, name: TopicName) -> EffectivePolicies:
        """The policies in force for a topic or a partition, loaded or not."""
        own = self.topic(name)
        namespace = f"{name.tenant}/{name.namespace}"
        if is_record_topic(str(name)):
            return self._effective(namespace, own, defaults_of_records(self._defaults()))
        return self._effective(namespace, own) if own else self.of_namespace(namespace)

    def _effective(
        self, namespace: str, own: Mapping[str, Json], defaults: PolicyDefaults | None = None
    ) -> EffectivePolicies:
        stored = self._catalog.namespaces().get(namespace, {})
        return effective(
            topic=own,
            namespace=stored,
            defaults=defaults or self._defaults(),
            cluster=self._cluster,
            tenant_resource_group=tenant_group(self._catalog, namespace.partition("/")[0]),
        )

    # -- as they are set

    def namespace(self, namespace: str) -> dict[str, Any]:
        """The stored JSON of a namespace. Raises NamespaceNotFound."""
        stored = self._catalog.namespaces().get(namespace)
        if stored is None:
            raise NamespaceNotFound(namespace)
        return dict(stored)

    def as_pulsar_json(self, namespace: str) -> dict[str, Any]:
        """The Policies JSON of a namespace, with all members of Pulsar's. Raises NamespaceNotFound."""
        stored = {key: value for key, value in self.namespace(namespace).items() if value is not None}
        stored.pop(MIGRATION, None)
        return copy.deepcopy({**EMPTY_NAMESPACE, **stored})

    def topic(self, name: TopicName | str) -> dict[str, Any]:
        """The stored JSON of a topic; for a partition, that of its partitioned topic."""
        text = str(name if isinstance(name, TopicName) else TopicName.parse(name))
        catalog = self._catalog
        document = catalog.documents(PARTITIONED).get(parent_text(text))
        if document is not None:
            return dict(document.get("policies") or {})
        record = catalog.topic(text)
        return dict(record.policies) if record is not None else {}

    def set_in_namespace(self, namespace: str, key: str) -> Json:
        """One policy as set for a namespace, in the admin API's shape; None if not set."""
        row, stored = policy(key), self.namespace(namespace)
        if row is None or row.namespace is None:
            return stored.get(key, EMPTY_NAMESPACE.get(key))
        return row.in_namespace(stored, self._cluster)

    def set_in_topic(self, name: TopicName | str, key: str) -> Json:
        """One policy as set for a topic, in the admin API's shape; None if not set."""
        row, stored = policy(key), self.topic(name)
        return stored.get(key) if row is None else row.in_topic(stored)

    def applied_to_topic(self, name: TopicName, key: str) -> Json:
        """One policy as in force for a topic, in the admin API's shape (`applied=true`)."""
        row = _row(key)
        namespace = self._catalog.namespaces().get(f"{name.tenant}/{name.namespace}", {})
        return row.applied(
            topic=self.topic(name), namespace=namespace, defaults=self._defaults(), cluster=self._cluster
        )

    # -- changing

    async def set_namespace(self, namespace: str, key: str, value: Json) -> None:
        """Set one policy of a namespace, in the admin port's shape; None removes it.

        Raises:
            NamespaceNotFound: there is no such namespace.
            PreconditionFailed: there is no such policy, the value is invalid, or it contradicts another policy.
        """
        await self.change_namespace(namespace, key, lambda _: value)

    async def change_namespace(self, namespace: str, key: str, how: Callable[[Json], Json]) -> None:
        """Replace one policy of a namespace by `how` of its value; raises as `set_namespace` does.

        `how` is called under the lock of all changes: two administrators who each add to a map both find their part.
        """
        row = policy(key)
        if row is None or row.namespace is None:
            if key not in EMPTY_NAMESPACE:
                raise PreconditionFailed(f"namespaces have no policy {key!r}")
            await self.update_namespace(namespace, lambda stored: _put(stored, key, how(stored.get(key))))
            return
        cluster = self._cluster
        namespace_key = row.namespace.key

        def change(stored: dict[str, Any]) -> None:
            value = _checked(row, how(row.in_namespace(stored, cluster)))
            if row.per_cluster:
                of_clusters = _put(dict(stored.get(namespace_key) or {}), cluster, value)
                _put(stored, namespace_key, of_clusters or None)
            else:
                _put(stored, namespace_key, value)
            _check_quota_fits_retention(_RETENTION.in_namespace(stored, cluster), _QUOTAS.in_namespace(stored, cluster))

        await self.update_namespace(namespace, change)

    async def set_topic(self, name: TopicName | str, key: str, value: Json) -> None:
        """Set one policy of a topic, in the admin port's shape; None removes it.

        A partition has the policies of its partitioned topic.

        Raises:
            TopicNotFound: there is no such topic.
            PreconditionFailed: there is no such policy, the value is invalid, or it contradicts another policy.
            NotAllowed: topic policies are disabled, or the topic is not persistent and has no partitions.
        """
        await self.change_topic(name, key, lambda _: value)

    async def change_topic(self, name: TopicName | str, key: str, how: Callable[[Json], Json]) -> None:
        """Replace one policy of a topic by `how` of its value, under the lock; raises as `set_topic` does."""
        row = policy(key)
        if row is None or row.topic is None:
            if key not in UNENFORCED_OF_TOPICS:
                raise PreconditionFailed(f"topics have no policy {key!r}")
            await self.update_topic(name, lambda stored: _put(stored, key, how(stored.get(key))))
            return
        topic_key = row.topic.key

        def change(stored: dict[str, Any]) -> None:
            _put(stored, topic_key, _checked(row, how(row.in_topic(stored))))
            _check_quota_fits_retention(_RETENTION.in_topic(stored), _QUOTAS.in_topic(stored))

        await self.update_topic(name, change)

    async def set_namespace_quota(self, namespace: str, kind: str, quota: Json) -> None:
        """Set one kind of backlog quota of a namespace; None removes it. Raises as `set_namespace` does."""
        checked_quota = _checked_quota(kind, quota)
        await self.change_namespace(
            namespace, "backlogQuotaMap", lambda quotas: _put(dict(quotas or {}), kind, checked_quota) or None
        )

    async def set_topic_quota(self, name: TopicName | str, kind: str, quota: Json) -> None:
        """Set one kind of backlog quota of a topic; None removes it. Raises as `set_topic` does."""
        checked_quota = _checked_quota(kind, quota)
        await self.change_topic(
            name, "backlogQuotaMap", lambda quotas: _put(dict(quotas or {}), kind, checked_quota) or None
        )

    async def set_subscription_rate(self, name: TopicName | str, subscription: str, rate: Json) -> None:
        """Set the dispatch rate of one subscription; None removes it. Raises as `set_topic` does."""
        own = {"dispatchRate": rate} if rate is not None else None
        await self.change_topic(
            name, "subscriptionPolicies", lambda rates: _put(dict(rates or {}), subscription, own) or None
        )

    async def delete_topic_policies(self, name: TopicName | str) -> None:
        await self.update_topic(name, lambda stored: stored.clear())

    async def update_namespace(self, namespace: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Let `change` modify a copy of a namespace's JSON under the lock of all changes, store it, and apply it.

        This and `update_topic` are the only ways to write a policy. The change is carried to its end even if the caller
        is cancelled, so that everything that is stored is in force.
        """
        await self._changes.finish(self._update_namespace(namespace, change))

    async def _update_namespace(self, namespace: str, change: Callable[[dict[str, Any]], object]) -> None:
        before: dict[str, Any] = {}
        stored: dict[str, Any] = {}

        def decide() -> Submit:
            nonlocal before, stored
            before = self.namespace(namespace)
            stored = copy.deepcopy(before)
            change(stored)
            group = stored.get(OF_NAMESPACE)
            attached = group != before.get(OF_NAMESPACE) and group in self._catalog.documents(RESOURCE_GROUP)
            needed = (RESOURCE_GROUP, str(group)) if attached else None
            return partial(self._catalog.put_namespace, namespace, stored, expected=before, needed=needed)

        async with self._changes.lock:
            await self._changes.store_decided(decide)
        self.refresh_namespace(namespace)
        if any(stored.get(key) != before.get(key) for key in GRANTS):
            tenant, _, local = namespace.partition("/")
            await self._revoke(tenant, local)

    async def update_topic(self, name: TopicName | str, change: Callable[[dict[str, Any]], object]) -> None:
        """Let `change` modify a copy of a topic's JSON under the lock of all changes, store it, and apply it."""
        if not self._defaults().topic_level_policies_enabled:
            raise NotAllowed("Topic level policies is disabled, to enable the topic level policy and retry.")
        name = TopicName.parse(name) if isinstance(name, str) else name
        await self._changes.finish(self._update_topic(name, change))

    async def _update_topic(self, name: TopicName, change: Callable[[dict[str, Any]], object]) -> None:
        async with self._changes.lock:
            await self._changes.store_decided(partial(self._decide_topic, name, change))
        self.refresh_topic(str(name))

    def _decide_topic(self, name: TopicName, change: Callable[[dict[str, Any]], object]) -> Submit:
        catalog, before = self._catalog, self.topic(name)
        stored = copy.deepcopy(before)
        change(stored)
        parent = str(name.parent)
        document = catalog.documents(PARTITIONED).get(parent)
        if document is not None:
            whole = {**document, "policies": stored}
            return partial(catalog.put_document, PARTITIONED, parent, whole, expected=document)
        if catalog.topic(str(name)) is not None:
            return partial(catalog.set_topic_policies, str(name), stored, expected=before)
        if name.is_persistent or not self._exists(name):
            raise TopicNotFound(str(name))
        raise NotAllowed(f"{name} is not persistent and has no partitions: nothing is stored of it")

    # -- spreading a change

    def refresh(self) -> None:
        """Apply a change of stored policies or settings to all loaded topics.

        Callers of this class get the new values at once. Loaded topics get them in this turn of the loop, or in the
        next few turns if there are many.
        """
        self._of_namespaces.clear()
        self._spread(self._loaded(), all_differ=self._refresh_rates())
        self.namespace_changed(None)

    def refresh_namespace(self, name: str) -> None:
        """Apply a change of one namespace, or of one tenant: thousands of topics of others need not be looked at."""
        of_it = f"://{name}/"
        self._refresh_some([topic for topic in self._loaded() if of_it in topic.text])
        self.namespace_changed(name)

    def refresh_topic(self, name: str) -> None:
        """Apply a change of one topic, or of one partitioned topic."""
        parent = parent_text(name)
        self._refresh_some([topic for topic in self._loaded() if parent_text(topic.text) == parent])

    def refresh_clusters(self) -> None:
        """Let all loaded topics look again: a cluster that they may be replicated to has changed."""
        self._spread(self._loaded(), all_differ=True)

    def refresh_groups(self) -> None:
        """Apply a change of resource groups. Only if one is new or deleted, topics have to look."""
        self._refresh_some(())

    def _refresh_some(self, topics: Sequence[TopicPort]) -> None:
        self._of_namespaces.clear()
        all_differ = self._refresh_rates()
        self._spread(self._loaded() if all_differ else topics, all_differ=all_differ)

    def _spread(self, topics: Sequence[TopicPort], *, all_differ: bool) -> None:
        for topic in topics[:_TOPICS_PER_TURN]:
            policies = self.of_topic(topic.name)
            if all_differ or policies != topic.policies:
                topic.policies = policies
                topic.policies_changed()
        rest = topics[_TOPICS_PER_TURN:]
        if rest:
            self._loop.call_soon(partial(self._spread, rest, all_differ=all_differ))


def _row(key: str) -> Policy[Any]:
    row = policy(key)
    if row is None:
        raise PreconditionFailed(f"there is no policy {key!r}")
    return row


def _put(stored: dict[str, Any], key: str, value: Json) -> dict[str, Any]:
    if value is None:
        stored.pop(key, None)
    else:
        stored[key] = value
    return stored


def _checked(row: Policy[Any], value: Json) -> Json:
    return None if value is None else row.checked(value)


def _checked_quota(kind: str, quota: Json) -> Json:
    if kind not in {QUOTA_SIZE, QUOTA_AGE}:
        raise PreconditionFailed(f"backlog quotas are {QUOTA_SIZE} and {QUOTA_AGE}, got {kind!r}")
    try:
        return BACKLOG_QUOTA.check(quota) if quota is not None else None
    except ValueError as error:
        raise PreconditionFailed(str(error)) from None


def _check_quota_fits_retention(retention: Json, quotas: Json) -> None:
    """Raises PreconditionFailed unless retention, if there is any, exceeds the backlog quota."""
    if retention is None or not quotas or retention["retentionSizeInMB"] == retention["retentionTimeInMinutes"] == 0:
        return
    size, age = quotas.get(QUOTA_SIZE), quotas.get(QUOTA_AGE)
    megabytes, minutes = retention["retentionSizeInMB"], retention["retentionTimeInMinutes"]
    over_size = size is not None and megabytes > 0 and size["limitSize"] >= megabytes << 20
    over_age = age is not None and minutes > 0 and age["limitTime"] >= minutes * 60
    if over_size or over_age:
        raise PreconditionFailed("Retention Quota must exceed configured backlog quota.")
