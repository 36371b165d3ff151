# SPDX-License-Identifier: Apache-2.0
"""Non-persistent topics of all brokers: which exist, as documents that their brokers write and remove.

Why documents: nothing else is stored of such a topic, but any broker lists those of all. They are written only where
there are several brokers. A broker removes those that its last run left behind when it starts.
Where: the loader notes a topic when it is loaded, `TopicIndex` removes it when it is unloaded.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.broker.changes import Changes
    from penstock.storage.catalog import Catalog

log = logging.getLogger(__name__)

NON_PERSISTENT: Final = "non-persistent"
_BROKER: Final = "broker"


class NonPersistentTopics:
    """Notes the non-persistent topics of this broker for the others."""

    def __init__(self, catalog: Catalog, changes: Changes, *, own: int) -> None:
        self._catalog = catalog
        self._changes = changes
        self._own = own

    def names(self) -> list[str]:
        """Full names of those of other brokers."""
        documents = self._catalog.documents(NON_PERSISTENT)
        return [name for name, document in documents.items() if document[_BROKER] != self._own]

    def forget_last_run(self) -> None:
        """Remove what the last run of this broker has noted."""
        for name, document in list(self._catalog.documents(NON_PERSISTENT).items()):
            if document[_BROKER] == self._own:
                self.gone(name)

    async def loaded(self, name: str) -> None:
        """Note a topic. Its first client waits for that, so that it finds the topic in lists of any broker."""
        document = {_BROKER: self._own}
        try:
            await self._changes.stored(partial(self._catalog.put_document, NON_PERSISTENT, name, document))
        except PenstockError as error:
            _noted(error)

    def gone(self, name: str) -> None:
        """Remove a topic."""
        self._catalog.put_document(NON_PERSISTENT, name, None, _noted)


def _noted(error: PenstockError | None) -> None:
    if error is not None:
        log.warning("other brokers are not told of a non-persistent topic: %s", error)
