# SPDX-License-Identifier: Apache-2.0
"""Which cluster a command speaks to: flags, the environment, and named contexts in one file.

Why whole contexts: a token of one cluster must never go to another. So addresses and credentials are taken from one
source: the context that is named, else flags and environment if they name an address, else the current context
(docs/adr/0102-one-command-line-over-rest-and-wire.md).
Where: every command that speaks to a cluster. `penstock context` changes the file,
`$XDG_CONFIG_HOME/penstock/contexts.json`. It never holds a token, only the name of a file that does.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.exits import CommandFailed, Exit, did_you_mean, wrong

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

ADMIN_URL: Final = "http://127.0.0.1:8080"
URL: Final = "pulsar://127.0.0.1:6650"
TOKEN_VARIABLE: Final = "PENSTOCK_TOKEN"  # noqa: S105 - the name of a variable
CONTEXT_VARIABLE: Final = "PENSTOCK_CONTEXT"
_VARIABLES: Final = {
    "url": "PENSTOCK_URL",
    "admin_url": "PENSTOCK_ADMIN_URL",
    "token_file": "PENSTOCK_TOKEN_FILE",
    "cacert": "PENSTOCK_CACERT",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cluster, and how to speak to it. Empty: not said."""

    url: str = ""  # of clients: pulsar://HOST:PORT
    admin_url: str = ""  # of administrators: http://HOST:PORT
    token_file: str = ""
    cacert: str = ""  # of who signed the cluster's certificate; empty: whom the system trusts
    takes_variable: bool = False  # whether PENSTOCK_TOKEN is for it

    def token(self) -> str:
        """Return the token to show; empty: none. Raises CommandFailed."""
        if self.token_file:
            try:
                return Path(self.token_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise wrong(f"the file of the token cannot be read: {error}") from error
        return os.environ.get(TOKEN_VARIABLE, "").strip() if self.takes_variable else ""

    @property
    def with_defaults(self) -> Target:
        """The same with the addresses of a broker on this machine where none is said."""
        return replace(self, url=self.url or URL, admin_url=self.admin_url or ADMIN_URL)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which cluster."""
    group = parser.add_argument_group("which cluster")
    group.add_argument("--url", metavar="URL", help=f"where clients connect (default: {URL})")
    group.add_argument("--admin-url", metavar="URL", help=f"the admin port (default: {ADMIN_URL})")
    add_credentials(group)


def add_credentials(group: argparse._ArgumentGroup) -> None:
    """Add the options that say who asks, and of which context."""
    group.add_argument("--context", metavar="NAME", help="one of `penstock context list` (default: the current one)")
    group.add_argument(
        "--token-file", metavar="FILE", help=f"a file with the token to show (default: the variable {TOKEN_VARIABLE})"
    )
    group.add_argument("--cacert", metavar="FILE", help="certificates (PEM) of who signed the cluster's")


def target(arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Target:
    """Return the cluster that a command speaks to. Raises CommandFailed: an unknown context, an unreadable file."""
    environment = os.environ if environment is None else environment
    flags = {name: given for name in _VARIABLES if (given := getattr(arguments, name, None))}
    variables = {name: environment[one] for name, one in _VARIABLES.items() if environment.get(one)}
    if named := arguments.context or environment.get(CONTEXT_VARIABLE):
        return replace(_found(read(), named), **flags).with_defaults
    if {"url", "admin_url"} & (flags.keys() | variables.keys()):
        return Target(**{**variables, **flags}, takes_variable=True).with_defaults
    file = read()
    if current := file.get("current"):
        return replace(_found(file, current), **flags).with_defaults
    return Target(**{**variables, **flags}, takes_variable=True).with_defaults


def _found(file: Mapping[str, Any], name: str) -> Target:
    contexts = file["contexts"]
    if name not in contexts:
        near = did_you_mean(name, list(contexts))
        raise CommandFailed(f"there is no context {name!r}{near or '; see `penstock context list`'}", Exit.USAGE)
    known = {key: value for key, value in contexts[name].items() if key in _VARIABLES}
    return Target(**known)


def path() -> Path:
    """Return where contexts are kept."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "penstock" / "contexts.json"


def read() -> dict[str, Any]:
    """Return the file: `contexts` by name, and the `current` one. Raises CommandFailed."""
    try:
        file = json.loads(path().read_text(encoding="utf-8"))
        return {"current": str(file.get("current") or ""), "contexts": {**file.get("contexts", {})}}
    except FileNotFoundError:
        return {"current": "", "contexts": {}}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise wrong(f"{path()} does not hold contexts: {error}; mend it, or remove it") from error


def write(file: Mapping[str, Any]) -> None:
    """Replace the file; it is the user's alone. Raises CommandFailed."""
    where = path()
    try:
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = where.with_suffix(".new")
        fresh.write_text(json.dumps(file, indent=2) + "\n", encoding="utf-8")
        fresh.chmod(0o600)
        fresh.replace(where)
    except OSError as error:
        raise CommandFailed(f"contexts cannot be written: {error}") from error


def stored(one: Target) -> dict[str, str]:
    """Return what the file keeps of a target."""
    return {name: value for name, value in asdict(one).items() if name in _VARIABLES and value}
