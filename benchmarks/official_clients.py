# SPDX-License-Identifier: Apache-2.0
"""Java's and Go's official clients with batches at full speed, and Java's at a given rate: what applications see.

    python -m benchmarks.official_clients [--peer pulsar] [--before DIR] [--loads 'java-*'] [--rounds 3]

Java's is `pulsar-perf`, of the version that the compatibility tests use; its rate is the median of what it logs each
second, the first ones excepted. Maven and Go download both clients the first time. Processor time is the broker's, for
a message. `go-consume` and `java-consume` read what the load before them has published.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from benchmarks.brokers import add_before_option, add_peer_option, subjects_of
from benchmarks.loads import COST, MESSAGES, P50, P99, PLAIN, TLS
from benchmarks.process import cpu_of_all_s
from benchmarks.pulsar_peer import find_java
from benchmarks.report import PEER, Sample, markdown, summarize
from benchmarks.run import FAILED, RESULTS, write
from benchmarks.subjects import REPOSITORY, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.process import Address

T = TypeVar("T")

COMPAT: Final = REPOSITORY / "tests" / "compat"
CLASSPATH_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
FETCH_TIMEOUT_S: Final = 900.0
LOAD_TIMEOUT_S: Final = 180.0
MESSAGE_BYTES: Final = 1024
AS_FAST_AS_POSSIBLE: Final = 10_000_000
# A virtual machine is slow at first.
SKIPPED_S: Final = 3
# Each second, of the client; and in the end, of pulsar-perf.
_THROUGHPUT: Final = re.compile(r"(?:Publish throughput|Consume throughput received): ([\d.]+) msgs?/s")
_LATENCY: Final = re.compile(r"Publish throughput: .*? Latency: med: +([\d.]+) ms .*? 99pct: +([\d.]+) ms")
_RECORDS: Final = re.compile(r"Aggregated throughput stats --- (\d+) records")


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """One load: of which client, doing what, and at what rate; 0 is as fast as possible."""

    name: str
    client: str
    action: str
    rate: int = 0
    setup: str = PLAIN


LOADS: Final = (
    ClientLoad("java-produce", "java", "produce"),
    ClientLoad("java-consume", "java", "consume"),
    ClientLoad("java-produce-20k", "java", "produce", rate=20_000),
    ClientLoad("java-produce-20k-tls", "java", "produce", rate=20_000, setup=TLS),
    ClientLoad("go-produce", "go", "produce"),
    ClientLoad("go-consume", "go", "consume"),
)


class Clients:
    """Where the clients' programs are, ready to be started."""

    def __init__(self, scratch: Path, wanted: set[str]) -> None:
        self.scratch = scratch
        self.class_path, self.java = "", ""
        (scratch / "client.conf").write_text("")
        if "java" in wanted:
            self.java, kept = find_java(), scratch / "classpath"
            pom = COMPAT / "tools" / "pom.xml"
            run([tool("mvn"), "-q", "-B", "-f", str(pom), CLASSPATH_GOAL, f"-Dmdep.outputFile={kept}"], FETCH_TIMEOUT_S)
            self.class_path = kept.read_text()
        if "go" in wanted:
            run([tool("go"), "build", "-o", str(scratch / "go-perf"), "./perf"], FETCH_TIMEOUT_S, COMPAT / "go")

    def drive(self, load: ClientLoad, address: Address, topic: str, messages: int) -> dict[str, float]:
        """Start a client, wait for its end, and return its figures. Raises RuntimeError."""
        before_s = cpu_of_all_s(address.pid)
        if load.client == "go":
            words = [load.action, address.url, topic, str(messages), str(MESSAGE_BYTES)]
            seconds = json.loads(run([str(self.scratch / "go-perf"), *words], LOAD_TIMEOUT_S))["seconds"]
            figures, count = {MESSAGES: messages / seconds}, messages
        else:
            figures, count = figures_of(run(self.perf(load, address, topic, messages), LOAD_TIMEOUT_S))
            if not load.rate:  # At full speed, latency is that of the client's own queue.
                figures = {MESSAGES: figures[MESSAGES]}
        return figures | {COST: (cpu_of_all_s(address.pid) - before_s) * 1e6 / count}

    def perf(self, load: ClientLoad, address: Address, topic: str, messages: int) -> list[str]:
        """The command line of pulsar-perf."""
        url = address.url if load.setup == PLAIN else f"pulsar+ssl://localhost:{address.tls_port}"
        trusted = [] if load.setup == PLAIN else ["--trust-cert-file", str(address.tls_ca)]
        rate = ["-r", str(load.rate or AS_FAST_AS_POSSIBLE), "-s", str(MESSAGE_BYTES)]
        mine = rate if load.action == "produce" else ["-sp", "Earliest", "-ss", "java", "-q", "10000"]
        return [
            *(self.java, "-Xmx512m", "-Dorg.slf4j.simpleLogger.logFile=System.out", "-cp", self.class_path),
            *("org.apache.pulsar.testclient.PulsarPerfTestTool", str(self.scratch / "client.conf"), load.action),
            *("-u", url, *trusted, "-i", "1", "-m", str(messages), *mine, topic),
        ]


