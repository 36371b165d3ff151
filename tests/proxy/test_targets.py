# SPDX-License-Identifier: Apache-2.0
"""A client names the broker to be connected to: which of them a proxy connects it to."""

from __future__ import annotations

import pytest

from penstock.core.errors import NotAllowed, ServiceNotReady
from penstock.proxy.targets import NAMED_MAX, AllowedTargets, Targets
from penstock.wire.client.lookup import Address

CLUSTER = Address("broker.example.com", 6650, tls=False)


def targets(**allowed: object) -> Targets:
    return Targets(AllowedTargets(**allowed), [CLUSTER], tls=False)  # type: ignore[arg-type]


def test_the_addresses_of_the_cluster_and_brokers_that_lookups_have_named_are_allowed() -> None:
    known = targets()
    assert known.target("broker.example.com:6650") == CLUSTER
    with pytest.raises(ServiceNotReady, match=r"does not connect to 10\.0\.0\.7:7000"):
        known.target("10.0.0.7:7000")
    known.remember(Address("10.0.0.7", 7000, tls=False))
    assert known.target("pulsar://10.0.0.7:7000") == Address("10.0.0.7", 7000, tls=False)


@pytest.mark.parametrize(
    ("allowed", "url", "is_allowed"),
    [
        ({"hosts": ("*.example.com",)}, "b.example.com:6650", True),
        ({"hosts": ("*.example.com",)}, "B.Example.COM:6651", True),
        ({"hosts": ("*.example.com",)}, "b.example.com:22", False),
        ({"hosts": ("*.example.com",)}, "b.example.org:6650", False),
        ({"hosts": ("*",), "ports": ()}, "anything:22", True),
        ({"networks": ("10.0.0.0/8",)}, "10.1.2.3:6650", True),
        ({"networks": ("10.0.0.0/8",)}, "11.1.2.3:6650", False),
        ({"networks": ("10.0.0.1",)}, "10.0.0.1:6650", True),
        ({"networks": ("*",)}, "192.168.0.1:6650", True),
        ({"networks": ("*",)}, "localhost:6650", False),
        ({"networks": ("fd00::/8",)}, "[fd00::1]:6650", True),
    ],
)
def test_others_must_be_on_a_list_with_their_port(allowed: dict[str, object], url: str, *, is_allowed: bool) -> None:
    if is_allowed:
        targets(**allowed).target(url)
    else:
        with pytest.raises(ServiceNotReady):
            targets(**allowed).target(url)


@pytest.mark.parametrize(
    ("host", "port", "is_allowed"),
    [
        ("broker.example.com", 8080, True),
        ("BROKER.example.com", 8080, True),
        ("broker.example.com", 8081, False),
        ("broker.example.com", 6650, False),
        ("named.example.com", 8080, True),
        ("named.example.com", 7000, False),
        ("b.listed.example.com", 8080, True),
        ("b.listed.example.com", 9090, True),
        ("b.listed.example.com", 22, False),
        ("evil.example.com", 8080, False),
        ("evil.example.com", 9090, False),
    ],
)
def test_administrators_reach_known_hosts_at_the_ports_of_administrators(
    host: str, port: int, *, is_allowed: bool
) -> None:
    known = targets(hosts=("*.listed.example.com",), ports=(9090,))
    known.remember(Address("named.example.com", 7000, tls=False))
    assert known.serves_admins(host, port, {8080}) == is_allowed


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:",
        "host:0",
        "host:99999",
        "a:6650,b:6650",
        "http://host:80",
        "x" * 300,
        "a..b:6650",
        "u@a:6650",
        "a\0:6650",
        "[::1:6650",
        "\u00e9:6650",
    ],
)
def test_what_is_no_address_of_one_broker_is_refused(url: str) -> None:
    with pytest.raises((NotAllowed, ServiceNotReady), match=r"proxy_to_broker_url|does not connect"):
        targets().target(url)


def test_only_so_many_named_brokers_are_remembered() -> None:
    known = targets()
    for number in range(NAMED_MAX + 1):
        known.remember(Address(f"b{number}", 7000, tls=False))
    with pytest.raises(ServiceNotReady):
        known.target("b0:7000")
    known.target("b1:7000")
    assert [known.serves_admins(host, 80, {80}) for host in ("b0", "b1")] == [False, True]
    assert known.serves_admins(CLUSTER.host, 80, {80})
