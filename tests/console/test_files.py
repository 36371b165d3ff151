# SPDX-License-Identifier: Apache-2.0
"""The files of the console: what they weigh, who is sent them, and what the browser is told to refuse."""

from __future__ import annotations

import gzip
import html
import json
import re
import subprocess
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx
import pytest

from penstock.admin.console import FOLDER, POLICY
from penstock.admin.front import WithConsole, prefers_html
from penstock.admin.http_memory import HttpMemory
from penstock.core.units import KIB

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

COMPRESSED_MAX = 100 * KIB
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file())
OURS = [path for path in FILES if "vendor" not in path.parts]
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


async def teapot(_scope: Scope, _receive: Receive, send: Send) -> None:
    """An application that is not the console."""
    await send({"type": "http.response.start", "status": HTTPStatus.IM_A_TEAPOT, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def http() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(WithConsole(teapot, "broker", HttpMemory())), base_url="http://broker"
    )


def test_all_files_together_are_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in FILES) <= COMPRESSED_MAX


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix in {".js", ".css", ".html"}], ids=lambda path: path.name
)
async def test_every_file_is_sent_with_the_policy_and_compressed(http: httpx.AsyncClient, path: Path) -> None:
    answer = await http.get(f"/console/{path.relative_to(FOLDER).as_posix()}")
    assert answer.status_code == HTTPStatus.OK
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["content-encoding"] == "gzip"
    plain = await http.get(f"/console/{path.relative_to(FOLDER).as_posix()}", headers={"accept-encoding": "identity"})
    assert plain.content == answer.content
    again = await http.get(answer.request.url, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (HTTPStatus.NOT_MODIFIED, b"")


def test_the_policy_has_no_exceptions() -> None:
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    assert "*" not in POLICY
    assert "default-src 'none'" in POLICY
    assert "frame-ancestors 'none'" in POLICY


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_page_reads_text_as_html_or_runs_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:", text
    )
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=\"|\sstyle=\"", text)
    assert not re.search(r"https?://", text)


def test_every_file_that_is_vendored_is_named_in_the_notice_with_its_licence() -> None:
    notice = (FOLDER.parents[2] / "NOTICE").read_text(encoding="utf-8")
    for path in (FOLDER / "vendor").iterdir():
        assert path.name in notice
    banner = re.search(r"uPlot \(v([\d.]+)\)", (FOLDER / "vendor/uplot.js").read_text(encoding="utf-8"))
    assert banner is not None
    assert re.search(rf"uplot.*{re.escape(banner[1])}", notice, re.IGNORECASE)


async def test_a_browser_gets_the_page_and_a_program_what_it_got_before(http: httpx.AsyncClient) -> None:
    page = await http.get("/", headers={"accept": BROWSER})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert 'data-server="broker"' in page.text
    for accept in ("*/*", "application/json", "application/json, text/html", "text/html;q=0.5, application/json"):
        assert (await http.get("/", headers={"accept": accept})).status_code == HTTPStatus.IM_A_TEAPOT
    assert (await http.get("/admin/v2/tenants", headers={"accept": BROWSER})).status_code == HTTPStatus.IM_A_TEAPOT
    assert (await http.post("/", headers={"accept": BROWSER})).status_code == HTTPStatus.IM_A_TEAPOT


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (BROWSER, True),
        ("TEXT/HTML", True),
        ("text/html;q=0.9, application/json;q=0.8", True),
        ("text/html;q=0", False),
        ("text/html;q=x", False),
        ("text/*", False),
        ("", False),
    ],
)
def test_html_is_preferred_by_who_names_it(accept: str, html: bool) -> None:
    assert prefers_html([(b"accept", accept.encode())]) is html


async def test_the_page_leads_to_the_consoles_of_other_clusters_whatever_their_names_are() -> None:
    consoles = [('"><script>', "https://west:8443")]
    app = WithConsole(teapot, "broker", HttpMemory(), consoles)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker") as http:
        page = (await http.get("/", headers={"accept": BROWSER})).text
    assert "<script>" not in page.partition("<body>")[0].replace('<script src="', "")
    (said,) = re.findall(r'data-consoles="([^"]*)"', page)
    assert json.loads(html.unescape(said)) == [list(one) for one in consoles]


@pytest.mark.parametrize("name", ["nothing.js", "../__init__.py", "..%2f__init__.py", "vendor", "vendor/"])
async def test_there_are_no_other_files(http: httpx.AsyncClient, name: str) -> None:
    answer = await http.get(f"/console/{name}")
    assert answer.status_code in {HTTPStatus.NOT_FOUND, HTTPStatus.IM_A_TEAPOT}


def test_a_broker_that_nobody_looks_at_has_not_read_the_console() -> None:
    code = (
        "import sys, penstock.admin.http_server, penstock.admin.probes, penstock.admin.front; "
        "import penstock.admin.proxy_api; "
        "print([name for name in ('fastapi', 'penstock.admin.console', 'gzip') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "console" not in done.stdout
    assert "fastapi" not in done.stdout


def test_the_console_needs_no_framework_of_the_routes() -> None:
    code = (
        "import sys, penstock.admin.console as console; console.Console('broker', '/console/'); "
        "print([name for name in ('fastapi', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
