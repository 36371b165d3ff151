# SPDX-License-Identifier: Apache-2.0
"""Tables in a directory, as Parquet files or Delta tables, to which each micro-batch is added once.

Why not Spark's own writer: a driver may be killed between two files. Each file of a micro-batch therefore has a name
that follows from the number of the micro-batch; a repeated micro-batch writes the same rows under the same names, and
files of a micro-batch that is not noted as done are not read. Delta tables note the number in the same commit as the
rows.

    DIR/TABLE/day=2026-11-23/usage-000000000012.parquet

No file is renamed and nothing is locked for that, so the directory may be at any URL (`directory`).

Where: the driver of the accounting stream. Files are of some megabytes: what executors found is collected first.
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.accounting.tables import DAY, TOPIC_USAGE
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting.batch_state import STATE, last_noted
from penstock.spark.accounting.schemas import arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.accounting.tables import Table
    from penstock.spark.accounting.directory import Directory

Rows: TypeAlias = Any  # pyarrow.Table; pyarrow has no types
FORMATS: Final = ("parquet", "delta")
# Files of a day, beyond which they are made one.
FILES_PER_DAY_MAX: Final = 24
_QUARTER: Final = timedelta(minutes=15)

_DAY_IN_NAME: Final = re.compile(rf"/{DAY}=([0-9-]+)/[^/]+\.parquet$")
_BATCH_IN_NAME: Final = re.compile(r"/([a-z]+)-(\d{12})\.parquet$")
_MERGING: Final = f"{STATE}/merging"
_MERGED: Final = "merged"


class Store(ABC):
    """Where the tables are. Files are named relative to `directory`."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory

    @abstractmethod
    def append(self, table: Table, days: Mapping[str, Rows], writer: str, batch: int) -> None:
        """Add the rows of a micro-batch, by day; nothing if they have been added."""

    @abstractmethod
    def replace(self, table: Table, day: str, rows: Rows) -> None:
        """Replace the rows of a day."""

    @abstractmethod
    def sizes(self, table: Table) -> dict[str, dict[str, int]]:
        """Return the files of each day, with their sizes in bytes."""

    @abstractmethod
    def compact(self, table: Table, day: str, rows: Rows, replaced: Collection[str]) -> None:
        """Replace all files of a day, which are these, by one with these rows, which mean the same.

        Args:
            table: of which.
            day: of which.
            rows: a `pyarrow.RecordBatchReader`; there may be more than fit into memory.
            replaced: the files.
        """

    def files(self, table: Table) -> dict[str, list[str]]:
        """Return the files of each day."""
        return {day: list(files) for day, files in self.sizes(table).items()}

    def rows(self, table: Table, days: Collection[str] | None = None, columns: Collection[str] | None = None) -> Rows:
        """Return a table, or some days or columns of it, as an Arrow table without `day`."""
        schema = arrow_schema(table)
        files = self._files_of(table, days)
        names = list(columns) if columns is not None else schema.names
        if not files:
            return schema.empty_table().select(names)
        return self.directory.dataset(files, schema).to_table(columns=names)

    def quarter_hours(self, table: Table, day: str, columns: Collection[str] | None = None) -> Iterator[Rows]:
        """Yield the rows of a day by quarters of an hour: a day of 10,000 topics does not fit into memory."""
        schema = arrow_schema(table)
        files = self._files_of(table, [day])
        if not files:
            return
        found = self.directory.dataset(files, schema)
        quarters: set[int] = set()  # that have rows, counted from 1970
        for batch in found.to_batches(columns=["minute"]):
            minutes_us = batch["minute"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            quarters.update(pc.unique(pc.divide(minutes_us, _QUARTER // timedelta(microseconds=1))).to_pylist())
        for quarter in sorted(quarters):
            begins = datetime.fromtimestamp(0, UTC) + quarter * _QUARTER
            within = (pc.field("minute") >= begins) & (pc.field("minute") < begins + _QUARTER)
            yield found.to_table(columns=list(columns) if columns is not None else schema.names, filter=within)

    def frame(self, spark: SparkSession, table: Table, days: Collection[str] | None = None) -> DataFrame:
        """Return a table, or some days of it, for Spark."""
        urls = [self.directory.url_of(name) for name in self._files_of(table, days)]
        schema = spark_schema(table)
        if not urls:
            return spark.createDataFrame([], schema)
        base = self.directory.url_of(table.name)
        found = spark.read.schema(schema).option("basePath", base).parquet(*urls)
        return found.withColumn(DAY, found[DAY].cast("string"))

    def _files_of(self, table: Table, days: Collection[str] | None) -> list[str]:
        return [name for day, files in self.files(table).items() if days is None or day in days for name in files]


class ParquetStore(Store):
    """Parquet files, which anything reads."""

    def append(self, table: Table, days: Mapping[str, Rows], writer: str, batch: int) -> None:
        name = f"{writer}-{batch:012}.parquet"
        for stale in self.directory.sizes(table.name):
            # Of an attempt that did not end. It has the same rows, unless a day is not there any more.
            if stale.endswith(f"/{name}") and _day_of(stale) not in days:
                self.directory.delete(stale)
        for day, rows in days.items():
            self.directory.write_rows(f"{table.name}/{DAY}={day}/{name}", rows)

    def replace(self, table: Table, day: str, rows: Rows) -> None:
        self.directory.write_rows(f"{table.name}/{DAY}={day}/all.parquet", rows)

    def sizes(self, table: Table) -> dict[str, dict[str, int]]:
        noted: dict[str, int | None] = {}
        hidden = self._hidden(table)
        found: dict[str, dict[str, int]] = {}
        for name, size in self.directory.sizes(table.name).items():
            day = _day_of(name)
            if day is not None and name not in hidden and self._is_noted(name, noted):
                found.setdefault(day, {})[name] = size
        return found

    def _is_noted(self, name: str, noted: dict[str, int | None]) -> bool:
        """Whether the micro-batch of a file is done; what was noted is kept in `noted`."""
        found = _BATCH_IN_NAME.search(name)
        if found is None or found[1] == _MERGED:
            return True
        if found[1] not in noted:
            noted[found[1]] = last_noted(self.directory, found[1])
        last = noted[found[1]]
        return last is None or int(found[2]) <= last

    def compact(self, table: Table, day: str, rows: Rows, replaced: Collection[str]) -> None:
        last = max(int(found[2]) for found in map(_BATCH_IN_NAME.search, replaced) if found is not None)
        note = f"{_MERGING}/{table.name}-{day}"
        into = f"{table.name}/{DAY}={day}/{_MERGED}-{last:012}.parquet"
        merge = {"into": into, "replaced": [name for name in replaced if name != into]}
        self.directory.note(f"{note}.begun", merge)
        self.directory.write_rows(into, rows)
        # From here on `_hidden` hides what was replaced, and `recover` ends what is begun.
        self.directory.note(f"{note}.done", merge)
        self._end_merge(note)

    def _end_merge(self, note: str) -> None:
        merge = self.directory.document(f"{note}.done")
        if merge is not None:
            for name in merge["replaced"]:
                self.directory.delete(name)
        else:
            merge = self.directory.document(f"{note}.begun")
            if merge is not None:
                self.directory.delete(merge["into"])
        self.directory.delete(f"{note}.begun")
        self.directory.delete(f"{note}.done")

    def _hidden(self, table: Table) -> set[str]:
        """Files that are not to be read, because their rows are in others, too."""
        hidden: set[str] = set()
        notes = self.directory.sizes(_MERGING)
        for begun in (name for name in notes if name.endswith(".begun")):
            if begun.startswith(f"{_MERGING}/{table.name}-"):
                merge = self.directory.document(begun)
                done = self.directory.document(f"{begun.removesuffix('.begun')}.done")
                hidden.update([] if merge is None else done["replaced"] if done is not None else [merge["into"]])
        return hidden

    def recover(self) -> None:
        """End merges in which the driver was killed."""
        for note in {name.rsplit(".", 1)[0] for name in self.directory.sizes(_MERGING)}:
            self._end_merge(note)
        if self.directory.is_local:
            _recover_renamed(Path(str(self.directory)))


def _recover_renamed(directory: Path) -> None:
    """End a merge of an earlier version, which renamed directories."""
    for old in directory.glob("*/_old-*"):
        day = old.name.removeprefix("_old-")
        present, new = old.parent / f"{DAY}={day}", old.parent / f"_new-{day}"
        if not present.exists():
            (new if new.exists() else old).rename(present)
        shutil.rmtree(old, ignore_errors=True)
    for new in directory.glob("*/_new-*"):
        shutil.rmtree(new)


class DeltaStore(Store):
    """Delta tables, by the package `deltalake`."""

    def _url(self, table: Table) -> str:
        return f"{self.directory.delta_url}/{table.name}"

    def append(self, table: Table, days: Mapping[str, Rows], writer: str, batch: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake  # noqa: PLC0415 - an extra

        url = self._url(table)
        if not days:
            return
        if DeltaTable.is_deltatable(url):
            written = DeltaTable(url).transaction_version(writer)
            if written is not None and written >= batch:
                return
        rows = pa.concat_tables([_with_day(rows, day) for day, rows in days.items()])
        done = CommitProperties(app_transactions=[Transaction(writer, batch)])
        write_deltalake(url, rows, mode="append", partition_by=[DAY], commit_properties=done, schema_mode="merge")

    def replace(self, table: Table, day: str, rows: Rows) -> None:
        from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415 - an extra

        url = self._url(table)
        if DeltaTable.is_deltatable(url):
            write_deltalake(
                url, _with_day(rows, day), mode="overwrite", predicate=f"{DAY} = '{day}'", schema_mode="merge"
            )
        else:
            write_deltalake(url, _with_day(rows, day), partition_by=[DAY])

    def sizes(self, table: Table) -> dict[str, dict[str, int]]:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra

        url = self._url(table)
        found: dict[str, dict[str, int]] = {}
        if DeltaTable.is_deltatable(url):
            added = DeltaTable(url).get_add_actions(flatten=True)
            sizes = dict(zip(added["path"].to_pylist(), added["size_bytes"].to_pylist(), strict=True))
            for path, size in sorted(sizes.items()):
                name = f"{table.name}/{path}"
                day = _day_of(name)
                assert day is not None
                found.setdefault(day, {})[name] = size
        return found

    def compact(self, table: Table, day: str, rows: Rows, replaced: Collection[str]) -> None:  # noqa: ARG002
        from deltalake import write_deltalake  # noqa: PLC0415 - an extra

        fields = [*rows.schema, pa.field(DAY, pa.string(), nullable=False)]
        parts = (_with_day(pa.Table.from_batches([part]), day).to_batches() for part in rows)
        reader = pa.RecordBatchReader.from_batches(pa.schema(fields), (one for part in parts for one in part))
        url = self._url(table)
        write_deltalake(url, reader, mode="overwrite", predicate=f"{DAY} = '{day}'", schema_mode="merge")


def _day_of(name: str) -> str | None:
    found = _DAY_IN_NAME.search(name)
    return found[1] if found is not None else None


def _with_day(rows: Rows, day: str) -> Rows:
    return rows.append_column(pa.field(DAY, pa.string(), nullable=False), pa.repeat(pa.scalar(day), rows.num_rows))


def open_store(directory: Directory, kind: str) -> Store:
    """Open the tables of a directory, or begin them. Raises ConfigurationError."""
    if kind == "delta":
        try:
            import deltalake  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise ConfigurationError("--format delta needs: pip install 'penstock[delta]'") from error
        return DeltaStore(directory)
    store = ParquetStore(directory)
    store.recover()
    return store


def existing_store(directory: Directory) -> Store:
    """Open tables to read them. Raises ConfigurationError if there are none."""
    names = directory.sizes(TOPIC_USAGE.name)
    if not names and not directory.sizes(STATE):
        raise ConfigurationError(f"{directory} has no tables; `penstock spark account` makes them")
    is_delta = any("/_delta_log/" in name for name in names)
    return DeltaStore(directory) if is_delta else ParquetStore(directory)


def by_day(table: Table, rows: Rows, at: str) -> dict[str, Rows]:
    """Divide rows by the day of a column of type timestamp."""
    if not rows.num_rows:
        return {}
    rows = rows.cast(arrow_schema(table))
    days = pc.strftime(rows[at], "%Y-%m-%d")
    return {day: rows.filter(pc.equal(days, day)) for day in sorted(pc.unique(days).to_pylist())}
