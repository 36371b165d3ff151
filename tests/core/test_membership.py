# SPDX-License-Identifier: Apache-2.0
"""Membership: who serves, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.broker_states import BrokerState
from penstock.core.membership import Member, SharedMembership, alone, ready
from penstock.core.service_urls import Addresses, ServiceUrls

if TYPE_CHECKING:
    from penstock.core.membership import Membership

HERE = Addresses(service=ServiceUrls("pulsar://127.0.0.1:6650", None), web=ServiceUrls("http://127.0.0.1:8080", None))


def test_a_broker_that_is_alone_serves_once_it_has_announced_its_addresses() -> None:
    membership: Membership = alone()
    assert membership.members == {0: Member(0, BrokerState.STARTING)}

    membership.announce(HERE)

    assert membership.members == {0: Member(0, BrokerState.READY, HERE)}


def test_listeners_are_called_for_changes_only() -> None:
    membership = SharedMembership(1, lambda _: None)
    heard: list[object] = []
    membership.listen(lambda: heard.append(membership.members))

    membership.announce(HERE)
    assert heard == []
    membership.update({0: ready(0, HERE), 1: Member(1, BrokerState.STARTING)})
    membership.update({0: ready(0, HERE), 1: Member(1, BrokerState.STARTING)})

    assert heard == [{0: ready(0, HERE), 1: Member(1, BrokerState.STARTING)}]
