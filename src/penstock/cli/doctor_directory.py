# SPDX-License-Identifier: Apache-2.0
"""The checks of `penstock doctor DIR`: a data directory, read as it is.

Nothing in it is written. A catalog can only be read by a database that writes, so copies of its files are opened, as a
start would; segments are judged by the functions of recovery. Locks are only held, shared, so that no broker starts
meanwhile. Where: `doctor` calls `directory`, and `upgrade` the functions that copy, lock and open.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.cli.findings import Finding
from penstock.core.errors import MetadataFailed
from penstock.core.units import MIB
from penstock.storage.catalog import Catalog
from penstock.storage.directory import FORMAT_VERSION, PRIVATE, DataDirectory
from penstock.storage.files import OsFile, OsFiles
from penstock.storage.formats import NEWEST
from penstock.storage.index import IndexDamaged
from penstock.storage.recovery import judge, scan
from penstock.storage.sealed_index import SealedIndex
from penstock.storage.segment import file_name
from penstock.storage.shared_store import LocalPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Of each kind and broker: one failed disk may have thousands.
_LISTED_MAX: Final = 20
_CLOCK_TOLERANCE_MS: Final = 3_600_000
_INDEX_CACHE_BYTES: Final = MIB
# What a directory has, by its place in it. Other names are foreign, and drafts are left from an interrupted write.
_DRAFT: Final = re.compile(r".*\.(?:new|draft)|probe")
_NAMES: Final = {
    ".": re.compile(r"FORMAT|lock|meta\.sqlite(?:-wal|-shm|-journal)?|broker-\d{1,2}|lost\+found|.*\.pid"),
    "broker": re.compile(r"lock|log|index|delayed|topics\.sqlite(?:-wal|-shm|-journal)?"),
    "log": re.compile(r"[0-9a-f]{16}\.(?:seg|spare)"),
    "index": re.compile(r"index\.sqlite(?:-wal|-shm|-journal)?"),
}
_SEGMENT: Final = re.compile(r"[0-9a-f]{16}\.seg")
_VERSION_AT: Final = slice(60, 64)  # of the schema, in the header of a database


class _Log(NamedTuple):
    """The content of one broker's log."""

    ledgers: dict[int, int]  # last entry by ledger; of whole topics, trimmed entries too
    present: set[int]  # ledgers with entries in some segment
    nonces: dict[int, str]  # the name of each segment, by its nonce


def directory(path: Path, *, wall_ms: int) -> Iterator[Finding]:
    """Yield what is wrong with a data directory. Args: wall_ms: the time now."""
    data = DataDirectory(path)
    try:
        version, problem = _format(path)
        yield from problem
        yield from _names(data)
        yield from _modes(data)
        yield from _clock(path, wall_ms)
        if version is None:
            return
        with ExitStack() as stack:
            holder = lock(data, stack)
            if holder is not None:
                yield Finding("directory-in-use", f"process {holder or 'unknown'} uses {path}")
                return
            yield from _contents(data)
    except OSError as error:
        yield Finding("directory-unreadable", f"{error.filename or path}: {error.strerror or error}")


def is_directory(path: Path) -> bool:
    """Return whether this looks like a data directory; that FORMAT alone is missing is a fault of one."""
    return (path / "FORMAT").exists() or (path / "meta.sqlite").exists()


def in_use(path: Path) -> bool:
    """Return whether a broker uses a data directory. Raises OSError."""
    with ExitStack() as stack:
        return lock(DataDirectory(path), stack) is not None


def _format(path: Path) -> tuple[int | None, list[Finding]]:
    """Return the version of the format; None if it is not to be read further."""
    if not (path / "FORMAT").exists():
        return None, [Finding("format-damaged", f"{path / 'FORMAT'} is missing")]
    text = (path / "FORMAT").read_text(encoding="utf-8", errors="replace").strip()
    word, _, version = text.partition(" ")
    if word != "penstock" or not version.isdecimal():
        return None, [Finding("format-damaged", f"{path / 'FORMAT'} reads {text[:64]!r}")]
    if int(version) > FORMAT_VERSION:
        what = f"{path} has format {version}, and this penstock knows formats up to {FORMAT_VERSION}"
        return None, [Finding("format-newer", what)]
    if int(version) < FORMAT_VERSION:
        return None, [Finding("format-older", f"{path} has format {version}, and the newest is {FORMAT_VERSION}")]
    return FORMAT_VERSION, []


