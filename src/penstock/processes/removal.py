# SPDX-License-Identifier: Apache-2.0
"""Starts with fewer brokers than before: moves the topics of the others first, then deletes their empty directories.

Why at the start, by itself: `--brokers` says how many brokers there are to be, and no broker may run meanwhile.
Why first a survey: a move that cannot end (no space, a file of the log is missing) is refused before it begins.
Where: `app` and `supervisor` call `leave_out_brokers` at their start.
"""

from __future__ import annotations

import gc
import logging
import shutil
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

from penstock.broker.topics.placement import in_turn
from penstock.core.errors import ConfigurationError, DataDirectoryLocked, PersistenceFailed
from penstock.core.names import TopicName
from penstock.core.units import MIB, NS_PER_MS
from penstock.net.clock import SystemClock
from penstock.processes.moving import Disk, Topic, TopicMover
from penstock.settings.limits import log_limits
from penstock.storage.directory import DataDirectory, is_data_directory, open_data_directory
from penstock.storage.files import OsFiles
from penstock.storage.index import IndexDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.settings import Settings
    from penstock.storage.files import Files


# ---------------------------------------------------------------------------------------------------------------------
# Finds out whether a data directory has brokers that a start leaves out.
#
# Why apart from `removal`, which moves their topics: few starts need that, and each imports this. Where: `app.run` and
# `supervisor.run`, before they open anything.


def leave_out_brokers(settings: Settings, data_dir: Path, brokers: int) -> None:
    """Move the topics of brokers that are not started any more to those that are. Blocks.

    Raises:
        ConfigurationError: they cannot be moved; nothing was changed.
        PersistenceFailed, ReadFailed, MetadataFailed: the disk failed; the next start goes on.
    """
    directory, files = DataDirectory(data_dir), OsFiles()
    try:
        left_out = is_data_directory(data_dir) and directory.brokers_from(brokers, files)
    except OSError:
        return  # The start says what is wrong with the directory.
    if left_out:
        from penstock.processes.moving import Disk  # noqa: PLC0415 -- see above

        leave_only(Disk(directory=directory, files=files, limits=log_limits(settings), clock=SystemClock()), brokers)


log = logging.getLogger(__name__)

# Of one entry in the two tables of its block: offset, length, message count.
_ENTRY_BYTES: Final = 24
# For the metadata of topics, and what else is written meanwhile.
SLACK_BYTES: Final = 16 * MIB


class Survey(NamedTuple):
    """Topics to be moved from one broker."""

    number: int
    topics: list[Topic]
    bytes: dict[int, int]  # to be written, by the broker that they are moved to


def leave_only(
    disk: Disk, brokers: int, free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
) -> None:
    """Move all topics to the first `brokers` brokers, if others have any; and delete what these others leave.

    Does nothing if another process has the directory locked; the start says so then.

    Raises:
        ConfigurationError: the disk has not enough space, or not all can be read; nothing is changed.
        DataDirectoryLocked: a broker is still running; nothing is changed.
        PersistenceFailed, ReadFailed, MetadataFailed: the disk failed; the next start goes on.
    """
    with _explained(disk.directory.path), _collecting_garbage(), ExitStack() as stack:
        open_data_directory(disk.directory.path, disk.files, brokers=brokers)
        try:
            mover = stack.enter_context(TopicMover.opened(disk))
        except DataDirectoryLocked:
            return
        _move_all(disk, mover, brokers, free_bytes)


