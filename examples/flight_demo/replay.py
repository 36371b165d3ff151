# SPDX-License-Identifier: Apache-2.0
"""Act one: the flights of the year go through the broker, to three kinds of consumers at the same time.

Where: the main process. It starts everybody, gives the word, kills one of the two desks half-way, and afterwards reads
from the board whether each kind of consumer got what it was promised.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final

from examples.flight_demo import consumers, publisher
from examples.flight_demo.board import Act, Board
from examples.flight_demo.consumers import AUDIT, DESKS, WORKERS
from examples.flight_demo.findings import Shared
from examples.flight_demo.flights import NAMESPACE
from examples.flight_demo.observe import Observer
from examples.flight_demo.people import Crew, wait_until
from examples.flight_demo.places import make_group, make_namespace
from examples.flight_demo.report import Report, mib
from examples.flight_demo.screen import Row

if TYPE_CHECKING:
    from examples.flight_demo.board import Track
    from examples.flight_demo.flights import Year
    from examples.flight_demo.screen import Screen
    from penstock.testing.process import BrokerProcess

# The broker records what its tenants use; the analysis makes tables of it.
RECORDING: Final = "usageRecordsEnabled=true\ngovernanceRecordsEnabled=true\n"
# Flights per second that the largest airlines may publish together. The whole year has 5,600 a second on average.
GROUP: Final = "largest"
QUOTA: Final = 4_000
QUOTA_AIRLINES: Final = 2
READY_TIMEOUT_S: Final = 30.0
# Nobody has handled a flight for so long: it is stuck. A busy machine may take as long as it needs.
PATIENCE_S: Final = 60.0
LOOK_EVERY_S: Final = 0.25
# Explanations that the page shows.
WORDS_MAX: Final = 3
TAKEOVER_TIMEOUT_S: Final = 10.0
# After the last flight, so long may something turn up that should not.
QUIET_S: Final = 0.5


def in_words(finding: dict[str, Any]) -> str:
    """Return what `/admin/v3/why` has found, as `penstock why` says it."""
    numbers = ", ".join(f"{name} {value:,}" for name, value in finding["numbers"].items())
    return f"{finding['what']} waits: {finding['limit']}. {numbers}. Lifted when: {finding['liftedBy']}."


class Replay:
    """One run of the act."""

    def __init__(self, broker: BrokerProcess, year: Year, duration_s: float, screen: Screen) -> None:
        self.broker, self.year, self.duration_s, self.screen = broker, year, duration_s, screen
        self.total = len(year.flights)
        self.board = Board((publisher.NAME, AUDIT, *WORKERS, *DESKS), len(year.airlines))
        self.observer = Observer(broker)
        self.report = Report(f"The replay: {self.total:,} flights, {len(year.airlines)} airlines")
        self.killed: str | None = None
        self.handed_over: list[int] = []  # airlines the killed desk had been active for
        self.takeover_s: float | None = None
        self.begun_s = self.elapsed_s = 0.0
        self.largest = sorted(year.airlines, key=lambda airline: -len(year.by_airline[airline]))[:QUOTA_AIRLINES]
        self.words: list[str] = []  # why the broker made airlines wait
        self.moved_s, self.moved = 0.0, 0  # when anybody was last seen to have handled a flight, and how many had been

    def run(self) -> Report:
        """Play the act to its end, whatever happens in it."""
        with Crew() as crew:
            self.start(crew)
            if wait_until(lambda: self.board.all_ready or crew.first_gone() is not None, READY_TIMEOUT_S):
                self.watch(crew)
            self.board.act = Act.END
            self.report.faults += [fault for person in crew.people.values() for fault in person.join()]
        self.judge()
        return self.report

    def start(self, crew: Crew) -> None:
        """Make a place for every airline, and start everybody; they connect and wait for the word."""
        url, year, board = self.broker.url, self.year, self.board
        for airline in year.airlines:
            make_namespace(self.broker.admin_port, year.tenant(airline), NAMESPACE)
        # The two largest airlines share a quota, which their rush hours come close to.
        make_group(self.broker.admin_port, GROUP, QUOTA, [year.tenant(airline) for airline in self.largest])
        crew.hire(AUDIT, partial(consumers.audit, url, year, board))
        crew.hire("workers", partial(consumers.work, url, year, board))
        for name in DESKS:
            crew.hire(name, partial(consumers.desk, url, name, year, board))
        crew.hire(publisher.NAME, partial(publisher.publish, url, year, board, self.duration_s))

    def watch(self, crew: Crew) -> None:
        """Give the word, and draw until all is done, or nothing more will come."""
        self.board.act = Act.BEGIN
        self.begun_s = time.monotonic()
        self.observer.begin()
        while not self.complete and not self.hopeless(crew):
            self.look()
            if self.killed is None and self.done_by(DESKS) * 2 >= self.total:
                self.kill_a_desk(crew)
            self.draw()
            wait_until(lambda: self.complete, LOOK_EVERY_S)
        self.elapsed_s = self.age_s
        self.draw()
        time.sleep(QUIET_S)
        self.observer.look()

    def look(self) -> None:
        """See how the broker is, how far the airlines with a quota are, and what it says if they wait."""
        self.observer.look()
        published = self.board.tracks[publisher.NAME].next
        self.observer.note(tuple(published[self.year.airlines.index(airline)] for airline in self.largest))
        if len(self.words) < WORDS_MAX and self.observer.latest.get("penstock_resource_group_waiting", 0):
            with suppress(OSError, HTTPException):
                found = self.observer.why(self.year.tenant(self.largest[0]))
                self.words += [in_words(one) for one in found if one["reason"] == "group-quota"][:1]

    @property
    def shared(self) -> Shared:
        """What the page shows of the quota."""
        return Shared(QUOTA, tuple(self.largest), list(self.observer.history), self.words)

    @property
    def fate(self) -> str:
        """What became of the desk that was killed, in a sentence."""
        if self.killed is None or self.takeover_s is None:
            return "No desk was killed."
        return (
            f"{self.killed} was killed with SIGKILL while it handled {len(self.handed_over)} airlines; the other desk "
            f"went on with them after {self.takeover_s * 1000:,.0f} ms, and no flight was lost."
        )

    def hopeless(self, crew: Crew) -> bool:
        """Whether going on would prove nothing: a fault was seen, somebody is gone, or nothing moves any more."""
        wrong = any(track.wrong for track in self.board.tracks.values())
        handled = sum(track.handled for track in self.board.tracks.values())
        if handled != self.moved:
            self.moved_s, self.moved = self.age_s, handled
        return wrong or crew.first_gone() is not None or self.age_s > self.moved_s + PATIENCE_S

    def kill_a_desk(self, crew: Crew) -> None:
        """Kill the busier desk while it handles flights, and wait for the other to handle some of its airlines."""
        tracks = self.board.tracks
        killed = max(DESKS, key=lambda name: tracks[name].handled)
        survivor = DESKS[1 - DESKS.index(killed)]
        crew.people[killed].kill()
        killed_s = time.monotonic()
        self.killed = killed
        self.handed_over = [index for index, number in enumerate(tracks[killed].next) if number]
        if wait_until(lambda: any(tracks[survivor].next[index] for index in self.handed_over), TAKEOVER_TIMEOUT_S):
            self.takeover_s = time.monotonic() - killed_s
        self.screen.say(f"{killed} killed while it handled {len(self.handed_over)} airlines; {survivor} takes over")

    # ------------------------------------------------------------------------------------------------- what is known

    @property
    def age_s(self) -> float:
        """How long the act has been going on."""
        return time.monotonic() - self.begun_s

    def done_by(self, names: tuple[str, ...]) -> int:
        """How many different flights these have handled together."""
        tracks = [self.board.tracks[name] for name in names]
        if names == DESKS:
            return sum(max(numbers) for numbers in zip(*(track.next for track in tracks), strict=True))
        return sum(track.handled for track in tracks)

    @property
    def complete(self) -> bool:
        """Whether everybody has handled every flight."""
        return all(self.done_by(names) >= self.total for names in ((publisher.NAME,), (AUDIT,), WORKERS, DESKS))

    def draw(self) -> None:
        """Show how far everybody is."""
        published = self.done_by((publisher.NAME,))
        rows = [self.row("published", (publisher.NAME,)), self.row("audit", (AUDIT,)), self.row("workers", WORKERS)]
        rows.append(self.row("desks", DESKS, f"{self.killed} killed" if self.killed else "both at work"))
        backlog = published - min(self.done_by(names) for names in ((AUDIT,), WORKERS, DESKS))
        day = self.year.flights[max(0, min(published, self.total) - 1)].departs_ms // 1000
        footer = (
            f"{datetime.fromtimestamp(day, UTC):%d %B %Y} · backlog {max(0, backlog):,} · "
            f"muted connections {self.observer.muted} · pool {mib(self.observer.pool_used_bytes)} · "
            f"broker {mib(self.observer.rss_bytes)}"
        )
        self.screen.show("replaying 2013", rows, footer)

    def row(self, who: str, names: tuple[str, ...], remark: str = "") -> Row:
        """One line: how far, and how fast so far."""
        done = self.done_by(names)
        return Row(who, done, self.total, f"{done / max(self.age_s, 0.1):>8,.0f}/s  {remark}")

    # ------------------------------------------------------------------------------------------------------- verdict

    def judge(self) -> None:
        """Write figures and checks."""
        report, total, tracks = self.report, self.total, self.board.tracks
        self.write_figures()
        published, audited = tracks[publisher.NAME], tracks[AUDIT]
        report.check(
            published.handled == total and not published.wrong,
            "every flight was acknowledged, receipts of each airline in order",
            f"{published.handled:,} of {total:,}",
        )
        report.check(
            audited.handled == total and not audited.wrong,
            "the audit read every flight as sent, once, every aircraft's in order",
            f"{audited.handled:,} of {total:,}",
        )
        shares = [tracks[name].handled for name in WORKERS]
        report.check(
            sum(shares) == total and not any(tracks[name].wrong for name in WORKERS) and all(shares),
            "the workers got every flight as sent, once between them",
            f"{' + '.join(f'{share:,}' for share in shares)} (in what order, Shared does not promise)",
        )
        self.judge_desks()

    def judge_desks(self) -> None:
        """Check the pair: together everything and in order; what was seen twice, only where one took over."""
        report, total = self.report, self.total
        ledger = [self.handled_by_desks(index) for index in range(len(self.year.airlines))]
        again = sum(twice for _, twice in ledger)
        wrong = sum(self.board.tracks[name].wrong for name in DESKS)
        report.check(
            all(whole for whole, _ in ledger) and not wrong,
            "the desks got every flight as sent, every aircraft's in order, across the kill",
            f"{self.done_by(DESKS):,} of {total:,}, {again:,} seen again at the takeover and none elsewhere",
        )
        report.check(
            self.takeover_s is not None,
            f"{self.killed or 'a desk'} was killed at work and the other took over",
            "" if self.takeover_s is None else f"{len(self.handed_over)} airlines, {self.takeover_s * 1000:,.0f} ms",
        )

    def handled_by_desks(self, index: int) -> tuple[bool, int]:
        """Whether an airline's flights were all handled without a gap, and how many of them by both desks.

        A desk handles flights first..next-1 without a gap or it reports a fault, so two ranges say everything.
        """
        flights = len(self.year.by_airline[self.year.airlines[index]])
        ranges = sorted((track.first[index], track.next[index]) for track in self.desk_tracks if track.next[index])
        covered = overlap = 0
        for first, following in ranges:
            if first > covered:
                return False, overlap
            overlap += min(covered, following) - first
            covered = max(covered, following)
        return covered == flights, overlap

    @property
    def desk_tracks(self) -> list[Track]:
        """Both desks' tracks."""
        return [self.board.tracks[name] for name in DESKS]

    def write_figures(self) -> None:
        """Say how fast it went and what it took."""
        figures, tracks = self.report.figures, self.board.tracks
        delivered = sum(tracks[name].handled for name in (AUDIT, *WORKERS, *DESKS))
        elapsed_s = max(self.elapsed_s, 0.001)
        figures["a year in"] = f"{self.elapsed_s:,.1f} s (planned {self.duration_s:,.0f} s)"
        figures["published"] = f"{self.total / elapsed_s:,.0f} flights/s, each durable before its receipt"
        figures["delivered"] = f"{delivered / elapsed_s:,.0f} messages/s to three subscriptions' consumers"
        figures["peak pool"] = f"{mib(self.observer.pool_used_bytes_max)}, muted for {self.observer.depleted_s:.1f} s"
        figures["peak memory"] = f"{mib(self.observer.rss_bytes_max)} (the broker's process)"
