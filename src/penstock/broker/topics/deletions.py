# SPDX-License-Identifier: Apache-2.0
"""Notes of what brokers are deleting, as all brokers know them: namespaces, and partitioned topics of several brokers.

Why: a deletion takes many steps, at several brokers. Clients whose topics are deleted connect again at once, and would
create them again; and a broker that does not answer leaves a part. So the intent is stored first: from then on all
brokers refuse topics in it, and so does the writer of the shared metadata (`shared_changes`). It stays until the
deletion is finished, which is tried again when brokers return (`deleting`), or has failed for another reason.

A note is a document under the name of the namespace or topic, and names the broker that deletes it. It goes with the
namespace or topic. Where there is one broker, `NamespaceResources.deleting` is enough.
Where: `deleting` and `partitions` note deletions; `NamespaceResources` asks for them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.storage.shared_view import DELETIONS

if TYPE_CHECKING:
    from penstock.broker.changes import Changes
    from penstock.core.membership import Membership
    from penstock.storage.catalog import Catalog

_BROKER: Final = "broker"


class Deletions:
    """The notes. All methods are called on the event loop."""

    def __init__(self, catalog: Catalog, changes: Changes, membership: Membership) -> None:
        self._catalog = catalog
        self._changes = changes
        self._membership = membership

    async def begin(self, name: str) -> None:
        """From now on no broker creates topics in it. Raises MetadataFailed."""
        if len(self._membership.members) > 1:
            document = {_BROKER: self._membership.own}
            await self._changes.stored(partial(self._catalog.put_document, DELETIONS, name, document))

    async def end(self, name: str) -> None:
        """It is not deleted: topics may be created again. Raises MetadataFailed."""
        if self.is_noted(name):
            await self._changes.stored(partial(self._catalog.put_document, DELETIONS, name, None))

    def is_noted(self, name: str) -> bool:
        """Whether a broker has begun to delete it."""
        return name in self._catalog.documents(DELETIONS)

    def is_elsewhere(self, name: str) -> bool:
        """Whether another broker is deleting it, and serves."""
        number = self._catalog.documents(DELETIONS).get(name, {}).get(_BROKER)
        member = self._membership.members.get(number) if number is not None else None
        return member is not None and number != self._membership.own and member.allows.serves

    def ours(self) -> list[str]:
        """What this broker has to finish."""
        documents = self._catalog.documents(DELETIONS).items()
        return [name for name, document in documents if self.are_finished_here(document[_BROKER])]

    def are_finished_here(self, broker: int | None) -> bool:
        """Whether this broker finishes what that one has begun: itself, or one that is left out by now, or unknown."""
        members = self._membership.members
        return self._membership.own == (broker if broker in members else min(members))
