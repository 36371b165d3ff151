# SPDX-License-Identifier: Apache-2.0
"""A line in the log for each change that somebody asks for over the admin port: who, what, of what, and the outcome.

Why the route and its parameters, and not the path: the value of a setting may be a secret, so it is left out. Bodies
and queries are never logged. Why where a request enters: brokers pass requests on to each other, and one change is one
line. Where: `middleware` calls it when the answer is sent; refused requests are logged, too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.caller import CALLER

if TYPE_CHECKING:
    from starlette.types import Scope

log = logging.getLogger(__name__)

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SECRET: Final = frozenset({"value"})


def note(scope: Scope, status: int) -> None:
    """Log a request that may have changed something. Args: status: of its answer; 0: the caller left before it."""
    route = getattr(scope.get("route"), "path", None)
    if scope["method"] in _READS or route is None:
        return
    caller = CALLER.get()
    role = f"role {caller.role!r}" if caller.role else "somebody"
    if caller.original_role:
        role = f"role {caller.original_role!r} by {role}"
    client = scope.get("client")
    address = f"{client[0]}:{client[1]}" if client else "unknown"
    # `%r`: a name with a line break in it must not make two lines.
    target = {name: "***" if name in _SECRET else value for name, value in scope.get("path_params", {}).items()}
    outcome = f"status {status}" if status else "no answer"
    log.info("%s at %s: %s %s of %r: %s", role, address, scope["method"], route, target, outcome)
