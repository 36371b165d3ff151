# SPDX-License-Identifier: Apache-2.0
"""Units: how sizes and durations are counted, and how people write them.

Why: a bare `5 * 1024 * 1024` or a timeout in "ticks" hides its meaning. Inside penstock sizes are whole bytes and
durations whole nanoseconds (milliseconds where the protocol says so); text is turned into them once, at the edge.
Where: settings and the command line parse with these; every layer computes with the constants.
"""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

_BYTE_UNITS: Final = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
_DURATION_UNITS: Final = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "": NS_PER_S,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3_600 * NS_PER_S,
    "d": 86_400 * NS_PER_S,
    "w": 7 * 86_400 * NS_PER_S,
}
# Whole numbers only: "0.1 KiB" has no exact number of bytes, and nobody needs it.
_QUANTITY: Final = re.compile(r"([+-]?[0-9]+)\s*([a-z]*)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Turn `5242880`, `64K`, `16 MiB` or `1g` into bytes. Units are powers of 1024, as in Pulsar's own tools.

    Raises:
        ValueError: the text is not a whole number with an optional unit.
    """
    number, unit = _split(text)
    for ending in ("ib", "b"):
        unit = unit.removesuffix(ending)
    if unit not in _BYTE_UNITS:
        raise ValueError(f"{text!r} is not a size: want a whole number of bytes, or one with K, M, G or T, like 64M")
    return number * _BYTE_UNITS[unit]


def parse_duration(text: str) -> int:
    """Turn `500ms`, `30s`, `5m`, `12h`, `7d` or `2w` into nanoseconds; a bare number is seconds.

    Raises:
        ValueError: the text is not a whole number with an optional unit.
    """
    number, unit = _split(text)
    if unit not in _DURATION_UNITS:
        raise ValueError(f"{text!r} is not a duration: want a whole number of ns, us, ms, s, m, h, d or w, like 30s")
    return number * _DURATION_UNITS[unit]


def _split(text: str) -> tuple[int, str]:
    """Part a quantity into its number and its unit, in lower case."""
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a whole number with an optional unit")
    return int(match[1]), match[2]
