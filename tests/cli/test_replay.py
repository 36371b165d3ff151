# SPDX-License-Identifier: Apache-2.0
"""`penstock replay`: traces in, a table and a page of charts out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

LOUD = "persistent://loud/ns/t"
CALM = "persistent://calm/ns/t"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A minute of calm, a minute in which memory is short, a minute of calm."""
    rows = [
        {
            "seconds": at_s,
            "memory": 0.82 if 60 <= at_s < 120 else 0.5,
            "topics": {
                LOUD: {"messagesPerSecond": 9_000, "bytesPerSecond": 9e6},
                CALM: {"messagesPerSecond": 100, "bytesPerSecond": 1e5, "backlog": 0.3},
            },
        }
        for at_s in range(180)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_it_shows_who_would_have_been_throttled_and_how_far(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(trace)]) == 0
    head, loud, calm, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["topic", "activated", "throttled", "lowest", "rate", "published", "worst", "pressure"]
    # From second 60 until the fifth calm cycle; memory pressure is 0.8, and so the rate 28 % of 9,000.
    assert loud.split()[:6] == [LOUD, "1", "64", "s", "2,520/s", "76%"]
    assert "memory 0.80" in loud
    assert calm.split()[:6] == [CALM, "0", "0", "s", "-", "100%"]
    assert total == "1 activations of 1 topics"


def test_other_settings_decide_otherwise(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(trace), "--set", "MemoryLowWatermarkPct=0.83", "--decisions"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 activations of 0 topics"
    key = "adaptivePublisherThrottlingMinRateFactor"
    assert main(["replay", str(trace), "--set", f"{key}=0.5", "--decisions"]) == 0
    out = capsys.readouterr().out
    assert "5,400/s" in out
    decided = [line.split()[2:4] for line in out.splitlines() if "activated " in line]
    of_both = [[kind, who] for kind in ("activated", "deactivated") for who in (LOUD, "loud")]
    assert [one for one in decided if one[0] in {"activated", "deactivated"}] == of_both, "the topic, and its payer"


def test_csv_is_the_same_trace(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(trace)]) == 0
    expected = capsys.readouterr().out
    lines = ["seconds,memory,topic,messagesPerSecond,bytesPerSecond,backlog"]
    for row in map(json.loads, trace.read_text(encoding="utf-8").splitlines()):
        for name, use in row["topics"].items():
            numbers = (use["messagesPerSecond"], use["bytesPerSecond"], use.get("backlog", ""))
            lines.append(",".join(map(str, (row["seconds"], row["memory"], name, *numbers))))
    same = tmp_path / "trace.csv"
    same.write_text("\n".join(lines), encoding="utf-8")
    assert main(["replay", str(same)]) == 0
    assert capsys.readouterr().out == expected


def test_a_page_has_two_charts_per_topic_and_no_script(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["replay", str(trace), "--plot", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == text.count("</svg>") == 4
    assert "<script" not in text
    assert "nan" not in text
    assert f'aria-label="{LOUD}: messages per second: wanted from 9000 to 9000;' in text
    assert len(text) < 200_000


def test_names_of_topics_cannot_put_anything_into_the_page(tmp_path: Path) -> None:
    path, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    row = {"topics": {"<script>alert(1)</script>": {"messagesPerSecond": 1}}}
    path.write_text("\n".join(json.dumps({"seconds": at_s, **row}) for at_s in range(3)), encoding="utf-8")
    assert main(["replay", str(path), "--plot", str(page)]) == 0
    assert "<script" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        ('{"memory": 1}', "there is no 'seconds'"),
        ('{"seconds": 0}', "want rows in the order of time"),
        ('{"seconds": 9, "memory": -1}', "want a number of 0 or more"),
        ('{"seconds": 9, "topics": {"t": {}}}', "there is no 'messagesPerSecond'"),
        ('{"seconds": 9, "topics": {"t": 5}}', "line 2"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"seconds": 1}\n' + line, encoding="utf-8")
    assert main(["replay", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_wrong_setting_or_file_is_told(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(trace), "--set", "MemoryLowWatermarkPct=0.9"]) == 2
    assert "must be below" in capsys.readouterr().err
    assert main(["replay", str(trace), "--set", "Nonsense"]) == 2
    assert main(["replay", str(trace.with_name("none.jsonl"))]) == 2
    assert "cannot be read" in capsys.readouterr().err
