# SPDX-License-Identifier: Apache-2.0
"""`--wait`: commands that end when their effect can be seen at all brokers, and not when it was asked for.

Why by asking again: REST says when a request is accepted, and brokers learn of each other's changes afterwards; so does
Apache Pulsar. What is asked is a question that both answer. Where: `resources`, for the commands of EFFECTS.
"""

from __future__ import annotations

import argparse
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from penstock.cli.exits import CommandFailed, Exit
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cli.contexts import Target
    from penstock.cli.rest import Rest

Json: TypeAlias = Any
# What is not as it will be, as the end of a sentence; empty if the effect is there. Raises CommandFailed.
Probe: TypeAlias = "Callable[[Rest], str]"
Position: TypeAlias = tuple[int, int]

WAIT_S: Final = 60.0
_PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# Of one question: a broker that hangs is asked again.
_TIMEOUT_S: Final = 10.0
_WAIT_S_MAX: Final = 86_400.0
# Topics of a namespace that are asked about.
_TOPICS_MAX: Final = 100
_NAMESPACES: Final = "/admin/v2/namespaces/"
_NOWHERE: Final = (-1, -2)
# Ledgers that nobody has: `latest` is the largest number.
_LATEST: Final = 1 << 62
_ENDED: Final = {"SUCCESS", "ERROR"}


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--wait`."""
    parser.add_argument(
        "--wait",
        nargs="?",
        type=_seconds,
        const=WAIT_S,
        metavar="SECONDS",
        help=f"end when all brokers show the effect (default: {WAIT_S:.0f}); status {Exit.NOT_YET:d} if not in time",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _WAIT_S_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; put --wait last, or write --wait=30")
    return seconds


def has_effect(resource: str, action: str) -> bool:
    """Return whether a command can wait."""
    return f"{resource} {action}" in EFFECTS


class Waiting:
    """One command that waits. It is made before the command is sent, for effects that are changes of a state."""

    def __init__(self, arguments: argparse.Namespace, target: Target, rest: Rest, path: str) -> None:
        """Note how it is before. Args: path: of the command's request. Raises CommandFailed."""
        from penstock.net.clock import SystemClock

        self._what = f"{arguments.resource} {arguments.action.name}"
        self._seconds: float = arguments.wait
        self._target = target
        self._now_ns = SystemClock().monotonic_ns
        self._probe = EFFECTS[self._what](rest, path, arguments)

    def wait(self, rest: Rest) -> None:
        """Return when all brokers show the effect. Raises CommandFailed: they do not in time, or it has failed."""
        from penstock.cli.rest import Rest

        end_ns = self._now_ns() + round(self._seconds * NS_PER_S)
        with ExitStack() as stack:
            left = {self._target.admin_url: rest}
            for url in _others(rest, self._target):
                left[url] = stack.enter_context(Rest(replace(self._target, admin_url=url), timeout_s=_TIMEOUT_S))
            for turn in range(1 << 30):
                seen = {url: said for url, broker in left.items() if (said := self._ask(broker))}
                if not seen:
                    return
                left = {url: left[url] for url in seen}
                if self._now_ns() >= end_ns:
                    raise CommandFailed(self._too_late(seen), Exit.NOT_YET)
                pause_s = _PAUSES_S[min(turn, len(_PAUSES_S) - 1)]
                threading.Event().wait(min(pause_s, max(0.0, (end_ns - self._now_ns()) / NS_PER_S)))

    def _ask(self, broker: Rest) -> str:
        try:
            return self._probe(broker)
        except CommandFailed as error:
            if error.status == Exit.NOT_ALLOWED or isinstance(error, _Failed):
                raise
            return str(error)

    def _too_late(self, seen: dict[str, str]) -> str:
        places = "; ".join(f"at {url} {one}" for url, one in seen.items())
        return (
            f"{self._what} was accepted, and its effect is not everywhere after {self._seconds:g} s: {places}; it may"
            " still come: look again, or give a longer --wait"
        )


class _Failed(CommandFailed):
    """Failure of what was begun, so that nothing will come."""


def _others(rest: Rest, target: Target) -> list[str]:
    """Return the URLs of the other brokers, if the caller may know them."""
    try:
        places = rest.get("/admin/v2/brokers")
    except CommandFailed:
        return []
    scheme, _, here = target.admin_url.partition("://")
    if not isinstance(places, list) or len(places) < 2:
        return []  # Alone, or behind an address of its own.
    return [f"{scheme}://{one}" for one in places if str(one) != here]


# -- effects: each returns the question to ask after the command -------------------------------------------------------


def _there(suffix: str) -> Callable[[Rest, str, argparse.Namespace], Probe]:
    def effect(_: Rest, path: str, __: argparse.Namespace) -> Probe:
        return lambda broker: "" if _get(broker, path + suffix) is not None else "it is not there"

    return effect


def _gone(suffix: str) -> Callable[[Rest, str, argparse.Namespace], Probe]:
    def effect(_: Rest, path: str, __: argparse.Namespace) -> Probe:
        return lambda broker: "" if _get(broker, path + suffix) is None else "it is still there"

    return effect


def _get(broker: Rest, path: str) -> Json:
    """Return what a path answers; None if the object is not there. Raises CommandFailed."""
    try:
        return broker.get(path) or {}
    except CommandFailed as error:
        if error.status == Exit.NOT_FOUND:
            return None
        raise


def _partitions(broker: Rest, path: str) -> int:
    """Return the number of partitions of a topic, as one broker knows it; 0 if it is not partitioned."""
    return int((_get(broker, f"{path}/partitions") or {}).get("partitions", 0))


def _topics(broker: Rest, path: str) -> list[str]:
    """Return the paths of all partitions of a topic, or its own."""
    return [f"{path}-partition-{one}" for one in range(_partitions(broker, path))] or [path]


def _partitioned(_: Rest, path: str, arguments: argparse.Namespace) -> Probe:
    """Wait for a number of partitions, which is the value, or a member of it."""
    from penstock.cli import values

    path = path.removesuffix("/partitions")
    body = values.body_of(arguments.values, next(iter(arguments.action.policies.values()))["body"], "partitions")
    wanted = int(body.get("partitions", 1) if isinstance(body, dict) else body)

    def probe(broker: Rest) -> str:
        partitions = _partitions(broker, path)
        return "" if partitions >= wanted else f"it has {partitions} partitions"

    return probe


def _not_partitioned(_: Rest, path: str, __: argparse.Namespace) -> Probe:
    path = path.removesuffix("/partitions")
    return lambda broker: "it is still there" if _partitions(broker, path) else ""


def _ended(rest: Rest, path: str, _: argparse.Namespace) -> Probe:
    """Wait for the end of a compaction or an offload, of all partitions."""
    base, task = path.rsplit("/", 1)
    paths = [f"{one}/{task}" for one in _topics(rest, base)]

    def probe(broker: Rest) -> str:
        for one in paths:
            answer = broker.get(one)
            status = str(answer.get("status"))
            if status == "ERROR":
                raise _Failed(f"{task} of {unquote(one)} failed: {answer.get('lastError') or 'the log says why'}")
            if status not in _ENDED:
                return f"{task} is {status}"
        return ""

    return probe


def _served(rest: Rest, path: str, _: argparse.Namespace) -> Probe:
    """Wait until lookups of a topic, or of the first topics of a namespace, are answered after it was unloaded."""
    path = path.removesuffix("/unload")
    topics = _of_namespace(rest, path) if path.startswith(_NAMESPACES) else _topics(rest, path)
    paths = [f"/lookup/v2/topic/{one.removeprefix('/admin/v2/')}" for one in topics]

    def probe(broker: Rest) -> str:
        for one in paths:
            if not broker.get(one):
                return f"nobody serves {unquote(one)}"
        return ""

    return probe


def _of_namespace(rest: Rest, path: str) -> list[str]:
    """Return the paths of the first topics of a namespace, given the path of a command about it."""
    from penstock.cli.values import path_part

    tenant, namespace = path.removeprefix(_NAMESPACES).split("/")[:2]
    topics = rest.get(f"/admin/v2/persistent/{tenant}/{namespace}")
    return [f"/admin/v2/{path_part('TOPIC', str(one))}" for one in topics[:_TOPICS_MAX]]


def _subscribed(_: Rest, path: str, __: argparse.Namespace) -> Probe:
    topic, name = _subscription(path)
    return lambda broker: "" if name in broker.get(f"{topic}/subscriptions") else "it is not there"


def _unsubscribed(_: Rest, path: str, __: argparse.Namespace) -> Probe:
    topic, name = _subscription(path)
    return lambda broker: "it is still there" if name in broker.get(f"{topic}/subscriptions") else ""


def _subscription(path: str) -> tuple[str, str]:
    """Return the path of the topic, and the name of the subscription, of a path within it."""
    topic, _, rest = path.partition("/subscription/")
    return topic, unquote(rest.partition("/")[0])


def _named(path: str) -> str:
    """Return the name of a topic by its path."""
    return unquote(path.removeprefix("/admin/v2/")).replace("/", "://", 1)


def _forgotten(rest: Rest, path: str, _: argparse.Namespace) -> Probe:
    """Wait until no topic of a namespace has a subscription of this name."""
    topics, name = _of_namespace(rest, path), unquote(path.rpartition("/")[2])

    def probe(broker: Rest) -> str:
        for topic in topics:
            if name in broker.get(f"{topic}/subscriptions"):
                return f"{_named(topic)} still has it"
        return ""

    return probe


def _terminated(rest: Rest, path: str, _: argparse.Namespace) -> Probe:
    topics = _topics(rest, path.removesuffix("/partitions").removesuffix("/terminate"))

    def probe(broker: Rest) -> str:
        for topic in topics:
            if (state := broker.get(f"{topic}/internalStats")["state"]) != "Terminated":
                return f"{_named(topic)} is {state}"
        return ""

    return probe


def _truncated(rest: Rest, path: str, _: argparse.Namespace) -> Probe:
    return _caught_up(rest, _topics(rest, path.removesuffix("/truncate")))


def _cleared(rest: Rest, path: str, _: argparse.Namespace) -> Probe:
    only = path.partition("/clearBacklog/")[2]
    return _caught_up(rest, _of_namespace(rest, path), unquote(only))


def _caught_up(rest: Rest, topics: list[str], only: str = "") -> Probe:
    """Wait until all subscriptions of topics, or those of one name, stand where the topics end now."""
    ends = {topic: _position(rest.get(f"{topic}/internalStats")["lastConfirmedEntry"]) for topic in topics}

    def probe(broker: Rest) -> str:
        for topic, end in ends.items():
            for name, cursor in broker.get(f"{topic}/internalStats")["cursors"].items():
                mark = _position(cursor["markDeletePosition"])
                if mark < end and only in {"", name}:
                    return f"subscription {name} of {_named(topic)} is at {mark[0]}:{mark[1]}"
        return ""

    return probe


def _skipped(rest: Rest, path: str, _: argparse.Namespace) -> Probe:
    """Wait until what was there is acknowledged: all of it, or something where a number was given."""
    base, name = _subscription(path)
    marks, ends = {}, {}
    for topic in _topics(rest, base):
        marks[topic], ends[topic] = _cursor(rest, topic, name)
    everything = path.endswith("/skip_all")

    def probe(broker: Rest) -> str:
        for topic, before in marks.items():
            mark, _ = _cursor(broker, topic, name)
            wanted = ends[topic] if everything else min(ends[topic], (before[0], before[1] + 1))
            if mark < wanted:
                return f"the subscription is at {mark[0]}:{mark[1]}"
        return ""

    return probe


def _reset(rest: Rest, path: str, arguments: argparse.Namespace) -> Probe:
    """Wait until the cursor has moved, or stands where it was reset to."""
    base, name = _subscription(path)
    before, goals = {}, {}
    for topic in _topics(rest, base):
        before[topic], end = _cursor(rest, topic, name)
        goals[topic] = _goal(rest, topic, end, arguments)

    def probe(broker: Rest) -> str:
        for topic, (low, high) in goals.items():
            mark, _ = _cursor(broker, topic, name)
            if mark == before[topic] and not low <= mark <= high:
                return f"the subscription is at {mark[0]}:{mark[1]}"
        return ""

    return probe


def _goal(rest: Rest, topic: str, end: Position, arguments: argparse.Namespace) -> tuple[Position, Position]:
    """Return from where to where a cursor may stand after a reset: of a time, or to the position of the body."""
    from penstock.cli import values

    wall_ms = getattr(arguments, "WALL_MS", None)
    if wall_ms is not None:
        found = _id(rest.get(f"{topic}/messageid/{wall_ms}"))
        return _NOWHERE, found if found[0] >= 0 else _beginning(rest, topic)
    shape = next(iter(arguments.action.policies.values()))["body"]
    body = values.body_of(arguments.values, shape, "subscriptions reset-to-position")
    ledger, entry = _id(body)
    if ledger < 0:
        return _NOWHERE, _beginning(rest, topic)
    if ledger >= _LATEST:
        return end, (_LATEST, 0)
    return _NOWHERE, (ledger, entry if body.get("excluded") else entry - 1)


def _beginning(rest: Rest, topic: str) -> Position:
    """Return where a cursor stands before the first message, wherever retention has left that."""
    first = int(rest.get(f"{topic}/internalStats")["ledgers"][0]["ledgerId"])
    return max((first, -1), _before(_id(rest.get(f"{topic}/messageid/0")), first))


def _before(position: Position, ledger: int) -> Position:
    """Return the position before this one, if it is in this ledger."""
    return (ledger, position[1] - 1) if position[0] == ledger else _NOWHERE


def _id(found: Json) -> Position:
    return int(found.get("ledgerId", -1)), int(found.get("entryId", -1))


def _cursor(broker: Rest, topic: str, name: str) -> tuple[Position, Position]:
    """Return up to where a subscription has acknowledged, and where its topic ends. Raises CommandFailed."""
    stats = broker.get(f"{topic}/internalStats")
    cursor = stats["cursors"].get(name)
    if cursor is None:
        raise CommandFailed(f"there is no subscription {name!r}", Exit.NOT_FOUND)
    return _position(cursor["markDeletePosition"]), _position(stats["lastConfirmedEntry"])


def _position(text: str) -> Position:
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)


EFFECTS: Final[dict[str, Callable[[Rest, str, argparse.Namespace], Probe]]] = {
    "clusters create": _there(""),
    "clusters delete": _gone(""),
    "groups set": _there(""),
    "groups delete": _gone(""),
    "schemas create": _there(""),
    "schemas delete": _gone(""),
    "tenants create": _there(""),
    "tenants delete": _gone(""),
    "namespaces create": _there(""),
    "namespaces delete": _gone(""),
    "namespaces unload": _served,
    "namespaces clear-backlog": _cleared,
    "namespaces clear-backlog-of-subscription": _cleared,
    "namespaces unsubscribe": _forgotten,
    "topics create": _there("/stats"),
    "topics delete": _gone("/stats"),
    "topics create-partitioned": _partitioned,
    "topics update-partitioned": _partitioned,
    "topics delete-partitioned": _not_partitioned,
    "topics unload": _served,
    "topics terminate": _terminated,
    "topics terminate-partitions": _terminated,
    "topics truncate": _truncated,
    "topics compact": _ended,
    "topics offload": _ended,
    "subscriptions create": _subscribed,
    "subscriptions delete": _unsubscribed,
    "subscriptions skip": _skipped,
    "subscriptions skip-all": _skipped,
    "subscriptions reset-to-position": _reset,
    "subscriptions reset-to-time": _reset,
}
