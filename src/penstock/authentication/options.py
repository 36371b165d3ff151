# SPDX-License-Identifier: Apache-2.0
"""The operator's settings for authentication providers.

Where: read when the providers are made, and again on SIGHUP.
"""

from __future__ import annotations

from dataclasses import dataclass


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
