# SPDX-License-Identifier: Apache-2.0
"""Time in which a process had a processor, or did not want one: what it does, without what others do to it.

Why: on a machine that others use, a turn of the loop takes as long as they let it, and PINGs wait as long.
Where: `run --shared-machine` measures all waits so; as a program, this is penstock with the turns of its loop measured
so.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final

from penstock.core.units import NS_PER_S

_ENOUGH_BYTES: Final = 128


class OwnTime:
    """A clock of one thread of a process, its first."""

    def __init__(self, pid: int) -> None:
        self._fd = os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def monotonic_ns(self) -> int:
        """Return the time without that in which the thread waited for a processor. Raises OSError when it has ended."""
        waited_ns = int(os.pread(self._fd, _ENOUGH_BYTES, 0).split()[1])
        return time.monotonic_ns() - waited_ns

    def monotonic(self) -> float:
        """The same in seconds."""
        return self.monotonic_ns() / NS_PER_S

    def close(self) -> None:
        """Look no more."""
        os.close(self._fd)


def main() -> int:
    """Be penstock, whose loop measures its turns by this clock."""
    from penstock.cli.main import main as penstock
    from penstock.net import loop_turns

    class Selector(loop_turns.TimedSelector):
        def __init__(self, turns: loop_turns.LoopTurns, _clock: object) -> None:
            super().__init__(turns, OwnTime(os.getpid()))  # type: ignore[arg-type]

    loop_turns.TimedSelector = Selector  # type: ignore[misc, assignment]
    return penstock()


if __name__ == "__main__":
    sys.exit(main())
