# SPDX-License-Identifier: Apache-2.0
"""Groups of routes: each module has `router(gateway, needs)`, which `api.build` includes.

The order matters: if two routes match a path, the first is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.admin.routes import (
    brokers,
    clusters,
    console,
    lookup,
    message_pages,
    messages,
    namespaces,
    policies,
    resource_groups,
    schemas,
    stats,
    subscriptions,
    tenants,
    topics,
    transactions,
    why,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import APIRouter

    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

GROUPS: Final[tuple[Callable[[Gateway, Needs], APIRouter], ...]] = (
    clusters.router,
    tenants.router,
    namespaces.router,
    resource_groups.router,
    policies.router,
    topics.router,
    subscriptions.router,
    messages.router,
    message_pages.router,
    stats.router,
    schemas.router,
    lookup.router,
    transactions.router,
    transactions.between_brokers,
    why.router,
    console.router,
    brokers.router,
)
