# SPDX-License-Identifier: Apache-2.0
"""A stream whose driver is killed again and again, and at times its broker or its executors: into files, or a topic.

What must hold in the end: every message is in the files, or in the topic, exactly once; in files, those of a partition
in their order; and the durable subscription has no backlog after one further run that finds nothing.

    python tests/spark/driver_kills.py --messages 1000000 --kills 20
    python tests/spark/driver_kills.py --into topic --partitions 64 --messages 1000000 --kills 20
    python tests/spark/driver_kills.py --into topic --partitions 64 --messages 1000000 --kills 20 --peer pulsar

Into a topic, tasks fail in the middle by design, every start has another number of tasks, and speculation is on. With
`--cluster`, a standalone cluster with two workers runs it, whose executors are killed, too. With `--peer pulsar` the
broker is Apache Pulsar's, whose topics are chains of small ledgers.

In each micro-batch of the last two runs, partitions must have been read in step, and the lag must be what was left.

Why a program: it takes minutes, and an interpreter that is killed cannot be the one that checks. `make spark` runs it.
Where the moments of the kills come from: `--seed`; it is printed, and repeats them as far as two machines agree.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlparse

import numpy as np
import pulsar
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql.streaming.query import StreamingQuery

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.pulsar_peer import PulsarProcess  # noqa: E402
from penstock.spark.audit import audit  # noqa: E402 -- run as a program, from anywhere
from penstock.spark.client.cluster import Cluster  # noqa: E402
from penstock.spark.client.message_id import EARLIEST, MessageId  # noqa: E402
from penstock.spark.client.reader import ReadOptions, read  # noqa: E402
from penstock.spark.offsets import from_json  # noqa: E402
from penstock.spark.options import parse_endpoint  # noqa: E402
from penstock.testing.process import BrokerProcess  # noqa: E402
from tests.spark.numbered import end_of  # noqa: E402
from tests.spark.standalone import StandaloneCluster  # noqa: E402
from tests.spark.topics import ask, path_of  # noqa: E402

TOPIC: Final = "persistent://public/default/killed"
COPY: Final = f"{TOPIC}-copy"
COPY_PARTITIONS: Final = 4
FILES, INTO_TOPIC = "files", "topic"
PULSAR: Final = "pulsar"
# So that each partition of a million messages has several ledgers, and keeps those that were read.
LEDGERS: Final = {
    "brokerDeduplicationEnabled": "true",
    "defaultRetentionSizeInMB": "-1",
    "defaultRetentionTimeInMinutes": "-1",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
SUBSCRIPTION: Final = "killed-again"
# A task in so many fails in the middle, before Spark runs it again.
TASKS_FAILING: Final = 10
VALUE_BYTES: Final = 1024
# Spark gives a Python process that plans a stream ten seconds to start, which no setting changes.
NOT_STARTED: Final = "Python worker failed to connect back"
STARTS_MAX: Final = 5
STARTED: Final = "the query runs"
PROGRESS: Final = "progress.jsonl"
# Of a run, from its first sign of life on: the kill comes somewhere in it.
KILL_WITHIN_S: Final = 6.0
# In which a micro-batch is done: on a busy machine one of 20,000 rows takes 20 s.
BATCH_TIMEOUT_S: Final = 180
# What partitions have read of themselves may differ by so much, and the lag from what is left.
APART_MAX: Final = 0.10
LAG_PART_MAX: Final = 0.05
# It is estimated from entries, and looked at until so little is left that an entry of each partition decides.
LAG_FROM_PART: Final = 0.25


def main() -> int:
    """Publish, kill, finish, check; returns the exit status."""
    arguments = _arguments()
    if arguments.drive is not None:
        url, directory = arguments.drive
        _drive(url, directory, arguments)
        return 0
    chance = random.Random(arguments.seed)
    executor_kills = arguments.executor_kills if arguments.cluster else 0
    print(f"seed {arguments.seed}: {arguments.messages:,} messages, {arguments.kills} kills of the driver, "
          f"{arguments.broker_kills} of the broker, {executor_kills} of executors")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as scratch:
        where = Path(scratch)
        with (
            _broker(where, arguments.peer) as broker,
            StandaloneCluster(where) if arguments.cluster else contextlib.nullcontext() as cluster,
        ):
            ask(broker.admin_url, "PUT", f"{path_of(TOPIC)}/partitions", arguments.partitions)
            ask(broker.admin_url, "PUT", f"{path_of(COPY)}/partitions", COPY_PARTITIONS)
            _publish(broker.url, arguments.messages)
            steps = Steps(broker, where)
            arguments.per_batch = max(1000, arguments.messages // 50)
            kills = Kills(broker, cluster, where, arguments, chance)
            kinds = ["driver"] * arguments.kills + ["broker"] * arguments.broker_kills + ["executor"] * executor_kills
            chance.shuffle(kinds)
            for number, kind in enumerate(kinds, 1):
                kills.killed_run(kind, number)
            for what in ("to the end", "once more, with nothing to read"):
                print(f"running {what}", flush=True)
                kills.run_through()
            into_topic = arguments.into == INTO_TOPIC
            found = _problems_in_copy(broker, arguments) if into_topic else _problems_in_files(where / "out", arguments)
            problems = [*found, *steps.problems(), *_backlogs(broker, arguments.partitions)]
    for problem in problems:
        print(f"WRONG: {problem}")
    if not problems:
        print("every message once, no backlog")
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--broker-kills", type=int, default=3)
    parser.add_argument("--executor-kills", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--into", choices=(FILES, INTO_TOPIC), default=FILES)
    parser.add_argument("--peer", choices=[PULSAR], help="put Apache Pulsar under it")
    parser.add_argument("--cluster", action="store_true", help="a standalone cluster of two workers")
    parser.add_argument("--master", default="", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--per-batch", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--tasks", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--drive", nargs=2, metavar=("URL", "DIRECTORY"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _broker(where: Path, peer: str | None) -> BrokerProcess | PulsarProcess:
    """What to start, on a directory of its own."""
    if peer == PULSAR:
        return PulsarProcess(where / "data", LEDGERS)
    config = where / "broker.conf"
    # Or the broker may delete the partitions before the first driver has got as far as to subscribe.
    lines = ("brokerDeleteInactiveTopicsEnabled=false", "brokerDeduplicationEnabled=true")
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return BrokerProcess(where / "data", ["--config", str(config)])


# -- the child: a driver ---------------------------------------------------------------------------------------------


def _drive(url: str, directory: str, arguments: argparse.Namespace) -> None:
    """Read what there is, into files or a topic, and end."""
    from penstock.spark.session import SETTINGS, local_session

    scratch = Path(directory, "spark")
    scratch.mkdir(exist_ok=True)
    # A driver that is killed while it writes its first offsets leaves a temporary file, at which Spark 4.3 would stop.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        **SETTINGS,
        "spark.local.dir": str(scratch),
        "spark.executor.memory": "700m",
        "spark.sql.shuffle.partitions": "2",
        "spark.speculation": "true",
        "spark.task.maxFailures": "10",
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Djava.io.tmpdir={scratch}",
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    }
    # Where it runs in this process, Spark gives up at the first task that fails, unless the master says otherwise.
    spark = local_session("driver-kills", settings=settings, master=arguments.master or "local[2,10]")
    options = {
        "service.url": url,
        "topic": TOPIC,
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": str(arguments.per_batch),
        "predefinedSubscription": SUBSCRIPTION,
        "minPartitions": str(arguments.tasks),
        "provenance": "true",
    }
    read = spark.readStream.format("pulsar").options(**options).load()
    if arguments.into == INTO_TOPIC:
        rows = read.selectExpr("substring(value, 1, 10) value", "substring(value, 8, 3) __key", "__provenance")
        rows = rows.mapInArrow(_failing_at_times, rows.schema)
        writer = rows.writeStream.format("pulsar").options(**{"service.url": url, "topic": COPY})
    else:
        rows = read.selectExpr("cast(substring(value, 1, 10) as string) number", "__topic topic")
        writer = rows.writeStream.format("parquet").option("path", f"{directory}/out")
    query = writer.option("checkpointLocation", f"{directory}/state").trigger(availableNow=True).start()
    print(STARTED, flush=True)
    query.awaitTermination()
    _note_progress(query, Path(directory))
    spark.stop()


def _note_progress(query: StreamingQuery, directory: Path) -> None:
    """Add the end and the lag of each micro-batch to a file, a line each."""
    with (directory / PROGRESS).open("a", encoding="utf-8") as file:
        for one in query.recentProgress:
            source = one.sources[0]
            if source.endOffset and source.latestOffset:
                file.write(f'{{"end": {source.endOffset}, "latest": {source.latestOffset}}}\n')


def _failing_at_times(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on; some attempts of tasks fail in the middle."""
    chance = random.SystemRandom()
    fails_at = chance.randrange(3 * TASKS_FAILING)  # the first three batches of rows have most of a task
    for number, batch in enumerate(batches):
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        if number == fails_at:
            raise RuntimeError("a cosmic ray")
        yield batch.slice(half)


