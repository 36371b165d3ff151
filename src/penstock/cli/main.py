# SPDX-License-Identifier: Apache-2.0
"""The `penstock` command: parses the command line and runs the subcommand.

Why: `--help` and `--version` must answer at once, so only argparse is imported until a subcommand runs. Where: the
console script, and `python -m penstock`.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import penstock
from penstock.cli.exits import CommandFailed, Exit, did_you_mean
from penstock.core.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Command(NamedTuple):
    """Where a command is, and what it does: so much is known of it without importing it."""

    module: str
    help: str


COMMANDS: Final = {
    "serve": Command("serve", "run a broker"),
    "dev": Command("dev", "run a broker that forgets everything at its end"),
    "mirror": Command("mirror", "run a broker with a read-only copy of topics of another cluster"),
    "ready": Command("ready", "wait until a broker serves"),
    "proxy": Command("proxy", "run a proxy before a Pulsar cluster"),
    "config": Command("config", "print every setting with its value and its source"),
    "topics": Command("resources", "list, create, delete and look at topics; get and set their policies"),
    "subscriptions": Command("resources", "list, create, delete, move and look at subscriptions"),
    "namespaces": Command("resources", "list, create and delete namespaces; get and set their policies"),
    "tenants": Command("resources", "list, create, change and delete tenants"),
    "groups": Command("resources", "resource groups: quotas that tenants or namespaces share"),
    "schemas": Command("resources", "read, add and delete the schemas of topics"),
    "transactions": Command("resources", "find open transactions, and abort them"),
    "brokers": Command("resources", "list brokers, read and change their settings, look at what they measure"),
    "clusters": Command("resources", "list, add, change and delete clusters"),
    "produce": Command("produce", "publish messages from arguments or lines"),
    "consume": Command("consume", "print the messages of a subscription, and acknowledge them"),
    "tail": Command("consume", "print messages as they are published, without a subscription"),
    "export": Command("consume", "write the messages that a topic has now to a file"),
    "import": Command("produce", "publish the messages of a file"),
    "redrive": Command("redrive", "send dead letters to their topics again"),
    "copy": Command("redrive", "send a range of a topic to another topic"),
    "rewind": Command("rewind", "deliver a range of a topic to a subscription once more"),
    "migrate": Command("migrate", "move to another cluster while clients go on"),
    "backup": Command("backup", "copy the data of a running broker"),
    "restore": Command("backup", "put a backup into a new data directory"),
    "upgrade": Command("upgrade", "say what a start of this version would do with stored data"),
    "why": Command("why", "say what slows a tenant, namespace, topic or producer"),
    "top": Command("top", "show what is published, delivered and left over, all the time"),
    "doctor": Command("doctor", "say what is wrong with a data directory, settings or a cluster"),
    "support-bundle": Command("support_bundle", "collect what a maintainer needs to help, without secrets"),
    "bench": Command("bench", "measure a broker"),
    "context": Command("context", "name clusters, and choose one"),
    "token": Command("token", "create keys and tokens"),
    "completion": Command("completion", "print a script that completes commands in a shell"),
    "replay": Command("replay", "show what adaptive throttling would have done with recorded usage"),
    "spark": Command("spark", "account for usage, with Spark"),
}
_HELP: Final = frozenset({"-h", "--help"})
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


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]  # noqa: SLF001 - argparse has no other way
    """argparse's, which knows what each command does."""

    def add_parser(self, name: str, **options: Any) -> Any:  # noqa: ANN401 - argparse's
        text = COMMANDS[name].help
        return super().add_parser(name, **{"help": text, "description": text, **options})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; `exits.Exit` has them all."""
    words = sys.argv[1:] if argv is None else argv
    first = next((word for word in words if not word.startswith("-")), "")
    parser = build_parser((first,) if first in COMMANDS and not _HELP.intersection(words[: words.index(first)]) else ())
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


def build_parser(names: Collection[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line; the reference documentation is checked against it.

    Args: names: the commands that it has. One alone saves the imports of the others; none: it knows all by name only.
    """
    parser = Parser(
        prog="penstock",
        description="A Pulsar broker in pure Python: durable, small, and it never takes more memory than it was given.",
        epilog="Start a broker with: penstock serve; one to try things with: penstock dev",
    )
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, action=_Commands)
    for name in names or COMMANDS:
        if name in names:
            import_module(f"penstock.cli.{COMMANDS[name].module}").add_command(commands, name)
        else:
            commands.add_parser(name)
    return parser
