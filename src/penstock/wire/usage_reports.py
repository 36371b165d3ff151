# SPDX-License-Identifier: Apache-2.0
"""Usage reports as bytes: protobuf, in compressed columns, signed.

Why columns: numbers of the same kind are similar and compress well. Why signed: a client that may produce to the usage
topic could report that nothing is used. The key is known to brokers only; it lies in the metadata that they share.
Where: the live exchange encodes what `governance.quota_exchange` reports, and decodes what arrives.

The message is Pulsar's `ResourceUsageInfo` with fields of our own (docs/adr/0035): a reader of Pulsar sees the name of
a broker, and no usage. Groups are named by `group_id`, a hash of the name, so no mapping has to be announced.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from hmac import compare_digest
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from penstock.core.errors import UnsupportedVersion
from penstock.core.units import MIB
from penstock.core.usage_report import (
    GROUP_ID_MAX,
    GROUPS_PER_REPORT,
    KINDS,
    LOANS_PER_REPORT,
    MEMBERS_MAX,
    Acknowledgement,
    Borrower,
    Covered,
    GroupUsage,
    Loan,
    UsageReport,
)
from penstock.wire import pulsar_pb2 as pb
from penstock.wire.compression import NONE, ZSTD, compress, decompress
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The most that a report of `GROUPS_PER_REPORT` groups can take: 14 columns of at most 10 bytes each.
REPORT_BYTES_MAX: Final = 2 * MIB
_BROKER_CHARACTERS_MAX: Final = 255
_SIGNATURE_BYTES: Final = 16
# The signature is the last field: its tag and length, and the signature of all bytes before.
_SIGNATURE_HEAD: Final = bytes([0xC2, 0x01, _SIGNATURE_BYTES])
# Less is not worth compressing.
_COMPRESSED_BYTES_MIN: Final = 200
_AMOUNT_MAX: Final = (1 << 63) - 1

_KINDS: Final = ("published_messages", "published_bytes", "dispatched_messages", "dispatched_bytes")
_COLUMNS: Final = tuple(f"{prefix}{kind}" for prefix in ("", "held_", "waiting_") for kind in _KINDS)


class BadReport(StrEnum):
    """A reason why bytes are not a report."""

    LARGE = "large"  # larger than any report
    FORGED = "forged"  # not signed with the key of this cluster
    MALFORMED = "malformed"


class BadUsageReport(ProtocolError):
    """The bytes are no usage report of a broker of this cluster."""

    def __init__(self, what: BadReport, text: str) -> None:
        self.what = what
        super().__init__(f"usage report ignored, it is {what}: {text}")


def group_id(name: str) -> int:
    """Return the id of a group: a hash of its name. Two of 100,000 groups share an id with a probability of 3e-10."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def encode(report: UsageReport, key: bytes) -> bytes:
    """Return the payload of a message on the usage topic, signed with the key of the cluster."""
    info = pb.ResourceUsageInfo(
        broker=report.broker,
        incarnation=report.incarnation,
        sequence=report.sequence,
        published_ms=report.published_ms,
    )
    if report.covered is not None:
        info.covered_first, info.covered_last = report.covered
    if report.asks:
        info.asks = True
    if report.urgent:
        info.urgent = True
    info.heard_members.extend([one.member for one in report.heard])
    info.heard_sequences.extend([one.sequence for one in report.heard])
    if report.groups:
        columns = _columns(report.groups).SerializeToString()
        kind, usages = NONE, columns
        if len(columns) >= _COMPRESSED_BYTES_MIN:
            kind, usages = compress(ZSTD, columns)
        if kind == ZSTD:
            info.usages_size = len(columns)
        info.usages = usages
    info.borrowers.extend(map(_borrower, report.borrowers))
    data = info.SerializeToString()
    return data + _SIGNATURE_HEAD + _signature(data, key)


def decode(payload: bytes, key: bytes, wanted: Callable[[int], bool]) -> UsageReport:
    """Return a report, with those of its groups for which `wanted` is true.

    Raises:
        BadUsageReport: the bytes are no report, or not signed with this key.
    """
    if len(payload) > REPORT_BYTES_MAX:
        raise BadUsageReport(BadReport.LARGE, f"{len(payload):,} bytes; a report has at most {REPORT_BYTES_MAX:,}")
    data, head, signature = (
        payload[: -_SIGNATURE_BYTES - len(_SIGNATURE_HEAD)],
        payload[-_SIGNATURE_BYTES - len(_SIGNATURE_HEAD) : -_SIGNATURE_BYTES],
        payload[-_SIGNATURE_BYTES:],
    )
    if head != _SIGNATURE_HEAD or not compare_digest(signature, _signature(data, key)):
        raise BadUsageReport(BadReport.FORGED, "its signature is not that of a broker of this cluster")
    try:
        return _report(pb.ResourceUsageInfo.FromString(data), wanted)
    except (DecodeError, ProtocolError, UnsupportedVersion, ValueError) as error:
        raise BadUsageReport(BadReport.MALFORMED, str(error)) from error


