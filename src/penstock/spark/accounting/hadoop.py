# SPDX-License-Identifier: Apache-2.0
"""Files at any URL that Spark's Hadoop drivers can write, for Arrow.

Why through the driver's virtual machine: whoever runs Spark has configured drivers and credentials there, and they are
right for s3a, hdfs, abfss and any other scheme.

Where: `directory`, on the driver. Spark Connect has no virtual machine to ask.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.fs
from py4j.protocol import Py4JError, Py4JJavaError

from penstock.core.errors import ConfigurationError
from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_PART_BYTES: Final = MIB
_NOT_FOUND: Final = "java.io.FileNotFoundException"


def hadoop_files(spark: SparkSession, url: str) -> Any:  # noqa: ANN401 - pyarrow.fs.FileSystem
    """Return the file system of a URL; its paths are URLs. Raises ConfigurationError."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise ConfigurationError(
            f"{url}: with Spark Connect there are no Hadoop drivers; use a path, or --engine arrow"
        )
    path = jvm.org.apache.hadoop.fs.Path
    try:
        files = path(url).getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001 - there is no other way
    except Py4JError as error:
        cause = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
        raise ConfigurationError(f"{url}: Spark has no Hadoop driver for it: {cause}") from error
    return pyarrow.fs.PyFileSystem(HadoopFiles(files, path))


class HadoopFiles(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """A file system for Arrow, as far as `Directory` uses it; the rest is refused."""

    def __init__(self, files: Any, path: Any) -> None:  # noqa: ANN401 - objects of the virtual machine
        self._files = files
        self._path = path

    def get_type_name(self) -> str:
        return "hadoop"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[Any]:  # noqa: ANN401 - pyarrow.fs.FileSelector
        found = []
        with suppress(FileNotFoundError), _as_os_error():
            there = self._files.listFiles(self._path(selector.base_dir), selector.recursive)
            # Names as they were asked for: a driver may add a host or a port.
            base = self._files.makeQualified(self._path(selector.base_dir)).toString()
            while there.hasNext():
                one = there.next()
                name = one.getPath().toString().removeprefix(base)
                found.append(_file(f"{selector.base_dir}{name}", one.getLen()))
        return found

    def _info(self, path: str) -> Any:  # noqa: ANN401 - pyarrow.fs.FileInfo
        try:
            with _as_os_error():
                status = self._files.getFileStatus(self._path(path))
        except FileNotFoundError:
            return pyarrow.fs.FileInfo(path, pyarrow.fs.FileType.NotFound)
        if status.isDirectory():
            return pyarrow.fs.FileInfo(path, pyarrow.fs.FileType.Directory)
        return _file(path, status.getLen())

    def delete_file(self, path: str) -> None:
        with _as_os_error():
            self._files.delete(self._path(path), False)

    def delete_dir(self, path: str) -> None:
        with _as_os_error():
            self._files.delete(self._path(path), True)

    def open_input_file(self, path: str) -> Any:  # noqa: ANN401 - pyarrow.NativeFile
        with _as_os_error():
            stream = self._files.open(self._path(path))
            try:
                content = stream.readAllBytes()
            finally:
                stream.close()
        return pa.BufferReader(bytes(content))

    def open_input_stream(self, path: str) -> Any:  # noqa: ANN401 - pyarrow.NativeFile
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: object) -> Any:  # noqa: ANN401, ARG002 - pyarrow.NativeFile
        with _as_os_error():
            return pa.PythonFile(_Written(self._files.create(self._path(path), True)), mode="w")

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: FBT001 - Arrow's signature
        """Drivers make directories when a file is created."""

    def _refuse(self, *_: object) -> None:
        raise NotImplementedError

    delete_dir_contents = delete_root_dir_contents = move = copy_file = open_append_stream = _refuse


class _Written:
    """A file that is being written."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - an object of the virtual machine
        self._stream = stream
        self.closed = False

    def write(self, content: bytes) -> int:
        view = memoryview(content)
        with _as_os_error():
            for start in range(0, len(view), _PART_BYTES):
                self._stream.write(bytearray(view[start : start + _PART_BYTES]))
        return len(view)

    def flush(self) -> None:
        """Nothing has to be there before the end."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _as_os_error():
                self._stream.close()


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Raise what Arrow expects for what Java raises."""
    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception
        kind = FileNotFoundError if cause.getClass().getName() == _NOT_FOUND else OSError
        raise kind(cause.toString()) from error


def _file(path: str, size: int) -> Any:  # noqa: ANN401 - pyarrow.fs.FileInfo
    return pyarrow.fs.FileInfo(path, pyarrow.fs.FileType.File, size=size)
