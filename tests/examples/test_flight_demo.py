# SPDX-License-Identifier: Apache-2.0
"""The demo's own judgement: a check that cannot fail proves nothing."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from benchmarks.process import parse_metrics
from examples.flight_demo import flooders
from examples.flight_demo.board import Act, Board, Track
from examples.flight_demo.consumers import DESKS, WORKERS, Desk, Strip, Worklist
from examples.flight_demo.flights import Flight, Year, parse, read_flights
from examples.flight_demo.people import Crew, Faults, wait_until
from examples.flight_demo.replay import Replay
from examples.flight_demo.report import Report
from examples.flight_demo.screen import Screen
from penstock.core.checksum import is_sealed
from penstock.testing.process import BrokerProcess
from penstock.wire.pulsar_pb2 import BaseCommand

if TYPE_CHECKING:
    from pathlib import Path

HEADER = b"year,month,day,carrier,flight,tailnum,minute,time_hour"
FLIGHTS = [Flight("UA", f"N{number % 3}", number * 60_000, b"row %d" % number) for number in range(10)]
YEAR = Year.of(FLIGHTS)


@dataclass(frozen=True)
class Delivered:
    """A message as the client hands it out."""

    flight: Flight

    def data(self) -> bytes:
        return self.flight.row

    def partition_key(self) -> str:
        return self.flight.key

    def event_timestamp(self) -> int:
        return self.flight.departs_ms

    def publish_timestamp(self) -> int:
        return 1

    def topic_name(self) -> str:
        return YEAR.topic(self.flight.airline)


class Acknowledged:
    """A consumer that only remembers what was acknowledged."""

    def __init__(self) -> None:
        self.messages: list[Delivered] = []

    def acknowledge(self, message: Delivered) -> None:
        self.messages.append(message)

    acknowledge_cumulative = acknowledge


def strip_and_track() -> tuple[Strip, Track]:
    track = Board(["audit"], 1).tracks["audit"]
    return Strip(FLIGHTS, 0, track, Faults()), track


# ----------------------------------------------------------------------------------------------------------- flights


def test_flights_are_sorted_by_departure_and_keyed_by_aircraft_or_flight_number() -> None:
    rows = [
        b"2013,1,1,UA,1545,N14228,15,2013-01-01T10:00:00Z",
        b"2013,1,1,AA,7,NA,5,2013-01-01T10:00:00Z",
    ]
    late, early = rows
    assert parse(HEADER, rows) == [
        Flight("AA", "7", 1_357_034_700_000, early),
        Flight("UA", "N14228", 1_357_035_300_000, late),
    ]


def test_a_share_of_the_flights_is_spread_over_the_year_and_the_airlines() -> None:
    year = read_flights(16_000)
    months = {flight.row.split(b",")[1] for flight in year.flights}
    assert (len(year.flights), len(year.airlines), len(months)) == (16_000, 16, 12)
    assert all(earlier.departs_ms <= later.departs_ms for earlier, later in pairwise(year.flights))


# ------------------------------------------------------------------------------------------------------------- board


def test_what_a_killed_process_had_counted_stays_on_the_board() -> None:
    board = Board(["victim"], 1)
    track = board.tracks["victim"]

    def count(_faults: Faults) -> None:
        track.next[0] = 7
        track.ready = 1
        wait_until(lambda: board.act >= Act.END)

    with Crew() as crew:
        crew.hire("victim", count)
        assert wait_until(lambda: board.all_ready, timeout_s=60)
        crew.people["victim"].kill()
        assert track.handled == 7
        assert crew.people["victim"].gone
        assert crew.first_gone() is None, "a process that was killed on purpose is not missed"


def test_a_process_that_fails_says_so_and_is_missed() -> None:
    def fail(_faults: Faults) -> None:
        raise ValueError("no gate")

    with Crew() as crew:
        crew.hire("agent", fail)
        assert wait_until(lambda: crew.first_gone() == "agent", timeout_s=60)
        (fault,) = crew.people["agent"].join()
    assert "no gate" in fault


# --------------------------------------------------------------------------------------------------------- consumers


def test_flights_in_order_are_counted() -> None:
    strip, track = strip_and_track()
    for flight in FLIGHTS:
        strip.take(Delivered(flight))
    assert (track.handled, track.wrong) == (10, 0)


@pytest.mark.parametrize(
    "second",
    [
        FLIGHTS[0],
        FLIGHTS[2],
        FLIGHTS[1]._replace(row=b"altered"),
        FLIGHTS[1]._replace(key="N-other"),
        FLIGHTS[1]._replace(departs_ms=0),
    ],
    ids=["twice", "left one out", "other payload", "other key", "other time"],
)
def test_a_wrong_message_is_a_fault(second: Flight) -> None:
    strip, track = strip_and_track()
    strip.take(Delivered(FLIGHTS[0]))
    strip.take(Delivered(second))
    assert (track.handled, track.wrong) == (1, 1)
    assert strip.faults.texts


@pytest.mark.parametrize(("begins_at", "wrong"), [(4, 0), (2, 0), (0, 0), (5, 1)])
def test_a_desk_takes_over_where_the_other_was_or_earlier_but_never_later(begins_at: int, wrong: int) -> None:
    tracks = Board(DESKS, 1).tracks
    tracks["desk-a"].next[0] = 4
    survivor, consumer = tracks["desk-b"], Acknowledged()
    desk = Desk(Strip(FLIGHTS, 0, survivor, Faults()), tracks["desk-a"])
    for flight in FLIGHTS[begins_at:]:
        desk.take(consumer, Delivered(flight))
    assert bool(survivor.wrong) == bool(wrong)
    assert survivor.handled == (0 if wrong else 10 - begins_at)


def test_workers_share_a_list_on_which_every_flight_stands_once() -> None:
    tracks = Board(WORKERS, 1).tracks
    one, two, faults, consumer = tracks["worker-1"], tracks["worker-2"], Faults(), Acknowledged()
    worklist = Worklist(YEAR, faults)
    worklist.work(one, consumer, Delivered(FLIGHTS[1]))
    worklist.work(two, consumer, Delivered(FLIGHTS[0]))
    assert (one.handled, two.handled, one.wrong, two.wrong) == (1, 1, 0, 0)
    worklist.work(two, consumer, Delivered(FLIGHTS[1]))
    assert two.wrong == 1
    assert "worked on before" in faults.texts[0]


# ----------------------------------------------------------------------------------------------------------- verdict


@pytest.mark.parametrize(
    ("a", "b", "whole", "again"),
    [
        ((0, 10), (0, 0), True, 0),
        ((0, 4), (4, 10), True, 0),
        ((0, 4), (2, 10), True, 2),
        ((0, 10), (8, 10), True, 2),
        ((0, 4), (5, 10), False, 0),
        ((0, 4), (4, 9), False, 0),
        ((0, 0), (1, 10), False, 0),
    ],
)
def test_two_desks_must_cover_all_flights_without_a_gap(
    a: tuple[int, int], b: tuple[int, int], whole: bool, again: int, tmp_path: Path
) -> None:
    replay = Replay(BrokerProcess(tmp_path), YEAR, 1.0, Screen(Console(file=io.StringIO())))
    for name, (first, following) in zip(DESKS, (a, b), strict=True):
        replay.board.tracks[name].first[0], replay.board.tracks[name].next[0] = first, following
    assert replay.handled_by_desks(0) == (whole, again)


def test_a_report_passes_only_without_failed_checks_and_faults() -> None:
    good, bad, faulty = Report("good"), Report("bad"), Report("faulty", faults=["desk-a: not flight 7"])
    good.check(True, "water is wet")
    bad.check(True, "water is wet")
    bad.check(False, "fire is cold", "451 °F")
    assert (good.passed, bad.passed, faulty.passed) == (True, False, False)
    console = Console(file=io.StringIO(), width=120)
    for report in (bad, faulty):
        report.print_to(console)
    assert isinstance(console.file, io.StringIO)
    assert "✗ fire is cold: 451 °F" in console.file.getvalue()
    assert "not flight 7" in console.file.getvalue()


def test_metrics_are_summed_over_their_labels() -> None:
    page = '# HELP x what\nx{topic="a b"} 1\nx{topic="c"} 2.5\nMemoryPoolUsed 1.6777216e+07\n'
    assert parse_metrics(page) == {"x": 3.5, "MemoryPoolUsed": 16_777_216.0}


# ------------------------------------------------------------------------------------------------------------- flood


def test_a_flood_message_is_one_sealed_entry_of_five_mebibytes() -> None:
    frame = flooders.opening(3, 1, 1_700_000_000_000) + flooders.filler()
    total_bytes, command_bytes = struct.unpack_from(">II", frame)
    send = BaseCommand.FromString(frame[8 : 8 + command_bytes]).send
    entry = memoryview(frame)[8 + command_bytes :]
    (metadata_bytes,) = struct.unpack_from(">I", entry, 6)
    assert total_bytes == len(frame) - 4
    assert send.sequence_id == 1
    assert is_sealed(entry)
    assert len(entry) - 10 - metadata_bytes == flooders.MESSAGE_BYTES
