# SPDX-License-Identifier: Apache-2.0
"""The archive of `penstock support-bundle`: members on disk first, then one file in gzip's format.

Why on disk: sizes stand before contents in an archive, and names are only known after the last member; memory has one
line or one answer at a time. The same contents make the same bytes. Where: `support_bundle`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

from penstock.cli.exits import CommandFailed, Exit
from penstock.core.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from penstock.cli.bundle_names import Names
    from penstock.cli.bundle_secrets import Secrets

Json: TypeAlias = Any

# Of a text; an answer in JSON is bounded where it is read.
TEXT_MAX: Final = 16 * MIB
LINE_MAX: Final = 16 * KIB
# Of the whole archive, before it is compressed.
_TOTAL_MAX: Final = 256 * MIB
_README: Final = "README"
_CUT: Final = "… (cut)"


class Member(NamedTuple):
    """One file of the archive."""

    name: str
    text: str  # what it is, for README
    path: Path  # where it is kept
    has_names: bool  # that may be replaced


class Archive:
    """Members without secrets. `write` makes the file."""

    def __init__(self, secrets: Secrets, names: Names | None) -> None:
        """Keep members in a directory that only this user can read; `names` gets to know their names."""
        self._secrets = secrets
        self._names = names
        self._stack = ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-support-")))
        self._size = 0
        self.members: list[Member] = []
        self.missing: list[str] = []

    def add(self, name: str, value: Json, text: str, *, member: str = "", has_names: bool = True) -> None:
        """Add a value as JSON. Args: member: of which it is the value, where it has no names of its own."""
        value = self._secrets.value(value)
        if self._names is not None and has_names:
            self._names.learn_value(value, member)
        self._keep(name, json.dumps(value, indent=1, ensure_ascii=False).splitlines(), text, has_names=has_names)

    def add_lines(self, name: str, lines: Iterable[str], text: str) -> None:
        """Add text; what is longer than TEXT_MAX is cut at its end. Raises what `lines` raises, and adds nothing."""
        self._keep(name, self._learned(self._secrets.lines(map(_shortened, lines))), text)

    def keep(self, word: str) -> None:
        """Keep a word of other programs, which no user has chosen, as it is."""
        if self._names is not None:
            self._names.keep(word)

    def miss(self, what: str, why: object) -> None:
        """Note what is not in the archive."""
        self.missing.append(self._secrets.line(f"{what}: {why}"))

    def write(self, path: Path, head: Iterable[str]) -> int:
        """Write a new file and return its size. Args: head: the first lines of README. Raises CommandFailed."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise CommandFailed(f"{path} exists; give another name with -o", Exit.USAGE) from error
        except OSError as error:
            raise CommandFailed(f"{path} cannot be written: {error.strerror}", Exit.USAGE) from error
        try:
            with os.fdopen(descriptor, "wb") as file:
                self._pack(file, [*head])
                return file.tell()
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise CommandFailed(f"{path} cannot be written: {error}") from error
            raise

    def _pack(self, file: IO[bytes], head: list[str]) -> None:
        members = sorted(self.members)
        if self._names is not None:
            members = [one._replace(path=self._renamed(one.path)) if one.has_names else one for one in members]
            head = [*map(self._names.line, head)]
            self.missing = [*map(self._names.line, self.missing)]
        readme = "\n".join([*head, *self._contents(members)]) + "\n"
        # Without name and time, gzip's head does not differ.
        with (
            gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            _put(tar, _README, io.BytesIO(readme.encode()), len(readme.encode()))
            for one in members:
                with one.path.open("rb") as content:
                    _put(tar, one.name, content, one.path.stat().st_size)

    def _contents(self, members: list[Member]) -> Iterator[str]:
        yield from ("", "What is in it:", "")
        width = max((len(one.name) for one in members), default=0)
        yield from (f"  {one.name:{width}}  {one.path.stat().st_size:>11,} bytes  {one.text}" for one in members)
        if self.missing:
            yield from ("", "What is not in it, and why:", "")
            yield from (f"  {one}" for one in self.missing)

    def _keep(self, name: str, lines: Iterable[str], text: str, *, has_names: bool = True) -> None:
        path = self._directory / str(len(self.members))
        left = min(TEXT_MAX, _TOTAL_MAX - self._size)
        cut = False
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            for line in lines:
                left -= len(line.encode("utf-8", "backslashreplace")) + 1
                if left < 0:
                    cut = True
                    break
                file.write(f"{line}\n")
        self._size += path.stat().st_size
        self.members.append(Member(name, f"{text}; its end was too long" if cut else text, path, has_names))

    def _learned(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            if self._names is not None:
                self._names.learn_line(line)
            yield line

    def _renamed(self, path: Path) -> Path:
        assert self._names is not None
        made = path.with_suffix(".renamed")
        with path.open(encoding="utf-8") as old, made.open("w", encoding="utf-8") as new:
            new.writelines(self._names.line(line) for line in old)
        path.unlink()
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def lines_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a text that comes in pieces; long ones are cut, and never held."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (one.decode("utf-8", "backslashreplace") for one in whole)
        rest = rest[: LINE_MAX + 1]
    if rest:
        yield rest.decode("utf-8", "backslashreplace")


def tail_of(path: Path) -> Iterator[str]:
    """Yield the last TEXT_MAX bytes of a file as lines, without the one that begins before. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - TEXT_MAX)
        file.seek(begin)
        lines = lines_of(iter(lambda: file.read(LINE_MAX), b""))
        if begin:
            next(lines, None)
        yield from lines


def _shortened(line: str) -> str:
    line = line.removesuffix("\r")
    return line if len(line) <= LINE_MAX else line[:LINE_MAX] + _CUT


def _put(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(f"penstock-support/{name}")
    member.size = size
    member.mode = 0o600
    tar.addfile(member, content)
