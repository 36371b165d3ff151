# SPDX-License-Identifier: Apache-2.0
"""Usage reports as bytes: they come back as they went, and nothing else is taken for one."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import MIB
from penstock.core.usage_report import (
    GROUP_ID_MAX,
    GROUPS_PER_REPORT,
    KINDS,
    LOANS_PER_REPORT,
    MEMBERS_MAX,
    NOTHING,
    Acknowledgement,
    Borrower,
    Covered,
    GroupUsage,
    Loan,
    UsageReport,
)
from penstock.wire import pulsar_pb2 as pb
from penstock.wire.compression import ZSTD, decompress
from penstock.wire.usage_reports import BadReport, BadUsageReport, decode, encode, group_id

if TYPE_CHECKING:
    from google.protobuf.message import Message

KEY = b"the key of the cluster"
AMOUNTS = st.tuples(*[st.integers(0, 2**63 - 1)] * 4)
IDS = st.integers(0, GROUP_ID_MAX)
USAGES = st.dictionaries(IDS, st.tuples(st.integers(0, 10**6), AMOUNTS, AMOUNTS, AMOUNTS), max_size=30).map(
    lambda groups: tuple(GroupUsage(group, *groups[group]) for group in sorted(groups))
)
BORROWERS = st.builds(
    Borrower,
    broker=st.text(min_size=1, max_size=40),
    sequence=IDS,
    heard_ms_ago=IDS,
    loans=st.lists(st.builds(Loan, IDS, st.integers(0, KINDS - 1), st.integers(0, 2**63 - 1)), max_size=5).map(
        lambda loans: tuple(sorted(loans))
    ),
)
REPORTS = st.builds(
    UsageReport,
    broker=st.text(min_size=1, max_size=40),
    incarnation=IDS,
    sequence=IDS,
    published_ms=st.integers(0, 2**63),
    groups=USAGES,
    covered=st.none() | st.builds(Covered, IDS, IDS),
    asks=st.booleans(),
    borrowers=st.lists(BORROWERS, max_size=3).map(tuple),
    heard=st.lists(st.builds(Acknowledgement, IDS, IDS), max_size=5).map(tuple),
    urgent=st.booleans(),
)
ONE = UsageReport("broker-1", 5, 7, 1_000, (GroupUsage(3, 1, (1, 2, 3, 4), (0, 0, 0, 0)),))
# The same, as it was sent by a broker that did not know of loans.
ONE_WITHOUT_LOANS = bytes.fromhex(
    "0a0862726f6b65722d318001058801079001e807b201150a01031201011a01012201022a01033201045a0109c20110"
    "d955dea10095e8c3b6a00473c9b5934e"
)


def everything(_: int) -> bool:
    return True


@cache
def old_message(name: str) -> type[Message]:
    """Return a message by the definition from before there were loans."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        last = {"ResourceUsageInfo": 24, "ResourceUsages": 14}.get(message.name)
        for at in reversed(range(len(message.field))):
            if last is not None and message.field[at].number > last:
                del message.field[at]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


def old_fields(name: str, data: bytes) -> Message:
    """Read a message by the old definition; what that does not know is dropped."""
    read = old_message(name)()
    read.ParseFromString(data)
    read.DiscardUnknownFields()
    return read


def decompressed(info: Message) -> bytes:
    usages, size = info.usages, info.usages_size  # type: ignore[attr-defined]
    return bytes(decompress(ZSTD, usages, size, bytes_max=MIB) if size else usages)


def refusal(payload: bytes, key: bytes = KEY) -> BadReport:
    with pytest.raises(BadUsageReport) as caught:
        decode(payload, key, everything)
    return caught.value.what


def lending(*loans: Loan) -> UsageReport:
    return ONE._replace(borrowers=(Borrower("us", 1, 0, loans),))


@given(report=REPORTS)
def test_a_report_comes_back_as_it_went(report: UsageReport) -> None:
    assert decode(encode(report, KEY), KEY, everything) == report


@given(report=REPORTS)
def test_only_wanted_groups_are_decoded(report: UsageReport) -> None:
    decoded = decode(encode(report, KEY), KEY, lambda group: group % 2 == 0)
    assert decoded.groups == tuple(usage for usage in report.groups if usage.group % 2 == 0)
    for sent, read in zip(report.borrowers, decoded.borrowers, strict=True):
        assert read.loans == tuple(loan for loan in sent.loans if loan.group % 2 == 0)


