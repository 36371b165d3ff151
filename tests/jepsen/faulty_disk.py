# SPDX-License-Identifier: Apache-2.0
"""A disk that fails under a real process, on command: `faulty_disk.c`, preloaded.

Why a library and not a file system: the faults begin and end within a microsecond, in the middle of a group commit, for
one broker of several, and it needs a compiler and nothing else. Where: `make jepsen`, and tests of what a broker does
when its disk fails. Without a compiler those are skipped.
"""

from __future__ import annotations

import atexit
import functools
import mmap
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Self

_SOURCE: Final = Path(__file__).with_name("faulty_disk.c")
_COMPILER: Final = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
_FAULTS: Final = ("active", "fail_syncs", "fail_writes", "full", "short_writes", "slow_sync_us", "hang")
_NUMBERS: Final = (*_FAULTS, "clock_s", "injected")
_BELOW_BYTES: Final = 256
_SIZE: Final = 4 * len(_NUMBERS) + _BELOW_BYTES

CANNOT: Final = (
    None
    if _COMPILER is not None
    else "there is no C compiler for the library that lets a disk fail: apt-get install gcc libc6-dev"
)


class FaultyDisk:
    """Commands for the disk of the processes that were started with `environment`."""

    def __init__(self, scratch: Path) -> None:
        """Args: scratch: an existing directory for the file of commands, outside of the data directory."""
        path = scratch / "disk-commands"
        path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _SIZE)
        self.environment = {"LD_PRELOAD": str(_library()), "FAULTY_DISK_COMMANDS": str(path)}

    def fail(
        self,
        below: Path,
        *,
        syncs: int = 0,
        writes: int = 0,
        full: bool = False,
        short_writes: bool = False,
        slow_sync_us: int = 0,
        hang: bool = False,
    ) -> None:
        """Let calls for files below a directory fail from now on: so many syncs and writes, or until `heal`."""
        name = str(below.resolve()).encode()
        assert len(name) < _BELOW_BYTES, below
        self.heal()
        self._mapped[4 * len(_NUMBERS) :] = name.ljust(_BELOW_BYTES, b"\0")
        self._set("fail_syncs", syncs)
        self._set("fail_writes", writes)
        self._set("full", full)
        self._set("short_writes", short_writes)
        self._set("slow_sync_us", slow_sync_us)
        self._set("hang", hang)
        self._set("active", 1)

    def heal(self) -> None:
        """End all faults of the disk."""
        for name in _FAULTS:
            self._set(name, 0)

    def move_clock(self, seconds: int) -> None:
        """Set the wall clock of the processes ahead of that of the machine, or behind it."""
        self._set("clock_s", seconds)

    @property
    def injected(self) -> int:
        """How many calls have failed so far."""
        found: int = struct.unpack_from("<i", self._mapped, 4 * _NUMBERS.index("injected"))[0]
        return found

    def _set(self, name: str, value: int) -> None:
        struct.pack_into("<i", self._mapped, 4 * _NUMBERS.index(name), value)

    def close(self) -> None:
        self._mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.heal()
        self.close()


@functools.cache
def _library() -> Path:
    """Compile the library, once in a process."""
    assert _COMPILER is not None, CANNOT
    scratch = tempfile.mkdtemp(prefix="penstock-disk-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    path = Path(scratch) / "faulty_disk.so"
    subprocess.run([_COMPILER, "-O2", "-Wall", "-shared", "-fPIC", "-o", path, _SOURCE, "-ldl"], check=True)
    return path
