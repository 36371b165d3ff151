# SPDX-License-Identifier: Apache-2.0
"""`make jepsen`: brokers, a proxy and their clients as real processes, and all that can happen to them, by seed.

    python -m tests.jepsen.run [--minutes 10] [--seconds 6] [--seed 7] [--keep DIR] [--write]

Each seed draws the number of brokers, the faults and their moments, and what clients do. A seed repeats the same story,
not the same microseconds: so what clients were told is kept as a file (`history`), which `checker` checks again. The
virtual world of tests/simulation repeats exactly. Ends with status 1 at the first history that is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.jepsen import table
from tests.jepsen.checker import LISTED_MAX, check
from tests.jepsen.clients import Kind, Publisher, Run, Subscriber, read_compacted, read_places
from tests.jepsen.cluster import Brokers
from tests.jepsen.faulty_disk import CANNOT, FaultyDisk
from tests.jepsen.history import History, read
from tests.jepsen.lives import TOPIC_PATH, Lives
from tests.jepsen.transactors import JOBS, RESULTS, SUBSCRIPTION, Auditor, Transactor, read_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.jepsen.checker import Result

KINDS: Final = (
    Kind("plain", ("a/exclusive", "b/shared"), batch=2_000),
    Kind("once", ("a/failover", "b/shared"), batch=2_000),
    Kind("keyed", ("a/key_shared",), keys=True),
    Kind("large", ("a/exclusive",), chunks=True, entries_per_s=10),
    Kind("later", ("a/shared",), delayed=True),
    Kind("kept", ("a/shared",), batch=200),
)
# Of this topic all is retained; of the other nothing that is acknowledged.
KEPT: Final = "kept"
TRIMMED: Final = "plain"
ALL: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
# How long clients publish while counters are compared, and how often that is tried: a broker may still be healing.
COUNTED_S: Final = 1.0
ROUNDS_MAX: Final = 10
COUNTERS: Final = ("msgInCounter", "storageSize", "numberOfEntries", "totalSize")
TRIMMED_S: Final = 30.0
# Of each subscription that can have several.
CONSUMERS: Final = 2
FAULTS: Final = (3, 6)
COMPACTED: Final = "keyed"
# How long everything may take until it is answered, received and acknowledged, when all faults are over.
REST_S: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What clients do.

    Attributes:
        kinds: of topics, beside those of transactions.
        jobs_per_s: for transactions, in each topic of jobs.
        transactors: how many work in transactions.
        lives: topics that come and go.
    """

    kinds: Sequence[Kind] = KINDS
    jobs_per_s: float = 40.0
    transactors: int = 4
    lives: int = 2


EVERYTHING: Final = Plan()
# All that fits, and nothing else.
OF_TRANSACTIONS: Final = Plan(kinds=(), jobs_per_s=1_000, transactors=32, lives=0)


