# SPDX-License-Identifier: Apache-2.0
"""Brokers as processes of their own, started and stopped in the same way: `penstock serve`, and its peer by name.

Where: all benchmarks of a running broker.
"""

from __future__ import annotations

import random
import socket
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from benchmarks.loads import PLAIN, TLS, TWO_BROKERS
from benchmarks.process import Address, PeerError, free_port
from benchmarks.pulsar_peer import pulsar
from benchmarks.report import BEFORE, PEER, PENSTOCK
from penstock.testing.certificates import Certificate
from penstock.testing.process import BrokerDidNotStart, BrokerProcess

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    Launch: TypeAlias = Callable[[Path], AbstractContextManager[Address]]

# Where several brokers look for ports in a row.
PORTS: Final = (12_000, 32_000)
ATTEMPTS: Final = 3


@contextmanager
def penstock(
    data: Path | None = None,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    arguments: Sequence[str] = (),
    checkout: Path | None = None,
) -> Iterator[Address]:
    """Start penstock, yield it when it serves, and stop it.

    Args:
        data: the data directory; a second start there finds what the first one stored. None: one of its own that is
            removed afterwards.
        settings: what differs from the defaults, as in a configuration file.
        arguments: of `penstock serve`.
        checkout: of the repository, to run what it says; None: this one.

    Raises:
        PeerError: the broker did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-peer-") as scratch:
        home, file = data or Path(scratch) / "data", Path(scratch) / "broker.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        broker = BrokerProcess(home, ["--config", str(file), *arguments], environment=environment_of(checkout))
        started_s = time.monotonic()
        try:
            broker.start()
        except BrokerDidNotStart as error:
            raise PeerError(str(error)) from error
        with broker:
            yield Address(
                port=broker.port, admin_port=broker.admin_port, pid=broker.pid, data=home, started_s=started_s
            )


def environment_of(checkout: Path | None) -> dict[str, str]:
    """What makes Python import penstock from a checkout; None: nothing."""
    return {} if checkout is None else {"PYTHONPATH": str(checkout.resolve() / "src")}


@contextmanager
def penstock_with_tls(data: Path, *, checkout: Path | None = None) -> Iterator[Address]:
    """Start penstock with a port for TLS beside the plain one."""
    port, made = free_port(), certificate_beside(data)
    arguments = ["--tls-cert", str(made.certificate), "--tls-key", str(made.key), "--tls-port", str(port)]
    with penstock(data, arguments=arguments, checkout=checkout) as address:
        yield replace(address, tls_port=port, tls_ca=made.certificate)


@contextmanager
def pulsar_with_tls(data: Path) -> Iterator[Address]:
    """Start Apache Pulsar with a port for TLS beside the plain one."""
    port, made = free_port(), certificate_beside(data)
    settings = {
        "brokerServicePortTls": str(port),
        "tlsCertificateFilePath": str(made.certificate),
        "tlsKeyFilePath": str(made.key),
    }
    with pulsar(data, settings=settings) as address:
        yield replace(address, tls_port=port, tls_ca=made.certificate)


def certificate_beside(data: Path) -> Certificate:
    """Make a certificate in a folder beside a data directory."""
    folder = data.with_name(f"{data.name}-tls")
    folder.mkdir(exist_ok=True)
    return Certificate.make(folder)


@contextmanager
def several(data: Path, *, brokers: int, checkout: Path | None = None) -> Iterator[Address]:
    """Start several brokers of penstock at ports in a row; the process is their supervisor."""
    cluster = BrokerProcess(data, ["--brokers", str(brokers)], environment=environment_of(checkout))
    attempts = 0
    while True:
        attempts += 1
        first = free_ports(2 * brokers)
        started_s = time.monotonic()
        try:
            cluster.start(port=first, admin_port=first + brokers)
            break
        except BrokerDidNotStart as error:  # Somebody else may have taken a port meanwhile.
            if attempts == ATTEMPTS:
                raise PeerError(str(error)) from error
    with cluster:
        yield Address(port=first, admin_port=first + brokers, pid=cluster.pid, data=data, started_s=started_s)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has, and that the system gives nobody for port 0."""
    while True:
        first = random.randrange(*PORTS)
        with ExitStack() as stack, suppress(OSError):
            for number in range(count):
                stack.enter_context(socket.create_server(("127.0.0.1", first + number)))
            return first


def setups(name: str, checkout: Path | None = None) -> Mapping[str, Launch]:
    """How a broker is started for each set-up of loads.

    Apache Pulsar takes so long to start and to warm up that one process serves all of them.
    """
    if name == PEER:
        return {PLAIN: pulsar_with_tls}
    return {
        PLAIN: partial(penstock, checkout=checkout),
        TLS: partial(penstock_with_tls, checkout=checkout),
        TWO_BROKERS: partial(several, brokers=2, checkout=checkout),
    }


BROKERS: Final[Mapping[str, Callable[..., AbstractContextManager[Address]]]] = {PENSTOCK: penstock, PEER: pulsar}


def add_peer_option(parser: ArgumentParser) -> None:
    """Let the command line name a peer."""
    parser.add_argument("--peer", choices=[PEER], help="measure this broker in the same run")


def add_before_option(parser: ArgumentParser) -> None:
    """Let the command line name an older penstock."""
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="measure this penstock, too, in the same run")


def subjects_of(options: Namespace) -> dict[str, Mapping[str, Launch]]:
    """All brokers that the command line names, and how they are started."""
    found = {PENSTOCK: setups(PENSTOCK)}
    if options.before:
        found[BEFORE] = setups(BEFORE, options.before)
    if options.peer:
        found[options.peer] = setups(options.peer)
    return found


def chosen(options: Namespace) -> list[str]:
    """Penstock, and the peer if one was named."""
    return [PENSTOCK, options.peer] if options.peer else [PENSTOCK]
