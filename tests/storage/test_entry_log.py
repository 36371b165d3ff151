# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import os
import queue
import random
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import DataDirectoryLocked, PersistenceFailed, StorageReadOnly
from penstock.core.units import KIB
from penstock.storage.entry_log import AppendRun, EntryLog
from penstock.storage.files import OsFiles
from penstock.storage.limits import LogLimits
from penstock.storage.log_index import LogIndex
from tests.crash.faults import Case
from tests.storage.logs import HOME, LIMITS, MemoryLog, entries, run_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.core.errors import PenstockError
    from penstock.storage.log_index import Plan


def test_what_was_appended_is_read_as_it_was_sent() -> None:
    with MemoryLog() as memory:
        sent = memory.append(7, 0, 20)
        assert memory.read(7) == sent
        assert memory.log.last_entry(7) == 19
        assert memory.log.last_entry(8) == -1


def test_ledgers_interleaved_in_one_run_are_read_apart() -> None:
    with MemoryLog() as memory:
        a, b = entries(0, 4), entries(100, 3)
        memory.log.append(run_of([(1, 0, a[:2]), (2, 0, b[:1]), (1, 2, a[2:]), (2, 1, b[1:])]))
        memory.log.commit()
        assert memory.read(1) == a
        assert memory.read(2) == b


def test_message_counts_come_back_with_their_entries() -> None:
    with MemoryLog() as memory:
        memory.log.append(run_of([(1, 0, entries(0, 3))], message_counts=[5, 1, 100]))
        memory.log.append(run_of([(1, 3, entries(3, 1))]))
        memory.log.commit()
        result = memory.log.read(1, 1, bytes_max=KIB, entries_max=10)
        assert [batch.message_counts for batch in result.batches] == [[1, 100, 1]]


@pytest.mark.parametrize(("bytes_max", "entries_max"), [(1, 100), (200, 100), (10_000, 1), (10_000, 7), (0, 10)])
def test_a_read_keeps_to_its_bounds_but_returns_one_entry_at_least(bytes_max: int, entries_max: int) -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 30)
        at = 0
        while bytes_max and at < 30:
            result = memory.log.read(1, at, bytes_max=bytes_max, entries_max=entries_max)
            got = [bytes(entry) for batch in result.batches for _, entry in batch.entries()]
            assert got == sent[at : at + len(got)]
            assert len(got) == 1 or sum(map(len, got)) <= bytes_max
            assert 1 <= len(got) <= entries_max
            assert result.next_entry_id == at + len(got)
            at = result.next_entry_id


def test_runs_are_settled_in_the_order_of_their_appends_with_barriers_between() -> None:
    order: list[str] = []

    def done(name: str) -> Callable[[AppendRun, PenstockError | None], None]:
        return lambda _run, error: order.append(f"{name} {error}")

    with MemoryLog() as memory:
        memory.log.append(run_of([(1, 0, entries(0, 1))], done("first")))
        memory.log.append(run_of([], done("barrier")))
        memory.log.append(run_of([(1, 1, entries(1, 1))], done("second")))
        assert order == []
        memory.log.commit()
    assert order == ["first None", "barrier None", "second None"]


def test_barriers_alone_write_nothing() -> None:
    with MemoryLog() as memory:
        memory.log.append(run_of([], memory.note))
        memory.log.commit()
        memory.reopen()
        assert memory.outcomes == [None]
        assert memory.files.names(HOME / "log") == []


def test_a_barrier_behind_entries_that_are_durable_and_marked_writes_nothing() -> None:
    with MemoryLog() as memory:
        memory.append(1, 0, 3)
        changes = memory.files.changes
        memory.log.append(run_of([], memory.note))
        memory.log.commit()
        assert memory.files.changes == changes


def test_what_was_written_is_counted() -> None:
    with MemoryLog() as memory:
        memory.clock.advance(ms=1_000)
        for first in (0, 5):
            memory.append(1, first, 5)
        stats = memory.log.stats()
        assert (stats.commits, stats.entries_appended) == (2, 10)
        assert stats.commit_times.count == stats.sync_times.count == 2
        assert stats.commit_times.sum_ns == stats.sync_times.sum_ns == 0, "the clock stood still"


def test_a_commit_as_large_as_a_segment_leaves_room_for_its_mark() -> None:
    with MemoryLog(LogLimits(segment_bytes=64 * KIB, run_bytes_max=16 * KIB, commit_bytes_max=64 * KIB)) as memory:
        sent = [entries(first, 1, size=size) for first, size in enumerate([900] * 400)]
        for first, one in enumerate(sent):
            memory.log.append(run_of([(1, first, one)]))
        memory.log.commit()
        memory.kill()
        assert memory.read(1) == [one[0] for one in sent]


