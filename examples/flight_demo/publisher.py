# SPDX-License-Identifier: Apache-2.0
"""The publisher: one producer for each airline, all flights of the year in the order they left, in a minute or so.

Why: time is compressed, not thrown away. A day takes a sixth of a second, with its empty night and its two rush hours,
so the broker sees bursts at ten times the mean rate, as brokers do.
Where: a process of its own; its track says how many receipts came, and in which order.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pulsar

from examples.flight_demo.board import Act
from examples.flight_demo.people import wait_until

if TYPE_CHECKING:
    from examples.flight_demo.board import Board, Track
    from examples.flight_demo.flights import Year
    from examples.flight_demo.people import Faults

NAME = "publisher"
# Messages of one producer without a receipt; a full window makes the next send wait.
WINDOW = 1_000
# What the client waits for company in a batch: about the least a receipt can take.
BATCH_DELAY_MS = 5
# Shorter waits are not worth asking the system for.
NAP_S = 0.001
RECEIPTS_TIMEOUT_S = 60.0


def quiet() -> pulsar.FileLogger:
    """A logger for the client's own messages: what matters reaches the demo as a failed check."""
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")


class Receipts:
    """Counts one airline's receipts: they must come for every flight, in order, and none may be an error."""

    def __init__(self, airline: str, index: int, track: Track, faults: Faults) -> None:
        self.airline, self.index, self.track, self.faults = airline, index, track, faults

    def received(self, number: int, result: pulsar.Result, _message_id: object) -> None:
        """Called by the client when the broker has answered for flight `number`."""
        track, index = self.track, self.index
        if result != pulsar.Result.Ok or number != track.next[index]:
            track.wrong += 1
            self.faults.add(f"{self.airline}: receipt {number} is {result}, expected that of {track.next[index]}")
        track.next[index] = number + 1


def publish(url: str, year: Year, board: Board, duration_s: float, faults: Faults) -> None:
    """Publish all flights within `duration_s`, as the clock of 2013 says; late ones go as fast as they can."""
    track = board.tracks[NAME]
    client = pulsar.Client(url, logger=quiet())
    receipts = {airline: Receipts(airline, i, track, faults) for i, airline in enumerate(year.airlines)}
    producers = {airline: _producer(client, year.topic(airline), airline) for airline in year.airlines}
    track.ready = 1
    wait_until(lambda: board.act >= Act.BEGIN)
    _replay(year, producers, receipts, duration_s)
    for producer in producers.values():
        producer.flush()
    wait_until(lambda: track.handled == len(year.flights), RECEIPTS_TIMEOUT_S)
    wait_until(lambda: board.act >= Act.END)
    client.close()


def _producer(client: pulsar.Client, topic: str, airline: str) -> pulsar.Producer:
    return client.create_producer(
        topic,
        producer_name=airline,
        max_pending_messages=WINDOW,
        block_if_queue_full=True,
        batching_enabled=True,
        batching_max_publish_delay_ms=BATCH_DELAY_MS,
    )


def _replay(
    year: Year, producers: dict[str, pulsar.Producer], receipts: dict[str, Receipts], duration_s: float
) -> None:
    begin_ms, end_ms = year.flights[0].departs_ms, year.flights[-1].departs_ms
    s_per_ms = duration_s / max(1, end_ms - begin_ms)
    numbers = dict.fromkeys(producers, 0)
    started_s = time.monotonic()
    for airline, key, departs_ms, row in year.flights:
        wait_s = started_s + (departs_ms - begin_ms) * s_per_ms - time.monotonic()
        if wait_s > NAP_S:
            time.sleep(wait_s)
        number = numbers[airline]
        numbers[airline] = number + 1
        answered = partial(receipts[airline].received, number)
        producers[airline].send_async(row, answered, partition_key=key, event_timestamp=departs_ms)
