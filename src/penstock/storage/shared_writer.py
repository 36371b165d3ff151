# SPDX-License-Identifier: Apache-2.0
"""The writer of the shared metadata: stores the changes of all brokers, and tells each commit to all of them.

Why: see docs/adr/0031. Where: the supervisor of several brokers has one, with no view of its own; each broker has a
`Follower`. `net.metadata_link` connects the two.

Invariants:

- A follower is sent a snapshot, then every commit after it, once, in order. All followers are sent the same commits.
- A commit is sent only when it is durable.
- A change of a connection that has ended is stored and told like any other, if it was received.

All methods but `open` and `close`, which block, are called on the loop and return at once.
"""

from __future__ import annotations

import json
import struct
from itertools import count, islice, tee
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.core.broker_states import BrokerState
from penstock.core.errors import (
    ChangedMeanwhile,
    MetadataFailed,
    NamespaceNotFound,
    NotAllowed,
    PenstockError,
    TopicNotFound,
)
from penstock.core.membership import Member, SharedMembership
from penstock.core.service_urls import Addresses, ServiceUrls
from penstock.storage.catalog_rows import NOTHING, TopicRecord
from penstock.storage.shared_changes import CHANGES
from penstock.storage.shared_store import SharedStore
from penstock.storage.shared_view import TOPICS, Row, SharedView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.storage.directory import DataDirectory
    from penstock.storage.files import Files
    from penstock.storage.metadata import Done, Post
    from penstock.storage.shared_changes import SharedChange


# ---------------------------------------------------------------------------------------------------------------------
# The messages between the writer of the shared metadata and a broker that follows it.
#
# A message is a JSON array behind its length (4 bytes, big-endian). Its first element is its kind:
#
#     from the writer
#     ["rows", [row, …]]                               part of the snapshot, which comes first
#     ["follow", session]                              the snapshot is complete; this connection is this session
#     ["commit", [[session, id, rows, error], …]]      changes in order, of all sessions; rows or error is null
#     ["failed", reason]                               the file failed: no change will succeed any more
#     ["members", [member, …]]                         the brokers of the cluster
#     ["renewed"]                                      the answer to "renew": all members were sent before
#
#     from a broker
#     ["begin"]                                        it wants the snapshot, and what follows
#     ["change", id, name, field, …]                   a change of `shared_changes`
#     ["renew", state]                                 it works, and is in this state; its lease is renewed
#
# Why JSON: nearly all of it is JSON already, in the records. Where: `Writer` and `Follower` send and receive these;
# `net` moves the bytes over a socket pair that the two inherit.

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


# ---------------------------------------------------------------------------------------------------------------------
# The shared part of the catalog in a broker that another process writes for.
#
# Invariants: the view is the snapshot and a prefix of the commits after it. `done` of a change is called when the view
# has it. When the connection ends, every change that is not answered is answered with an error; it may have been stored
# or not. Nothing is sent again.


