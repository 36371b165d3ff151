# SPDX-License-Identifier: Apache-2.0
"""The documentation says what the code does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from penstock.cli.main import build_parser
from penstock.settings import load
from penstock.settings.model import KEYS
from tests.compat.features import FEATURES
from tools.shape import FOLDERS
from tools.write_operations import FILE as OPERATIONS
from tools.write_operations import operations
from tools.write_reference import ROOT, SAMPLE, actions, render, sample

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.setting import Key

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changes/*.md")])
COMMAND_LINE = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "penstock"
PYTHON = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
INTERNALS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/internals/*.md"))]
GLOSSARY = (ROOT / "docs/internals/glossary.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")


def _name(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_generated_parts_are_up_to_date(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert render(text) == text, "run `make docs`"


def test_the_sample_of_a_configuration_is_up_to_date() -> None:
    assert SAMPLE.read_text(encoding="utf-8") == sample(), "run `make docs`"


def test_the_sample_has_every_setting_commented_out_and_its_defaults_can_be_used(tmp_path: Path) -> None:
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []
    settings = [line[1:] for line in lines if re.match(r"#[\w.]+=", line)]
    assert [line.partition("=")[0] for line in settings] == [key.name for key in KEYS.values()]
    throttling = [line for line in settings if line.startswith("adaptivePublisherThrottling")]
    file = tmp_path / "broker.conf"
    file.write_text("\n".join(throttling), encoding="utf-8")
    with_defaults = load(file=file, environment={})
    assert with_defaults.sources["adaptivePublisherThrottlingEnabled"] == "broker.conf line 1"
    assert all(with_defaults.spelled(line.partition("=")[0]) == line.partition("=")[2] for line in throttling)


def test_the_quick_start_of_adaptive_throttling_is_what_it_says() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    assert len(re.findall(r"^#adaptivePublisherThrottling\w+=", text, re.MULTILINE)) == 10
    assert "#     adaptivePublisherThrottlingEnabled=true\n#     adaptivePublisherThrottlingObserveOnly=true\n" in text


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_every_setting_is_documented(key: Key) -> None:
    assert f"| `{key.name}` |" in CONFIGURATION
    assert key.variable in CONFIGURATION


def test_every_flag_is_documented() -> None:
    flags = [flag for _, action in actions(build_parser()) for flag in action.option_strings]
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", CONFIGURATION + COMMAND_LINE))
    assert [flag for flag in flags if flag not in known and not flag.startswith("--no-")] == []


def test_the_operations_of_the_command_line_are_up_to_date() -> None:
    assert OPERATIONS.read_text(encoding="utf-8") == operations(), "run `make docs`"


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


@pytest.mark.parametrize("document", INTERNALS, ids=_name)
def test_python_files_that_are_mentioned_exist(document: Path) -> None:
    mentioned = set(re.findall(r"`([a-z_*/]+\.py)`", document.read_text(encoding="utf-8")))
    assert [one for one in mentioned if not any(file.match(one) for file in PYTHON)] == []


def test_the_modules_of_the_glossary_exist() -> None:
    rows = [line.split("|")[1:-1] for line in GLOSSARY.partition("## ")[0].splitlines() if line.startswith("| ")]
    modules = [module for row in rows[1:] for module in re.findall(r"`([\w.]+)`", row[2])]
    assert len(modules) >= len(rows) - 1
    assert [one for one in modules if not SOURCE.joinpath(*one.split(".")).with_suffix(".py").exists()] == []


def test_no_line_of_the_source_has_a_word_that_is_gone() -> None:
    rows = [line.split("|")[1] for line in GLOSSARY.partition("## ")[2].splitlines() if line.startswith("| `")]
    words = "|".join(re.findall(r"`(\w+)`", "".join(rows)))
    gone = re.compile(rf"(?<![a-z])(?:{words})s?(?![a-z])", re.IGNORECASE)
    texts = ((path, path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py"))
    assert words
    assert [(path.name, found[0]) for path, text in texts for found in gone.finditer(text)] == []
