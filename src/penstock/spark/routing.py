# SPDX-License-Identifier: Apache-2.0
"""Which partition of a topic a row goes to, as Pulsar's clients decide it.

Why it matters: messages of one key are in order only if every producer puts that key on the same partition, whatever
language it is written in. So the hash is the clients' own: Murmur3, or the one of Java's strings, which Java's client
takes unless told otherwise.
Where: `writer` asks for the partitions of a whole column of keys; rows without a key go round, an entry at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.core.hashing import java_string_hash, sticky_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Keys whose partition is remembered from one batch of Spark to the next.
KEYS_REMEMBERED: Final = 100_000

HASHES: Final[Mapping[str, Callable[[bytes], int]]] = {
    "Murmur3_32Hash": sticky_hash,
    "JavaStringHash": java_string_hash,
}


class KeyRouter:
    """Partitions by key, for one topic."""

    def __init__(self, partitions: int, hash_of: Callable[[bytes], int]) -> None:
        self._partitions = partitions
        self._hash_of = hash_of
        self._known: dict[bytes, int] = {}

    def partitions_of(self, keys: pa.BinaryArray) -> pa.Int32Array:
        """Return the partition of each key; null for null keys."""
        coded = keys.dictionary_encode()
        known = self._known
        if len(known) > KEYS_REMEMBERED:
            known.clear()
        places = []
        for key in coded.dictionary.to_pylist():
            place = known.get(key)
            if place is None:
                place = known[key] = self._hash_of(key) % self._partitions
            places.append(place)
        return pa.array(places, pa.int32()).take(coded.indices)
