# SPDX-License-Identifier: Apache-2.0
"""What a client has shown of who it is, and until when that counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Login:
    """What a client has shown, and whether it must show it again."""

    method: str
    can_refresh: bool
    next_check_ns: int
    expires_ms: int | None = None
    of_original: bool = False  # what was shown is its client's: it came through a proxy
    challenged: bool = False