def test_a_report_of_a_broker_that_does_not_know_of_loans_is_read_and_nothing_waits_there() -> None:
    report = decode(ONE_WITHOUT_LOANS, KEY, everything)
    assert report == ONE
    assert (report.groups[0].waiting, report.borrowers) == (NOTHING, ())


@given(report=REPORTS)
def test_a_reader_that_does_not_know_of_loans_skips_them(report: UsageReport) -> None:
    """It sees the known fields with their known values, and the others as unknown."""
    bare = report._replace(
        groups=tuple(usage._replace(waiting=NOTHING) for usage in report.groups), borrowers=(), heard=(), urgent=False
    )
    seen, expected = (old_fields("ResourceUsageInfo", encode(one, KEY)) for one in (report, bare))
    columns = [decompressed(one) for one in (seen, expected)]
    for info in (seen, expected):
        for name in ("usages", "usages_size", "signature"):
            info.ClearField(name)  # they differ, since `usages` has other columns
    assert seen.SerializeToString() == expected.SerializeToString()
    assert old_fields("ResourceUsages", columns[0]) == old_fields("ResourceUsages", columns[1])


def test_pulsars_reader_sees_a_broker_without_usage() -> None:
    """Fields 1 and 2 of Pulsar's ResourceUsageInfo are the broker and its usage; the latter is not sent."""
    info = pb.ResourceUsageInfo.FromString(encode(ONE, KEY))
    assert info.broker == "broker-1"
    assert {field.number for field, _ in info.ListFields()} & set(range(2, 16)) == set()


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_no_report(data: bytes) -> None:
    assert refusal(data) == BadReport.FORGED


@given(report=REPORTS, at=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_changed_byte_makes_a_report_a_forgery(report: UsageReport, at: int, flip: int) -> None:
    payload = bytearray(encode(report, KEY))
    payload[at % len(payload)] ^= flip
    assert refusal(bytes(payload)) == BadReport.FORGED


def test_a_report_signed_with_another_key_is_a_forgery() -> None:
    assert refusal(encode(ONE, b"a guess")) == BadReport.FORGED


def test_five_mebibytes_are_refused_before_they_are_read() -> None:
    assert refusal(bytes(5 * MIB)) == BadReport.LARGE


@pytest.mark.parametrize(
    "report",
    [
        ONE._replace(broker=""),
        ONE._replace(broker="b" * 300),
        ONE._replace(heard=(Acknowledgement(1, 1),) * (MEMBERS_MAX + 1)),
        ONE._replace(groups=(ONE.groups[0]._replace(held=(1 << 63, 0, 0, 0)),)),
        ONE._replace(groups=(ONE.groups[0], ONE.groups[0])),
        ONE._replace(groups=tuple(ONE.groups[0]._replace(group=one) for one in range(GROUPS_PER_REPORT + 1))),
        ONE._replace(groups=(ONE.groups[0]._replace(waiting=(1 << 63, 0, 0, 0)),)),
        lending(Loan(3, KINDS, 1)),
        lending(Loan(3, 0, 1 << 63)),
        lending(*[Loan(3, 0, 1)] * (LOANS_PER_REPORT + 1)),
        ONE._replace(borrowers=(Borrower("us", 1, 0, ()),) * (LOANS_PER_REPORT + 1)),
        ONE._replace(borrowers=(Borrower("", 1, 0, ()),)),
        ONE._replace(borrowers=(Borrower("b" * 300, 1, 0, ()),)),
    ],
    ids=[
        "no name",
        "a long name",
        "many acknowledgements",
        "a large amount",
        "a group twice",
        "many groups",
        "much that waits",
        "a loan of nothing known",
        "a large loan",
        "many loans",
        "many borrowers",
        "a borrower without a name",
        "a borrower with a long name",
    ],
)
def test_a_signed_report_that_makes_no_sense_is_malformed(report: UsageReport) -> None:
    assert refusal(encode(report, KEY)) == BadReport.MALFORMED


def test_the_largest_report_is_below_the_bound() -> None:
    most = (1 << 63) - 1
    usage = GroupUsage(0, 1, (most,) * 4, (most,) * 4, (most,) * 4)
    groups = tuple(usage._replace(group=one << 48) for one in range(GROUPS_PER_REPORT))
    loans = tuple(Loan(one << 48, one % KINDS, most - one) for one in range(LOANS_PER_REPORT))
    report = lending(*loans)._replace(groups=groups)
    assert decode(encode(report, KEY), KEY, everything) == report


def test_ids_are_hashes_of_names() -> None:
    assert group_id("one") == group_id("one") != group_id("two")
    assert len({group_id(f"group-{number}") for number in range(10_000)}) == 10_000
