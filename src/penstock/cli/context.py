# SPDX-License-Identifier: Apache-2.0
"""`penstock context`: names for clusters, one of which is current. `contexts` has the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli import contexts, output
from penstock.cli.exits import CommandFailed, Exit, did_you_mean

if TYPE_CHECKING:
    import argparse

_DESCRIPTION: Final = """\
Keep addresses of clusters under names. Commands speak to the current context, or to that of --context.
Tokens are never kept, only the name of a file with one.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="add a context, or replace it; the first one becomes current")
    add.set_defaults(run=_add)
    add.add_argument("name", metavar="NAME")
    add.add_argument("--url", metavar="URL", help="where clients connect: pulsar://HOST:PORT or pulsar+ssl://HOST:PORT")
    add.add_argument("--admin-url", metavar="URL", help="the admin port: http://HOST:PORT or https://HOST:PORT")
    add.add_argument("--token-file", metavar="FILE", help="a file with the token to show")
    add.add_argument("--cacert", metavar="FILE", help="certificates (PEM) of who signed the cluster's")
    for action, run, text in (("use", _use, "make a context current"), ("remove", _remove, "forget a context")):
        one = actions.add_parser(action, help=text)
        one.set_defaults(run=run)
        one.add_argument("name", metavar="NAME")
    listed = actions.add_parser("list", help="list contexts; the current one has a *")
    listed.set_defaults(run=_list)
    output.add_option(listed)


def _add(arguments: argparse.Namespace) -> int:
    one = contexts.Target(
        url=arguments.url or "",
        admin_url=arguments.admin_url or "",
        token_file=_absolute(arguments.token_file),
        cacert=_absolute(arguments.cacert),
    )
    file = contexts.read()
    file["contexts"][arguments.name] = contexts.stored(one.with_defaults)
    file["current"] = file["current"] or arguments.name
    contexts.write(file)
    return Exit.OK


def _absolute(file: str | None) -> str:
    from pathlib import Path

    return str(Path(file).absolute()) if file else ""


def _use(arguments: argparse.Namespace) -> int:
    file = contexts.read()
    _check(file["contexts"], arguments.name)
    contexts.write({**file, "current": arguments.name})
    return Exit.OK


def _remove(arguments: argparse.Namespace) -> int:
    file = contexts.read()
    _check(file["contexts"], arguments.name)
    del file["contexts"][arguments.name]
    contexts.write({**file, "current": "" if file["current"] == arguments.name else file["current"]})
    return Exit.OK


def _list(arguments: argparse.Namespace) -> int:
    file = contexts.read()
    rows = [
        {"current": "*" if name == file["current"] else "", "name": name, **contexts.stored(contexts.Target(**one))}
        for name, one in file["contexts"].items()
    ]
    output.show(rows, arguments.output)
    return Exit.OK


def _check(known: dict[str, object], name: str) -> None:
    if name not in known:
        raise CommandFailed(f"there is no context {name!r}{did_you_mean(name, list(known))}", Exit.NOT_FOUND)
