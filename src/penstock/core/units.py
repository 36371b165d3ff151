# SPDX-License-Identifier: Apache-2.0
"""Units of sizes and durations, and a parser of sizes.

Why: a bare `5 * 1024 * 1024` or a timeout in "ticks" hides its meaning. Inside penstock sizes are whole bytes and
durations whole nanoseconds (milliseconds where the protocol uses them). Text is converted once, when it is read. Where:
settings and the command line parse with these functions; every layer uses the constants.
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
MS_PER_S: Final = 1_000

_BYTE_UNITS: Final = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
# Whole numbers only: "0.1 KiB" has no exact number of bytes, and nobody needs it.
_QUANTITY: Final = re.compile(r"([+-]?[0-9]+)\s*([a-z]*)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Parse `5242880`, `64K`, `16 MiB` or `1g` as bytes. Units are powers of 1024, as in Pulsar's own tools.

    Raises:
        ValueError: the text is not a whole number with an optional unit.
    """
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a whole number with an optional unit")
    unit = match[2].removesuffix("ib").removesuffix("b")
    if unit not in _BYTE_UNITS:
        raise ValueError(f"{text!r} is not a size: want a whole number of bytes, or one with K, M, G or T, like 64M")
    return int(match[1]) * _BYTE_UNITS[unit]
