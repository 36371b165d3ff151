# SPDX-License-Identifier: Apache-2.0
"""The public clients of several languages against one broker, and the table that comes out.

Why: whether a client of somebody else works is not ours to say; its own code has to run. Each language has a small
program of ours that uses the official client from its registry, case by case; with `--peer pulsar` the same programs
run against Apache Pulsar itself, so that a case which fails there says nothing about penstock.
Where: `make compat`. A language whose toolchain is missing is left out with a sentence.

The contract with a program: PULSAR_URLS and PULSAR_ADMIN_URLS are the addresses of all brokers, separated by commas.
The two lists are of the same length. Case N uses the N-th of each list, in turn, so that with `--brokers 3` clients are
given every broker's address. With `--proxy` they are those of a proxy before the brokers. A POST to the URL
COMPAT_RESTART kills the broker and answers when it serves again. For every case the program appends one line of JSON to
the file COMPAT_RESULTS: {"client", "feature", "case", "outcome": passed|failed|skipped, "why"}; it ends with status 0
when no case failed. Arguments name features: only their cases are run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.pulsar_peer import PulsarProcess  # noqa: E402 -- a program, started by its path
from penstock.testing.process import BrokerProcess  # noqa: E402
from tests.compat.features import FEATURES  # noqa: E402
from tests.compat.proxied import Proxied, proxy_before  # noqa: E402
from tests.compat.restarts import restarts  # noqa: E402
from tests.processes.cluster import Cluster  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.compat.proxied import Broker

ALL: Final = "all"
TABLE: Final = ROOT / "docs/reference/compatibility.md"
# A suite takes a minute or two, and its first run fetches the client from its registry.
SUITE_TIMEOUT_S: Final = 900.0
ENDING_TIMEOUT_S: Final = 60.0
# Each worker has a broker of its own. One Apache Pulsar is enough for most machines.
WORKERS: Final = ("--numprocesses", "auto", "--dist", "worksteal")
# What a cell says, from the best to the worst but one: a feature that one case skipped and another passed has passed.
MARKS: Final = {"skipped": "–", "passed": "yes", "failed": "**no**"}


@dataclass(frozen=True, slots=True)
class Suite:
    """One client's program: what must be installed, how it is called from its folder, and what it asks for."""

    client: str
    title: str
    needs: tuple[str, ...]
    command: tuple[str, ...]
    pinned: tuple[str, str] | None = None  # the file and the words in it that say which version of the client
    package: str = "pulsar-client"  # else the Python package that does
    # What takes minutes is run only if the suite is asked for by name: its arguments in a run of all. None: left out.
    among_all: tuple[str, ...] | None = ()
    own_broker: bool = False  # It starts penstock itself, and is run only where that is what is tried.

    @property
    def is_pytest(self) -> bool:
        """Whether its cases are tests here, whose fixtures start the broker."""
        return self.pinned is None

    @property
    def heading(self) -> str:
        """The client and its version."""
        if self.pinned is None:
            return f"{self.title} {version(self.package)}"
        file, words = self.pinned
        found = re.search(words + r"v?([\d.]+)", (HERE / file).read_text(encoding="utf-8"))
        assert found is not None, f"no version of {self.title} in {file}"
        return f"{self.title} {found[1]}"


@dataclass(frozen=True, slots=True)
class Under:
    """What the clients are tried against."""

    peer: str
    brokers: int
    proxied: bool

    def __str__(self) -> str:
        several = f" with {self.brokers} brokers" if self.brokers > 1 else ""
        return f"{self.peer}{several}{' through the proxy' if self.proxied else ''}"

    @property
    def environment(self) -> dict[str, str]:
        """How the fixtures of pytest are told."""
        return {"PEER": self.peer, "COMPAT_BROKERS": str(self.brokers), "COMPAT_PROXY": str(int(self.proxied))}


