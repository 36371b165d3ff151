# SPDX-License-Identifier: Apache-2.0
"""`penstock bench`: how fast a broker takes and delivers messages, and how long they wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from penstock.cli import contexts, output
from penstock.cli.exits import Exit, wrong
from penstock.core.units import parse_bytes

if TYPE_CHECKING:
    import argparse

    from penstock.cli.bench_load import Histogram, Measured, Plan

_DESCRIPTION: Final = """\
Measure a broker, of penstock or Apache Pulsar. `publish` sends messages of random bytes and times
their receipts; `end-to-end` also reads them; `consume` reads a topic from its beginning until its
end, and leaves no trace. The client is one thread, whose part of a processor is printed: near 1.0,
it was what was measured.
"""
_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
_PACED_PER_S: Final = 1_000.0
_LOADS: Final = ("publish", "consume", "end-to-end")
_OPTIONS: Final = (
    ("--seconds", float, 10.0, "N", "to measure, after a warm-up of a tenth"),
    ("--size", str, "1KiB", "BYTES", "of a message, give or take a tenth"),
    ("--batch", int, 1, "N", "messages of an entry"),
    ("--window", int, 1_000, "N", "entries that may wait for their receipts"),
    ("--producers", int, 1, "N", "of publish, each with a connection of its own"),
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION)
    parser.set_defaults(run=_run)
    parser.add_argument("load", choices=_LOADS, metavar="LOAD", help=", ".join(_LOADS))
    parser.add_argument("topic", metavar="TOPIC", help="made if it is not there; what is published stays, as it says")
    for flag, kind, default, metavar, text in _OPTIONS:
        parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=f"{text} (default: {default})")
    parser.add_argument(
        "--rate",
        type=float,
        metavar="N",
        help="messages per second, timed from when each is due (default: as many as the window lets; "
        f"end-to-end: {_PACED_PER_S:g})",
    )
    output.add_option(parser)
    contexts.add_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    """Drive one load and print its figures. Raises CommandFailed."""
    from penstock.cli import bench_load
    from penstock.cli.feeds import connected
    from penstock.net.clock import SystemClock

    plan = _plan(arguments)
    clock, topic = SystemClock(), arguments.topic
    with connected(contexts.target(arguments)) as cluster:
        topics = cluster.partitions(topic, create=arguments.load != "consume")
        if arguments.load == "consume":
            measured = bench_load.consume(cluster, topics, plan.seconds, clock, time.process_time_ns)
        elif arguments.load == "publish":
            measured = bench_load.publish(cluster, topics, plan, clock, time.process_time_ns)
        elif len(topics) > 1:
            raise wrong(
                f"end-to-end is for one topic, and {topic} is partitioned: name a partition, such as {topics[0]}"
            )
        else:
            measured = bench_load.end_to_end(cluster, topics[0], plan, clock, time.process_time_ns)
    messages = 0 if arguments.load == "consume" else plan.shape.messages
    output.show(_figures(measured, messages, buckets=arguments.output != "table"), arguments.output)
    return Exit.OK


def _plan(arguments: argparse.Namespace) -> Plan:
    """Raises CommandFailed."""
    from penstock.cli.bench_frames import Shape
    from penstock.cli.bench_load import Plan

    try:
        size = parse_bytes(arguments.size)
    except ValueError as error:
        raise wrong(f"--size: {error}") from error
    rate = arguments.rate if arguments.rate is not None else _PACED_PER_S if arguments.load == "end-to-end" else 0.0
    least = {"size": (size, 1), "batch": (arguments.batch, 1), "window": (arguments.window, 1),
             "producers": (arguments.producers, 1), "rate": (rate, 0), "seconds": (arguments.seconds, 0.1)}  # fmt: skip
    for name, (value, bound) in least.items():
        if value < bound:
            raise wrong(f"--{name} {value:g}: want at least {bound:g}")
    if arguments.producers > 1 and arguments.load != "publish":
        raise wrong(f"--producers is for publish; {arguments.load} has one connection for each partition")
    shape = Shape(size, arguments.batch)
    return Plan(shape, arguments.seconds, rate / arguments.batch, arguments.window, arguments.producers)


def _figures(measured: Measured, messages: int, *, buckets: bool) -> dict[str, Any]:
    """Figures to print; `messages` of an entry, 0 if others have published them."""
    figures: dict[str, Any] = {"seconds": round(measured.seconds, 3), "entries": measured.entries}
    if messages > 1:
        figures["messagesPerSecond"] = round(measured.entries * messages / measured.seconds, 1)
    figures["entriesPerSecond"] = round(measured.entries / measured.seconds, 1)
    figures["megabytesPerSecond"] = round(measured.nbytes / measured.seconds / 1e6, 2)
    figures["clientCores"] = round(measured.cores, 2)
    for name, histogram in (("receiptMs", measured.receipts), ("endToEndMs", measured.arrivals)):
        if histogram is not None:
            figures[name] = _percentiles(histogram)
            if buckets:
                figures[name]["histogram"] = histogram.rows()
    return figures


def _percentiles(histogram: Histogram) -> dict[str, Any]:
    found = histogram.milliseconds(_SHARES.values())
    return {name: round(at_ms, 3) for name, at_ms in zip(_SHARES, found, strict=False)}
