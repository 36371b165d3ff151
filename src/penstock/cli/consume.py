# SPDX-License-Identifier: Apache-2.0
"""`penstock consume`, `tail` and `export`: messages of a topic, printed.

`consume` takes them from a durable subscription and acknowledges what it has printed; `tail` and `export` read without
a trace. All have the same filters (`filters`).
"""

from __future__ import annotations

import csv
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from penstock.cli import contexts, filters, output
from penstock.cli.exits import CommandFailed, Exit, wrong

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from penstock.cli.feeds import Feeds
    from penstock.spark.client.cluster import Cluster
    from penstock.wire.messages import Message

_TEXTS: Final = {
    "consume": "Take messages from a subscription, print them, and acknowledge them when they are printed.",
    "tail": "Print messages as they are published, without a subscription.",
    "export": "Write the messages that a topic has now to a file: JSON lines, or CSV if its name ends in .csv.",
}
_TYPES: Final = {"exclusive": 0, "shared": 1, "failover": 2, "key-shared": 3}
_FORMATS: Final = ("value", "json")
# How long the last messages of a topic may take to come. To end without them would be a silent loss.
_LAST_S: Final = 30.0


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_TEXTS[name])
    parser.set_defaults(run={"consume": _consume, "tail": _tail, "export": _export}[name])
    parser.add_argument("topic", metavar="TOPIC", help="with all its partitions")
    if name == "consume":
        parser.add_argument("-s", "--subscription", required=True, metavar="NAME", help="created if it is missing")
        parser.add_argument("--type", choices=list(_TYPES), default="shared", help="of subscription (default: shared)")
        parser.add_argument(
            "--from", dest="since", choices=("earliest", "latest"), default="latest",
            help="where a new subscription begins (default: latest)",
        )  # fmt: skip
        parser.add_argument("--no-ack", action="store_true", help="only look: what is printed is delivered again")
    elif name == "tail":
        add_since(parser, "latest")
    else:
        parser.add_argument("file", metavar="FILE", help="- is standard output, JSON lines")
        add_since(parser, "earliest")
        add_until(parser)
    if name != "export":
        parser.add_argument("-n", "--count", type=int, metavar="N", help="end after so many messages")
        parser.add_argument("--idle", type=float, metavar="SECONDS", help="end when nothing came for so long")
        parser.add_argument(
            "-o", "--output", choices=_FORMATS, default="value",
            help="values only, or JSON lines with everything else (default: value)",
        )  # fmt: skip
    filters.add_options(parser)
    contexts.add_options(parser)


