# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a topic besides its entries and cursors: terminated, epoch, compacted ledger.

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
# The kind and the name of the document that lists ledgers which are kept though no topic has them.
KEPT: Final = "kept-ledgers"
LOG: Final = "broker-0"
COMPACTED_LEDGER: Final = "compacted_ledger"
_COMPACTED_HORIZON: Final = "compacted_horizon"
_COMPACTED_ENTRIES: Final = "compacted_entries"
CANCELLED: Final = "cancelled"


class Stored(Protocol):
    """A topic, as far as what is stored of it tells it from others."""

    @property
    def text(self) -> str:
        """Its full name."""
        ...

    @property
    def ledger_id(self) -> int:
        """Where its entries are."""
        ...


class TopicStates:
    """The documents, as they will be once every change that was asked for is stored."""

    def __init__(self, catalog: Catalog, changes: Changes) -> None:
        self._catalog = catalog
        self._changes = changes
        self._changing: dict[int, dict[str, Any]] = {}  # by ledger: another topic of that name is another topic

    def of(self, topic: str) -> Mapping[str, Any]:
        """What is remembered of a topic; empty when nothing is."""
        return self._catalog.documents(KIND).get(topic) or {}

    async def change(self, topic: Stored, **values: Any) -> None:  # noqa: ANN401 - JSON
        """Set these keys, or with None forget them; returns when it is durable.

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
                # Also when nobody waits any more: until here, the next change must build on this one.
                if self._changing.get(ledger_id) is state:
                    del self._changing[ledger_id]
                done(error)

            catalog.put_document(KIND, text, state or None, stored, ledger_id=ledger_id)

        await self._changes.stored(submit)


def cancelled_of(state: Mapping[str, Any]) -> list[int]:
    """Delayed entries that were cancelled, ascending; some may be given up since."""
    return list(state.get(CANCELLED, ()))


def compacted_in(state: Mapping[str, Any]) -> CompactedLedger | None:
    """The compacted ledger that a topic's state names."""
    if state.get(COMPACTED_LEDGER) is None:
        return None
    return CompactedLedger(state[COMPACTED_LEDGER], state[_COMPACTED_ENTRIES], state[_COMPACTED_HORIZON])


def compacted_state(compacted: CompactedLedger) -> dict[str, int]:
    """What a topic's state says of its compacted ledger."""
    return {
        COMPACTED_LEDGER: compacted.ledger_id,
        _COMPACTED_ENTRIES: compacted.entries,
        _COMPACTED_HORIZON: compacted.horizon,
    }


def not_compacted_state() -> dict[str, None]:
    """What takes that back."""
    return dict.fromkeys((COMPACTED_LEDGER, _COMPACTED_ENTRIES, _COMPACTED_HORIZON))


def ledgers_in_use(catalog: Catalog) -> set[int]:
    """Every ledger that the catalog knows: of topics, of their compacted twins, and what is kept for nobody."""
    states = catalog.documents(KIND).values()
    compacted = {int(state[COMPACTED_LEDGER]) for state in states if state.get(COMPACTED_LEDGER) is not None}
    return {record.ledger_id for record in catalog.topics()} | compacted | kept_ledgers(catalog)


def kept_ledgers(catalog: Catalog) -> set[int]:
    """Ledgers that were found when the catalog was older than the log: nobody knows whose they are."""
    return set(catalog.documents(KEPT).get(LOG, {}).get("ledgers", ()))
