# SPDX-License-Identifier: Apache-2.0
"""All limiters that players try to escape, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.evade import count_limits, dispatch_limits, publish_limits, size_limits, throttle_limits

if TYPE_CHECKING:
    from tests.evade.rows import Limiter

LIMITERS: Final[dict[str, Limiter]] = {
    row.name: row
    for row in (
        *publish_limits.ROWS,
        *dispatch_limits.ROWS,
        *count_limits.ROWS,
        *size_limits.ROWS,
        *throttle_limits.ROWS,
    )
}