class Follower:
    """A `SharedPart`. All methods are called on the loop and return at once."""

    def __init__(self, broker: int, send: Callable[[bytes], None], changed: Callable[[], None]) -> None:
        """Begin with nothing.

        Args:
            broker: the number of this broker.
            send: passes bytes to the writer.
            changed: called when the snapshot is complete, and when `failed` is set.
        """
        self.view = SharedView()
        self.loaded = False  # whether the snapshot is complete
        self.failed: str | None = None  # why changes are refused
        # The supervisor has opened the ports of all brokers, so there is nothing to announce.
        self.membership = SharedMembership(broker, lambda _addresses: None, self._renew)
        self._send = send
        self._changed = changed
        self._messages = Messages()
        self._ended = False
        self._session = 0
        self._last_id = 0
        self._waiting: dict[int, tuple[Done, Callable[[Sequence[Row]], None] | None]] = {}
        self._listeners: list[Callable[[Sequence[Row]], None]] = []

    def begin(self) -> None:
        """Ask for the snapshot. Until then nothing is sent, which would wait while the broker reads its log."""
        self._send(encoded("begin"))

    def submit(self, change: SharedChange, done: Done, took: Callable[[Sequence[Row]], None] | None = None) -> None:
        """As `SharedPart.submit`, but a refusal is answered at once."""
        if self.failed is not None:
            done(MetadataFailed(f"the catalog refuses changes since: {self.failed}"))
            return
        self._last_id += 1
        self._waiting[self._last_id] = (done, took)
        self._send(encoded("change", self._last_id, *change_fields(change)))

    def listen(self, changed: Callable[[Sequence[Row]], None]) -> None:
        """As `SharedPart.listen`."""
        self._listeners.append(changed)

    def receive(self, data: bytes) -> None:
        """Take bytes that the writer has sent; those that come after `end` are ignored."""
        for kind, *fields in self._messages.receive(data) if not self._ended else ():
            match kind:
                case "rows":
                    self.view.apply(rows_of(fields[0]))
                case "follow":
                    self._session, self.loaded = fields[0], True
                    self._changed()
                case "commit":
                    for one in fields[0]:
                        self._committed(*one)
                case "members":
                    members = [member_of(*one) for one in fields[0]]
                    self.membership.update({member.number: member for member in members})
                case "renewed":
                    self.membership.heard()
                case "failed":
                    self.failed = fields[0]
                    self._changed()
                case _:
                    raise AssertionError(kind)

    def end(self, reason: str) -> None:
        """Take the end of the connection: answer all changes that wait, and refuse others."""
        self._ended = True
        if self.failed is None:
            self.failed = reason
        waiting, self._waiting = self._waiting, {}
        for done, _ in waiting.values():
            done(MetadataFailed(f"{reason}; the change may have been stored or not"))
        self._changed()

    def close(self) -> None:
        """Refuse changes. What was submitted is stored by the writer; nobody waits for that any more."""
        self.end("the catalog is closed: penstock is stopping")

    def _renew(self, state: BrokerState) -> None:
        if not self._ended:
            self._send(encoded("renew", state.value))

    def _committed(self, session: int, number: int, rows: list[Any] | None, error: list[str] | None) -> None:
        changed = rows_of(rows) if rows is not None else []
        self.view.apply(changed)
        if session != self._session:
            for listener in self._listeners if changed else ():
                listener(changed)
            return
        done, took = self._waiting.pop(number)
        if error is not None:
            done(error_of(*error))
            return
        if took is not None:
            took(changed)
        done(None)


class Sending(Protocol):
    """The way to one broker."""

    def send(self, data: bytes) -> None:
        """Send this, after what was sent before."""

    def stream(self, parts: Iterator[bytes]) -> None:
        """Send these, each when there is room for it, before all that is sent from now on."""


# Rows of a snapshot in one message: some hundred kilobytes, which a broker decodes in a few milliseconds.
ROWS_PER_MESSAGE: Final = 1_000
_RENEWED: Final = encoded("renewed")


class Session:
    """The writer's end of one connection. Made by `Writer.connect`."""

    def __init__(
        self,
        number: int,
        link: Sending,
        begin: Callable[[Session], None],
        submit: Callable[[int, list[Any]], None],
        renewed: Callable[[BrokerState], None],
    ) -> None:
        self.number = number
        self.link = link
        self._begin = begin
        self._submit = submit
        self._renewed = renewed
        self._messages = Messages()

    def receive(self, data: bytes) -> None:
        """Take bytes that the broker has sent."""
        for kind, *fields in self._messages.receive(data):
            match kind:
                case "begin":
                    self._begin(self)
                case "change":
                    self._submit(self.number, fields)
                case "renew":
                    self._renewed(BrokerState(fields[0]))
                    self.link.send(_RENEWED)
                case _:
                    raise AssertionError(kind)


