# SPDX-License-Identifier: Apache-2.0
"""What must come out: the hours of every airline, added up from the file by a few lines of plain Python.

Why: that two of Spark's queries agree proves little if both begin with the same mistake.
Where: `analysis` compares the pipeline's tables, and what the official client reads from the topic, with this.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pulsar

from examples.flight_demo.findings import LATE_MIN, NONE, Delays
from examples.flight_demo.flights import NOT_RECORDED
from examples.flight_demo.publisher import quiet

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.flight_demo.flights import Year

MS_PER_HOUR: Final = 3_600_000
DELAY_AT: Final = 5  # the field of a line that holds the delay at departure
# The reader asks again after this long; as long without a message, and nothing more will come.
PATIENCE_MS: Final = 5_000
DRAW_EVERY: Final = 5_000

Hours = dict[tuple[str, int], Delays]  # (airline, beginning of the hour in milliseconds since 1970)


def add_up(year: Year) -> Hours:
    """Each airline's flights and delays in each hour."""
    sums: dict[tuple[str, int], list[int]] = {}
    for flight in year.flights:
        key = (flight.airline, flight.departs_ms // MS_PER_HOUR * MS_PER_HOUR)
        numbers = sums.setdefault(key, list(NONE))
        numbers[0] += 1
        recorded = flight.row.split(b",", DELAY_AT + 1)[DELAY_AT].decode()
        if recorded != NOT_RECORDED:
            delay_min = int(recorded)
            numbers[1] += 1
            numbers[2] += delay_min >= LATE_MIN
            numbers[3] += delay_min
    return {key: Delays(*numbers) for key, numbers in sums.items()}


def checksum(year: Year) -> int:
    """The sum of the checksums of all messages: what Spark read adds up to the same, or is something else."""
    return sum(zlib.crc32(flight.row) for flight in year.flights)


@dataclass(slots=True)
class ReadBack:
    """What the official client found in the topic: hours, and messages that were there before or belong nowhere."""

    hours: Hours = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0

    def take(self, message: pulsar.Message) -> None:
        """Note one message; what it says must agree with its key, and no hour may come twice."""
        numbers = json.loads(message.data())
        airline = numbers.pop("airline")
        key = (airline, message.event_timestamp())
        if key in self.hours or message.partition_key() != airline:
            self.wrong.append(f"{message.partition_key()} at {message.event_timestamp()}: {message.data()!r}")
        self.hours[key] = Delays(**numbers)


def read_back(url: str, topic: str, wanted: int, draw: Callable[[int], None]) -> ReadBack:
    """Read a topic from its beginning with the official client, until nothing comes any more."""
    found, begun_s = ReadBack(), time.monotonic()
    client = pulsar.Client(url, logger=quiet())
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while len(found.hours) < wanted or reader.has_message_available():
            found.take(reader.read_next(PATIENCE_MS))
            if len(found.hours) % DRAW_EVERY == 0:
                draw(len(found.hours))
    except pulsar.Timeout:
        found.wrong.append(f"after {len(found.hours):,} of {wanted:,} hours nothing came for {PATIENCE_MS} ms")
    finally:
        client.close()
    found.elapsed_s = time.monotonic() - begun_s
    return found
