# SPDX-License-Identifier: Apache-2.0
"""The data directory: the place of all durable data, and its format.

    FORMAT                                one line, `penstock 2`: written and read before everything else
    meta.sqlite                           the shared part of the catalog
    broker-0/{topics.sqlite,log,index}    one broker: its part of the catalog, its entry log, the log's index files
    lock, broker-0/lock                   held by the process that writes meta.sqlite, and by that of the broker

Why: a directory outlives the program that wrote it. A penstock that is too old for it, or a directory of another
program, must be refused before the first write, with an error that names both. Where: opened first at start; then the
catalog and the log are opened inside.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ConfigurationError, DataDirectoryLocked, MetadataFailed
from penstock.storage.files import FileLocked, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.files import Files, Lock

# Brokers that one data directory may have: more than any machine has cores for.
BROKERS_MAX: Final = 64
# The mask of new files; brokers of a supervisor inherit it. What is stored is for the user that runs penstock: others
# would read messages past all permissions.
PRIVATE: Final = 0o077
# Format 1 had the whole catalog in meta.sqlite; `schema` migrates it.
FORMAT_VERSION: Final = 2

_FORMAT_NAME: Final = "FORMAT"
_FORMAT_DRAFT: Final = "FORMAT.new"  # A crash during the first start may leave this file.
_FORMAT_WORD: Final = "penstock"
_FORMAT_BYTES_MAX: Final = 64
# A new file system has this directory.
_NOT_OURS_BUT_HARMLESS: Final = {"lost+found"}


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """The paths of a data directory."""

    path: Path

    @property
    def metadata(self) -> Path:
        return self.path / "meta.sqlite"

    def broker(self, number: int) -> Path:
        """The directory of one broker."""
        return self.path / f"broker-{number}"

    def topics(self, number: int) -> Path:
        """One broker's part of the catalog."""
        return self.broker(number) / "topics.sqlite"

    def files_of(self, number: int, files: Files) -> list[Path]:
        """Return the files of a broker but its lock, in an order in which they may be deleted. Raises OSError."""
        home, topics = self.broker(number), self.topics(number)
        # The write-ahead log first: without the file that it belongs to, a new file would be given its content.
        names = (f"{topics.name}-wal", f"{topics.name}-shm", topics.name)
        found = [home / name for name in names if files.exists(home / name)]
        for part in ("log", "index", "delayed"):
            if files.exists(home / part):
                found += [home / part / name for name in files.names(home / part)]
        return found

    def brokers_from(self, number: int, files: Files) -> list[int]:
        """Return the brokers from this number on that have files here, ascending. Raises OSError."""
        there = (one for one in range(number, BROKERS_MAX) if files.exists(self.broker(one)))
        return [one for one in there if self.files_of(one, files)]

    def lock(self, files: Files) -> Lock:
        """Lock the shared part of the catalog for this process. Raises DataDirectoryLocked."""
        try:
            return files.lock(self.path / "lock", str(os.getpid()))
        except FileLocked as error:
            raise DataDirectoryLocked(
                f"{self.path} is in use by process {error.holder or 'unknown'}; stop it, or choose another directory"
            ) from None

    def mark_current(self, files: Files) -> None:
        """Write the format of this version, if the directory was just migrated to it. Raises MetadataFailed."""
        try:
            if _format(self.path, files) != FORMAT_VERSION:
                write_format(self.path, files)
        except OSError as error:
            raise MetadataFailed(f"cannot write {self.path / _FORMAT_NAME}: {error.strerror or error}") from error


def open_data_directory(path: Path, files: Files, *, brokers: int = 1) -> DataDirectory:
    """Open the data directory at `path`, or create it.

    Raises:
        ConfigurationError: it cannot be created, read or written, belongs to another program, or has an unknown format.
    """
    directory = DataDirectory(path)
    with _explained(path):
        files.make_directory(path)
        names = set(files.names(path))
        if _FORMAT_NAME in names:
            _format(path, files)
        else:
            _check_empty(path, names)
            write_format(path, files)
        for number in range(brokers):
            for part in ("log", "index"):
                files.make_directory(directory.broker(number) / part)
    return directory


def is_data_directory(path: Path) -> bool:
    """Return whether this is a data directory of penstock."""
    return (path / _FORMAT_NAME).is_file()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"data directory {path} cannot be used: {error.strerror or error}; "
            f"give penstock a directory that it may create, read and write"
        ) from error


def _format(path: Path, files: Files) -> int:
    """Read the version of the format. Raises OSError, ConfigurationError."""
    file = files.open(path / _FORMAT_NAME)  # Opens for writing too: a read-only directory shows here, by its name.
    try:
        text = file.read(_FORMAT_BYTES_MAX, 0).decode(errors="replace")
    finally:
        file.close()
    word, _, version = text.strip().partition(" ")
    if word != _FORMAT_WORD or not version.isdecimal():
        raise ConfigurationError(
            f"{path / _FORMAT_NAME} reads {text!r}, not `{_FORMAT_WORD} {FORMAT_VERSION}`: damaged?"
        )
    if int(version) > FORMAT_VERSION:
        raise ConfigurationError(
            f"data directory {path} has format `{text.strip()}`, and this penstock knows formats up to "
            f"`{_FORMAT_WORD} {FORMAT_VERSION}`; start it with the newer penstock that wrote it"
        )
    return int(version)


def _check_empty(path: Path, names: set[str]) -> None:
    foreign = sorted(names - {_FORMAT_DRAFT} - _NOT_OURS_BUT_HARMLESS)
    if foreign:
        raise ConfigurationError(
            f"{path} is not a penstock data directory: it has no {_FORMAT_NAME} file but holds {foreign[0]!r}; "
            f"give penstock an empty directory or one of its own"
        )


def write_format(path: Path, files: Files, version: int = FORMAT_VERSION) -> None:
    """Write FORMAT, under another name first, so that it is always complete. Raises OSError."""
    draft = files.open(path / _FORMAT_DRAFT, create=True)
    try:
        draft.truncate(0)
        write_all(draft, [f"{_FORMAT_WORD} {version}\n".encode()], 0)
        draft.sync()
    finally:
        draft.close()
    files.rename(path / _FORMAT_DRAFT, path / _FORMAT_NAME)
    files.sync_directory(path)