class Writer:
    """Stores changes and tells them."""

    def __init__(self) -> None:
        self._store: SharedStore  # set by `open`
        self._numbers = count(1)
        self._following: dict[int, Session] = {}  # those that have their snapshot
        self._waiting: dict[int, Session] = {}  # for their snapshot: one is read for all of them
        self._commit: list[Any] = []  # what the current commit has changed, and is not sent yet
        self._members: bytes = b""
        self._told_failed = False

    @classmethod
    def open(
        cls,
        directory: DataDirectory,
        post: Post,
        files: Files,
        *,
        brokers: int,
        exclusive: bool = False,
        vfs: str | None = None,
    ) -> Writer:
        """Open or create the shared part of the catalog; blocks. Arguments and errors as of `SharedStore.open`."""
        writer = cls()
        writer._store = SharedStore.open(
            directory,
            post,
            files,
            _check_rows,
            brokers=brokers,
            exclusive=exclusive,
            vfs=vfs,
            answered=writer._send_commit,
        )
        return writer

    @property
    def failed(self) -> str | None:
        """Why changes are refused until a restart; None if they are not."""
        return self._store.failed

    def close(self) -> None:
        """Commit what was received, then close the file. Blocks."""
        self._store.close()

    def connect(self, link: Sending, renewed: Callable[[BrokerState], None] = lambda _state: None) -> Session:
        """Begin a connection to a broker. When the broker asks for it, it is sent a snapshot, then follows.

        Args:
            link: leads to it.
            renewed: called when the broker says that it works, with its state.
        """
        return Session(next(self._numbers), link, self._begin, self._submit, renewed)

    def disconnect(self, session: Session) -> None:
        """Send nothing more; what the broker has sent is stored all the same."""
        self._following.pop(session.number, None)
        self._waiting.pop(session.number, None)

    def set_members(self, members: Iterable[Member]) -> None:
        """Tell all brokers, those that connect later too, which brokers there are."""
        self._members = encoded("members", [member_fields(member) for member in members])
        self._send_all(self._members)

    # -- inside

    def _begin(self, session: Session) -> None:
        if not self._waiting:
            self._store.read_all(self._send_snapshot, self._end_snapshot)
        self._waiting[session.number] = session

    def _submit(self, session: int, fields: list[Any]) -> None:
        number, name, *values = fields
        change = change_of(name, *values)
        stored: list[Row] = []

        def done(error: PenstockError | None) -> None:
            outcome = [stored, None] if error is None else [None, error_fields(error)]
            self._commit.append([session, number, *outcome])

        self._store.submit(change, stored.extend, done)

    def _send_snapshot(self, rows: Sequence[Row]) -> None:
        self._send_commit()  # What is in the snapshot is for the others only.
        waiting, self._waiting = self._waiting, {}
        self._following |= waiting
        # Encoded once for all of them, as the fastest one reads it.
        for session, parts in zip(waiting.values(), tee(_parts(rows), len(waiting)), strict=True):
            session.link.stream(parts)
            if self._members:
                session.link.send(self._members)
            session.link.send(encoded("follow", session.number))

    def _end_snapshot(self, error: PenstockError | None) -> None:
        if error is not None:
            self._send_waiting(encoded("failed", str(error)))
            self._waiting = {}

    def _send_waiting(self, message: bytes) -> None:
        for session in list(self._waiting.values()):
            session.link.send(message)

    def _send_commit(self) -> None:
        if self._commit:
            self._send_all(encoded("commit", self._commit))
            self._commit = []
        if self._store.failed is not None and not self._told_failed:
            self._told_failed = True
            self._send_all(encoded("failed", self._store.failed))

    def _send_all(self, message: bytes) -> None:
        for session in list(self._following.values()):
            session.link.send(message)


def _parts(rows: Sequence[Row]) -> Iterator[bytes]:
    remaining = iter(rows)
    while part := list(islice(remaining, ROWS_PER_MESSAGE)):
        yield encoded("rows", part)


def _check_rows(rows: Iterable[Row]) -> None:
    """Read all rows, which checks them."""
    for _ in rows:
        pass