class Story:
    """One seed."""

    def __init__(self, seed: int, scratch: Path, seconds: float, plan: Plan) -> None:
        self.seed = seed
        self._plan = plan
        self._consumed = (*plan.kinds, *(Kind(topic, (f"{SUBSCRIPTION}/shared",)) for topic in JOBS))
        self.path = scratch / f"{seed}.history"
        self._scratch = scratch
        self._seconds = seconds
        self._chance = random.Random(seed)

    async def play(self) -> None:
        """Play it, and leave its history."""
        with contextlib.closing(History(self.path)) as history, FaultyDisk(self._scratch) as disk:
            brokers = Brokers(self._scratch, disk, history, self._chance)
            try:
                await brokers.start()
                await self._play(brokers, history)
            finally:
                await brokers.close()

    async def _play(self, brokers: Brokers, history: History) -> None:
        run = Run(brokers, history, random.Random(self._chance.random()))
        kinds = self._plan.kinds
        for kind in kinds:
            await self._must(brokers, "PUT", f"{TOPIC_PATH}/{kind.topic}")
        for topic in (*JOBS, *RESULTS):
            await self._must(brokers, "PUT", f"{TOPIC_PATH}/{topic}")
            await self._must(brokers, "POST", f"{TOPIC_PATH}/{topic}/retention", value=ALL)
        if kinds:
            await self._must(brokers, "POST", f"{TOPIC_PATH}/once/deduplicationEnabled", value=True)
            await self._must(brokers, "POST", f"{TOPIC_PATH}/{KEPT}/retention", value=ALL)
        subscribers = [
            Subscriber(run, kind.topic, subscription, number, proxied=number == 1)
            for kind in kinds
            for subscription in kind.subscriptions
            for number in range(CONSUMERS if not subscription.endswith("exclusive") else 1)
        ]
        publishers = [
            Publisher(run, kind, f"{kind.topic}-{number}", proxied=number == 1) for kind in kinds for number in range(2)
        ]
        publishers += [
            Publisher(run, Kind(topic, (), entries_per_s=self._plan.jobs_per_s), f"{topic}-0", proxied=False)
            for topic in JOBS
        ]
        brokers.cut_lines = run.cut_lines
        brokers.slow_readers = lambda seconds: _pause(subscribers, seconds, run.chance)
        work = [asyncio.ensure_future(one.work()) for one in subscribers]
        work += [asyncio.ensure_future(one.work()) for one in publishers]
        for number in range(self._plan.transactors):
            one = Transactor(run, f"txn-{number}", lambda: brokers.cluster.brokers, proxied=number == 1)
            work.append(asyncio.ensure_future(one.work()))
        work += [asyncio.ensure_future(Auditor(run, topic, resumes=not kinds).work()) for topic in RESULTS]
        churn = [
            asyncio.ensure_future(Lives(run, brokers.http, history, f"life-{one}", partitioned=one == 1).work())
            for one in range(self._plan.lives)
        ]
        if kinds:
            churn.append(asyncio.ensure_future(self._administer(brokers, run)))
        try:
            await self._happen(brokers)
            run.sending = False
            await asyncio.gather(*churn)
            await self._await_answers(publishers, work)
            await self._await_backlogs(brokers, work)
            if kinds:
                await self._count(brokers, run, publishers, work)
            for subscription, messages in (await self._await_backlogs(brokers, work)).items():
                history.add("backlog", subscription, messages)
            if kinds:
                await self._compact(brokers)
                history.add("compacted", COMPACTED, await read_compacted(run, COMPACTED))
                history.add("retained", KEPT, await read_places(run, KEPT), await self._counters(brokers, KEPT))
                await self._trim(brokers, history)
            for topic in RESULTS:
                found = [(name, position.entry_id) for name, position in await read_results(run, topic)]
                history.add("results", topic, found)
        finally:
            run.ending = True
            for client in list(run.clients):
                client.close()
            await asyncio.wait(work, timeout=30)
            for task in work:
                task.cancel()
        for task in work:
            if task.done() and not task.cancelled():
                task.result()

    async def _happen(self, brokers: Brokers) -> None:
        """Let the faults of this seed happen, in its time."""
        faults = self._chance.sample(brokers.faults, self._chance.randint(*FAULTS))
        end = time.monotonic() + self._seconds
        for fault in faults:
            await asyncio.sleep(self._seconds / (len(faults) + 1) * self._chance.uniform(0.2, 1.0))
            await brokers.happen(fault)
        await asyncio.sleep(max(end - time.monotonic(), 1.0))

    async def _administer(self, brokers: Brokers, run: Run) -> None:
        """Compact one topic, and trim another, all the time. What fails is asked for again."""
        while run.sending:
            await brokers.http("PUT", f"{TOPIC_PATH}/{COMPACTED}/compaction")
            await brokers.http("POST", f"{TOPIC_PATH}/{KEPT}/trim")
            await asyncio.sleep(0.3)

    async def _count(
        self, brokers: Brokers, run: Run, publishers: Sequence[Publisher], work: Sequence[asyncio.Future[None]]
    ) -> None:
        """Publish for a moment without faults, between two looks at the counters of all topics."""
        for _ in range(ROUNDS_MAX):
            opened = run.opened
            for kind in KINDS:
                run.history.add("counting", kind.topic, await self._counters(brokers, kind.topic))
            run.sending = True
            await asyncio.sleep(COUNTED_S)
            run.sending = False
            await self._await_answers(publishers, work)
            counters = {kind.topic: await self._counters(brokers, kind.topic) for kind in KINDS}
            if run.opened == opened:  # Else a broker has started again, and counts anew.
                for topic, found in counters.items():
                    run.history.add("counted", topic, found)
                return

    async def _counters(self, brokers: Brokers, topic: str) -> dict[str, int]:
        """What is counted of a topic."""
        found: dict[str, int] = {}
        for path in ("stats", "internalStats"):
            deadline = time.monotonic() + REST_S
            status, answer = await brokers.http("GET", f"{TOPIC_PATH}/{topic}/{path}")
            while status != 200:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no {path} of {topic}: {status} {answer}")
                await asyncio.sleep(0.2)
                status, answer = await brokers.http("GET", f"{TOPIC_PATH}/{topic}/{path}")
            found |= {name: answer[name] for name in COUNTERS if name in answer}
        return found

    async def _trim(self, brokers: Brokers, history: History) -> None:
        """All of it is acknowledged, and nothing retains it: wait until it is gone."""
        entries, deadline = -1, time.monotonic() + TRIMMED_S
        while entries and time.monotonic() < deadline:
            await brokers.http("POST", f"{TOPIC_PATH}/{TRIMMED}/trim")
            entries = (await self._counters(brokers, TRIMMED))["numberOfEntries"]
            await asyncio.sleep(0.1)
        history.add("trimmed", TRIMMED, entries)

    @staticmethod
    async def _await_answers(publishers: Sequence[Publisher], work: Sequence[asyncio.Future[None]]) -> None:
        await _until(lambda: not any(one.pending for one in publishers), "SENDs stay unanswered", work)

    async def _compact(self, brokers: Brokers) -> None:
        """Compact a topic once more, all of it."""
        path, state = f"{TOPIC_PATH}/{COMPACTED}/compaction", "NOT_RUN"
        deadline = time.monotonic() + REST_S
        while state != "SUCCESS":
            if state != "RUNNING":
                await brokers.http("PUT", path)
            await asyncio.sleep(0.2)
            status, answer = await brokers.http("GET", path)
            state = answer["status"] if status == 200 else "ERROR"
            if time.monotonic() > deadline:
                raise TimeoutError(f"{COMPACTED} is not compacted {REST_S:g} s after the last fault: {answer}")

    async def _await_backlogs(self, brokers: Brokers, work: Sequence[asyncio.Future[None]]) -> dict[str, int]:
        """Wait until nothing is left to deliver; returns what is, of each subscription."""
        left = {f"{kind.topic}/{subscription}": -1 for kind in self._consumed for subscription in kind.subscriptions}
        deadline = time.monotonic() + REST_S
        while any(left.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.3)
            _raise_failed(work)
            for kind in self._consumed:
                status, stats = await brokers.http("GET", f"{TOPIC_PATH}/{kind.topic}/stats")
                if status == 200:
                    for subscription in kind.subscriptions:
                        name = subscription.partition("/")[0]
                        left[f"{kind.topic}/{subscription}"] = stats["subscriptions"][name]["msgBacklog"]
        return left

    @staticmethod
    async def _must(brokers: Brokers, method: str, path: str, *, value: object = None) -> None:
        status, answer = await brokers.http(method, path, value)
        assert status in {200, 204}, (method, path, status, answer)


