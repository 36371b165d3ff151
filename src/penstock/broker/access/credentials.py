# SPDX-License-Identifier: Apache-2.0
"""What a client shows, and what comes of it.

Where: sessions and the admin port make `Credentials`; a `Provider` turns them into an `Identity`, or raises
AuthenticationFailed with the reason for the log, which never holds any part of what was shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows: a provider's data, and the certificate that TLS has verified, as `ssl` describes it."""

    method: str
    data: bytes = field(default=b"", repr=False)
    certificate: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is, and until when that was shown."""

    role: str
    expires_ms: int | None = None

    def expired(self, now_ms: int) -> bool:
        """Whether it must be shown anew."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


class Provider(Protocol):
    """One way to show who somebody is. Called on any thread."""

    slow: bool  # whether it computes for longer than the broker's loop may be held

    def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        """Whose credentials these are. Raises AuthenticationFailed."""
        ...
