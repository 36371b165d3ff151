# SPDX-License-Identifier: Apache-2.0
"""`penstock upgrade --check DIR|URL`: what a start of this version would do with data of another one.

Why a rehearsal: that a version is known does not say that the data can be converted. So copies of the catalog are
opened as a start would open them. Where: `main` calls it. Nothing is changed.
"""

from __future__ import annotations

import argparse
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock import __version__
from penstock.cli import contexts, output
from penstock.cli.exits import CommandFailed, Exit, wrong
from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.cli.rest import Rest
    from penstock.storage.directory import DataDirectory

_DESCRIPTION: Final = f"""\
Say whether this version can read what a data directory or a running broker has stored, which formats its first start
would change, whether going back stays possible, and what to do first. Nothing is changed: the conversion is tried on
copies of the catalog, in $TMPDIR. A broker may be running; then only versions are compared.
Exit status {Exit.OK:d}: it can be upgraded; {Exit.BAD_NEWS:d}: it cannot, or is damaged.
"""
_VERSION: Final = "/admin/v2/brokers/version"
_FORMATS: Final = "/admin/v3/brokers/formats"
_OURS: Final = "-penstock"
_MAGIC_BYTES: Final = 8
# The parts, by the fields of `Formats`.
_PARTS: Final = {
    "directory": "data directory",
    "shared_catalog": "shared catalog",
    "topic_catalog": "catalog of topics",
    "log_index": "index of the log",
    "log": "log",
}


class Effect(StrEnum):
    """Effect of the first start on a part."""

    NONE = "unchanged"
    CONVERTED = "converted"
    REBUILT = "built again from the log"
    REFUSED = "cannot be read"


class Part(NamedTuple):
    """One stored format beside ours."""

    part: str  # a key of _PARTS
    place: str
    found: int
    newest: int

    @property
    def effect(self) -> Effect:
        if self.found == self.newest:
            return Effect.NONE
        if self.part == "log_index":
            return Effect.REBUILT
        # The log has no conversion: its blocks are read as they are.
        return Effect.CONVERTED if self.found < self.newest and self.part != "log" else Effect.REFUSED


