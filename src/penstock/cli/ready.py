# SPDX-License-Identifier: Apache-2.0
"""`penstock ready URL`: waits until a broker really serves, and says what was tried.

At a client's port: a message is published to a non-persistent topic of its own and read back, which leaves nothing
behind; where that is not allowed or not there, a lookup must be answered. At an admin port: its health.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from penstock.cli import contexts
from penstock.cli.exits import CommandFailed, Exit
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    import argparse

    from penstock.cli.contexts import Target
    from penstock.spark.client.cluster import Cluster

_DESCRIPTION: Final = """\
Wait until a broker serves: at pulsar:// until a message was published and read back (or, where this
is not allowed, until a topic was looked up), at http:// until it says that it is healthy.
"""
_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.1
# Of one attempt, so that one that hangs does not use up the whole time.
_ATTEMPT_S: Final = 5.0
# The first is penstock's. Apache Pulsar has the others; not every role may ask for its own test of itself.
_HEALTH: Final = ("/healthz", "/admin/v2/brokers/health", "/status.html")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION)
    parser.set_defaults(run=_run)
    parser.add_argument(
        "address", nargs="?", metavar="URL", help="pulsar://HOST:PORT or http://HOST:PORT (default: --url)"
    )
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, metavar="SECONDS", help=f"default: {_TIMEOUT_S:g}")
    parser.add_argument("--namespace", default="public/default", metavar="NAMESPACE", help="default: public/default")
    contexts.add_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    """Try until it works or the time is over; print what worked. Raises CommandFailed."""
    from penstock.net.clock import SystemClock

    if arguments.address:
        name = "admin_url" if arguments.address.startswith("http") else "url"
        setattr(arguments, name, arguments.address)
    target = contexts.target(arguments)
    by_http = (arguments.address or "").startswith("http")
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + round(arguments.timeout * NS_PER_S)
    while True:
        left_s = max(_PAUSE_S, (deadline_ns - clock.monotonic_ns()) / NS_PER_S)
        try:
            attempt_s = min(left_s, _ATTEMPT_S)
            print(healthy(target, attempt_s) if by_http else served(target, arguments.namespace, attempt_s))
            return Exit.OK
        except CommandFailed as error:
            if error.status in {Exit.USAGE, Exit.NOT_ALLOWED} or clock.monotonic_ns() >= deadline_ns:
                raise CommandFailed(f"not ready after {arguments.timeout:g} s: {error}", error.status) from error
        threading.Event().wait(_PAUSE_S)


def healthy(target: Target, timeout_s: float) -> str:
    """Return which page says that the broker is healthy. Raises CommandFailed: none does."""
    from penstock.cli.rest import Rest

    with Rest(target, timeout_s=timeout_s) as rest:
        for path in _HEALTH:
            try:
                rest.ask("GET", path)
            except CommandFailed as error:
                if path == _HEALTH[-1] or error.status not in {Exit.NOT_FOUND, Exit.NOT_ALLOWED}:
                    raise
            else:
                return f"ready: {target.admin_url}{path} says so"
    raise AssertionError


def served(target: Target, namespace: str, timeout_s: float) -> str:
    """Return what worked: a round trip, or a lookup. Raises CommandFailed: neither did."""
    from penstock.cli.feeds import connected
    from penstock.spark.client.errors import Refused

    topic = f"non-persistent://{namespace}/penstock-ready-{os.urandom(6).hex()}"
    with connected(target, wait_s=timeout_s) as cluster:
        cluster.owner(topic)
        try:
            _round_trip(cluster, topic, timeout_s)
        except Refused as error:
            if error.may_pass:
                raise
            return f"ready: {target.url} answers lookups; no round trip, because {error.said.rstrip('.')}"
    return f"ready: {target.url} has passed a message on"


def _round_trip(cluster: Cluster, topic: str, timeout_s: float) -> None:
    """Publish a message and read it. Raises ClientError; CommandFailed: it does not come."""
    from penstock.cli.feeds import Feed, Feeds, Sending, subscription_body
    from penstock.wire.messages import Message

    with Feeds([Feed(cluster, topic, subscription_body(topic, "ready", 0, earliest=False))]) as feeds:
        with Sending(cluster, topic, send_timeout_s=timeout_s) as sending:
            sending.send(Message(value=b"ready"))
        for got in feeds.messages(idle_s=timeout_s):
            if got is not None:
                return
    raise CommandFailed(f"a message that was published was not delivered within {timeout_s:g} s", Exit.NO_ANSWER)
