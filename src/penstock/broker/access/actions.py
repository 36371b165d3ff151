# SPDX-License-Identifier: Apache-2.0
"""What somebody may be allowed to do.

Where: wire commands and routes of the admin port each name one; `authorization` says who may.
"""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """What is asked for. The first four are about somebody's place, the others are permissions that can be granted."""

    SUPERUSER = "superuser"
    TENANT_ADMIN = "tenant admin"
    NAMESPACE_ADMIN = "namespace admin"
    LOOKUP = "lookup"  # finding a topic, or listing a namespace: whoever may produce or consume there

    # Spelled as policies spell them.
    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"