def _signature(data: bytes, key: bytes) -> bytes:
    assert key, "a cluster has a key"
    return blake2b(data, key=key, digest_size=_SIGNATURE_BYTES).digest()


def _columns(groups: Sequence[GroupUsage]) -> pb.ResourceUsages:
    ids = [usage.group for usage in groups]
    numbers = zip(*[(*usage.used, *usage.held, *usage.waiting) for usage in groups], strict=True)
    filled = {name: column for name, column in zip(_COLUMNS, numbers, strict=True) if any(column)}
    return pb.ResourceUsages(
        group_steps=_steps(ids),
        topics=[usage.topics for usage in groups],
        **filled,
    )


def _borrower(borrower: Borrower) -> pb.ResourceUsageBorrower:
    ids = [loan.group for loan in borrower.loans]
    return pb.ResourceUsageBorrower(
        broker=borrower.broker,
        sequence=borrower.sequence,
        heard_ms_ago=borrower.heard_ms_ago,
        group_steps=_steps(ids),
        kinds=[loan.kind for loan in borrower.loans],
        amounts=[loan.amount for loan in borrower.loans],
    )


def _loans(borrower: pb.ResourceUsageBorrower, wanted: Callable[[int], bool]) -> tuple[Loan, ...]:
    if max(borrower.kinds, default=0) >= KINDS:
        raise ValueError(f"a loan of kind {max(borrower.kinds)}, of which there are {KINDS}")
    if max(borrower.amounts, default=0) > _AMOUNT_MAX:
        raise ValueError(f"a loan that is too large: {max(borrower.amounts)}")
    groups = list(accumulate(borrower.group_steps))
    if groups and groups[-1] > GROUP_ID_MAX:
        raise ValueError("group ids of more than 64 bits")
    columns = zip(groups, borrower.kinds, borrower.amounts, strict=True)
    return tuple(Loan(*loan) for loan in columns if wanted(loan[0]))


def _borrowers(info: pb.ResourceUsageInfo, wanted: Callable[[int], bool]) -> tuple[Borrower, ...]:
    number = sum(max(1, len(one.group_steps)) for one in info.borrowers)
    if number > LOANS_PER_REPORT:
        raise ValueError(f"{number} loans or borrowers, of which a report has at most {LOANS_PER_REPORT}")
    for one in info.borrowers:
        _check_name(one.broker)
    return tuple(Borrower(one.broker, one.sequence, one.heard_ms_ago, _loans(one, wanted)) for one in info.borrowers)


def _check_name(broker: str) -> None:
    if not 0 < len(broker) <= _BROKER_CHARACTERS_MAX:
        raise ValueError(f"a name of {len(broker)} characters")


def _steps(ids: Sequence[int]) -> list[int]:
    """Sorted ids as differences."""
    return [one - before for before, one in zip([0, *ids], ids, strict=False)]


def _report(info: pb.ResourceUsageInfo, wanted: Callable[[int], bool]) -> UsageReport:
    _check_name(info.broker)
    covered = Covered(info.covered_first, info.covered_last) if info.HasField("covered_last") else None
    return UsageReport(
        info.broker,
        info.incarnation,
        info.sequence,
        info.published_ms,
        _groups(info, wanted) if info.usages else (),
        covered,
        info.asks,
        _borrowers(info, wanted),
        _heard(info),
        info.urgent,
    )


def _heard(info: pb.ResourceUsageInfo) -> tuple[Acknowledgement, ...]:
    if len(info.heard_members) > MEMBERS_MAX:
        raise ValueError(f"{len(info.heard_members)} members, of which a report has at most {MEMBERS_MAX}")
    return tuple(map(Acknowledgement, info.heard_members, info.heard_sequences))


def _groups(info: pb.ResourceUsageInfo, wanted: Callable[[int], bool]) -> tuple[GroupUsage, ...]:
    data = info.usages
    if info.HasField("usages_size"):
        data = decompress(ZSTD, data, info.usages_size, bytes_max=REPORT_BYTES_MAX)
    usages = pb.ResourceUsages.FromString(data)
    number = len(usages.group_steps)
    if number > GROUPS_PER_REPORT:
        raise ValueError(f"{number} groups, of which a report has at most {GROUPS_PER_REPORT}")
    empty = [0] * number
    columns = [getattr(usages, name) or empty for name in _COLUMNS]
    if any(len(column) != number for column in (usages.topics, *columns)):
        raise ValueError("columns of different lengths")
    group = 0
    found = []
    for row, step in enumerate(usages.group_steps):
        if step == 0 and row:
            raise ValueError("a group twice")
        group += step
        if wanted(group):
            found.append(_usage(group, usages.topics[row], [column[row] for column in columns]))
    if group > GROUP_ID_MAX:
        raise ValueError("group ids of more than 64 bits")
    return tuple(found)


def _usage(group: int, topics: int, numbers: list[int]) -> GroupUsage:
    if max(numbers) > _AMOUNT_MAX:
        raise ValueError(f"amounts that are too large: {numbers}")
    a, b, c, d, e, f, g, h, i, j, k, m = numbers
    return GroupUsage(group, topics, (a, b, c, d), (e, f, g, h), (i, j, k, m))
