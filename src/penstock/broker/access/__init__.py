# SPDX-License-Identifier: Apache-2.0
"""Who a client is, and what it may do.

access          the one object that the broker, its sessions and the admin port ask
actions         what can be asked for
rules           what the operator said
credentials     what a client shows, and what comes of it
authorization   who may do what: pure, over policies as Pulsar writes them
authentication  the providers that are switched on                          from here on imported only when they are
token, basic, certificates, keys

Where: app reads the settings and gives the broker an `Authenticator`; without one, everybody may do everything.
"""

from __future__ import annotations

from penstock.broker.access.access import OPEN, Access, Guard
from penstock.broker.access.actions import Action
from penstock.broker.access.rules import AccessRules

__all__ = ["OPEN", "Access", "AccessRules", "Action", "Guard"]
