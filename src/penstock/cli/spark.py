# SPDX-License-Identifier: Apache-2.0
"""`penstock spark …`: tables of who used what, from the records of brokers.

Where: `main` calls it. It needs the extra `spark`; nothing of it is imported before a subcommand runs.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from penstock.accounting.tables import PriceList
    from penstock.spark.accounting.in_process import ArrowAccounting
    from penstock.spark.accounting.records_source import Source
    from penstock.spark.accounting.shadow import Measured
    from penstock.spark.accounting.stream import Accounting
    from penstock.spark.accounting.whatif import Change

_ACCOUNT: Final = """\
Turn usage and decision records of brokers into tables. Records are read through a durable
subscription, so none is trimmed before it was read. What was read once is not counted again,
also if this process is killed: run it again with the same --tables.
"""
_WHATIF: Final = """\
Say what other quotas would have done with recorded usage: the broker's own division of quotas is
replayed for each resource group. --quota gold=500 is 500 messages/s published; gold=x0.5 multiplies
all quotas of the group; gold:dispatch_bytes=10M names one; none is no limit. Groups that are not
named keep the recorded quotas.
"""
_REPORT: Final = """\
Write a page (HTML) about what the tables say: usage, who was slowed, fairness, top talkers, quotas
that would fit, costs. It needs no Spark.
"""
_AUDIT: Final = """\
Compare a topic that a stream has written with the topics that it has read, message by message:
rows that are there twice, and messages that have no row. The stream must have been written with
the column __provenance. It needs no Spark. Exit status 1 if something is wrong.
"""
_TARGET: Final = 0.99
_CORES: Final = 2


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name)
    subcommands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_add_account, _add_whatif, _add_audit, _add_report):
        add(subcommands)


def _add_account(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    account = _subcommand(subcommands, "account", "make tables of who used what, and who was slowed", _ACCOUNT)
    account.set_defaults(run=_account)
    account.add_argument("--service-url", required=True, metavar="URL", help="of the brokers: pulsar://HOST:PORT")
    account.add_argument(
        "--subscription", default="accounting", metavar="NAME", help="the durable subscription (default: accounting)"
    )
    account.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the Spark source, as token=…"
    )
    account.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="a price list (TOML, or CSV if it ends in .csv): makes the table costs",
    )
    account.add_argument(
        "--strict-prices", action="store_true", help="a hole in the price list is an error, not a marked row"
    )
    account.add_argument(
        "--proxies",
        action="store_true",
        help="read the records of proxies (pulsar/system/proxy-usage and proxy-governance), not those of brokers",
    )
    account.add_argument(
        "--records",
        action="append",
        default=[],
        metavar="KIND=TOPIC",
        help="another topic of records: usage=persistent://… or governance=persistent://…",
    )
    account.add_argument("--format", choices=("parquet", "delta"), default="parquet", help="of the tables")
    how = account.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="read the records that there are, and end (default)")
    how.add_argument("--continuous", action="store_true", help="read records as they come, until Ctrl-C")
    account.add_argument(
        "--records-per-batch", type=int, default=200_000, metavar="N", help="size of a micro-batch (default: 200000)"
    )


def _add_whatif(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    whatif = _subcommand(subcommands, "whatif", "say what other quotas would have done", _WHATIF)
    whatif.set_defaults(run=_whatif)
    whatif.add_argument(
        "--quota", action="append", default=[], metavar="GROUP=RATE", help="another quota; may be given several times"
    )
    whatif.add_argument(
        "--recommend",
        type=float,
        metavar="PART",
        help="recommend quotas with which this part of the minutes is not limited, for example 0.99",
    )
    whatif.add_argument("--day", action="append", default=[], metavar="DAY", help="only this day: 2026-11-23")
    whatif.add_argument("--apply", action="store_true", help="set the quotas, or the recommended ones")
    whatif.add_argument(
        "--shadow",
        type=int,
        metavar="MINUTES",
        help="let the brokers observe these quotas for so long, beside those in force, and compare",
    )
    whatif.add_argument(
        "--admin-url",
        action="append",
        default=[],
        metavar="URL",
        help="the admin port, for --apply and --shadow: http://HOST:8080; for --shadow once for each broker",
    )
    whatif.add_argument(
        "--token-file", metavar="FILE", help="a file with the token of an admin (default: the variable PENSTOCK_TOKEN)"
    )


def _add_audit(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    audit = subcommands.add_parser(
        "audit",
        help="prove that a stream has written each row once",
        description=_AUDIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    audit.set_defaults(run=_audit)
    audit.add_argument("--service-url", required=True, metavar="URL", help="of the brokers: pulsar://HOST:PORT")
    audit.add_argument("--sink", required=True, metavar="TOPIC", help="what the stream writes")
    audit.add_argument(
        "--source", action="append", default=[], metavar="TOPIC", help="what it reads; may be given several times"
    )
    audit.add_argument(
        "--query", default="", metavar="NAME", help="only its rows: spark-QUERYID, or its pulsar.producer.producerName"
    )
    audit.add_argument("--filtered", action="store_true", help="messages without a row are no error")
    audit.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the Spark source, as token=…"
    )


def _add_report(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = _subcommand(subcommands, "report", "write a page about the tables", _REPORT, master=False)
    report.set_defaults(run=_report)
    report.add_argument("--output", type=Path, default=Path("usage.html"), metavar="FILE", help="(default: usage.html)")
    report.add_argument("--day", action="append", default=[], metavar="DAY", help="only this day: 2026-11-23")
    report.add_argument(
        "--target",
        type=float,
        default=_TARGET,
        metavar="PART",
        help="of minutes, for recommended quotas (default: 0.99)",
    )


def _subcommand(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    description: str,
    *,
    master: bool = True,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tables",
        required=True,
        metavar="DIR",
        help="directory of the tables: a path, or a URL as s3a://bucket/tables",
    )
    if master:
        parser.add_argument(
            "--master", metavar="URL", help="of a Spark cluster; without it, Spark runs in this process, on two cores"
        )
        parser.add_argument(
            "--engine",
            choices=("spark", "arrow"),
            default="spark",
            help="arrow: without Java, in seconds, for days that fit the memory (default: spark)",
        )
    return parser


def _account(arguments: argparse.Namespace) -> int:
    from penstock.accounting import tables

    price_list = None
    if arguments.prices is not None:
        read = tables.of_csv if arguments.prices.suffix == ".csv" else tables.of_toml
        price_list = read(_text_of(arguments.prices))
    kept: dict[str, Any] = {
        "source": _source(arguments),
        "tables": arguments.tables,
        "kind": arguments.format,
        "records_per_batch": arguments.records_per_batch,
    }
    if arguments.engine == "arrow":
        if arguments.continuous:
            raise ConfigurationError(
                "--engine arrow reads the records that there are, and ends; --continuous needs Spark"
            )
        from penstock.spark.accounting.in_process import ArrowAccounting

        in_process = ArrowAccounting(**kept)
        print("\n".join(_said(in_process.run_once())))
        _refresh(in_process, arguments, price_list)
        return 0
    with _session(arguments.master) as spark:
        from penstock.spark.accounting.stream import Accounting

        accounting = Accounting(spark=spark, **kept)
        if arguments.continuous:
            with contextlib.suppress(KeyboardInterrupt):
                accounting.run(refreshed=lambda: _refresh(accounting, arguments, price_list))
        else:
            print("\n".join(_said(accounting.run_once())))
            _refresh(accounting, arguments, price_list)
    return 0


def _refresh(
    accounting: Accounting | ArrowAccounting, arguments: argparse.Namespace, price_list: PriceList | None
) -> None:
    days = accounting.refresh(prices=price_list, strict_prices=arguments.strict_prices)
    print(f"days that have changed: {', '.join(days) or 'none'}")


def _source(arguments: argparse.Namespace) -> Source:
    _needs_spark()
    from penstock.spark.accounting.records_source import PROXY_TOPICS, TOPICS, Source

    topics = dict(PROXY_TOPICS if arguments.proxies else TOPICS)
    for item in arguments.records:
        kind, _, topic = item.partition("=")
        if kind not in topics or not topic:
            raise ConfigurationError(f"--records {item}: want {'=TOPIC or '.join(topics)}=TOPIC")
        topics[kind] = topic
    return Source(
        url=arguments.service_url,
        subscription=arguments.subscription,
        options=dict(_key_and_value(item) for item in arguments.option),
        topics=topics,
    )


def _whatif(arguments: argparse.Namespace) -> int:
    for option in ("apply", "shadow"):
        if getattr(arguments, option) and not arguments.admin_url:
            raise ConfigurationError(f"--{option} needs --admin-url")
    if arguments.shadow is not None and arguments.shadow < 1:
        raise ConfigurationError(f"--shadow {arguments.shadow}: want 1 minute or more")
    if arguments.recommend is not None and not 0 < arguments.recommend <= 1:
        raise ConfigurationError(f"--recommend {arguments.recommend}: want a part above 0, at most 1")
    changes, rows = _replayed(arguments)
    unknown = changes.keys() - {row["resource_group"] for row in rows}
    if unknown:
        raise ConfigurationError(f"no usage of {', '.join(sorted(unknown))} was recorded, or it had no quota")
    print("\n".join(_table(rows)))
    if arguments.shadow:
        rows = _shadowed(arguments, rows)
    if arguments.apply:
        from penstock.spark.accounting.whatif import apply

        done = apply(arguments.admin_url[0], rows, token=_token(arguments))
        print("\n".join(f"set {line}" for line in done) or "no quota is to be changed")
    return 0


def _token(arguments: argparse.Namespace) -> str | None:
    from penstock.cli.contexts import Target

    return Target(token_file=arguments.token_file or "", takes_variable=True).token() or None


def _shadowed(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let brokers observe the quotas; return the rows of groups of which they measured what was predicted."""
    from penstock.spark.accounting.admin_calls import Admin
    from penstock.spark.accounting.shadow import observe

    token = _token(arguments)
    admins = [Admin(url, token) for url in arguments.admin_url]
    found = observe(admins, rows, arguments.shadow, target=arguments.recommend, wait=threading.Event().wait)
    print("\n".join(_compared(found)) if found else "no quota is to be observed")
    wrong = {one.resource_group for one in found if not one.is_as_predicted}
    for group in sorted(wrong):
        print(f"{group}: limited in more minutes than was predicted" + (", not set" if arguments.apply else ""))
    return [row for row in rows if row["resource_group"] not in wrong]


