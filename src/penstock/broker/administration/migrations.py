# SPDX-License-Identifier: Apache-2.0
"""Admin operations that move clients to another cluster, with Pulsar's words (PIP-188), and holds of namespaces.

Why holds have names: whoever asks for one later must not take over what another command has begun, and a command
must know that its hold lasted from its first look to its end.
Where: `pulsar-admin` and `penstock migrate`; `broker.topics.migration` carries out what is stored here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.broker.administration.clusters import check_urls
from penstock.broker.policies.policy_values import CLUSTERS, MIGRATED, MIGRATION
from penstock.broker.topics.migration import HELD_UNTIL, HOLD, MOVED, TARGET
from penstock.core.errors import AlreadyExists, PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.administration.clusters import Clusters
    from penstock.broker.policies.policies import PolicyService
    from penstock.broker.topics.migration import Migration
    from penstock.core.clock import Clock
    from penstock.core.names import NamespaceName
    from penstock.storage.catalog import Catalog

# A hold must last for so long when it is ended by a move, so that brokers that hear of it later let nobody in.
_MARGIN_MS: Final = 1_000
_NOTHING: Final = {MIGRATED: False, TARGET: None}


class Migrations:
    """Migration of this cluster and of its namespaces. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        clusters: Clusters,
        policies: PolicyService,
        migration: Migration,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._clusters = clusters
        self._policies = policies
        self._migration = migration
        self._clock = clock

    def cluster(self, cluster: str) -> dict[str, Any]:
        """Whether a cluster is migrated, and where to. Raises NotFound."""
        self._clusters.check(cluster)
        stored = self._catalog.documents(CLUSTERS).get(cluster) or {}
        return {**_NOTHING, **(stored.get(MIGRATION) or {})}

    async def set_cluster(self, cluster: str, urls: Mapping[str, Any], *, migrated: bool) -> None:
        """Say where a cluster is migrated to, and whether all of it is. Raises NotFound, PreconditionFailed."""
        self._clusters.check(cluster)
        if not (urls.get("brokerServiceUrl") or urls.get("brokerServiceUrlTls")):
            raise PreconditionFailed("Cluster url must not be empty: give brokerServiceUrl or brokerServiceUrlTls")
        check_urls(urls)
        await self._clusters.set_migration(cluster, {MIGRATED: migrated, TARGET: dict(urls)})

    def namespace(self, namespace: NamespaceName) -> dict[str, Any]:
        """Whether a namespace is migrated, held and moved. Raises NamespaceNotFound."""
        stored = self._policies.namespace(str(namespace))
        ours = stored.get(MIGRATION) or {}
        return {
            MIGRATED: bool(stored.get(MIGRATED)),
            MOVED: bool(ours.get(MOVED)),
            "heldForMs": self._migration.held_for_ms(str(namespace), ours),
        }

    async def set_namespace(self, namespace: NamespaceName, *, migrated: bool, hold: str | None) -> None:
        """Send the clients of a namespace to the other cluster, or let them stay.

        Args:
            namespace: whose clients.
            migrated: whether they go.
            hold: name of a hold during which places of subscriptions were carried over, so that consumers go with a
                backlog, too; None: a consumer goes when its subscription has none.

        Raises:
            NamespaceNotFound: it does not exist.
            PreconditionFailed: the hold has ended.
        """

        def change(stored: dict[str, Any]) -> None:
            ours = stored.pop(MIGRATION, None) or {}
            lasts = self._migration.held_for_ms(str(namespace), ours) > _MARGIN_MS
            if hold is not None and not (ours.get(HOLD) == hold and lasts):
                raise PreconditionFailed(
                    f"The hold {hold} of {namespace} has ended, so clients may have published and acknowledged since: "
                    f"hold it again, and carry places over again"
                )
            stored[MIGRATED] = migrated
            if migrated and hold is not None:
                stored[MIGRATION] = {MOVED: True}

        await self._policies.update_namespace(str(namespace), change)

    async def hold(self, namespace: NamespaceName, hold: str, seconds: int) -> None:
        """Disconnect the clients of a namespace, and let them wait for so long, or until it is moved or let go.

        Raises:
            NamespaceNotFound: it does not exist.
            PreconditionFailed: it was moved.
            AlreadyExists: it has a hold of another name.
        """
        until_ms = self._clock.wall_ms() + 1000 * seconds

        def change(stored: dict[str, Any]) -> None:
            ours = stored.get(MIGRATION) or {}
            if ours.get(MOVED):
                raise PreconditionFailed(f"{namespace} was moved already")
            held_ms = self._migration.held_for_ms(str(namespace), ours)
            if ours.get(HOLD) != hold and held_ms:
                raise AlreadyExists(
                    f"{namespace} is held by {ours.get(HOLD)} for {held_ms / 1000:.1f} s: try again then"
                )
            if ours.get(HOLD) == hold and not held_ms:
                raise PreconditionFailed(f"The hold {hold} of {namespace} has ended: take another name")
            stored[MIGRATION] = {HOLD: hold, HELD_UNTIL: until_ms}

        await self._policies.update_namespace(str(namespace), change)

    async def let_go(self, namespace: NamespaceName, hold: str) -> None:
        """End a hold, if it lasts. Raises NamespaceNotFound."""

        def change(stored: dict[str, Any]) -> None:
            if (stored.get(MIGRATION) or {}).get(HOLD) == hold:
                del stored[MIGRATION]

        await self._policies.update_namespace(str(namespace), change)
