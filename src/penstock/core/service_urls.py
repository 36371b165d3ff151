# SPDX-License-Identifier: Apache-2.0
"""Service URLs of a broker, for lookups, administrators and the other brokers of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """URLs without and with TLS."""

    plain: str
    tls: str | None


NOWHERE: Final = ServiceUrls("", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The broker's service URLs, known when its ports are bound."""

    service: ServiceUrls = NOWHERE  # for clients
    web: ServiceUrls = NOWHERE  # the admin API
    # By listener name (advertisedListeners).
    listeners: Mapping[str, ServiceUrls] = field(default_factory=dict)
    # Nobody has said where clients reach this broker, which may be behind a mapped port: they stay on their own URL.
    guessed: bool = False