PLAIN: Final = Under("penstock", 1, proxied=False)
MAVEN: Final = "<pulsar.version>"
SPRING: Final = "<spring-boot.version>"
FLINK: Final = "<connector.version>"
CAMEL: Final = ("camel/pom.xml", "<camel.version>")
REACTOR: Final = ("reactor/pom.xml", "<reactive.version>")
CONTAINERS: Final = ("testcontainers/pom.xml", "<testcontainers.version>")
AT_LEAST_ONCE: Final = ("flink-at-least-once",)
RUST: Final = ("rust/Cargo.toml", 'pulsar = { version = "=')
ENGINE: Final = (sys.executable, str(HERE / "engine.py"), str(HERE / "testcontainers/run"))
PYTEST: Final = (sys.executable, "-m", "pytest", "--quiet")
SUITES: Final = (
    Suite("python", "Python (C++)", (), (*PYTEST, "--ignore=tests/compat/spark", "tests/compat")),
    Suite("spark", "Spark", (), (*PYTEST, "tests/compat/spark"), package="pyspark"),
    Suite("java", "Java", ("java", "mvn"), (str(HERE / "java/run"),), ("java/pom.xml", MAVEN)),
    Suite("tools", "pulsar-admin, pulsar-perf", ("java", "mvn"), (str(HERE / "tools/run"),), ("tools/pom.xml", MAVEN)),
    Suite("spring", "Spring Boot", ("java", "mvn"), (str(HERE / "spring/run"),), ("spring/pom.xml", SPRING)),
    Suite(
        "flink", "Flink", ("java", "mvn"), (str(HERE / "flink/run"),), ("flink/pom.xml", FLINK), among_all=AT_LEAST_ONCE
    ),
    Suite("camel", "Camel", ("java", "mvn"), (str(HERE / "camel/run"),), CAMEL),
    Suite("reactor", "Reactor", ("java", "mvn"), (str(HERE / "reactor/run"),), REACTOR),
    Suite("testcontainers", "Testcontainers", ("java", "mvn"), ENGINE, CONTAINERS, own_broker=True),
    Suite("rust", "Rust pulsar-rs", ("cargo", "protoc"), (str(HERE / "rust/run"),), RUST, among_all=None),
    Suite("go", "Go", ("go",), (str(HERE / "go/run"),), ("go/go.mod", "pulsar-client-go ")),
    Suite("node", "Node.js pulsar-flex", ("node", "npm"), (str(HERE / "node/run"),), ("node/package.json", 'flex": "')),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites; 0 when no case failed."""
    parser = argparse.ArgumentParser(description="Run the public clients' suites and print the compatibility table.")
    parser.add_argument("--peer", choices=("penstock", "pulsar"), default="penstock", help="the broker under them")
    parser.add_argument("--brokers", type=int, default=1, help="how many brokers of penstock there are")
    parser.add_argument("--proxy", action="store_true", help="with a proxy between the clients and the brokers")
    clients = [suite.client for suite in SUITES]
    parser.add_argument("--client", action="append", choices=[*clients, ALL], help="only these suites, but whole")
    parser.add_argument(
        "--write", action="store_true", help=f"write the columns of these suites to {TABLE.relative_to(ROOT)}"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="compat-") as scratch:
        results = Path(scratch) / "results.jsonl"
        results.touch()
        under = Under(options.peer, options.brokers, proxied=options.proxy)
        asked = clients if options.client == [ALL] else options.client
        failed = [suite.client for suite in _chosen(asked, under) if not _run(suite, under, results)]
        cases = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    table = _table(cases)
    print(f"{under}:\n{table}")
    print("\n".join(_counts(cases)))
    for case in cases:
        if case["outcome"] == "failed":
            print(f"FAILED {case['client']} {case['feature']}: {case['case']}: {case.get('why', '')}")
    if options.write:
        page = TABLE.read_text(encoding="utf-8")
        TABLE.write_text(page[: page.index("| feature ")] + _table(cases, page) + "\n", encoding="utf-8")
    if failed:
        print(f"suites that failed: {', '.join(failed)}")
    return 1 if failed else 0


def _chosen(clients: Sequence[str] | None, under: Under) -> Iterator[Suite]:
    for suite in SUITES:
        if clients and suite.client not in clients:
            continue
        if suite.own_broker and under != PLAIN:
            print(f"== {suite.title}: left out, it starts one penstock of its own")
            continue
        if not clients and suite.among_all is None:
            print(f"== {suite.title}: left out, it takes minutes: make compat CLIENT={suite.client}")
            continue
        missing = [program for program in suite.needs if shutil.which(program) is None]
        if missing:
            print(f"== {suite.title}: left out, {' and '.join(missing)} not found")
        elif not Path(suite.command[0]).exists():
            print(f"== {suite.title}: left out, it has no suite")
        else:
            yield suite if clients else replace(suite, command=(*suite.command, *(suite.among_all or ())))


def _run(suite: Suite, under: Under, results: Path) -> bool:
    print(f"== {suite.title} against {under}", flush=True)
    environment = {**os.environ, "COMPAT_RESULTS": str(results), **under.environment}
    before = results.stat().st_size
    if suite.is_pytest:  # Its fixtures start the broker, some tests one of their own.
        report = results.with_suffix(".xml")
        # One virtual machine for Spark is enough, too.
        options = WORKERS if under.peer == "penstock" and suite.client == "python" else ()
        passed = _call(suite, environment, (*options, f"--junit-xml={report}", "--override-ini=junit_family=xunit1"))
        if not passed and (crashed := _crashed(report)):
            print(f"== the client's own process died in {', '.join(crashed)}: once more", flush=True)
            passed = _call(suite, environment, ("-k", " or ".join(crashed)))
    else:
        # Brokers of their own for each suite: one suite's leftovers are nobody else's failures.
        with _serving(under) as variables:
            passed = _call(suite, environment | variables)
    return passed and results.stat().st_size > before  # a suite that ran no case has not passed


@contextmanager
def _serving(under: Under) -> Iterator[dict[str, str]]:
    """Start brokers, and yield the variables that tell a program where they are."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-brokers-")))
        started = _brokers(under, scratch / "data")
        stack.enter_context(started)
        broker: Broker = started
        urls, admin_urls = [broker.url], [broker.admin_url]
        if isinstance(started, Cluster):
            urls, admin_urls = started.urls, started.admin_urls
        if under.proxied:
            proxy = stack.enter_context(proxy_before(urls, admin_urls, scratch / "proxy.log"))
            urls, admin_urls, broker = [proxy.url], [proxy.admin_url], Proxied(broker, proxy)
        # Every service URL with every admin URL, because any broker must do for either.
        pairs = zip(*product(urls, admin_urls), strict=True)
        restart = stack.enter_context(restarts(broker))
        yield dict(zip(("PULSAR_URLS", "PULSAR_ADMIN_URLS"), map(",".join, pairs), strict=True)) | {
            "COMPAT_RESTART": restart
        }


