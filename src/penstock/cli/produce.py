# SPDX-License-Identifier: Apache-2.0
"""`penstock produce` and `penstock import`: messages from arguments, lines and files, into a topic."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from penstock.cli import contexts, output
from penstock.cli.exits import Exit, wrong

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from penstock.wire.messages import Message

_PRODUCE: Final = """\
Publish messages: those of -m, else each line of standard input. It ends with status 0 when all are
stored.
"""
_IMPORT: Final = """\
Publish the messages of a file that `penstock export` wrote: JSON lines, or CSV if its name ends in
.csv. Values, keys, properties and event times are kept; ids and publish times are new.
"""
_COMPRESSIONS: Final = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    text, run = (_PRODUCE, _produce) if name == "produce" else (_IMPORT, _import)
    parser = commands.add_parser(name, description=text)
    parser.set_defaults(run=run)
    parser.add_argument("topic", metavar="TOPIC")
    if name == "produce":
        _add_message(parser)
    else:
        parser.add_argument("file", metavar="FILE", help="- is standard input, JSON lines")
    parser.add_argument(
        "--compression", choices=list(_COMPRESSIONS), default="none", help="of payloads (default: none)"
    )
    contexts.add_options(parser)


def _add_message(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m", "--message", action="append", metavar="TEXT", help="a message; may be given several times"
    )
    parser.add_argument("--key", metavar="KEY", help="of each message")
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help="of each message")
    parser.add_argument("--event-time", metavar="TIME", help="of each message: ISO 8601, or ms since 1970")
    parser.add_argument(
        "--deliver-after", type=float, metavar="SECONDS", help="not before this time, to Shared consumers"
    )


def _produce(arguments: argparse.Namespace) -> int:
    from penstock.cli.feeds import time_ms
    from penstock.wire.messages import Message

    pairs = [one.partition("=") for one in arguments.property]
    if strange := [name for name, sign, _ in pairs if not sign]:
        raise wrong(f"--property takes NAME=VALUE, and {strange[0]!r} has no =")
    event_time_ms = time_ms(arguments.event_time) if arguments.event_time else 0
    texts = arguments.message or (line.removesuffix("\n") for line in sys.stdin)
    messages = (
        Message(
            value=text.encode("utf-8", "surrogateescape"),
            key=arguments.key,
            properties={name: value for name, _, value in pairs},
            event_time_ms=event_time_ms,
        )
        for text in texts
    )
    return _send(arguments, messages, deliver_after_s=arguments.deliver_after)


def _import(arguments: argparse.Namespace) -> int:
    with _opened(arguments.file) as file:
        return _send(arguments, read(file, arguments.file))


@contextmanager
def _opened(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdin
        return
    try:
        file = Path(name).open(encoding="utf-8", newline="" if name.endswith(".csv") else None)  # noqa: SIM115 - below
    except OSError as error:
        raise wrong(f"{name} cannot be read: {error.strerror}") from error
    with file:
        yield file


def read(file: TextIO, name: str) -> Iterator[Message]:
    """Yield the messages of a file. Raises CommandFailed, which names the line."""
    from penstock.cli.messages import message_of

    if name.endswith(".csv"):
        csv.field_size_limit(2**31 - 1)
        for number, row in enumerate(csv.DictReader(file), 2):
            where = f"line {number} of {name}"
            properties = _parsed(row.get("properties") or "{}", f"properties in {where}")
            # An empty cell of both kinds is an empty value.
            yield message_of({**row, "properties": properties, "key": row.get("key") or None}, where)
        return
    for number, line in enumerate(file, 1):
        if line.strip():
            where = f"line {number} of {name}"
            given = _parsed(line, where)
            yield message_of(given if isinstance(given, dict) else {}, where)


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise wrong(f"{where} is not JSON: {error}") from None


def _send(arguments: argparse.Namespace, messages: Iterator[Message], *, deliver_after_s: float | None = None) -> int:
    from penstock.cli.feeds import Sending, connected
    from penstock.net.clock import SystemClock

    due_ms = None if deliver_after_s is None else SystemClock().wall_ms() + round(deliver_after_s * 1000)
    with (
        connected(contexts.target(arguments)) as cluster,
        Sending(cluster, arguments.topic, compression=_COMPRESSIONS[arguments.compression]) as sending,
    ):
        for message in messages:
            sending.send(message, deliver_at_ms=due_ms)
    output.notice(f"{sending.sent:,} messages are stored in {arguments.topic}")
    return Exit.OK
