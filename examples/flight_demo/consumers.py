# SPDX-License-Identifier: Apache-2.0
"""The consumers: an audit that reads everything, workers who share it, and a pair of desks of which one dies.

Why: the three kinds promise different things, and each is held to exactly what it promises:

- **audit**, a Reader from the earliest message on every topic (exclusive, not durable): every flight as it was sent,
  in order, once. All flights of an airline in order means those of each key in order.
- **workers**, three consumers of one Shared subscription: every flight as it was sent, by one of them, once. Who gets
  which is the broker's choice, so there is no order to promise.
- **desks**, two consumers of one Failover subscription, and one of them is killed: together every flight as it was
  sent, in order. The survivor may see again what the other had handled and not yet acknowledged, and nothing else.

Where: each kind is one process (the desks are two). What they have done stands on the board *before* it is
acknowledged: so a flight handled twice is known, and one acknowledged but not handled would show as a gap.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pulsar

from examples.flight_demo.board import Act
from examples.flight_demo.people import wait_until
from examples.flight_demo.publisher import quiet

if TYPE_CHECKING:
    from examples.flight_demo.board import Board, Track
    from examples.flight_demo.flights import Flight, Year
    from examples.flight_demo.people import Faults

AUDIT = "audit"
WORKERS = ("worker-1", "worker-2", "worker-3")
DESKS = ("desk-a", "desk-b")


def matches(message: pulsar.Message, flight: Flight) -> bool:
    """Whether a message is this flight: payload, key and event time."""
    same: bool = (
        message.data() == flight.row
        and message.partition_key() == flight.key
        and message.event_timestamp() == flight.departs_ms
    )
    return same


class Strip:
    """One airline's flights as one participant sees them: each as it was sent, and in order."""

    def __init__(self, flights: list[Flight], index: int, track: Track, faults: Faults) -> None:
        self.flights, self.index, self.track, self.faults = flights, index, track, faults

    def take(self, message: pulsar.Message) -> None:
        """Compare a message with the flight that must come next, and count it."""
        track, index = self.track, self.index
        number = track.next[index]
        if number < len(self.flights) and matches(message, self.flights[number]):
            track.next[index] = number + 1
        else:
            track.wrong += 1
            self.faults.add(f"{message.topic_name()}: not flight {number}: {message.data()!r}")

    def begin_at(self, message: pulsar.Message, handled: int) -> None:
        """Begin with a message of which the `handled` flights before it are known to be done, or of one of those."""
        row = message.data()
        numbers = range(min(handled + 1, len(self.flights)))
        number = next((number for number in numbers if self.flights[number].row == row), None)
        if number is not None:
            self.track.first[self.index] = self.track.next[self.index] = number


# ------------------------------------------------------------------------------------------------------------- audit


def audit(url: str, year: Year, board: Board, faults: Faults) -> None:
    """Read every topic from its beginning with a Reader."""
    track = board.tracks[AUDIT]
    client = pulsar.Client(url, logger=quiet())
    for index, airline in enumerate(year.airlines):
        strip = Strip(year.by_airline[airline], index, track, faults)
        client.create_reader(
            year.topic(airline), pulsar.MessageId.earliest, reader_listener=partial(_audited, strip), reader_name=AUDIT
        )
    _stay([client], board, [track])


def _audited(strip: Strip, _reader: pulsar.Reader, message: pulsar.Message) -> None:
    strip.take(message)


# ----------------------------------------------------------------------------------------------------------- workers


class Worklist:
    """All flights not yet worked on, whichever worker gets them."""

    def __init__(self, year: Year, faults: Faults) -> None:
        self.open = {flight.row: flight for flight in year.flights}  # No two rows of the file are alike.
        self.index = {airline: index for index, airline in enumerate(year.airlines)}
        self.faults = faults

    def work(self, track: Track, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """Strike a flight off the list, then acknowledge it. `pop` lets one worker win, whatever threads they are."""
        flight = self.open.pop(message.data(), None)
        if flight is not None and matches(message, flight):
            track.next[self.index[flight.airline]] += 1
        else:
            track.wrong += 1
            self.faults.add(f"{message.topic_name()}: unknown, altered, or worked on before: {message.data()!r}")
        consumer.acknowledge(message)


def work(url: str, year: Year, board: Board, faults: Faults) -> None:
    """Share one subscription of all topics between several workers, each with a connection of its own."""
    worklist = Worklist(year, faults)
    topics = [year.topic(airline) for airline in year.airlines]
    clients = []
    for name in WORKERS:
        client = pulsar.Client(url, logger=quiet())
        clients.append(client)
        for topic in topics:
            client.subscribe(
                topic,
                "workers",
                consumer_type=pulsar.ConsumerType.Shared,
                consumer_name=name,
                initial_position=pulsar.InitialPosition.Earliest,
                message_listener=partial(worklist.work, board.tracks[name]),
            )
    _stay(clients, board, [board.tracks[name] for name in WORKERS])


# ------------------------------------------------------------------------------------------------------------- desks


class Desk:
    """One airline at one of the two desks."""

    def __init__(self, strip: Strip, other: Track) -> None:
        self.strip, self.other = strip, other
        self.idle = True

    def take(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """Handle a message, write that down, and only then acknowledge it and everything before it."""
        if self.idle:
            # The other desk wrote down what it had handled before it acknowledged it, so no flight can lie between.
            self.strip.begin_at(message, handled=self.other.next[self.strip.index])
            self.idle = False
        self.strip.take(message)
        consumer.acknowledge_cumulative(message)


def desk(url: str, name: str, year: Year, board: Board, faults: Faults) -> None:
    """Stand at one desk of the pair, until the end or until killed."""
    track, other = board.tracks[name], board.tracks[DESKS[1 - DESKS.index(name)]]
    client = pulsar.Client(url, logger=quiet())
    for index, airline in enumerate(year.airlines):
        handler = Desk(Strip(year.by_airline[airline], index, track, faults), other)
        client.subscribe(
            year.topic(airline),
            "desk",
            consumer_type=pulsar.ConsumerType.Failover,
            consumer_name=name,
            initial_position=pulsar.InitialPosition.Earliest,
            message_listener=handler.take,
        )
    _stay([client], board, [track])


def _stay(clients: list[pulsar.Client], board: Board, tracks: list[Track]) -> None:
    """Say that everything is connected, let the listeners work until the end, and go."""
    for track in tracks:
        track.ready = 1
    wait_until(lambda: board.act >= Act.END)
    for client in clients:
        client.close()
