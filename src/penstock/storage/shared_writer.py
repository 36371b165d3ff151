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

from itertools import count, islice, tee
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.core.broker_states import BrokerState
from penstock.storage.shared_channel import (
    Messages,
    change_of,
    encoded,
    error_fields,
    member_fields,
)
from penstock.storage.shared_store import SharedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.core.errors import PenstockError
    from penstock.core.membership import Member
    from penstock.storage.directory import DataDirectory
    from penstock.storage.files import Files
    from penstock.storage.metadata import Post
    from penstock.storage.shared_view import Row


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
