# SPDX-License-Identifier: Apache-2.0
"""The credentials of a client, and until when they are valid."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AuthenticationState:
    """Authentication state of a client."""

    method: str
    can_refresh: bool
    next_check_ns: int
    expires_ms: int | None = None
    of_original: bool = False  # the credentials are those of the client behind a proxy
    challenged: bool = False
