# SPDX-License-Identifier: Apache-2.0
"""Which brokers a client may ask a proxy to connect it to.

Why: a client names the broker in CONNECT. Without a check, a proxy would open connections into its network for anybody.
Brokers that the cluster's own lookups have named are allowed. Others must match the three lists of Pulsar's proxy:
brokerProxyAllowedHostNames, brokerProxyAllowedIPAddresses and brokerProxyAllowedTargetPorts. Another broker is refused
with ServiceNotReady, as by Pulsar's proxy: the client may have asked another proxy, and a later lookup names it here.
Where: `session` checks a CONNECT; `lookups` remembers what brokers were named.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotAllowed, ServiceNotReady
from penstock.wire.client.addresses import Address, parse_service_url
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Brokers that are remembered: clusters are smaller.
NAMED_MAX: Final = 10_000
_ANY: Final = "*"
_HOST_CHARS_MAX: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedTargets:
    """The three lists. `*` allows everything; an empty list of hosts or addresses allows nothing by itself."""

    hosts: tuple[str, ...] = ()  # names, `*` for any characters
    networks: tuple[str, ...] = ()  # addresses, or networks such as 10.0.0.0/8
    ports: tuple[int, ...] = (6650, 6651)  # empty: any


class Targets:
    """Decides about each broker that a client names."""

    def __init__(self, allowed: AllowedTargets, cluster: Iterable[Address], *, tls: bool) -> None:
        """Args: cluster: its addresses, which are allowed; tls: whether brokers are reached with TLS."""
        self._allowed = allowed
        self._networks = [ipaddress.ip_network(text, strict=False) for text in allowed.networks if text != _ANY]
        self._cluster = frozenset(cluster)
        self._tls = tls
        self._named: OrderedDict[Address, None] = OrderedDict()

    def remember(self, address: Address) -> None:
        """A lookup has named this broker. Raises ProtocolError if nothing has such a name."""
        if len(address.host) > _HOST_CHARS_MAX:
            raise ProtocolError(f"a broker whose name has {len(address.host)} characters")
        self._named[address] = None
        self._named.move_to_end(address)
        while len(self._named) > NAMED_MAX:
            self._named.popitem(last=False)

    def target(self, url: str) -> Address:
        """Return the broker that `proxy_to_broker_url` names (host:port, or a service URL).

        Raises:
            NotAllowed: it is no address.
            ServiceNotReady: it is one that this proxy does not connect to.
        """
        text = url if "://" in url else f"{'pulsar+ssl' if self._tls else 'pulsar'}://{url}"
        try:
            addresses = parse_service_url(text)
        except ValueError as error:
            raise NotAllowed(f"proxy_to_broker_url: {error}") from None
        address = addresses[0]._replace(tls=self._tls)
        if len(addresses) > 1 or len(address.host) > _HOST_CHARS_MAX:
            raise NotAllowed(f"proxy_to_broker_url {url[:_HOST_CHARS_MAX]!r} is not one broker")
        if address in self._cluster or address in self._named or self._is_listed(address):
            return address
        raise ServiceNotReady(
            f"this proxy does not connect to {address.host}:{address.port}: no lookup has named it, and it is not "
            f"allowed by brokerProxyAllowedHostNames, brokerProxyAllowedIPAddresses and brokerProxyAllowedTargetPorts"
        )

    def _is_listed(self, address: Address) -> bool:
        allowed = self._allowed
        if allowed.ports and address.port not in allowed.ports:
            return False
        host = address.host.lower()
        if any(fnmatchcase(host, pattern.lower()) for pattern in allowed.hosts):
            return True
        try:
            ip = ipaddress.ip_address(host)
        except ValueError:
            return False
        return _ANY in allowed.networks or any(ip in network for network in self._networks)
