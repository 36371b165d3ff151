# SPDX-License-Identifier: Apache-2.0
"""Applies what other brokers of the cluster change in the shared metadata, as if it had been changed here.

Why: the catalog shows every broker the same records, but some parts have derived something from them: names of topics
for listings and watchers, the policies in force of loaded topics, versions of schemas, who may be connected.
Where: `Broker` makes one. A broker that is alone is never told anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.metadata_memory import SCHEMAS
from penstock.broker.policies.policies import PARTITIONED
from penstock.broker.policies.policy_values import CLUSTERS, RESOURCE_GROUP
from penstock.broker.topics.non_persistent import NON_PERSISTENT
from penstock.broker.transactions.numbers import TRANSACTION_NUMBERS
from penstock.broker.transactions.others import COMMITS
from penstock.storage.shared_view import CONFIGURATION, DELETIONS, LEDGER_IDS, NAMESPACES, TENANTS, TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.commands.sessions import Revocation
    from penstock.broker.configuration import Configuration
    from penstock.broker.policies.policies import PolicyService
    from penstock.broker.schemas.schema_registry import SchemaRegistry
    from penstock.broker.topics.directory import TopicIndex
    from penstock.broker.topics.placement import Placement
    from penstock.storage.catalog import Catalog
    from penstock.storage.shared_view import Row

# Kinds of which nothing is derived that depends on policies.
_NOT_POLICIES: Final = frozenset(
    {CONFIGURATION, DELETIONS, LEDGER_IDS, SCHEMAS, NON_PERSISTENT, COMMITS, TRANSACTION_NUMBERS}
)
# Changes that come together, of which each is looked at for itself.
_ROWS_ONE_BY_ONE: Final = 10


class Followed:
    """Called with the rows of each change of another broker, on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        index: TopicIndex,
        placement: Placement,
        policies: PolicyService,
        schemas: SchemaRegistry,
        configuration: Configuration,
        revocation: Revocation,
    ) -> None:
        self._catalog = catalog
        self._changes = changes
        self._index = index
        self._placement = placement
        self._policies = policies
        self._configuration = configuration
        self._revocation = revocation
        self._apply: Mapping[str, Callable[[Row], None]] = {
            TOPICS: self._topic,
            NON_PERSISTENT: self._non_persistent_topic,
            SCHEMAS: lambda row: schemas.followed(row.name, exists=row.value is not None),
            NAMESPACES: lambda row: self._revoke(*row.name.split("/")),
            TENANTS: lambda row: self._revoke(row.name),
        }
        catalog.listen(self._changed)

    def _changed(self, rows: Sequence[Row]) -> None:
        for row in rows:
            apply = self._apply.get(row.kind)
            if apply is not None:
                apply(row)
        if any(row.kind == CONFIGURATION for row in rows):
            self._configuration.followed()
        concerned = [row for row in rows if row.kind not in _NOT_POLICIES and self._concerns_topics(row)]
        if len(concerned) > _ROWS_ONE_BY_ONE:
            self._policies.refresh()
        else:
            for row in concerned:
                self._refresh(row)

    def _concerns_topics(self, row: Row) -> bool:
        """Whether loaded topics may be affected: others create thousands of topics that are not loaded here."""
        return row.kind != TOPICS or self._index.get(row.name) is not None

    def _refresh(self, row: Row) -> None:
        if row.kind in {NAMESPACES, TENANTS}:
            self._policies.refresh_namespace(row.name)
        elif row.kind in {TOPICS, PARTITIONED}:
            self._policies.refresh_topic(row.name)
        elif row.kind == RESOURCE_GROUP:
            self._policies.refresh_groups()
        elif row.kind == CLUSTERS:
            self._policies.refresh_clusters()
        else:
            self._policies.refresh()

    def _topic(self, row: Row) -> None:
        record = self._catalog.topic(row.name)
        if record is None:
            self._placement.deleted()
            self._index.remove_name(row.name)
        elif self._index.add_name(row.name):
            self._placement.created(record)

    def _non_persistent_topic(self, row: Row) -> None:
        if row.value is not None:
            self._index.add_name(row.name)
        elif self._index.get(row.name) is None:
            self._index.remove_name(row.name)

    def _revoke(self, tenant: str, namespace: str | None = None) -> None:
        self._changes.finish(self._revocation.disconnect_unauthorized(tenant, namespace))
