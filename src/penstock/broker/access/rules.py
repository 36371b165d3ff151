# SPDX-License-Identifier: Apache-2.0
"""What the operator said about clients: which roles stand above grants, and how to read what clients show.

Where: `AccessRules` is a part of `BrokerLimits` and may be replaced at run time; `ProviderOptions` is read when the
providers are made, and again on SIGHUP.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Roles, and what is checked of them."""

    authorizing: bool = False
    super_user_roles: frozenset[str] = frozenset()
    proxy_roles: frozenset[str] = frozenset()
    anonymous_role: str | None = None
    allow_wildcards: bool = False
    authenticate_original: bool = False
    refresh_check_ns: int = 60 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """Which providers there are, and where their keys and users come from."""

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
        """Without keys: an object like this ends up in messages."""
        return f"ProviderOptions(methods={sorted(self.methods)})"
