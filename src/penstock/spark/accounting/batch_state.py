# SPDX-License-Identifier: Apache-2.0
"""Memory of the accounting stream between micro-batches, so that a killed driver neither loses nor doubles rows.

A micro-batch is computed from its records and from what was remembered after the one before. Then its rows are written,
under names that follow from its number, and only then is it noted as done, in one file:

    _state/usage/000000000012.json          after micro-batch 12: brokers' progress, and which files have counters
    _state/usage/series-000000000012.parquet    the series of counters that it changed

A driver that is killed before the note computes the same rows from the same memory, and replaces them. One that is
killed after it finds the note, and does nothing. A note of which only a part was written is none.

Counters are added as files of what changed. The highest counter of a series counts, so their order does not matter,
and they are made one file from time to time.

Where: the driver only: executors are given the counters.
"""

from __future__ import annotations

import fcntl
import re
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.accounting.closing import Progress, Progresses
from penstock.accounting.differences import COUNTERS
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting.differing import SERIES, SERIES_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.spark.accounting.directory import Directory

STATE: Final = "_state"
FILES_MAX: Final = 16
# The note of the micro-batch before stays, in case the last one is damaged.
NOTES_KEPT: Final = 2
_NOTE: Final = re.compile(r"/(\d{12})\.json$")
_SERIES: Final = re.compile(r"/series-\d{12}\.parquet$")
_PLAN: Final = "plan.json"
_WRITER: Final = f"{STATE}/writer.json"


class BatchState:
    """The memory of one query, in a folder of its own."""

    def __init__(self, directory: Directory, kind: str) -> None:
        self.directory = directory
        self.folder = f"{STATE}/{kind}"
        document = _last_note(directory, kind) or {}
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
                f"{self.directory}: the checkpoint is not the one that the tables were written with; "
                "its directory was removed or replaced, or --engine was another one. Use the same engine, or begin "
                "with an empty directory"
            )
        if batch <= self.batch:
            return False
        if batch != self.batch + 1:
            raise ConfigurationError(
                f"{self.directory}: micro-batch {batch} follows {self.batch}; files of _state are missing"
            )
        check_writer(self.directory)
        self.query = query
        return True

    def count(self, name: str, number: int | None) -> None:
        """Add to a count of all micro-batches."""
        self.counts[name] = self.counts.get(name, 0) + (number or 0)

    def highest(self) -> Any:  # noqa: ANN401 - pyarrow.Table
        """Return the counters of all files; of a series perhaps several, of which the highest count."""
        files = [f"{self.folder}/{name}" for name in self.files]
        return self.directory.dataset(files, SERIES_SCHEMA).to_table() if files else SERIES_SCHEMA.empty_table()

    def done(self, batch: int, progress: Progresses, changed: Any = None) -> None:  # noqa: ANN401 - pyarrow.Table
        """Note that the rows of a micro-batch are written, with the counters that it changed."""
        files = list(self.files)
        if changed is not None and changed.num_rows:
            name = f"series-{batch:012}.parquet"
            if len(files) >= FILES_MAX:
                changed = highest(pa.concat_tables([self.highest(), changed]))
                files.clear()
            self.directory.write_rows(f"{self.folder}/{name}", changed)
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
        check_writer(self.directory)
        self.directory.note(f"{self.folder}/{batch:012}.json", document)
        kept = {*files, *self.files}
        self.batch, self.progress, self.files = batch, progress, files
        there = self.directory.sizes(self.folder)
        for name in [name for name in there if _NOTE.search(name)][:-NOTES_KEPT]:
            self.directory.delete(name)
        for name in there:
            if _SERIES.search(name) and name.rsplit("/", 1)[1] not in kept:
                self.directory.delete(name)

    def planned(self, batch: int) -> dict[str, Any] | None:
        """Return until where a micro-batch was to read when the process was killed; None: it was not planned."""
        plan = self.directory.document(f"{self.folder}/{_PLAN}")
        end: dict[str, Any] | None = plan["end"] if plan is not None and plan["batch"] == batch else None
        return end

    def plan(self, batch: int, end: dict[str, Any]) -> None:
        """Note until where a micro-batch reads, before it begins: repeated, it must read the same."""
        check_writer(self.directory)
        self.directory.note(f"{self.folder}/{_PLAN}", {"batch": batch, "end": end})


def _last_note(directory: Directory, kind: str) -> dict[str, Any] | None:
    notes = [name for name in directory.sizes(f"{STATE}/{kind}") if _NOTE.search(name)]
    return next(filter(None, map(directory.document, reversed(notes))), None)


def last_noted(directory: Directory, kind: str) -> int | None:
    """Return the number of the last micro-batch that is done; None: no note is there."""
    note = _last_note(directory, kind)
    return None if note is None else note["batch"]


def counts_of(directory: Directory, kinds: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return what was counted so far, by kind of records."""
    return {kind: BatchState(directory, kind).counts for kind in kinds}


def highest(series: Any) -> Any:  # noqa: ANN401 - pyarrow.Table
    """Return one row for each series, with its highest counters."""
    found = series.group_by(list(SERIES)).aggregate([(name, "max") for name in COUNTERS])
    renamed = found.rename_columns([name.removesuffix("_max") for name in found.column_names])
    return renamed.select(SERIES_SCHEMA.names).cast(SERIES_SCHEMA)


@contextmanager
def alone(directory: Directory) -> Iterator[None]:
    """Let one driver at a time write the tables of a directory.

    On this machine a second one is refused. At a URL there are no locks: there the second one writes its name, and the
    first one stops at its next step, as `check_writer` says. Both write the same until then.

    Raises:
        ConfigurationError: another process writes.
    """
    if directory.writer is not None:  # It is this process that writes.
        yield
        return
    directory.writer = uuid.uuid4().hex
    try:
        if directory.is_local:
            with _locked(Path(str(directory))):
                yield
        else:
            directory.note(_WRITER, {"writer": directory.writer})
            yield
    finally:
        directory.writer = None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    (directory / STATE).mkdir(parents=True, exist_ok=True)
    with Path(directory / STATE / "lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(f"{directory}: another process writes these tables") from error
        yield


def check_writer(directory: Directory) -> None:
    """Raises ConfigurationError if another process has begun to write at this URL."""
    if directory.is_local or directory.writer is None:
        return
    found = directory.document(_WRITER)
    if found is not None and found["writer"] != directory.writer:
        raise ConfigurationError(f"{directory}: another process has begun to write these tables; this one stops")
