# SPDX-License-Identifier: Apache-2.0
"""Visibility of limits in explanations: callers see their own and the broker's; of others, only that they exist.

Why: clients of two tenants may share a connection, so a limit of one slows the other. Its topics, rates and balances
are for those who administer it.
Where: what makes findings names the tenants that a limit belongs to; the routes of explanations pass each finding
through `shown`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ANOTHERS: Final = "a limit of another tenant"
ANOTHERS_REASON: Final = "another-tenant"

_REMEDY: Final = "its clients publish less, or clients of the two tenants use connections of their own"


def shown(finding: Mapping[str, Any], administers: Callable[[str], bool]) -> Mapping[str, Any]:
    """Return the finding, or what a stranger to its limit may know of it: who is slowed, and since when.

    Args:
        finding: its member `tenants` are those that share the limit. Without it, the limit is the broker's, or belongs
            to whoever is slowed. If it is empty, nobody knows whose it is.
        administers: whether the asker administers a tenant. A limit that is nobody's is for those who administer any
            tenant, also one that cannot exist.
    """
    tenants = finding.get("tenants")
    if tenants is None or any(map(administers, tenants or ("",))):
        return finding
    return {
        "what": finding["what"],
        "limit": ANOTHERS,
        "reason": ANOTHERS_REASON,
        "forMs": finding["forMs"],
        "numbers": {},
        "liftedBy": _REMEDY,
    }
