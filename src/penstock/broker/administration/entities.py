# SPDX-License-Identifier: Apache-2.0
"""Checks shared by the creation of clusters, tenants and namespaces."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.limits import BrokerLimits

_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)


def check_name(name: str, refusal: str) -> None:
    """Raises PreconditionFailed, with a text that starts with `refusal`, for an invalid cluster or tenant name."""
    if _ENTITY.fullmatch(name) is None:
        raise PreconditionFailed(f"{refusal}: {name!r} may hold letters, digits and - = : . _ only")


def is_taken(stored: Mapping[str, Any] | None, limits: BrokerLimits) -> bool:
    """Whether a cluster, tenant or namespace exists, so that it cannot be created.

    With authorization, Pulsar has no tenant `public` and no own cluster until a superuser creates them, and set-up
    scripts begin with that. Here they exist from the start, but can be created as long as nothing was set for them.
    """
    return stored is not None and bool(stored or not limits.access.authorizing)
