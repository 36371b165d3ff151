# SPDX-License-Identifier: Apache-2.0
"""The operator's settings for authentication and authorization.

Where: `AccessRules` is a part of `BrokerLimits` and may be replaced at run time; `ProviderOptions` is read when the
providers are made, and again on SIGHUP.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Privileged roles, and which checks are enabled."""

    authorizing: bool = False
    super_user_roles: frozenset[str] = frozenset()
    proxy_roles: frozenset[str] = frozenset()
    anonymous_role: str | None = None
    allow_wildcards: bool = False
    authenticate_original: bool = False
    refresh_check_ns: int = 60 * NS_PER_S


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
