# SPDX-License-Identifier: Apache-2.0
"""A stream from four partitions into Parquet files, whose driver is killed again and again; at times its broker is.

What must hold in the end: the files hold every message exactly once, those of a partition in their order, and the
durable subscription has no backlog after one further run that finds nothing.

    python tests/spark/driver_kills.py --messages 1000000 --kills 20

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

import pulsar
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from penstock.testing.process import BrokerProcess  # noqa: E402 -- run as a program, from anywhere
from tests.spark.topics import ask, path_of  # noqa: E402

TOPIC: Final = "persistent://public/default/killed"
PARTITIONS: Final = 4
SUBSCRIPTION: Final = "into-files"
VALUE_BYTES: Final = 1024
# Spark gives a Python process that plans a stream ten seconds to start, which no setting changes.
NOT_STARTED: Final = "Python worker failed to connect back"
STARTS_MAX: Final = 5
STARTED: Final = "the query runs"
# Of a run, from its first sign of life on: the kill comes somewhere in it.
KILL_WITHIN_S: Final = 6.0
RUN_TIMEOUT_S: Final = 900


def main() -> int:
    """Publish, kill, finish, check; returns the exit status."""
    arguments = _arguments()
    if arguments.drive is not None:
        url, directory = arguments.drive
        _drive(url, directory, arguments.per_batch)
        return 0
    chance = random.Random(arguments.seed)
    print(f"seed {arguments.seed}: {arguments.messages:,} messages, {arguments.kills} kills of the driver, "
          f"{arguments.broker_kills} of the broker")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as scratch:
        where = Path(scratch)
        config = where / "broker.conf"
        # Or the broker may delete the partitions before the first driver has got as far as to subscribe.
        config.write_text("brokerDeleteInactiveTopicsEnabled=false\n", encoding="utf-8")
        with BrokerProcess(where / "data", ["--config", str(config)]) as broker:
            ask(broker.admin_url, "PUT", f"{path_of(TOPIC)}/partitions", PARTITIONS)
            _publish(broker.url, arguments.messages)
            per_batch = max(1000, arguments.messages // 50)
            kinds = ["driver"] * arguments.kills + ["broker"] * arguments.broker_kills
            chance.shuffle(kinds)
            for number, kind in enumerate(kinds, 1):
                _killed_run(kind, number, broker, where, per_batch, chance)
            for what in ("to the end", "once more, with nothing to read"):
                print(f"running {what}", flush=True)
                _run_through(broker, where, per_batch)
            problems = [*_problems_in_files(where / "out", arguments.messages), *_backlogs(broker)]
    for problem in problems:
        print(f"WRONG: {problem}")
    if not problems:
        print("every message once, each partition in order, no backlog")
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--broker-kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--per-batch", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--drive", nargs=2, metavar=("URL", "DIRECTORY"), help=argparse.SUPPRESS)
    return parser.parse_args()


# -- the child: a driver ---------------------------------------------------------------------------------------------


def _drive(url: str, directory: str, per_batch: int) -> None:
    """Read what there is, into files, and end."""
    from penstock.spark.session import local_session

    scratch = Path(directory, "spark")
    scratch.mkdir(exist_ok=True)
    # A driver that is killed while it writes its first offsets leaves a temporary file, at which Spark 4.3 would stop.
    settings = {
        "spark.local.dir": str(scratch),
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Djava.io.tmpdir={scratch}",
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    }
    spark = local_session("driver-kills", settings=settings)
    options = {
        "service.url": url,
        "topic": TOPIC,
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": str(per_batch),
        "predefinedSubscription": SUBSCRIPTION,
    }
    read = spark.readStream.format("pulsar").options(**options).load()
    rows = read.selectExpr("cast(substring(value, 1, 10) as string) number", "__topic topic")
    writer = rows.writeStream.format("parquet").option("path", f"{directory}/out")
    query = writer.option("checkpointLocation", f"{directory}/state").trigger(availableNow=True).start()
    print(STARTED, flush=True)
    query.awaitTermination()
    spark.stop()


def _start(broker: BrokerProcess, directory: Path, per_batch: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--per-batch", str(per_batch), "--drive", broker.url, str(directory)]
    log = (directory / "driver.log").open("a")
    with log:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)


def _killed_run(
    kind: str, number: int, broker: BrokerProcess, directory: Path, per_batch: int, chance: random.Random
) -> None:
    """Start a driver; some time later kill it, or first the broker, which then comes back."""
    driver = _start(broker, directory, per_batch)
    try:
        after_s = chance.uniform(0, KILL_WITHIN_S)
        _await_start(driver)
        threading.Event().wait(after_s)
        print(f"{number}: kill -9 of the {kind}, {after_s:.2f} s after its query started", flush=True)
        if kind == "broker":
            port, admin_port = broker.port, broker.admin_port
            broker.kill()
            broker.start(port=port, admin_port=admin_port)
            with contextlib.suppress(subprocess.TimeoutExpired):
                print(f"   the driver ended with {driver.wait(KILL_WITHIN_S)}", flush=True)
    finally:
        _kill(driver)


def _run_through(broker: BrokerProcess, directory: Path, per_batch: int) -> None:
    """Let a driver run to its end; start it again if it was Spark that did not wait for a Python process to start."""
    log, status, said = directory / "driver.log", 0, ""
    for _ in range(STARTS_MAX):
        before = log.stat().st_size if log.exists() else 0
        driver = _start(broker, directory, per_batch)
        try:
            _await_start(driver)
            status = driver.wait(RUN_TIMEOUT_S)
        finally:
            _kill(driver)
        if not status:
            return
        said = log.read_bytes()[before:].decode(errors="replace")
        if NOT_STARTED not in said:
            break
        print("   Spark did not wait for a Python process to start; once more", flush=True)
    raise SystemExit(f"the driver ended with {status}:\n{said[-4000:]}")


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


def _problems_in_files(out: Path, count: int) -> Iterator[str]:
    """What is wrong with the files that the sink says are its own."""
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


def _backlogs(broker: BrokerProcess) -> Iterator[str]:
    for partition in range(PARTITIONS):
        stats = ask(broker.admin_url, "GET", f"{path_of(TOPIC)}-partition-{partition}/stats")
        backlog = stats["subscriptions"][SUBSCRIPTION]["msgBacklog"]
        if backlog:
            yield f"partition {partition} has a backlog of {backlog}"


if __name__ == "__main__":
    sys.exit(main())
