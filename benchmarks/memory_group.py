# SPDX-License-Identifier: Apache-2.0
"""A memory control group of our own: the kernel's hard limit around one process, where we may make one.

Why: what a process says about its memory is one thing, that it survives a limit another.
Where: `flood` starts a broker inside, and sets the limit once the broker's baseline is known.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryGroup:
    """One control group, below the one this process is in; versions 1 and 2 of the kernel's interface."""

    def __init__(self, home: Path, *, limit_file: str, events_file: str) -> None:
        """Make the group. Raises OSError when that is not allowed here."""
        self.home = home
        self.path = home / f"penstock-flood-{os.getpid()}"
        self._limit_file = limit_file
        self._events_file = events_file
        self.path.mkdir()

    @classmethod
    def make(cls) -> Self | None:
        """A group, or None where this process may not make one."""
        mount = Path("/sys/fs/cgroup")
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            home = mount / path.lstrip("/")
            with suppress(OSError):
                if "memory" in controllers.split(","):
                    home = mount / "memory" / path.lstrip("/")
                    return cls(home, limit_file="memory.limit_in_bytes", events_file="memory.oom_control")
                if controllers == "" and "memory" in (home / "cgroup.subtree_control").read_text().split():
                    return cls(home, limit_file="memory.max", events_file="memory.events")
        return None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let processes that are started meanwhile belong to the group."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self.home / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self, size: int) -> None:
        """Kill a process of the group rather than let them all have more than `size` bytes."""
        (self.path / self._limit_file).write_text(str(size))

    def kills(self) -> int:
        """How many processes the limit has ended so far."""
        lines = (self.path / self._events_file).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.split()[0] == "oom_kill")

    def remove(self) -> None:
        """Take the group away; its processes must have ended."""
        self.path.rmdir()
