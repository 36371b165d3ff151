# SPDX-License-Identifier: Apache-2.0
"""A lookup follows redirects, to an end."""

from __future__ import annotations

import pytest

from penstock.wire import codec
from penstock.wire.client.lookup import (
    REDIRECTS_MAX,
    Address,
    Lookup,
    Owner,
    Redirect,
    RedirectedInCircles,
    parse_service_url,
)
from penstock.wire.errors import ProtocolError

TOPIC = "persistent://public/default/t"
FIRST, SECOND = Address("first", 6650, tls=False), Address("second", 6650, tls=False)
CONNECT, REDIRECT = codec.CommandLookupTopicResponse.Connect, codec.CommandLookupTopicResponse.Redirect


def answer(
    response: int, address: Address, *, authoritative: bool = False, proxied: bool = False
) -> codec.CommandLookupTopicResponse:
    return codec.CommandLookupTopicResponse(
        request_id=1,
        response=response,  # type: ignore[arg-type]
        brokerServiceUrl="" if address.tls else str(address),
        brokerServiceUrlTls=str(address) if address.tls else "",
        authoritative=authoritative,
        proxy_through_service_url=proxied,
    )


def test_the_first_broker_may_know_who_serves_the_topic() -> None:
    lookup = Lookup(TOPIC, listener="inside")
    question = lookup.question(FIRST)
    assert (question.topic, question.authoritative, question.advertised_listener_name) == (TOPIC, False, "inside")
    assert lookup.answered(answer(CONNECT, SECOND)) == Owner(SECOND, None)


def test_a_proxy_that_was_asked_is_also_what_is_connected_to() -> None:
    lookup = Lookup(TOPIC)
    lookup.question(FIRST)
    assert lookup.answered(answer(CONNECT, SECOND, proxied=True)) == Owner(SECOND, FIRST)


@pytest.mark.parametrize("authoritative", [True, False])
def test_a_redirect_is_followed_with_the_word_that_came_with_it(authoritative: bool) -> None:
    lookup = Lookup(TOPIC)
    lookup.question(FIRST)
    assert lookup.answered(answer(REDIRECT, SECOND, authoritative=authoritative)) == Redirect(SECOND)
    assert lookup.question(SECOND).authoritative == authoritative


def test_a_broker_may_be_asked_again_once_it_is_told_to_decide() -> None:
    lookup = Lookup(TOPIC)
    lookup.question(FIRST)
    lookup.answered(answer(REDIRECT, FIRST, authoritative=True))
    lookup.question(FIRST)
    lookup.answered(answer(REDIRECT, FIRST, authoritative=True))
    with pytest.raises(RedirectedInCircles, match="pulsar://first:6650 → pulsar://first:6650"):
        lookup.question(FIRST)


def test_ever_new_brokers_come_to_an_end() -> None:
    lookup = Lookup(TOPIC)
    for number in range(REDIRECTS_MAX + 1):
        address = Address(f"b{number}", 6650, tls=False)
        lookup.question(address)
        lookup.answered(answer(REDIRECT, address))
    with pytest.raises(RedirectedInCircles):
        lookup.question(FIRST)


def test_who_was_asked_by_tls_wants_an_address_with_tls() -> None:
    lookup = Lookup(TOPIC)
    lookup.question(FIRST._replace(tls=True))
    with pytest.raises(ProtocolError, match="TLS address"):
        lookup.answered(answer(CONNECT, SECOND))
    assert lookup.answered(answer(CONNECT, SECOND._replace(tls=True))).address.tls


@pytest.mark.parametrize("response", [CONNECT, REDIRECT])
@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("url", ["pulsar://second:6650", "pulsar+ssl://second:6651"])
def test_a_lookup_never_leads_from_tls_to_an_address_without(response: int, url: str, *, tls: bool) -> None:
    lookup = Lookup(TOPIC)
    lookup.question(FIRST._replace(tls=tls))
    said = answer(response, SECOND)
    said.brokerServiceUrl = said.brokerServiceUrlTls = url
    if tls == url.startswith("pulsar+ssl"):
        assert lookup.answered(said).address.tls == tls
    else:
        with pytest.raises(ProtocolError, match=r"with(out)? TLS"):
            lookup.answered(said)


@pytest.mark.parametrize("text", ["", "http://a", "pulsar://", "pulsar://a:0", "pulsar://a:70000"])
def test_what_is_no_service_url_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="service URL"):
        parse_service_url(text)