def _names(data: DataDirectory) -> Iterator[Finding]:
    """Files that were left or that are not penstock's."""
    places = [(data.path, ".")]
    for number in data.brokers_from(0, OsFiles()):
        home = data.broker(number)
        places += [(home, "broker"), *((home / part, part) for part in ("log", "index"))]
    for place, kind in places:
        for name in os.listdir(place) if place.is_dir() else ():  # noqa: PTH208 - names are wanted
            if _DRAFT.fullmatch(name):
                yield Finding("temporary-left", str(place / name))
            elif not _NAMES[kind].fullmatch(name):
                yield Finding("file-foreign", str(place / name))


def _modes(data: DataDirectory) -> Iterator[Finding]:
    """Messages that other users can read: the mode of each directory on the way counts, too."""
    if not data.path.stat().st_mode & 0o001:
        return
    for number in data.brokers_from(0, OsFiles()):
        home = data.broker(number)
        for path in (data.metadata, data.topics(number)):
            shut = path.parent != data.path and not home.stat().st_mode & 0o001
            if path.exists() and path.stat().st_mode & PRIVATE & 0o004 and not shut:
                yield Finding("directory-open", f"{path} can be read by every user")


def _clock(path: Path, wall_ms: int) -> Iterator[Finding]:
    newest = max((one.stat().st_mtime_ns // 1_000_000 for one in path.glob("broker-*/log/*.seg")), default=0)
    if newest > wall_ms + _CLOCK_TOLERANCE_MS:
        hours = (newest - wall_ms) / 3_600_000
        yield Finding("clock-behind", f"the clock is {hours:,.1f} hours behind the newest segment of {path}")


def lock(data: DataDirectory, stack: ExitStack) -> str | None:
    """Hold all locks shared until the stack ends; return who holds one of them, None: nobody. Raises OSError."""
    homes = [data.path, *map(data.broker, data.brokers_from(0, OsFiles()))]
    for lock in (home / "lock" for home in homes):
        if not lock.exists():
            continue
        file = stack.enter_context(lock.open("rb"))
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(64).decode(errors="replace").strip()
    return None


def _contents(data: DataDirectory) -> Iterator[Finding]:
    """Check all that a start would read."""
    brokers = data.brokers_from(0, OsFiles())
    logs = {}
    for number in brokers:
        with copies_of([data.broker(number) / "index" / "index.sqlite"], data.path) as copies:
            logs[number], found = _log_of(data.broker(number), copies / f"broker-{number}" / "index" / "index.sqlite")
        yield from _shortened(found)
    yield from _twice(logs)
    if missing := [path for path in (data.metadata, *map(data.topics, brokers)) if _is_missed(path, data, logs)]:
        yield from (Finding("catalog-missing", f"{path} is missing") for path in missing)
        return
    if not data.metadata.exists():
        return
    with copies_of([data.path / "FORMAT", data.metadata, *map(data.topics, brokers)], data.path) as copies:
        yield from _catalogs(data, DataDirectory(copies), logs)


def _is_missed(path: Path, data: DataDirectory, logs: Mapping[int, _Log]) -> bool:
    """Return whether a part of the catalog is missing, though its topics or messages are there."""
    if path.exists():
        return False
    of = logs.values() if path == data.metadata else [logs[int(path.parent.name.rpartition("-")[2])]]
    return any(one.present for one in of) or (path == data.metadata and any(data.topics(one).exists() for one in logs))


@contextmanager
def copies_of(paths: list[Path], root: Path) -> Iterator[Path]:
    """Copy databases, with what belongs to them, under a directory of our own."""
    with tempfile.TemporaryDirectory(prefix="penstock-doctor-") as temporary:
        for path in paths:
            target = Path(temporary) / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            for suffix in ("", "-wal", "-journal"):
                source = path.with_name(path.name + suffix)
                if source.exists():
                    shutil.copyfile(source, target.with_name(target.name + suffix))
        yield Path(temporary)


def _shortened(findings: list[Finding]) -> Iterator[Finding]:
    """Yield a limited number of each kind, and how many more there are."""
    by_id: dict[str, list[Finding]] = {}
    for one in findings:
        by_id.setdefault(one.id, []).append(one)
    for kind, several in by_id.items():
        yield from several[:_LISTED_MAX]
        if len(several) > _LISTED_MAX:
            yield Finding(kind, f"and {len(several) - _LISTED_MAX:,} more like these")


# -- the log -----------------------------------------------------------------------------------------------------------


def _log_of(home: Path, index_copy: Path) -> tuple[_Log, list[Finding]]:
    """Read the log of one broker, every byte of it."""
    found: list[Finding] = []
    log = _Log({}, set(), {})
    index = _index(home, index_copy, found)
    known = index.segments if index is not None else {}
    begun = index.begun() if index is not None else {}
    if index is not None:
        log.ledgers.update({ledger: row.last_entry for ledger, row in index.ledgers.items()})
        index.close()
    names = sorted(filter(_SEGMENT.fullmatch, os.listdir(home / "log"))) if (home / "log").is_dir() else []  # noqa: PTH208
    for segment_id, size in {**begun, **{one: row.bytes for one, row in known.items() if row.live_bytes > 0}}.items():
        if file_name(segment_id) not in names:
            what = f"{home / 'log' / file_name(segment_id)} is missing; it had {size:,} bytes of messages"
            found.append(Finding("segment-missing", what))
    for name in names:
        row = known.get(segment_id := int(name[:16], 16))
        wanted = row.bytes if row is not None else begun.get(segment_id, 0)
        if row is None or row.live_bytes > 0:
            found += _segment(home / "log" / name, segment_id, wanted, sealed=row is not None, log=log)
    return log, found


def _index(home: Path, copy: Path, found: list[Finding]) -> SealedIndex | None:
    path = home / "index" / "index.sqlite"
    if not copy.exists():
        if any((home / "log").glob("*.seg")):
            found.append(Finding("index-missing", f"{path} is missing"))
        return None
    try:
        return SealedIndex(copy, cache_bytes=_INDEX_CACHE_BYTES)
    except (IndexDamaged, OSError) as error:
        found.append(Finding("index-damaged", f"{path}: {error}".replace(str(copy), str(path))))
        return None


def _segment(path: Path, segment_id: int, wanted: int, *, sealed: bool, log: _Log) -> Iterator[Finding]:
    """Judge a segment as recovery would. `wanted`: bytes that it should have, as the index knows."""
    size = path.stat().st_size
    file = OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    try:
        seen = scan(file, segment_id)
    finally:
        file.close()
    if size < wanted and (sealed or not seen.marked):
        yield Finding("segment-short", f"{path} has {size:,} bytes instead of {wanted:,}")
    if seen.nonce is not None:
        log.nonces[seen.nonce] = str(path)
    verdict = judge(seen)
    for damage in verdict.damage:
        yield Finding("log-damaged", f"{path}: {damage.describe()}")
    for ledger, spans in verdict.index.ledgers.items():
        log.present.add(ledger)
        log.ledgers[ledger] = max(log.ledgers.get(ledger, -1), spans[-1].end_entry - 1)
    if sealed and not verdict.damage and verdict.end < min(wanted, size):
        yield Finding("log-damaged", f"{path}: nothing can be read from {verdict.end:,} to {wanted:,}")


def _twice(logs: Mapping[int, _Log]) -> Iterator[Finding]:
    seen: dict[int, str] = {}
    for log in logs.values():
        for nonce, path in log.nonces.items():
            if nonce in seen:
                yield Finding("segment-twice", f"{path} is a copy of {seen[nonce]}")
            seen[nonce] = path


# -- the catalog -------------------------------------------------------------------------------------------------------


def _catalogs(data: DataDirectory, copies: DataDirectory, logs: Mapping[int, _Log]) -> Iterator[Finding]:
    """Open copies of the catalog as a start would."""
    newer = [
        *_newer(data.metadata, copies.metadata, NEWEST.shared_catalog),
        *(one for number in logs for one in _newer(data.topics(number), copies.topics(number), NEWEST.topic_catalog)),
    ]
    yield from newer
    if newer:
        return
    for number in logs or (0,):
        copies.broker(number).mkdir(exist_ok=True)
        try:
            catalog = opened(copies, number)
        except MetadataFailed as error:
            yield Finding("catalog-damaged", str(error).replace(str(copies.path), str(data.path)))
            continue
        try:
            if number == min(logs, default=0):
                yield from _shared(data, catalog, logs)
            if number in logs:
                yield from _shortened([*_against(data, number, catalog, logs[number])])
        finally:
            catalog.close()


def opened(copies: DataDirectory, number: int) -> Catalog:
    """Open the catalog of one broker, wherever topics are placed. Raises MetadataFailed."""
    shared = LocalPart.open(copies, _post, OsFiles(), brokers=None, exclusive=True, vfs=None)
    return Catalog.open(copies, _post, broker=number, shared=shared, exclusive=True)


def _post(call: Callable[[], None]) -> None:
    call()


def _newer(path: Path, copy: Path, newest: int) -> Iterator[Finding]:
    if copy.exists():
        with copy.open("rb") as file:
            version = int.from_bytes(file.read(100)[_VERSION_AT])
        if newest < version < 1_000_000:  # A damaged header has any number.
            yield Finding("catalog-newer", f"{path} has schema version {version}, and this penstock knows {newest}")


def _shared(data: DataDirectory, catalog: Catalog, logs: Mapping[int, _Log]) -> Iterator[Finding]:
    """Check the places of topics, and the stored settings."""
    from penstock.broker.configuration import usable
    from penstock.settings import load
    from penstock.settings.limits import Live

    placed: dict[int, int] = {}
    for record in catalog.topics():
        placed[record.broker] = placed.get(record.broker, 0) + 1
    for number, topics in placed.items():
        if number not in logs:
            what = f"{topics:,} topics are on broker {number}, and {data.broker(number)} is not there or empty"
            yield Finding("broker-missing", what)
    _, errors = usable(Live(load()), dict(catalog.configuration()))
    for key, error in errors.items():
        yield Finding("stored-setting", f"the stored value of {key} is ignored: {error}")


def _against(data: DataDirectory, number: int, catalog: Catalog, log: _Log) -> Iterator[Finding]:
    """The log of a broker beside the catalog."""
    of = {record.ledger_id: record for record in catalog.topics()}
    where = data.broker(number) / "log"
    for ledger in sorted(log.present):
        record = of.get(ledger)
        if record is not None and record.broker != number:
            what = f"{where} has messages of {record.name}, which is on broker {record.broker}"
            yield Finding("ledger-elsewhere", what)
        elif record is None and not catalog.was_given_out(ledger):
            yield Finding("ledger-unknown", f"{where} has messages of ledger {ledger}, which was never given out")
    for record in of.values():
        if record.broker != number:
            continue
        last = log.ledgers.get(record.ledger_id, -1)
        for subscription in catalog.subscriptions(record.name):
            cursor = catalog.cursor(record.name, subscription.name)
            if cursor is not None and cursor.mark_delete > last:
                what = (
                    f"subscription {subscription.name!r} of {record.name} has acknowledged up to entry "
                    f"{cursor.mark_delete:,}, and the last one in {where} is {last:,}"
                )
                yield Finding("cursor-behind-log", what)
