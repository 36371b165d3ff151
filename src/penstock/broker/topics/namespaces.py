# SPDX-License-Identifier: Apache-2.0
"""Checks that tenants and namespaces exist, before a topic is looked up or created in them.

Where: commands that find topics, the directory, and the admin API.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.topics.topic_states import ledgers_in_use
from penstock.core.errors import NamespaceNotFound, TenantNotFound
from penstock.storage.shared_view import DELETIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.errors import PenstockError
    from penstock.core.names import NamespaceName
    from penstock.storage.catalog import Catalog
    from penstock.storage.entry_log import EntryLog


# -- repairs differences between catalog and log after a crash: ledgers without a topic, topics without entries --------

log = logging.getLogger(__name__)

# At most this many missing segments are logged with the names of their topics.
MISSING_NAMED_MAX: Final = 100


def name_missing(catalog: Catalog, entry_log: EntryLog) -> None:
    """Log the names of the topics of which entries are missing; the log itself knows only ledgers."""
    pieces = entry_log.missing.listed()
    if not pieces:
        return
    names = {record.ledger_id: record.name for record in catalog.topics()}
    for one in pieces[:MISSING_NAMED_MAX]:
        if one.ledger_id in names:
            log.error(
                "topic %s: entries %d to %d are missing, for the log lacks a file; they stay in the backlogs until it "
                "is back", names[one.ledger_id], one.first_entry, one.end_entry - 1,
            )  # fmt: skip


def drop_unknown_ledgers(catalog: Catalog, entry_log: EntryLog) -> None:
    """Delete ledgers that no topic uses. Blocks on the disk.

    If the log has ledgers that this catalog never assigned, the catalog is an older copy or a new one, and unknown
    ledgers may be the only data. Then nothing is deleted, now or at a later start, and no ledger id is reused.
    """
    unknown = entry_log.ledgers() - ledgers_in_use(catalog)
    if not unknown:
        return
    if all(map(catalog.was_given_out, unknown)):
        log.info("giving up %d ledgers of topics that were deleted right before the last stop", len(unknown))
        for ledger_id in sorted(unknown):
            entry_log.drop(ledger_id)
        return
    log.error(
        "meta.sqlite is older than the log: of %d ledgers it does not know which topics have them; they are kept. "
        "Stop penstock and put the meta.sqlite in place that belongs to this log, if you have it",
        len(unknown),
    )
    kept = unknown | catalog.kept_ledgers()
    catalog.keep_ledgers(kept, _logged)
    catalog.skip_ledger_ids(max(kept) + 1, _logged)


def _logged(error: PenstockError | None) -> None:
    if error is not None:
        log.error("what to keep of the log could not be stored: %s", error)


class NamespaceResources:
    """The stored tenants and namespaces.

    `deleting` holds the full names of namespaces and partitioned topics that this broker is deleting: nothing is
    created in them. Those that any broker is deleting are in the catalog (`deletions`).
    """

    def __init__(self, catalog: Catalog, bundles_default: Callable[[], int]) -> None:
        """Args: bundles_default: number of bundles of a namespace that does not set it."""
        self._catalog = catalog
        self._bundles_default = bundles_default
        self.deleting: set[str] = set()

    def check_tenant(self, tenant: str) -> None:
        if tenant not in self._catalog.tenants():
            raise TenantNotFound(tenant)

    def check_namespace(self, namespace: NamespaceName) -> None:
        """Raises TenantNotFound or NamespaceNotFound, the latter also while the namespace is being deleted."""
        self.check_exists(namespace)
        if self.is_deleting(str(namespace)):
            raise NamespaceNotFound(str(namespace))

    def is_deleting(self, name: str) -> bool:
        """Whether a broker is deleting this namespace or partitioned topic."""
        return name in self.deleting or name in self._catalog.documents(DELETIONS)

    def check_exists(self, namespace: NamespaceName) -> None:
        """Raises TenantNotFound or NamespaceNotFound; not because the namespace is being deleted."""
        self.check_tenant(namespace.tenant)
        if str(namespace) not in self._catalog.namespaces():
            raise NamespaceNotFound(str(namespace))

    def bundle_boundaries(self, namespace: NamespaceName) -> list[str]:
        """The hash boundaries of a namespace's bundles, from 0x00000000 to 0xffffffff."""
        self.check_namespace(namespace)
        stored = self._catalog.namespaces()[str(namespace)].get("bundles") or {}
        return list(stored.get("boundaries") or bundles(self._bundles_default())["boundaries"])


def bundles(number: int) -> dict[str, Any]:
    """The bundles data of a namespace with so many bundles, as in Pulsar's Policies."""
    size = 2**32 // number
    boundaries = [f"0x{index * size:08x}" for index in range(number)]
    return {"boundaries": [*boundaries, "0xffffffff"], "numBundles": number}
