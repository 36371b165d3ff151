# SPDX-License-Identifier: Apache-2.0
"""`penstock redrive` and `penstock copy`: messages that are sent once more.

Why acknowledge after the receipt: a command that is killed leaves a message in both topics, never in none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli import contexts, filters, output
from penstock.cli.consume import add_since, add_until, readers, until_end
from penstock.cli.exits import Exit, wrong
from penstock.core.names import parent_text
from penstock.wire.dead_letters import SUBSCRIPTION, as_it_was, origin

if TYPE_CHECKING:
    import argparse

    from penstock.cli.feeds import Feeds, Got, Sending
    from penstock.spark.client.cluster import Cluster
    from penstock.wire.messages import Message

_REDRIVE: Final = """\
Send the messages of a dead letter topic to the topic that they came from, once more, and acknowledge them
there. It ends when nothing more comes. Run twice, it sends nothing twice, unless it was killed between
a receipt and the acknowledgement.
"""
_COPY: Final = """\
Send a range of a topic's messages to another topic, with their keys, properties and event times.
"""
_SHARED: Final = 1
_IDLE_S: Final = 5.0
# Messages on their way before their receipts are waited for, and they are acknowledged.
_AT_ONCE: Final = 500


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    if name == "redrive":
        parser = commands.add_parser(name, description=_REDRIVE)
        parser.set_defaults(run=_redrive)
        parser.add_argument("topic", metavar="TOPIC", help="the dead letter topic")
        parser.add_argument("--into", metavar="TOPIC", help="where to (default: what their property REAL_TOPIC says)")
        parser.add_argument(
            "--idle", type=float, default=_IDLE_S, metavar="SECONDS",
            help=f"end when nothing came for so long (default: {_IDLE_S:g})",
        )  # fmt: skip
        parser.add_argument(
            "-s", "--subscription", default=SUBSCRIPTION, metavar="NAME", help=f"default: {SUBSCRIPTION}"
        )
    else:
        parser = commands.add_parser(name, description=_COPY)
        parser.set_defaults(run=_copy)
        parser.add_argument("topic", metavar="TOPIC")
        parser.add_argument("--into", required=True, metavar="TOPIC", help="created if it is missing")
        add_since(parser, "earliest")
        add_until(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say how many messages would be sent, and where")
    filters.add_options(parser)
    contexts.add_options(parser)


class Outgoing:
    """Sends to several topics, which are opened when they are first used; counts what is sent where."""

    def __init__(self, cluster: Cluster, *, dry_run: bool) -> None:
        self.counts: dict[str, int] = {}
        self._cluster = cluster
        self._dry_run = dry_run
        self._open: dict[str, Sending] = {}

    def send(self, message: Message, topic: str) -> None:
        """Send a message. Raises ClientError."""
        from penstock.cli.feeds import Sending

        self.counts[topic] = self.counts.get(topic, 0) + 1
        if self._dry_run:
            return
        if topic not in self._open:
            self._open[topic] = Sending(self._cluster, topic)
        self._open[topic].send(message)

    def flush(self) -> None:
        """Wait for all receipts. Raises ClientError."""
        for one in self._open.values():
            one.flush()

    def finish(self) -> None:
        """Wait for all receipts, and say what was done. Raises ClientError."""
        for one in self._open.values():
            with one:
                pass
        verb = "would be sent" if self._dry_run else "were sent"
        for topic, count in self.counts.items():
            output.notice(f"{count:,} messages {verb} to {topic}")
        if not self.counts:
            output.notice("there is nothing to send")


def _redrive(arguments: argparse.Namespace) -> int:
    from penstock.cli.feeds import Feed, Feeds, connected, subscription_body

    with connected(contexts.target(arguments)) as cluster:
        topics = cluster.partitions(arguments.topic)
        bodies = [subscription_body(one, arguments.subscription, _SHARED, earliest=True) for one in topics]
        outgoing = Outgoing(cluster, dry_run=arguments.dry_run)
        with Feeds([Feed(cluster, body.topic, body) for body in bodies]) as feeds:
            _send_on(arguments, feeds, outgoing)
            outgoing.finish()
    return Exit.OK


def _send_on(arguments: argparse.Namespace, feeds: Feeds, outgoing: Outgoing) -> None:
    """Send what comes until nothing more does. Raises CommandFailed, ClientError."""
    chosen = filters.chosen(arguments)
    sent: list[Got] = []
    for got in feeds.messages(idle_s=arguments.idle):
        if got is None or len(sent) >= _AT_ONCE:
            _acknowledge(sent, outgoing, dry_run=arguments.dry_run)
        if got is not None and chosen(got.message):
            outgoing.send(as_it_was(got.message), _destination(got.message, arguments.into))
            sent.append(got)
    _acknowledge(sent, outgoing, dry_run=arguments.dry_run)


def _acknowledge(sent: list[Got], outgoing: Outgoing, *, dry_run: bool) -> None:
    """Wait until all is stored, then acknowledge where it came from."""
    outgoing.flush()
    for got in () if dry_run else sent:
        # Clients send dead letters one by one. If somebody sent batches, a part of one is sent again after a crash.
        if got.is_last:
            got.feed.acknowledge(got.entry)
    sent.clear()


def _destination(message: Message, into: str | None) -> str:
    topic = parent_text(into) if into else origin(message)
    if topic is None:
        raise wrong(f"message {message.id} of {message.topic} does not say where it came from: give --into TOPIC")
    return topic


def _copy(arguments: argparse.Namespace) -> int:
    from penstock.cli.feeds import connected

    chosen = filters.chosen(arguments)
    with connected(contexts.target(arguments)) as cluster:
        outgoing = Outgoing(cluster, dry_run=arguments.dry_run)
        with readers(cluster, arguments.topic, arguments.since) as feeds:
            for message in until_end(cluster, feeds, arguments.to):
                if chosen(message):
                    outgoing.send(message, arguments.into)
        outgoing.finish()
    return Exit.OK
