# SPDX-License-Identifier: Apache-2.0
"""The entry log on a bad disk, by seed.

    python -m tests.crash.faults --cases 2000 [--seed 0]

A case is a handful of lives of one log. In each, entries of several ledgers are appended, some are trimmed, ledgers are
dropped, segments are recycled and moved; then the process is killed, the power is cut (perhaps in the middle of a
write), the disk runs full or refuses a sync, or all goes well. In some cases one bit flips once, anywhere, or a few
sectors turn to noise. Now and then reads fail, are interrupted or give too little for a while, also
while the log is being opened, and a file of the log is gone for one life and back for the next. After each life the log
is opened again, sometimes without its index, and must keep its promises:

- what was acknowledged and not trimmed is there, as it was sent;
- a flipped bit costs one entry at most, spoiled sectors only blocks they lie in, and the log names what was lost
  (unless sectors of the very last group commit were spoiled, and the word with them that it was durable);
- what is served was appended, under this very id, and stays;
- what was torn and never acknowledged is not called damage;
- what could not be read, or was in a file that was gone, is there again when the disk is well;
- the log goes on working, and never gives an id out twice.

Everything is in memory and on one thread, so a seed always tells the same story.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import random
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from penstock.core.checksum import seal
from penstock.core.clock import ManualClock
from penstock.core.errors import ReadFailed
from penstock.core.units import KIB
from penstock.storage.entry_log import AppendRun, EntryLog
from penstock.storage.limits import LogLimits
from penstock.storage.recovery import scan
from penstock.testing.files import SECTOR_BYTES, FaultyFiles
from penstock.testing.vfs import sqlite_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.errors import PenstockError

LIMITS = LogLimits(
    segment_bytes=64 * KIB,
    run_bytes_max=16 * KIB,
    commit_bytes_max=32 * KIB,
    read_bytes=8 * KIB,
    spares_max=2,
    open_files_max=3,
    move_bytes_per_s=2**40,
)
HOME = Path("/data/broker-0")


@dataclass
class Ledger:
    """What we know of a ledger, whatever the log says."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    # Appended, never acknowledged, in the life that just ended: may be there or not.
    doubtful: dict[int, bytes] = field(default_factory=dict)
    trimmed: int = 0
    next_entry: int = 0


