# SPDX-License-Identifier: Apache-2.0
"""Times and durations in options. Pure; all functions raise ValueError, which says what is wanted."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_UNITS_MS: Final = {
    "ms": 1, "s": 1_000, "second": 1_000, "m": 60_000, "min": 60_000, "minute": 60_000, "h": 3_600_000,
    "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000,
}  # fmt: skip
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([a-z]+?)s?")
_MILLISECONDS: Final = re.compile(r"\d{1,15}")


def duration_ms(text: str) -> int:
    """Parse `15m`, `30 seconds`, `500ms`."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit = found and (_UNITS_MS.get(found[2]) or _UNITS_MS.get(found[2] + "s"))
    if not found or not unit:
        raise ValueError(f"{text!r} is no duration; want a number and a unit, like 500ms, 30s, 15m or 1h")
    return round(float(found[1]) * unit)


def time_ms(said: object) -> int:
    """Parse ms since 1970, or a time as ISO 8601 writes it; one without an offset is in UTC."""
    if type(said) is int and 0 <= said < 10**15:
        return said
    text = said.strip() if isinstance(said, str) else ""
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None:
        raise ValueError(f"{said!r} is no time; want ms since 1970, or ISO 8601 like 2024-03-01T10:00:00Z")
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)
