# SPDX-License-Identifier: Apache-2.0
"""The memory budget of one process: rows, each with an owner, a limit, and the bytes that are in use.

Why one budget: limits that are set one by one may each be sensible and together be too much, and memory that no row
has is bounded by nobody. `ROWS` is the one table. Configuration divides the memory limit by it; metrics, explanations,
the throttle and the documentation iterate the rows. A new row is one row of the table, and `budget.row(NAME)` in the
part that charges it.

How it is charged: `try_charge` before something is made that may be refused (`charge_for` refuses in words), `charge`
for what exists already, `release` when it ends. An owner whose size changes has a `Charge`, and calls `recharge`. Parts
with rules of their own (who waits, who goes first) are rows themselves, such as `CommandMemory` and `Outbound`, or have
one. `tests/test_budget_words.py` knows no other words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from penstock.core.errors import ServiceNotReady
from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.core.errors import PenstockError

# No row grows beyond this by itself. More than 64 MiB of requests in flight only makes them wait longer in memory
# instead of in the sockets; an operator who knows better sets the row's key.
ROW_BYTES_MAX: Final = 64 * MIB


# The setting of all memory, which raises rows that have none of their own.
MEMORY_LIMIT: Final = "memoryLimitMB"
_INSTEAD: Final = "try again when others are closed"


class RowShare(NamedTuple):
    """One row of the table: who owns it, and its share of the memory limit.

    Attributes:
        name: in metrics and in code.
        owner: for people.
        percent: of the memory limit, without that of the process itself.
        key: the setting that fixes its size.
        bytes_max: more only by that setting.
        least_bytes: its share is never smaller.
        may_be_unlimited: 0 and less in its key mean that it has no limit.
    """

    name: str
    owner: str
    percent: int
    key: str | None = None
    bytes_max: int = ROW_BYTES_MAX
    least_bytes: int = 0
    may_be_unlimited: bool = False


# PIP-442 says 100 MB for each memory of listings, which a limit of 2,064 MiB and more gives them.
ROWS: Final = (
    RowShare("requests", "requests being read or answered", 25, "queued.max.request.bytes", may_be_unlimited=True),
    RowShare("outbound", "bytes on their way to clients", 25, "outboundMB"),
    RowShare("tail-cache", "newest entries, for consumers that keep up", 12, "tailCacheMB"),
    RowShare(
        "listings-heap", "topic listings being made or watched", 5, "maxTopicListInFlightHeapMemSizeMB",
        bytes_max=100 * MIB, least_bytes=MIB, may_be_unlimited=True,
    ),
    RowShare(
        "listings-direct", "topic listings on their way to clients", 5, "maxTopicListInFlightDirectMemSizeMB",
        bytes_max=100 * MIB, least_bytes=MIB, may_be_unlimited=True,
    ),
    RowShare("delayed-index", "index of delayed messages", 10),
    # Every other command than a publish: decoded, waiting for a disk or a turn, its answer being made.
    RowShare("commands", "commands being carried out", 4),
    # Names, properties and metadata that clients give to what lasts as long as their connection.
    RowShare("sessions", "producers, consumers and watchers", 3, "sessionsMB"),
    # What outlasts its client: schemas, long names and properties of subscriptions, names that deduplication knows.
    RowShare("metadata", "stored schemas, names and properties", 3, "metadataMB"),
    # Unacknowledged ids, acknowledged ranges and ack sets of cursors, keys of Key_Shared subscriptions.
    RowShare("dispatch", "unacknowledged messages and acknowledgements", 6),
    RowShare("http", "requests at the admin port", 2),
)  # fmt: skip


_SHARES: Final = {row.name: row for row in ROWS}


class BudgetRow(Protocol):
    """A row, as everybody sees it who iterates a budget."""

    @property
    def name(self) -> str: ...

    @property
    def used_bytes(self) -> int: ...

    @property
    def limit_bytes(self) -> int:
        """The limit; 0: none, where the table allows that."""

    @property
    def refused_total(self) -> int:
        """How often it had no room for what was asked for."""


def owner_and_key(row: BudgetRow) -> tuple[str, str]:
    """Return who has a row, for people, and the setting that raises its limit."""
    share = _SHARES.get(row.name)
    return (row.name, MEMORY_LIMIT) if share is None else (share.owner, share.key or MEMORY_LIMIT)


def refusal(row: BudgetRow, what: str, nbytes: int, *, instead: str = _INSTEAD) -> str:
    """Return the sentence for a client that `row` has no room for: what it asked for, who has it, what to do."""
    owner, key = owner_and_key(row)
    return (
        f"{what} takes {nbytes:,} bytes, and {owner} have {row.used_bytes:,} of {row.limit_bytes:,} in use; {instead}, "
        f"or raise {key}"
    )


class Row:
    """Bytes in use, and their limit.

    Attributes:
        name: as in `ROWS`.
        limit_bytes: the limit. If it is lowered below the use, nothing is released, and nothing more is charged.
        used_bytes: bytes in use. Only `charge` can exceed the limit.
        refused_total: how often `try_charge` returned False.
        refused_bytes: what it refused last.
    """

    __slots__ = ("limit_bytes", "name", "refused_bytes", "refused_total", "used_bytes")

    def __init__(self, name: str, limit_bytes: int) -> None:
        self.name = name
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.refused_total = 0
        self.refused_bytes = 0

    @property
    def refuses(self) -> bool:
        """Whether what was refused last would be refused now."""
        return self.refused_bytes > self.available_bytes

    @property
    def available_bytes(self) -> int:
        """Bytes left; negative after `charge` has exceeded the limit."""
        return self.limit_bytes - self.used_bytes

    def try_charge(self, nbytes: int, leave_bytes: int = 0) -> bool:
        """Charge `nbytes` if they fit and leave this much to others; otherwise count a refusal and return False."""
        if nbytes > self.limit_bytes - self.used_bytes - leave_bytes:
            self.refused_total += 1
            self.refused_bytes = nbytes
            return False
        self.used_bytes += nbytes
        return True

    def charge_for(
        self,
        what: str,
        nbytes: int,
        *,
        leave_bytes: int = 0,
        instead: str = _INSTEAD,
        error: type[PenstockError] = ServiceNotReady,
    ) -> None:
        """Charge as `try_charge`; if the bytes do not fit, raise `error`, which says what to do `instead`."""
        if not self.try_charge(nbytes, leave_bytes):
            raise error(refusal(self, what, nbytes, instead=instead))

    def charge(self, nbytes: int) -> None:
        """Charge `nbytes` even if they do not fit: for what exists already, such as stored state."""
        self.used_bytes += nbytes

    def release(self, nbytes: int) -> None:
        """Release `nbytes` that were charged before."""
        self.used_bytes -= nbytes
        assert self.used_bytes >= 0, f"more was released of row {self.name} than was charged"


class Charge:
    """Bytes of one owner in a row, however often their number changes; released once, whichever way it ends.

    Attributes:
        charged_bytes: of the row, for this owner.
    """

    __slots__ = ("charged_bytes", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.charged_bytes = 0

    def charge(self, nbytes: int) -> None:
        """Charge `nbytes` more even if they do not fit."""
        self.recharge(self.charged_bytes + nbytes)

    def recharge(self, nbytes: int) -> None:
        """Set the charge to `nbytes`, even if they do not fit."""
        more, self.charged_bytes = nbytes - self.charged_bytes, nbytes
        self.row.charge(more) if more >= 0 else self.row.release(-more)

    def recharge_for(self, what: str, nbytes: int) -> None:
        """Set the charge to `nbytes`. Raises ServiceNotReady if there is no room for more."""
        more = nbytes - self.charged_bytes
        if more > 0:
            self.row.charge_for(what, more)
            self.charged_bytes = nbytes
        else:
            self.recharge(nbytes)

    def release(self) -> None:
        """Release everything. May be called again."""
        self.recharge(0)


R = TypeVar("R", bound=BudgetRow)


class Budget:
    """The rows of one process, in the order in which they were made."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        """Args: limits: of rows, by name; a row that is missing there has ROW_BYTES_MAX."""
        self._limits = limits
        self._rows: dict[str, BudgetRow] = {}

    def limit_bytes(self, name: str) -> int:
        """Return the limit for a row of this name."""
        return self._limits.get(name, ROW_BYTES_MAX)

    def row(self, name: str) -> Row:
        """Make a row with its limit, and add it."""
        return self.add(Row(name, self.limit_bytes(name)))

    def add(self, row: R) -> R:
        """Add a row, and return it."""
        assert row.name not in self._rows, f"the budget has a row {row.name} already"
        self._rows[row.name] = row
        return row

    def __iter__(self) -> Iterator[BudgetRow]:
        return iter(self._rows.values())

    def used_bytes(self) -> dict[str, int]:
        """Return the bytes in use, by row."""
        return {row.name: row.used_bytes for row in self}
