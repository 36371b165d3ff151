# SPDX-License-Identifier: Apache-2.0
"""The columns of the table beside penstock: other brokers and the machine itself, and which loads each of them has.

Why: a load is measured where it means the same. What a broker has no equivalent of is no figure of its, so that its
column says "–" there.
Where: `run` with `--peer`. Benchmarks of Pulsar's protocol alone have their peer from `brokers`.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks import kafka_generator, nats_generator
from benchmarks.brokers import setups
from benchmarks.kafka_peer import ARTIFACT, kafka
from benchmarks.limit_peer import machine
from benchmarks.loads import CATCH_UP, PENSTOCK_WARM_UP_S, PLAIN, PLANS, WARM_UP, WARM_UP_S
from benchmarks.nats_peer import find_server, nats
from benchmarks.pulsar_peer import fetch
from benchmarks.report import BEFORE, KAFKA, KAFKA_SYNC, LIMIT, NATS, NATS_SYNC, PEER, PENSTOCK
from benchmarks.subjects import Driver

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Mapping

    from benchmarks.brokers import Launch

# What `--peer` names, and the columns it stands for.
NAMED: Final[Mapping[str, tuple[str, ...]]] = {
    PEER: (PEER,),
    "nats": (NATS, NATS_SYNC),
    "kafka": (KAFKA, KAFKA_SYNC),
    "limit": (LIMIT,),
}

_SENT: Final = frozenset((
    "publish-1k-w1000",
    "publish-1k-w20000",
    "publish-1k-50-producers",
    "publish-1k-50-connections",
    "publish-128k",
    "latency-1k",
))  # fmt: skip
_TAILS: Final = frozenset(("tail-1k", "tail-1k-3-subscriptions", "tail-128k"))
_READ: Final = frozenset(("catch-up-1k", "catch-up-1k-cold", "catch-up-128k", "catch-up-128k-cold"))
_BATCHED: Final = frozenset(("publish-100b-batched", "publish-1k-batched"))
_SHARED: Final = frozenset(("fan-out-exclusive", "fan-out-shared-1", "fan-out-shared-10"))
_MORE_SHARED: Final = frozenset(("fan-out-shared-10-single-acks", "fan-out-ten-exclusive", "fan-out-ten-shared"))
_PROCESS: Final = frozenset(("start", "idle", "peak", *(plan.name for plan in WARM_UP)))
# Reading costs the same whether what is read was synced at once; and a backlog takes minutes to make with syncs.
_READS: Final = frozenset(plan.name for plan in (*PLANS, *WARM_UP) if plan.mode == CATCH_UP)
_NATS: Final = _SENT | _TAILS | _READ | _SHARED | _MORE_SHARED | _PROCESS
_KAFKA: Final = _SENT | _TAILS | _READ | _BATCHED | {"catch-up-100b-batched"} | _PROCESS

_NATS_DRIVER: Final = Driver("nats_generator", _NATS, nats_generator.acknowledge_one, PENSTOCK_WARM_UP_S)
_KAFKA_DRIVER: Final = Driver("kafka_generator", _KAFKA, kafka_generator.acknowledge_one, WARM_UP_S)
_LIMIT_LOADS: Final = _SENT | {"tail-1k", "tail-128k"} | _READ | _BATCHED | _SHARED


class Contender(NamedTuple):
    """One column: how its broker is started for each set-up of loads, driven, and fetched if it is not here yet."""

    setups: Mapping[str, Launch]
    driver: Driver
    fetch: Callable[[], object] = lambda: None


OTHERS: Final[Mapping[str, Contender]] = {
    NATS: Contender({PLAIN: nats}, _NATS_DRIVER, find_server),
    NATS_SYNC: Contender({PLAIN: partial(nats, sync=True)}, _NATS_DRIVER.without(_READS), find_server),
    KAFKA: Contender({PLAIN: kafka}, _KAFKA_DRIVER, partial(fetch, ARTIFACT)),
    KAFKA_SYNC: Contender({PLAIN: partial(kafka, sync=True)}, _KAFKA_DRIVER.without(_READS), partial(fetch, ARTIFACT)),
    LIMIT: Contender({PLAIN: machine}, Driver("limit_generator", _LIMIT_LOADS, lambda _port: None)),
}


def add_peers_option(parser: ArgumentParser) -> None:
    """Let the command line name peers."""
    parser.add_argument(
        "--peer",
        type=columns_named,
        default=(),
        metavar="PEERS",
        help=f"measure these in the same run, several with commas: {', '.join(NAMED)}",
    )


def columns_named(text: str) -> tuple[str, ...]:
    """The columns that a list of peers stands for. Raises ArgumentTypeError."""
    unknown = [name for name in text.split(",") if name not in NAMED]
    if unknown:
        raise ArgumentTypeError(f"no peer is named {unknown[0]!r}; there are {', '.join(NAMED)}, several with commas")
    return tuple(dict.fromkeys(column for name in text.split(",") for column in NAMED[name]))


def contenders(options: Namespace) -> dict[str, Contender]:
    """All columns that the command line names, penstock's first."""
    found = {PENSTOCK: Contender(setups(PENSTOCK), Driver())}
    if options.before:
        found[BEFORE] = Contender(setups(BEFORE, options.before), Driver())
    for name in options.peer:
        found[name] = OTHERS.get(name) or Contender(setups(name), Driver(warm_up_s=WARM_UP_S), fetch)
    return found
