# SPDX-License-Identifier: Apache-2.0
"""A file system without renames and locks, in which a writer may be killed: what object stores and HDFS promise.

It keeps files in memory. A file that is being written may be seen in part, as in HDFS; with `torn=False` it is seen
when it is complete, as in an object store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.fs

from penstock.spark.accounting.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Mapping

Arrow: TypeAlias = Any  # pyarrow has no types


class Killed(BaseException):
    """The driver is gone."""


class ObjectStore(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Files in memory.

    Attributes:
        files: by path.
        steps: changes that are made before the writer is killed; None: it is not killed.
        torn: whether the change at which it is killed is made by half.
        killed_at: the files that a writer would have left that was killed at the first change, the second, and so on.
    """

    def __init__(self, files: Mapping[str, bytes] | None = None, *, torn: bool = False) -> None:
        self.files = dict(files or {})
        self.steps: int | None = None
        self.torn = torn
        self.killed_at: list[dict[str, bytes]] = []

    def directory(self) -> Directory:
        return Directory("mem://tables", pyarrow.fs.PyFileSystem(self), "tables")

    def change(self, path: str, content: bytes | None) -> None:
        """Make a change, or kill the writer."""
        half = {path: content[: len(content) // 2]} if self.torn and content is not None else {}
        self.killed_at.append({**self.files, **half})
        if self.steps == 0:
            self.steps = None
            self.files |= half
            raise Killed
        self.steps = None if self.steps is None else self.steps - 1
        if content is not None:
            self.files[path] = content
        elif self.files.pop(path, None) is None:
            raise FileNotFoundError(path)

    def get_type_name(self) -> str:
        return "memory"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> Arrow:
        if path not in self.files:
            return pyarrow.fs.FileInfo(path, pyarrow.fs.FileType.NotFound)
        return pyarrow.fs.FileInfo(path, pyarrow.fs.FileType.File, size=len(self.files[path]))

    def get_file_info_selector(self, selector: Arrow) -> list[Arrow]:
        return [self._info(path) for path in self.files if path.startswith(f"{selector.base_dir}/")]

    def delete_file(self, path: str) -> None:
        self.change(path, None)

    def open_input_file(self, path: str) -> Arrow:
        if path not in self.files:
            raise FileNotFoundError(path)
        return pa.BufferReader(self.files[path])

    def open_input_stream(self, path: str) -> Arrow:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: object) -> Arrow:
        return pa.PythonFile(_Written(self, path), mode="w")

    def _refuse(self, *_: object) -> None:
        raise NotImplementedError

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = move = copy_file = _refuse
    open_append_stream = _refuse


class _Written:
    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store, self._path = store, path
        self._content = bytearray()
        self.closed = False

    def write(self, content: bytes) -> int:
        self._content += content
        return len(content)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._store.change(self._path, bytes(self._content))