def test_entries_survive_a_clean_stop_without_a_scan(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 500)
        memory.reopen()
        assert memory.read(1) == sent
        assert memory.log.last_entry(1) == 499
    assert "recovered" not in caplog.text


def test_entries_survive_a_kill() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 200) + memory.append(1, 200, 5)
        memory.kill()
        assert memory.read(1) == sent
        sent += memory.append(1, 205, 5)
        memory.kill()
        assert memory.read(1) == sent


def test_acknowledged_entries_survive_a_power_cut_that_forgets_everything_unsynced() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 200)
        memory.end()
        memory.files.crash(random.Random(1))
        memory.start()
        assert memory.read(1) == sent


def test_a_lost_index_is_built_again_from_the_log() -> None:
    with MemoryLog() as memory:
        sent = [memory.append(1, first, 100, size=100) for first in range(0, 2_000, 100)]
        memory.end()
        memory.files.kill()
        memory.delete_index()
        memory.start()
        assert memory.read(1) == [entry for run in sent for entry in run]
        assert memory.log.stats().segments > 3


def test_an_index_row_that_vanished_is_found_missing_and_the_index_built_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 100)
        memory.change_index("DELETE FROM stretches")
        assert memory.read(1) == sent
        assert "building it again" in caplog.text
        assert memory.log.damage() == []


def test_a_changed_index_row_is_found_out_by_its_checksum() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 100)
        memory.change_index("UPDATE stretches SET last_entry = last_entry + 1")
        assert memory.read(1) == sent


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ledgers SET last_entry = 3",
        "DELETE FROM ledgers",
        "UPDATE segments SET live_bytes = 0",
        "DELETE FROM segments",
        "DELETE FROM digests",
        "DROP TABLE stretches",
        "PRAGMA user_version=99",
    ],
)
def test_a_change_to_what_an_index_counts_is_found_at_the_next_start(change: str) -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 100)
        memory.change_index(change)
        assert memory.log.last_entry(1) == 99
        memory.log.maintain()
        assert memory.read(1) == sent


# ------------------------------------------------------------------------------------------------------------- damage


def test_a_flipped_bit_costs_its_entry_which_is_named_and_no_other() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 10)
        memory.append(1, 10, 10)
        at = bytes(memory.files.open(memory.segment()).read(64 * KIB, 0)).index(sent[4])
        memory.end()
        memory.files.kill()
        memory.files.flip(memory.segment(), (at + 20) * 8)
        memory.start()
        result = memory.log.read(1, 0, bytes_max=64 * KIB, entries_max=100)
        assert [one for batch in result.batches for one in batch.entry_ids] == [*range(4), *range(5, 20)]
        assert result.damaged == [(1, 4)]
        assert [(damage.ledger_id, damage.entry_id) for damage in memory.log.damage()] == [(1, 4)]


def test_damage_met_while_reading_is_counted_once_and_remembered_over_a_restart() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 10)
        at = bytes(memory.files.open(memory.segment()).read(64 * KIB, 0)).index(sent[4])
        memory.files.flip(memory.segment(), (at + 20) * 8)
        for _ in range(3):
            assert memory.log.read(1, 0, bytes_max=64 * KIB, entries_max=100).damaged == [(1, 4)]
        assert memory.log.stats().damaged == 1
        memory.reopen()
        assert memory.log.stats().damaged == 1
        memory.log.maintain()
        assert memory.read(1) == sent[:4] + sent[5:]


@pytest.mark.parametrize("bit", range(0, 76 * 8, 5))
def test_any_bit_of_a_front_may_flip_and_nothing_is_lost(bit: int) -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 3)
        memory.files.flip(memory.segment(), bit)
        assert memory.read(1) == sent
        memory.end()
        memory.files.kill()
        memory.delete_index()
        memory.start()
        assert memory.read(1) == sent
        assert memory.log.damage() == []


def test_a_spoiled_block_in_the_middle_is_named_by_its_place_and_everything_else_is_served() -> None:
    with MemoryLog() as memory:
        first = memory.append(1, 0, 20, size=400)
        begin = memory.log.stats().bytes_appended
        memory.append(1, 20, 20, size=400)
        end = memory.log.stats().bytes_appended
        last = memory.append(1, 40, 20, size=400)
        memory.end()
        memory.files.kill()
        memory.delete_index()
        memory.files.open(memory.segment()).write([bytes(end - begin)], begin)
        memory.start()
        assert memory.read(1) == first + last
        assert [(damage.offset, damage.bytes) for damage in memory.log.damage()] == [(begin, end - begin)]


