# SPDX-License-Identifier: Apache-2.0
"""The figures in the documentation are those of the run that is kept."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.loads import DISK
from benchmarks.page import charts, html_page
from benchmarks.report import BEFORE, KAFKA, LIMIT, NAMES, NATS, NATS_SYNC, PEER, PENSTOCK, Sample, as_json, summarize
from tools.write_figures import FIGURES, FILE, LINES, README, files, growth_charts, growth_part, kept, page, readme_part

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCUMENT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
GROWN: dict[str, Any] = {
    "at": "2026-01-02T03:04:05Z",
    "rows": [
        {"series": "topics", "count": count, "us": 500.0, "KiB": 2.0, "MiB": 50.0, "receipt ms": 0.4}
        for count in (1, 1_000)
    ],
}


def test_every_file_shows_the_figures_that_are_kept() -> None:
    wanted = files(DOCUMENT)

    behind = [file.name for file, text in wanted.items() if file.read_text(encoding="utf-8") != text]
    assert behind == [], "run `python -m tools.write_figures`"
    assert set(FIGURES.glob("*.svg")) <= wanted.keys()


def test_the_readme_says_when_it_was_measured() -> None:
    part = readme_part(DOCUMENT)

    assert part in README.read_text(encoding="utf-8")
    assert DOCUMENT["about"]["at"][:10] in part


def run_of(rate: float, others: Sequence[str] = ()) -> dict[str, Any]:
    """What a run leaves; with others, each as good as penstock was before."""
    samples = [
        Sample(load, subject, figure, value * factor)
        for line in LINES
        for load, figure in line.figures
        for subject, value in (
            *((PENSTOCK, rate), (BEFORE, rate / 2), (PEER, rate / 4)),
            *((other, rate / 2) for other in others),
        )
        for factor in (0.9, 1, 1.1)
    ]
    samples.append(Sample("publish-1k-w1000", PENSTOCK, "generator core", 0.3))
    samples += [Sample("publish-1k-w1000", other, DISK, 700) for other in others if other == LIMIT]
    about = {"at": "2026-01-02T03:04:05Z", "machine": "one", "python": "3", "seconds": 2, "scratch": "/somewhere"}
    return {"about": about, "rows": as_json(summarize(samples)), "samples": []}


def test_what_grows_has_a_table_of_each_series_and_a_plot_of_each_figure() -> None:
    lines = growth_part(GROWN)

    assert "| 1,000 | 500 | 2 | 50 | 0.4 |" in "\n".join(lines)
    assert [title for title in growth_charts(GROWN) if any(f"![{title}]" in line for line in lines)] == list(
        growth_charts(GROWN)
    )


def test_a_new_run_changes_all_lines_of_the_readme_and_leaves_out_what_only_explains() -> None:
    taken = kept(run_of(12_345.0))

    part = readme_part(taken)

    assert "Measured 2026-01-02 on one, Python 3" in part
    assert len(part.splitlines()) == 4 + len(LINES)
    assert "12k entries/s | 3,086 entries/s | 4×" in part.replace("12k / 12k", "12k").replace("3,086 / 3,086", "3,086")
    assert "generator core" not in {row["figure"] for row in taken["rows"]}
    assert "scratch" not in taken["about"]


ALL = (NATS, NATS_SYNC, KAFKA, LIMIT)


def test_a_run_beside_several_others_has_columns_for_each_of_them() -> None:
    taken = kept(run_of(12_345.0, ALL))

    head = next(line for line in readme_part(taken).splitlines() if line.startswith("| load"))
    assert head.count("ratio") == 4
    assert head.endswith("| of the limit |")
    assert "all but NATS JetStream (default) and Apache Kafka (default) sync before they acknowledge" in readme_part(
        taken
    )
    lines = page(taken, GROWN).splitlines()
    (first,) = (line for line in lines if line.startswith("| publish-1k-w1000 | publish"))
    assert first.endswith("| 200 % |")
    assert first.count("| 2× |") == 3
    assert all(NAMES[name] in "".join(lines) for name in ALL)
    assert "| publish-1k-w1000 | 700 | – | – | – |" in lines


@pytest.mark.parametrize(
    "document", [DOCUMENT, kept(run_of(3.0)), kept(run_of(3.0, ALL))], ids=["kept", "new", "several"]
)
def test_plots_are_well_formed_and_say_what_they_show(document: dict[str, Any]) -> None:
    drawn = charts(document["rows"])

    assert len(drawn) >= 5
    for title, chart in drawn.items():
        root = ET.fromstring(chart)
        assert title in root.attrib["aria-label"]
        circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
        assert len(circles) >= 1
        assert all(0 < float(one.attrib["cx"]) < 720 for one in circles)


def test_the_page_has_the_table_and_all_plots() -> None:
    document = run_of(3.0)

    page = html_page(document["about"], document["rows"])

    assert page.count("<svg") == len(charts(document["rows"]))
    assert "penstock before" in page
    assert "3 (2.7–3.3)" in page
