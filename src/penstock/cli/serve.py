# SPDX-License-Identifier: Apache-2.0
"""`penstock serve`: reads the configuration and runs a broker until it is stopped.

Where: `main` calls it. The broker is imported only after all settings were read and checked.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock import settings
from penstock.core.errors import ConfigurationError
from penstock.settings.model import KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.setting import Key
    from penstock.settings import Settings

_DESCRIPTION: Final = """\
Run a broker. It keeps everything under one data directory, prints one line when it is ready
("penstock ready pulsar://… http://…"), and ends cleanly on SIGTERM: clients are told, what was
accepted is finished, the exit status is 0. Status 2 means that it was called or configured wrongly.
"""

_EPILOG: Final = """\
examples:
  penstock serve
      a broker for this machine, data in ./penstock-data: clients at pulsar://127.0.0.1:6650, metrics at http://127.0.0.1:8080/metrics
  penstock serve --data-dir /var/lib/penstock --host 0.0.0.0 --advertised-address broker.example.com
      a broker for everybody who reaches this machine
  penstock serve --data-dir ./data --tls-cert cert.pem --tls-key key.pem
      the same with TLS beside it, at port 6651
  PENSTOCK_QUEUED_MAX_REQUEST_BYTES=16M penstock serve --data-dir ./data --config broker.conf
      settings without a flag: from the environment, or from a file of key=value lines

A flag wins over the environment, the environment over the file, the file over the default.
All settings: docs/reference/configuration.md
"""

# Without --data-dir: in the directory where it was started, by a name that nothing else has.
_DATA_DIR: Final = Path("./penstock-data")

# Flags by the heading they stand under; all of them are keys of the configuration.
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "where to listen": ("--host", "--port", "--admin-port", "--advertised-address"),
    "TLS": ("--tls-cert", "--tls-key", "--tls-port", "--admin-tls-port", "--tls-trust-certs"),
    "memory and logging": ("--memory-limit-mb", "--log-format", "--log-level"),
}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(
        name,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--data-dir",
        default=_DATA_DIR,
        type=Path,
        metavar="DIR",
        help=f"directory for all data; created if it is missing (default: {_DATA_DIR})",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings as key=value lines, like Pulsar's broker.conf"
    )
    add_brokers(parser, "number of broker processes, to use several cores; broker i has each port plus i (default: 1)")
    add_pid_file(parser)
    add_settings(parser)


def add_pid_file(parser: argparse.ArgumentParser) -> None:
    """Add `--pid-file`."""
    parser.add_argument(
        "--pid-file",
        type=Path,
        metavar="FILE",
        help="has the number of this process while it runs, for kill -HUP",
    )


def heed_no_reload() -> None:
    """Ignore SIGHUP until there is something to read again: it would end the process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def add_brokers(parser: argparse.ArgumentParser, text: str) -> None:
    """Add `--brokers`."""
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help=text)


def brokers_given(arguments: argparse.Namespace) -> int:
    """Return the number of brokers. Raises ConfigurationError."""
    brokers: int = arguments.brokers
    if brokers < 1:
        raise ConfigurationError(f"--brokers {brokers}: give 1 or more")
    return brokers


def add_settings(parser: argparse.ArgumentParser, *, first: Mapping[str, tuple[str, ...]] | None = None) -> None:
    """Add the flags of settings by the headings they stand under, `first` before those that all commands have."""
    by_flag = {key.flag: key for key in KEYS.values()}
    for title, flags in {**(first or {}), **_GROUPS}.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            _add_setting(group, flag, by_flag[flag])


def settings_given(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the settings of these flags, by key."""
    given = vars(arguments)
    return {key.name: given[key.name] for key in KEYS.values() if given.get(key.name) is not None}


def run(arguments: argparse.Namespace) -> int:
    """Serve until stopped; return the exit status.

    Raises:
        ConfigurationError: a setting, a flag or the data directory cannot be used.
    """
    brokers = brokers_given(arguments)
    effective = settings.load(
        file=arguments.config, environment=os.environ, flags=settings_given(arguments), brokers=brokers
    )
    heed_no_reload()
    from penstock.processes.start_line import pid_file
    from penstock.storage.directory import PRIVATE

    os.umask(PRIVATE)

    with pid_file(arguments.pid_file):
        return _serve(effective, arguments.data_dir, brokers)


def _serve(effective: Settings, data_dir: Path, brokers: int) -> int:
    if brokers > 1:
        from penstock.processes import supervisor

        return supervisor.run(effective, data_dir, brokers)

    # The rest of penstock, asyncio included; `--help` and a bad setting need none of it. Importing makes next to
    # nothing but what stays: no look for garbage until the broker is ready, when `app` begins with that.
    gc.disable()
    try:
        from penstock import app

        return app.run(effective, data_dir)
    finally:
        gc.enable()


def _add_setting(group: argparse._ArgumentGroup, flag: str, key: Key) -> None:
    """Add a setting's flag. Its value stays text: the table parses it, with the same errors for every source."""
    group.add_argument(
        flag,
        dest=key.name,
        metavar=flag.rsplit("-", maxsplit=1)[-1].upper(),
        help=f"{key.text} (default: {key.default_text})".replace("%", "%%"),
    )
