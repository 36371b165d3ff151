# SPDX-License-Identifier: Apache-2.0
"""`penstock top`: rates and backlogs of topics, subscriptions, namespaces or tenants, again and again.

Why from metrics: one request to each broker has the counters of all topics, and Apache Pulsar has the same names, so it
works there, too, without what only penstock measures. What takes long is asked for less often: at most a fifth of the
time goes into asking. Where: `main` calls it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.cli import contexts, output
from penstock.cli.exits import CommandFailed, Exit
from penstock.core.units import KIB, MIB, NS_PER_S
from penstock.net.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.cli.contexts import Target

Row: TypeAlias = "dict[str, Any]"

_DESCRIPTION: Final = """\
Show what is published, delivered and not yet acknowledged, busiest first, until Ctrl-C. All brokers of the
cluster are asked. Above the rows, where the broker is penstock: health, memory, and what waits for which reason.
"""
# What a metric is summed up as, in the words of Pulsar's statistics.
_OF_TOPICS: Final = {
    "pulsar_in_messages_total": "msgRateIn",
    "pulsar_in_bytes_total": "msgThroughputIn",
    "pulsar_msg_backlog": "msgBacklog",
    "pulsar_producers_count": "publishers",
    "pulsar_out_messages_total": "msgRateOut",
    "pulsar_out_bytes_total": "msgThroughputOut",
    "pulsar_subscription_consumers_count": "consumers",
}
_OF_SUBSCRIPTIONS: Final = {
    "pulsar_out_messages_total": "msgRateOut",
    "pulsar_out_bytes_total": "msgThroughputOut",
    "pulsar_subscription_back_log": "msgBacklog",
    "pulsar_subscription_unacked_messages": "unackedMessages",
    "pulsar_subscription_consumers_count": "consumers",
}
# Counters, which are shown as rates.
_RATES: Final = frozenset({"msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut"})
# The columns of tables, and how much is one of their unit.
_HEADS: Final = {
    "msgRateIn": ("in/s", 1),
    "msgThroughputIn": ("KiB in/s", KIB),
    "msgRateOut": ("out/s", 1),
    "msgThroughputOut": ("KiB out/s", KIB),
    "msgBacklog": ("backlog", 1),
    "unackedMessages": ("unacked", 1),
    "publishers": ("producers", 1),
    "consumers": ("consumers", 1),
}
# What a row may be, and which metrics it sums up.
_BY: Final = {
    "topics": _OF_TOPICS,
    "subscriptions": _OF_SUBSCRIPTIONS,
    "namespaces": _OF_TOPICS,
    "tenants": _OF_TOPICS,
}
_SORTS: Final = {"in": "msgRateIn", "out": "msgRateOut", "backlog": "msgBacklog"}
_SAMPLE: Final = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PLAIN: Final = re.compile(r"^(process_resident_memory_bytes|penstock_healthy|penstock_degraded) (\S+)$", re.MULTILINE)
_HOLDS: Final = "penstock_holds"
_USED, _BUDGET = "penstock_memory_used_bytes", "penstock_memory_budget_bytes"
# A cache is full as a rule, and gives way.
_CACHE: Final = "tail-cache"
# The part of the time that may go into asking.
_ASKING: Final = 5
_SCREEN, _BACK, _TOP = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"
_LINE_END: Final = "\x1b[K\n"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(run=_run)
    parser.add_argument("--by", choices=list(_BY), default="topics", help="what a row is (default: topics)")
    parser.add_argument(
        "--sort", choices=list(_SORTS), help="largest first (default: in; of subscriptions, out); then by name"
    )
    parser.add_argument("-n", "--rows", type=int, metavar="N", help="how many rows (default: as the terminal has)")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between looks (default: 2)")
    parser.add_argument("--once", action="store_true", help="look twice, print once, and end")
    output.add_option(parser)
    contexts.add_options(parser)


@dataclass(slots=True)
class Look:
    """The answers of all brokers at one moment.

    Attributes:
        at_s: when, on a monotonic clock.
        rows: counters and gauges of each row.
        brokers: of each broker, by its address: what the lines above the rows say.
        silent: brokers that did not answer.
    """

    at_s: float
    rows: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    brokers: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)


def _run(arguments: argparse.Namespace) -> int:
    """Look until Ctrl-C. Raises CommandFailed: no broker answers, or one refuses."""
    target = contexts.target(arguments)
    live = arguments.output == "table" and not arguments.once and sys.stdout.isatty()
    before = _look(target, arguments.by)
    try:
        if live:
            sys.stdout.write(_SCREEN)
        while True:
            _wait(before, arguments.interval)
            now = _look(target, arguments.by)
            _show(now, rows(before, now, arguments), arguments, live=live)
            if arguments.once:
                return Exit.OK
            before = now
    except KeyboardInterrupt:
        return Exit.OK
    finally:
        if live:
            sys.stdout.write(_BACK)
            sys.stdout.flush()


def _wait(last: Look, interval_s: float) -> None:
    took_s = _now_s() - last.at_s
    threading.Event().wait(max(interval_s - took_s, (_ASKING - 1) * took_s))


def _now_s() -> float:
    return SystemClock().monotonic_ns() / NS_PER_S


def _look(target: Target, by: str) -> Look:
    from penstock.cli.rest import Rest

    look = Look(_now_s())
    with Rest(target) as rest:
        first = rest.ask("GET", "/metrics/").body.decode()
        try:
            places = [str(one) for one in rest.get("/admin/v2/brokers")]
        except CommandFailed:
            places = []
    scheme, _, here = target.admin_url.partition("://")
    if len(places) < 2:
        read(first, here, by, look)
        return look
    for place in places:
        try:
            with Rest(replace(target, admin_url=f"{scheme}://{place}"), timeout_s=5.0) as rest:
                text = rest.ask("GET", "/metrics/").body.decode()
        except CommandFailed:
            look.silent.append(place)
        else:
            read(text, place, by, look)
    return look


def read(text: str, place: str, by: str, look: Look) -> None:
    """Add what the metrics of one broker say, of rows of this kind."""
    metrics = _BY[by]
    holds: list[str] = []
    used: dict[str, float] = {}
    budget: dict[str, float] = {}
    for name, labels, number in _SAMPLE.findall(text):
        if (column := metrics.get(name)) is not None:
            row = _row_of(dict(_LABEL.findall(labels)), by)
            if row is not None:
                look.rows[row][column] += float(number)
        elif name in (_USED, _BUDGET):
            (used if name == _USED else budget)[dict(_LABEL.findall(labels))["owner"]] = float(number)
        elif name == _HOLDS and float(number):
            holds.append(f"{float(number):.0f} {dict(_LABEL.findall(labels))['reason']}")
    plain = {name: float(number) for name, number in _PLAIN.findall(text)}
    look.brokers[place] = _broker(plain, used, budget, holds)


def _row_of(labels: Mapping[str, str], by: str) -> str | None:
    """Return the name of the row that a sample belongs to; None: to none, as sums of a broker."""
    topic, namespace = labels.get("topic"), labels.get("namespace", "")
    if topic is None:
        return None
    if by == "topics":
        return topic
    if by == "subscriptions":
        return f"{topic} {labels['subscription']}" if "subscription" in labels else None
    return namespace if by == "namespaces" else namespace.partition("/")[0]


def _broker(
    plain: Mapping[str, float], used: Mapping[str, float], budget: Mapping[str, float], holds: Sequence[str]
) -> str:
    """Return the line of a broker; empty if it is not penstock."""
    if "penstock_healthy" not in plain:
        return ""
    state = "failing" if not plain["penstock_healthy"] else "degraded" if plain.get("penstock_degraded") else "healthy"
    resident = f"{plain.get('process_resident_memory_bytes', 0) / MIB:,.0f} MiB resident"
    parts = {owner: used.get(owner, 0) / limit for owner, limit in budget.items() if limit > 0 and owner != _CACHE}
    fullest = max(parts, key=lambda owner: parts[owner], default=None)
    full = f", {fullest} {parts[fullest]:.0%} of its memory" if fullest is not None else ""
    return f"{state}, {resident}{full}; {'waiting: ' + ', '.join(holds) if holds else 'nothing waits'}"


def rows(before: Look, now: Look, arguments: argparse.Namespace) -> list[Row]:
    """Return the rows, largest first; counters as rates since `before`. A counter that was reset counts from 0."""
    elapsed_s = max(now.at_s - before.at_s, 1e-9)
    columns = [one for one in _HEADS if one in _BY[arguments.by].values()]
    found: list[Row] = []
    for name, values in sorted(now.rows.items()):
        earlier = before.rows.get(name, values)
        row: Row = {"name": name}
        for column in columns:
            value = values.get(column, 0.0)
            grown = value - earlier.get(column, value)
            rate = round((grown if grown >= 0 else value) / elapsed_s, 1)
            row[column] = rate if column in _RATES else round(value)
        found.append(row)
    sort = _SORTS[arguments.sort or "in"]
    sort = sort if sort in columns else _SORTS["out"]
    return nlargest(_count(arguments), found, key=lambda row: (row[sort], row["msgBacklog"]))


def _count(arguments: argparse.Namespace) -> int:
    if arguments.rows is not None:
        return max(0, int(arguments.rows))
    return max(1, shutil.get_terminal_size().lines - 6) if arguments.output == "table" else 1_000


def _show(look: Look, found: list[Row], arguments: argparse.Namespace, *, live: bool) -> None:
    if arguments.output != "table":
        output.show({"brokers": look.brokers, "silent": look.silent, arguments.by: found}, arguments.output)
        return
    table = [{arguments.by[:-1]: row.pop("name"), **_displayed(row)} for row in found]
    lines = [*_above(look), "", *(output.table(table) if table else [f"no {arguments.by}"])]
    if live:
        size = shutil.get_terminal_size()
        lines = [line[: size.columns] for line in lines[: size.lines - 1]]
        sys.stdout.write(f"{_TOP}{_LINE_END.join(lines)}{_LINE_END}\x1b[J")
    else:
        print("\n".join(lines))
    sys.stdout.flush()


def _displayed(row: Row) -> Row:
    heads = ((*_HEADS[column], value) for column, value in row.items())
    return {head: f"{value / unit:,.1f}" if isinstance(value, float) else f"{value:,}" for head, unit, value in heads}


def _above(look: Look) -> Iterator[str]:
    for place, line in look.brokers.items():
        yield f"{place}  {line}".rstrip()
    for place in look.silent:
        yield f"{place}  does not answer"