def _compared(found: Sequence[Measured]) -> Iterator[str]:
    heads = ("predicted", "measured", "waited", "in force")
    yield f"{'observed group':<30} {'of':<17} " + " ".join(f"{head:>13}" for head in heads)
    for one in found:
        cells = (
            f"<= {one.limited_part:.1%}",
            f"{one.limited_minutes}/{one.minutes} min",
            f"{one.limited_ms / 1_000:,.1f} s",
            f"{one.in_force_minutes}/{one.minutes} min",
        )
        yield f"{one.resource_group:<30} {one.name:<17} " + " ".join(f"{cell:>13}" for cell in cells)


def _replayed(arguments: argparse.Namespace) -> tuple[Mapping[str, Change], list[dict[str, Any]]]:
    days, where, target = arguments.day or None, arguments.tables, arguments.recommend
    if arguments.engine == "arrow":
        _needs_spark()
        from penstock.accounting.tables import GROUP_USAGE
        from penstock.spark.accounting.directory import directory_of
        from penstock.spark.accounting.store import existing_store
        from penstock.spark.accounting.whatif import parse_changes, whatif_in_process

        changes = parse_changes(arguments.quota)
        return changes, whatif_in_process(
            existing_store(directory_of(where)).rows(GROUP_USAGE, days), changes, target=target
        )
    with _session(arguments.master) as spark:
        from penstock.accounting.tables import GROUP_USAGE
        from penstock.spark.accounting.directory import directory_of
        from penstock.spark.accounting.store import existing_store
        from penstock.spark.accounting.whatif import parse_changes, whatif

        changes = parse_changes(arguments.quota)
        return changes, whatif(
            existing_store(directory_of(where, spark)).frame(spark, GROUP_USAGE, days), changes, target=target
        )


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    from penstock.cli.spark_report import at_least

    heads = ("quota/s", "replayed/s", "recommended", "passed", "limited", "waiting", "fairness")
    yield f"{'group':<30} {'of':<17} " + " ".join(f"{head:>13}" for head in heads)
    for row in rows:
        numbers = [row["quota_recorded"], row["quota"]]
        cells = ["-" if number is None else f"{number:,.0f}" for number in numbers]
        cells.append(at_least(row["recommended"], ",.0f", known=not row["recommended_at_least"]))
        passed = row["passed"] / row["recorded"] if row["recorded"] else None
        cells.append(at_least(passed, ".1%", known=not row["passed_at_least"]))
        cells += [
            f"{row['limited_minutes']}/{row['minutes']} min",
            f"{row['waiting_max']:,.0f}",
            f"{row['fairness']:.3f}",
        ]
        yield f"{row['resource_group']:<30} {row['kind']:<17} " + " ".join(f"{cell:>13}" for cell in cells)