def _brokers(under: Under, data: Path) -> BrokerProcess | PulsarProcess:
    if under.peer == "pulsar":
        return PulsarProcess(data, {"transactionCoordinatorEnabled": "true"})
    return BrokerProcess(data) if under.brokers == 1 else Cluster(data, under.brokers)


def _call(suite: Suite, environment: dict[str, str], options: Sequence[str] = ()) -> bool:
    cwd = ROOT if suite.is_pytest else Path(suite.command[0]).parent
    command = [*suite.command, *options]
    with subprocess.Popen(command, cwd=cwd, env=environment) as process:
        try:
            return process.wait(SUITE_TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            print(f"== {suite.title}: did not end within {SUITE_TIMEOUT_S:.0f} s", flush=True)
            _end(process)
            return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask as Ctrl-C does, for only then do the fixtures of pytest end the brokers they started; then insist."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(ENDING_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _crashed(report: Path) -> list[str]:
    """The tests in which a worker died, if nothing else failed.

    The C++ library of the Python client sometimes crashes on its way out, when a listener has been called; a worker
    that dies fails the test it was at. A fault that the broker provokes comes back in the second run.
    """
    if not report.exists():  # it took too long and was ended
        return []
    cases = list(ET.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    died = [case for case in failed if any("crashed while running" in text for text in case.itertext())]
    return [case.get("name", "").rpartition("::")[2] for case in died] if len(died) == len(failed) else []


def _counts(cases: Sequence[dict[str, str]]) -> Iterator[str]:
    """A line for each client: how many of its cases passed, failed and were skipped. A case of two features is one."""
    for suite in SUITES:
        outcomes = {case["case"]: case["outcome"] for case in _of(suite, cases)}
        if outcomes:
            counts = Counter(outcomes.values())
            yield f"{suite.client}: " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts))


def _table(cases: Sequence[dict[str, str]], page: str = "") -> str:
    """Features down, clients across; a cell says the worst outcome of its cases.

    A client without cases keeps its column of the page.
    """
    columns = [["feature", *FEATURES.values()]]
    for suite in SUITES:
        outcomes = {
            feature: {c["outcome"] for c in _of(suite, cases) if c["feature"] == feature} for feature in FEATURES
        }
        if any(outcomes.values()):
            cells = [next((m for o, m in reversed(MARKS.items()) if o in found), "") for found in outcomes.values()]
            columns.append([suite.heading, *cells])
        elif kept := _column(page, suite.title):
            columns.append([kept.pop("feature"), *(kept.get(feature, "") for feature in FEATURES.values())])
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in zip(*columns, strict=True)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _of(suite: Suite, cases: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    return [case for case in cases if case["client"] == suite.client]


def _column(page: str, title: str) -> dict[str, str]:
    """Return a client's cells in the table of a page, by the first cell of their row; {} if it has no column."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    for number, heading in enumerate(rows[0] if rows else ()):
        if heading.startswith(f"{title} "):
            return {row[0]: row[number] for row in rows}
    return {}


if __name__ == "__main__":
    sys.exit(main())
