# SPDX-License-Identifier: Apache-2.0
"""Hashes of keys that all of Pulsar's clients and brokers agree on.

Why it matters: messages of one key are in order only if every producer puts that key on the same partition, and every
broker gives it to the same consumer, whatever language they are written in.
Where: Key_Shared and Failover dispatch; the partition that a row written by Spark goes to.
"""

from __future__ import annotations

from typing import Final

_MASK_31: Final = 0x7FFFFFFF
_MASK_32: Final = 0xFFFFFFFF


def sticky_hash(key: bytes) -> int:
    """Murmur3 (x86, 32 bits, seed 0) without its sign bit: the hash Pulsar's clients and brokers agree on."""
    value, tail_at = 0, len(key) & ~3
    for at in range(0, tail_at, 4):
        value ^= _scramble(int.from_bytes(key[at : at + 4], "little"))
        value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & _MASK_32
    value ^= _scramble(int.from_bytes(key[tail_at:], "little")) ^ len(key)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK_32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK_32
    return (value ^ value >> 16) & _MASK_31


def _scramble(block: int) -> int:
    block = block * 0xCC9E2D51 & _MASK_32
    return (block << 15 | block >> 17) * 0x1B873593 & _MASK_32


def java_string_hash(key: bytes) -> int:
    """`String.hashCode()` of a key in UTF-8, without its sign bit: how Java's and Go's producers choose by default."""
    value = 0
    units = key.decode("utf-8", "replace").encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & _MASK_32
    return value & _MASK_31
