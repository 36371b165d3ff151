# SPDX-License-Identifier: Apache-2.0
"""`penstock config`: every setting with its value and its source.

Why: an operator must be able to trace a value to a line, a variable, a flag or an administrator, without reading three
files and knowing their precedence. Where: `main` calls it. It reads the same sources as `penstock serve`; a broker may
be running.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock import settings
from penstock.cli import serve
from penstock.settings.sources import DEFAULT, described

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.settings import Settings

_DESCRIPTION: Final = """\
Print every setting: its value, where that came from, and whether it can be changed while the broker
runs. With --data-dir it includes changes made through the admin port; a broker may be running there.
Keys and passwords are shown as ***.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(
        name,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings as key=value lines, as `serve` takes them"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="also include changes that were made while a broker ran here"
    )
    serve.add_brokers(
        parser, "number of broker processes that share the memory limit, as `serve` takes it (default: 1)"
    )
    parser.add_argument("--changed", action="store_true", help="only settings that are not at their defaults")
    parser.add_argument("--json", action="store_true", help="print JSON")
    serve.add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings; return the exit status.

    Raises:
        ConfigurationError: a setting cannot be used, or the directory is not a data directory.
        MetadataFailed: the data directory cannot be read.
    """
    start = settings.load(
        file=arguments.config,
        environment=os.environ,
        flags=serve.settings_given(arguments),
        brokers=serve.brokers_given(arguments),
    )
    effective, notes = _with_changes(start, arguments.data_dir) if arguments.data_dir is not None else (start, [])
    rows = [row for row in described(effective) if not arguments.changed or row["source"] != DEFAULT]
    print(json.dumps(rows, indent=2) if arguments.json else "\n".join(_lines(rows)))
    for note in (*effective.warnings, *notes):
        print(f"penstock: {note}", file=sys.stderr)
    return 0


def rows_of(config: Path | None, data_dir: Path | None) -> tuple[list[dict[str, object]], list[str]]:
    """Return all settings as `serve` would have them, secrets as ***, and notes on them. Raises as `run`."""
    start = settings.load(file=config, environment=os.environ)
    effective, notes = _with_changes(start, data_dir) if data_dir is not None else (start, [])
    return described(effective), [*effective.warnings, *notes]


def _with_changes(start: Settings, data_dir: Path) -> tuple[Settings, Sequence[str]]:
    """Return the settings with an administrator's changes, and the changes that cannot be used."""
    from penstock.broker.configuration import usable
    from penstock.settings.limits import Live
    from penstock.storage.stored_configuration import read_configuration

    live = Live(start)
    changes, errors = usable(live, read_configuration(data_dir))
    notes = [f"stored value of {key} is ignored: {error}" for key, error in errors.items()]
    return live.changed(changes).settings, notes


def _lines(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return lines of `key = value`, with the source and whether the setting is dynamic."""
    lines: list[str] = []
    width = max((len(f"{row['key']}={row['value']}") for row in rows), default=0)
    group = None
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            lines += ["", f"# {group}"] if lines else [f"# {group}"]
        changeable = ", dynamic" if row["dynamic"] else ""
        lines.append(f"{row['key']}={row['value']}".ljust(min(width, 60)) + f"  # {row['source']}{changeable}")
    return lines
