# SPDX-License-Identifier: Apache-2.0
"""A share of `make abuse` for every day: one attack of each kind, by 200 clients, against a real broker process.

How long others wait, and how late all is given back, is not looked at here, where other tests run beside: `make abuse`
does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.abuse.cases import Case
from tests.abuse.subject import ALLOWANCE_BYTES, GIVEN_BACK_WAIT_S, subject

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.abuse.subject import Subject

pytestmark = [pytest.mark.xdist_group("abuse"), pytest.mark.timeout(120)]

CASES = (
    Case("pipeline GET_LAST_MESSAGE_ID", 200),
    Case("pipeline GET_SCHEMA", 1),
    Case("pipeline GET_TOPICS_OF_NAMESPACE", 200, tls=True),
    Case("pipeline SUBSCRIBE", 1),
    Case("pipeline NEW_TXN", 200),
    Case("pipeline CONNECT", 200, known=False),
    Case("field CONNECT.auth_data", 200, known=False),
    Case("field SUBSCRIBE.metadata.value", 200),
    Case("field SUBSCRIBE.keySharedMeta.hashRanges.start", 1),
    Case("field ACK.message_id.ack_set", 200),
    Case("field PRODUCER.topic_epoch", 1),
    Case("POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema many", 60),
)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    directory: Path = tmp_path_factory.mktemp("abuse")
    with subject(directory, hard=False) as running:
        yield running


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_attack_costs_no_more_than_its_row_and_all_is_given_back(attacked: Subject, case: Case) -> None:
    finding = attacked.put_to(case)
    assert finding.sent_bytes
    assert finding.rss_bytes <= finding.row_bytes + ALLOWANCE_BYTES, finding.line()
    assert finding.given_back_s <= GIVEN_BACK_WAIT_S, finding.line()
    assert not [fault for fault in finding.faults if "not answer" in fault or "could not begin" in fault]


def test_requests_that_are_passed_on_cost_no_broker_more_than_its_row(tmp_path: Path) -> None:
    topic = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
    with subject(tmp_path, hard=False, brokers=2) as running:
        for what in (
            f"GET {topic}/subscription/{{subscription}}/position/{{nth}} unread",
            f"POST {topic}/retention allowed",
        ):
            finding = running.put_to(Case(what, 60))
            assert finding.held_bytes, "the other broker was asked, or read the bodies"
            assert finding.rss_bytes <= finding.row_bytes + ALLOWANCE_BYTES, finding.line()
            assert finding.given_back_s <= GIVEN_BACK_WAIT_S, finding.line()
            assert not [fault for fault in finding.faults if "not answer" in fault or "could not begin" in fault]


def test_a_broker_obeys_sigterm_with_a_hundred_thousand_requests_unread(tmp_path: Path) -> None:
    with subject(tmp_path, hard=False) as running:
        assert running.stop_under(Case("pipeline SEEK", 200)) is None
