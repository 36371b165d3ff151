# SPDX-License-Identifier: Apache-2.0
"""The directory of the tables: on this machine, or at a URL that Spark's Hadoop drivers or Arrow can write.

Why so few operations: object stores have no rename and no locks, and HDFS shows a file while it is being written. So
nothing here relies on more than listing, reading, writing and deleting whole files. What makes a set of files right is
decided by notes that are written last (`batch_state`, `store`), and a note of which a part was written is no note.

Where: the driver, and programs that read the tables without Spark. Executors get URLs only of tables.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

Rows = Any  # pyarrow.Table; pyarrow has no types

# What Hadoop calls otherwise than Arrow and delta-rs.
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
_LOCAL: Final = "file"


class Directory:
    """A directory, and its files by names relative to it, as `topic_usage/day=2026-11-23/usage-000000000012.parquet`.

    Attributes:
        url: as Spark knows it.
        is_local: files get their names when they are complete, and one process at a time can be enforced.
        writer: identifies the process that writes, at a URL; None until it begins to.
    """

    def __init__(self, url: str, files: Any, path: str, *, is_local: bool = False) -> None:  # noqa: ANN401 - pyarrow.fs
        """Receive where the files are.

        Args:
            url: without a slash at the end.
            files: a `pyarrow.fs.FileSystem`.
            path: of the directory, as this file system knows it.
            is_local: whether it is a directory of this machine.
        """
        self.url = url
        self.is_local = is_local
        self.writer: str | None = None
        self._files = files
        self._path = path

    def __str__(self) -> str:
        return self._path if self.is_local else self.url

    def path_of(self, name: str) -> str:
        """The path of a file, as its file system knows it."""
        return f"{self._path}/{name}"

    def url_of(self, name: str) -> str:
        """The URL of a file, for Spark."""
        return f"{self.url}/{name}"

    @property
    def delta_url(self) -> str:
        """The URL for delta-rs."""
        return str(self) if self.is_local else _with_other_scheme(self.url)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the files below a folder, by name and in order, with their sizes in bytes."""
        wanted = pyarrow.fs.FileSelector(self.path_of(folder), allow_not_found=True, recursive=True)
        before = len(self._path) + 1
        found = {one.path[before:]: one.size for one in self._files.get_file_info(wanted) if one.is_file}
        return dict(sorted(found.items()))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None: there is none."""
        try:
            with self._files.open_input_file(self.path_of(name)) as file:
                content: bytes = file.read()
        except FileNotFoundError:
            return None
        return content

    def document(self, name: str) -> dict[str, Any] | None:
        """Return what is noted in a file; None: there is none, or its writer was killed before its end."""
        content = self.read(name)
        try:
            found: dict[str, Any] | None = None if content is None else json.loads(content)
        except ValueError:  # A document ends with a brace, so a part of it cannot be read.
            return None
        return found

    def write(self, name: str, content: Any) -> None:  # noqa: ANN401 - bytes or pyarrow.Buffer
        """Write a file, or replace it. A local one appears whole or not at all, also after a power failure."""
        if self.is_local:
            write_in_place(Path(self.path_of(name)), content)
            return
        with self._files.open_output_stream(self.path_of(name)) as file:
            file.write(content)

    def note(self, name: str, document: object) -> None:
        """Write a document."""
        self.write(name, json.dumps(document).encode())

    def write_rows(self, name: str, rows: Rows) -> None:
        """Write a Parquet file of a table or a `pyarrow.RecordBatchReader`, of which a day takes some 30 MB."""
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, rows.schema, compression="zstd") as writer:
            for part in rows if isinstance(rows, pa.RecordBatchReader) else (rows,):
                writer.write(part)
        self.write(name, sink.getvalue())

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        try:
            self._files.delete_file(self.path_of(name))
        except FileNotFoundError:
            return

    def delete_all(self, folder: str) -> None:
        """Delete a folder, if there is one."""
        try:
            self._files.delete_dir(self.path_of(folder))
        except FileNotFoundError:
            return

    def dataset(self, names: Collection[str], schema: Any = None) -> Any:  # noqa: ANN401 - pyarrow
        """Return Parquet files as one dataset; columns that a file lacks are null."""
        return ds.dataset([self.path_of(name) for name in names], schema, format="parquet", filesystem=self._files)


def directory_of(location: str | Path, spark: SparkSession | None = None) -> Directory:
    """Return the directory at a path or URL; nothing is created.

    Args:
        location: a path of this machine, or a URL.
        spark: its Hadoop drivers write URLs; without it, Arrow's file systems or fsspec's do.

    Raises:
        ConfigurationError: no driver writes such URLs.
    """
    text = str(location)
    scheme, colon, there = text.partition(":")
    if not colon or "/" in scheme or scheme == _LOCAL:
        local = Path(f"/{there.lstrip('/')}" if scheme == _LOCAL and colon else text).absolute()
        return Directory(f"file://{local}", pyarrow.fs.LocalFileSystem(), str(local), is_local=True)
    url = text.rstrip("/")
    if spark is not None:
        from penstock.spark.accounting.hadoop import hadoop_files  # noqa: PLC0415 - not without a virtual machine

        return Directory(url, hadoop_files(spark, url), url)
    files, path = _arrow_files(url)
    return Directory(url, files, path)


def _arrow_files(url: str) -> tuple[Any, str]:
    """A file system of Arrow, or of fsspec; and the path there. Raises ConfigurationError."""
    other = _with_other_scheme(url)
    try:
        files, path = pyarrow.fs.FileSystem.from_uri(other)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _fsspec_files(other)
    except OSError as error:
        raise ConfigurationError(f"{url} cannot be opened: {error}") from error
    return files, path.rstrip("/")


def _fsspec_files(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - perhaps not installed

        files, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"{url}: neither Arrow nor fsspec has a driver for it ({error}); use --engine spark with Hadoop's driver, "
            "or install fsspec and its driver"
        ) from error
    return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files)), path.rstrip("/")


def _with_other_scheme(url: str) -> str:
    scheme, rest = url.split(":", 1)
    return f"{_SCHEMES.get(scheme, scheme)}:{rest}"


def write_in_place(path: Path, content: Any) -> None:  # noqa: ANN401 - bytes or pyarrow.Buffer
    """Write a file beside its place, sync it, and give it its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"_{path.name}.unfinished")
    unfinished.write_bytes(content)
    put_in_place(unfinished, path)


def put_in_place(unfinished: Path, path: Path) -> None:
    """Sync a file, and give it its name."""
    for what, then in ((unfinished, path), (path.parent, None)):
        descriptor = os.open(what, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if then is not None:
            unfinished.rename(then)
