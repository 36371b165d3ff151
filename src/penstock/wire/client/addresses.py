# SPDX-License-Identifier: Apache-2.0
"""Where brokers are: `pulsar://host:6650` and `pulsar+ssl://host:6651`."""

from __future__ import annotations

from typing import Final, NamedTuple

_SCHEMES: Final = {"pulsar": False, "pulsar+ssl": True}
_PORTS: Final = {False: 6650, True: 6651}


class Address(NamedTuple):
    """One broker's port."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        scheme = "pulsar+ssl" if self.tls else "pulsar"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


def parse_service_url(text: str) -> tuple[Address, ...]:
    """Read `pulsar://host:6650`, `pulsar+ssl://a:6651,b:6651`; the port may be left out, hosts are tried in turn.

    Raises:
        ValueError: it does not read as one, and why.
    """
    scheme, mark, rest = text.strip().partition("://")
    if not mark or scheme not in _SCHEMES:
        raise ValueError(f"service URL {text!r}: want pulsar://host:6650 or pulsar+ssl://host:6651")
    tls = _SCHEMES[scheme]
    hosts = rest.partition("/")[0].split(",")
    return tuple(Address(*_host_and_port(host.strip(), text, _PORTS[tls]), tls) for host in hosts)


def _host_and_port(text: str, url: str, default: int) -> tuple[str, int]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or not (not port or (port.isascii() and port.isdigit() and 0 < int(port) < 65_536)):
        raise ValueError(f"service URL {url!r}: {text!r} is not host:port")
    return host, int(port or default)
