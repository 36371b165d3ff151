# SPDX-License-Identifier: Apache-2.0
"""The states of a broker, and what each of them allows.

Why one table: placement, lookups, fan-out, the division of quotas, health, metrics and the stop all depend on whether a
broker works. Each reads a column here, so a new state is one row.
Where: the supervisor alone decides the state of each broker (`processes.lease`) and tells it to all brokers, which read
it as `Member.state`.

                  ┌──────────────────────── the process ended ─────────────────────────┐
                  ▼                                                                     │
    starting ─▶ ready ⇄ suspect ─▶ fenced (killed) ─▶ starting                          │
                ready ⇄ read-only · full              crash-looping ─▶ proving ─▶ ready │
                ready ─▶ draining ─▶ ended            (too many crashes; started again after longer and longer pauses)
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping


class BrokerState(Enum):
    """State of a broker, as the supervisor sees it."""

    STARTING = "starting"  # it recovers its log
    READY = "ready"
    SUSPECT = "suspect"  # it is late to say that it works, or its disk holds a write for too long
    FENCED = "fenced"  # it did not say so for too long, and is killed
    READ_ONLY = "read-only"  # its log failed: it delivers what it has, and takes nothing
    FULL = "full"  # its disk has no room: as read-only, until there is room
    DRAINING = "draining"  # it finishes what it accepted, and ends
    CRASH_LOOPING = "crash-looping"  # it crashed again and again; it is started again after a pause
    PROVING = "proving"  # it crashed again and again, and serves now, for less than a minute
    ENDED = "ended"  # an administrator stopped it; it is not started again


class Allows(NamedTuple):
    """Uses of a broker that its state allows, and its problem."""

    lookups: bool  # clients are sent there, to work or to wait; else they are refused, and ask again
    new_topics: bool  # topics are placed there
    serves: bool  # it is asked by other brokers, shares quotas, and is listed as active
    leased: bool  # it must say that it works
    problem: str | None = None  # what health says of it


ALLOWS: Final[Mapping[BrokerState, Allows]] = {
    BrokerState.STARTING: Allows(lookups=True, new_topics=False, serves=False, leased=False),
    BrokerState.READY: Allows(lookups=True, new_topics=True, serves=True, leased=True),
    BrokerState.SUSPECT: Allows(lookups=True, new_topics=False, serves=False, leased=True,
        problem="is suspect: it gets no new topics, and other brokers do not wait for it"),
    BrokerState.FENCED: Allows(lookups=True, new_topics=False, serves=False, leased=False,
        problem="did not answer for too long: it is killed, and started again"),
    BrokerState.READ_ONLY: Allows(lookups=True, new_topics=False, serves=True, leased=True,
        problem="takes no messages, because its log failed; its log says why"),
    BrokerState.FULL: Allows(lookups=True, new_topics=False, serves=True, leased=True,
        problem="takes no messages, because its disk is full; make room"),
    BrokerState.DRAINING: Allows(lookups=True, new_topics=False, serves=False, leased=False),
    BrokerState.CRASH_LOOPING: Allows(lookups=False, new_topics=False, serves=False, leased=False,
        problem="crashes again and again, and its topics are not served meanwhile: its log says why"),
    BrokerState.PROVING: Allows(lookups=True, new_topics=False, serves=True, leased=True,
        problem="crashed again and again, and serves now: it gets new topics when it has done so for a minute"),
    BrokerState.ENDED: Allows(lookups=False, new_topics=False, serves=False, leased=False,
        problem="was stopped, and its topics are not served; restart penstock"),
}  # fmt: skip

# What a broker may say of itself; the others are found by the supervisor.
SAID: Final = frozenset(
    {BrokerState.READY, BrokerState.SUSPECT, BrokerState.READ_ONLY, BrokerState.FULL, BrokerState.DRAINING}
)
# How often a broker says that it works.
RENEW_EVERY_NS: Final = NS_PER_S
