# SPDX-License-Identifier: Apache-2.0
"""Producer access modes: who may write a topic, beside whom, and who must wait.

Why epochs: a producer that held a topic alone and lost its connection must not write on when somebody else has held it
since. Every exclusive grant has a number, one above the last; whoever comes back shows the number it had.
Where: `producers` asks `decide` about every newcomer and carries the verdict out; the topic keeps a `WriteAccess`.
Pure: no clock, no sockets; a promoted or refused producer hears of it through `producers`.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from penstock.core.errors import ProducerBusy, ProducerFenced

if TYPE_CHECKING:
    import asyncio


# No topic gets so far by one grant at a time. Older versions stored what a client said: that counts for nothing.
EPOCHS_STOP: Final = 2**62


class AccessMode(IntEnum):
    """How a producer wants to share its topic; the protocol's numbers (`ProducerAccessMode`)."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Writers(NamedTuple):
    """What a newcomer finds."""

    connected: int  # producers, the exclusive one too
    exclusive: str | None  # the name of the one that holds the topic, or is about to
    waiting: int
    epoch: int | None  # of the last exclusive grant; None when there never was one


class Join(NamedTuple):
    """Write beside the others."""

    epoch: int | None


class Hold(NamedTuple):
    """Write alone, under this epoch; with `fence`, after everybody else was turned away."""

    epoch: int
    fence: bool


class Wait(NamedTuple):
    """Queue up behind those who wait already."""


Verdict: TypeAlias = Join | Hold | Wait


def decide(mode: AccessMode, shown_epoch: int | None, writers: Writers) -> Verdict:
    """Say how a producer gets in.

    Args:
        mode: what it asks for.
        shown_epoch: that of the grant it had before it lost its connection, if it had one.
        writers: what it finds.

    Raises:
        ProducerBusy: it would share, and somebody holds the topic alone or waits to.
        ProducerFenced: it would hold the topic alone, and somebody is there, or was since.
    """
    held = writers.exclusive is not None or writers.waiting > 0
    if mode is AccessMode.SHARED:
        if held:
            raise ProducerBusy(f"Topic has an existing exclusive producer: {writers.exclusive}")
        return Join(writers.epoch)
    if mode is AccessMode.EXCLUSIVE:
        if held:
            raise ProducerFenced(f"Topic has an existing exclusive producer: {writers.exclusive}")
        if writers.connected:
            raise ProducerFenced("Topic has existing shared producers")
    elif mode is AccessMode.WAIT_FOR_EXCLUSIVE and (held or writers.connected):
        return Wait()
    # Before anybody is fenced out: one that was fenced out itself and comes back shall not turn its successor away.
    if shown_epoch is not None and writers.epoch is not None and shown_epoch < writers.epoch:
        raise ProducerFenced(
            f"Topic epoch has already moved. Current epoch: {writers.epoch}, Producer epoch: {shown_epoch}"
        )
    # An epoch above the current one was never granted by this topic, but by one of its name that is gone, or by
    # nobody. It counts for nothing: taken over, it could leave no number for those who come next.
    epoch = next_epoch(writers.epoch) if shown_epoch is None or shown_epoch != writers.epoch else shown_epoch
    return Hold(epoch, fence=mode is AccessMode.EXCLUSIVE_WITH_FENCING and (held or writers.connected > 0))


def next_epoch(epoch: int | None) -> int:
    """The epoch of a new grant after this one."""
    return 0 if epoch is None else epoch + 1


class Writer(Protocol):
    """A producer, as far as others must know whom they find."""

    name: str


class Waiting(NamedTuple):
    """A producer in the queue, and what wakes it: a result when it is its turn, an error when it will never be."""

    producer: Writer
    turn: asyncio.Future[None]


class WriteAccess:
    """Who holds a topic alone and who waits to; nobody, on most topics."""

    __slots__ = ("epoch", "holder", "waiting")

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = None if epoch is None or epoch >= EPOCHS_STOP else epoch
        self.holder: Writer | None = None
        self.waiting: deque[Waiting] = deque()

    def seen(self, connected: int) -> Writers:
        """What a newcomer finds beside this many connected producers."""
        return Writers(
            connected=connected,
            exclusive=None if self.holder is None else self.holder.name,
            waiting=len(self.waiting),
            epoch=self.epoch,
        )

    def leave_queue(self, producer: Writer) -> None:
        """Wait no longer."""
        self.waiting = deque(one for one in self.waiting if one.producer is not producer)

    def turn_away_waiting(self, error: Exception) -> None:
        """Nobody who waits will get in."""
        waiting, self.waiting = self.waiting, deque()
        for one in waiting:
            if not one.turn.done():
                one.turn.set_exception(error)
