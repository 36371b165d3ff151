# SPDX-License-Identifier: Apache-2.0
"""Entries that a replicator of another cluster publishes: whose they are, and what their receipts say.

Why: all producers of a topic there are one producer here, whose sequence ids mean nothing. What an entry is known by
depends on the replicator, which says in CONNECT what it can:

- by its position (ledger and entry id) in the cluster that it comes from, which the replicator writes into its
  properties. Positions only grow, so this is exact, whatever the producers there do. Receipts name the position.
- by its original producer and sequence id, as its metadata has them. Producers that number their messages anew are then
  taken for those that send again, as in Apache Pulsar.

Where: publish asks `origin_of` for each entry of a producer with a `replicator`; deduplication judges what it returns,
and finds it again in the log by `replicated_mark`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.names import REPLICATOR_PREFIX

if TYPE_CHECKING:
    from penstock.wire.codec import MessageMetadata

# The property of an entry in which a replicator says where the entry is in its own cluster: LEDGER:ENTRY.
POSITION_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
# The highest sequence id in the receipt of a marker, for replicators that know receipts by positions.
MARKER: Final = 1 << 63
_ENTRY_BITS: Final = 64
_DIGITS_MAX: Final = 20


class Replicator(Enum):
    """How the entries of a replicator are told apart."""

    BY_PRODUCERS = "producers"
    BY_POSITIONS = "positions"


class Origin(NamedTuple):
    """Producer and sequence ids by which deduplication knows an entry, and the ids of its receipt, if not those sent.

    Attributes:
        producer: a name; of a position, that of the cluster's replicator.
        first: its sequence id.
        last: of its last message.
        receipt: sequence id and highest sequence id of the receipt.
    """

    producer: str
    first: int
    last: int
    receipt: tuple[int, int] | None = None


def replicator_of(producer: str, *, positions: bool) -> Replicator | None:
    """Return how entries of a producer of this name are told apart; None: it is no replicator.

    Args:
        producer: its name.
        positions: whether its client knows receipts by positions; those of non-persistent topics have none.
    """
    if not producer.startswith(REPLICATOR_PREFIX):
        return None
    return Replicator.BY_POSITIONS if positions else Replicator.BY_PRODUCERS


def origin_of(replicator: Replicator, said: MessageMetadata) -> Origin:
    """Return the origin of an entry with this metadata. An entry without a position is known by its producer."""
    if replicator is Replicator.BY_POSITIONS and (position := _position(said)) is not None:
        mark = position[0] << _ENTRY_BITS | position[1]
        return Origin(_replicator_name(said), mark, mark, position)
    return Origin(said.producer_name, said.sequence_id, max(said.sequence_id, said.highest_sequence_id))


def replicated_mark(said: MessageMetadata) -> tuple[str, int] | None:
    """Return what deduplication knows a stored entry by, if it was replicated with its position."""
    if not said.replicated_from or (position := _position(said)) is None:
        return None
    return _replicator_name(said), position[0] << _ENTRY_BITS | position[1]


def _replicator_name(said: MessageMetadata) -> str:
    return f"{REPLICATOR_PREFIX}{said.replicated_from}"


def _position(said: MessageMetadata) -> tuple[int, int] | None:
    for pair in said.properties:
        if pair.key == POSITION_PROPERTY:
            ledger, _, entry = pair.value.partition(":")
            if _is_number(ledger) and _is_number(entry):
                return int(ledger), int(entry)
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX
