# SPDX-License-Identifier: Apache-2.0
"""Where topics are served, for clients that ask over HTTP.

Where: the admin port's /lookup routes. Clients that ask in the binary protocol are answered in `discovery`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.core.names import TopicName


def of_topic(broker: Broker, name: TopicName, listener: str | None = None) -> dict[str, str | None]:
    """Where clients of this topic connect, whether or not it exists.

    Raises:
        ServiceNotReady: the broker is stopping.
        TenantNotFound, NamespaceNotFound: where it should be is nowhere.
        PreconditionFailed: there is no such listener.
    """
    broker.check_lookup(name)
    broker.places.check_namespace(name.namespace_name)
    urls = broker.service_urls
    if listener is not None and listener.strip():
        named = broker.listeners.get(listener)
        if named is None:
            raise PreconditionFailed(f"the broker do not have {listener} listener")
        urls = named
    return {
        "brokerUrl": urls.plain,
        "brokerUrlTls": urls.tls,
        "httpUrl": broker.web_urls.plain,
        "httpUrlTls": broker.web_urls.tls,
        "nativeUrl": urls.plain,
    }


def bundle_of_topic(broker: Broker, name: TopicName) -> str:
    """The bundle this topic is in: between which bounds the checksum of its name lies."""
    bounds = broker.places.boundaries(name.namespace_name)
    at = bundle_index([int(bound, 16) for bound in bounds], str(name))
    return f"{bounds[at]}_{bounds[at + 1]}"


def bundle_index(bounds: list[int], topic: str) -> int:
    """Between which of these bounds a topic is, given by its full name."""
    return min(bisect_right(bounds, zlib.crc32(topic.encode())), len(bounds) - 1) - 1
