# SPDX-License-Identifier: Apache-2.0
"""Catch-up on topics whose entries alternate in the log, as they do in life.

Why: one topic alone is read in large pieces. Where fifty topics were written in turns, or each entry had a sync of its
own, the entries of a topic are apart, and what a read costs is something else.
Where: `run` starts it for the loads whose `tool` it is. The backlog is that of the raw generator, with a producer for
each topic; a window of 1 gives each entry a sync of its own. Of `options`, `consumers` of subscriptions of their own
read the topics in turn, `readers` of them at the same time; `filler` entries of another topic come first, because
penstock empties a segment of which little is in use after a restart, and sorts its entries in doing so.
"""

from __future__ import annotations

import json
import selectors
import time
from contextlib import ExitStack, closing
from dataclasses import replace

from benchmarks import generator
from benchmarks.generator import Consumer, step
from benchmarks.measure import Figures, Load, Reading, parse_load, wait_for_first
from penstock.cli.bench_frames import Block


def backlog(load: Load) -> Figures:
    """Publish the filler at full speed, then the backlog."""
    if filler := int(load.options.get("filler", 0)):
        generator.backlog(replace(load, topic=f"{load.topic}-filler", producers=1, window=1_000, entries=filler))
    return generator.backlog(load)


def catch_up(load: Load) -> Figures:
    """Read the backlog of each topic from its beginning, until all consumers have theirs or the time is over."""
    readers, count = int(load.options["readers"]), int(load.options["consumers"])
    topics, entries = load.topics(0), Block.make(load.shape, load.seed, load.producers).entries
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        consumers: list[Consumer] = []
        for row in range(count):
            at = row % load.producers
            consumer = Consumer(replace(load, topic=topics[at]), entries[at :: load.producers], f"catch-up-{row}")
            stack.enter_context(closing(consumer.client))
            selector.register(consumer.client, selectors.EVENT_READ, consumer)
            consumers.append(consumer)
        start = Reading.take(load, 0)
        waiting, reading = consumers[::-1], set[Consumer]()
        end_s = start.at_s + load.seconds
        while (waiting or reading) and time.monotonic() < end_s:
            while waiting and len(reading) < readers:
                waiting[-1].start()
                reading.add(waiting.pop())
            step(selector, 0.05)
            reading = {one for one in reading if one.messages.count < load.entries // load.producers}
        wait_for_first(lambda: any(one.messages.count for one in consumers), lambda: step(selector, 0.05))
        end = Reading.take(load, sum(consumer.messages.count for consumer in consumers))
    return start.until(end, load)


def main() -> None:
    """Drive one load and print its result."""
    mode, load = parse_load()
    print(json.dumps({"backlog": backlog, "catch-up": catch_up}[mode](load)))


if __name__ == "__main__":
    main()
