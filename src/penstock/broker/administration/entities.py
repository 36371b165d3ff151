# SPDX-License-Identifier: Apache-2.0
"""Checks shared by the creation of clusters, tenants and namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import PreconditionFailed
from penstock.core.names import check_entity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.limits import BrokerLimits


def check_name(name: str, refusal: str) -> None:
    """Raises PreconditionFailed, with a text that starts with `refusal`, for a name that cannot be given."""
    try:
        check_entity(name)
    except ValueError as error:
        raise PreconditionFailed(f"{refusal}: {error}") from error


def is_taken(stored: Mapping[str, Any] | None, limits: BrokerLimits) -> bool:
    """Whether a cluster, tenant or namespace exists, so that it cannot be created.

    With authorization, Pulsar has no tenant `public` and no own cluster until a superuser creates them, and set-up
    scripts begin with that. Here they exist from the start, but can be created as long as nothing was set for them.
    """
    return stored is not None and bool(stored or not limits.access.authorizing)