def _pause(subscribers: list[Subscriber], seconds: float, chance: random.Random) -> None:
    for one in subscribers:
        if chance.random() < 0.5:
            one.paused_until = time.monotonic() + seconds


async def _until(done: Callable[[], bool], otherwise: str, work: Sequence[asyncio.Future[None]]) -> None:
    deadline = time.monotonic() + REST_S
    while not done():
        _raise_failed(work)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} {REST_S:g} s after the last fault")
        await asyncio.sleep(0.1)


def _raise_failed(work: Sequence[asyncio.Future[None]]) -> None:
    for task in work:
        if task.done():
            task.result()


def main() -> int:
    """Play seeds until the time is over; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=6.0, help="of faults in each seed")
    parser.add_argument("--seed", type=int, help="only this one; else from a random one on")
    parser.add_argument("--transactions", action="store_true", help="nothing but transactions, as many as there can be")
    parser.add_argument("--keep", type=Path, help="a directory for the histories; else only wrong ones are kept")
    parser.add_argument("--write", action="store_true", help=f"add to the table of faults in {table.PAGE}")
    options = parser.parse_args()
    if CANNOT is not None:
        print(CANNOT, file=sys.stderr)
        return 0
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    deadline = time.monotonic() + 60 * options.minutes
    results: list[Result] = []
    while not results or (options.seed is None and time.monotonic() < deadline):
        plan = OF_TRANSACTIONS if options.transactions else EVERYTHING
        result = play(seed + len(results), options.seconds, options.keep, plan)
        results.append(result)
        if result.violations:
            return 1
    total = table.sums(results)
    print(f"{len(results)} seeds: {total.messages} acknowledged messages in {total.entries} entries, "
          f"{sum(total.faults.values())} faults, 0 violations")  # fmt: skip
    if options.write:
        table.add(results)
    return 0


def play(seed: int, seconds: float, keep: Path | None, plan: Plan = EVERYTHING) -> Result:
    """Play one seed and check its history; what is wrong is printed, with the file."""
    with tempfile.TemporaryDirectory(prefix="jepsen-") as name:
        scratch = Path(name)
        story = Story(seed, scratch, seconds, plan)
        failure = ""
        try:
            asyncio.run(story.play())
        except (AssertionError, TimeoutError, RuntimeError, SubprocessError) as error:
            failure = f"{type(error).__name__}: {error}"
        result = check(read(story.path))
        result.violations[:0] = [failure] if failure else []  # What follows from it comes after it.
        if result.violations or keep is not None:
            where = keep or Path(tempfile.gettempdir()) / f"jepsen-{seed}"
            where.mkdir(parents=True, exist_ok=True)
            shutil.copy(story.path, where)
            if result.violations:
                for log in scratch.glob("*.log"):
                    shutil.copy(log, where)
                print(f"{len(result.violations)} violations; the history is in {where}; --seed {seed} plays it again")
                print(*result.violations[:LISTED_MAX], sep="\n", file=sys.stderr)
    said = ", ".join(f"{name} {count}" for name, count in sorted(Counter(result.faults).items()))
    print(f"seed {seed}: {result.messages} messages in {result.entries} entries, {result.again} of {result.received} "
          f"received again, {result.transactions} transactions; {said}", flush=True)  # fmt: skip
    return result


if __name__ == "__main__":
    sys.exit(main())