def _audit(arguments: argparse.Namespace) -> int:
    try:
        from penstock.spark.audit import audit
        from penstock.spark.client.cluster import Cluster
        from penstock.spark.options import parse_endpoint
    except ImportError as error:
        raise ConfigurationError(f"{error}; want: pip install 'penstock[spark]'") from error
    options = {"service.url": arguments.service_url, **dict(_key_and_value(item) for item in arguments.option)}
    with Cluster(parse_endpoint(options)) as cluster:
        found = audit(cluster, arguments.sink, arguments.source, arguments.query)
    twice, missing = sum(found.twice.values()), sum(found.missing.values())
    print(f"{found.rows:,} rows, {found.unnumbered:,} of them without a source; {twice:,} are there again")
    for name, count in sorted(found.twice.items()):
        print(f"  {count:,} again: {name}")
    if arguments.source:
        print(f"{found.compared:,} messages in the sources, {missing:,} without a row")
    for topic, count in sorted(found.missing.items()):
        print(f"  {count:,} of {topic}: {', '.join(map(str, found.named[topic]))}")
    return 1 if twice or (missing and not arguments.filtered) else 0


def _report(arguments: argparse.Namespace) -> int:
    try:
        from penstock.spark.accounting.directory import directory_of
        from penstock.spark.accounting.findings import gather
        from penstock.spark.accounting.store import existing_store
    except ImportError as error:
        raise ConfigurationError(f"{error}; want: pip install 'penstock[spark]'") from error
    from penstock.cli.spark_report import render

    found = gather(existing_store(directory_of(arguments.tables)), days=arguments.day or None, target=arguments.target)
    arguments.output.write_text(render(found, target=arguments.target), encoding="utf-8")
    print(f"report {arguments.output.absolute()}")
    return 0


def _said(counts: dict[str, dict[str, int]]) -> Iterator[str]:
    for kind, numbers in counts.items():
        said = ", ".join(f"{number:,} {name}" for name, number in numbers.items())
        yield f"{kind}: {said or 'no records yet'}"


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _key_and_value(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals:
        raise ConfigurationError(f"--option {item}: want KEY=VALUE")
    return key, value


def _needs_spark() -> None:
    """Raises ConfigurationError if the extra is missing."""
    try:
        import pyarrow as pa  # noqa: F401 - is it there?
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"{error}; want: pip install 'penstock[spark]'") from error


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
