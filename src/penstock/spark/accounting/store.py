# SPDX-License-Identifier: Apache-2.0
"""Tables in a directory, as Parquet files or Delta tables, to which each micro-batch is added once.

Why not Spark's own writer: a driver may be killed between two files. Each file of a micro-batch therefore has a name
that follows from the number of the micro-batch, and appears under it whole; a repeated micro-batch writes the same
rows under the same names. Delta tables note the number in the same commit as the rows.

    DIR/TABLE/day=2026-11-23/usage-000000000012.parquet

Where: the driver of the accounting stream. Files are of some megabytes: what executors found is collected first.
"""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.accounting.tables import DAY, TOPIC_USAGE
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting.schemas import arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.accounting.tables import Table

Rows: TypeAlias = Any  # pyarrow.Table; pyarrow has no types
FORMATS: Final = ("parquet", "delta")
# Files of a day, beyond which they are made one.
FILES_PER_DAY_MAX: Final = 24

_DAY_IN_PATH: Final = re.compile(rf"{DAY}=([0-9-]+)")
_NEW: Final = "_new-"
_OLD: Final = "_old-"


class Store(ABC):
    """Where the tables are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def append(self, table: Table, days: Mapping[str, Rows], writer: str, batch: int) -> None:
        """Add the rows of a micro-batch, by day; nothing if they have been added."""

    @abstractmethod
    def replace(self, table: Table, day: str, rows: Rows) -> None:
        """Replace the rows of a day."""

    @abstractmethod
    def files(self, table: Table) -> dict[str, list[Path]]:
        """Return the files of each day."""

    @abstractmethod
    def compact(self, table: Table, day: str, rows: Rows, replaced: Collection[Path]) -> None:
        """Replace all files of a day, which are these, by one with these rows, which mean the same.

        Args:
            table: of which.
            day: of which.
            rows: a `pyarrow.RecordBatchReader`; there may be more than fit into memory.
            replaced: the files.
        """

    def rows(self, table: Table, days: Collection[str] | None = None, columns: Collection[str] | None = None) -> Rows:
        """Return a table, or some days or columns of it, as an Arrow table without `day`."""
        schema = arrow_schema(table)
        paths = [str(path) for day, files in self.files(table).items() if days is None or day in days for path in files]
        names = list(columns) if columns is not None else schema.names
        if not paths:
            return schema.empty_table().select(names)
        return ds.dataset(paths, schema=schema, format="parquet").to_table(columns=names)

    def frame(self, spark: SparkSession, table: Table, days: Collection[str] | None = None) -> DataFrame:
        """Return a table, or some days of it, for Spark."""
        paths = [str(path) for day, files in self.files(table).items() if days is None or day in days for path in files]
        schema = spark_schema(table)
        if not paths:
            return spark.createDataFrame([], schema)
        found = spark.read.schema(schema).option("basePath", str(self.directory / table.name)).parquet(*paths)
        return found.withColumn(DAY, found[DAY].cast("string"))


class ParquetStore(Store):
    """Parquet files, which anything reads."""

    def append(self, table: Table, days: Mapping[str, Rows], writer: str, batch: int) -> None:
        name = f"{writer}-{batch:012}.parquet"
        for stale in (self.directory / table.name).glob(f"{DAY}=*/{name}"):
            # Of an attempt that did not end. It has the same rows, unless a day is not there any more.
            if stale.parent.name.removeprefix(f"{DAY}=") not in days:
                stale.unlink()
        for day, rows in days.items():
            write_file(self.directory / table.name / f"{DAY}={day}" / name, rows)

    def replace(self, table: Table, day: str, rows: Rows) -> None:
        write_file(self.directory / table.name / f"{DAY}={day}" / "all.parquet", rows)

    def files(self, table: Table) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in sorted((self.directory / table.name).glob(f"{DAY}=*/*.parquet")):
            found.setdefault(path.parent.name.removeprefix(f"{DAY}="), []).append(path)
        return found

    def compact(self, table: Table, day: str, rows: Rows, replaced: Collection[Path]) -> None:
        where = self.directory / table.name
        new, present, old = where / f"{_NEW}{day}", where / f"{DAY}={day}", where / f"{_OLD}{day}"
        shutil.rmtree(new, ignore_errors=True)
        # The last of the replaced names: the numbers of later micro-batches are larger.
        write_file(new / max(path.name for path in replaced), rows)
        # From here on `recover` ends what is begun. A reader sees the old files, none, or the new one.
        present.rename(old)
        new.rename(present)
        shutil.rmtree(old)

    def recover(self) -> None:
        """End a compaction in which the driver was killed."""
        for old in self.directory.glob(f"*/{_OLD}*"):
            day = old.name.removeprefix(_OLD)
            present, new = old.parent / f"{DAY}={day}", old.parent / f"{_NEW}{day}"
            if not present.exists():
                (new if new.exists() else old).rename(present)
            shutil.rmtree(old, ignore_errors=True)
        for new in self.directory.glob(f"*/{_NEW}*"):
            shutil.rmtree(new)


class DeltaStore(Store):
    """Delta tables, by the package `deltalake`."""

    def append(self, table: Table, days: Mapping[str, Rows], writer: str, batch: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake  # noqa: PLC0415 - an extra

        path = str(self.directory / table.name)
        if not days:
            return
        if DeltaTable.is_deltatable(path):
            written = DeltaTable(path).transaction_version(writer)
            if written is not None and written >= batch:
                return
        rows = pa.concat_tables([_with_day(rows, day) for day, rows in days.items()])
        done = CommitProperties(app_transactions=[Transaction(writer, batch)])
        write_deltalake(path, rows, mode="append", partition_by=[DAY], commit_properties=done, schema_mode="merge")

    def replace(self, table: Table, day: str, rows: Rows) -> None:
        from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415 - an extra

        path = str(self.directory / table.name)
        if DeltaTable.is_deltatable(path):
            write_deltalake(
                path, _with_day(rows, day), mode="overwrite", predicate=f"{DAY} = '{day}'", schema_mode="merge"
            )
        else:
            write_deltalake(path, _with_day(rows, day), partition_by=[DAY])

    def files(self, table: Table) -> dict[str, list[Path]]:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra

        path = self.directory / table.name
        found: dict[str, list[Path]] = {}
        if DeltaTable.is_deltatable(str(path)):
            for name in sorted(DeltaTable(str(path)).file_uris()):
                day = _DAY_IN_PATH.search(name)
                assert day is not None
                found.setdefault(day[1], []).append(Path(name.removeprefix("file://")))
        return found

    def compact(self, table: Table, day: str, rows: Rows, replaced: Collection[Path]) -> None:  # noqa: ARG002
        from deltalake import write_deltalake  # noqa: PLC0415 - an extra

        fields = [*rows.schema, pa.field(DAY, pa.string(), nullable=False)]
        parts = (_with_day(pa.Table.from_batches([part]), day).to_batches() for part in rows)
        reader = pa.RecordBatchReader.from_batches(pa.schema(fields), (one for part in parts for one in part))
        path = str(self.directory / table.name)
        write_deltalake(path, reader, mode="overwrite", predicate=f"{DAY} = '{day}'", schema_mode="merge")


def _with_day(rows: Rows, day: str) -> Rows:
    return rows.append_column(pa.field(DAY, pa.string(), nullable=False), pa.repeat(pa.scalar(day), rows.num_rows))


def open_store(directory: Path, kind: str) -> Store:
    """Open the tables of a directory, or begin them. Raises ConfigurationError."""
    directory.mkdir(parents=True, exist_ok=True)
    if kind == "delta":
        try:
            import deltalake  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise ConfigurationError("--format delta needs: pip install 'penstock[delta]'") from error
        return DeltaStore(directory)
    store = ParquetStore(directory)
    store.recover()
    return store


def existing_store(directory: Path) -> Store:
    """Open tables to read them. Raises ConfigurationError if there are none."""
    usage = directory / TOPIC_USAGE.name
    if not usage.is_dir():
        raise ConfigurationError(f"{directory} has no tables; `penstock spark account` makes them")
    return DeltaStore(directory) if (usage / "_delta_log").is_dir() else ParquetStore(directory)


def by_day(table: Table, rows: Rows, at: str) -> dict[str, Rows]:
    """Divide rows by the day of a column of type timestamp."""
    if not rows.num_rows:
        return {}
    rows = rows.cast(arrow_schema(table))
    days = pc.strftime(rows[at], "%Y-%m-%d")
    return {day: rows.filter(pc.equal(days, day)) for day in sorted(pc.unique(days).to_pylist())}


def write_file(path: Path, rows: Rows) -> None:
    """Write a Parquet file that appears whole, or not at all, also after a power failure.

    Args:
        path: of the file.
        rows: a table, or a `pyarrow.RecordBatchReader`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"_{path.name}.unfinished")
    with pq.ParquetWriter(unfinished, rows.schema, compression="zstd") as writer:
        for part in rows if isinstance(rows, pa.RecordBatchReader) else (rows,):
            writer.write(part)
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
