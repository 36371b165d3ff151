# SPDX-License-Identifier: Apache-2.0
"""Processes of the demo: how one is started, watched, killed, and never left behind.

Where: `replay` and `flood` run their clients in these, so that a broker on one core is not slowed by ten clients
behind one interpreter lock, and so that one of them can be killed as the kernel would.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import TracebackType

# Forked, not started afresh: they share the flights and the board with the one who started them, at no cost.
CONTEXT = multiprocessing.get_context("fork")
END_TIMEOUT_S = 10.0
POLL_S = 0.02


class Faults:
    """What a process has to complain of: the first few in words; one fails the demo, a million say no more."""

    KEPT = 3

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        """Complain, unless enough was said."""
        if len(self.texts) < self.KEPT:
            self.texts.append(text)


class Person:
    """One process that runs `work`, which gets a place to report faults. Make all of them before any thread."""

    def __init__(self, name: str, work: Callable[[Faults], None]) -> None:
        self.name = name
        self.killed = False
        self._faults: Connection
        self._faults, to_parent = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_run, args=(work, to_parent), name=f"demo-{name}", daemon=True)
        self._process.start()
        to_parent.close()

    @property
    def gone(self) -> bool:
        """Whether the process has ended, for whatever reason."""
        return self._process.exitcode is not None

    def kill(self) -> None:
        """End it at once, without a chance to say anything."""
        self.killed = True
        self._process.kill()
        self._process.join()

    def join(self) -> list[str]:
        """Wait for its end, and return what it has to complain of. One that does not end is killed."""
        self._process.join(END_TIMEOUT_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
            return [f"{self.name} did not end within {END_TIMEOUT_S:.0f} s"]
        if self.killed:
            return []
        try:
            faults: list[str] = self._faults.recv()
        except EOFError:
            return [f"{self.name} ended with {self._process.exitcode} and said nothing"]
        return [f"{self.name}: {fault}" for fault in faults]


class Crew:
    """All processes of one act; leaving the `with` block leaves none of them behind."""

    def __init__(self) -> None:
        self.people: dict[str, Person] = {}

    def hire(self, name: str, work: Callable[[Faults], None]) -> None:
        """Start another one."""
        self.people[name] = Person(name, work)

    def first_gone(self) -> str | None:
        """The name of one that ended by itself, if any has: nobody may before the end."""
        return next((name for name, person in self.people.items() if person.gone and not person.killed), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for person in self.people.values():
            if not person.gone:
                person.kill()


def wait_until(happened: Callable[[], bool], timeout_s: float = float("inf")) -> bool:
    """Look every few milliseconds; False if it did not happen in time, or if the demo's main process is gone."""
    parent = os.getppid()
    deadline_s = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > deadline_s or os.getppid() != parent:
            return False
        time.sleep(POLL_S)
    return True


def _run(work: Callable[[Faults], None], to_parent: Connection) -> None:
    # Ctrl-C reaches every process of the terminal; only the main one answers, and it ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faults = Faults()
    try:
        work(faults)
    except Exception:  # noqa: BLE001 - whatever it is, it must be told to the one who waits.
        faults.add(traceback.format_exc())
    to_parent.send(faults.texts)
