# SPDX-License-Identifier: Apache-2.0
"""The data directory: laid out once, known again, and refused when it is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.storage.directory import open_data_directory
from penstock.storage.files import OsFiles


def test_a_new_directory_is_laid_out_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "var" / "penstock"

    directory = open_data_directory(path, OsFiles())

    assert (path / "FORMAT").read_text() == "penstock 2\n"
    assert sorted(found.name for found in path.iterdir()) == ["FORMAT", "broker-0"]
    assert sorted(found.name for found in directory.broker(0).iterdir()) == ["index", "log"]
    assert directory.metadata == path / "meta.sqlite"


def test_opening_again_keeps_what_is_there(tmp_path: Path) -> None:
    directory = open_data_directory(tmp_path, OsFiles())
    (directory.broker(0) / "log" / "segment").write_bytes(b"entries")

    assert open_data_directory(tmp_path, OsFiles()) == directory

    assert (directory.broker(0) / "log" / "segment").read_bytes() == b"entries"


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "FORMAT").write_text("penstock 3\n")
    with pytest.raises(ConfigurationError, match=r"has format `penstock 3`.*knows formats up to `penstock 2`"):
        open_data_directory(tmp_path, OsFiles())
    assert [found.name for found in tmp_path.iterdir()] == ["FORMAT"]


@pytest.mark.parametrize("text", ["", "penstock", "penstock one\n", "postgres 1\n", "\x00\xff"])
def test_a_format_file_that_says_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "FORMAT").write_text(text)
    with pytest.raises(ConfigurationError, match="FORMAT reads"):
        open_data_directory(tmp_path, OsFiles())


def test_a_directory_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter one")
    with pytest.raises(ConfigurationError, match=r"not a penstock data directory: .*'thesis\.tex'"):
        open_data_directory(tmp_path, OsFiles())
    assert [found.name for found in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_first_start_that_was_cut_short_is_taken_up_again(tmp_path: Path) -> None:
    (tmp_path / "FORMAT.new").write_text("penst")
    open_data_directory(tmp_path, OsFiles())
    assert (tmp_path / "FORMAT").read_text() == "penstock 2\n"


def test_a_path_that_is_a_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("a file")
    with pytest.raises(ConfigurationError, match=r"data cannot be used: Not a directory"):
        open_data_directory(path, OsFiles())


def test_a_directory_that_cannot_be_written_is_refused_with_the_reason() -> None:
    # The kernel's own file system takes no new names from anybody, root included.
    with pytest.raises(ConfigurationError, match=r"/proc/penstock cannot be used: "):
        open_data_directory(Path("/proc/penstock"), OsFiles())
