# SPDX-License-Identifier: Apache-2.0
"""The shared part of the catalog in a broker that another process writes for.

Where: a broker under a supervisor gives it to `Catalog.open`, once `loaded`; `net.metadata_link` connects it with the
supervisor's `Writer`. It is also what the broker knows of the others: `membership`.

Invariants: the view is the snapshot and a prefix of the commits after it. `done` of a change is called when the view
has it. When the connection ends, every change that is not answered is answered with an error; it may have been stored
or not. Nothing is sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import MetadataFailed
from penstock.core.membership import SharedMembership
from penstock.storage.shared_channel import Messages, change_fields, encoded, error_of, member_of, rows_of
from penstock.storage.shared_view import SharedView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.broker_states import BrokerState
    from penstock.storage.metadata import Done
    from penstock.storage.shared_changes import SharedChange
    from penstock.storage.shared_view import Row


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
