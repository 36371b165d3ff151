# SPDX-License-Identifier: Apache-2.0
"""Backups of a data directory: taken while its brokers run, and put back into an empty directory.

A backup is what a kill of all brokers would have left at one moment, without the indexes, which a start builds again:

    BACKUP/
    ├── manifest.json                    written last: size and SHA-256 of every file, and what wrote it
    ├── meta.sqlite
    └── broker-0/{topics.sqlite,log/*.seg}

Why one moment: a cursor must not point behind the end of the log, and the log must not have entries of transactions
that the catalog does not know. So nobody may change the catalog while the brokers say how much of their logs is
durable; publishers go on (docs/adr/0118). FORMAT is missing, so that no broker starts on a backup and changes it.
Where: `penstock backup` and `penstock restore`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw

from penstock.core.errors import PenstockError
from penstock.core.units import MIB, NS_PER_S
from penstock.storage.blocks import HEADER_BYTES
from penstock.storage.directory import FORMAT_VERSION, PRIVATE, DataDirectory, open_data_directory, write_format
from penstock.storage.files import OsFiles
from penstock.storage.metadata import close_untouched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.core.clock import Clock

MANIFEST: Final = "manifest.json"
# Of the manifest.
VERSION: Final = 1
# A broker whose catalog cannot be written or folded for 30 s (`metadata.BUSY_WAIT_MS`) starts again: stay far below.
FREEZE_MS: Final = 5_000
COPY_CATALOG_NS: Final = 10 * NS_PER_S
# How long segments are kept, and how often that is prolonged while they are copied.
KEEP_S: Final = 60
RENEW_NS: Final = 10 * NS_PER_S

_PAGES_AT_ONCE: Final = 1_000
# The paths in a manifest: nothing else is written by a restore.
_PATH: Final = re.compile(r"meta\.sqlite|broker-\d{1,2}/(?:topics\.sqlite|log/[0-9a-f]{16}\.seg)")


class BackupFailed(PenstockError):
    """A backup cannot be taken or put back; the message names the file and what to do."""


class KeptLog(NamedTuple):
    """A broker's answer: the segments that it keeps for the backup."""

    broker: int
    inode: int  # of the directory of its log
    hold: int  # another number after a hold has run out, and after a restart
    segments: Mapping[str, int]  # name: durable bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of everything in a backup."""

    version: int
    format: int  # of the data directory
    penstock: str  # the version that took the backup
    taken_at: str
    brokers: list[int]
    files: dict[str, tuple[int, str]]  # path: bytes, SHA-256

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(nbytes for nbytes, _ in self.files.values())


