# SPDX-License-Identifier: Apache-2.0
"""`make soak`: two brokers and a proxy for two hours under churn of everything that can be made and left again.

    python -m tests.soak.run [--minutes 120] [--seed 7] [--samples FILE]

The clients are those of `make jepsen`, without its faults: what they were told is kept as a history and checked at the
end. Beside them topics, subscriptions, connections, groups, namespaces, policies, schemas and delayed messages come and
go, at a rate that leaves the machine alone. Twice a minute it is noted what each process holds. When the first tenth is
over, nothing may grow: `BOUNDS` says by how much a figure may seem to. Ends with status 1 if one grows, if the history
is wrong, or if a request of the churn fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.broker.subscriptions.key_ranges import KEYS_CACHED
from penstock.core.errors import PenstockError
from penstock.testing.process import ProxyProcess
from penstock.wire.client import events
from penstock.wire.client.producer import Producer
from tests.jepsen.checker import LISTED_MAX, check
from tests.jepsen.clients import ANSWER_S, PREFIX, WINDOW, Kind, Publisher, Run, Subscriber
from tests.jepsen.cluster import PROXY_SETTINGS
from tests.jepsen.history import History, read
from tests.jepsen.lives import TOPIC_PATH, Lives
from tests.processes.cluster import Cluster
from tests.soak.held import Held
from tests.soak.slopes import slope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.soak.slopes import Slope

BROKERS: Final = 2
EVERY_S: Final = 30.0
# Of the time, before anything is judged: caches fill, and the allocator learns what is needed.
WARM: Final = 0.1
# How much a figure may grow in an hour. The least that an interval admits is compared: noise is no slope.
BOUNDS: Final = {
    "resident MiB": 1.0,
    "descriptors": 1.0,
    "threads": 0.2,
    "tasks": 1.0,
    "budget KiB": 64.0,
    "files": 2.0,
    "disk MiB": 8.0,
}
# A cache that is full after some minutes: one that fills for an hour looks like a leak.
SETTINGS: Final = {"PENSTOCK_TAIL_CACHE_MB": "2"}
KINDS: Final = (
    Kind("steady", ("a/exclusive", "b/shared"), batch=50, entries_per_s=10),
    Kind("keyed", ("a/key_shared",), keys=True, entries_per_s=10),
    Kind("later", ("a/shared",), delayed=True, entries_per_s=5),
    Kind("large", ("a/failover",), chunks=True, entries_per_s=1),
)
# Topics of the churn that exist at once; then the oldest one is deleted.
TOPICS: Final = 40
# How long everything may take until it is answered and received at the end.
REST_S: Final = 60.0
# How long one turn of a kind of churn waits for the next.
PAUSES_S: Final = {"topics": 0.5, "connections": 0.5, "policies": 1.0, "groups": 2.0, "schemas": 2.0, "questions": 2.0}
POLICIES: Final = {
    "retention": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1},
    "publishRate": {"publishThrottlingRateInMsg": 1_000, "publishThrottlingRateInByte": 1_000_000},
    "maxProducers": 5,
}
SCHEMA: Final = {"type": "JSON", "schema": '{"type":"record","name":"r","fields":[]}', "properties": {}}
DONE: Final = frozenset({200, 204})


class Churn:
    """What comes and goes."""

    def __init__(self, run: Run, cluster: Cluster) -> None:
        self.did: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._run = run
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._topics: list[str] = []

    async def work(self, name: str) -> None:
        """Do one kind of it until the run has ended."""
        turn: Callable[[], Awaitable[None]] = getattr(self, name)
        while self._run.sending:
            try:
                await turn()
                self.did[name] += 1
            except (OSError, PenstockError, TimeoutError, AssertionError) as error:
                self.failed[f"{name}: {error}"] += 1
            await asyncio.sleep(PAUSES_S[name])

    async def topics(self) -> None:
        """Create a topic, publish and subscribe to it in each way, and leave without a word; delete the oldest one."""
        number = next(self._numbers)
        topic = f"churn-{number}"
        client = await self._run.connect(topic, proxied=number % 2 == 0)
        try:
            producer = Producer(1, PREFIX + topic, name=f"p-{number}")
            await client.open_producer(producer, timeout_s=ANSWER_S)
            for place in range(self._run.chance.randrange(20)):
                about = producer.metadata(int(time.time() * 1000), place)
                if place % 4 == 0:
                    about.deliver_at_time = int((time.time() + 3_600) * 1000)
                client.connection.send(producer, about, b"x" * 500)
            await client.drain()
            for kind in ("a/exclusive", "b/shared", "c/key_shared"):
                await client.subscribe(
                    Subscriber(self._run, topic, kind, 0, proxied=False).consumer(), timeout_s=ANSWER_S
                )
        finally:
            self._run.close(client)
        self._topics.append(topic)
        if len(self._topics) > TOPICS:
            await self._must(number, "DELETE", f"{TOPIC_PATH}/{self._topics.pop(0)}?force=true")

    async def connections(self) -> None:
        """Connect five times, and close the lines in the middle of a conversation."""
        clients = [await self._run.connect("steady", proxied=number % 2 == 0) for number in range(5)]
        for number, client in enumerate(clients):
            with contextlib.suppress(PenstockError):
                await client.open_producer(Producer(1, PREFIX + "steady", name=""), timeout_s=ANSWER_S)
            if number:
                self._run.close(client)
        self._run.close(clients[0])

    async def policies(self) -> None:
        """Create a namespace, set its policies, and those of a topic there, and delete both."""
        number = next(self._numbers)
        namespace, path = f"n-{number}", f"/admin/v2/namespaces/public/n-{number}"
        await self._must(number, "PUT", path)
        await self._must(number, "PUT", f"/admin/v2/persistent/public/{namespace}/t")
        for name, value in POLICIES.items():
            await self._must(number, "POST", f"/admin/v2/persistent/public/{namespace}/t/{name}", value)
        await self._must(number, "POST", f"{path}/retention", POLICIES["retention"])
        await self._must(number, "DELETE", f"/admin/v2/persistent/public/{namespace}/t?force=true")
        await self._must(number, "DELETE", path)

    async def groups(self) -> None:
        """Create a resource group, give a namespace to it, take it away, and delete it."""
        number = next(self._numbers)
        group = f"g-{number}"
        await self._must(number, "PUT", f"/admin/v2/resourcegroups/{group}", {"publishRateInMsgs": 10_000})
        await self._must(number, "POST", f"/admin/v2/namespaces/public/default/resourcegroup/{group}")
        await asyncio.sleep(PAUSES_S["groups"])
        await self._must(number, "DELETE", "/admin/v2/namespaces/public/default/resourcegroup")
        await self._must(number, "DELETE", f"/admin/v2/resourcegroups/{group}")

    async def schemas(self) -> None:
        """Give a topic a schema, and delete it."""
        number = next(self._numbers)
        path = f"/admin/v2/schemas/public/default/schema-{number}"
        await self._must(number, "PUT", f"{TOPIC_PATH}/schema-{number}")
        await self._must(number, "POST", f"{path}/schema", SCHEMA)
        await self._must(number, "DELETE", f"{path}/schema")
        await self._must(number, "DELETE", f"{TOPIC_PATH}/schema-{number}?force=true")

    async def questions(self) -> None:
        """Ask what people and dashboards ask."""
        number = next(self._numbers)
        for path in (TOPIC_PATH, f"{TOPIC_PATH}/steady/stats", "/admin/v2/namespaces/public", "/healthz"):
            await self._must(number, "GET", path)

    async def _must(self, number: int, method: str, path: str, value: object = None) -> None:
        # One broker after the other; but who has made something asks the same one to delete it, since others hear of
        # it a moment later.
        status, answer = await asyncio.to_thread(self._cluster.http, number % BROKERS, method, path, value)
        assert status in DONE, f"{method} {path.translate(_NO_DIGITS)}: {status} {answer}"


_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


class Soak:
    """One run. It has the ports that the clients ask for."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self._scratch = scratch
        self._chance = random.Random(seed)
        self._cluster = Cluster(scratch / "data", BROKERS, environment=SETTINGS)
        config = scratch / "proxy.conf"
        config.write_text(PROXY_SETTINGS)
        self._config = config
        self._proxy: ProxyProcess | None = None
        self.history = scratch / "history"

    @property
    def any_broker(self) -> int:
        return self._cluster.port + self._chance.randrange(BROKERS)

    @property
    def proxy(self) -> int | None:
        return None if self._proxy is None else self._proxy.port

    async def last(self, seconds: float, note: Callable[[dict[str, Any]], None]) -> Churn:
        """Let it run so long; what is held is noted twice a minute."""
        self._cluster.start()
        with self._cluster, contextlib.closing(History(self.history)) as history:
            self._proxy = ProxyProcess(
                f"pulsar://127.0.0.1:{self._cluster.port}",
                ["--config", str(self._config)],
                log_path=self._scratch / "proxy.log",
            )
            self._proxy.start()
            with self._proxy:
                return await self._run(Run(self, history, self._chance), seconds, note)

    async def _run(self, run: Run, seconds: float, note: Callable[[dict[str, Any]], None]) -> Churn:
        assert self._proxy is not None
        for kind in KINDS:
            self._cluster.http(0, "PUT", f"{TOPIC_PATH}/{kind.topic}")
        for owner in range(BROKERS):
            await _fill_cache(run, self._topic_of(owner))
        churn = Churn(run, self._cluster)
        publishers = [Publisher(run, kind, kind.topic, proxied=place % 2 == 0) for place, kind in enumerate(KINDS)]
        subscribers = [
            Subscriber(run, kind.topic, subscription, number, proxied=number == 1)
            for kind in KINDS
            for subscription in kind.subscriptions
            for number in range(1 if subscription.endswith("exclusive") else 2)
        ]
        lives = [Lives(run, self._http, run.history, f"life-{one}", partitioned=one == 1) for one in range(2)]
        work = [asyncio.ensure_future(one.work()) for one in publishers]
        work += [asyncio.ensure_future(one.work()) for one in subscribers]
        coming = [asyncio.ensure_future(churn.work(name)) for name in PAUSES_S]
        coming += [asyncio.ensure_future(one.work(pause_s=1.0)) for one in lives]
        held = Held(self._cluster, self._proxy, self._scratch / "data")
        begun = time.monotonic()
        try:
            while (passed_s := time.monotonic() - begun) < seconds:
                note({"seconds": round(passed_s, 1), "did": dict(churn.did), **await asyncio.to_thread(held.look)})
                await asyncio.sleep(min(EVERY_S, seconds / 100))
                for task in (*work, *coming):
                    if task.done():
                        task.result()
            run.sending = False
            await asyncio.wait(coming)
            await self._note_backlogs(run, publishers)
        finally:
            run.sending, run.ending = False, True
            for client in list(run.clients):
                client.close()
            await asyncio.wait([*work, *coming], timeout=30)
        return churn

    def _topic_of(self, broker: int) -> str:
        """A topic that this broker serves."""
        url = f"pulsar://127.0.0.1:{self._cluster.port + broker}"
        for number in itertools.count():
            topic = f"many-keys-{number}"
            path = f"/lookup/v2/topic/persistent/public/default/{topic}"
            if self._cluster.http(0, "GET", path)[1]["brokerUrl"] == url:
                return topic
        raise AssertionError

    async def _note_backlogs(self, run: Run, publishers: Sequence[Publisher]) -> None:
        """Wait until everything is answered and delivered; what is not is in the history."""
        left: dict[str, int] = {}
        deadline = time.monotonic() + REST_S

        def is_over() -> bool:
            return bool(left) and not any(left.values()) and not any(one.pending for one in publishers)

        while not is_over() and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            for kind in KINDS:
                _, stats = await self._http("GET", f"{TOPIC_PATH}/{kind.topic}/stats")
                for subscription in kind.subscriptions:
                    name = subscription.partition("/")[0]
                    left[f"{kind.topic}/{subscription}"] = stats["subscriptions"][name]["msgBacklog"]
        for subscription, messages in left.items():
            run.history.add("backlog", subscription, messages)

    async def _http(self, method: str, path: str, value: object = None) -> tuple[int, Any]:
        return await asyncio.to_thread(self._cluster.http, 0, method, path, value)


