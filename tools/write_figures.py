# SPDX-License-Identifier: Apache-2.0
"""Take the figures of a run of the benchmarks into the documentation.

    make bench PEER=pulsar,nats,kafka,limit
    python -m tools.write_figures benchmarks/results/latest.json
    python -m tools.write_figures benchmarks/results/growth.json   # of `python -m benchmarks.growth`
    python -m tools.write_figures            # writes again what stands in docs/figures

The rows are kept in `docs/figures`, without the samples. From them come the table of the README between
its markers, `docs/reference/benchmarks.md`, and the plots.
Where: by hand, after a run worth showing. `tests/test_figures.py` fails while one of the files is behind.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.loads import CORE, COST, FIRST, MESSAGES, P50, P99, RATE, RSS, VOLUME
from benchmarks.page import about_line, charts, dot_chart, parts_table, ratio_of, table
from benchmarks.report import LIMIT, NAMES, NOTHING, PEER, PEERS, PENSTOCK, compare, short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
FIGURES: Final = ROOT / "docs" / "figures"
FILE: Final = FIGURES / "figures.json"
GROWTH: Final = FIGURES / "growth.json"
README: Final = ROOT / "README.md"
PAGE: Final = ROOT / "docs" / "reference" / "benchmarks.md"
_PART: Final = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)


class Line(NamedTuple):
    """One line of the README's table: what it says, and which figures stand in it, as (load, figure)."""

    text: str
    figures: tuple[tuple[str, str], ...]
    unit: str


LINES: Final = (
    Line(
        "publish 1 KiB, one producer, window 1,000 / 20,000",
        (("publish-1k-w1000", RATE), ("publish-1k-w20000", RATE)),
        "entries/s",
    ),
    Line(
        "publish 1 KiB, 50 producers on one connection / 50 connections",
        (("publish-1k-50-producers", RATE), ("publish-1k-50-connections", RATE)),
        "entries/s",
    ),
    Line("publish 1 KiB with TLS", (("publish-1k-tls", RATE),), "entries/s"),
    Line("publish batches of 16 × 1 KiB", (("publish-1k-batched", MESSAGES),), "messages/s"),
    Line("publish 128 KiB", (("publish-128k", VOLUME),), "MB/s"),
    Line("catch-up 1 KiB", (("catch-up-1k", RATE),), "entries/s"),
    Line("catch-up 128 KiB", (("catch-up-128k", VOLUME),), "MB/s"),
    Line("catch-up 1 KiB after a restart, from the disk", (("catch-up-1k-cold", RATE),), "entries/s"),
    Line("catch-up 128 KiB after a restart, from the disk", (("catch-up-128k-cold", VOLUME),), "MB/s"),
    Line(
        "deliveries to one / ten consumers of a shared subscription",
        (("fan-out-shared-1", RATE), ("fan-out-shared-10", RATE)),
        "messages/s",
    ),
    Line("receipt at 1,000/s, p50 / p99", (("latency-1k", P50), ("latency-1k", P99)), "ms"),
    Line(
        "end to end through the Python client at 1,000/s, p50 / p99",
        (("py-latency-1k", P50), ("py-latency-1k", P99)),
        "ms",
    ),
    Line("end to end at 20,000/s with TLS, mean / p99", (("tls-20k", "mean ms"), ("tls-20k", P99)), "ms"),
    Line(
        "20,000/s over 10,000 topics with a producer and a consumer each, mean / p99",
        (("10000-topics", "mean ms"), ("10000-topics", P99)),
        "ms",
    ),
    Line(
        "publish / catch-up of batches of 100 × 100 B through the Python client",
        (("py-publish-100b-batched", RATE), ("py-catch-up-100b-batched", RATE)),
        "batches/s",
    ),
    Line("process start to first acknowledged message", (("start", FIRST),), "s"),
    Line("idle memory", (("idle", RSS),), "MiB"),
    Line("idle processor", (("idle", CORE),), "% of a core"),
    Line("highest memory over all loads", (("peak", RSS),), "MiB"),
    Line(
        "processor time of the broker per entry, publish 1 KiB, window 1,000 / 20,000",
        (("publish-1k-w1000", COST), ("publish-1k-w20000", COST)),
        "µs",
    ),
)


