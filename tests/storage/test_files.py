# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from penstock.storage.files import BUFFERS_PER_WRITE_MAX, Buffer, FileLocked, OsFile, OsFiles, write_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class SlowFile(OsFile):
    """Takes only a few bytes at a time, as the kernel may."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        assert len(buffers) <= BUFFERS_PER_WRITE_MAX
        return super().write([memoryview(b"".join(buffers))[:7]], offset)


class DeafFile(OsFile):
    """Takes nothing."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        del buffers, offset
        return 0


def test_short_writes_are_continued_until_all_is_written(tmp_path: Path) -> None:
    file = SlowFile(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    buffers: list[Buffer] = [b"first ", bytearray(b"second, longer "), memoryview(b"third"), b"", b"."]
    assert write_all(file, buffers, 3) == 27
    assert file.read(100, 3) == b"first second, longer third."
    file.close()


def test_more_buffers_than_the_kernel_takes_at_once_are_written_in_order(tmp_path: Path) -> None:
    file = OsFiles().open(tmp_path / "file", create=True)
    buffers = [b"%05d" % number for number in range(BUFFERS_PER_WRITE_MAX * 2 + 10)]
    assert write_all(file, buffers, 0) == 5 * len(buffers)
    assert file.read(file.size(), 0) == b"".join(buffers)
    file.close()


def test_a_file_that_takes_nothing_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    file = DeafFile(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    with pytest.raises(OSError, match="took no bytes"):
        write_all(file, [b"data"], 0)
    file.close()


def test_a_read_ends_at_the_end_of_the_file(tmp_path: Path) -> None:
    file = OsFiles().open(tmp_path / "file", create=True)
    file.write([b"0123456789"], 0)
    assert file.read(100, 4) == b"456789"
    assert file.read(100, 50) == b""
    file.close()


def test_an_allocated_file_has_its_size_and_can_be_cut(tmp_path: Path) -> None:
    file = OsFiles().open(tmp_path / "file", create=True)
    file.allocate(100_000)
    assert file.size() == 100_000
    file.truncate(10)
    file.sync()
    assert file.size() == 10
    file.close()


def test_opening_what_is_not_there_creates_it_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OsFiles().open(tmp_path / "file")
    OsFiles().open(tmp_path / "file", create=True).close()
    OsFiles().open(tmp_path / "file").close()


def test_names_change_as_asked(tmp_path: Path) -> None:
    files = OsFiles()
    files.make_directory(tmp_path / "a" / "b")
    files.make_directory(tmp_path / "a" / "b")
    files.open(tmp_path / "a" / "b" / "x", create=True).close()
    files.rename(tmp_path / "a" / "b" / "x", tmp_path / "a" / "b" / "y")
    files.sync_directory(tmp_path / "a" / "b")
    assert files.names(tmp_path / "a" / "b") == ["y"]
    assert files.exists(tmp_path / "a" / "b" / "y")
    files.delete(tmp_path / "a" / "b" / "y")
    assert files.names(tmp_path / "a" / "b") == []


def test_a_lock_keeps_a_second_one_out_until_released_and_tells_who_holds_it(tmp_path: Path) -> None:
    files = OsFiles()
    lock = files.lock(tmp_path / "lock", "4711")
    with pytest.raises(FileLocked) as refused:
        files.lock(tmp_path / "lock", "4712")
    assert refused.value.holder == "4711"
    lock.release()
    files.lock(tmp_path / "lock", "4712").release()


def test_bytes_in_memory_are_read_and_others_are_not_waited_for(tmp_path: Path) -> None:
    file = OsFile(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    write_all(file, [b"0123456789"], 0)
    buffer = bytearray(6)
    got = file.read_cached(memoryview(buffer), 2)  # 0 on file systems that cannot tell
    assert bytes(buffer) == b"234567"[:got] + bytes(6 - got)
    file.will_read(4, 0)
    file.close()
    unreadable = OsFile(os.open(tmp_path / "file", os.O_WRONLY))
    assert unreadable.read_cached(memoryview(buffer), 2) == 0  # An error is for the read that waits.
    unreadable.close()
