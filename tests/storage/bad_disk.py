# SPDX-License-Identifier: Apache-2.0
"""A disk in memory that fails once, at a chosen operation, and forgets what was not synced when the power goes."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from penstock.storage.files import Buffer, FileLocked

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence


class Fault(Enum):
    """What happens when the planned operation is reached."""

    NONE = auto()
    POWER = auto()  # From here on nothing works; what was not synced is lost in part, in any part.
    SYNC = auto()  # One sync fails, and what it should have carried never reaches the disk.
    WRITE = auto()  # One write fails after it took some of the bytes.
    FULL = auto()  # From here on nothing can be written.


Step: TypeAlias = tuple[int, bytes] | int  # A write (offset, bytes), or a truncation to a size.


@dataclass(slots=True)
class _Content:
    """A file's bytes: as read now, as safe on the disk, and the steps from the one to the other."""

    seen: bytearray = field(default_factory=bytearray)
    safe: bytearray = field(default_factory=bytearray)
    unsynced: list[Step] = field(default_factory=list)

    def do(self, step: Step) -> None:
        _apply(self.seen, step)
        self.unsynced.append(step)

    def sync(self) -> None:
        for step in self.unsynced:
            _apply(self.safe, step)
        self.unsynced.clear()

    def lose_power(self, chance: random.Random) -> None:
        for step in self.unsynced:
            if chance.random() < 0.5:
                continue
            if isinstance(step, tuple) and chance.random() < 0.3:
                step = (step[0], step[1][: chance.randrange(len(step[1]) + 1)])  # noqa: PLW2901 - torn
            _apply(self.safe, step)
        self.unsynced.clear()
        self.seen = bytearray(self.safe)


def _apply(content: bytearray, step: Step) -> None:
    if isinstance(step, int):
        del content[step:]
        content.extend(bytes(step - len(content)))
        return
    offset, data = step
    if not data:
        return
    content.extend(bytes(max(offset - len(content), 0)))
    content[offset : offset + len(data)] = data


class BadDisk:
    """Implements `Files`. `chance` decides what survives when the power goes, so a seed repeats the whole story."""

    def __init__(self, chance: random.Random) -> None:
        self.struck = False  # True once the planned fault has happened.
        self._chance = chance
        self._names: dict[Path, _Content] = {}
        self._safe_names: dict[Path, _Content] = {}
        self._unsynced_names: list[tuple[Path, _Content | None]] = []
        self._fault = Fault.NONE
        self._left = 0

    def plan(self, fault: Fault, *, after: int) -> None:
        """Let `fault` happen at a later operation, the one after so many; forget what was planned before."""
        self._fault, self._left, self.struck = fault, after, False

    def lose_power(self) -> None:
        """Forget what was not synced: names from some point on, and any part of any write."""
        kept = self._chance.randrange(len(self._unsynced_names) + 1)
        self._keep_names(self._unsynced_names[:kept])
        self._unsynced_names.clear()
        self._names = dict(self._safe_names)
        for content in self._names.values():
            content.lose_power(self._chance)

    def operate(self, kind: Fault) -> bool:
        """Count an operation (a write, a sync, or Fault.NONE for any other); True if it is to fail."""
        self._left -= 1
        if self._left < 0 and self._fault in (kind, Fault.POWER, Fault.FULL):
            self.struck = self.struck or self._fault != Fault.FULL or kind == Fault.WRITE
        elif self._left < 0 and self._fault == Fault.NONE:
            return False
        else:
            return False
        if self._fault == Fault.POWER:
            raise OSError(errno.EIO, "the power is gone")
        if self._fault == Fault.FULL:
            if kind == Fault.WRITE:
                raise OSError(errno.ENOSPC, "the disk is full")
            return False
        self._fault = Fault.NONE
        return True

    # -- Files

    def open(self, path: Path, *, create: bool = False) -> _BadFile:
        self.operate(Fault.NONE)
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self._name(path, _Content())
        return _BadFile(self, self._names[path])

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self._names if path.parent == directory)

    def exists(self, path: Path) -> bool:
        return path in self._names

    def make_directory(self, path: Path) -> None:
        raise NotImplementedError

    def rename(self, source: Path, target: Path) -> None:
        raise NotImplementedError

    def delete(self, path: Path) -> None:
        self.operate(Fault.NONE)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self._name(path, None)

    def sync_directory(self, path: Path) -> None:
        if self.operate(Fault.SYNC):
            raise OSError(errno.EIO, "the directory was not synced")
        self._keep_names([(name, content) for name, content in self._unsynced_names if name.parent == path])
        self._unsynced_names = [(name, content) for name, content in self._unsynced_names if name.parent != path]

    def lock(self, path: Path, holder: str) -> None:  # type: ignore[override]
        raise FileLocked(holder)
