# SPDX-License-Identifier: Apache-2.0
"""Namespaces that a broker is deleting, as all brokers know them.

Why: a namespace is deleted after its topics. Clients of other brokers, whose topics are deleted, connect again at once,
and would create them again. So all brokers refuse it before the first topic is deleted, and the writer of the shared
metadata refuses new topics from then on (`shared_changes`), so what exists by then is all that there is to delete.

A document names the broker. It goes with the namespace, or when the deletion fails; or when the broker starts again,
because its deletions ended with it. Where there is one broker, `NamespaceResources.deleting` is enough.
Where: `administration.namespaces` notes deletions; `NamespaceResources` asks for them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.storage.shared_view import DELETIONS

if TYPE_CHECKING:
    from penstock.broker.changes import Changes
    from penstock.core.errors import PenstockError
    from penstock.core.membership import Membership
    from penstock.storage.catalog import Catalog

log = logging.getLogger(__name__)

_BROKER: Final = "broker"


class NamespaceDeletions:
    """Notes of deletions. All methods are called on the event loop."""

    def __init__(self, catalog: Catalog, changes: Changes, membership: Membership) -> None:
        self._catalog = catalog
        self._changes = changes
        self._membership = membership

    async def begin(self, namespace: str) -> None:
        """From now on no broker creates topics in it. Raises MetadataFailed."""
        if len(self._membership.members) > 1:
            document = {_BROKER: self._membership.own}
            await self._changes.stored(partial(self._catalog.put_document, DELETIONS, namespace, document))

    async def end(self, namespace: str) -> None:
        """It was not deleted: topics may be created again. Raises MetadataFailed."""
        if namespace in self._catalog.documents(DELETIONS):
            await self._changes.stored(partial(self._catalog.put_document, DELETIONS, namespace, None))

    def is_elsewhere(self, namespace: str) -> bool:
        """Whether another broker is deleting it, and serves."""
        number = self._catalog.documents(DELETIONS).get(namespace, {}).get(_BROKER)
        member = self._membership.members.get(number) if number is not None else None
        return member is not None and number != self._membership.own and member.allows.serves

    def forget_last_run(self) -> None:
        """Remove what the last run of this broker has noted, and brokers that are left out by now."""
        for namespace, document in list(self._catalog.documents(DELETIONS).items()):
            if document[_BROKER] == self._membership.own or document[_BROKER] not in self._membership.members:
                self._catalog.put_document(DELETIONS, namespace, None, _noted)


def _noted(error: PenstockError | None) -> None:
    if error is not None:
        log.warning("a namespace stays as if it was being deleted: %s", error)