def _move_all(disk: Disk, mover: TopicMover, brokers: int, free_bytes: Callable[[Path], int]) -> None:
    leaving = disk.directory.brokers_from(brokers, disk.files)
    places = _places(mover, brokers)
    surveys = [_survey(mover, number, brokers, places) for number in leaving]
    topics = sum(len(survey.topics) for survey in surveys)
    if topics:
        nbytes = sum(topic.bytes for survey in surveys for topic in survey.topics)
        _check_space(disk, surveys, free_bytes)
        log.warning(
            "--brokers %d: moving %d topics (%d bytes) to these from the brokers after them (%s); nothing is served "
            "until that is done", brokers, topics, nbytes, ", ".join(str(one.number) for one in surveys if one.topics),
        )  # fmt: skip
    began_ns = disk.clock.monotonic_ns()
    for survey in surveys:
        _remove(disk, mover, survey, places)
    if topics:
        log.warning("%d topics are moved, in %d ms", topics, (disk.clock.monotonic_ns() - began_ns) // NS_PER_MS)


def _places(mover: TopicMover, brokers: int) -> Mapping[str, int]:
    """Choose a broker for each topic of those that leave: as for new topics, see `placement`."""
    remaining = list(range(brokers))
    counts = Counter(record.broker for record in mover.view.topics.values() if record.broker < brokers)
    found = {}
    moving = (record for record in mover.view.topics.values() if record.broker >= brokers)
    for record in sorted(moving, key=lambda one: one.ledger_id):
        name = TopicName.parse(record.name)
        fewest = min(remaining, key=lambda number: counts[number])
        found[record.name] = place = in_turn(name, remaining) if name.partition >= 0 else fewest
        counts[place] += 1
    return found


def _survey(mover: TopicMover, number: int, brokers: int, places: Mapping[str, int]) -> Survey:
    """Find out what there is to be moved, and whether it can be."""
    sizes: dict[int, int] = defaultdict(int)
    with mover.storage(number) as storage:
        topics = storage.topics()
        if topics and storage.log.health.read_only is not None:
            raise _cannot_move(brokers, number, storage.log.health.read_only)
        for topic in topics:
            if any(storage.log.missing.any_of(ledger_id) for ledger_id in topic.ledger_ids):
                raise _cannot_move(
                    brokers, number, f"entries of {topic.record.name} are missing, for the log lacks a file (the lines "
                    f"above name it): put it back, or give up what it held with autoSkipNonRecoverableData=true"
                )  # fmt: skip
            sizes[places[topic.record.name]] += topic.bytes + _ENTRY_BYTES * storage.entries(topic)
            snapshot_bytes = len(storage.snapshots.load(topic.record.ledger_id) or b"")
            sizes[places[topic.record.name]] += snapshot_bytes
    return Survey(number, topics, dict(sizes))


def _check_space(disk: Disk, surveys: Sequence[Survey], free_bytes: Callable[[Path], int]) -> None:
    """Raises ConfigurationError. What a broker leaves is free before the next one's topics are moved."""
    needed = max(_needed(disk, survey) for survey in surveys)
    free = free_bytes(disk.directory.path)
    if free < needed:
        raise ConfigurationError(
            f"{disk.directory.path} has {free} bytes of free space, and moving the topics of brokers that --brokers "
            f"leaves out takes up to {needed} until it is done; make space, or start with --brokers "
            f"{surveys[-1].number + 1}"
        )


def _needed(disk: Disk, survey: Survey) -> int:
    usable = disk.limits.segment_bytes - disk.limits.run_bytes_max  # A run that does not fit begins the next segment.
    segments = sum(-(-nbytes // usable) + 1 for nbytes in survey.bytes.values())
    rows = _size(disk.files, disk.directory.topics(survey.number))
    return segments * disk.limits.segment_bytes + 2 * rows + SLACK_BYTES  # Rows are in the write-ahead log, too.


def _remove(disk: Disk, mover: TopicMover, survey: Survey, places: Mapping[str, int]) -> None:
    """Move the topics of one broker, then delete its files, unless they have more than topics."""
    with mover.storage(survey.number) as storage:
        keeps = storage.delete_unused()
        mover.move(storage, survey.topics, places)
        keeps = keeps or bool(storage.log.ledgers())
    if keeps:
        log.error(
            "broker-%d has entries of topics that meta.sqlite does not know, because it is older; they are kept there. "
            "Stop penstock and put the meta.sqlite in place that belongs to them, if you have it", survey.number,
        )  # fmt: skip
        return
    for path in disk.directory.files_of(survey.number, disk.files):
        disk.files.delete(path)


def _size(files: Files, path: Path) -> int:
    file = files.open(path)
    try:
        return file.size()
    finally:
        file.close()


def _cannot_move(brokers: int, number: int, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"--brokers {brokers}: the topics of broker {number} cannot be moved to the others: {reason}; or start with "
        f"--brokers {number + 1}"
    )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, apsw.Error, IndexDamaged) as error:
        raise PersistenceFailed(
            f"moving topics in {path} was stopped by the disk: {error}; nothing is lost: see to the disk, then start "
            f"again, and it goes on"
        ) from error


@contextmanager
def _collecting_garbage() -> Iterator[None]:
    """A start does without, but a move may take hours."""
    before = gc.isenabled()
    gc.enable()
    try:
        yield
    finally:
        if not before:
            gc.disable()
