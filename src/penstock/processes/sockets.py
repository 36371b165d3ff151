# SPDX-License-Identifier: Apache-2.0
"""The listening sockets of a broker, and the addresses that clients and administrators reach them at.

Why apart from the broker: with `--brokers N` the supervisor opens the sockets of all brokers and keeps them open. So a
broker that is started again has the ports and addresses it had, and every broker knows the addresses of all.
Where: `app` opens its own for a single broker, the supervisor those of each of its brokers.

Broker i has each port plus i; of port 0, the system chooses one for each broker.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import socket
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.errors import ConfigurationError
from penstock.core.service_urls import Addresses, ServiceUrls
from penstock.net.listener import listen_for_callers, listen_for_clients
from penstock.settings.limits import named_listeners, unnamed_listener
from penstock.settings.sources import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.settings import Settings


# ---------------------------------------------------------------------------------------------------------------------
# Listening sockets that stay open while this process replaces itself (`end_of_process.start_again`).
#
# Why: clients that connect meanwhile wait in the kernel, as those of a broker under a supervisor do. If they were
# refused, they would try again after pauses that double, and be back long after the broker. The ports stay the same,
# even if the system chose them. Where: `sockets` keeps those of brokers, and opens with them.
#
# The new program is told in a variable of its environment, with its process id: children inherit the variable, too.

# No setting: those begin with PENSTOCK_.
VARIABLE: Final = "_PENSTOCK_KEPT_SOCKETS"
_OF: Final = "pid"


def keep(sockets: Mapping[str, socket.socket]) -> None:
    """Leave sockets to the program that replaces this one, under names; what is open here may be closed."""
    kept = _taken()
    for name, sock in sockets.items():
        kept[name] = os.dup(sock.fileno())
        os.set_inheritable(kept[name], True)
    os.environ[VARIABLE] = json.dumps({_OF: os.getpid(), **kept})


def take(name: str) -> socket.socket | None:
    """Return the socket that was left under this name; None if there is none."""
    kept = _taken()
    descriptor = kept.pop(name, None)
    if kept:
        os.environ[VARIABLE] = json.dumps({_OF: os.getpid(), **kept})
    if descriptor is None:
        return None
    os.set_inheritable(descriptor, False)
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return sock


def close_rest() -> None:
    """Close what nobody took: the new program opens other ports."""
    for descriptor in _taken().values():
        os.close(descriptor)


def _taken() -> dict[str, int]:
    """Read the variable and remove it."""
    kept: dict[str, int] = json.loads(os.environ.pop(VARIABLE, "{}"))
    return kept if kept.pop(_OF, None) == os.getpid() else {}


# -- how a process that serves clients sets up its interpreter: threads, garbage collection, open files ----------------

# The interpreter's switch interval: a thread that waited for the disk runs again this soon, instead of after the
# default 5 ms, because the journal's delay is part of every receipt.
SWITCH_INTERVAL_S: Final = 0.0005
# Long-lived objects (topics, cursors, columns of runs) have few cycles, and a full collection with many topics blocks
# the loop for tens of milliseconds: with these thresholds it comes as rarely as every 24 million objects that stay, and
# the default is (700, 10, 10). A collection of the middle generation looks at four times the first threshold, so at
# 8,000 objects: under 3 ms with cold caches, where 50,000 took 9 to 20. Together all collections take as long as with
# larger thresholds, because each object is looked at once in each generation.
GC_THRESHOLDS: Final = (2_000, 2, 3_000)


def set_up_interpreter() -> None:
    """Set the switch interval, and raise the soft limit of open files to the hard limit: a connection needs one."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def started() -> None:
    """Collect garbage from now on, and never look at what exists already."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


PORT_MAX: Final = 65_535


class Sockets(NamedTuple):
    """The listening sockets of one broker; None: this port is not opened."""

    clients: socket.socket | None
    clients_tls: socket.socket | None
    web: socket.socket | None
    web_tls: socket.socket | None
    peers: socket.socket | None = None  # the inbox for requests of the other brokers of the cluster
    peer_clients: socket.socket | None = None  # and for other brokers as clients, in Pulsar's protocol

    def close(self) -> None:
        """Close those that are open."""
        for sock in self:
            if sock is not None:
                sock.close()


def open_sockets(settings: Settings, number: int = 0) -> Sockets:
    """Open all ports of a broker, or none; those that `keep_open` has left are open already.

    Raises ConfigurationError.
    """
    host, opened = settings.bind_address, Sockets(None, None, None, None)
    try:
        for field, (what, port, listen) in _wanted(settings, number).items():
            sock = take(_name(settings, number, field, port)) or _open(what, host, port, listen)
            opened = opened._replace(**{field: sock})
    except ConfigurationError:
        opened.close()
        raise
    return opened


def keep_open(settings: Settings, sockets: Sockets, number: int = 0) -> None:
    """Leave the ports of a broker open for the program that replaces this one, with the same settings."""
    ports = {field: port for field, (_what, port, _listen) in _wanted(settings, number).items()}
    opened = {field: getattr(sockets, field) for field in ports}
    keep(
        {
            _name(settings, number, field, ports[field]): sock
            for field, sock in opened.items()
            if sock is not None and sock.fileno() >= 0
        }
    )


def check_ports(settings: Settings, brokers: int) -> None:
    """Raise ConfigurationError if two ports of so many brokers would be the same one."""
    taken = sorted(
        (port, f"the {what} of broker {number}")
        for number in range(brokers)
        for what, port, _listen in _wanted(settings, number).values()
        if port
    )
    for (port, one), (again, other) in pairwise(taken):
        if port == again:
            raise ConfigurationError(
                f"port {port} is both {one} and {other}: broker i has each port plus i, so choose ports that are "
                f"{brokers} apart or more, or 0 for free ones"
            )


def addresses(settings: Settings, sockets: Sockets, number: int = 0, *, alone: bool = False) -> Addresses:
    """Return the addresses to advertise for a broker with these sockets; `alone`: it is the only one of its cluster.

    Clients of several brokers must be sent to the right one, so their addresses are never taken for guesses.
    """
    name, service = settings.advertised_address, unnamed_listener(settings, number) or bound(settings, sockets)
    web = ServiceUrls(_url("http", name, sockets.web) or "", _url("https", name, sockets.web_tls))
    configured = settings.sources["advertisedAddress"] != DEFAULT or bool(settings.advertised_listeners)
    listeners = named_listeners(settings, number)
    return Addresses(service=service, web=web, listeners=listeners, guessed=alone and not configured)


def bound(settings: Settings, sockets: Sockets) -> ServiceUrls:
    """Return where clients connect, whatever advertisedListeners says."""
    name = settings.advertised_address
    return ServiceUrls(_url("pulsar", name, sockets.clients) or "", _url("pulsar+ssl", name, sockets.clients_tls))


def _wanted(settings: Settings, number: int) -> dict[str, tuple[str, int, Callable[[str, int], socket.socket]]]:
    """Return what each socket is, its port and how to open it, by the field of `Sockets`."""
    tls = settings.tls_certificate is not None
    ports = {
        "clients": ("port", settings.port, listen_for_clients),
        "clients_tls": ("TLS port", settings.tls_port if tls else None, listen_for_clients),
        "web": ("admin port", settings.admin_port, listen_for_callers),
        "web_tls": ("admin TLS port", settings.admin_tls_port if tls else None, listen_for_callers),
    }
    return {
        field: (what, _of_broker(what, port, number), listen)
        for field, (what, port, listen) in ports.items()
        if port is not None
    }


def _name(settings: Settings, number: int, field: str, port: int) -> str:
    """A name for what is asked for: with other settings it is another socket."""
    return f"{number} {field} {settings.bind_address} {port}"


def _of_broker(what: str, port: int, number: int) -> int:
    if port and port + number > PORT_MAX:
        raise ConfigurationError(f"{what} {port} leaves no port for broker {number}: {PORT_MAX} is the largest")
    return port + number if port else 0


def _open(what: str, host: str, port: int, listen: Callable[[str, int], socket.socket]) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        raise ConfigurationError(f"{what} {port} cannot be opened: {error.strerror or error}") from error


def _url(scheme: str, name: str, sock: socket.socket | None) -> str | None:
    return f"{scheme}://{name}:{sock.getsockname()[1]}" if sock is not None else None