FURTHER: Final = tuple(name for name in PEERS if name != PEER)
WHAT_IS_EQUAL: Final = (
    "## What is equal, and what is not",
    "",
    "All brokers are driven by the same generator, in their own protocols, and every receipt is checked. An entry is a",
    "message for NATS and a record batch for Kafka, each in a request of its own; the row of batches is how clients of",
    "Kafka send by default. A topic is a stream, or a topic with one partition.",
    "",
    "NATS and Kafka acknowledge by default what is not yet on the disk: a machine that loses power loses up to two",
    "minutes of it (NATS), or as much as the system has not written yet (Kafka, which relies on replicas). Told to",
    "sync, they promise what penstock promises. Reading costs the same in both cases, and is measured in the first.",
    "",
    "A lone reader acknowledges nothing at NATS and Kafka, and at times all before it at penstock. NATS acknowledges",
    "messages of a shared consumer one by one. Kafka shares a partition between consumers in share groups, which are",
    "not measured.",
    "",
)
WHAT_LIMITS: Final = (
    "## What the machine reaches",
    "",
    "MB of payload a second of each part alone: writing and syncing the largest groups that penstock could make (half",
    "of what is outstanding, 8 MiB at most), over a file that is there already; the same in groups of one read of a",
    "socket (512 KiB), which penstock's come near where syncs are short; the loopback interface with receipts, as an",
    "echo, or from the file to a reader; a copy in memory. The slower of loopback and disk in the largest groups is",
    "the limit of a load; of a receipt's latency, it is a round trip with one write and one sync behind it.",
    "",
)


def readme_part(document: Mapping[str, Any]) -> str:
    """The part of the README: when it was measured, and the table."""
    rows = by_name(document["rows"])
    others = [name for name in (*PEERS, LIMIT) if any(name in row["by_subject"] for row in document["rows"])]
    heads = [head for name in others for head in ((NAMES[name], "ratio") if name != LIMIT else ("of the limit",))]
    lines = [["load", NAMES[PENSTOCK], *heads]]
    for line in LINES:
        found = [rows[key] for key in line.figures if key in rows]
        if len(found) == len(line.figures):
            cells = [line.text, _cell(found, PENSTOCK, line.unit)]
            for name in others:
                if name != LIMIT:
                    cells.append(_cell(found, name, line.unit))
                cells.append(" / ".join(compare(name, ratio_of(row, name)) for row in found))
            lines.append(cells)
    return f"{about_line(document['about'], document['rows'])}\n\n" + _markdown(lines)


def _cell(rows: Sequence[Mapping[str, Any]], name: str, unit: str) -> str:
    summaries = [row["by_subject"].get(name) for row in rows]
    if None in summaries:
        return NOTHING
    return f"{' / '.join(_number(one['median']) for one in summaries)} {unit}"


def _number(value: float) -> str:
    return f"{value / 1000:,.0f}k" if value >= 10_000 else short(value)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|---" * len(lines[0]) + "|", *body]) + "\n"


WHAT_GROWS: Final = (
    "## What one more costs, as it grows",
    "",
    "`python -m benchmarks.growth` lets topics (with a producer and a message each), connections (with a producer and",
    "a consumer each), subscriptions of a topic, stored gigabytes and brokers of a machine grow step by step. Beside",
    "each step stand the processor time and the resident memory of the broker for each one that it added, the memory",
    "of the whole process, and what its neighbours notice: the median time until a lone message has its receipt.",
    "Processor time is counted in steps of 10 ms, so those of the first hundred say little.",
    "",
)
# The columns of each series, and what they are called.
GROWTH_COLUMNS: Final = (
    ("us", "µs each"),
    ("KiB", "KiB each"),
    ("MiB", "MiB in all"),
    ("us a delivery", "µs a delivery"),
    ("receipt ms", "receipt ms"),
    ("seconds", "s"),
    ("start core s", "start, core s"),
    ("first message ms", "first message ms"),
    ("idle core %", "idle, % of a core"),
)


# What is plotted of growth: a line of dots is straight if they are below each other.
GROWTH_CHARTS: Final = (
    ("Processor time for one more, µs (below each other: straight)", "us"),
    ("Memory for one more, KiB (below each other: straight)", "KiB"),
    ("Receipt of a lone message as others grow, ms (less is better)", "receipt ms"),
)