def test_the_last_acknowledged_block_is_damage_and_not_a_torn_tail_when_it_is_spoiled_behind_a_mark() -> None:
    with MemoryLog() as memory:
        kept = memory.append(1, 0, 5)
        sent = memory.append(1, 5, 5)
        content = bytes(memory.files.open(memory.segment()).read(64 * KIB, 0))
        memory.end()
        memory.files.kill()
        for entry in sent[1:3]:  # Two at once: no single flipped bit explains that.
            memory.files.open(memory.segment()).write([b"\0" * 20], content.index(entry))
        memory.start()
        assert memory.read(1) == kept + sent[:1] + sent[3:]
        assert [damage.entry_id for damage in memory.log.damage()] == [6, 7]


def test_a_few_entries_among_many_of_others_are_checked_one_by_one() -> None:
    limits = LogLimits(segment_bytes=256 * KIB, run_bytes_max=64 * KIB)
    with MemoryLog(limits) as memory:
        mine, others = entries(0, 6), entries(0, 300, size=100)
        groups = [(1, 0, mine[:2]), (2, 0, others[:150]), (1, 2, mine[2:4]), (2, 150, others[150:]), (1, 4, mine[4:])]
        memory.log.append(run_of(groups))
        memory.log.commit()
        assert memory.read(1) == mine
        assert memory.read(1, 3) == mine[3:]
        assert memory.read(2) == others
        file = memory.files.open(memory.segment())
        at = bytes(file.read(256 * KIB, 0)).index(mine[3])
        memory.files.flip(memory.segment(), (at + 30) * 8 + 3)
        result = memory.log.read(1, 1, bytes_max=KIB, entries_max=10)
        assert [list(batch.entry_ids) for batch in result.batches] == [[1, 2], [4, 5]]
        assert result.damaged == [(1, 3)]
        memory.files.flip(memory.segment(), 100)  # The front, too: its back serves.
        assert memory.read(1) == mine[:3] + mine[4:]


# -------------------------------------------------------------------------------------------------------------- faults


def test_a_failed_sync_answers_with_errors_and_leaves_the_log_readable_and_read_only() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 5)
        memory.files.fail_sync_at(1)
        memory.append(1, 5, 5)
        syncs = memory.files.syncs
        memory.append(1, 10, 5)
        assert memory.outcomes[0] is None
        assert type(memory.outcomes[1]) is PersistenceFailed
        assert type(memory.outcomes[2]) is StorageReadOnly
        assert memory.files.syncs == syncs, "a failed sync must not be tried again"
        assert memory.log.health.read_only == "Input/output error (errno 5)"
        assert not memory.log.health.ok
        assert memory.read(1) == sent


def test_a_full_disk_answers_with_errors_until_a_restart_with_room() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 5)
        memory.files.run_full_after(100)
        memory.append(1, 5, 5)
        assert "No space left" in str(memory.outcomes[1])
        memory.log.close()
        memory.files.run_full_after(None)
        memory.start()
        assert memory.log.health.ok
        assert memory.read(1)[:5] == sent
        assert memory.log.last_entry(1) == 4


def test_a_disk_that_is_full_when_the_next_segment_is_wanted_makes_the_log_read_only() -> None:
    with MemoryLog() as memory:
        memory.append(1, 0, 50, size=200)
        memory.files.run_full_after(45 * KIB)
        for first in range(50, 400, 50):
            memory.append(1, first, 50, size=200)
        assert memory.outcomes[0] is None
        assert isinstance(memory.outcomes[-1], StorageReadOnly)


def test_a_stalled_commit_is_seen_in_the_health() -> None:
    with MemoryLog() as memory:
        seen: list[bool] = []

        check_sync = memory.files.check_sync

        def slow_sync() -> None:
            memory.clock.advance(ms=1_001)
            seen.append(memory.log.health.stalled)
            check_sync()

        memory.append(1, 0, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory.files, "check_sync", slow_sync)
            memory.append(1, 1, 1)
        assert seen == [True]
        assert not memory.log.health.stalled