def tool(name: str) -> str:
    """Where a program is. Raises RuntimeError."""
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    return found


def run(command: Sequence[str], timeout_s: float, folder: Path = REPOSITORY) -> str:
    """Run a program; return what it printed. Raises RuntimeError with its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{Path(command[0]).name} did not end within {timeout_s:.0f} s") from error
    if done.returncode:
        raise RuntimeError(
            f"{Path(command[0]).name} ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}"
        )
    return done.stdout


def figures_of(log: str) -> tuple[dict[str, float], int]:
    """What pulsar-perf said each second, and how many messages there were. Raises RuntimeError if it said nothing."""
    rates = [rate for found in _THROUGHPUT.findall(log) if (rate := float(found)) > 0]
    records = _RECORDS.search(log)
    if not rates or records is None:
        raise RuntimeError(f"pulsar-perf logged no rate; its last words: {log[-500:]}")
    figures = {MESSAGES: statistics.median(steady(rates))}
    if latencies := [(float(median), float(p99)) for median, p99 in _LATENCY.findall(log)]:
        for name, values in zip((P50, P99), zip(*steady(latencies), strict=True), strict=True):
            figures[name] = statistics.median(values)
    return figures, int(records[1])


def steady(values: list[T]) -> list[T]:
    """Leave out the first seconds, and the last, which is not a whole one."""
    return values[SKIPPED_S:-1] or values


def one_round(clients: Clients, loads: Sequence[ClientLoad], options: argparse.Namespace, row: int) -> Iterator[Sample]:
    """Start all brokers on fresh data, take every load on each of them in turns."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clients-")))
        subjects = []
        for name, setups in subjects_of(options).items():
            subject = Subject(name, setups[PLAIN if name == PEER else TLS], scratch / name)
            stack.callback(subject.stop)
            subject.start()
            subjects.append(subject)
        for load in loads:
            messages = round(options.seconds * (load.rate or options.per_second))
            for subject in subjects if row % 2 == 0 else subjects[::-1]:
                try:
                    subject.revive()
                    assert subject.address is not None
                    topic = f"persistent://public/default/{load.client}-{load.rate}-{load.setup}"
                    taken = clients.drive(load, subject.address, topic, messages)
                except Exception as failure:  # noqa: BLE001 -- whatever becomes of one load, the others are measured
                    print(f"{load.name:22} {subject.name:10} FAILED: {failure}", flush=True)
                    yield Sample(load.name, subject.name, FAILED, 1, str(failure))
                    continue
                shown = ", ".join(f"{value:,.4g} {figure}" for figure, value in taken.items())
                print(f"{load.name:22} {subject.name:10} {shown}", flush=True)
                for figure, value in taken.items():
                    yield Sample(load.name, subject.name, figure, value)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="official_clients", description="Java's and Go's clients at full speed.")
    add_peer_option(parser)
    add_before_option(parser)
    parser.add_argument("--loads", default="*", metavar="GLOBS", help="only loads that match; several with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="about how long each load takes")
    parser.add_argument("--per-second", type=int, default=100_000, help="messages for each second at full speed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table and the samples are left")
    parser.add_argument("--name", default="clients", help="of the files there")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit status."""
    options, busy = parse(argv), os.getloadavg()[0]
    loads = [one for one in LOADS if any(fnmatch.fnmatchcase(one.name, glob) for glob in options.loads.split(","))]
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="clients-") as scratch:
        try:
            clients = Clients(Path(scratch), {load.client for load in loads})
        except RuntimeError as error:
            print(f"official_clients: {error}", file=sys.stderr)
            return 1
        for row in range(options.rounds):
            samples.extend(one_round(clients, loads, options, row))
            write(options, samples, busy)
    print(f"\n{markdown(summarize(samples))}")
    return 1 if any(sample.figure == FAILED for sample in samples) else 0


if __name__ == "__main__":
    sys.exit(main())
