# SPDX-License-Identifier: Apache-2.0
"""The lease of one broker: whether it works, as the supervisor sees it.

Why a lease: a process that exists, and a socket that is open, say nothing. A broker that is frozen, or whose loop
hangs, holds its topics and answers nobody. So each broker renews its lease, from its loop, every second, over the
metadata link; one that is late is suspect, and one that stays silent is killed and started again (docs/adr/0079).
Where: `supervisor` has one for each broker, and calls it; `core.broker_states` says what the states mean to others.

Pure: the caller passes the time that has passed, and what it saw.

- Time counts only while the supervisor itself runs: the caller passes at most `ELAPSED_NS_MAX` at a time, after it has
  read what brokers have sent. So a supervisor that was frozen, or a machine that slept, suspects nobody for that.
- A busy broker is not a frozen one. What is frozen or waits for a lock uses no processor; silence counts in full only
  while the process does nothing. One that works and is silent has a minute: a huge turn of its loop ends, and one that
  does not is a loop without end.
- A broker that crashed again and again is not trusted with new topics as soon as it starts: whatever made it crash may
  come again with the next message. It serves what it has, and is ready when its crashes are forgotten.
- A broker whose disk holds a write renews its lease, and says so. It is suspect, and never killed for that: the next
  process would wait for the same disk.
"""

from __future__ import annotations

from typing import Final

from penstock.core.broker_states import ALLOWS, RENEW_EVERY_NS, SAID, BrokerState
from penstock.core.units import NS_PER_S
from penstock.processes.restarts import FORGIVEN_S

# How often the supervisor looks. It is late itself if a look is later than twice that.
LOOK_EVERY_NS: Final = NS_PER_S // 2
ELAPSED_NS_MAX: Final = 2 * LOOK_EVERY_NS
# Three renewals are missing. A turn of a broker's loop takes milliseconds, and ten times as long on a machine with ten
# runnable processes per core.
SUSPECT_NS: Final = 3 * RENEW_EVERY_NS
# A frozen broker is replaced within 15 s: this, one look, and the start.
FENCED_NS: Final = 8 * NS_PER_S
# A broker that uses the processor all the time, and does not finish one turn of its loop.
HUNG_NS: Final = 60 * NS_PER_S
# A start reads the log in its loop, and may wait for a slow disk; only one that does nothing at all for so long hangs.
START_IDLE_NS: Final = 60 * NS_PER_S
PROVEN_NS: Final = FORGIVEN_S * NS_PER_S
_STARTING: Final = frozenset({BrokerState.STARTING, BrokerState.CRASH_LOOPING})


class Lease:
    """The state of one broker."""

    def __init__(self) -> None:
        self.state = BrokerState.STARTING
        self._silent_ns = 0  # since it renewed last
        self._idle_ns = 0  # of these, while the process did nothing
        self._unproven_ns = 0  # how long it must serve until it is trusted again

    def started(self) -> None:
        """A process is running, and starts."""
        self._enter(self.state)

    def ready(self) -> None:
        """The process has started."""
        if self.state in _STARTING:
            self._enter(self._trusted(BrokerState.READY))

    def renew(self, state: BrokerState) -> None:
        """The broker says that it works, and which state it is in."""
        assert state in SAID, state
        if ALLOWS[self.state].leased:
            self._enter(self._trusted(state))

    @property
    def is_doubtful(self) -> bool:
        """Whether `pass_time` must know if the process works."""
        return self.state in _STARTING or (ALLOWS[self.state].leased and self._silent_ns >= SUSPECT_NS)

    def pass_time(self, elapsed_ns: int, *, works: bool = False) -> None:
        """Let time pass while the process runs. If the broker is fenced then, it is to be killed.

        Args:
            elapsed_ns: since the last call, at most ELAPSED_NS_MAX.
            works: whether the process used the processor, or waited for a disk in the kernel, since the last call.
        """
        self._silent_ns += elapsed_ns
        if not works:
            self._idle_ns += elapsed_ns
        elif self.state in _STARTING:
            self._idle_ns = 0
        if ALLOWS[self.state].serves:
            self._unproven_ns = max(0, self._unproven_ns - elapsed_ns)
        self.state = self._state_by_time()

    def _state_by_time(self) -> BrokerState:
        if self.state in _STARTING:
            return BrokerState.FENCED if self._idle_ns >= START_IDLE_NS else self.state
        if not ALLOWS[self.state].leased:
            return self.state
        if self._idle_ns >= FENCED_NS or self._silent_ns >= HUNG_NS:
            return BrokerState.FENCED
        return BrokerState.SUSPECT if self._silent_ns >= SUSPECT_NS else self.state

    def crashed(self, *, often: bool) -> None:
        """The process ended, and is started again; `often`: as so often lately."""
        self._unproven_ns = PROVEN_NS if often else 0
        self._enter(BrokerState.CRASH_LOOPING if often else BrokerState.STARTING)

    def ended(self) -> None:
        """The process ended and is not started again."""
        self._enter(BrokerState.ENDED)

    def _trusted(self, state: BrokerState) -> BrokerState:
        return BrokerState.PROVING if state is BrokerState.READY and self._unproven_ns else state

    def _enter(self, state: BrokerState) -> None:
        self.state = state
        self._silent_ns = self._idle_ns = 0
