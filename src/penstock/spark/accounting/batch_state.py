# SPDX-License-Identifier: Apache-2.0
"""What the accounting stream remembers between micro-batches, so that a killed driver neither loses nor doubles.

A micro-batch is computed from its records and from what was remembered after the one before. Then its rows are written,
under names that follow from its number, and only then is it noted as done, in one file that appears whole:

    _state/usage/000000000012.json          after micro-batch 12: brokers' progress, and which files have counters
    _state/usage/series-000000000012.parquet    the series of counters that it changed

A driver that is killed before the note computes the same rows from the same memory, and replaces them. One that is
killed after it finds the note, and does nothing.

Counters are added as files of what changed. The highest counter of a series counts, so their order does not matter,
and they are made one file from time to time.
"""

from __future__ import annotations

import fcntl
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.accounting.closing import Progress, Progresses
from penstock.accounting.differences import COUNTERS
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting.differing import SERIES, SERIES_SCHEMA
from penstock.spark.accounting.store import put_in_place, write_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FILES_MAX: Final = 16
# The note of the micro-batch before stays, in case the last one is damaged.
NOTES_KEPT: Final = 2
_NOTES: Final = "[0-9]*.json"
_PLAN: Final = "plan.json"


class BatchState:
    """The memory of one query, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        notes = sorted(directory.glob(_NOTES))
        document = json.loads(notes[-1].read_text(encoding="utf-8")) if notes else {}
        self.batch: int = document.get("batch", -1)
        self.query: str = document.get("query", "")
        self.counts: dict[str, int] = document.get("counts", {})
        self.files: list[str] = document.get("files", [])
        # Until where records were read; None: the checkpoint of Spark's query knows.
        self.offsets: dict[str, Any] | None = document.get("offsets")
        brokers = {name: Progress(*one) for name, one in document.get("brokers", {}).items()}
        self.progress = Progresses(brokers, document.get("closed_ms"))

    def begins(self, batch: int, query: str) -> bool:
        """Return whether a micro-batch is to be computed; False: it was done before the driver was killed.

        Raises:
            ConfigurationError: the checkpoint does not belong to the tables.
        """
        if self.query and query != self.query:
            raise ConfigurationError(
                f"{self.directory.parent.parent}: the checkpoint is not the one that the tables were written with; "
                "its directory was removed or replaced, or --engine was another one. Use the same engine, or begin "
                "with an empty directory"
            )
        if batch <= self.batch:
            return False
        if batch != self.batch + 1:
            raise ConfigurationError(
                f"{self.directory.parent.parent}: micro-batch {batch} follows {self.batch}; files of _state are missing"
            )
        self.query = query
        return True

    def count(self, name: str, number: int | None) -> None:
        """Add to a count of all micro-batches."""
        self.counts[name] = self.counts.get(name, 0) + (number or 0)

    def series(self) -> list[str]:
        """Return the files with counters."""
        return [str(self.directory / name) for name in self.files]

    def highest(self) -> Any:  # noqa: ANN401 - pyarrow.Table
        """Return the counters of all files; of a series perhaps several, of which the highest count."""
        files = self.series()
        return ds.dataset(files, schema=SERIES_SCHEMA).to_table() if files else SERIES_SCHEMA.empty_table()

    def done(self, batch: int, progress: Progresses, changed: Any = None) -> None:  # noqa: ANN401 - pyarrow.Table
        """Note that the rows of a micro-batch are written, with the counters that it changed."""
        files = list(self.files)
        if changed is not None and changed.num_rows:
            name = f"series-{batch:012}.parquet"
            if len(files) >= FILES_MAX:
                changed = highest(pa.concat_tables([self.highest(), changed]))
                files.clear()
            write_file(self.directory / name, changed)
            files.append(name)
        document = {
            "batch": batch,
            "query": self.query,
            "counts": self.counts,
            "files": files,
            "brokers": progress.brokers,
            "closed_ms": progress.closed_ms,
            **({} if self.offsets is None else {"offsets": self.offsets}),
        }
        self._write(document, f"{batch:012}.json")
        kept = {*files, *self.files}
        self.batch, self.progress, self.files = batch, progress, files
        for path in sorted(self.directory.glob(_NOTES))[:-NOTES_KEPT]:
            path.unlink()
        for path in self.directory.glob("series-*.parquet"):
            if path.name not in kept:
                path.unlink()

    def planned(self, batch: int) -> dict[str, Any] | None:
        """Return until where a micro-batch was to read when the process was killed; None: it was not planned."""
        try:
            plan = json.loads((self.directory / _PLAN).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        end: dict[str, Any] | None = plan["end"] if plan["batch"] == batch else None
        return end

    def plan(self, batch: int, end: dict[str, Any]) -> None:
        """Note until where a micro-batch reads, before it begins: repeated, it must read the same."""
        self._write({"batch": batch, "end": end}, _PLAN)

    def _write(self, document: object, name: str) -> None:
        unfinished = self.directory / "_unfinished"
        unfinished.write_text(json.dumps(document), encoding="utf-8")
        put_in_place(unfinished, self.directory / name)


def counts_of(tables: Path, kinds: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return what was counted so far, by kind of records."""
    return {kind: BatchState(tables / "_state" / kind).counts for kind in kinds}


def highest(series: Any) -> Any:  # noqa: ANN401 - pyarrow.Table
    """Return one row for each series, with its highest counters."""
    found = series.group_by(list(SERIES)).aggregate([(name, "max") for name in COUNTERS])
    renamed = found.rename_columns([name.removesuffix("_max") for name in found.column_names])
    return renamed.select(SERIES_SCHEMA.names).cast(SERIES_SCHEMA)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Let one driver at a time write the tables of a directory. Raises ConfigurationError."""
    (directory / "_state").mkdir(parents=True, exist_ok=True)
    with Path(directory / "_state" / "lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(f"{directory}: another process writes these tables") from error
        yield
