# SPDX-License-Identifier: Apache-2.0
"""The line that a process logs once at its start, and the file that names the process.

Why one line: a reader of yesterday's log must not guess the version, the directory and the limits.
Where: `app`, `supervisor` and `proxy_app` log the line; `serve` and `proxy` write the file (`--pid-file`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.core.errors import ConfigurationError
from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.settings import Settings


def start_line(settings: Settings, what: str, *, brokers: int = 1) -> str:
    """Return the line: version, Python, process, `what` it serves, its limits, and what is switched on."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    parts = (
        f"penstock {__version__} on Python {platform.python_version()}, process {os.getpid()}: {what}",
        f"memory {settings.budget.limit_bytes // MIB:,} MiB{' each' if brokers > 1 else ''}",
        f"open files {'without limit' if files == resource.RLIM_INFINITY else f'{files:,}'}",
        f"authentication {'on' if settings.authentication_enabled else 'off'}",
        f"authorization {'on' if settings.authorization_enabled else 'off'}",
    )
    return ", ".join(parts)


@contextlib.contextmanager
def pid_file(path: Path | None) -> Iterator[None]:
    """Name this process in a file while it runs; None: no file. A file that a killed process left is replaced.

    Raises:
        ConfigurationError: it cannot be written.
    """
    if path is None:
        yield
        return
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.write_text(f"{os.getpid()}\n", encoding="ascii")
        draft.chmod(0o644)  # Others may signal nothing, and may know the number: it is in the list of processes.
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(f"--pid-file {path} cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            if int(path.read_text(encoding="ascii")) == os.getpid():  # Not that of a later start.
                path.unlink()
