# SPDX-License-Identifier: Apache-2.0
"""Credentials of a client, the identity that they prove, and what providers of authentication are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.errors import AuthenticationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """The enabled providers, and the sources of their keys and users."""

    methods: frozenset[str] = frozenset()  # of "token", "tls", "basic"
    token_secret_key: str | None = None
    token_public_key: str | None = None
    token_public_alg: str = "RS256"  # noqa: S105 - a name
    token_auth_claim: str = "sub"  # noqa: S105 - a name
    token_audience_claim: str | None = None
    token_audience: str | None = None
    token_clock_skew_s: int = 0
    basic_users: str | None = None

    def __repr__(self) -> str:
        """Without keys, because objects appear in messages."""
        return f"ProviderOptions(methods={sorted(self.methods)})"


class CredentialsExpired(AuthenticationFailed):
    """The credentials were valid once."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Data for a provider, and the certificate that TLS has verified, as `ssl` describes it."""

    method: str
    data: bytes = field(default=b"", repr=False)
    certificate: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated role, and when its credentials expire."""

    role: str
    expires_ms: int | None = None

    def expired(self, now_ms: int) -> bool:
        """Whether the credentials have expired at this time, in ms since 1970."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


class Provider(Protocol):
    """An authentication provider. Called on any thread."""

    slow: bool  # whether it computes too long for the broker's event loop

    def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        """The identity for these credentials. Raises AuthenticationFailed."""
