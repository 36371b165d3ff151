# SPDX-License-Identifier: Apache-2.0
"""`penstock dev`: a broker on free ports that forgets everything at its end, and says what happens on it.

Where: `main` calls it. `changes` is pure; the broker is that of `penstock serve`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli import output
from penstock.cli.serve import add_settings, heed_no_reload, settings_given

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.app import Serving
    from penstock.broker.stats.snapshot import BrokerSnapshot, TopicSnapshot

_DESCRIPTION: Final = """\
Run a broker to try things with: on free ports, in a directory that is deleted at its end (Ctrl-C).
It prints its addresses, then each second what has changed: topics, clients, messages, backlogs.
"""
# As penstock.testing: small, enough to try things. Its own lines say what happens; the log only what is wrong.
FREE_PORTS: Final = {"brokerServicePort": "0", "webServicePort": "0", "memoryLimitMB": "512", "logLevel": "warning"}
_EVERY_S: Final = 1.0


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(
        name,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings as key=value lines, as `serve` takes them"
    )
    parser.add_argument("--quiet", action="store_true", help="do not say what happens")
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until stopped; return the exit status. Raises ConfigurationError."""
    from penstock import app, settings

    flags = {**FREE_PORTS, **settings_given(arguments)}
    effective = settings.load(file=arguments.config, environment=os.environ, flags=flags)
    heed_no_reload()

    def watch(serving: Serving) -> None:
        print("\n".join(greeting(serving.url, serving.admin_url)), flush=True)
        if not arguments.quiet:
            _tell_changes(serving)

    with tempfile.TemporaryDirectory(prefix="penstock-dev-") as where:
        return app.run(effective, Path(where) / "data", watch=watch)


def greeting(url: str, admin_url: str) -> list[str]:
    """Return what to do with the broker, as lines for a shell."""
    return [
        "",
        f"  export PENSTOCK_URL={url} PENSTOCK_ADMIN_URL={admin_url}",
        "  penstock produce hello -m world",
        "  penstock tail hello --from earliest",
        "",
        "Everything is deleted when it ends: Ctrl-C.",
        "",
    ]


def _tell_changes(serving: Serving) -> None:
    """Print each second what has changed, on the running loop, until it ends."""
    import asyncio

    async def tell() -> None:
        before: Mapping[str, TopicSnapshot] = {}
        while True:
            now = topics_of(await serving.look())
            for line in changes(before, now):
                print(output.printable(line), flush=True)
            before = now
            await asyncio.sleep(_EVERY_S)

    _telling.append(asyncio.get_running_loop().create_task(tell()))


# The loop keeps only weak references to its tasks.
_telling: list[object] = []


def topics_of(seen: BrokerSnapshot) -> dict[str, TopicSnapshot]:
    """Return the topics of a snapshot by name."""
    return {topic.name: topic for topic in seen.topics}


def changes(before: Mapping[str, TopicSnapshot], now: Mapping[str, TopicSnapshot]) -> Iterator[str]:
    """Yield a line for each topic that is new, gone, or has other clients or messages than before."""
    for name, topic in now.items():
        parts = list(_changes_of(before.get(name), topic))
        if parts:
            yield f"{name}  {', '.join(parts)}"
    for name in before.keys() - now.keys():
        yield f"{name}  gone"


def _changes_of(before: TopicSnapshot | None, now: TopicSnapshot) -> Iterator[str]:
    if before is None:
        yield "new"
    if now.producers != (before.producers if before else 0):
        yield _counted(now.producers, "producer")
    if came := now.messages_in - (before.messages_in if before else 0):
        yield f"{came:+,} in"
    if went := now.messages_out - (before.messages_out if before else 0):
        yield f"{went:+,} out"
    known = {one.name: one for one in before.subscriptions} if before else {}
    for one in now.subscriptions:
        old = known.get(one.name)
        if old is None or (old.consumers, old.backlog) != (one.consumers, one.backlog):
            yield f"subscription {one.name} ({_counted(one.consumers, 'consumer')}, backlog {one.backlog:,})"
    for gone in known.keys() - {one.name for one in now.subscriptions}:
        yield f"subscription {gone} gone"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
