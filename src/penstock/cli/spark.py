# SPDX-License-Identifier: Apache-2.0
"""`penstock spark …`: tables of who used what, from the records of brokers.

Where: `main` calls it. It needs the extra `spark`; nothing of it is imported before a subcommand runs.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_ACCOUNT: Final = """\
Turn usage and decision records of brokers into tables. Records are read through a durable
subscription, so none is trimmed before it was read. What was read once is not counted again,
also if this process is killed: run it again with the same --tables.
"""
_CORES: Final = 2


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("spark", help="account for usage, with Spark")
    subcommands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    account = _subcommand(subcommands, "account", "make tables of who used what, and who was slowed", _ACCOUNT)
    account.set_defaults(run=_account)
    account.add_argument("--service-url", required=True, metavar="URL", help="of the brokers: pulsar://HOST:PORT")
    account.add_argument(
        "--subscription", default="accounting", metavar="NAME", help="the durable subscription (default: accounting)"
    )
    account.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the Spark source, as token=…"
    )
    account.add_argument("--format", choices=("parquet", "delta"), default="parquet", help="of the tables")
    how = account.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="read the records that there are, and end (default)")
    how.add_argument("--continuous", action="store_true", help="read records as they come, until Ctrl-C")
    account.add_argument(
        "--records-per-batch", type=int, default=200_000, metavar="N", help="size of a micro-batch (default: 200000)"
    )


def _subcommand(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, description: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="directory of the tables")
    parser.add_argument(
        "--master", metavar="URL", help="of a Spark cluster; without it, Spark runs in this process, on two cores"
    )
    return parser


def _account(arguments: argparse.Namespace) -> int:
    with _session(arguments.master) as spark:
        from penstock.spark.accounting.stream import Accounting, Source

        accounting = Accounting(
            spark=spark,
            source=Source(
                url=arguments.service_url,
                subscription=arguments.subscription,
                options=dict(_key_and_value(item) for item in arguments.option),
            ),
            tables=arguments.tables.absolute(),
            kind=arguments.format,
            records_per_batch=arguments.records_per_batch,
        )
        if arguments.continuous:
            with contextlib.suppress(KeyboardInterrupt):
                accounting.run()
            return 0
        print("\n".join(_said(accounting.run_once())))
    return 0


def _said(counts: dict[str, dict[str, int]]) -> Iterator[str]:
    for kind, numbers in counts.items():
        said = ", ".join(f"{number:,} {name}" for name, number in numbers.items())
        yield f"{kind}: {said or 'no records yet'}"


def _key_and_value(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals:
        raise ConfigurationError(f"--option {item}: want KEY=VALUE")
    return key, value


@contextlib.contextmanager
def _session(master: str | None) -> Iterator[SparkSession]:
    """The session of this process if there is one, or a new one. Raises ConfigurationError if there is no Spark."""
    try:
        from pyspark.sql import SparkSession

        from penstock.spark.session import local_session
    except ImportError as error:
        raise ConfigurationError(f"{error}; want: pip install 'penstock[spark]'") from error
    present = SparkSession.getActiveSession()
    spark = present or local_session("penstock-accounting", cores=_CORES, master=master)
    try:
        yield spark
    finally:
        if present is None:
            spark.stop()
