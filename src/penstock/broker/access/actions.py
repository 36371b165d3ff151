# SPDX-License-Identifier: Apache-2.0
"""Actions that need authorization.

Where: commands and admin routes each name one; `authorization` decides.
"""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """A requested action. The first four depend on the role's rank, the others are permissions that can be granted."""

    SUPERUSER = "superuser"
    TENANT_ADMIN = "tenant admin"
    NAMESPACE_ADMIN = "namespace admin"
    LOOKUP = "lookup"  # looking up a topic or listing a namespace: needs produce or consume there

    # As spelled in policies.
    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"
