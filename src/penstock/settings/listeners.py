# SPDX-License-Identifier: Apache-2.0
"""The addresses of advertisedListeners.

Where: `processes.sockets` adds them to the addresses of each broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.service_urls import ServiceUrls
from penstock.core.setting import of_listener
from penstock.settings import sources

if TYPE_CHECKING:
    from penstock.settings.model import Settings


def named_listeners(settings: Settings, number: int = 0) -> dict[str, ServiceUrls]:
    """Return the addresses by listener name. Those of broker `number` have each port plus that number."""
    urls: dict[str, dict[str, str]] = {}
    for item in settings.advertised_listeners:
        name, scheme, url = of_listener(item)
        host, _, port = url.rpartition(":")
        urls.setdefault(name, {})[scheme] = f"{host}:{int(port) + number}"
    return {name: ServiceUrls(by.get("pulsar", ""), by.get("pulsar+ssl")) for name, by in urls.items()}


def unnamed_listener(settings: Settings, number: int = 0) -> ServiceUrls | None:
    """Return the address for clients that name no listener; None for the broker's own address."""
    if settings.internal_listener_name is None or settings.sources["advertisedAddress"] != sources.DEFAULT:
        return None
    return named_listeners(settings, number)[settings.internal_listener_name]
