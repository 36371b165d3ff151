# SPDX-License-Identifier: Apache-2.0
"""Which brokers a proxy connects to because others name them: clients in CONNECT, brokers in redirects.

Why: without a check, a proxy would open connections into its network for anybody, and show its credentials there.
Brokers that the cluster's own lookups have named are allowed. Others must match the three lists of Pulsar's proxy:
brokerProxyAllowedHostNames, brokerProxyAllowedIPAddresses and brokerProxyAllowedTargetPorts. Another broker is
refused with ServiceNotReady, as by Pulsar's proxy: the client may have asked another proxy, and a later lookup names
it here. Where: `session` checks a CONNECT; `lookups` remembers what brokers were named; `cluster_admin` checks
redirects.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotAllowed, ServiceNotReady
from penstock.wire.client.lookup import Address, host_with_port, parse_service_url, shortened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Brokers that are remembered: clusters are smaller.
NAMED_MAX: Final = 10_000
_ANY: Final = "*"
# Says where a broker may be named that was refused.
ALLOWED_BY: Final = "brokerProxyAllowedHostNames, brokerProxyAllowedIPAddresses and brokerProxyAllowedTargetPorts"


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
        # How many addresses each host has here; the thread of the admin port only looks whether it has any.
        self._hosts = Counter(address.host.lower() for address in self._cluster)

    def remember(self, address: Address) -> None:
        """A lookup has named this broker."""
        if address not in self._named:
            self._hosts[address.host.lower()] += 1
        self._named[address] = None
        self._named.move_to_end(address)
        while len(self._named) > NAMED_MAX:
            dropped, _ = self._named.popitem(last=False)
            host = dropped.host.lower()
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]

    def serves_admins(self, host: str, port: int, ports: Collection[int]) -> bool:
        """Return whether a request of an administrator may be sent on to this host; for any thread.

        Args:
            host: of the broker.
            port: of the broker.
            ports: where brokers serve administrators. At those, a host is allowed that lookups have named.
        """
        known = host.lower() in self._hosts or self._is_listed_host(host)
        return (known and port in ports) or self._is_listed(Address(host, port, self._tls))

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
        if len(addresses) > 1:
            raise NotAllowed(f"proxy_to_broker_url {shortened(url)} is not one broker")
        if address in self._cluster or address in self._named or self._is_listed(address):
            return address
        raise ServiceNotReady(
            f"this proxy does not connect to {host_with_port(address.host, address.port)}: no lookup has named it, and "
            f"it is not allowed by {ALLOWED_BY}"
        )

    def _is_listed(self, address: Address) -> bool:
        ports = self._allowed.ports
        return (not ports or address.port in ports) and self._is_listed_host(address.host)

    def _is_listed_host(self, host: str) -> bool:
        allowed, host = self._allowed, host.lower()
        if any(fnmatchcase(host, pattern.lower()) for pattern in allowed.hosts):
            return True
        try:
            ip = ipaddress.ip_address(host)
        except ValueError:
            return False
        return _ANY in allowed.networks or any(ip in network for network in self._networks)
