# SPDX-License-Identifier: Apache-2.0
"""`penstock proxy`: reads the configuration and runs a proxy before a Pulsar cluster until it is stopped.

Where: `main` calls it. The proxy is imported only after all settings were read and checked.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock import settings
from penstock.cli.serve import add_pid_file, add_settings, heed_no_reload, settings_given
from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DESCRIPTION: Final = """\
Stand before a Pulsar cluster: clients connect here, and reach its brokers through this process, which
governs what passes. It keeps nothing on disk, prints one line when it is ready
("penstock ready pulsar://… http://…"), and ends cleanly on SIGTERM.
"""

_EPILOG: Final = """\
examples:
  penstock proxy --upstream pulsar://broker.example.com:6650 --port 6651 --admin-port 8081
  penstock proxy --upstream pulsar://a:6650,b:6650 --host 0.0.0.0 --config proxy.conf

All settings: docs/reference/configuration.md
"""

_UPSTREAM: Final[Mapping[str, tuple[str, ...]]] = {"the cluster": ("--upstream", "--upstream-admin")}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    """Add `penstock proxy`."""
    parser = commands.add_parser(
        name,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings as key=value lines, like Pulsar's proxy.conf"
    )
    add_pid_file(parser)
    add_settings(parser, first=_UPSTREAM)


def run(arguments: argparse.Namespace) -> int:
    """Run the proxy until it is stopped; return the exit status.

    Raises:
        ConfigurationError: a setting or a flag cannot be used.
    """
    effective = settings.load(file=arguments.config, environment=os.environ, flags=settings_given(arguments))
    if not (effective.upstream_url_tls if effective.upstream_tls else effective.upstream_url):
        key = "brokerServiceURLTLS" if effective.upstream_tls else "brokerServiceURL (--upstream)"
        raise ConfigurationError(f"{key} is not set: give the service URL of the cluster, such as pulsar://host:6650")
    heed_no_reload()
    from penstock import proxy_app
    from penstock.processes.end_of_process import end_now
    from penstock.processes.start_line import pid_file

    with pid_file(arguments.pid_file):
        status = proxy_app.run(effective)
    end_now(status)
