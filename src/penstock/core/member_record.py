# SPDX-License-Identifier: Apache-2.0
"""Record of a process where it is registered: JSON with the members of Pulsar's records of brokers.

Why JSON: administrators read it with ZooKeeper's own tools, as they read `/loadbalance/brokers` of Pulsar.
Where: `net.zookeeper` writes and reads it. Anybody who may write there can write anything, so reading checks it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

# A record has a few hundred bytes; URLs may be long.
RECORD_BYTES_MAX: Final = 4_096
# An address with a port is a name, also one of IPv6.
_NAME: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One registered process.

    Attributes:
        name: in usage reports and metrics; only one process at a time has it.
        instance: what the process owns alone, such as its data directory. A later process with the same one knows that
            the earlier one has ended.
        start_ms: the wall clock when the process began.
        host, pid: where it runs, for people.
        service_url, service_url_tls, web_url, web_url_tls: its addresses; empty if it has none.
        version: of penstock.
    """

    name: str
    instance: str
    start_ms: int
    host: str = ""
    pid: int = 0
    service_url: str = ""
    service_url_tls: str = ""
    web_url: str = ""
    web_url_tls: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid} on {self.host or 'an unnamed host'}, {self.instance})"

    def encoded(self) -> bytes:
        """Return the JSON. Raises ValueError if it is too long."""
        fields = {key: getattr(self, field) for field, (key, _) in _KEYS.items()}
        data = json.dumps({key: value for key, value in fields.items() if value or key in _REQUIRED_KEYS}).encode()
        if len(data) > RECORD_BYTES_MAX:
            raise ValueError(f"the record of {self.name} has {len(data)} bytes, and {RECORD_BYTES_MAX} are the limit")
        return data


# Field -> its member in JSON, and its type.
_KEYS: Final[dict[str, tuple[str, type]]] = {
    "name": ("brokerId", str),
    "instance": ("instance", str),
    "start_ms": ("startTimestamp", int),
    "host": ("host", str),
    "pid": ("pid", int),
    "service_url": ("pulsarServiceUrl", str),
    "service_url_tls": ("pulsarServiceUrlTls", str),
    "web_url": ("webServiceUrl", str),
    "web_url_tls": ("webServiceUrlTls", str),
    "version": ("brokerVersion", str),
}
_REQUIRED: Final = ("name", "instance", "start_ms")
_REQUIRED_KEYS: Final = {_KEYS[field][0] for field in _REQUIRED}


def decoded(name: str, data: bytes) -> MemberRecord:
    """Return the record of the process with this name. Raises ValueError if it is none."""
    if not is_name(name):
        raise ValueError("no name of a process")
    if len(data) > RECORD_BYTES_MAX:
        raise ValueError(f"more than {RECORD_BYTES_MAX} bytes")
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    if not isinstance(document, dict):
        raise ValueError("no object")  # noqa: TRY004 -- one error for whatever is wrong
    fields: dict[str, Any] = {}
    for field, (key, wanted) in _KEYS.items():
        value = document.get(key)
        if value is None and field not in _REQUIRED:
            continue
        if type(value) is not wanted:
            raise ValueError(f"no {key}")
        fields[field] = value
    if fields["name"] != name:
        raise ValueError("the record of another name")
    return MemberRecord(**fields)


def is_name(text: str) -> bool:
    """Return whether a process may have this name."""
    return _NAME.fullmatch(text) is not None
