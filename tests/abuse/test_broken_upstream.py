# SPDX-License-Identifier: Apache-2.0
"""A share of `tests.abuse.run --upstream` for every day: brokers that answer wrongly, behind a real proxy process.

How long others wait is not looked at here, where other tests run beside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.units import MIB
from tests.abuse.broken_upstream import behind_proxy
from tests.abuse.subject import ALLOWANCE_BYTES, MEMORY_LIMIT_MB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.abuse.broken_upstream import BehindProxy

pytestmark = [pytest.mark.xdist_group("abuse"), pytest.mark.timeout(120)]

CHOSEN = (
    "half frames",
    "long frames",
    "wrong answers",
    "pings, unread",
    "errors of a megabyte",
    "names of a megabyte",
    "redirects to what is no broker",
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BehindProxy]:
    with behind_proxy(tmp_path_factory.mktemp("proxy")) as proxied:
        yield proxied


@pytest.mark.parametrize("name", CHOSEN)
def test_a_broken_broker_costs_the_proxy_only_what_its_books_show_and_all_is_given_back(
    running: BehindProxy, name: str
) -> None:
    figures = running.put_to(name)

    assert figures["held"] <= MEMORY_LIMIT_MB * MIB / 2
    assert figures["rss"] <= figures["held"] + 2 * ALLOWANCE_BYTES
    assert running.is_given_back()