def growth_charts(document: Mapping[str, Any]) -> dict[str, str]:
    """The plots of growth by title, each an SVG element."""
    series = list(dict.fromkeys(row["series"] for row in document["rows"]))
    found = {}
    for title, key in GROWTH_CHARTS:
        rows = [row for row in document["rows"] if row.get(key, 0) > 0]
        dots = [(f"{row['count']:,} {row['series']}", [(series.index(row["series"]), *[row[key]] * 3)]) for row in rows]
        found[title] = dot_chart(title, dots, {series.index(row["series"]): row["series"] for row in rows})
    return found


def growth_part(document: Mapping[str, Any]) -> list[str]:
    """The part of the page about growth: a table of each series."""
    plots = [f"![{title}](../figures/{_file_of(title)})\n" for title in growth_charts(document)]
    lines = [*WHAT_GROWS, f"Measured {document['at'][:10]}{document.get('note', '')}.", "", *plots]
    for series in dict.fromkeys(row["series"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["series"] == series]
        columns = [(key, name) for key, name in GROWTH_COLUMNS if key in rows[0]]
        body = [[f"{row['count']:,}", *(short(row[key]) for key, _ in columns)] for row in rows]
        lines.append(_markdown([[series, *(name for _, name in columns)], *body]))
    return lines


def page(document: Mapping[str, Any], growth: Mapping[str, Any]) -> str:
    """The page with every row, and the plots."""
    rows = document["rows"]
    parts = parts_table(rows)
    lines = [
        "# Benchmarks",
        "",
        about_line(document["about"], rows),
        "`make bench PEER=pulsar,nats,kafka,limit` measures again, and `python -m tools.write_figures` writes this",
        "page.",
        "",
        "Medians, with the least and the most of all rounds in brackets. Beside the first figure of a load stands the",
        "processor time that the broker took for an entry. A load counts only if the broker was the limit. Where",
        "stands –, the broker has no equivalent of the load, or it was not measured.",
        "",
        *(f"![{title}](../figures/{_file_of(title)})\n" for title in charts(rows)),
        _markdown(table(rows, (PENSTOCK, *PEERS, LIMIT))),
        *(WHAT_IS_EQUAL if any(name in row["by_subject"] for row in rows for name in FURTHER) else []),
        *([*WHAT_LIMITS, _markdown(parts)] if parts else []),
        *growth_part(growth),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _file_of(title: str) -> str:
    return re.sub(r"[^a-z]+", "-", title.partition(" (")[0].lower().replace("µ", "u")).strip("-") + ".svg"


def by_name(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Rows by load and figure."""
    return {(row["load"], row["figure"]): row for row in rows}


def files(document: Mapping[str, Any]) -> dict[Path, str]:
    """Every file that shows figures, and what it must hold."""
    readme = _PART.sub(lambda part: f"{part[1]}{readme_part(document)}{part[2]}", README.read_text(encoding="utf-8"))
    growth = json.loads(GROWTH.read_text(encoding="utf-8"))
    plots = charts(document["rows"]) | growth_charts(growth)
    svg = {FIGURES / _file_of(title): f"{chart}\n" for title, chart in plots.items()}
    return {README: readme, PAGE: page(document, growth), **svg}


def kept(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run: its rows, without the figures that only explain others."""
    names = {name for name in document["about"] if name in {"at", "python", "machine", "seconds", "note"}}
    return {
        "about": {name: document["about"][name] for name in sorted(names)},
        "rows": [row for row in document["rows"] if row["shown"]],
    }


def main(arguments: Sequence[str]) -> int:
    """Take over a run, if one is named, and write every file that is behind."""
    FIGURES.mkdir(exist_ok=True)
    if arguments:
        document = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        file, taken = (FILE, kept(document)) if "about" in document else (GROWTH, document)
        file.write_text(json.dumps(taken, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    wanted = files(json.loads(FILE.read_text(encoding="utf-8")))
    for plot in set(FIGURES.glob("*.svg")) - wanted.keys():
        plot.unlink()
    for file, text in wanted.items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