def test_an_owner_that_fails_to_handle_its_completion_does_not_keep_others_from_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_run: AppendRun, _error: PenstockError | None) -> None:
        raise ValueError("mine alone")

    with MemoryLog() as memory:
        memory.log.append(run_of([(1, 0, entries(0, 1))], fail))
        memory.append(1, 1, 1)
        assert memory.outcomes == [None]
        assert memory.log.health.ok
    assert "mine alone" in caplog.text


# ---------------------------------------------------------------------------------------------------------- reclaiming


def test_trimmed_entries_are_passed_over_and_their_segments_recycled() -> None:
    with MemoryLog() as memory:
        for first in range(0, 2_000, 50):
            memory.append(1, first, 50, size=100)
        before = memory.log.stats()
        memory.log.trim(1, 1_990)
        memory.log.maintain()
        memory.log.maintain()
        after = memory.log.stats()
        assert len(memory.read(1)) == 10
        assert after.segments < before.segments / 2
        assert 1 <= after.spares <= LIMITS.spares_max
        assert memory.log.last_entry(1) == 1_999


def test_recycled_segments_are_written_again_under_new_ids() -> None:
    with MemoryLog() as memory:
        for first in range(0, 4_000, 50):
            memory.append(1, first, 50, size=100)
            memory.log.trim(1, first)
            memory.log.maintain()
        assert len(memory.files.names(HOME / "log")) <= 2 + LIMITS.spares_max + 2
        memory.kill()
        memory.log.trim(1, 3_950)
        assert len(memory.read(1)) == 50


def test_a_mostly_dead_segment_is_emptied_and_what_lives_keeps_its_ids() -> None:
    with MemoryLog() as memory:
        kept = memory.append(2, 0, 5)
        for first in range(0, 2_000, 50):
            memory.append(1, first, 50, size=100)
        memory.log.trim(1, 2_000)
        memory.log.maintain()
        assert memory.log.stats().moved_bytes == sum(map(len, kept))
        assert memory.read(2) == kept
        memory.kill()
        memory.log.trim(1, 2_000)
        assert memory.read(2) == kept
        assert memory.log.last_entry(2) == 4


def test_a_dropped_ledger_is_gone_and_its_segments_are_recycled() -> None:
    with MemoryLog() as memory:
        for first in range(0, 2_000, 50):
            memory.append(1, first, 50, size=100)
        memory.append(2, 0, 1)
        memory.log.drop(1)
        memory.log.commit()
        assert memory.read(1) == []
        memory.log.maintain()
        assert memory.log.ledgers() == {2}
        memory.reopen()
        assert memory.log.ledgers() == {2}
        assert len(memory.read(2)) == 1


def test_a_drop_that_a_crash_undid_can_be_done_again() -> None:
    with MemoryLog() as memory:
        memory.append(1, 0, 10)
        memory.log.drop(1)
        memory.log.commit()
        memory.kill()
        assert memory.log.ledgers() == {1}
        memory.log.drop(1)
        memory.log.commit()
        assert memory.log.ledgers() == set()
        assert memory.log.last_entry(1) == -1


def test_ids_that_were_trimmed_are_not_given_out_again_even_when_no_trace_of_them_is_left() -> None:
    with MemoryLog() as memory:  # A new disk: only the caller knows the trim point.
        memory.log.trim(1, 10)
        assert memory.log.last_entry(1) == 9
        memory.log.maintain()
        memory.reopen()
        assert memory.log.last_entry(1) == 9


# ---------------------------------------------------------------------------------------------- threads, and real files