class Backup:
    """One backup being taken."""

    def __init__(
        self,
        source: Path,
        target: Path,
        *,
        keep: Callable[[int], list[KeptLog]],
        clock: Clock,
        previous: Path | None = None,
    ) -> None:
        """Prepare it.

        Args:
            source: the data directory of running brokers.
            target: a directory that is empty, or not there yet.
            keep: asks all brokers to keep their segments for so many seconds. Raises what ends the backup.
            clock: for deadlines.
            previous: an earlier backup of the same directory on the same file system, whose segments are used again.
        """
        self._directory = DataDirectory(source)
        self._target = target
        self._keep = keep
        self._clock = clock
        self._previous = previous
        self._before: dict[str, tuple[int, str]] = read_manifest(previous).files if previous is not None else {}
        self._holds: dict[int, int] = {}
        self._renew_ns = 0
        self._files: dict[str, tuple[int, str]] = {}
        self.linked_bytes = 0  # taken from the earlier backup

    def take(self, *, penstock: str, taken_at: str) -> Manifest:
        """Take the backup. Raises BackupFailed; then the target has no manifest."""
        with _explained():
            brokers = self._directory.brokers_from(0, OsFiles())
            empty_directory(self._target)
            for number in brokers:
                (self._target / f"broker-{number}" / "log").mkdir(parents=True)
            self._check(self._keep(KEEP_S), brokers)
            with ExitStack() as stack:
                readers, logs = self._at_one_moment(brokers, stack)
                for path, reader in readers.items():
                    self._copy_catalog(path, reader)
            for one in logs:
                for name, nbytes in sorted(one.segments.items()):
                    self._copy_segment(f"broker-{one.broker}/log/{name}", nbytes)
            self._check(self._keep(KEEP_S), brokers)
            manifest = Manifest(VERSION, FORMAT_VERSION, penstock, taken_at, brokers, self._files)
            _sync_directories(self._target, self._files)
            _write_manifest(self._target, manifest)
        return manifest

    def _at_one_moment(
        self, brokers: Sequence[int], stack: ExitStack
    ) -> tuple[dict[str, apsw.Connection], list[KeptLog]]:
        """Return connections that read the catalog as it is at one moment, and how long the logs are then."""
        paths = [self._directory.metadata, *map(self._directory.topics, brokers)]
        readers = {str(path.relative_to(self._directory.path)): stack.enter_context(_open(path)) for path in paths}
        with ExitStack() as frozen:
            for path in paths:
                frozen.enter_context(_open(path)).execute("begin immediate")  # Others wait to write.
            logs = self._keep(KEEP_S)
            for reader in readers.values():
                reader.execute("begin; select count(*) from sqlite_schema").fetchall()  # A read fixes what is seen.
        self._check(logs, brokers)
        self._renew_ns = self._clock.monotonic_ns() + RENEW_NS
        return readers, logs

    def _check(self, logs: Sequence[KeptLog], brokers: Sequence[int]) -> None:
        """Raise BackupFailed if these are not the brokers of the directory, or a hold has run out meanwhile."""
        if sorted(one.broker for one in logs) != list(brokers) or any(
            one.inode != (self._directory.broker(one.broker) / "log").stat().st_ino for one in logs
        ):
            raise BackupFailed(
                f"{self._directory.path} is not the data directory of the broker at this admin port; give the URL of "
                f"its own with --admin-url"
            )
        for one in logs:
            if self._holds.setdefault(one.broker, one.hold) != one.hold:
                raise BackupFailed(
                    f"broker {one.broker} kept its segments for {KEEP_S} s and was not asked again in time, or was "
                    f"started again; take the backup again"
                )

    def _copy_catalog(self, name: str, source: apsw.Connection) -> None:
        """Copy what a connection reads, within a time: the broker cannot shorten its write-ahead log meanwhile."""
        target = self._target / name
        deadline_ns = self._clock.monotonic_ns() + COPY_CATALOG_NS
        db = apsw.Connection(str(target))
        try:
            db.pragma("synchronous", "off")
            with db.backup("main", source, "main") as copying:
                while not copying.done:
                    copying.step(_PAGES_AT_ONCE)
                    if self._clock.monotonic_ns() > deadline_ns:
                        raise BackupFailed(
                            f"{target} was not written within {COPY_CATALOG_NS // NS_PER_S} s, and the broker must not "
                            f"wait longer; take the backup to a faster disk, and move it from there"
                        )
        finally:
            db.close()
        source.close()
        immutable = f"{target.absolute().as_uri()}?immutable=1"
        copied = apsw.Connection(immutable, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            found = copied.pragma("integrity_check")
        finally:
            copied.close()
        if found != "ok":
            raise BackupFailed(f"{self._directory.path / name} is damaged: {found}")
        self._files[name] = _hashed(target)

    def _copy_segment(self, name: str, nbytes: int) -> None:
        """Copy the durable part of a segment, or use what an earlier backup has of it."""
        self._renew()
        source, target = self._directory.path / name, self._target / name
        known = self._before.get(name)
        if self._previous is not None and known is not None and known[0] == nbytes:
            earlier = self._previous / name
            if _beginning(earlier) == _beginning(source) and _hashed(earlier) == known:
                with suppress(OSError):  # Another file system: it is copied.
                    os.link(earlier, target)
                    self._files[name] = known
                    self.linked_bytes += nbytes
                    return
        self._files[name] = nbytes, _copy(source, target, nbytes, self._renew)

    def _renew(self) -> None:
        """Keep the segments for longer, if it is time."""
        if self._clock.monotonic_ns() >= self._renew_ns:
            self._check(self._keep(KEEP_S), sorted(self._holds))
            self._renew_ns = self._clock.monotonic_ns() + RENEW_NS


def restore(backup: Path, target: Path) -> Manifest:
    """Put a backup into an empty directory, which a broker can then serve.

    Every file is compared with the manifest while it is copied. FORMAT is written last, so no broker starts on a
    directory that is not complete. Raises BackupFailed, which names the file; then what was copied is removed.
    """
    with _explained():
        manifest = read_manifest(backup)
        if manifest.format > FORMAT_VERSION:
            raise BackupFailed(
                f"{backup} was taken by penstock {manifest.penstock}, whose data directories have format "
                f"{manifest.format}; this penstock knows formats up to {FORMAT_VERSION}: restore with the newer one"
            )
        _check_sizes(backup, manifest)
        empty_directory(target)
        try:
            for name, (nbytes, digest) in manifest.files.items():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                if _copy(backup / name, target / name, nbytes) != digest:
                    raise BackupFailed(f"{backup / name} is damaged: its SHA-256 is not that of the manifest")
        except BaseException:
            for path in target.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise
        _sync_directories(target, manifest.files)
        write_format(target, OsFiles(), manifest.format)
        open_data_directory(target, OsFiles(), brokers=len(manifest.brokers))
    return manifest


def read_manifest(backup: Path) -> Manifest:
    """Read what a backup consists of. Raises BackupFailed: it is not there, or damaged."""
    path = backup / MANIFEST
    try:
        stored = json.loads(path.read_bytes())
        digest = stored.pop("sha256")
        if stored["version"] > VERSION:
            raise BackupFailed(f"{path} was written by penstock {stored['penstock']}; restore with that version")
        manifest = Manifest(**stored)
        files = {name: (int(nbytes), str(known)) for name, (nbytes, known) in manifest.files.items()}
        sound = digest == _digest(stored) and all(map(_PATH.fullmatch, files))
    except FileNotFoundError as error:
        raise BackupFailed(
            f"{path} is missing: this is no backup, or one that was interrupted; only a complete one has it"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupFailed(f"{path} cannot be read: {error}") from error
    if not sound:
        raise BackupFailed(f"{path} is damaged: its SHA-256 is not the one it was written with")
    return Manifest(**{**stored, "files": files})


def empty_directory(path: Path) -> None:
    """Create a directory. Raises BackupFailed if it is there and has something in it, OSError."""
    path.mkdir(parents=True, exist_ok=True)
    there = next(path.iterdir(), None)
    if there is not None:
        raise BackupFailed(f"{path} is not empty: it holds {there.name!r}; give a directory that is, or a new name")


def _sync_directories(root: Path, names: Iterable[str]) -> None:
    """Make the names of files durable. Raises OSError."""
    within = {root / parent for name in names for parent in PurePath(name).parents}  # the root is one of them
    for directory in within:
        OsFiles().sync_directory(directory)


def _check_sizes(backup: Path, manifest: Manifest) -> None:
    """Before anything is copied: Raises BackupFailed if a file is missing, or its size is another."""
    for name, (nbytes, _) in manifest.files.items():
        path = backup / name
        if not path.is_file():
            raise BackupFailed(f"{path} is missing: the backup is incomplete")
        if path.stat().st_size != nbytes:
            raise BackupFailed(f"{path} is damaged: it has {path.stat().st_size:,} bytes instead of {nbytes:,}")


@contextmanager
def _explained() -> Iterator[None]:
    """Errors become BackupFailed; new files are for this user only, as those of a broker."""
    mask = os.umask(PRIVATE)
    try:
        yield
    except OSError as error:
        raise BackupFailed(f"{error.filename or 'the disk'}: {error.strerror or error}") from error
    except apsw.Error as error:
        raise BackupFailed(f"the catalog cannot be read: {type(error).__name__}: {error}") from error
    finally:
        os.umask(mask)


@contextmanager
def _open(path: Path) -> Iterator[apsw.Connection]:
    """Open a file of the catalog beside the process that writes it. Nothing is changed, at its end neither."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        db.set_busy_timeout(FREEZE_MS)
        yield db
    finally:
        close_untouched(db)


def _copy(source: Path, target: Path, nbytes: int, between: Callable[[], None] = lambda: None) -> str:
    """Copy the first bytes of a file, durably; returns their SHA-256. Raises OSError, BackupFailed."""
    digest, left = hashlib.sha256(), nbytes
    with source.open("rb", buffering=0) as reading, target.open("xb") as writing:
        while left:
            data = reading.read(min(left, MIB))
            if not data:
                raise BackupFailed(f"{source} has {nbytes - left:,} bytes instead of {nbytes:,}")
            writing.write(data)
            digest.update(data)
            left -= len(data)
            between()
        writing.flush()
        os.fsync(writing.fileno())
    return digest.hexdigest()


def _hashed(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a file, after it was made durable. Raises OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _beginning(path: Path) -> bytes:
    """Return the first header of a segment, whose nonce no other segment has; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEADER_BYTES)
    except OSError:
        return b""


def _write_manifest(target: Path, manifest: Manifest) -> None:
    stored: dict[str, Any] = asdict(manifest)
    draft = target / f"{MANIFEST}.new"
    with draft.open("x", encoding="utf-8") as file:
        json.dump({**stored, "sha256": _digest(stored)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(target / MANIFEST)
    OsFiles().sync_directory(target)


def _digest(stored: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()
