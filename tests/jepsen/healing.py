# SPDX-License-Identifier: Apache-2.0
"""How long it takes until a fault is noticed, until publishers go on, and what those of other brokers notice meanwhile.

    python -m tests.jepsen.healing [--only NAME] [--rounds 3]

Three brokers, and a publisher for a topic of each. One fault after the other happens to the second broker, or to the
supervisor. *Noticed* is when another broker's health says so. *Again* is the first receipt of the broker's own topic
after the fault, from the end of a fault that ends, else from its beginning. *Others* is p99 of the receipts of the
other topics in the ten seconds from the fault on, and in the ten before it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.jepsen.clients import PREFIX, Kind, Publisher, Run
from tests.jepsen.faulty_disk import CANNOT, FaultyDisk
from tests.jepsen.history import History, read
from tests.processes.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BROKERS: Final = 3
VICTIM: Final = 1
PER_S: Final = 100.0
# Before and after each fault.
LOOKED_AT_S: Final = 10.0
# How long a fault that ends lasts.
FROZEN_S: Final = 6.0
HEALED_S: Final = 60.0


class Times(NamedTuple):
    """What one fault did. Seconds; milliseconds of receipts."""

    noticed_s: float | None
    again_s: float
    before_p99_ms: float
    meanwhile_p99_ms: float


class World:
    """The brokers, their publishers, and what can happen to them."""

    def __init__(self, scratch: Path, disk: FaultyDisk) -> None:
        self.cluster = Cluster(scratch / "data", BROKERS, environment=disk.environment)
        self.proxy: int | None = None
        self._disk = disk
        self._history = scratch / "history"
        self._topics: dict[int, str] = {}

    @property
    def any_broker(self) -> int:
        return self.cluster.port

    async def play(self, fault: Callable[[World], Awaitable[None]]) -> Times:
        """Let it happen, and look at what publishers were told."""
        with self.cluster.start(), contextlib.closing(History(self._history)) as history:
            await self._own_topics()
            run = Run(self, history, random.Random(1))
            publishers = [
                Publisher(run, Kind(topic, (), entries_per_s=PER_S), topic, proxied=False)
                for topic in self._topics.values()
            ]
            work = [asyncio.ensure_future(one.work()) for one in publishers]
            await asyncio.sleep(LOOKED_AT_S + 2)
            began = history.now()
            noticing = asyncio.ensure_future(self._notice(history))
            await fault(self)
            ended = history.now()
            await asyncio.sleep(max(LOOKED_AT_S - (history.now() - began), 0))
            await self._recover(publishers, history, ended)
            noticing.cancel()
            run.ending = True
            await asyncio.wait(work, timeout=30)
            noticed = noticing.result() - began if noticing.done() and not noticing.cancelled() else None
        return self._times(began, ended, noticed)

    async def _own_topics(self) -> None:
        number = 0
        while len(self._topics) < BROKERS:
            topic, number = f"healing-{number}", number + 1
            self._topics[await asyncio.to_thread(self.cluster.owner, PREFIX + topic)] = topic

    async def _notice(self, history: History) -> float:
        while True:
            status, health = await asyncio.to_thread(self.cluster.http, 0, "GET", "/healthz")
            if status != 200 or health != {"status": "ok"}:
                return history.now()
            await asyncio.sleep(0.05)

    async def _recover(self, publishers: list[Publisher], history: History, ended: float) -> None:
        """Wait until the victim's publisher is answered what it sends, a second long."""
        victim = next(one for one in publishers if one.kind.topic == self._topics[VICTIM])
        good, deadline = 0, time.monotonic() + HEALED_S
        while good < 10 and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            good = good + 1 if victim.pending < 3 and history.now() > ended else 0

    def _times(self, began: float, ended: float, noticed: float | None) -> Times:
        sent: dict[tuple[str, int], float] = {}
        before: list[float] = []
        meanwhile: list[float] = []
        again = float("inf")
        for event in read(self._history):
            if event[0] == "send":
                sent[event[2], event[4]] = event[1]
            elif event[0] == "stored":
                at, topic, first = event[1], event[2], event[4]
                if topic == self._topics[VICTIM]:
                    # What was sent before the end may have been stored before it, too.
                    if at > ended and sent[topic, first] >= began:
                        again = min(again, at - ended)
                elif began - LOOKED_AT_S <= sent[topic, first] < began:
                    before.append(at - sent[topic, first])
                elif began <= sent[topic, first] < began + LOOKED_AT_S:
                    meanwhile.append(at - sent[topic, first])
        return Times(noticed, again, _p99_ms(before), _p99_ms(meanwhile))

    # -- faults: the docstring is the name in the table; it returns when the fault is over, or at once ----------------

    async def kill(self) -> None:
        """kill -9 of a broker"""
        self.cluster.kill_broker(VICTIM)

    async def freeze(self) -> None:
        """a broker is frozen (SIGSTOP) for good"""
        os.kill(self.cluster.pids()[VICTIM], signal.SIGSTOP)

    async def freeze_the_supervisor(self) -> None:
        """the supervisor is frozen for 6 s"""
        os.kill(self.cluster.pid, signal.SIGSTOP)
        await asyncio.sleep(FROZEN_S)
        os.kill(self.cluster.pid, signal.SIGCONT)

    async def fail_a_sync(self) -> None:
        """one EIO of a sync"""
        self._disk.fail(self._directory, syncs=1)

    async def fail_a_write(self) -> None:
        """one EIO of a write"""
        self._disk.fail(self._directory, writes=1)

    async def fill(self) -> None:
        """a disk that is full for 6 s"""
        self._disk.fail(self._directory, full=True)
        await asyncio.sleep(FROZEN_S)
        self._disk.heal()

    async def hang(self) -> None:
        """a disk that hangs for 6 s"""
        self._disk.fail(self._directory, hang=True)
        await asyncio.sleep(FROZEN_S)
        self._disk.heal()

    @property
    def _directory(self) -> Path:
        return self.cluster.data_dir / f"broker-{VICTIM}"


FAULTS: Final = (
    World.kill, World.freeze, World.freeze_the_supervisor, World.fail_a_sync, World.fail_a_write, World.fill,
    World.hang,
)  # fmt: skip


def _p99_ms(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] * 1_000


def main() -> int:
    """Play each fault, and print a table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the name of one fault")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if CANNOT is not None:
        print(CANNOT, file=sys.stderr)
        return 1
    print("| fault | noticed after s | publishing again after s | others' p99 before, ms | meanwhile |")
    print("|---|---|---|---|---|")
    for fault in FAULTS:
        if options.only in {None, fault.__name__}:
            rounds = [_play(fault) for _ in range(options.rounds)]
            noticed = [one.noticed_s for one in rounds if one.noticed_s is not None]
            print(f"| {fault.__doc__} | {_range(noticed)} | {_range([one.again_s for one in rounds])} | "
                  f"{_range([one.before_p99_ms for one in rounds])} | "
                  f"{_range([one.meanwhile_p99_ms for one in rounds])} |", flush=True)  # fmt: skip
    return 0


def _play(fault: Callable[[World], Awaitable[None]]) -> Times:
    with tempfile.TemporaryDirectory(prefix="healing-") as name, FaultyDisk(Path(name)) as disk:
        return asyncio.run(World(Path(name), disk).play(fault))


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}" if values else "-"


if __name__ == "__main__":
    sys.exit(main())
