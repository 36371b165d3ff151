# SPDX-License-Identifier: Apache-2.0
"""`penstock mirror`: a broker with a bounded, read-only copy of topics of another cluster.

Why a broker of its own: who looks at production's messages at a desk wants one command, nothing to clean up, and
nothing of theirs mixed with it (docs/adr/0140-a-mirror-is-a-broker-of-its-own.md). Where: `main` calls it; `mirroring`
copies; the broker is that of `penstock serve`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli import contexts, output
from penstock.cli.dev import FREE_PORTS
from penstock.cli.exits import CommandFailed, Exit, wrong
from penstock.cli.serve import add_settings, heed_no_reload, settings_given
from penstock.core.setting import topic_or_namespace
from penstock.core.units import GIB, KIB, MIB, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.app import Serving
    from penstock.cli.contexts import Target
    from penstock.cli.mirroring import Mirror, Wanted

_DESCRIPTION: Final = """\
Run a broker on free ports with a copy of topics of another cluster, Apache Pulsar or penstock: entries
as they are there, with keys, times, properties and schemas. Nobody else may publish to them. The other
cluster sees readers, which leave no trace, at the rate that is given.
"""
_EPILOG: Final = """\
examples:
  penstock mirror --from pulsar://broker:6650 shop/orders/placed
      what was published in the last hour, in a directory that is deleted at the end (Ctrl-C)
  penstock mirror --context production shop/orders --last 2d --rate 20MB/s --max-bytes 10GB --data-dir ./orders --follow
      a whole namespace, and what is published from now on; the next start goes on where this one ends
