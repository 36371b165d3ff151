# SPDX-License-Identifier: Apache-2.0
"""The `penstock` command: parses the command line and runs the subcommand.

Why: `--help` and `--version` must answer at once, so only argparse is imported until a subcommand runs. Where: the
console script, and `python -m penstock`.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

import penstock
from penstock.core.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Each is a module beside this one.
COMMANDS: Final = ("serve", "proxy", "config", "why", "replay", "spark")
EXIT_FAILED: Final = 1
# What shells expect of a command that was called wrongly; argparse uses it too.
EXIT_USAGE: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 success, 1 failure, 2 wrong usage or configuration."""
    first = next(iter(sys.argv[1:] if argv is None else argv), "")
    parser = build_parser((first,) if first in COMMANDS else COMMANDS)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(map(_hint, unknown))}")
    try:
        status: int = arguments.run(arguments)
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_FAILED
    return status


def _hint(argument: str) -> str:
    """Return which setting an unknown flag means, for a message; empty if it means none."""
    from penstock.settings.model import FIELDS, KEYS
    from penstock.settings.near_misses import meant

    name = meant(argument.partition("=")[0]) if argument.startswith("--") else None
    if name is None:
        return ""
    key = KEYS[FIELDS[name]]
    return f"; do you mean {key.flag or f'{key.name} in the file of --config, or {key.variable} in the environment'}?"


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line; the reference documentation is checked against it.

    Args: names: the commands that it has. One alone saves the imports of the others.
    """
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="A Pulsar broker in pure Python: durable, small, and it never takes more memory than it was given.",
        epilog="Start a broker with: penstock serve --data-dir ./data",
    )
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        import_module(f"penstock.cli.{name}").add_command(commands)
    return parser
