# SPDX-License-Identifier: Apache-2.0
"""`tools.platforms` and its page: every extra has a row, and what is no longer so is found. CI asks pip itself."""

from __future__ import annotations

import tomllib

import pytest

from tools import platforms

PROJECT = tomllib.loads((platforms.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = platforms.PAGE.read_text(encoding="utf-8")


def test_the_page_has_a_row_for_penstock_and_every_extra() -> None:
    extras = PROJECT["optional-dependencies"].keys() - platforms.NOT_FOR_USERS
    assert list(platforms.documented(PAGE)) == ["penstock", *sorted(extras)]


def test_every_supported_python_is_asked_about() -> None:
    assert PROJECT["requires-python"] == f">={platforms.PYTHONS[0]}"


def test_the_page_is_read_as_it_is_written() -> None:
    said = platforms.documented(PAGE)
    assert platforms.table(said) in PAGE


@pytest.mark.parametrize(
    ("pythons", "cell"),
    [
        (["3.11", "3.12", "3.13", "3.14", "3.15"], "3.11–3.15"),
        (["3.11", "3.12", "3.14"], "3.11–3.12, 3.14"),
        (["3.13"], "3.13"),
        ([], "–"),
    ],
)
def test_a_cell_names_ranges_of_versions(pythons: list[str], cell: str) -> None:
    assert platforms.ranged(pythons) == cell
    assert platforms.versions(cell) == pythons


def test_what_the_page_promises_and_pip_does_not_find_is_a_loss() -> None:
    said = {"penstock": {"musl arm64": ["3.11", "3.15"]}}
    assert platforms.losses(said, {"penstock": {"musl arm64": ["3.11"]}}) == ["penstock on musl arm64 with Python 3.15"]
    assert platforms.losses(said, {}) != []
    assert platforms.losses({"penstock": {"musl arm64": []}}, said) == []


def test_what_is_published_as_source_is_replaced_by_what_it_needs() -> None:
    found = platforms.requirements(PROJECT)
    assert [one for one in found["spark"] if one.startswith("pyspark")] == []
    assert any(one.startswith("py4j") for one in found["spark"])
    assert "dev" not in found


def test_pip_is_asked_for_wheels_of_the_platform_and_installs_nothing() -> None:
    call = platforms.command(["pip"], "3.15", platforms.PLATFORMS["musl arm64"], ["apsw>=3.46,<4"], "/tmp/t")
    assert {"--dry-run", "--only-binary", "musllinux_1_2_aarch64", "3.15", "apsw>=3.46,<4"} <= set(call)