async def _fill_cache(run: Run, topic: str) -> None:
    """Publish as many keys as a broker remembers hashes of: at the rate of the churn they would take an hour."""
    async with await run.connect(topic, proxied=False) as client:
        producer = Producer(1, PREFIX + topic, name="many-keys")
        await client.open_producer(producer, timeout_s=ANSWER_S)
        consumer = Subscriber(run, topic, "a/key_shared", 0, proxied=False).consumer()
        await client.subscribe(consumer, timeout_s=ANSWER_S)
        left = sent = 0
        while sent < KEYS_CACHED or left:
            while sent < KEYS_CACHED and left < WINDOW:
                about = producer.metadata(int(time.time() * 1000), sent)
                about.partition_key = f"key-{sent}"
                client.connection.send(producer, about, b"")
                sent, left = sent + 1, left + 1
            await client.drain()
            event = await client.next_event()
            if isinstance(event, events.Message):
                client.connection.acknowledge(consumer, [event.position])
                left -= 1
        await client.drain()
        run.clients.discard(client)


def slopes(samples: Sequence[dict[str, Any]]) -> dict[tuple[str, str], tuple[Slope, float]]:
    """The slope of each figure of each process after the warm part, and its mean."""
    warm = [sample for sample in samples if sample["seconds"] >= WARM * samples[-1]["seconds"]]
    hours = [sample["seconds"] / 3_600 for sample in warm]
    series: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in warm:
        for who, figures in sample["held"].items():
            for figure, value in figures.items():
                series[who, figure].append(value)
    return {key: (slope(hours, values), sum(values) / len(values)) for key, values in series.items()}


