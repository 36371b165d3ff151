# SPDX-License-Identifier: Apache-2.0
"""Lookup of the broker that serves a topic: a broker answers, or names another one to ask.

Where: the owner of the connections asks `question` of each broker that `answered` names, until it knows the owner.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

from penstock.core.errors import PenstockError
from penstock.core.units import KIB
from penstock.wire.codec import CommandLookupTopic, CommandLookupTopicResponse
from penstock.wire.errors import ProtocolError

# ---------------------------------------------------------------------------------------------------------------------
# Where brokers are: `pulsar://host:6650` and `pulsar+ssl://host:6651`.
#
# Why strict: brokers and clients send addresses, too. A text that is no host and port is refused here, with a reason,
# before anybody connects to it: the resolver raises other errors for some texts, and takes others for something
# else.

# Several hundred brokers.
URL_CHARS_MAX: Final = 16 * KIB
_SCHEMES: Final = {"pulsar": False, "pulsar+ssl": True}
_PORTS: Final = {False: 6650, True: 6651}
# A name of DNS, or an IPv4 address. Names of containers may have underscores.
_HOST: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?\Z")
_PORT: Final = re.compile(r"[0-9]{1,5}\Z")
_PORT_MAX: Final = 65_535
_SHOWN_CHARS: Final = 100


class Address(NamedTuple):
    """One broker's port."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        scheme = "pulsar+ssl" if self.tls else "pulsar"
        return f"{scheme}://{host_with_port(self.host, self.port)}"


def parse_service_url(text: str) -> tuple[Address, ...]:
    """Read `pulsar://host:6650`, `pulsar+ssl://a:6651,b:6651`; the port may be left out, hosts are tried in turn.

    Raises:
        ValueError: it does not read as one, and why.
    """
    scheme, mark, rest = text.strip().partition("://")
    if not mark or scheme not in _SCHEMES:
        raise ValueError(f"service URL {shortened(text)}: want pulsar://host:6650 or pulsar+ssl://host:6651")
    if len(text) > URL_CHARS_MAX:
        raise ValueError(f"service URL {shortened(text)} has {len(text)} characters")
    tls = _SCHEMES[scheme]
    try:
        return tuple(
            Address(*parse_host_and_port(host.strip(), _PORTS[tls]), tls) for host in rest.partition("/")[0].split(",")
        )
    except ValueError as error:
        raise ValueError(f"service URL {shortened(text)}: {error}") from None


def parse_broker_url(text: str, *, tls: bool) -> Address:
    """Read the URL of one broker, as another broker says it, of the kind (with TLS, without) that is wanted.

    Raises:
        ValueError: it is none, and why.
    """
    addresses = parse_service_url(text)
    if len(addresses) > 1:
        raise ValueError(f"service URL {shortened(text)} names {len(addresses)} brokers instead of one")
    if addresses[0].tls != tls:
        raise ValueError(f"service URL {shortened(text)} is {'without' if tls else 'with'} TLS")
    return addresses[0]


def parse_host_and_port(text: str, default: int) -> tuple[str, int]:
    """Read `host`, `host:port` or `[IPv6]:port`. Raises ValueError."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        known = bool(bracket) and _is_ip6(host) and (not rest or rest.startswith(":"))
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
        known = _HOST.match(host) is not None
    if not known or (port and not (_PORT.match(port) and 0 < int(port) <= _PORT_MAX)):
        raise ValueError(f"{shortened(text)} is not host:port")
    return host, int(port or default)


def host_with_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shortened(text: str) -> str:
    """Return a text of another program, as it stands in a message: quoted, without its end if it is long."""
    return repr(text) if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]!r}…"


def _is_ip6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text  # A zone means something on its own machine only.


# Redirects followed before a lookup is given up, however many brokers there are; as Java's client does.
REDIRECTS_MAX: Final = 20


class RedirectedInCircles(PenstockError):
    """Brokers sent a lookup on and on; they may do so while they settle who serves the topic."""

    def __init__(self, topic: str, addresses: list[str]) -> None:
        self.topic, self.addresses = topic, addresses
        super().__init__(f"the lookup of {topic} was sent from broker to broker: {' → '.join(addresses)}")


class Owner(NamedTuple):
    """The broker that serves the topic, and the proxy to connect to instead, if there is one."""

    address: Address
    through: Address | None


class Redirect(NamedTuple):
    """The broker to ask next."""

    address: Address


class Lookup:
    """One lookup of one topic."""

    def __init__(self, topic: str, *, listener: str = "") -> None:
        """Look up `topic`, a full name, as the advertised listener `listener` sees its broker."""
        self._topic = topic
        self._listener = listener
        self._authoritative = False
        # A broker may send us back to one that was asked before, with the word that it decides; but only once.
        self._hops: dict[tuple[Address, bool], None] = {}

    def question(self, asked: Address) -> CommandLookupTopic:
        """Return the question to this broker.

        Raises:
            RedirectedInCircles: it was asked before, or too many were.
        """
        hop = asked, self._authoritative
        if hop in self._hops or len(self._hops) > REDIRECTS_MAX:
            raise RedirectedInCircles(self._topic, [str(address) for address, _ in (*self._hops, hop)])
        self._hops[hop] = None
        body = CommandLookupTopic(topic=self._topic, request_id=0, authoritative=self._authoritative)
        if self._listener:
            body.advertised_listener_name = self._listener
        return body

    def answered(self, answer: CommandLookupTopicResponse) -> Owner | Redirect:
        """Take the answer of the broker that was asked last.

        Raises:
            ProtocolError: it names no address of the kind (plain, TLS) that it was asked at.
        """
        (asked, _) = next(reversed(self._hops))
        url = answer.brokerServiceUrlTls if asked.tls else answer.brokerServiceUrl
        try:
            address = parse_broker_url(url, tls=asked.tls)
        except ValueError as error:
            kind = "TLS" if asked.tls else "plain"
            raise ProtocolError(f"a lookup's answer without the broker's {kind} address ({error})") from None
        if answer.response == CommandLookupTopicResponse.Connect:
            return Owner(address, asked if answer.proxy_through_service_url else None)
        self._authoritative = answer.authoritative
        return Redirect(address)
