# SPDX-License-Identifier: Apache-2.0
"""What clusters, tenants and namespaces have in common when they are made: their names, and who was there first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.limits import BrokerLimits

_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)


def check_name(name: str, refusal: str) -> None:
    """Raises PreconditionFailed, which begins with `refusal`, for a name that no cluster or tenant can have."""
    if _ENTITY.fullmatch(name) is None:
        raise PreconditionFailed(f"{refusal}: {name!r} may hold letters, digits and - = : . _ only")


def is_taken(stored: Mapping[str, Any] | None, limits: BrokerLimits) -> bool:
    """Whether a cluster, a tenant or a namespace is there, and not to be created.

    Under authorization, Pulsar has no tenant `public`, nor its own cluster, before a superuser creates them, and
    set-ups begin with that. Ours are there from the start; as long as nothing was said about them, they can be created.
    """
    return stored is not None and bool(stored or not limits.access.authorizing)
