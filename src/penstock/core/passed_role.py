# SPDX-License-Identifier: Apache-2.0
"""Which roles a proxy may pass on: those that arrive in an HTTP header exactly as they were written.

Why: Pulsar's header X-Original-Principal is plain text. HTTP drops spaces at both ends of a value, has no control
characters, and does not say how other letters than ASCII are encoded. A role that is changed on its way is the role of
somebody else: `"admin "` would arrive as `"admin"`. CONNECT could carry more, but a role that the protocol knows and
the admin port does not would be two clients, so the same rule is for both.
Where: a proxy asks before it passes a role on, by CONNECT or by HTTP; a broker when such a header arrives.
"""

from __future__ import annotations

from typing import Final

from penstock.core.errors import AuthorizationFailed
from penstock.core.units import KIB

# Brokers refuse a CONNECT whose `original_principal` is longer (`wire.bounds`); heads of requests have room for it.
ROLE_CHARS_MAX: Final = KIB
_SHOWN_CHARS: Final = 100


def check_passed_role(role: str) -> None:
    """Raises AuthorizationFailed, with the reason, unless this role survives being passed on."""
    if not role:
        why = "it is empty"
    elif len(role) > ROLE_CHARS_MAX:
        why = f"it has {len(role)} characters, and may have {ROLE_CHARS_MAX}"
    elif not role.isascii() or not role.isprintable():
        why = "it has other characters than letters, digits, signs and spaces of ASCII"
    elif role != role.strip():
        why = "it begins or ends with a space, which HTTP drops"
    else:
        return
    raise AuthorizationFailed(f"role {role[:_SHOWN_CHARS]!r} cannot be passed on unchanged: {why}; use another role")
