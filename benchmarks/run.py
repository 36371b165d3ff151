# SPDX-License-Identifier: Apache-2.0
"""`make bench`: every load against penstock, and with `--peer` against other brokers in the same minutes.

Why: a figure alone says more about the machine than about the broker. So all brokers run side by side on fresh data,
take each load in turns (A B, then B A), and the medians of several rounds are compared. Those that do not sync before
a receipt by default are measured as they come, and as told to. `--peer limit` is what the machine itself reaches.
Where: prints a table; leaves it, a page with plots and all samples in `benchmarks/results/`. Exits 1 if a load failed
or a floor was missed. The first round is taken whole, later ones only while the time (`--minutes`) permits.

    python -m benchmarks.run --peer pulsar --loads 'publish-*' --rounds 3
    python -m benchmarks.run --peer nats,kafka,limit
    python -m benchmarks.run --before ../older-checkout
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import platform
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.brokers import add_before_option
from benchmarks.loads import CORE, PLAIN, PLANS, QUICK, RSS, WARM_UP, Plan
from benchmarks.page import html_page
from benchmarks.peers import add_peers_option, contenders
from benchmarks.process import PeerError, usage
from benchmarks.report import Sample, as_json, markdown, summarize, told_rows
from benchmarks.subjects import LoadFailed, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RESULTS = Path(__file__).resolve().parent / "results"
SETTLE_S = 3.0
FAILED = "failed"
# For the whole table, and for each other broker. The first round of a peer takes longer than that of penstock.
MINUTES, MINUTES_OF_OTHERS = 8.0, 12.0
# Busier than this, a process may be what limits a load. If the broker is so too, the load measured the broker.
CORE_RATIO_MAX = 0.85
# Others at work flatter whichever broker needs fewer cores.
BUSY_LOAD_MAX = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, report, and return the exit status."""
    options = parse(argv)
    plans = chosen_plans(options)
    busy = os.getloadavg()[0]
    if busy > BUSY_LOAD_MAX:
        print(f"bench: the machine is busy (load average {busy:.1f}); the figures mean little", file=sys.stderr)
    try:
        for one in contenders(options).values():
            one.fetch()  # which may take minutes the first time
    except PeerError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    samples: list[Sample] = []
    status, began_s = 0, time.monotonic()
    deadline_s = began_s + 60 * (options.minutes or MINUTES + MINUTES_OF_OTHERS * (len(contenders(options)) - 1))
    for number in range(options.rounds):
        if number and time.monotonic() > deadline_s:
            print(f"bench: the time is over after {number} of {options.rounds} rounds", file=sys.stderr)
            break
        try:
            for sample in one_round(options, plans, number, deadline_s if number else math.inf):
                samples.append(sample)  # noqa: PERF402 -- what was measured before an error counts
        except Exception as error:  # noqa: BLE001 -- what was measured so far counts
            print(f"bench: round {number + 1}: {error}", file=sys.stderr)
            status = 1
        write(options, samples, busy)
        print(f"bench: round {number + 1} after {(time.monotonic() - began_s) / 60:.1f} minutes", file=sys.stderr)
    rows = summarize(samples)
    print(f"\n{markdown(rows)}")
    failures = [sample for sample in samples if sample.figure == FAILED]
    for sample in failures:
        print(f"failed: {sample.load}, {sample.subject}: {sample.void}")
    for row in told_rows(rows):
        if row.is_worse:
            print(f"worse than before: {row.load}, {row.figure}")
    missed = [row for row in rows if row.verdict == "missed"] if not options.quick else []
    return 1 if status or failures or missed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure penstock, and a peer beside it.")
    add_peers_option(parser)
    add_before_option(parser)
    parser.add_argument("--loads", default="*", metavar="GLOBS", help="only loads that match; several with commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="the measured part of each load")
    parser.add_argument("--rounds", type=int, default=5, help="at most, as the time permits")
    parser.add_argument(
        "--minutes", type=float, help=f"for all rounds (default: {MINUTES}, and {MINUTES_OF_OTHERS} for each other)"
    )
    parser.add_argument("--seed", type=int, default=1, help="chooses payloads and sizes")
    parser.add_argument("--idle-seconds", type=float, default=10.0, help="over which idle processor time is taken")
    parser.add_argument("--scratch", type=Path, help="where the brokers keep their data (default: a temporary folder)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table and the samples are left")
    parser.add_argument("--name", default="latest", help="of the files there")
    parser.add_argument("--quick", action="store_true", help="a smoke test of the benchmarks: means nothing as figures")
    options = parser.parse_args(argv)
    if options.quick:
        options.seconds, options.rounds, options.idle_seconds = 0.2, 1, 0.2
    return options


def chosen_plans(options: argparse.Namespace) -> list[Plan]:
    """Return the loads that were asked for."""
    return [
        plan
        for plan in PLANS
        if any(fnmatch.fnmatchcase(plan.name, one) for one in options.loads.split(","))
        and (plan.name in QUICK or not options.quick)
    ]


def one_round(options: argparse.Namespace, plans: Sequence[Plan], row: int, deadline_s: float) -> Iterator[Sample]:
    """Start all brokers on fresh data, take every load on each of them in turns, stop them."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=options.scratch)))
        subjects = [
            Subject(name, one.setups[PLAIN], scratch / name, one.setups, one.driver)
            for name, one in contenders(options).items()
        ]
        for subject in subjects:
            stack.callback(subject.stop)
            started = subject.start()
            for figure, value in started.items() if subject.has("start") else ():
                yield Sample("start", subject.name, figure, value)
        yield from idle([subject for subject in subjects if subject.has("idle")], options)
        for subject in subjects if not options.quick else []:
            yield from warm_up(subject, options.seed)
        for number, plan in enumerate(plans):
            if time.monotonic() > deadline_s:
                break
            # Who goes first changes from load to load and from round to round.
            for subject in subjects if (row + number) % 2 == 0 else subjects[::-1]:
                if subject.has(plan.name) and (row == 0 or not plan.once):
                    yield from one_load(subject, plan, options, row)
        for subject in subjects:
            subject.stop()
            if subject.has("peak"):
                yield Sample("peak", subject.name, RSS, subject.rss_peak_mib)


def idle(subjects: Sequence[Subject], options: argparse.Namespace) -> Iterator[Sample]:
    """Measure what the brokers take while nobody talks to them."""
    time.sleep(0 if options.quick else SETTLE_S)
    running = [(subject.name, subject.address.pid) for subject in subjects if subject.address is not None]
    before = [usage(pid) for _, pid in running]
    time.sleep(options.idle_seconds)
    for (name, pid), then in zip(running, before, strict=True):
        now = usage(pid)
        yield Sample("idle", name, RSS, now.rss_mib)
        yield Sample("idle", name, CORE, (now.cpu_s - then.cpu_s) / options.idle_seconds * 100)


def warm_up(subject: Subject, seed: int) -> Iterator[Sample]:
    """Drive every kind of work; only a failure is worth a sample."""
    for plan in filter(lambda plan: subject.has(plan.name), WARM_UP):
        try:
            subject.drive(plan, seconds=subject.driver.warm_up_s, seed=seed, note="0")
        except LoadFailed as failure:
            yield failed(plan, subject, failure)


def one_load(subject: Subject, plan: Plan, options: argparse.Namespace, row: int) -> Iterator[Sample]:
    """Drive one load, say how it went, and return its figures; a failure is one of them."""
    try:
        subject.revive()
        taken = subject.drive(plan, seconds=options.seconds, seed=options.seed + row, note=str(row))
    except Exception as failure:  # noqa: BLE001 -- whatever becomes of one load, the others are measured
        yield failed(plan, subject, failure)
        return
    void = why_void(plan, taken)
    shown = ", ".join(f"{value:,.4g} {figure}" for figure, value in taken.items())
    print(f"{plan.name:30} {subject.name:22} {shown}{f'  VOID: {void}' if void else ''}", flush=True)
    for figure, value in taken.items():
        yield Sample(plan.name, subject.name, figure, value, void)


def why_void(plan: Plan, taken: Mapping[str, float]) -> str | None:
    """Say why a load measured the generator and not the broker, or None if it did not.

    The official client is measured as it is: it is part of what users get.
    """
    if (
        plan.tool == "pyclient"
        or "generator core" not in taken
        or taken["generator core"] <= CORE_RATIO_MAX
        or taken["broker core"] > CORE_RATIO_MAX
    ):
        return None
    return f"the generator took {taken['generator core']:.0%} of a core, the broker {taken['broker core']:.0%}"


def failed(plan: Plan, subject: Subject, failure: Exception) -> Sample:
    """Say that a load failed, and make it a sample."""
    print(f"{plan.name:30} {subject.name:22} FAILED: {failure}", flush=True)
    return Sample(plan.name, subject.name, FAILED, 1, str(failure))


def write(options: argparse.Namespace, samples: Sequence[Sample], busy: float) -> None:
    """Leave the table, a page and every sample in the results folder."""
    options.results.mkdir(exist_ok=True)
    about = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}",
        "load average before": busy,
        **{name: value for name, value in vars(options).items() if not isinstance(value, Path)},
    }
    rows = summarize(samples)
    told = as_json(rows)
    document = {"about": about, "rows": told, "samples": [asdict(sample) for sample in samples]}
    (options.results / f"{options.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.results / f"{options.name}.md").write_text(markdown(rows))
    (options.results / f"{options.name}.html").write_text(html_page(about, [row for row in told if row["shown"]]))


if __name__ == "__main__":
    # However it is ended, all brokers are stopped and their data is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
