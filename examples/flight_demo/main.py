# SPDX-License-Identifier: Apache-2.0
"""The demo from the top: arguments, brokers, the three acts, the summary, the exit status.

Where: `examples/flights.py` calls `main`. Everything it makes is in one temporary directory and gone afterwards,
also after Ctrl-C; only the page of act three stays.
"""

from __future__ import annotations

import argparse
import gc
import signal
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from rich.console import Console

from examples.flight_demo.findings import Meanwhile
from examples.flight_demo.flights import FlightsMissing, read_flights
from examples.flight_demo.flood import CONFIGURATION, Flood
from examples.flight_demo.replay import RECORDING, Replay
from examples.flight_demo.screen import Screen
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from examples.flight_demo.flights import Year
    from examples.flight_demo.report import Report

# How long the whole year takes: what two cores shared with all the clients keep up with, and some room.
YEAR_S: Final = 60.0
YEAR_FLIGHTS: Final = 336_776
# Shorter ones would be over before the second desk has taken over from the first.
REPLAY_S_MIN: Final = 4.0
QUICK_FLIGHTS: Final = 16_000
FLOOD_MESSAGES: Final = 4  # by each connection
QUICK_FLOOD_MESSAGES: Final = 1
PAGE: Final = Path("build/flights.html")
INTERRUPTED: Final = 130  # what shells report for Ctrl-C


class SparkMissing(RuntimeError):
    """Spark is not installed, or has no Java to run on."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0 if every check passed, 1 if not, 130 if it was interrupted."""
    options = _parse(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
            reports = _run(options, Path(directory), console)
    except KeyboardInterrupt:
        console.print("\ninterrupted; nothing is left running")
        return INTERRUPTED
    except (FlightsMissing, SparkMissing) as error:
        console.print(str(error))
        return 1
    for report in reports:
        report.print_to(console)
    passed = all(report.passed for report in reports)
    checks = [check for report in reports for check in report.checks]
    console.print()
    console.print(
        f"[bold green]all {len(checks)} checks passed"
        if passed
        else f"[bold red]{sum(check.passed for check in checks)} of {len(checks)} checks passed"
    )
    return 0 if passed else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="flights.py",
        description="Replay the flights of 2013 through a penstock broker, flood it, and have Spark read them back.",
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the flights and a shorter flood")
    parser.add_argument("--flights", type=int, metavar="N", help="only so many flights, spread over the year")
    parser.add_argument("--core", action="store_true", help="leave Spark out")
    parser.add_argument("--page", type=Path, metavar="FILE", default=PAGE, help="where Spark's findings are drawn")
    return parser.parse_args(argv)


def _run(options: argparse.Namespace, directory: Path, console: Console) -> list[Report]:
    """Play the acts. What Spark reads is what the first left behind, after its broker has been started once more."""
    begun_s = time.monotonic()
    if not options.core:
        _find_spark()
    year = read_flights(options.flights or (QUICK_FLIGHTS if options.quick else None))
    gc.freeze()  # The flights are shared with forked processes: nobody's collector should touch their pages.
    console.print(f"{len(year.flights):,} flights read in {time.monotonic() - begun_s:.1f} s")
    configuration = directory / "flood.conf"
    configuration.write_text(CONFIGURATION)
    messages = QUICK_FLOOD_MESSAGES if options.quick else FLOOD_MESSAGES
    recording = directory / "replay.conf"
    recording.write_text(RECORDING)
    kept = BrokerProcess(directory / "replay", ["--config", str(recording)])
    flooded = BrokerProcess(directory / "flood", ["--config", str(configuration)])
    with Screen(console) as screen:
        replay, flood = Replay(kept, year, _duration_s(year), screen), Flood(flooded, messages, screen)
        reports = [_with_broker(kept, replay.run), _with_broker(flooded, flood.run)]
        if not options.core:
            from examples.flight_demo.analysis import Analysis

            page = options.page.resolve()
            meanwhile = Meanwhile(flood.findings, replay.shared, replay.fate)
            analysis = Analysis(kept, year, directory, page, screen, meanwhile)
            reports.append(_with_broker(kept, analysis.run))
    return reports


def _find_spark() -> None:
    """See that Spark is there before two minutes have gone by without it. Raises SparkMissing."""
    if find_spec("pyspark") is None:
        raise SparkMissing("Spark is not there: pip install 'penstock[demo,spark]', or leave it out with --core")
    from penstock.spark.java import NoJava, ensure_java

    try:
        ensure_java()
    except NoJava as error:
        raise SparkMissing(f"{error}, or leave Spark out with --core") from error


def _with_broker(broker: BrokerProcess, act: Callable[[], Report]) -> Report:
    """Play an act and see how its broker ends."""
    with broker:
        report = act()
        status = broker.stop()
    report.check(status == 0, "the broker ended cleanly when it was told to", f"exit status {status}")
    return report


def _duration_s(year: Year) -> float:
    return max(REPLAY_S_MIN, YEAR_S * len(year.flights) / YEAR_FLIGHTS)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End on SIGTERM as on Ctrl-C: through every `with` block."""
    raise KeyboardInterrupt
