# SPDX-License-Identifier: Apache-2.0
"""Usage reports: what one broker tells the others about its use of resource groups (PIP-82), as values.

Why here: `governance` decides what is reported and what follows from a report, `wire` encodes it, and the two do not
import each other. Where: `governance.quota_exchange` makes and takes reports; `wire.usage_reports` encodes them.

All amounts are thousandths per second: a share of a quota of 10 messages per second between 100 brokers is a fraction.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

# Of everything that a group limits: published messages, published bytes, dispatched messages, dispatched bytes.
KINDS: Final = 4
# Group ids are unsigned and have 64 bits.
GROUP_ID_MAX: Final = (1 << 64) - 1
# A broker with more groups sends several reports instead of one.
GROUPS_PER_REPORT: Final = 10_000
# What a report lends, at most.
LOANS_PER_REPORT: Final = 10_000
# What a report acknowledges, at most.
MEMBERS_MAX: Final = 10_000

FourNumbers = tuple[int, int, int, int]
NOTHING: Final[FourNumbers] = (0, 0, 0, 0)


class GroupUsage(NamedTuple):
    """One group on one broker. The four numbers are those of `KINDS`."""

    group: int  # the group's id
    topics: int = 0  # topics of the group that the broker serves
    used: FourNumbers = NOTHING  # thousandths per second
    held: FourNumbers = NOTHING  # demand beyond `used` that waited, thousandths per second
    waiting: FourNumbers = NOTHING  # what could be used at once, if others lent it; thousandths


class Covered(NamedTuple):
    """The groups that a report speaks of, by their ids: those it does not list are not used by its sender."""

    first: int = 0
    last: int = GROUP_ID_MAX


class Loan(NamedTuple):
    """An unused part of its share that the sender of a report gives to another broker: to be used soon, and once."""

    group: int
    kind: int  # of `KINDS`
    amount: int  # thousandths of messages or bytes


class Borrower(NamedTuple):
    """To whom a report lends, and how lately it was heard.

    The borrower knows when it sent its report `sequence`; so it can tell how old the loans are at most, without
    comparing clocks.
    """

    broker: str
    sequence: int  # of its last report that the sender has seen
    heard_ms_ago: int
    loans: tuple[Loan, ...]


class Acknowledgement(NamedTuple):
    """The last report of a member that the sender has taken into account."""

    member: int  # `member_id` of its name
    sequence: int


def member_id(name: str) -> int:
    """Return a short name of a broker: a hash. Two of 1,000 brokers share one with a probability of 5e-7."""
    return int.from_bytes(blake2b(name.encode(), digest_size=5).digest(), "big")


class UsageReport(NamedTuple):
    """One message on the usage topic."""

    broker: str
    incarnation: int  # differs for each process that has this name
    sequence: int  # grows with each report, and from one process of this name to the next
    published_ms: int  # wall clock of the sender
    groups: tuple[GroupUsage, ...] = ()  # in the order of their ids
    covered: Covered | None = None  # None: only changes
    asks: bool = False  # the sender does not know what all others use, and asks for complete reports
    borrowers: tuple[Borrower, ...] = ()
    heard: tuple[Acknowledgement, ...] = ()
    urgent: bool = False  # the sender waits for acknowledgements
