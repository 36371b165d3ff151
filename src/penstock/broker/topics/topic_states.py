# SPDX-License-Identifier: Apache-2.0
"""States of a topic besides its entries and cursors: terminated, epoch, compacted ledger.

One document of the catalog per topic (kind `topic-state`), of which several parts of the broker own a key each. Each
change replaces the document, so changes go through here: two at a time must not undo each other.

    terminated         True once the topic takes no more messages          (topic_life)
    compacted_ledger   the ledger that holds the compacted topic           (compaction)
    compacted_horizon  the last entry of the topic that it speaks of       (compaction)
    compacted_entries  how many entries it has                             (compaction)
    epoch              of the last exclusive grant to a producer           (producers)
    cancelled          ids of delayed entries that nobody is to get        (delayed_admin)

Other keys belong to whoever sets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.storage.compacted import CompactedLedger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.changes import Changes
    from penstock.core.errors import PenstockError
    from penstock.storage.catalog import Catalog
    from penstock.storage.metadata import Done

KIND: Final = "topic-state"
COMPACTED_LEDGER: Final = "compacted_ledger"
_COMPACTED_HORIZON: Final = "compacted_horizon"
_COMPACTED_ENTRIES: Final = "compacted_entries"
CANCELLED: Final = "cancelled"


class Stored(Protocol):
    """A topic, as it is stored."""

    @property
    def text(self) -> str: ...

    @property
    def ledger_id(self) -> int: ...


class TopicStates:
    """The documents, including changes that are not durable yet."""

    def __init__(self, catalog: Catalog, changes: Changes) -> None:
        self._catalog = catalog
        self._changes = changes
        self._changing: dict[int, dict[str, Any]] = {}  # by ledger: a new topic of the same name has another one

    def of(self, topic: str) -> Mapping[str, Any]:
        """The stored state of a topic; empty if there is none."""
        return self._catalog.documents(KIND).get(topic) or {}

    async def change(self, topic: Stored, **values: Any) -> None:  # noqa: ANN401 - JSON
        """Set these keys, or remove those with None; returns when it is durable.

        Raises:
            TopicNotFound: the topic was deleted.
            MetadataFailed: it could not be stored.
        """
        text, ledger_id, catalog = topic.text, topic.ledger_id, self._catalog
        before = self._changing.get(ledger_id)
        state = {**(self.of(text) if before is None else before), **values}
        state = {key: value for key, value in state.items() if value is not None}
        self._changing[ledger_id] = state

        def submit(done: Done) -> None:
            def stored(error: PenstockError | None) -> None:
                # Even if the caller was cancelled: until this point the next change must build on this one.
                if self._changing.get(ledger_id) is state:
                    del self._changing[ledger_id]
                done(error)

            catalog.put_document(KIND, text, state or None, stored, ledger_id=ledger_id)

        await self._changes.stored(submit)


def cancelled_of(state: Mapping[str, Any]) -> list[int]:
    """Entry ids of cancelled delayed messages, ascending; some may have been trimmed."""
    return list(state.get(CANCELLED, ()))


def compacted_in(state: Mapping[str, Any]) -> CompactedLedger | None:
    if state.get(COMPACTED_LEDGER) is None:
        return None
    return CompactedLedger(state[COMPACTED_LEDGER], state[_COMPACTED_ENTRIES], state[_COMPACTED_HORIZON])


def compacted_state(compacted: CompactedLedger) -> dict[str, int]:
    """The keys of a topic's state that name its compacted ledger."""
    return {
        COMPACTED_LEDGER: compacted.ledger_id,
        _COMPACTED_ENTRIES: compacted.entries,
        _COMPACTED_HORIZON: compacted.horizon,
    }


def not_compacted_state() -> dict[str, None]:
    """A change that removes the keys of the compacted ledger."""
    return dict.fromkeys((COMPACTED_LEDGER, _COMPACTED_ENTRIES, _COMPACTED_HORIZON))


def ledgers_in_use(catalog: Catalog) -> set[int]:
    """All ledgers of this broker: of topics, compacted ones, and those kept without a topic."""
    states = catalog.documents(KIND).values()
    compacted = {int(state[COMPACTED_LEDGER]) for state in states if state.get(COMPACTED_LEDGER) is not None}
    own = {record.ledger_id for record in catalog.topics() if catalog.is_own(record)}
    return own | compacted | catalog.kept_ledgers()
