# SPDX-License-Identifier: Apache-2.0
"""The `penstock` command: parses the command line and runs the subcommand.

Why: `--help` and `--version` must answer at once, so only argparse is imported until a subcommand runs. Where: the
console script, and `python -m penstock`.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import penstock
from penstock.cli.exits import CommandFailed, Exit, did_you_mean
from penstock.core.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The module of each command.
COMMANDS: Final = {
    "serve": "serve",
    "dev": "dev",
    "ready": "ready",
    "proxy": "proxy",
    "config": "config",
    **dict.fromkeys(
        (
            "topics",
            "subscriptions",
            "namespaces",
            "tenants",
            "groups",
            "schemas",
            "transactions",
            "brokers",
            "clusters",
        ),
        "resources",
    ),
    "produce": "produce",
    "consume": "consume",
    "tail": "consume",
    "export": "consume",
    "import": "produce",
    "redrive": "redrive",
    "copy": "redrive",
    "why": "why",
    "context": "context",
    "token": "token",
    "replay": "replay",
    "spark": "spark",
}
_ARGUMENTS_ARE_SEEN: Final = (
    "; everybody on this machine can read the arguments of a command: put the token in a file and give"
    " --token-file FILE, or set PENSTOCK_TOKEN"
)


class Parser(argparse.ArgumentParser):
    """argparse's, which asks about misspelt words and never shortens options."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - argparse's
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 - argparse's
        if action.choices is not None and value not in action.choices:
            near = did_you_mean(str(value), list(map(str, action.choices)))
            one_of = f"; it is one of {', '.join(map(str, action.choices))}"
            raise argparse.ArgumentError(action, f"there is no {value!r}{near or one_of}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; `exits.Exit` has them all."""
    first = next(iter(sys.argv[1:] if argv is None else argv), "")
    parser = build_parser((first,) if first in COMMANDS else COMMANDS)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse(parser, unknown)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except CommandFailed as error:
        return _failed(error, error.status)
    except PenstockError as error:
        return _failed(error, Exit.USAGE if isinstance(error, ConfigurationError) else Exit.FAILED)
    except BrokenPipeError:
        return _reader_gone()
    return status


def _failed(error: PenstockError, status: Exit) -> int:
    print(f"penstock: {error}", file=sys.stderr)
    return status


def _reader_gone() -> int:
    """End quietly when the output goes to a program that has ended, as `head`."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end.
    return Exit.OK


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(map(_hint, unknown))}")


def _hint(argument: str) -> str:
    """Return what an unknown flag means, for a message; empty if it means nothing."""
    from penstock.settings.model import FIELDS, KEYS
    from penstock.settings.near_misses import meant

    if argument.partition("=")[0] == "--token":
        return _ARGUMENTS_ARE_SEEN
    name = meant(argument.partition("=")[0]) if argument.startswith("--") else None
    if name is None:
        return ""
    key = KEYS[FIELDS[name]]
    return f"; do you mean {key.flag or f'{key.name} in the file of --config, or {key.variable} in the environment'}?"


def build_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line; the reference documentation is checked against it.

    Args: names: the commands that it has. One alone saves the imports of the others.
    """
    parser = Parser(
        prog="penstock",
        description="A Pulsar broker in pure Python: durable, small, and it never takes more memory than it was given.",
        epilog="Start a broker with: penstock serve; one to try things with: penstock dev",
    )
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        import_module(f"penstock.cli.{COMMANDS[name]}").add_command(commands, name)
    return parser
