# SPDX-License-Identifier: Apache-2.0
"""Start-up and memory with many retained entries: nothing may grow with what is stored.

    python -m benchmarks.retained --entries 1000000 10000000 --topics 1000

For each size: fills a data directory through the log itself (no broker: that would take minutes), then measures from
process start to the ready line, and the broker's resident memory, after a clean stop and after kill -9 in the middle
of publishing. The last entry of a topic is read back each time, so that a fast start that forgot something would show.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.process import usage
from penstock.net.clock import SystemClock
from penstock.storage.catalog import Catalog
from penstock.storage.directory import DataDirectory, open_data_directory
from penstock.storage.entry_log import AppendRun, EntryLog, LogLimits
from penstock.storage.files import OsFiles
from penstock.testing.client import EARLIEST, RawClient, entry
from penstock.testing.process import BrokerProcess

PAYLOAD_BYTES = 100
ENTRIES_PER_RUN = 1_000
ENTRIES_PER_GROUP = 5  # interleaved: each run holds a few entries of many topics
STARTS = 3


def topic_name(number: int) -> str:
    """The name of one of the topics."""
    return f"persistent://public/default/retained-{number}"


def fill(path: Path, entries: int, topics: int) -> None:
    """Store `entries` entries, spread over `topics` topics, as a broker would have."""
    directory = open_data_directory(path, OsFiles())
    ledgers = create_topics(directory, topics)
    posted: list[object] = []
    log = EntryLog.open(
        directory.broker(0), OsFiles(), LogLimits(relaxed=True), lambda callback: callback(), clock=SystemClock()
    )
    stored = entry(b"x" * PAYLOAD_BYTES)
    data = stored * ENTRIES_PER_RUN
    offsets = range(0, len(data), len(stored))
    lengths = (len(stored),) * ENTRIES_PER_RUN
    next_entry = dict.fromkeys(ledgers, 0)
    groups_per_run = ENTRIES_PER_RUN // ENTRIES_PER_GROUP
    for run in range(entries // ENTRIES_PER_RUN):
        groups = []
        for index in range(groups_per_run):
            ledger_id = ledgers[(run * groups_per_run + index) % topics]
            groups.append((ledger_id, next_entry[ledger_id], ENTRIES_PER_GROUP))
            next_entry[ledger_id] += ENTRIES_PER_GROUP
        log.append(
            AppendRun(
                groups=groups,
                offsets=offsets,
                lengths=lengths,
                message_counts=None,
                data=data,
                done=lambda _run, error: posted.append(error),
            )
        )
        while run - len(posted) > 100:
            time.sleep(0.001)
    log.close()
    failed = [error for error in posted if error is not None]
    if failed or len(posted) != entries // ENTRIES_PER_RUN:
        raise RuntimeError(f"{len(posted)} runs stored, first failure: {failed[:1]}")


def create_topics(directory: DataDirectory, topics: int) -> list[int]:
    """Create the topics; returns their ledger ids."""
    errors: list[object] = []
    catalog = Catalog.open(directory, lambda callback: callback())
    for number in range(topics):
        catalog.create_topic(topic_name(number), properties={}, created_wall_ms=0, done=errors.append)
    catalog.close()
    catalog = Catalog.open(directory, lambda callback: callback())
    ledgers = [record.ledger_id for record in sorted(catalog.topics(), key=lambda record: record.ledger_id)]
    catalog.close()
    assert len(ledgers) == topics, errors[:1]
    return ledgers


def check_last_entry(port: int, topic: str, wanted: int) -> None:
    """Ask the broker for the topic's last message, and read one entry of it."""
    with RawClient(port) as client:
        client.subscribe(
            topic, "check", durable=False, permits=1, start_message_id={"ledgerId": EARLIEST, "entryId": EARLIEST}
        )
        assert len(client.message().payload) == PAYLOAD_BYTES
        answer = client.request(29, 30, consumer_id=0)  # GET_LAST_MESSAGE_ID
        last = answer.last_message_id.entryId
        if last < wanted:
            raise AssertionError(f"{topic} ends at entry {last}, stored were {wanted + 1} entries")


def measure(path: Path, entries: int, topics: int, *, kill: bool) -> tuple[float, float]:
    """Start, look, and end in the way asked for; median seconds to ready and MiB of resident memory."""
    seconds, memory = [], []
    broker = BrokerProcess(path)
    for _ in range(STARTS):
        began = time.monotonic()
        broker.start()
        seconds.append(time.monotonic() - began)
        check_last_entry(broker.port, topic_name(0), entries // topics - 1)
        memory.append(usage(broker.pid).rss_mib)
        with RawClient(broker.port) as client:
            client.produce(topic_name(1))
            client.publish([b"y" * PAYLOAD_BYTES] * 1000)
        if kill:
            broker.kill()
        else:
            broker.stop()
    return statistics.median(seconds), statistics.median(memory)


def main() -> int:
    """Measure every size asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--topics", type=int, default=1_000)
    arguments = parser.parse_args()
    print(f"{'entries':>12} {'topics':>7} {'end before':>11} {'start s':>8} {'RSS MiB':>8}")
    for entries in arguments.entries:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "data"
            fill(path, entries, arguments.topics)
            for kill in (False, True):
                seconds, memory = measure(path, entries, arguments.topics, kill=kill)
                how = "kill -9" if kill else "clean stop"
                print(f"{entries:>12,} {arguments.topics:>7,} {how:>11} {seconds:>8.2f} {memory:>8.1f}", flush=True)
            shutil.rmtree(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
