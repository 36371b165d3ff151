# SPDX-License-Identifier: Apache-2.0
"""The operator's settings for authorization, and for roles.

Where: a part of `BrokerLimits`, which may be replaced at run time.
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