"""
_LAST: Final = "1h"
_RATE: Final = "5MB/s"
_MAX_BYTES: Final = "1GB"
# Below this a single message could take minutes, in which nobody answers the cluster.
_RATE_MIN: Final = 64 * KIB
# Each has a connection.
_TOPICS_MAX: Final = 1_000


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(
        name,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="a topic with its partitions, or tenant/namespace with all its topics"
    )
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--last", default=_LAST, metavar="AGE", help=f"what was published since, as 90s, 15m, 2h, 1d (default: {_LAST})"
    )
    begin.add_argument(
        "--from-time", metavar="TIME", help="the same as a time, 2026-11-23T10:00:00; earliest: all that there is"
    )
    parser.add_argument("--follow", action="store_true", help="go on with what is published from now on")
    parser.add_argument(
        "--rate", default=_RATE, metavar="BYTES/s", help=f"on average; 0: as fast as can be (default: {_RATE})"
    )
    parser.add_argument(
        "--max-bytes", default=_MAX_BYTES, metavar="BYTES",
        help=f"of all copies together; the oldest messages go (default: {_MAX_BYTES})",
    )  # fmt: skip
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="keep the copy there, and go on with it (default: it is deleted)"
    )
    parser.add_argument("--quiet", action="store_true", help="do not say how far it is")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of the broker, as `serve` takes them")
    group = parser.add_argument_group("which cluster to copy from")
    group.add_argument("--from", dest="url", metavar="URL", help="where its clients connect: pulsar://HOST:PORT")
    contexts.add_credentials(group)
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until stopped; return the exit status. Raises ConfigurationError, CommandFailed."""
    from penstock import app, settings
    from penstock.storage.directory import PRIVATE

    wanted, bytes_max = _wanted(arguments), _bytes_max(arguments.max_bytes)
    target = contexts.target(arguments)
    topics, message_bytes_max = _found(target, wanted)
    flags = {**_flags(wanted, bytes_max // max(1, topics), message_bytes_max), **settings_given(arguments)}
    effective = settings.load(file=arguments.config, environment=os.environ, flags=flags)
    heed_no_reload()
    os.umask(PRIVATE)
    with ExitStack() as stack:
        where = arguments.data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-mirror-")))
        watch = _Watch(target, wanted, where, kept=arguments.data_dir is not None, quiet=arguments.quiet)
        stack.callback(watch.stop)
        return app.run(effective, where / "data", watch=watch)


class _Watch:
    """Begins to copy when the broker serves."""

    def __init__(self, target: Target, wanted: Wanted, where: Path, *, kept: bool, quiet: bool) -> None:
        """Args: kept: whether `where` outlives the command. Raises CommandFailed."""
        from penstock.cli.mirroring import Places

        where.mkdir(parents=True, exist_ok=True)
        self._places = Places(where / "mirror.json", target.url)
        self._target, self._wanted, self._kept, self._quiet = target, wanted, kept, quiet
        self._mirror: Mirror | None = None

    def __call__(self, serving: Serving) -> None:
        import asyncio

        from penstock.cli.mirroring import Mirror

        lines = greeting(self._target.url, self._wanted, serving.url, serving.admin_url, kept=self._kept)
        print("\n".join(lines), flush=True)
        self._mirror = Mirror(
            self._target,
            self._wanted,
            self._places,
            copies=serving.copies(),
            loop=asyncio.get_running_loop(),
            say=_say_nothing if self._quiet else _say,
        )
        self._mirror.start()

    def stop(self) -> None:
        """End copying, if it has begun."""
        if self._mirror is not None:
            self._mirror.stop()


def greeting(source: str, wanted: Wanted, url: str, admin_url: str, *, kept: bool) -> list[str]:
    """Return what to do with the copy, as lines for a shell."""
    first = next((name for name in wanted.names if "://" in name), f"{wanted.names[0]}/TOPIC")
    at_end = "The next start with this directory goes on." if kept else "Everything is deleted when it ends: Ctrl-C."
    return [
        "",
        f"  export PENSTOCK_URL={url} PENSTOCK_ADMIN_URL={admin_url}",
        f"  penstock tail {first} --from earliest",
        "",
        f"Copies of {source}: nobody may publish to {', '.join(wanted.names)}. {at_end}",
        "",
    ]


def _say(text: str) -> None:
    print(output.printable(text), flush=True)


def _say_nothing(text: str) -> None:
    del text


def _wanted(arguments: argparse.Namespace) -> Wanted:
    from penstock.cli.feeds import time_ms
    from penstock.cli.mirroring import Wanted

    try:
        names = tuple(dict.fromkeys(map(topic_or_namespace, arguments.names)))
    except ValueError as error:
        raise wrong(str(error)) from error
    for name in names:
        if name.startswith("non-persistent://"):
            raise wrong(f"{name} stores nothing that could be copied")
        if "," in name:
            raise wrong(f"{name} has a comma in its name; name its namespace instead")
    rate = _size("--rate", arguments.rate.removesuffix("/s"))
    if 0 < rate < _RATE_MIN:
        raise wrong(f"--rate {arguments.rate}: give {_RATE_MIN // KIB}KB/s or more, or 0 for no limit")
    since = arguments.from_time or arguments.last
    if since != "earliest":
        since = str(time_ms(since))  # An age begins now, not when each topic is found.
    return Wanted(names, since, rate, arguments.follow)


def _bytes_max(text: str) -> int:
    if (nbytes := _size("--max-bytes", text)) < MIB:
        raise wrong(f"--max-bytes {text}: give 1MB or more")
    return nbytes


def _size(flag: str, text: str) -> int:
    try:
        nbytes = parse_bytes(text)
    except ValueError as error:
        raise wrong(f"{flag}: {error}") from error
    if nbytes < 0:
        raise wrong(f"{flag} {text}: a size is 0 or more")
    return nbytes


def _found(target: Target, wanted: Wanted) -> tuple[int, int]:
    """Return how many topics there are, partitions by themselves, and the largest message. Raises CommandFailed."""
    from penstock.cli.feeds import connected
    from penstock.cli.mirroring import topics_of

    with connected(target) as cluster:
        topics = [one for parts in topics_of(cluster, wanted.names).values() for one in parts]
        if not topics and not wanted.follow:
            raise CommandFailed(f"there are no topics in {', '.join(wanted.names)} of {target.url}", Exit.NOT_FOUND)
        if len(topics) > _TOPICS_MAX:
            raise wrong(f"{len(topics):,} topics and partitions are more than {_TOPICS_MAX:,}: name fewer")
        if not topics:
            return 0, 0
        with cluster.open_topic(topics[0]) as connection:
            return len(topics), connection.message_bytes_max


def _flags(wanted: Wanted, topic_bytes_max: int, message_bytes_max: int) -> Mapping[str, str]:
    """Return the broker's settings: bounded whether its messages are consumed or not, and nobody publishes."""
    topic_bytes_max = max(MIB, min(topic_bytes_max, 1024 * GIB))
    flags = {
        **FREE_PORTS,
        "readOnlyTopics": ",".join(wanted.names),
        "brokerDeleteInactiveTopicsEnabled": "false",
        "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": str(topic_bytes_max // MIB),
        "retentionCheckIntervalInSeconds": "10",
        "backlogQuotaDefaultLimitBytes": str(topic_bytes_max),
        "backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction",
        "backlogQuotaCheckIntervalInSeconds": "10",
    }
    return flags | ({"maxMessageSize": str(message_bytes_max)} if message_bytes_max else {})
