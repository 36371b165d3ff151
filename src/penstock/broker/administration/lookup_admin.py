# SPDX-License-Identifier: Apache-2.0
"""Topic lookups over HTTP.

Clients of the binary protocol are answered in `commands.discovery`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.topics.namespace_resources import NamespaceResources
    from penstock.broker.topics.placement import Placement
    from penstock.core.names import TopicName


class LookupAdmin:
    """Lookups, of the topics of all brokers.

    Args:
        resources: checks tenants and namespaces.
        check_serving: raises ServiceNotReady, which names the topic, when topics are no longer served.
        placement: knows the broker of each topic.
    """

    def __init__(
        self,
        *,
        resources: NamespaceResources,
        check_serving: Callable[[TopicName], None],
        placement: Placement,
    ) -> None:
        self._resources = resources
        self._check_serving = check_serving
        self._placement = placement

    def of_topic(self, name: TopicName, listener: str | None = None) -> dict[str, str | None]:
        """Service URLs of a topic, whether or not it exists.

        Raises:
            ServiceNotReady: the broker is stopping, or the topic's broker is down.
            TenantNotFound, NamespaceNotFound: its tenant or namespace does not exist.
            PreconditionFailed: there is no such listener.
        """
        self._check_serving(name)
        self._resources.check_namespace(name.namespace_name)
        addresses = self._placement.addresses(name)
        urls, web_urls = addresses.service, addresses.web
        if listener is not None and listener.strip():
            named = addresses.listeners.get(listener)
            if named is None:
                raise PreconditionFailed(f"the broker do not have {listener} listener")
            urls = named
        return {
            "brokerUrl": urls.plain,
            "brokerUrlTls": urls.tls,
            "httpUrl": web_urls.plain,
            "httpUrlTls": web_urls.tls,
            "nativeUrl": urls.plain,
        }

    def bundle_of_topic(self, name: TopicName) -> str:
        """The bundle of a topic, as the range that contains the CRC-32 of its name."""
        bounds = self._resources.bundle_boundaries(name.namespace_name)
        at = bundle_index([int(bound, 16) for bound in bounds], str(name))
        return f"{bounds[at]}_{bounds[at + 1]}"


def bundle_index(bounds: list[int], topic: str) -> int:
    """Index of the bundle of a topic, given by its full name."""
    return min(bisect_right(bounds, zlib.crc32(topic.encode())), len(bounds) - 1) - 1
