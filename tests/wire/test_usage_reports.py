# SPDX-License-Identifier: Apache-2.0
"""Usage reports as bytes: they come back as they went, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import MIB
from penstock.core.usage_report import GROUP_ID_MAX, GROUPS_PER_REPORT, WHOLE_SHARE, Covered, GroupUsage, UsageReport
from penstock.wire import pulsar_pb2 as pb
from penstock.wire.usage_reports import BadReport, BadUsageReport, decode, encode, group_id

KEY = b"the key of the cluster"
AMOUNTS = st.tuples(*[st.integers(0, 2**63 - 1)] * 4)
SHARES = st.tuples(*[st.integers(0, WHOLE_SHARE)] * 4)
IDS = st.integers(0, GROUP_ID_MAX)
USAGES = st.dictionaries(IDS, st.tuples(st.integers(0, 10**6), AMOUNTS, AMOUNTS, SHARES), max_size=30).map(
    lambda groups: tuple(GroupUsage(group, *groups[group]) for group in sorted(groups))
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
)
ONE = UsageReport("broker-1", 5, 7, 1_000, (GroupUsage(3, 1, (1, 2, 3, 4), (0, 0, 0, 0), (9, 0, 0, 0)),))


def everything(_: int) -> bool:
    return True


def refusal(payload: bytes, key: bytes = KEY) -> BadReport:
    with pytest.raises(BadUsageReport) as caught:
        decode(payload, key, everything)
    return caught.value.what


@given(report=REPORTS)
def test_a_report_comes_back_as_it_went(report: UsageReport) -> None:
    assert decode(encode(report, KEY), KEY, everything) == report


@given(report=REPORTS)
def test_only_wanted_groups_are_decoded(report: UsageReport) -> None:
    decoded = decode(encode(report, KEY), KEY, lambda group: group % 2 == 0)
    assert decoded.groups == tuple(usage for usage in report.groups if usage.group % 2 == 0)


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
        ONE._replace(groups=(ONE.groups[0]._replace(share=(WHOLE_SHARE + 1, 0, 0, 0)),)),
        ONE._replace(groups=(ONE.groups[0]._replace(held=(1 << 63, 0, 0, 0)),)),
        ONE._replace(groups=(ONE.groups[0], ONE.groups[0])),
        ONE._replace(groups=tuple(ONE.groups[0]._replace(group=one) for one in range(GROUPS_PER_REPORT + 1))),
    ],
    ids=["no name", "a long name", "a share above the whole", "a large amount", "a group twice", "many groups"],
)
def test_a_signed_report_that_makes_no_sense_is_malformed(report: UsageReport) -> None:
    assert refusal(encode(report, KEY)) == BadReport.MALFORMED


def test_the_largest_report_is_below_the_bound() -> None:
    most = (1 << 63) - 1
    usage = GroupUsage(0, 1, (most,) * 4, (most,) * 4, (WHOLE_SHARE,) * 4)
    groups = tuple(usage._replace(group=one << 48) for one in range(GROUPS_PER_REPORT))
    assert decode(encode(ONE._replace(groups=groups), KEY), KEY, everything).groups == groups


def test_ids_are_hashes_of_names() -> None:
    assert group_id("one") == group_id("one") != group_id("two")
    assert len({group_id(f"group-{number}") for number in range(10_000)}) == 10_000
