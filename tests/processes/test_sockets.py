# SPDX-License-Identifier: Apache-2.0
"""The ports of one broker or of several, and the addresses that belong to them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.core.units import GIB
from penstock.processes.sockets import addresses, bound, check_ports, open_sockets
from penstock.settings import MachineFacts, Settings, load
from tests.processes.cluster import free_ports

FACTS = MachineFacts(ram_bytes=8 * GIB, cgroup_limit_bytes=None, hostname="host-1")
TLS = {"tlsCertificateFilePath": "cert.pem", "tlsKeyFilePath": "key.pem"}


def made_of(**values: str) -> Settings:
    return load(environment={f"PULSAR_PREFIX_{key}": value for key, value in values.items()}, facts=FACTS)


def test_each_broker_has_each_port_plus_its_number_and_says_so() -> None:
    first = free_ports(4)
    settings = made_of(
        brokerServicePort=str(first),
        webServicePort=str(first + 2),
        advertisedAddress="example.com",
        advertisedListeners="inside:pulsar://10.0.0.5:6650",
    )
    for number in range(2):
        opened = open_sockets(settings, number)
        try:
            told = addresses(settings, opened, number)
            assert bound(settings, opened).plain == f"pulsar://example.com:{first + number}"
            assert told.service == bound(settings, opened)
            assert (told.web.plain, told.web.tls) == (f"http://example.com:{first + 2 + number}", None)
            assert told.listeners["inside"].plain == f"pulsar://10.0.0.5:{6650 + number}"
        finally:
            opened.close()


@pytest.mark.parametrize(
    ("configured", "alone", "guessed"),
    [
        ({}, True, True),
        ({"bindAddress": "0.0.0.0"}, True, True),
        ({}, False, False),
        ({"advertisedAddress": "example.com"}, True, False),
        ({"advertisedListeners": "inside:pulsar://10.0.0.5:6650"}, True, False),
    ],
)
def test_the_address_of_a_lone_broker_is_a_guess_unless_somebody_has_named_it(
    configured: dict[str, str], alone: bool, guessed: bool
) -> None:
    settings = made_of(brokerServicePort="0", webServicePort="0", **configured)
    opened = open_sockets(settings)
    told = addresses(settings, opened, alone=alone)
    opened.close()
    assert told.guessed is guessed


def test_port_zero_is_another_free_port_for_each_broker() -> None:
    settings = made_of(brokerServicePort="0", webServicePort="0")
    opened = [open_sockets(settings, number) for number in range(2)]
    urls = {url for each in opened for url in (bound(settings, each).plain, addresses(settings, each).web.plain)}
    for each in opened:
        each.close()
    assert len(urls) == 4
    assert all(not url.endswith(":0") for url in urls)


def test_the_ports_of_tls_are_opened_where_there_is_a_certificate() -> None:
    ports = {"brokerServicePort": "0", "webServicePort": "0", "brokerServicePortTls": "0", "webServicePortTls": "0"}
    opened = open_sockets(made_of(**ports, **TLS))
    opened.close()
    assert None not in opened[:4]


def test_a_port_of_several_that_is_taken_is_named_and_leaves_the_others_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(ConfigurationError, match=f"^admin TLS port {port} cannot be opened: "):
            open_sockets(made_of(brokerServicePort="0", webServicePort="0", webServicePortTls=port, **TLS))
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_two_ports_that_would_be_the_same_are_named() -> None:
    check_ports(made_of(brokerServicePort="0", webServicePort="0"), 3)
    check_ports(made_of(**TLS), 1)
    with pytest.raises(
        ConfigurationError, match=r"^port 6651 is both the TLS port of broker 0 and the port of broker 1: .*2 apart"
    ):
        check_ports(made_of(**TLS), 2)


def test_a_port_that_leaves_none_for_the_last_broker_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="admin port 65535 leaves no port for broker 1: 65535 is the largest"):
        check_ports(made_of(webServicePort="65535"), 2)


# Prints how many objects the largest collection has looked at while many were made that stay.
_LARGEST_COLLECTION = """
import gc
from penstock.processes.sockets import started

largest = 0

def look(phase, about):
    global largest
    if phase == "start":
        looked_at = range(about["generation"] + 1)
        largest = max(largest, sum(len(gc.get_objects(generation=each)) for each in looked_at))

started()
gc.callbacks.append(look)
kept = [[] for _ in range(100_000)]
print(largest)
"""


def test_a_collection_of_garbage_stops_the_loop_for_a_few_milliseconds_however_much_there_is() -> None:
    """It takes 0.05 to 0.3 µs for each object that it looks at, and nobody is served meanwhile."""
    ran = subprocess.run([sys.executable, "-c", _LARGEST_COLLECTION], capture_output=True, text=True, check=True)
    assert 2_000 <= int(ran.stdout) < 10_000
