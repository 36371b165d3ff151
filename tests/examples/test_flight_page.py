# SPDX-License-Identifier: Apache-2.0
"""The page at the end of the demo, as a browser shows it on a desk and on a telephone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from examples.flight_demo.page.document import render
from examples.flight_demo.page.squares import level
from examples.flight_demo.page.svg import tag, ticks, words
from tests.examples.browser import browsing, find_browser
from tests.examples.made_up_findings import made_up
from tests.needed import skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.examples.browser import Page

PAGE_BYTES_MAX = 1_500_000
DESK, TELEPHONE = 1280, 390
# Plots that must be seen: the map, the hours, the months, the histogram, the calendar, the flood, the quota, and the
# lag of one stream.
PLOTS = 8


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = find_browser()
    if program is None:
        skip("there is no Chromium on the PATH to look at the page with: apt-get install chromium")
    with browsing(program, tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "flights.html"
    path.write_text(render(made_up()), encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------------ in a browser


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [TELEPHONE, DESK])
def test_the_page_fits_and_shows_its_plots_without_a_complaint_or_a_request(
    browser: Page, document: Path, width: int, dark: bool
) -> None:
    browser.open(document, width=width, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"
    assert browser.evaluate("innerWidth") == width
    shown = "[...document.querySelectorAll('svg[role=img]')].filter(svg => svg.getBoundingClientRect().height > 100)"
    assert browser.evaluate(f"{shown}.length") == PLOTS
    assert browser.evaluate(f"{shown}.every(svg => svg.getBoundingClientRect().right <= innerWidth)")
    assert browser.heard("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
    requests = [sent["request"]["url"] for sent in browser.heard("Network.requestWillBeSent")]
    assert requests == [document.as_uri()]


@pytest.mark.parametrize("width", [TELEPHONE, DESK])
def test_writing_in_the_plots_can_be_read(browser: Page, document: Path, width: int) -> None:
    browser.open(document, width=width)
    heights = browser.evaluate(
        "[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().height).filter(h => h)"
    )
    assert min(heights) >= 10
    overlong = browser.evaluate(
        "[...document.querySelectorAll('svg text')].filter(text => {"
        " const box = text.getBoundingClientRect(), own = text.closest('section').getBoundingClientRect();"
        " return box.height && (box.left < own.left || box.right > own.right); }).map(text => text.textContent)"
    )
    assert overlong == []


def test_the_tables_behind_the_plots_do_not_make_the_page_wider(browser: Page, document: Path) -> None:
    browser.open(document, width=TELEPHONE)
    browser.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_light_and_dark_readers_get_different_paper(browser: Page, document: Path) -> None:
    paper = []
    for dark in (False, True):
        browser.open(document, width=DESK, dark=dark)
        paper.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert paper[0] != paper[1]


# ---------------------------------------------------------------------------------------------------- without a browser


def test_the_page_is_one_small_file_that_names_nothing_outside_itself() -> None:
    page = render(made_up())
    assert len(page.encode()) < PAGE_BYTES_MAX
    assert re.findall(r"(?:src|href|@import|url)\s*[=(]", page) == []
    assert "<script" not in page


def test_every_plot_says_in_words_and_in_a_table_what_it_shows() -> None:
    page = render(made_up())
    figures = re.findall(r"<figure>.*?</figure>.*?(?=<figure>|$)", page, re.DOTALL)
    assert len(figures) == PLOTS
    for figure in figures:
        assert re.search(r'<svg [^>]*role="img" aria-label="[^"]{40,}"', figure)
        assert "<details><summary>The numbers</summary>" in figure


def test_the_lag_of_a_stream_is_drawn_and_told_after_each_micro_batch() -> None:
    page = render(made_up())
    assert "<title>after micro-batch 1: 294,679 messages and 121 s behind</title>" in page
    assert "at first 294,679, in the end 0." in page
    assert "<td>294,679</td><td>121.0</td>" in page


def test_the_flood_and_the_quota_are_drawn_under_their_limits_and_told() -> None:
    page = render(made_up())
    assert "64 connections sent 1,280 MiB at once to a broker with 16 MiB for requests." in page
    assert "together at most 3,600, with a quota of 4,000." in page
    assert "producer &lt;p&gt; waits: the quota of group largest." in page
    assert "desk-a was killed." in page


def test_names_from_the_file_cannot_become_markup() -> None:
    page = render(made_up())
    assert '<b>"Bold"' not in page
    assert "Fly &lt;b&gt;" in page


def test_a_failed_check_is_shown_as_one() -> None:
    assert '<li class="failed">the sums agree<span>: 1 and 2</span></li>' in render(made_up())


@pytest.mark.parametrize(
    ("mean_min", "step"), [(-0.1, 0), (0.0, 1), (4.9, 1), (5.0, 2), (39.9, 6), (40.0, 7), (1e6, 7)]
)
def test_a_delay_belongs_to_the_step_whose_bound_it_has_reached(mean_min: float, step: int) -> None:
    assert level(mean_min) == step


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(23.9, [0, 10, 20]), (34, [0, 10, 20, 30]), (4, [0, 1, 2, 3, 4]), (0.9, [0, 0.25, 0.5, 0.75])],
)
def test_axes_have_round_numbers(highest: float, expected: list[float]) -> None:
    assert ticks(highest, 4) == pytest.approx(expected)


def test_attributes_and_text_are_escaped() -> None:
    assert tag("p", words("<&>"), class_='a"b') == '<p class="a&quot;b">&lt;&amp;&gt;</p>'
    assert tag("rect", stroke_width=1.25, x=2.0) == '<rect stroke-width="1.2" x="2"></rect>'