class Kills:
    """Starts drivers and kills what runs."""

    def __init__(
        self,
        broker: BrokerProcess | PulsarProcess,
        cluster: StandaloneCluster | None,
        directory: Path,
        arguments: argparse.Namespace,
        chance: random.Random,
    ) -> None:
        self._broker = broker
        self._cluster = cluster
        self._directory = directory
        self._arguments = arguments
        self._chance = chance

    def killed_run(self, kind: str, number: int) -> None:
        """Start a driver; some time later kill it, or first the broker, which then comes back, or an executor."""
        driver = self._start()
        try:
            after_s = self._chance.uniform(0, KILL_WITHIN_S)
            _await_start(driver)
            threading.Event().wait(after_s)
            print(f"{number}: kill -9 of the {kind}, {after_s:.2f} s after its query started", flush=True)
            if kind == "broker":
                port, admin_port = self._broker.port, self._broker.admin_port
                self._broker.kill()
                self._broker.start(port=port, admin_port=admin_port)
            if kind == "executor" and self._cluster is not None:
                self._cluster.kill_executor(self._chance)
            if kind != "driver":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    print(f"   the driver ended with {driver.wait(KILL_WITHIN_S)}", flush=True)
        finally:
            _kill(driver)

    def run_through(self) -> None:
        """Let a driver run to its end; start it again if it was Spark that did not wait for a Python process."""
        log, status, said = self._directory / "driver.log", 0, ""
        for _ in range(STARTS_MAX):
            before = log.stat().st_size if log.exists() else 0
            driver = self._start()
            try:
                _await_start(driver)
                status = self._await_end(driver)
            finally:
                _kill(driver)
            if not status:
                return
            said = log.read_bytes()[before:].decode(errors="replace")
            if NOT_STARTED not in said:
                break
            print("   Spark did not wait for a Python process to start; once more", flush=True)
        raise SystemExit(f"the driver ended with {status}:\n{said[-4000:]}")

    def _await_end(self, driver: subprocess.Popen[str]) -> int:
        """Wait for the driver's end as long as micro-batches are done; return its status. Raises TimeoutExpired."""
        done, before = 0, -1
        while done > before:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return driver.wait(BATCH_TIMEOUT_S)
            done, before = len(list((self._directory / "state/commits").glob("[0-9]*"))), done
        return driver.wait(0)

    def _start(self) -> subprocess.Popen[str]:
        """Start a driver; each has another number of tasks."""
        arguments = self._arguments
        tasks = self._chance.choice([1, 2, 4, 9]) if arguments.into == INTO_TOPIC else 1
        command = [sys.executable, __file__, "--into", arguments.into, "--per-batch", str(arguments.per_batch)]
        command += ["--tasks", str(tasks), "--master", "" if self._cluster is None else self._cluster.url]
        command += ["--drive", self._broker.url, str(self._directory)]
        with (self._directory / "driver.log").open("a") as log:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)


