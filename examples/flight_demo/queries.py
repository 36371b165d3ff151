# SPDX-License-Identifier: Apache-2.0
"""Spark's side of the demo: a session that is quiet and leaves nothing behind, and streaming queries that are watched.

Where: `analysis` runs its queries in it, one after the other, and draws what `follow` tells it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.flight_demo.findings import Lag
from penstock.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS: Final = {
    "spark.driver.memory": "1g",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}
# A minute of work does not pay for the compiler's second stage, nor do two cores for a collector with threads of its
# own: a third of the processor's time.
JAVA_OPTIONS: Final = "-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir="
LOOK_EVERY_S: Final = 0.25
END_TIMEOUT_S: Final = 20.0
MS_PER_S: Final = 1000


@contextmanager
def session(directory: Path, log: Path) -> Iterator[SparkSession]:
    """A session that keeps its files in `directory` and complains to `log`; afterwards its virtual machine is gone."""
    interrupt = signal.getsignal(signal.SIGINT)
    places = {
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS}{directory}",
    }
    complaints = logging.FileHandler(log)
    logging.getLogger().addHandler(complaints)
    with _complaints_to(log):
        spark = local_session("penstock-demo", settings={**SETTINGS, **places})
    # Spark's own handler asks the virtual machine to cancel jobs, in the midst of whatever was being asked of it.
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield spark
    finally:
        _end(spark)
        logging.getLogger().removeHandler(complaints)
        complaints.close()


def _end(spark: SparkSession) -> None:
    """Stop a session, and wait until its virtual machine and all that this has started are gone."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 -- there is no public way to wait for its end
    workers = _started_by(gateway.proc.pid)
    spark.stop()
    gateway.shutdown()
    # It ends when its standard input does, which else would be when this process does.
    gateway.proc.stdin.close()
    gateway.proc.wait(END_TIMEOUT_S)
    # One that waits for a broker, because it was interrupted, does not notice that nobody waits for it.
    for pid in workers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _started_by(pid: int) -> list[int]:
    """All processes below one, as the kernel knows them; none where there is no /proc."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in children.read_text().split()]
    return found + [below for child in found for below in _started_by(child)]


@contextmanager
def _complaints_to(log: Path) -> Iterator[None]:
    """Have processes that are started now write their standard error to a file: it would run through the screen."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


# -------------------------------------------------------------------------------------------------- streaming queries


@dataclass(slots=True)
class Progress:
    """How far a streaming query has come."""

    batches: list[tuple[int, float]] = field(default_factory=list)  # rows and seconds of each
    lags: list[Lag] = field(default_factory=list)  # at the end of each
    rows: int = 0
    late_rows: int = 0  # dropped, since the watermark had passed them
    watermark: str = ""  # as Spark writes it: 2013-12-31T12:00:00.000Z

    @property
    def behind(self) -> int:
        """Messages of the topics that the last batch left."""
        return self.lags[-1].messages if self.lags else 0

    @property
    def rows_per_s(self) -> float:
        """The rate of the last batch that had rows."""
        return next((rows / max(elapsed_s, 0.001) for rows, elapsed_s in reversed(self.batches) if rows), 0.0)

    def add(self, batch: dict[str, Any]) -> None:
        """Take in what Spark reports of a micro-batch."""
        self.batches.append((batch["numInputRows"], batch.get("batchDuration", 0) / MS_PER_S))
        self.rows += batch["numInputRows"]
        self.late_rows += sum(state.get("numRowsDroppedByWatermark", 0) for state in batch["stateOperators"])
        self.watermark = batch.get("eventTime", {}).get("watermark", self.watermark)
        self.lags.append(lag_of(batch["sources"]))


def lag_of(sources: list[dict[str, Any]]) -> Lag:
    """How far a batch was behind its topics, as the sources report it; one that is a directory reports none."""
    latest = [source.get("latestOffset") for source in sources]
    said = [one["lag"] for one in latest if isinstance(one, dict) and "lag" in one]
    return Lag(sum(one["messages"] for one in said), max((one["seconds"] or 0.0 for one in said), default=0.0))


def follow(query: StreamingQuery, draw: Callable[[Progress], None]) -> Progress:
    """Draw how a query gets on until it ends. Raises StreamingQueryException when it failed."""
    progress = Progress()
    active = True
    while active:
        # Waiting here and not in Spark, so that Ctrl-C does not break off a conversation with the virtual machine.
        time.sleep(LOOK_EVERY_S)
        active = query.isActive
        for batch in query.recentProgress[len(progress.batches) :]:
            progress.add(json.loads(batch.json))
        draw(progress)
    failure = query.exception()
    if failure is not None:
        raise failure
    return progress
