# SPDX-License-Identifier: Apache-2.0
"""An address that somebody else has sent is a host and a port, or is refused with a short reason."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.wire.client.lookup import (
    URL_CHARS_MAX,
    Address,
    parse_broker_url,
    parse_host_and_port,
    parse_service_url,
)

# Letters that addresses consist of, and some that confuse who reads them.
PARTS = st.lists(
    st.sampled_from(["pulsar", "+ssl", "://", "a", "b.c", "127.0.0.1", "::1", "[", "]", ":", "6650", "0", "65536", ",",
                     "/", "@", "%", "\\", "..", "-", "_", "\0", "\r\n", " ", "\u00e9", "\u0661", "?", "#"]),
    max_size=12,
).map("".join)  # fmt: skip


@given(st.one_of(PARTS, st.text(max_size=40)), st.sampled_from(["", "pulsar://", "pulsar+ssl://"]))
@example("a..b", "pulsar://")
@example("h" * 64, "pulsar://")
@example("[::1", "pulsar://")
@example("user@host:6650", "pulsar://")
def test_any_text_is_refused_or_is_what_can_be_connected_to(text: str, scheme: str) -> None:
    addresses: tuple[Address, ...] = ()
    with contextlib.suppress(ValueError):
        addresses = parse_service_url(scheme + text)
    for address in addresses:
        assert parse_service_url(str(address)) == (address,)
        address.host.encode("idna")  # as names are resolved
        assert address.host.isprintable()
        assert not set("@%/\\ ") & set(address.host)
        assert 0 < address.port < 65_536


@pytest.mark.parametrize(
    "text",
    ["", ":1", "a:0", "a:65536", f"a:{'9' * 5_000}", "a:\u0661", "a:+1", "a:1_0", "a b", "a\0", "u@a", "u:p@a",
     "[::1", "[::1]x", "[::1%lo]:1", "[]", "[a]:1", "::1", "a..b", ".", f"{'a.' * 130}b", "\u00e9", "a/b", "a\n"],
)  # fmt: skip
def test_what_is_no_host_with_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not host:port$"):
        parse_host_and_port(text, 7)


def test_a_broker_names_one_address_of_the_kind_that_it_was_asked_at() -> None:
    assert parse_broker_url("pulsar://a:1", tls=False) == Address("a", 1, tls=False)
    assert parse_broker_url("pulsar+ssl://[::1]:1", tls=True) == Address("::1", 1, tls=True)
    for url, tls, why in (
        ("pulsar://a:1", True, "is without TLS"),
        ("pulsar+ssl://a:1", False, "is with TLS"),
        ("pulsar://a:1,b:2", False, "names 2 brokers"),
        ("http://a:1", False, "want pulsar://"),
        ("pulsar://" + "a," * URL_CHARS_MAX, False, "characters"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            parse_broker_url(url, tls=tls)
        assert len(str(caught.value)) < 300
