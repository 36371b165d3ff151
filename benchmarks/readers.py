# SPDX-License-Identifier: Apache-2.0
"""Readers at ten places of one backlog at once, while publishing and a consumer at the end go on.

Why: catching up is fast where nobody else needs the disk and the processor. What it does to those who are at the end of
the topic, and what several readers do to each other, only shows when they are there together.
Where: `run` starts it for the loads whose `tool` it is; `options` say how many `readers` and what `rate` is published.
"backlog" stores the entries and leaves a subscription at each place; "catch-up" reads from all of them. The figure is
what all readers get together; the latency is that of the consumer at the end. Processor time is per entry delivered.
"""

from __future__ import annotations

import json
import selectors
import time
from contextlib import ExitStack, closing
from dataclasses import replace

from benchmarks.client import Client
from benchmarks.crowd import Driver
from benchmarks.crowd_frames import DeliveryScanner
from benchmarks.generator import Consumer, Publisher, drain, pump, step
from benchmarks.measure import Figures, Load, Reading, parse_load, percentiles, wait_for_first
from penstock.cli.bench_frames import LAP, Block
from penstock.wire import codec
from penstock.wire.client.consumer import Consumer as Opened


class Reader:
    """A consumer of the raw generator, as the driver of the live topic polls its connections."""

    def __init__(self, consumer: Consumer) -> None:
        self.receive = consumer.receive
        self.deliveries = DeliveryScanner([])


def backlog(load: Load) -> Figures:
    """Publish the backlog in as many parts as there are readers, and subscribe at the beginning of each."""
    readers = int(load.options["readers"])
    # Whole laps, so that every reader's first entry is the first of a block.
    part = max(1, load.entries // readers // LAP) * LAP
    with selectors.DefaultSelector() as selector:
        publisher = Publisher(load, 0)
        with closing(publisher.client):
            selector.register(publisher.client, selectors.EVENT_READ, publisher)
            start = Reading.take(load, 0)
            for row in range(readers):
                with closing(Client(load.port)) as client:
                    body = codec.CommandSubscribe(
                        topic=load.topic,
                        subscription=f"reader-{row}",
                        subType=codec.CommandSubscribe.Exclusive,
                        consumer_id=0,
                        request_id=0,
                        initialPosition=codec.CommandSubscribe.Latest,
                    )
                    client.look_up(load.topic)
                    client.insist(lambda body=body, client=client: client.connection.subscribe(Opened(body)))  # type: ignore[misc]
                upto = part * (row + 1)

                def turn(upto: int = upto) -> None:
                    pump(selector, publisher, upto)
                    step(selector, 0.05)

                drain(lambda upto=upto: publisher.receipts.count == upto, turn, "receipts")  # type: ignore[misc]
            return start.until(Reading.take(load, part * readers), load)


def catch_up(load: Load) -> Figures:
    """Read from all places until the time is over, beside a publisher and a consumer on a topic of their own."""
    readers, rate = int(load.options["readers"]), int(load.options["rate"])
    entries = Block.make(load.shape, load.seed).entries
    part = max(1, load.entries // readers // LAP) * LAP
    with ExitStack() as stack:
        live = Driver(replace(load, topic=f"{load.topic}-live", options={"rate": rate}), stack)
        live.open()
        consumers = [Consumer(load, entries, f"reader-{row}") for row in range(readers)]
        for consumer in consumers:
            stack.enter_context(closing(consumer.client))
            live.selector.register(consumer.client, selectors.EVENT_READ, Reader(consumer))
        live.since_ns = time.monotonic_ns()
        live.at_rate(load.seconds * 0.25)
        for consumer in consumers:
            consumer.start()
        live.latencies_ns.clear()
        start = Reading.take(load, live.consumed)
        wanted = [part * (readers - row) for row in range(readers)]
        live.at_rate(load.seconds, lambda: all(c.messages.count >= n for c, n in zip(consumers, wanted, strict=True)))
        wait_for_first(lambda: any(consumer.messages.count for consumer in consumers), live.poll)
        read = sum(consumer.messages.count for consumer in consumers)
        end = Reading.take(load, live.consumed + read)
        live.finish()
    figures = start.until(end, load)
    return figures | {
        "read entries/s": read / (end.at_s - start.at_s),
        **{
            f"tail {name} ms": value
            for name, value in percentiles(sorted(ns / 1e6 for ns in live.latencies_ns)).items()
        },
    }


def main() -> None:
    """Drive one load and print its result."""
    mode, load = parse_load()
    print(json.dumps({"backlog": backlog, "catch-up": catch_up}[mode](load)))


if __name__ == "__main__":
    main()