class Loop:
    """A loop that is only a queue: calls wait until they are let in."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.calls.get(timeout=60)()


def open_threaded(directory: Path, loop: Loop) -> EntryLog:
    return EntryLog.open(directory, OsFiles(), LIMITS, loop.calls.put, clock=ManualClock())


def test_a_second_opener_is_told_who_has_the_directory(tmp_path: Path) -> None:
    loop = Loop()
    log = open_threaded(tmp_path, loop)
    with pytest.raises(DataDirectoryLocked, match=rf"{tmp_path}.* process {os.getpid()}"):
        open_threaded(tmp_path, loop)
    log.close()
    open_threaded(tmp_path, loop).close()


def test_threads_append_read_trim_recycle_and_move_at_the_same_time(tmp_path: Path) -> None:
    loop, outcomes = Loop(), []
    log = open_threaded(tmp_path, loop)
    sent: dict[int, list[bytes]] = {ledger_id: [] for ledger_id in range(5)}
    rng = random.Random(3)
    for number in range(400):
        ledger_id = rng.randrange(5)
        new = entries(len(sent[ledger_id]), rng.randint(1, 20), size=rng.randint(1, 300))
        log.append(run_of([(ledger_id, len(sent[ledger_id]), new)], lambda _run, error: outcomes.append(error)))
        sent[ledger_id] += new
        loop.run_until(lambda number=number: len(outcomes) > number - 10)  # type: ignore[misc]
        trimmed = rng.randrange(5)
        at = len(sent[trimmed]) * 3 // 4
        log.trim(trimmed, at)
        last = log.last_entry(trimmed)
        if last >= at:
            result = log.read(trimmed, at, bytes_max=10_000, entries_max=100)
            got = [bytes(entry) for batch in result.batches for _, entry in batch.entries()]
            assert got == sent[trimmed][at : at + len(got)]
            assert got
    loop.run_until(lambda: len(outcomes) == 400)
    assert outcomes == [None] * 400
    log.close()
    log = open_threaded(tmp_path, loop)
    for ledger_id, all_sent in sent.items():
        at = len(all_sent) * 3 // 4
        result = log.read(ledger_id, at, bytes_max=2**30, entries_max=2**30)
        assert [bytes(entry) for batch in result.batches for _, entry in batch.entries()] == all_sent[at:]
    log.close()


def test_closing_settles_everything_that_was_appended(tmp_path: Path) -> None:
    loop, outcomes = Loop(), []
    log = open_threaded(tmp_path, loop)
    for number in range(50):
        log.append(run_of([(1, number, entries(number, 1))], lambda _run, error: outcomes.append(error)))
    log.close()
    loop.run_until(lambda: len(outcomes) == 50)
    assert outcomes == [None] * 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_journal_that_can_reach_its_loop_no_more_is_reported(tmp_path: Path) -> None:
    def closed(_call: Callable[[], None]) -> None:
        raise RuntimeError("the loop is closed")

    log = EntryLog.open(tmp_path, OsFiles(), LIMITS, closed, clock=ManualClock())
    assert log.health.ok
    log.append(run_of([(1, 0, entries(0, 1))]))
    log.close()
    assert log.health.read_only == "the journal thread has died"


def test_a_relaxed_log_keeps_its_entries_over_a_clean_stop_without_syncing_each_commit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    limits = LogLimits(segment_bytes=64 * KIB, run_bytes_max=16 * KIB, relaxed=True)
    with MemoryLog(limits) as memory:
        sent = memory.append(1, 0, 5)
        syncs = memory.files.syncs
        sent += memory.append(1, 5, 5)
        assert memory.files.syncs == syncs
        memory.log.close()
        memory.files.crash(random.Random(5))
        memory.start()
        assert memory.read(1) == sent
    assert "recovered" not in caplog.text


@pytest.mark.parametrize("step", range(1, 6))
def test_the_mark_of_a_clean_stop_never_promises_what_a_power_cut_takes(step: int) -> None:
    """It says what is durable, so it is written after that: what is missing would be damage otherwise."""
    for seed in range(20):
        with MemoryLog(LogLimits(segment_bytes=64 * KIB, run_bytes_max=16 * KIB, relaxed=True)) as memory:
            memory.append(1, 0, 5)
            memory.append(1, 5, 5)
            memory.files.lose_power_at(step)
            memory.log.close()
            memory.files.crash(random.Random(seed))
            memory.start()
            assert memory.log.stats().damaged == 0


# ------------------------------------------------------------------------------------------------------------- by seed


@pytest.mark.parametrize("first_seed", range(0, 100, 20))  # `make crash` has 2,000
def test_seeded_crashes_and_damage_cost_nothing_acknowledged_but_what_was_hit(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        case = Case(seed)
        try:
            case.run()
        except Exception as error:
            error.add_note(f"seed {seed}: {'; '.join(case.story)}")
            raise


def test_an_entry_that_becomes_durable_while_the_end_is_read_is_not_taken_for_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 3)
        look = LogIndex.plan
        looks: list[int] = []

        def look_and_be_overtaken(index: LogIndex, ledger_id: int, entry_id: int, **bounds: int) -> Plan | None:
            plan = look(index, ledger_id, entry_id, **bounds)
            if plan is None and not looks:
                looks.append(entry_id)
                sent.extend(memory.append(1, 3, 1))
            return plan

        monkeypatch.setattr(LogIndex, "plan", look_and_be_overtaken)
        result = memory.log.read(1, 0, bytes_max=2**30, entries_max=2**30)
        assert looks == [3]
        assert (result.next_entry_id, result.damaged) == (3, [])
        assert "damaged" not in caplog.text
        assert memory.read(1) == sent
