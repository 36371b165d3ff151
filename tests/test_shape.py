# SPDX-License-Identifier: Apache-2.0
"""The figures of the house: what they count, and that none may rise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import shape

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = '"""Text."""\n\nfrom __future__ import annotations\n\nif TYPE_CHECKING:\n    import a\n\n'


def file(text: str, name: str = "src/penstock/x.py") -> shape.File:
    return shape.File.of(Path(name), text)


def test_modules_that_import_one_another_by_a_detour_are_a_circle() -> None:
    assert shape.circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_an_import_counts_by_the_module_that_it_names() -> None:
    one = file("from penstock.b import f\nfrom penstock import c\n", "src/penstock/a.py")
    others = [file("", "src/penstock/b.py"), file("", "src/penstock/c.py")]
    assert shape.imports([one, *others])["penstock.a"] == {"penstock.b", "penstock.c"}


def test_a_head_ends_where_the_first_statement_or_its_decorator_begins() -> None:
    assert file(HEAD + "@cache\ndef f(): ...\n").head_lines == 7


@pytest.mark.parametrize(
    ("count", "text", "least"),
    [
        (shape.long_functions, "def f():\n" + "    x = 1\n" * 69, "    x = 1\n"),
        (shape.many_arguments, "class A:\n    def f(self, a, b, c, d, e, f, g, h", ", *, i"),
        (shape.long_files, "x = 1\n" * 400, "x = 1\n"),
    ],
)
def test_only_what_is_over_the_limit_stands_out(
    count: Callable[[list[shape.File]], list[shape.Place]], text: str, least: str
) -> None:
    end = "): ...\n" if count is shape.many_arguments else ""
    assert count([file(text + end)]) == []
    assert len(count([file(text + least + end)])) == 1


def test_protocols_are_counted_with_their_types() -> None:
    assert len(shape.protocols([file("class A(Protocol): ...\nclass B(Protocol[T]): ...\nclass C: ...\n")])) == 2


def test_a_docstring_that_begins_with_a_pronoun_stands_out() -> None:
    texts = ['"""Whoever calls."""', '"""Itself."""', '"""The caller."""', '"""what it is."""']
    assert [len(shape.pronouns([file(text)])) for text in texts] == [1, 0, 0, 1]


def test_what_tests_need_is_what_is_outside_of_them() -> None:
    text = "import a\n\n\ndef test_x():\n    assert a\n"
    assert shape.outside_tests([file(text, "tests/test_x.py"), file(text, "tests/world.py")]) == 60


def test_a_figure_may_fall_and_not_rise() -> None:
    assert shape.risen({"circles": 2, "protocols": 3, "new": 9}, {"circles": 1, "protocols": 4}) == [
        "circles: 2, and it was 1"
    ]


def test_what_is_kept_falls_when_it_is_written_and_stays_when_the_house_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "shape.json"
    kept.write_text('{"protocols": 4, "circles of modules": 1}')
    monkeypatch.setattr(shape, "KEPT", kept)
    monkeypatch.setattr(shape, "figures", lambda *_: {"protocols": 3, "circles of modules": 2})
    monkeypatch.setattr(shape, "read", lambda _: [])
    assert shape.main(["--check"]) == 1
    assert shape.main(["--write"]) == 1
    assert json.loads(kept.read_text()) == {"protocols": 3, "circles of modules": 1}
