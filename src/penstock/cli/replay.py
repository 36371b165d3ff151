# SPDX-License-Identifier: Apache-2.0
"""`penstock replay FILE`: what adaptive throttling would have done with recorded usage and pressures.

Why: settings are chosen by trying them on what happened, not on a running broker. The controller is the broker's own
(`governance.throttle_replay`).
Where: `main` calls it. No broker runs.

A trace is JSON lines or CSV, one row per interval (docs/reference/adaptive-throttling.md#replay).
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.governance.adaptive_throttle import ThrottleDecision, ThrottleOptions
    from penstock.governance.throttle_replay import Point, Replay, TopicUse, TraceRow

_DESCRIPTION: Final = """\
Show what adaptive publish throttling would have done with recorded usage and pressures, under these
settings or others: for each topic how often and how long it would have been throttled, and how much
it would have published. FILE is a trace, as JSON lines or CSV.
"""
_PREFIX: Final = "adaptivePublisherThrottling"
# Topics with charts of their own, and in the table: those that were throttled longest.
_CHARTS_MAX: Final = 12
_ROWS_MAX: Final = 50


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(
        name,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("trace", type=Path, metavar="FILE", help="the trace; .csv is CSV, everything else JSON lines")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"a setting of adaptive throttling, with or without {_PREFIX}; may be given several times",
    )
    parser.add_argument("--plot", type=Path, metavar="PAGE", help="write a page with charts (HTML)")
    parser.add_argument("--decisions", action="store_true", help="print every decision, too")


def run(arguments: argparse.Namespace) -> int:
    """Replay and print; return the exit status. Raises ConfigurationError for a trace or a setting that is wrong."""
    from penstock.governance.throttle_replay import Replay

    replay = Replay(options_of(arguments.set))
    points: dict[str, list[Point]] = {}
    for point in replay.run(read(arguments.trace)):
        if arguments.plot is not None:
            points.setdefault(point.topic, []).append(point)
    if arguments.decisions:
        print("\n".join(_decision(at_s, decision) for at_s, decision in replay.decisions))
    print("\n".join(table(replay)))
    if arguments.plot is not None:
        _write_page(arguments.plot, replay, points)
    return 0


def options_of(given: Sequence[str]) -> ThrottleOptions:
    """Return the options of these settings; the others have their defaults. Raises ConfigurationError."""
    from penstock.groups.adaptive_throttling import throttle_options
    from penstock.settings import MachineFacts, load
    from penstock.settings.limits import Live

    flags = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {item}: want KEY=VALUE")
        flags[key if key.startswith(_PREFIX) else _PREFIX + key] = value
    return throttle_options(Live(load(flags=flags, facts=MachineFacts.read(), environment={})).limits)


def read(path: Path) -> Iterator[TraceRow]:
    """Yield the rows of a trace. Raises ConfigurationError, which names the line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from _csv_rows(path, file) if path.suffix == ".csv" else _json_rows(path, file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _json_rows(path: Path, lines: Iterable[str]) -> Iterator[TraceRow]:
    from penstock.governance.throttle_replay import TraceRow

    last_s: float | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            topics = {name: _use(use) for name, use in row.get("topics", {}).items()}
            one = TraceRow(_number(row["seconds"]), _number(row.get("memory")), _number(row.get("queueing")), topics)
            _check_order(last_s, one.at_s)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{path}, line {number}: {_said(error)}") from error
        last_s = one.at_s
        yield one


def _csv_rows(path: Path, lines: Iterable[str]) -> Iterator[TraceRow]:
    """Lines of the same second are one row."""
    from penstock.governance.throttle_replay import TraceRow

    current: TraceRow | None = None
    reader = csv.DictReader(lines)
    for line in reader:
        try:
            at_s = _number(line["seconds"])
            use = _use(line)
            if current is None or at_s != current.at_s:
                _check_order(current.at_s if current is not None else None, at_s)
                if current is not None:
                    yield current
                current = TraceRow(at_s, _number(line.get("memory")), _number(line.get("queueing")), {})
            assert isinstance(current.topics, dict)
            current.topics[line["topic"]] = use
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path}, line {reader.line_num}: {_said(error)}") from error
    if current is not None:
        yield current


def _use(row: Mapping[str, Any]) -> TopicUse:
    from penstock.governance.throttle_replay import TopicUse

    return TopicUse(_number(row["messagesPerSecond"]), _number(row.get("bytesPerSecond")), _number(row.get("backlog")))


def _number(value: Any) -> float:  # noqa: ANN401 - from a file
    """Return a number; 0 if it is missing or empty."""
    number = float(value or 0)
    if not 0.0 <= number < float("inf"):
        raise ValueError(f"want a number of 0 or more, got {value}")
    return number


def _check_order(last_s: float | None, at_s: float) -> None:
    if last_s is not None and at_s <= last_s:
        raise ValueError(f"seconds={at_s:g} after {last_s:g}: want rows in the order of time")


def _said(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def table(replay: Replay) -> list[str]:
    """Return what became of each topic, those first that were throttled longest."""
    rows = sorted(replay.summaries.items(), key=lambda item: -item[1].active_s)
    lines = [
        f"{'topic':<50} {'activated':>9} {'throttled':>10} {'lowest rate':>12} {'published':>10}  worst pressure",
    ]
    for name, one in rows[:_ROWS_MAX]:
        lowest = f"{one.lowest_rate:,.0f}/s" if one.lowest_rate is not None else "-"
        part = f"{one.passed / one.wanted:.0%}" if one.wanted else "-"
        worst = ", ".join(f"{signal} {value:.2f}" for signal, value in one.worst._asdict().items())
        lines.append(f"{name:<50} {one.activations:>9} {one.active_s:>8,.0f} s {lowest:>12} {part:>10}  {worst}")
    if len(rows) > _ROWS_MAX:
        lines.append(f"and {len(rows) - _ROWS_MAX} more topics")
    total = sum(one.activations for one in replay.summaries.values())
    lines.append(f"{total} activations of {sum(bool(one.activations) for one in replay.summaries.values())} topics")
    return lines


def _decision(at_s: float, decision: ThrottleDecision) -> str:
    rate = "no limit" if decision.rate_messages is None else f"{decision.rate_messages:,.1f}/s"
    return (
        f"{at_s:>10.1f} s  {decision.kind.value:<16} {decision.topic or decision.payer}  "
        f"pressure {decision.pressures.worst:.2f}  natural {decision.natural_messages:,.1f}/s  rate {rate}"
    )


def _write_page(path: Path, replay: Replay, points: dict[str, list[Point]]) -> None:
    from penstock.cli.plots import Line, chart, page

    charts = []
    longest = sorted(points, key=lambda name: -replay.summaries[name].active_s)[:_CHARTS_MAX]
    for name in longest:
        charts.append(
            chart(
                f"{name}: messages per second",
                [
                    Line("wanted", [(point.at_s, point.wanted) for point in points[name]]),
                    Line("published", [(point.at_s, point.passed) for point in points[name]]),
                    Line("limit", [(point.at_s, point.rate) for point in points[name] if point.rate is not None]),
                ],
            )
        )
        charts.append(
            chart(
                f"{name}: pressures",
                [
                    Line("memory", [(point.at_s, point.pressures.memory) for point in points[name]]),
                    Line("backlog", [(point.at_s, point.pressures.backlog) for point in points[name]]),
                    Line("queueing", [(point.at_s, point.pressures.queueing) for point in points[name]]),
                ],
            )
        )
    path.write_text(page("What adaptive throttling would have done", charts), encoding="utf-8")