def add_since(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--from`."""
    parser.add_argument(
        "--from", dest="since", default=default, metavar="PLACE",
        help=f"earliest, latest, LEDGER:ENTRY, a time, or an age as 15m (default: {default})",
    )  # fmt: skip


def add_until(parser: argparse.ArgumentParser) -> None:
    """Add `--to`."""
    parser.add_argument("--to", metavar="PLACE", help="end before it: LEDGER:ENTRY, a time, or an age as 15m")


def _consume(arguments: argparse.Namespace) -> int:
    from penstock.cli.feeds import Feed, Feeds, connected, subscription_body

    kind, earliest = _TYPES[arguments.type], arguments.since == "earliest"
    with connected(contexts.target(arguments)) as cluster:
        topics = cluster.partitions(arguments.topic, create=True)
        bodies = [subscription_body(one, arguments.subscription, kind, earliest=earliest) for one in topics]
        with Feeds([Feed(cluster, body.topic, body) for body in bodies]) as feeds:
            return _print(arguments, feeds, acknowledges=not arguments.no_ack)


def _tail(arguments: argparse.Namespace) -> int:
    from penstock.cli.feeds import connected

    with connected(contexts.target(arguments)) as cluster, readers(cluster, arguments.topic, arguments.since) as feeds:
        return _print(arguments, feeds, acknowledges=False)


@contextmanager
def readers(cluster: Cluster, topic: str, since: str) -> Iterator[Feeds]:
    """Readers of a topic's partitions from a place on. Raises CommandFailed, ClientError."""
    from penstock.cli.feeds import Feed, Feeds, reader_body, start_of

    topics = cluster.partitions(topic)
    starts = {one: start_of(cluster, one, since) for one in topics}
    with Feeds([Feed(cluster, one, reader_body(one, start)) for one, start in starts.items()]) as feeds:
        yield feeds


def _print(arguments: argparse.Namespace, feeds: Feeds, *, acknowledges: bool) -> int:
    chosen = filters.chosen(arguments)
    printed = 0
    for got in feeds.messages(idle_s=arguments.idle):
        if got is None:
            sys.stdout.flush()
            continue
        if chosen(got.message):
            print(_line(got.message, arguments.output))
            printed += 1
        if acknowledges and got.is_last:
            sys.stdout.flush()
            got.feed.acknowledge(got.entry)
        if printed == arguments.count:
            break
    return Exit.OK


def _line(message: Message, how: str) -> str:
    if how == "json":
        return json.dumps(message.as_json(), ensure_ascii=False)
    text = (message.value or b"").decode("utf-8", "backslashreplace")
    return output.printable(text) if sys.stdout.isatty() else text


def _export(arguments: argparse.Namespace) -> int:
    from penstock.cli.feeds import connected

    chosen = filters.chosen(arguments)
    with (
        connected(contexts.target(arguments)) as cluster,
        _written(arguments.file) as write,
        readers(cluster, arguments.topic, arguments.since) as feeds,
    ):
        count = 0
        for message in until_end(cluster, feeds, arguments.to):
            if chosen(message):
                write(message)
                count += 1
    output.notice(f"{count:,} messages of {arguments.topic} are in {arguments.file}")
    return Exit.OK


def until_end(cluster: Cluster, feeds: Feeds, to: str | None) -> Iterator[Message]:
    """Yield the messages up to those that are the last now, or before a place: `LEDGER:ENTRY`, or a publish time.

    Raises:
        CommandFailed: the last ones do not come.
        ClientError: no connection.
    """
    from penstock.cli.feeds import ends, position_of, time_ms

    before = position_of(to) if to else None
    to_ms = time_ms(to) if to and before is None else None
    lasts = ends(cluster, [feed.topic for feed in feeds.feeds])
    left = {feed.topic: last[:2] for feed in feeds.feeds if (last := lasts[feed.topic]) and feed.start <= last[:2]}
    if before is not None:
        left = {topic: min(last, before[:2]) for topic, last in left.items()}
    messages = feeds.messages(idle_s=_LAST_S)
    while left:
        try:
            got = next(messages)
        except StopIteration:
            raise CommandFailed(f"the last messages of {', '.join(left)} did not come in time; try again") from None
        if got is None or got.feed.topic not in left:
            continue
        position = tuple(got.entry.position)
        if (before is None or position < before[:2]) and (to_ms is None or got.message.publish_time_ms < to_ms):
            yield got.message
        if got.is_last and position >= left[got.feed.topic]:
            del left[got.feed.topic]


@contextmanager
def _written(name: str) -> Iterator[Callable[[Message], None]]:
    """Return how to write a message to a file."""
    if name == "-":
        yield lambda message: print(json.dumps(message.as_json(), ensure_ascii=False))
        return
    try:
        file = Path(name).open("w", encoding="utf-8", newline="")  # noqa: SIM115 - below
    except OSError as error:
        raise wrong(f"{name} cannot be written: {error.strerror}") from error
    with file:
        yield _csv(file) if name.endswith(".csv") else lambda message: _write_json(file, message)


def _write_json(file: TextIO, message: Message) -> None:
    file.write(json.dumps(message.as_json(), ensure_ascii=False) + "\n")


def _csv(file: TextIO) -> Callable[[Message], None]:
    from penstock.cli.messages import COLUMNS

    rows = csv.DictWriter(file, COLUMNS)
    rows.writeheader()

    def write(message: Message) -> None:
        made = message.as_json()
        if "properties" in made:
            made["properties"] = json.dumps(made["properties"], ensure_ascii=False)
        rows.writerow(made)

    return write
