# SPDX-License-Identifier: Apache-2.0
"""Samples → medians, spreads, ratios and verdicts → a table for people and one for programs.

Where: `run` hands it everything at the end. Other benchmarks print their figures with `print_table`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from benchmarks.loads import COPY, COST, DISK, DISK_BY_READS, LOOPBACK, MESSAGES, PLANS, RATE, TARGETS, VOLUME, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PENSTOCK, BEFORE, PEER = "penstock", "before", "pulsar"
NATS, NATS_SYNC, KAFKA, KAFKA_SYNC, LIMIT = "nats", "nats-sync", "kafka", "kafka-sync", "limit"
NAMES = {
    PENSTOCK: "penstock",
    BEFORE: "penstock before",
    PEER: "Apache Pulsar",
    NATS: "NATS JetStream (default)",
    NATS_SYNC: "NATS JetStream (sync_interval: always)",
    KAFKA: "Apache Kafka (default)",
    KAFKA_SYNC: "Apache Kafka (flush.messages=1)",
    LIMIT: "the machine",
}
SUBJECTS = tuple(NAMES)
# Other brokers than penstock, and those of them that acknowledge what is not yet on the disk.
PEERS = (PEER, NATS, NATS_SYNC, KAFKA, KAFKA_SYNC)
UNSYNCED = (NATS, KAFKA)
NOTHING = "–"
# What the limit of a load consists of.
PARTS = (DISK, DISK_BY_READS, LOOPBACK, COPY)
RATES = {RATE, VOLUME, MESSAGES, "read entries/s"}
TEXTS = {
    "start": "from the start of the process",
    "idle": "without clients",
    "peak": "highest memory over all loads",
}
# A row is worse than before only if no round of it was as good as any round before, and by more than this.
WORSE_RATIO_MAX = 0.95
ROUNDS_TO_JUDGE_MIN = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one load on one broker in one round."""

    load: str
    subject: str
    figure: str
    value: float
    void: str | None = None  # why it does not count


@dataclass(frozen=True, slots=True)
class Summary:
    """A figure over all rounds: median, least and most; `void` if any round of it was."""

    median: float
    least: float
    most: float
    void: str | None
    rounds: int = 1

    def __str__(self) -> str:
        spread = "" if self.least == self.most else f" ({short(self.least)}–{short(self.most)})"
        return f"{short(self.median)}{spread}{' void' if self.void else ''}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    load: str
    figure: str
    by_subject: Mapping[str, Summary]
    ratio: float | None  # how many times better than Apache Pulsar, which targets are about
    target: Target | None
    gain: float | None = None  # how many times better than before
    ratios: Mapping[str, float] = field(default_factory=dict)  # than each of the others, and of the machine's limit

    @property
    def is_worse(self) -> bool:
        """Say whether it is certainly worse than before."""
        if self.gain is None or self.gain > WORSE_RATIO_MAX:
            return False
        own, before = self.by_subject[PENSTOCK], self.by_subject[BEFORE]
        if min(own.rounds, before.rounds) < ROUNDS_TO_JUDGE_MIN:
            return False
        return own.most < before.least if self.figure in RATES else own.least > before.most

    @property
    def verdict(self) -> str:
        """Say what the target makes of it: goal, floor, missed, or nothing."""
        if self.target is None or PENSTOCK not in self.by_subject:
            return ""
        if self.target.at_most is not None:
            return "floor" if self.by_subject[PENSTOCK].median <= self.target.at_most else "missed"
        if self.ratio is None or self.target.floor is None:
            return ""
        if self.target.goal is not None and self.ratio >= self.target.goal:
            return "goal"
        return "floor" if self.ratio >= self.target.floor else "missed"


