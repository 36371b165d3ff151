# SPDX-License-Identifier: Apache-2.0
"""The documentation says what the code does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from penstock.cli.main import build_parser
from penstock.settings.model import KEYS
from tests.compat.features import FEATURES
from tools.write_reference import ROOT, actions, render

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.setting import Key

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changes/*.md")])
CONFIGURATION = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")


def _name(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_generated_parts_are_up_to_date(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert render(text) == text, "run `make docs`"


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_every_setting_is_documented(key: Key) -> None:
    assert f"| `{key.name}` |" in CONFIGURATION
    assert key.variable in CONFIGURATION


def test_every_flag_is_documented() -> None:
    flags = [flag for _, action in actions(build_parser()) for flag in action.option_strings]
    assert [flag for flag in flags if f"`{flag}`" not in CONFIGURATION] == []


def test_the_compatibility_table_has_a_row_for_every_feature() -> None:
    page = (ROOT / "docs/reference/compatibility.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == list(FEATURES.values()), "run tests/compat/run.py --write"
    assert [row for row in rows if "**no**" in row] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_links_inside_the_repository_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_every_make_target_that_is_mentioned_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    mentioned = set(re.findall(r"`make ([a-z]+)", document.read_text(encoding="utf-8")))
    assert mentioned <= targets
