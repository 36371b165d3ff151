# SPDX-License-Identifier: Apache-2.0
"""The messages between the writer of the shared metadata and a broker that follows it.

A message is a JSON array behind its length (4 bytes, big-endian). Its first element is its kind:

    from the writer
    ["rows", [row, …]]                               part of the snapshot, which comes first
    ["follow", session]                              the snapshot is complete; this connection is this session
    ["commit", [[session, id, rows, error], …]]      changes in order, of all sessions; rows or error is null
    ["failed", reason]                               the file failed: no change will succeed any more
    ["members", [member, …]]                         the brokers of the cluster
    ["renewed"]                                      the answer to "renew": all members were sent before

    from a broker
    ["begin"]                                        it wants the snapshot, and what follows
    ["change", id, name, field, …]                   a change of `shared_changes`
    ["renew", state]                                 it works, and is in this state; its lease is renewed

Why JSON: nearly all of it is JSON already, in the records. Where: `Writer` and `Follower` send and receive these; `net`
moves the bytes over a socket pair that the two inherit.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

from penstock.core.broker_states import BrokerState
from penstock.core.errors import (
    ChangedMeanwhile,
    MetadataFailed,
    NamespaceNotFound,
    NotAllowed,
    PenstockError,
    TopicNotFound,
)
from penstock.core.membership import Member
from penstock.core.service_urls import Addresses, ServiceUrls
from penstock.storage.catalog_rows import NOTHING, TopicRecord
from penstock.storage.shared_changes import CHANGES
from penstock.storage.shared_view import TOPICS, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.storage.shared_changes import SharedChange

_LENGTH: Final = struct.Struct(">I")
_CHANGES: Final = {change.__name__: change for change in CHANGES}
# The errors of changes, each with the attribute that it is made from, or none for its text.
_ERRORS: Final[Mapping[str, tuple[type[PenstockError], str | None]]] = {
    "TopicNotFound": (TopicNotFound, "topic"),
    "NamespaceNotFound": (NamespaceNotFound, "namespace"),
    "NotAllowed": (NotAllowed, None),
    "ChangedMeanwhile": (ChangedMeanwhile, None),
    "MetadataFailed": (MetadataFailed, None),
}


class Messages:
    """Cuts received bytes into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def receive(self, data: bytes) -> list[list[Any]]:
        """Return the messages that are complete now."""
        found, start, received = [], 0, self._bytes
        received += data
        while len(received) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(received, start)
            end = start + _LENGTH.size + size
            if end > len(received):
                break
            found.append(json.loads(received[start + _LENGTH.size : end]))
            start = end
        del received[:start]
        return found


def encoded(*message: Any) -> bytes:  # noqa: ANN401 - JSON
    body = json.dumps(message, separators=(",", ":"), default=dict).encode()  # of mappings that are no dict
    return _LENGTH.pack(len(body)) + body


# -- changes, rows, errors and members as JSON; the first two are arrays by themselves


def change_fields(change: SharedChange) -> list[Any]:
    """Return the elements of a message behind its id."""
    assert isinstance(change, CHANGES)
    return [type(change).__name__, *change]


def change_of(name: str, *fields: Any) -> SharedChange:  # noqa: ANN401 - JSON
    change: SharedChange = _CHANGES[name](*fields)
    return change


def rows_of(rows: Iterable[Sequence[Any]]) -> list[Row]:
    return [_row(*row) for row in rows]


def _row(kind: str, name: str, value: Any, grown_bytes: int) -> Row:  # noqa: ANN401 - JSON
    if kind == TOPICS and value is not None:
        topic, ledger_id, broker, created_wall_ms, properties, policies = value
        value = TopicRecord(topic, ledger_id, broker, created_wall_ms, properties or NOTHING, policies or NOTHING)
    elif value == {}:
        value = NOTHING
    return Row(kind, name, value, grown_bytes)


def error_fields(error: PenstockError) -> list[str]:
    name = type(error).__name__
    attribute = _ERRORS[name][1]
    return [name, str(error) if attribute is None else getattr(error, attribute)]


def error_of(name: str, text: str) -> PenstockError:
    return _ERRORS[name][0](text)


def member_fields(member: Member) -> list[Any]:
    addresses = member.addresses
    listeners = {name: _urls_fields(urls) for name, urls in addresses.listeners.items()}
    urls = [_urls_fields(addresses.service), _urls_fields(addresses.web)]
    return [member.number, member.state.value, *urls, listeners]


def member_of(
    number: int, state: str, service: list[Any], web: list[Any], listeners: Mapping[str, list[Any]]
) -> Member:
    named = {name: ServiceUrls(*urls) for name, urls in listeners.items()}
    addresses = Addresses(service=ServiceUrls(*service), web=ServiceUrls(*web), listeners=named)
    return Member(number, BrokerState(state), addresses)


def _urls_fields(urls: ServiceUrls) -> list[str | None]:
    return [urls.plain, urls.tls]