def report(found: dict[tuple[str, str], tuple[Slope, float]]) -> list[str]:
    """Print a table; returns what grows."""
    print("\n| who | figure | mean | per hour | 95 % interval | bound |\n|---|---|---|---|---|---|")
    growing = []
    for (who, figure), (one, mean) in sorted(found.items()):
        bound = BOUNDS[figure]
        grows = one.low > bound
        print(f"| {who} | {figure} | {mean:,.1f} | {one.per_hour:+.2f} | {one.low:+.2f} to {one.high:+.2f} | "
              f"{bound:g}{' **grows**' if grows else ''} |")  # fmt: skip
        if grows:
            growing.append(f"{figure} of {who} grow by at least {one.low:.2f} an hour")
    return growing


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=Path, help="keep the samples here, one JSON object a line")
    options = parser.parse_args()
    samples: list[dict[str, Any]] = []

    def note(sample: dict[str, Any]) -> None:
        samples.append(sample)
        if options.samples is not None:
            with options.samples.open("a") as file:
                print(json.dumps(sample), file=file)

    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        soak = Soak(Path(name), options.seed)
        churn = asyncio.run(soak.last(60 * options.minutes, note))
        result = check(read(soak.history))
    wrong = [*report(slopes(samples)), *result.violations[:LISTED_MAX]]
    wrong += [f"{count} times {what}" for what, count in churn.failed.items()]
    spent = sum(os.times()[:2])
    print(f"\n{result.messages} acknowledged messages, {dict(churn.did)}, {spent:.0f} s of processor for the clients")
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
