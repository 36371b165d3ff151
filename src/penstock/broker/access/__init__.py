# SPDX-License-Identifier: Apache-2.0
"""Authorization of clients, and the object that authenticates them.

    access          the object that the broker, its sessions and the admin API ask
    actions         actions that can be authorized
    rules           the operator's settings
    reports_only    the same for other brokers, which may use one topic
    authorization   who may do what: pure, over policies as in Pulsar

Where: app reads the settings and gives the broker an `Authenticator` of `penstock.authentication`; without one, every
client may do everything.
"""

from __future__ import annotations

from penstock.broker.access.access import OPEN, Access, AccessControl
from penstock.broker.access.actions import Action
from penstock.broker.access.rules import AccessRules

__all__ = ["OPEN", "Access", "AccessControl", "AccessRules", "Action"]
