# SPDX-License-Identifier: Apache-2.0
"""Authentication and authorization of clients.

    access          the object that the broker, its sessions and the admin API ask
    actions         actions that can be authorized
    rules           the operator's settings
    credentials     what a client presents, and the resulting identity
    authorization   who may do what: pure, over policies as in Pulsar
    authentication  the enabled providers; the following modules are imported only when enabled:
    token, basic, certificates, keys

Where: app reads the settings and gives the broker an `Authenticator`; without one, every client may do everything.
"""

from __future__ import annotations

from penstock.broker.access.access import OPEN, Access, AccessControl
from penstock.broker.access.actions import Action
from penstock.broker.access.rules import AccessRules

__all__ = ["OPEN", "Access", "AccessControl", "AccessRules", "Action"]