def summarize(samples: Iterable[Sample]) -> list[Row]:
    """Gather samples into rows, in the order in which loads and figures first came."""
    gathered: dict[tuple[str, str], dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        gathered[sample.load, sample.figure][sample.subject].append(sample)
    targets = {(target.load, target.figure): target for target in TARGETS}
    rows = []
    for (load, figure), by_subject in gathered.items():
        summaries = {subject: summary(taken) for subject, taken in by_subject.items()}
        ratios = {name: found for name in (*PEERS, LIMIT) if (found := ratio(figure, summaries, name)) is not None}
        gain = ratio(figure, summaries, BEFORE)
        rows.append(Row(load, figure, summaries, ratios.get(PEER), targets.get((load, figure)), gain, ratios))
    return rows


def summary(taken: Sequence[Sample]) -> Summary:
    """Summarize one figure's rounds."""
    values = [sample.value for sample in taken]
    void = next((sample.void for sample in taken if sample.void), None)
    return Summary(statistics.median(values), min(values), max(values), void, len(values))


def ratio(figure: str, summaries: Mapping[str, Summary], other: str) -> float | None:
    """Say how many times better than another subject penstock is, or None where that can't be said.

    Than the machine, it is the share of the limit that penstock reaches.
    """
    own, peer = summaries.get(PENSTOCK), summaries.get(other)
    if own is None or peer is None or own.void or peer.void or not own.median or not peer.median:
        return None
    return own.median / peer.median if figure in RATES else peer.median / own.median


def markdown(rows: Sequence[Row]) -> str:
    """Write the rows that matter as a Markdown table that also reads well as plain text; the samples hold the rest.

    Behind each broker's figure stands its processor time per entry, and behind those the comparisons: with the version
    before, with Apache Pulsar, which the targets are about, with the other brokers, and the share of the limit.
    """
    subjects = [name for name in SUBJECTS if any(name in row.by_subject for row in rows)]
    others = [name for name in subjects if name in {*PEERS, LIMIT} - {PEER}]
    heads = [part for name in subjects for part in (name, "µs/entry")[: 1 + (name != LIMIT)]]
    compared = [
        *(["than before"] if BEFORE in subjects else []),
        *("times better", "floor", "goal", "reached"),
        *("of the limit" if name == LIMIT else f"than {name}" for name in others),
    ]
    cells = [["load", "figure", *heads, *compared]]
    costs = {row.load: row for row in rows if row.figure == COST}
    for row in shown_rows(rows):
        target = row.target or Target(row.load, row.figure)
        floor = f"≤ {short(target.at_most)}" if target.at_most is not None else times(target.floor)
        cost = costs.pop(row.load, None)  # beside the first figure of a load only
        values = [
            str(part.by_subject.get(subject, NOTHING if part is row else "")) if part else ""
            for subject in subjects
            for part in (row, cost)[: 1 + (subject != LIMIT)]
        ]
        more = [compare(name, row.ratios.get(name)) for name in others]
        gains = [f"{times(row.gain)}{' worse' if row.is_worse else ''}"] if BEFORE in subjects else []
        cells.append(
            [row.load, row.figure, *values, *gains, times(row.ratio), floor, times(target.goal), row.verdict, *more]
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """Leave out figures that explain others."""
    return [row for row in told_rows(rows) if row.figure not in {COST, *PARTS}]


def told_rows(rows: Sequence[Row]) -> list[Row]:
    """Leave out figures that explain others, but not the processor time and the parts of the limit."""
    shown = {plan.name: (*plan.shown, *PARTS) for plan in PLANS}
    return [row for row in rows if row.figure in shown.get(row.load, (row.figure,))]


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Rows for programs: each broker's median, least, most, number of rounds, and what voids it."""
    texts = {plan.name: plan.text for plan in PLANS} | TEXTS
    told = told_rows(rows)
    return [
        {
            "load": row.load,
            "text": texts.get(row.load, ""),
            "figure": row.figure,
            "by_subject": {name: asdict(one) for name, one in row.by_subject.items()},
            "ratio": row.ratio,
            "ratios": dict(row.ratios),
            "gain": row.gain,
            "verdict": row.verdict,
            "shown": row in told,
        }
        for row in rows
    ]


def print_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table of a column for each broker and a row for each figure."""
    print(f"\n| {title} | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for figure in next(iter(columns.values())):
        cells = [short(values[figure]) if figure in values else "" for values in columns.values()]
        print(f"| {figure} | " + " | ".join(cells) + " |", flush=True)


def compare(name: str, value: float | None) -> str:
    """Format how penstock compares: a share of the machine's limit in per cent, else how many times better it is."""
    if value is None:
        return NOTHING
    if name == LIMIT:
        return f"{100 * value:.0f} %"
    return f"{short(value) if value >= 10 else format(value, '.2g')}×"


def times(value: float | None) -> str:
    """Format a ratio."""
    return "" if value is None else f"{short(value)}×"


def short(value: float) -> str:
    """Format a figure with three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
