# SPDX-License-Identifier: Apache-2.0
"""What commands print."""

from __future__ import annotations

import contextlib
import io
import json
from typing import TYPE_CHECKING

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cli.output import show, table

if TYPE_CHECKING:
    import pytest

# YAML cannot hold surrogates, and its own line breaks are escaped by JSON.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
@example(5e-324)
def test_yaml_reads_back_as_what_was_shown(value: object) -> None:
    into = io.StringIO()
    with contextlib.redirect_stdout(into):
        show(value, "yaml")
    assert yaml.safe_load(into.getvalue()) == value


def test_json_reads_back_as_what_was_shown(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"ä": [1, None, {"b": "c"}]}
    show(value, "json")
    assert json.loads(capsys.readouterr().out) == value


def test_lists_are_lines_objects_are_members_and_lists_of_objects_are_rows() -> None:
    assert list(table(["a", "b"])) == ["a", "b"]
    assert list(table({"a": 1, "bb": {"c": None, "d": [1, 2], "e": [{"f": True}]}})) == [
        "a         1",
        "bb.c      -",
        "bb.d      1, 2",
        "bb.e.0.f  true",
    ]
    assert list(table([{"a": 1, "b": "x"}, {"a": 22}])) == ["a   b", "1   x", "22  -"]


def test_a_name_cannot_write_to_the_terminal() -> None:
    assert list(table(["\x1b[2Jgone", "\r\n"])) == ["\\x1b[2Jgone", "\\r\\n"]
