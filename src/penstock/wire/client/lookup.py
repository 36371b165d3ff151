# SPDX-License-Identifier: Apache-2.0
"""Who serves a topic: asked of one broker, which answers, or names another one to ask.

Where: the owner of the connections asks `question` of each broker that `answered` names, until it knows the owner.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.core.errors import PenstockError
from penstock.wire.client.addresses import Address, parse_broker_url
from penstock.wire.codec import CommandLookupTopic, CommandLookupTopicResponse
from penstock.wire.errors import ProtocolError

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
        """What to ask of this broker.

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
        """What the broker that was asked last says.

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
