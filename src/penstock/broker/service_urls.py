# SPDX-License-Identifier: Apache-2.0
"""The addresses of the broker, as lookups and administrators are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """What clients connect to."""

    plain: str
    tls: str | None


NOWHERE: Final = ServiceUrls("", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the broker is reached, known as soon as its ports are bound."""

    service: ServiceUrls = NOWHERE  # for clients
    web: ServiceUrls = NOWHERE  # the admin port
    # For clients that ask for a listener by its name (advertisedListeners).
    listeners: Mapping[str, ServiceUrls] = field(default_factory=dict)
