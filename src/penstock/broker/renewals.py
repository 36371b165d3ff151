# SPDX-License-Identifier: Apache-2.0
"""The broker's side of its lease: it tells the supervisor that it works, and says what is known of the others.

Why from the loop's tick: a loop that hangs says nothing, which is what the supervisor must see. What is told includes
the disk, so that a broker whose journal waits for it is known to the others, too.
Where: `Broker` calls `tick`; its health contains `problems`. The supervisor's side is `processes.lease`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.broker_states import RENEW_EVERY_NS, BrokerState
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.membership import Membership

# A commit of the journal that takes longer is a disk that hangs, rather than a slow one.
STALLED_NS: Final = 3 * NS_PER_S
# An answer of the supervisor takes a millisecond; three are missing.
SUPERVISOR_SILENT_NS: Final = 3 * RENEW_EVERY_NS


class Renewals:
    """All methods are called on the loop."""

    def __init__(self, membership: Membership, own_state: Callable[[], BrokerState]) -> None:
        """Args: own_state: the state that this broker sees itself in."""
        self._membership = membership
        self._own_state = own_state
        self._next_ns = 0

    def tick(self, now_ns: int) -> None:
        """Renew the lease when it is time."""
        if now_ns >= self._next_ns:
            self.renew(now_ns)

    def renew(self, now_ns: int) -> None:
        """Renew the lease now, because the state has changed."""
        self._next_ns = now_ns + RENEW_EVERY_NS
        self._membership.renew(self._own_state(), now_ns)

    def problems(self, now_ns: int) -> list[str]:
        """Return problems of the cluster's brokers and of their supervisor, for health."""
        members = sorted(self._membership.members.values(), key=lambda one: one.number)
        problems = [f"broker {one.number} {one.allows.problem}" for one in members if one.allows.problem is not None]
        age_ns = self._membership.age_ns(now_ns)
        if age_ns >= SUPERVISOR_SILENT_NS:
            problems.append(
                f"the supervisor has not answered for {age_ns // NS_PER_S} s: changes of metadata wait, and what is "
                f"known of the other brokers is as old"
            )
        return problems
