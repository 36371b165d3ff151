# SPDX-License-Identifier: Apache-2.0
"""Act two: a broker with a request memory of 16 MiB is sent more than a gibibyte by 64 connections at once.

Where: the main process. It watches the pool in the broker's metrics and the process in `/proc`, and compares both with
the ceiling that `queued.max.request.bytes` promises.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from examples.flight_demo import flooders
from examples.flight_demo.board import Act, Board
from examples.flight_demo.findings import Flooded
from examples.flight_demo.flooders import CONNECTIONS, FLOOD, MESSAGE_BYTES, READER
from examples.flight_demo.observe import MIB, Observer
from examples.flight_demo.people import Crew, wait_until
from examples.flight_demo.report import Report, mib
from examples.flight_demo.screen import Row

if TYPE_CHECKING:
    from examples.flight_demo.findings import Look
    from examples.flight_demo.screen import Screen
    from penstock.testing.process import BrokerProcess

POOL_BYTES: Final = 16 * MIB
FRAME_BYTES_MAX: Final = MESSAGE_BYTES + 10 * 1024
# One frame may be finished when the pool is nearly spent; without that, frames could wait for each other for ever.
CEILING_BYTES: Final = POOL_BYTES + FRAME_BYTES_MAX - 1
# What the process may take beyond the pool: copies on their way to the disk, and an allocator's habits.
OVERHEAD_BYTES: Final = 64 * MIB
CONFIGURATION: Final = f"""\
# A small request memory, so that the flood meets it at once.
queued.max.request.bytes={POOL_BYTES}
socket.request.max.bytes={FRAME_BYTES_MAX}
"""
READY_TIMEOUT_S: Final = 30.0
FLOOD_TIMEOUT_S: Final = 60.0
DRAIN_TIMEOUT_S: Final = 5.0
LOOK_EVERY_S: Final = 0.05


class Flood:
    """One run of the act; the broker must have been started with `CONFIGURATION`."""

    def __init__(self, broker: BrokerProcess, messages: int, screen: Screen) -> None:
        self.broker, self.messages, self.screen = broker, messages, screen
        self.total = CONNECTIONS * messages
        self.board = Board((FLOOD, READER), CONNECTIONS)
        self.observer = Observer(broker)
        size_mib = self.total * MESSAGE_BYTES // MIB
        self.report = Report(f"The flood: {CONNECTIONS} connections, {size_mib:,} MiB, a pool of {mib(POOL_BYTES)}")
        self.begun_s = self.elapsed_s = self.read_s = 0.0
        self.idle_rss_bytes = self.rss_bytes_max = 0
        self.flooded: list[Look] = []

    @property
    def findings(self) -> Flooded:
        """What the page shows of it."""
        return Flooded(CONNECTIONS, self.total * MESSAGE_BYTES, POOL_BYTES, CEILING_BYTES, self.flooded)

    def run(self) -> Report:
        """Play the act to its end, whatever happens in it."""
        with Crew() as crew:
            crew.hire(FLOOD, partial(flooders.flood, self.broker.port, self.messages, self.board))
            crew.hire(READER, partial(flooders.read_back, self.broker.url, self.messages, self.board))
            if wait_until(lambda: self.board.all_ready or crew.first_gone() is not None, READY_TIMEOUT_S):
                self.watch(crew)
            self.board.act = Act.END
            self.report.faults += [fault for person in crew.people.values() for fault in person.join()]
        self.judge()
        return self.report

    def watch(self, crew: Crew) -> None:
        """Measure the idle broker, then the flooded one, then read everything back."""
        self.observer.look()
        self.idle_rss_bytes = self.observer.rss_bytes
        self.board.act = Act.BEGIN
        self.begun_s = time.monotonic()
        self.observer.begin()
        self.observer.note()
        self.wait_for(crew, FLOOD)
        self.elapsed_s = time.monotonic() - self.begun_s
        self.wait_for_empty_pool()
        self.flooded = list(self.observer.history)
        self.rss_bytes_max = self.observer.rss_bytes_max
        self.board.act = Act.READ_BACK
        begun_s = time.monotonic()
        self.wait_for(crew, READER)
        self.read_s = time.monotonic() - begun_s

    def wait_for(self, crew: Crew, name: str) -> None:
        """Watch until this participant has all its messages, or something is wrong, or nothing moves any more."""
        track = self.board.tracks[name]
        moved_s, moved = time.monotonic(), track.handled
        while track.handled < self.total and not track.wrong and time.monotonic() < moved_s + FLOOD_TIMEOUT_S:
            if crew.first_gone() is not None:
                return
            if track.handled != moved:
                moved_s, moved = time.monotonic(), track.handled
            self.observer.look()
            self.observer.note()
            self.draw()
            wait_until(lambda: track.handled == self.total, LOOK_EVERY_S)

    def wait_for_empty_pool(self) -> None:
        """Give the last releases a moment."""
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        self.observer.look()
        while self.observer.pool_used_bytes and time.monotonic() < deadline_s:
            time.sleep(LOOK_EVERY_S)
            self.observer.look()
            self.observer.note()

    def draw(self) -> None:
        """Show how far the flood has come and how high it stands."""
        tracks, seen = self.board.tracks, self.observer
        rows = [
            Row("pool", seen.pool_used_bytes, CEILING_BYTES, f"bytes of at most {CEILING_BYTES:,}"),
            Row("receipts", tracks[FLOOD].handled, self.total, f"of {self.total:,} messages of 5 MiB"),
            Row("read back", tracks[READER].handled, self.total, ""),
        ]
        footer = f"muted connections {seen.muted} of {CONNECTIONS} · broker {mib(seen.rss_bytes)}"
        self.screen.show("flooding a small pool", rows, footer)

    def judge(self) -> None:
        """Write figures and checks."""
        report, seen, tracks = self.report, self.observer, self.board.tracks
        figures, receipts, read = report.figures, tracks[FLOOD], tracks[READER]
        rate = receipts.handled * MESSAGE_BYTES / max(self.elapsed_s, 0.001)
        grown_bytes = self.rss_bytes_max - self.idle_rss_bytes
        figures["flooded for"] = f"{self.elapsed_s:,.1f} s, {mib(rate)}/s made durable"
        figures["peak pool"] = f"{mib(seen.pool_used_bytes_max)} (ceiling {mib(CEILING_BYTES)})"
        figures["peak memory"] = f"{mib(self.rss_bytes_max)}, {mib(grown_bytes)} above the idle broker"
        figures["muted"] = (
            f"{seen.depleted_s:,.1f} s without memory to read anybody (MemoryPoolAvgDepletedPercent up to "
            f"{seen.depleted_percent_max:.0f}), up to {seen.muted_max} connections at once"
        )
        report.check(
            receipts.handled == self.total and not receipts.wrong,
            "every message was acknowledged, in order",
            f"{receipts.handled} of {self.total}",
        )
        report.check(
            0 < seen.pool_used_bytes_max <= CEILING_BYTES,
            "the pool stayed under its ceiling",
            f"{seen.pool_used_bytes_max:,} <= {CEILING_BYTES:,} bytes, by {seen.looks} looks and the broker's own mark",
        )
        report.check(
            0 < grown_bytes <= POOL_BYTES + OVERHEAD_BYTES,
            "the process stayed within idle + pool + 64 MiB",
            f"{mib(grown_bytes)} <= {mib(POOL_BYTES + OVERHEAD_BYTES)}",
        )
        report.check(seen.muted_max > 0, "connections were muted meanwhile", f"{seen.muted_max} at once")
        report.check(
            seen.pool_used_bytes == 0 and seen.latest.get("MemoryPoolAvailable") == POOL_BYTES,
            "the pool came back to zero used",
        )
        report.check(
            read.handled == self.total and not read.wrong,
            "all of it reads back as it was sent",
            f"{read.handled} of {self.total}, {self.read_s:,.1f} s",
        )