@dataclass(slots=True)
class Report:
    """Findings about a place."""

    place: str
    parts: list[Part] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    do: list[str] = field(default_factory=list)

    @property
    def can_upgrade(self) -> bool:
        return not self.problems and all(one.effect != Effect.REFUSED for one in self.parts)

    @property
    def can_go_back(self) -> bool:
        """Whether the version that runs now would start on the directory again."""
        return self.can_upgrade and all(one.effect != Effect.CONVERTED for one in self.parts)

    def json(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "penstock": __version__,
            "canUpgrade": self.can_upgrade,
            "canGoBack": self.can_go_back,
            "formats": [
                {"part": _PARTS[one.part], "place": one.place, "found": one.found, "newest": one.newest,
                 "effect": str(one.effect)}
                for one in self.parts
            ],
            "problems": self.problems,
            "notes": self.notes,
            "do": self.do,
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """The same as text."""
        changed = sum(one.effect != Effect.NONE for one in self.parts)
        verdict = "can be upgraded" if self.can_upgrade else "cannot be upgraded"
        yield f"{self.place} {verdict} to penstock {__version__}" + (
            f": {changed or 'none'} of {len(self.parts)} formats {'changes' if changed == 1 else 'change'}"
            if self.can_upgrade
            else ""
        )
        yield from (f"- {output.printable(one)}" for one in (*self.problems, *self.notes))
        if self.parts:
            yield ""
            yield from output.table(
                [
                    {"part": _PARTS[one.part], "in": one.place, "found": one.found, "newest": one.newest,
                     "at the first start": str(one.effect)}
                    for one in self.parts
                ]
            )  # fmt: skip
        if self.can_upgrade:
            yield ""
            yield f"Going back: {_back(self)}"
        yield "Do first:"
        yield from (f"  {number}. {one}" for number, one in enumerate(self.do, 1))


def _back(report: Report) -> str:
    if report.can_go_back:
        return "possible with this directory, as nothing is converted"
    return "not with this directory, which older versions no longer start on once it is converted; with a backup only"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(run=_run)
    parser.add_argument(
        "--check", action="store_true", help="only check; what needs to be converted is converted by the first start"
    )
    parser.add_argument(
        "place",
        nargs="?",
        metavar="DIR|URL",
        help="a data directory, or an admin port (default: the current context's)",
    )
    output.add_option(parser)
    contexts.add_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    """Check and print. Raises CommandFailed."""
    from penstock.cli.rest import Rest

    place = arguments.place
    if not arguments.check:
        raise wrong(
            "`penstock upgrade` converts nothing by itself, as the first start of a new version does; give --check to"
            " see what that would do"
        )
    if place is not None and "://" not in place:
        report = of_directory(Path(place))
    else:
        target = contexts.target(arguments)
        target = replace(target, admin_url=place) if place is not None else target
        with Rest(target) as rest:
            report = of_broker(rest, target.admin_url)
    if arguments.output == "table":
        print("\n".join(report.lines()))
    else:
        output.show(report.json(), arguments.output)
    return Exit.OK if report.can_upgrade else Exit.BAD_NEWS


# -- a data directory --------------------------------------------------------------------------------------------------


def of_directory(path: Path) -> Report:
    """Compare what is stored in a directory. Raises CommandFailed: it is no data directory."""
    from penstock.cli import doctor_directory
    from penstock.storage.directory import DataDirectory

    if not doctor_directory.is_directory(path):
        raise wrong(f"{path} is not a data directory of penstock: it has no FORMAT")
    report, data = Report(str(path)), DataDirectory(path)
    user = None
    try:
        with ExitStack() as stack:
            user = doctor_directory.lock(data, stack)
            _compare(data, report, is_used=user is not None)
    except OSError as error:
        report.problems.append(f"{error.filename or path}: {error.strerror or error}")
    if user is not None:
        report.notes.append(f"process {user or 'unknown'} uses it, so versions were compared, and nothing was tried")
    report.do = list(_steps(report, data, is_used=user is not None))
    return report


def _compare(data: DataDirectory, report: Report, *, is_used: bool) -> None:
    """Add parts and problems. Raises OSError."""
    from penstock.cli.doctor_directory import copies_of
    from penstock.storage.directory import DataDirectory
    from penstock.storage.files import OsFiles
    from penstock.storage.formats import NEWEST

    version, problem = _format(data)
    if problem:
        report.problems.append(problem)
    if version is None:
        return
    report.parts.append(Part("directory", "FORMAT", version, NEWEST.directory))
    brokers = data.brokers_from(0, OsFiles())
    if version > NEWEST.directory:
        return  # What else is there may have other names.
    paths = [data.path / "FORMAT", data.metadata]
    paths += [one for number in brokers for one in (data.topics(number), data.broker(number) / "index/index.sqlite")]
    report.problems += [f"{one} is missing" for one in _missing(data, brokers, version)]
    with copies_of(paths, data.path) as where:
        copies = DataDirectory(where)
        _databases(data, copies, brokers, report)
        for number in brokers:
            _log(data, number, report)
        if not is_used and report.can_upgrade:
            _rehearse(data, copies, brokers, report)


def _missing(data: DataDirectory, brokers: Iterable[int], version: int) -> Iterator[Path]:
    """Yield catalogs that are not there though messages are. In format 1 there was only one."""
    with_messages = [number for number in brokers if any((data.broker(number) / "log").glob("*.seg"))]
    wanted = [data.metadata, *(map(data.topics, with_messages) if version > 1 else ())]
    yield from (one for one in wanted if with_messages and not one.exists())


def _format(data: DataDirectory) -> tuple[int | None, str]:
    """Return the version of the directory; None and what is wrong if it has none."""
    path = data.path / "FORMAT"
    if not path.exists():
        return None, f"{path} is missing"
    text = path.read_text(encoding="utf-8", errors="replace")[:64].strip()
    word, _, version = text.partition(" ")
    if word != "penstock" or not version.isdecimal():
        return None, f"{path} reads {text!r}, which is no format of penstock"
    return int(version), ""


def _databases(data: DataDirectory, copies: DataDirectory, brokers: Iterable[int], report: Report) -> None:
    """Add the versions of catalogs and indexes."""
    from penstock.storage.formats import NEWEST

    named = [("shared_catalog", copies.metadata, NEWEST.shared_catalog)]
    for number in brokers:
        named.append(("topic_catalog", copies.topics(number), NEWEST.topic_catalog))
        named.append(("log_index", copies.broker(number) / "index/index.sqlite", NEWEST.log_index))
    for part, copy, newest in named:
        if not copy.exists():
            continue
        place = copy.relative_to(copies.path)
        try:
            found = _version_of(copy)
        except ValueError as error:
            if part == "log_index":
                found = 0  # A start builds it again.
            else:
                report.problems.append(f"{data.path / place} cannot be read: {error}")
                continue
        if part != "log_index" and found == 0:
            report.problems.append(f"{data.path / place} is empty")
        report.parts.append(Part(part, str(place), found, newest))


def _version_of(copy: Path) -> int:
    """Return the version of a database, of its write-ahead log if that has a later one. Raises ValueError."""
    import apsw

    try:
        db = apsw.Connection(str(copy))
        try:
            return int(db.pragma("user_version"))
        finally:
            db.close(True)
    except apsw.Error as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _log(data: DataDirectory, number: int, report: Report) -> None:
    """Add the versions of the blocks that segments begin with. Raises OSError."""
    from penstock.storage.blocks import BLOCK_MAGIC
    from penstock.storage.formats import NEWEST

    found: dict[int, None] = {}
    for path in sorted((data.broker(number) / "log").glob("*.seg")):
        with path.open("rb") as file:
            magic = file.read(_MAGIC_BYTES)
        if magic[:-1] == BLOCK_MAGIC[:-1]:  # Others are empty, or damaged: `doctor` says which.
            found[magic[-1]] = None
    report.parts += [Part("log", f"broker-{number}/log", version, NEWEST.log) for version in found]


def _rehearse(data: DataDirectory, copies: DataDirectory, brokers: list[int], report: Report) -> None:
    """Open copies of the catalog as a start would, which converts them. Raises OSError."""
    from penstock.cli.doctor_directory import opened
    from penstock.core.errors import MetadataFailed

    before = sum(one.stat().st_size for one in copies.path.rglob("*.sqlite*"))
    for number in brokers or [0]:
        copies.broker(number).mkdir(exist_ok=True)
        try:
            opened(copies, number).close()
        except MetadataFailed as error:
            report.problems.append(f"the catalog: {error}".replace(str(copies.path), str(data.path)))
            return
    free = shutil.disk_usage(data.path).free
    if not report.can_go_back and free < 2 * before:
        report.problems.append(
            f"the disk of {data.path} has {free / MIB:,.0f} MiB free, and converting needs {2 * before / MIB:,.0f}"
        )


def _steps(report: Report, data: DataDirectory, *, is_used: bool) -> Iterator[str]:
    from penstock.storage.files import OsFiles

    path = data.path
    if any(one.effect == Effect.REFUSED for one in report.parts):
        yield "start the penstock that wrote it, or a newer one: this one is too old for it"
        return
    if report.problems:
        yield f"`penstock doctor {path}` says what is wrong and what to do; then check again"
        return
    yield (
        f"take a backup while it runs: `penstock backup {path} BACKUP`"
        if is_used
        else f"copy {path} to another disk, with any tool: no broker runs on it"
    )
    if is_used:
        yield f"stop it, and check again: `penstock upgrade --check {path}` then tries the conversion on copies"
    else:
        yield f"`penstock doctor {path}` reads every byte of the log; this check does not"
    brokers = len(data.brokers_from(0, OsFiles()))
    yield f"start this version: `penstock serve --data-dir {path}{f' --brokers {brokers}' if brokers > 1 else ''}`"
    if not report.can_go_back:
        yield "keep the backup until you are sure: to go back, restore it, and start the old version on it"


# -- a running broker --------------------------------------------------------------------------------------------------


def of_broker(rest: Rest, url: str) -> Report:
    """Compare what a running broker says of its formats. Raises CommandFailed: it does not answer, or refuses."""
    from penstock.storage.formats import NEWEST

    report = Report(url)
    version = str(rest.get(_VERSION)).strip('"')
    if not version.endswith(_OURS):
        report.problems.append(f"it is not penstock: it says that its version is {version}")
        report.do.append("docs/guide/from-pulsar.md says how to move from Apache Pulsar: its files cannot be read")
        return report
    report.notes.append(f"it runs penstock {version.removesuffix(_OURS)}")
    try:
        formats = rest.get(_FORMATS)
    except CommandFailed as error:
        if error.status != Exit.NOT_FOUND:
            raise
        report.problems.append("this version does not say its formats")
        report.do.append("on its machine, check its directory: `penstock upgrade --check DIR`")
        return report
    names = {"".join(part.title() if at else part for at, part in enumerate(one.split("_"))): one for one in _PARTS}
    for name, found in formats.items():
        if name not in names:
            report.problems.append(f"it has stored {name}, which this version does not know")
        else:
            report.parts.append(Part(names[name], "", int(found), getattr(NEWEST, names[name])))
    try:
        health = rest.get("/healthz")
        report.problems += map(str, health.get("problems", ()))
    except CommandFailed as error:
        report.problems.append(str(error))
    report.do = list(_steps_of_broker(report))
    return report


def _steps_of_broker(report: Report) -> Iterator[str]:
    if any(one.effect == Effect.REFUSED for one in report.parts):
        yield "use a penstock at least as new as the one that runs: this one is too old for its files"
    elif report.problems:
        yield f"`penstock doctor {report.place}` says what is wrong and what to do; then check again"
    else:
        yield f"on its machine, take a backup: `penstock backup DIR BACKUP --admin-url {report.place}`"
        yield "stop it, and try the conversion on copies: `penstock upgrade --check DIR`"
        yield "start this version with the arguments that the old one had"
