# SPDX-License-Identifier: Apache-2.0
"""Each `pip install` of the documentation is found, and names extras that exist; CI runs them (`install_lines`)."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.install_lines import EXTRAS, MARK, ROOT, lines, texts

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = set(PROJECT["optional-dependencies"]) - {"dev"}


def test_no_line_is_passed_over() -> None:
    from tests.install_lines import _LINE

    assert sum(text.count(MARK) for text in texts().values()) == sum(
        len(_LINE.findall(text)) for text in texts().values()
    )
    assert {"README.md", "docs/guide/spark.md", "docs/guide/security.md"} <= texts().keys()


def test_a_line_is_read_as_a_shell_reads_it() -> None:
    found = {line.words for line in lines()}
    assert (".",) in found
    assert (".[spark]",) in found
    assert (".[spark]", "jupyter") in found
    assert ("penstock[auth]",) in found
    assert ("--target", "packages", "penstock-VERSION-py3-none-any.whl") in found


def test_every_extra_is_in_a_line_and_every_line_has_extras_that_exist() -> None:
    assert {extra for line in lines() for extra in line.extras} == DECLARED
    assert EXTRAS.keys() == DECLARED


def test_the_wheel_stands_in_for_the_name() -> None:
    wheel = Path("/tmp/penstock-1-py3-none-any.whl")
    by_text = {line.words: line.arguments(wheel) for line in lines()}
    assert by_text["penstock[auth]",] == [f"{wheel}[auth]"]
    assert by_text["penstock-VERSION-py3-none-any.whl[spark]",] == [f"{wheel}[spark]"]
    assert by_text["./penstock-*.whl",] == [str(wheel)]
    assert by_text[".[spark]", "jupyter"] == [".[spark]", "jupyter"]
    assert by_text["deltalake",] == ["deltalake"]
