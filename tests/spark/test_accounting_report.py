# SPDX-License-Identifier: Apache-2.0
"""The report, as its file says and as a browser shows it on a telephone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.accounting.tables import COSTS, EPISODES, NOISY_NEIGHBOURS, QUOTA_FIT, TOPIC_USAGE
from penstock.cli.main import main
from penstock.spark.accounting.directory import directory_of
from penstock.spark.accounting.findings import gather, jain
from penstock.spark.accounting.schemas import arrow_schema
from penstock.spark.accounting.store import open_store
from tests.examples.browser import browsing, find_browser
from tests.needed import skip
from tests.spark.accounted import NOON, add, record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.accounting.tables import Table
    from tests.examples.browser import Page

AT = datetime.fromtimestamp(NOON / 1_000, UTC)
NAMES = ("gold", "silver", "=-:_.", "bronze", "tin")
HOSTILE = "persistent://gold/n/<script>alert('x')</script>&\"" + "long-" * 60


def row_of(table: Table, **given: Any) -> dict[str, Any]:  # noqa: ANN401
    blank = {"long": 0, "double": 0.0, "string": "", "timestamp": AT, "boolean": False, "decimal": None}
    return {**{one.name: blank.get(one.type.rstrip("?")) for one in table.columns}, "version": 1, **given}


def make_tables(tables: Path) -> None:
    """Half an hour of five tenants, one of which is slowed."""
    for minute in range(30):
        at = 100 * minute
        used = [(tenant, (number + 1) * (minute + 1) * 50_000) for number, tenant in enumerate(NAMES)]
        records = [
            record(at + number, minute, topic=HOSTILE if number == 0 else f"persistent://{tenant}/n/t", tenant=tenant,
                   namespace=f"{tenant}/n", published_bytes=nbytes, published_messages=nbytes // 100)
            for number, (tenant, nbytes) in enumerate(used)
        ]  # fmt: skip
        group = record(at + 90, minute, "group", resource_groups=["paid"], published_messages=used[0][1] // 100,
                       published_bytes=used[0][1], publish_limited_ms=(minute + 1) * 2_000,
                       quota_publish_messages=10.0, share_publish_messages=10.0)  # fmt: skip
        add(tables, minute, [*records, group, record(at + 91, minute, "broker")])
    store = open_store(directory_of(tables), "parquet")
    day = next(iter(store.files(TOPIC_USAGE)))
    made = {
        EPISODES: [
            row_of(EPISODES, since=AT + timedelta(minutes=number), until=AT + timedelta(minutes=number, seconds=30),
                   ended=True, limiter="group-quota", resource_group="paid", times=3, held_ms=9_000)
            for number in range(10)
        ],
        NOISY_NEIGHBOURS: [row_of(NOISY_NEIGHBOURS, topic=HOSTILE, resource_group="paid", minutes=3, part=0.9)],
        QUOTA_FIT: [row_of(QUOTA_FIT, resource_group="paid", kind="publish_messages", quota=10.0, fit="small")],
        COSTS: [row_of(COSTS, namespace="gold/n", counter="published_bytes", amount=5, unpriced=True)],
    }  # fmt: skip
    for table, rows in made.items():
        store.replace(table, day, pa.Table.from_pylist(rows, schema=arrow_schema(table)))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("accounting") / "tables"
    make_tables(directory)
    return directory


@pytest.fixture(scope="module")
def report(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "usage.html"
    assert main(["spark", "report", "--tables", str(tables), "--output", str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = find_browser()
    if program is None:
        skip("there is no Chromium on the PATH to look at the report with: apt-get install chromium")
    with browsing(program, tmp_path_factory.mktemp("browser")) as page:
        yield page


def test_findings_are_those_of_the_tables(tables: Path) -> None:
    found = gather(open_store(directory_of(tables), "parquet"))
    assert found.totals["published_bytes"] == sum((number + 1) * 30 * 50_000 for number in range(5))
    assert list(found.tenants) == ["tin", "bronze", "=-:_.", "others"]
    assert len(found.minutes) == 30
    assert all(0.81 < value < 0.82 for _, value in found.fairness)
    assert found.topics[0]["tenant"] == "tin"
    assert 8 < found.advice[0]["recommended"] < 12
    assert jain([5, 5]) == 1.0
    assert jain([5, 0]) == 0.5


def test_the_page_has_everything_and_fetches_nothing(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    for title in ("Usage", "Fairness", "Who was slowed", "Top talkers", "Noisy neighbours", "Quotas", "Costs"):
        assert re.search(rf"<h2>{title}", text), title
    assert "<script" not in text
    assert not re.search(r"(src|href)=|url\(", text)
    assert len(text) < 200_000


def test_a_report_without_rows_is_a_page(tmp_path: Path) -> None:
    add(tmp_path, 0, [record(0, 0, "broker")])
    (tmp_path / "topic_usage").mkdir(exist_ok=True)
    file = tmp_path / "usage.html"
    assert main(["spark", "report", "--tables", str(tmp_path), "--output", str(file)]) == 0
    assert "Nothing was used." in file.read_text(encoding="utf-8")
    assert main(["spark", "report", "--tables", str(tmp_path / "no"), "--output", str(file)]) == 2


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_shows_all_of_it_within_its_width(page: Page, report: Path, width: int, dark: bool) -> None:
    page.open(report, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('svg').length") == 2
    assert page.evaluate("[...document.querySelectorAll('svg')].every(one => one.getBoundingClientRect().height > 100)")
    assert page.evaluate("Math.min(...[...document.querySelectorAll('body *')].filter(one => one.children.length == 0 "
                         "&& one.textContent.trim() && !one.closest('head')).map(one => "
                         "parseFloat(getComputedStyle(one).fontSize)))") >= 12  # fmt: skip
    assert page.evaluate("document.querySelectorAll('h2').length") == 7
    complaints = page.heard("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
    assert complaints == []
    assert [one["request"]["url"] for one in page.heard("Network.requestWillBeSent")] == [report.as_uri()]
