# SPDX-License-Identifier: Apache-2.0
"""`penstock doctor DIR|URL`: what is wrong with a data directory, settings or a running cluster, and what to do.

Where: `main` calls it, and `support_bundle` takes its findings. The kinds of findings are rows of `findings`.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli import contexts, output, serve
from penstock.cli.exits import Exit, wrong

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.doctor_settings import Machine
    from penstock.cli.findings import Finding

_DESCRIPTION: Final = f"""\
Look for damage, mixed-up directories, settings that fight, and limits of disk, memory, files and clock. Each finding
says what is wrong, why it matters, and what to do. Nothing is changed.
A data directory is read completely, while no broker runs on it; if one does, only what does not change is checked.
Exit status {Exit.OK:d}: nothing is wrong, or there are only notes; {Exit.BAD_NEWS:d}: there are faults or warnings.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(
        name,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "place",
        nargs="?",
        metavar="DIR|URL",
        help="a data directory, or an admin port (default: that of the current context, unless there is --config)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="also check settings, as `serve` takes them")
    serve.add_brokers(parser, "number of brokers that share the memory limit, as `serve` takes it (default: 1)")
    output.add_option(parser)
    contexts.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check and print; return the exit status. Raises CommandFailed, ConfigurationError."""
    from penstock.cli.doctor_settings import Machine
    from penstock.cli.findings import Severity

    place = arguments.place
    is_url = place is not None and "://" in place
    data_dir = Path(place) if place is not None and not is_url else None
    found: list[Finding] = []
    if data_dir is not None or arguments.config is not None:
        brokers = serve.brokers_given(arguments)
        found += local(Machine(), data_dir, arguments.config, brokers=brokers)
    if is_url or (place is None and arguments.config is None):
        target = contexts.target(arguments)
        found += remote(replace(target, admin_url=place) if is_url else target, Machine())
    rows = [one.row() for one in found]
    if arguments.output == "table":
        print("\n".join(lines(rows)))
    else:
        output.show(rows, arguments.output)
    return Exit.OK if all(row["severity"] == Severity.NOTE for row in rows) else Exit.BAD_NEWS


def local(of: Machine, data_dir: Path | None, config: Path | None, *, brokers: int = 1) -> list[Finding]:
    """Check a data directory, and settings if there is a file. Raises CommandFailed: it is no data directory."""
    from penstock.cli import doctor_directory, doctor_settings
    from penstock.cli.findings import Finding

    found: list[Finding] = []
    try:
        if data_dir is not None:
            if not doctor_directory.is_directory(data_dir):
                raise wrong(f"{data_dir} is not a data directory of penstock: it has no FORMAT")
            found += doctor_directory.directory(data_dir, wall_ms=of.wall_ms())
            found += doctor_settings.machine(of, data_dir)
        if config is not None:
            effective, problems = doctor_settings.read(config, os.environ, of, brokers)
            found += problems
            if effective is not None:
                listens = data_dir is not None and not doctor_directory.in_use(data_dir)
                found += doctor_settings.settings(effective, of, data_dir, listens=listens)
    except OSError as error:
        found.append(Finding("directory-unreadable", f"{error.filename or data_dir}: {error.strerror or error}"))
    return found


def remote(target: contexts.Target, of: Machine) -> list[Finding]:
    """Check a running cluster. Raises CommandFailed."""
    from penstock.cli.doctor_cluster import cluster
    from penstock.cli.rest import Rest

    with Rest(target) as rest:
        return [*cluster(rest, wall_ms=of.wall_ms())]


def lines(rows: list[dict[str, str]]) -> Iterator[str]:
    """The findings as text."""
    if not rows:
        yield "nothing is wrong"
    for row in rows:
        yield f"{row['severity'].upper()} {row['id']}: {output.printable(row['what'])}"
        yield f"    why  {row['why']}"
        yield f"    do   {row['do']}"
