# SPDX-License-Identifier: Apache-2.0
"""Where topics are served, for clients that ask over HTTP.

Clients that ask in the binary protocol are answered in `commands.discovery`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.service_urls import Addresses
    from penstock.broker.topics.places import Places
    from penstock.core.names import TopicName


class LookupAdmin:
    """One broker serves everything: here.

    Args:
        places: where topics may be.
        check_serving: raises ServiceNotReady, which names the topic, when topics are no longer served.
        addresses: where clients, and callers of the admin port, connect.
    """

    def __init__(
        self,
        *,
        places: Places,
        check_serving: Callable[[TopicName], None],
        addresses: Addresses,
    ) -> None:
        self._places = places
        self._check_serving = check_serving
        self._addresses = addresses

    def of_topic(self, name: TopicName, listener: str | None = None) -> dict[str, str | None]:
        """Where clients of this topic connect, whether or not it exists.

        Raises:
            ServiceNotReady: the broker is stopping.
            TenantNotFound, NamespaceNotFound: where it should be is nowhere.
            PreconditionFailed: there is no such listener.
        """
        self._check_serving(name)
        self._places.check_namespace(name.namespace_name)
        urls, web_urls = self._addresses.service, self._addresses.web
        if listener is not None and listener.strip():
            named = self._addresses.listeners.get(listener)
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
        """The bundle this topic is in: between which bounds the checksum of its name lies."""
        bounds = self._places.boundaries(name.namespace_name)
        at = bundle_index([int(bound, 16) for bound in bounds], str(name))
        return f"{bounds[at]}_{bounds[at + 1]}"


def bundle_index(bounds: list[int], topic: str) -> int:
    """Between which of these bounds a topic is, given by its full name."""
    return min(bisect_right(bounds, zlib.crc32(topic.encode())), len(bounds) - 1) - 1