def _await_start(driver: subprocess.Popen[str]) -> None:
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.strip() == STARTED:
            return


def _kill(driver: subprocess.Popen[str]) -> None:
    """The driver and its virtual machine; workers end with that."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    if driver.stdout is not None:
        driver.stdout.close()


# -- before and after ------------------------------------------------------------------------------------------------


def _publish(url: str, count: int) -> None:
    """Numbers, each in a message of 1 KiB, over all partitions."""
    began = time.monotonic()
    client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, os.devnull))
    producer = client.create_producer(
        TOPIC,
        block_if_queue_full=True,
        batching_enabled=True,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    rest = b"." * (VALUE_BYTES - 10)
    failed: list[object] = []
    for number in range(count):
        producer.send_async(
            b"%010d" % number + rest, lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None
        )
    producer.flush()
    client.close()
    if failed:
        raise SystemExit(f"{len(failed)} messages were not taken: {failed[0]}")
    print(f"published in {time.monotonic() - began:.0f} s", flush=True)


class Steps:
    """Where all messages are, to say of the end of a micro-batch how much was read and how much is left."""

    def __init__(self, broker: BrokerProcess | PulsarProcess, directory: Path) -> None:
        self._progress = directory / PROGRESS
        with Cluster(parse_endpoint({"service.url": broker.url})) as cluster:
            self._ids = {topic: _ids_in(cluster, topic) for topic in cluster.partitions(TOPIC)}
        self._messages = sum(map(len, self._ids.values()))
        ledgers = max(len(np.unique(ids[:, 0])) for ids in self._ids.values())
        print(f"up to {ledgers} ledgers a partition", flush=True)

    def problems(self) -> Iterator[str]:
        """What is wrong in the progress of the last runs."""
        apart, lag_part = 0.0, 0.0
        lines = self._progress.read_text(encoding="utf-8").splitlines()
        for line in lines:
            said = json.loads(line)
            read, left = self._read_and_left(said["end"])
            apart = max(apart, max(read) - min(read))
            if said["latest"] is None:
                continue  # A driver before this one has planned it.
            messages = said["latest"]["lag"]["messages"]
            if messages is None:
                yield f"the lag is unknown with {left} messages left"
            elif left >= LAG_FROM_PART * self._messages:
                lag_part = max(lag_part, abs(messages - left) / left)
        print(
            f"{len(lines)} micro-batches: partitions at most {apart:.1%} of themselves apart, lag {lag_part:.1%} wrong"
        )
        if apart > APART_MAX:
            yield f"partitions were {apart:.1%} of themselves apart"
        if lag_part > LAG_PART_MAX:
            yield f"the lag was wrong by {lag_part:.1%}"

    def _read_and_left(self, end: Mapping[str, object]) -> tuple[list[float], int]:
        """What part of each partition lies before an offset, and how many messages do not."""
        parts, left = [], 0
        for topic, place in from_json(end).items():
            ids = self._ids[topic]
            done = _before(ids, place)
            parts.append(done / max(1, len(ids)))
            left += len(ids) - done
        return parts, left


def _before(ids: NDArray[np.int64], place: MessageId) -> int:
    """How many of these ids are smaller."""
    ledgers, entries, indexes = ids.T
    in_entry = (entries == place.entry_id) & (indexes < place.batch_index)
    in_ledger = (ledgers == place.ledger_id) & ((entries < place.entry_id) | in_entry)
    return int(((ledgers < place.ledger_id) | in_ledger).sum())


def _ids_in(cluster: Cluster, topic: str) -> NDArray[np.int64]:
    """The ids of all messages, a row each."""
    runs = read(cluster, topic, EARLIEST, end_of(cluster, topic), ReadOptions())
    rows = [np.stack([run.ledger_ids, run.entry_ids, np.maximum(run.batch_indexes, 0)], axis=1) for run in runs]
    return np.concatenate(rows) if rows else np.empty((0, 3), np.int64)


def _problems_in_copy(broker: BrokerProcess | PulsarProcess, arguments: argparse.Namespace) -> Iterator[str]:
    """What is wrong with the topic that was written."""
    with Cluster(parse_endpoint({"service.url": broker.url})) as cluster:
        found = audit(cluster, COPY, [TOPIC])
    print(f"{found.rows:,} rows of {found.compared:,} messages", flush=True)
    if found.missing:
        yield f"{sum(found.missing.values())} messages are not in the topic, the first ones: {found.named}"
    if found.twice:
        yield f"{sum(found.twice.values())} rows are in the topic more than once"
    if found.unnumbered:
        yield f"{found.unnumbered} rows do not say where they were read"
    if found.compared != arguments.messages:
        yield f"{found.compared} messages are in the source, and {arguments.messages} were published"


def _problems_in_files(out: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """What is wrong with the files that the sink says are its own."""
    count = arguments.messages
    seen = bytearray(count)
    last: dict[str, int] = {}
    disorder = 0
    for path in _files(out):
        table = pq.read_table(path, partitioning=None)
        for topic, text in zip(table["topic"].to_pylist(), table["number"].to_pylist(), strict=True):
            number = int(text)
            seen[number] = min(255, seen[number] + 1)
            disorder += number <= last.get(topic, -1)
            last[topic] = number
    missing, twice = seen.count(0), count - seen.count(0) - seen.count(1)
    if missing:
        yield f"{missing} messages are not in the files, the first is {seen.find(0)}"
    if twice:
        yield f"{twice} messages are in the files more than once"
    if disorder:
        yield f"{disorder} messages come before one that was published earlier in their partition"


def _files(out: Path) -> list[Path]:
    """In the order of the batches, as the sink's own log has them: what a killed batch left behind is not in it."""
    log = out / "_spark_metadata"
    names = {path.name for path in log.iterdir() if path.name.split(".")[0].isdigit()}
    compacted = max((int(name.split(".")[0]) for name in names if name.endswith(".compact")), default=-1)
    batches = [f"{compacted}.compact"] if compacted >= 0 else []
    batches += sorted((name for name in names if name.isdigit() and int(name) > compacted), key=int)
    lines = [line for name in batches for line in (log / name).read_text().splitlines()[1:]]
    return [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines]


def _backlogs(broker: BrokerProcess | PulsarProcess, partitions: int) -> Iterator[str]:
    for partition in range(partitions):
        stats = ask(broker.admin_url, "GET", f"{path_of(TOPIC)}-partition-{partition}/stats")
        backlog = stats["subscriptions"][SUBSCRIPTION]["msgBacklog"]
        if backlog:
            yield f"partition {partition} has a backlog of {backlog}"


if __name__ == "__main__":
    sys.exit(main())