class Case:
    """One seeded story."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stumbles = random.Random(~seed)  # of its own: it was added to stories that others are known by
        self.files = FaultyFiles()
        self.ledgers: dict[int, Ledger] = {}
        self.dropped: set[int] = set()
        self.next_ledger = 1
        self.harm = self.rng.choice((None, self.flip, self.spoil))
        self.harmed: str | None = None
        self.may_be_lost: set[tuple[int, int]] = set()
        self.may_look_torn: set[tuple[int, int]] = set()
        self.lost: set[tuple[int, int]] = set()
        self.story: list[str] = []

    def run(self) -> None:
        """Tell it. Raises AssertionError where the log breaks a promise."""
        with sqlite_on(self.files) as vfs:
            for _ in range(self.rng.randint(1, 4)):
                self.live(vfs)
            log = self.open(vfs)
            self.check(log)
            log.close()

    def open(self, vfs: str) -> EntryLog:
        """Open the log, as a broker does: trims are told again, ledgers nobody knows are dropped."""
        if self.stumbles.random() < 0.3:
            self.files.on_read = self.stumbling()
        try:
            log = self.open_as_it_is(vfs)
        except OSError as error:
            self.story.append(f"not opened: {error}")
            self.files.heal()
            log = self.open_as_it_is(vfs)
        self.files.heal()
        for ledger_id, ledger in self.ledgers.items():
            if ledger.trimmed:
                log.trim(ledger_id, ledger.trimmed)
        for ledger_id in log.ledgers() - self.ledgers.keys():
            log.drop(ledger_id)
        log.commit()
        return log

    def open_as_it_is(self, vfs: str) -> EntryLog:
        """Open the log."""
        return EntryLog.open(
            HOME,
            self.files,
            LIMITS,
            _at_once,
            clock=ManualClock(),
            nonce=lambda: self.rng.getrandbits(64),
            index_vfs=vfs,
            background=False,
        )

    # --------------------------------------------------------------------------------------------------- bad moments

    def stumbling(self) -> Callable[[Path, int, int], int]:
        """Reads that go wrong in one way, some of them or all."""
        chance = self.stumbles.choice((0.1, 0.5, 1.0))
        code = self.stumbles.choice((errno.EIO, errno.EINTR, None))

        def read(path: Path, size: int, _offset: int) -> int:
            if self.stumbles.random() >= chance:
                return size
            if code is not None:
                raise OSError(code, os.strerror(code), str(path))
            # SQLite takes a short read for the end of its file, as the system's own driver does.
            return self.stumbles.randint(0, size) if path.suffix == ".seg" else size

        return read

    def stumble(self, log: EntryLog) -> None:
        """Read and tidy for a while on a disk that cannot read; what does not come is told to be not lost."""
        self.files.on_read = self.stumbling()
        damage = log.damage()
        for ledger_id in self.ledgers:
            with suppress(ReadFailed):
                log.read(ledger_id, 0, bytes_max=2**20, entries_max=1_000)
        if log.health.ok:
            with suppress(OSError, apsw.Error):
                log.maintain()
        self.files.heal()
        if self.harmed is None:
            assert log.damage() == damage == [], "a read that failed counts as damage"

    def lose_file(self, vfs: str) -> None:
        """One life without a file of the log."""
        path = self.some_file("log")
        if path is None or path.suffix != ".seg":
            return
        self.story.append(f"without {path.name}")
        self.files.hide(path)
        log = self.open_as_it_is(vfs)
        for ledger_id, ledger in self.ledgers.items():
            log.trim(ledger_id, ledger.trimmed)
            served, _ = self.read_all(log, ledger_id, ledger)
            for entry_id, entry in served.items():
                sent = ledger.acknowledged.get(entry_id, ledger.doubtful.get(entry_id))
                assert sent == entry, f"{ledger_id}:{entry_id} was never appended like this"
            for entry_id in ledger.acknowledged if log.health.ok and self.harmed is None else ():
                missing = log.missing.within(ledger_id, entry_id, entry_id + 1)
                # Without the index, too, nobody knows of entries behind the last that is there.
                if ledger.trimmed <= entry_id <= log.last_entry(ledger_id) and entry_id not in served:
                    assert missing, f"{ledger_id}:{entry_id} is gone with {path.name} and not named"
        if self.harmed is None:
            assert not log.damage(), f"a file that is gone is damage: {log.damage()[0].describe()}"
        log.close()
        self.files.show(path)

    # ------------------------------------------------------------------------------------------------------ one life

    def live(self, vfs: str) -> None:
        """Open, check, work, and come to an end of some kind."""
        log = self.open(vfs)
        self.check(log)
        end = self.rng.choice(
            (self.close, self.kill, self.cut_power, self.cut_power_underway, self.run_full, self.lose_sync)
        )
        self.story.append(end.__name__)
        end(log)
        if self.harm is not None and self.harmed is None and self.rng.random() < 0.6:
            self.harm()
        if self.rng.random() < 0.1:
            self.lose_index()
        if self.stumbles.random() < 0.3:
            self.lose_file(vfs)

    def work(self, log: EntryLog) -> None:
        """Append, trim, drop and tidy for a while."""
        for _ in range(self.rng.randint(1, 25)):
            chance = self.rng.random()
            if chance < 0.75:
                for _ in range(self.rng.randint(1, 4)):
                    self.append(log)
                log.commit()
            elif chance < 0.87:
                self.trim(log)
            elif chance < 0.9:
                self.drop(log)
            elif log.health.ok:
                log.maintain()
            if self.stumbles.random() < 0.1:
                self.stumble(log)

    def append(self, log: EntryLog) -> None:
        """Append a run for one to three ledgers."""
        while len(self.ledgers) < 4:
            self.ledgers[self.next_ledger] = Ledger()
            self.next_ledger += 1
        data, groups, offsets, lengths, sent = b"", [], [], [], []
        for ledger_id in self.rng.sample(sorted(self.ledgers), self.rng.randint(1, 3)):
            ledger, count = self.ledgers[ledger_id], self.rng.randint(1, 5)
            groups.append((ledger_id, ledger.next_entry, count))
            for _ in range(count):
                entry = seal(self.rng.randbytes(self.rng.choice((1, 40, 300, 900))))
                data += self.rng.randbytes(self.rng.randint(0, 20))
                offsets.append(len(data))
                lengths.append(len(entry))
                data += entry
                sent.append((ledger, ledger.next_entry, entry))
                ledger.doubtful[ledger.next_entry] = entry
                ledger.next_entry += 1

        def done(_run: AppendRun, error: PenstockError | None) -> None:
            if error is None:
                for ledger, entry_id, entry in sent:
                    ledger.acknowledged[entry_id] = entry
                    ledger.doubtful.pop(entry_id, None)

        counts = [self.rng.randint(1, 9) for _ in offsets] if self.rng.random() < 0.3 else None
        log.append(
            AppendRun(groups=groups, offsets=offsets, lengths=lengths, message_counts=counts, data=data, done=done)
        )

    def trim(self, log: EntryLog) -> None:
        """Trim a ledger somewhere among what was acknowledged."""
        if self.ledgers:
            ledger_id = self.rng.choice(sorted(self.ledgers))
            ledger = self.ledgers[ledger_id]
            end = max(ledger.acknowledged, default=-1) + 1
            ledger.trimmed = max(ledger.trimmed, self.rng.choice((end, self.rng.randint(0, end))))
            log.trim(ledger_id, ledger.trimmed)

    def drop(self, log: EntryLog) -> None:
        """Drop a ledger."""
        if self.ledgers:
            ledger_id = self.rng.choice(sorted(self.ledgers))
            del self.ledgers[ledger_id]
            log.drop(ledger_id)
            log.commit()

    # ------------------------------------------------------------------------------------------------- how a life ends

    def close(self, log: EntryLog) -> None:
        self.work(log)
        log.close()

    def kill(self, log: EntryLog) -> None:
        self.work(log)
        self.files.lose_power()  # Whatever the process still tries comes to nothing; the page cache stays.
        log.close()
        self.files.kill()

    def cut_power(self, log: EntryLog) -> None:
        self.work(log)
        self.files.lose_power()
        log.close()
        self.files.crash(self.rng)

    def cut_power_underway(self, log: EntryLog) -> None:
        self.files.lose_power_at(self.rng.randint(1, 60), cut_ratio=self.rng.random())
        self.endure(log)
        self.files.lose_power()
        log.close()
        self.files.crash(self.rng)

    def run_full(self, log: EntryLog) -> None:
        self.files.run_full_after(self.rng.randint(0, 100 * KIB))
        self.endure(log)
        log.close()
        if self.rng.random() < 0.5:
            self.files.crash(self.rng)
        self.files.run_full_after(None)

    def lose_sync(self, log: EntryLog) -> None:
        self.files.fail_sync_at(self.rng.randint(1, 20))
        self.endure(log)
        log.close()
        if self.rng.random() < 0.7:
            self.files.crash(self.rng)
        else:
            self.files.kill()

    def endure(self, log: EntryLog) -> None:
        """Work on a disk that will fail; housekeeping may raise, appends answer with errors."""
        try:
            self.work(log)
        except Exception as error:
            if isinstance(error, AssertionError):
                raise
            self.story.append(f"housekeeping: {error}")

    # ------------------------------------------------------------------------------------------------------ disk damage

    def flip(self) -> None:
        """Flip one bit of one file."""
        path = self.some_file("log") if self.rng.random() < 0.7 else self.some_file("index")
        if path is not None:
            bit = self.rng.randrange(self.files.open(path).size() * 8)
            self.harmed = f"flipped bit {bit} of {path.name}"
            self.story.append(self.harmed)
            if path.suffix == ".seg":
                self.note_hit(path, bit // 8, bit // 8 + 1, whole_blocks=False)
            self.files.flip(path, bit)

    def spoil(self) -> None:
        """Fill some sectors of a segment with noise: what was in these blocks may be lost, and nothing else."""
        path = self.some_file("log")
        if path is not None and path.suffix == ".seg":
            file = self.files.open(path)
            start = self.rng.randrange(file.size() // SECTOR_BYTES) * SECTOR_BYTES
            end = min(start + SECTOR_BYTES * self.rng.randint(1, 8), file.size())
            self.harmed = f"spoiled {start} to {end} of {path.name}"
            self.story.append(self.harmed)
            before = self.note_hit(path, start, end, whole_blocks=True)
            file.write([self.rng.randbytes(end - start)], start)
            file.sync()
            # If the noise also took the word that the last group commit was durable, it looks torn and is cut off.
            vouched_end = scan(file, int(path.stem, 16)).vouched_end
            self.may_look_torn = {name for name, offset in before.items() if offset >= vouched_end}

    def note_hit(self, path: Path, start: int, end: int, *, whole_blocks: bool) -> dict[tuple[int, int], int]:
        """Note which entries lie where the disk is about to be damaged; return them with their blocks' offsets."""
        hit = {}
        for block in scan(self.files.open(path), int(path.stem, 16)).blocks:
            header, table, row = block.header, block.table, 0
            for ledger_id, first_entry, count in table.groups():
                for entry_id in range(first_entry, first_entry + count):
                    at = header.offset + header.front_bytes + table.offsets[row]
                    low, high = (header.offset, header.end) if whole_blocks else (at, at + table.lengths[row])
                    if low < end and start < high:
                        hit[ledger_id, entry_id] = header.offset
                    row += 1
        self.may_be_lost.update(hit)
        return hit

    def lose_index(self) -> None:
        """Delete the index."""
        for name in self.files.names(HOME / "index"):
            self.files.delete(HOME / "index" / name)
        self.files.sync_directory(HOME / "index")
        self.story.append("deleted the index")

    def some_file(self, directory: str) -> Path | None:
        """Return a file of a directory that is not empty."""
        paths = [HOME / directory / name for name in self.files.names(HOME / directory)]
        paths = [path for path in paths if self.files.open(path).size() >= SECTOR_BYTES]
        return self.rng.choice(paths) if paths else None

    # ---------------------------------------------------------------------------------------------------- the promises

    def check(self, log: EntryLog) -> None:
        """Read everything and compare."""
        for ledger_id, ledger in self.ledgers.items():
            served, damaged = self.read_all(log, ledger_id, ledger)
            for entry_id, entry in served.items():
                sent = ledger.acknowledged.get(entry_id, ledger.doubtful.get(entry_id))
                assert sent == entry, f"{ledger_id}:{entry_id} was never appended like this"
            for entry_id in ledger.acknowledged:
                if entry_id >= ledger.trimmed and entry_id not in served:
                    self.check_loss(log, ledger_id, entry_id, damaged)
            last = log.last_entry(ledger_id)
            known = [entry_id for entry_id in ledger.acknowledged if (ledger_id, entry_id) not in self.lost]
            assert last >= max([-1, ledger.trimmed - 1, *known]), f"{ledger_id}: last entry is {last}"
            # What recovery serves is there for good, as if it had been acknowledged.
            kept = ledger.acknowledged | served
            ledger.acknowledged = {
                entry_id: entry for entry_id, entry in kept.items() if ledger.trimmed <= entry_id <= last
            }
            ledger.doubtful.clear()
            ledger.next_entry = last + 1
        if self.harmed is None:
            assert not log.damage(), f"a false alarm: {log.damage()[0].describe()}"

    def check_loss(self, log: EntryLog, ledger_id: int, entry_id: int, damaged: set[int]) -> None:
        """An acknowledged entry is not served: it must have been hit, and the log must tell."""
        name = (ledger_id, entry_id)
        assert name in self.may_be_lost, f"{ledger_id}:{entry_id} is gone, though nothing happened to it"
        self.lost.add(name)
        assert log.damage() or name in self.may_look_torn, f"{ledger_id}:{entry_id} is gone and no damage is known"
        if self.harm == self.flip:
            assert entry_id in damaged, f"{ledger_id}:{entry_id} is gone and not named to the reader"
            named = {(damage.ledger_id, damage.entry_id) for damage in log.damage()}
            assert name in named, f"{ledger_id}:{entry_id} is gone and not named"

    def read_all(self, log: EntryLog, ledger_id: int, ledger: Ledger) -> tuple[dict[int, bytes], set[int]]:
        """Read a ledger in pieces of random size."""
        served: dict[int, bytes] = {}
        damaged: set[int] = set()
        at = self.rng.choice((0, ledger.trimmed))
        while at <= log.last_entry(ledger_id):
            result = log.read(
                ledger_id,
                at,
                bytes_max=self.rng.choice((1, 2_000, 100_000)),
                entries_max=self.rng.choice((1, 7, 1_000)),
            )
            for batch in result.batches:
                assert batch.ledger_id == ledger_id
                for entry_id, entry in batch.entries():
                    assert entry_id >= max(at, ledger.trimmed), f"{entry_id} served when asked for {at}"
                    assert entry_id not in served, f"{entry_id} served twice"
                    served[entry_id] = bytes(entry)
            damaged |= {entry_id for _, entry_id in result.damaged}
            assert result.next_entry_id > at, f"reading {ledger_id} does not get past {at}"
            at = result.next_entry_id
        return served, damaged


def _at_once(call: Callable[[], None]) -> None:
    call()


def main() -> int:
    """Run many cases and report the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; case n has seed + n")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    harmed = lost = 0
    for seed in range(options.seed, options.seed + options.cases):
        case = Case(seed)
        try:
            case.run()
        except BaseException:
            print(f"seed {seed} failed: {'; '.join(case.story)}", file=sys.stderr)
            raise
        harmed += case.harmed is not None
        lost += len(case.lost)
    print(f"{options.cases} cases passed; {harmed} damaged disks cost {lost} entries, all of them hit and named")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
