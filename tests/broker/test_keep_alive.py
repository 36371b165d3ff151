# SPDX-License-Identifier: Apache-2.0
"""Whether a client still answers, told by plain objects: no socket, no broker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from penstock.core.units import NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.muting import MuteReasons
from penstock.net.keep_alive import KeepAlive
from penstock.wire import codec

if TYPE_CHECKING:
    from penstock.net.connection import Connection


@dataclass(frozen=True)
class Limits:
    keep_alive_ns: int = 30 * NS_PER_S
    liveness_check_ns: int = 5 * NS_PER_S


LIMITS = Limits()


class Line:
    """A connection, as far as its keep-alive looks at it."""

    def __init__(self) -> None:
        self.muted = MuteReasons()
        self.read_count = self.bytes_out = 0
        self.frames: list[bytes] = []
        self.closed: str | None = None

    @property
    def is_open(self) -> bool:
        return self.closed is None

    def write_frame(self, frame: bytes) -> None:
        self.frames.append(frame)

    def close(self, reason: str) -> None:
        self.closed = self.closed or reason


def of(line: Line) -> KeepAlive:
    return KeepAlive(cast("Connection", line), lambda: LIMITS, now_ns=0)


def look(keep_alive: KeepAlive, *intervals: int) -> None:
    for interval in intervals:
        keep_alive.check(interval * LIMITS.keep_alive_ns, connected=True)


def test_a_client_that_stays_silent_is_asked_once_and_then_closed() -> None:
    line = Line()
    keep_alive = of(line)
    keep_alive.check(LIMITS.keep_alive_ns - 1, connected=True)
    assert line.frames == []
    look(keep_alive, 1)
    assert (line.frames, line.closed) == ([codec.ping()], None)
    look(keep_alive, 2)
    assert (line.frames, line.closed) == ([codec.ping()], "no answer to PING")


def test_whatever_a_client_sends_is_an_answer() -> None:
    line = Line()
    keep_alive = of(line)
    for interval in range(1, 5):
        look(keep_alive, interval)
        line.read_count += 1
    assert (len(line.frames), line.closed) == (4, None)


def test_a_pong_is_an_answer_even_if_it_came_with_what_was_counted_before() -> None:
    line = Line()
    keep_alive = of(line)
    look(keep_alive, 1)
    keep_alive.answered()
    look(keep_alive, 2)
    assert line.closed is None


def test_a_client_that_does_not_connect_is_closed_without_being_asked() -> None:
    line = Line()
    of(line).check(LIMITS.keep_alive_ns, connected=False)
    assert (line.frames, line.closed) == ([], "no CONNECT within the keep-alive interval")


def test_a_client_that_is_not_read_is_excused_unless_it_takes_no_answers() -> None:
    for reason, taken, closed in (
        (HoldKind.PUBLISH_RATE, 0, None),
        (HoldKind.OUTBOUND, 1, None),
        (HoldKind.OUTBOUND, 0, "no answer to PING"),
    ):
        line = Line()
        keep_alive = of(line)
        line.muted.add(reason, now_ns=0)
        look(keep_alive, 1)
        line.bytes_out += taken
        look(keep_alive, 2)
        assert line.closed == closed, (reason, taken)


async def test_all_who_ask_at_once_share_one_ping_and_its_answer() -> None:
    line = Line()
    keep_alive = of(line)
    asking = [asyncio.ensure_future(keep_alive.probe()) for _ in range(3)]
    await asyncio.sleep(0)
    assert line.frames == [codec.ping()]
    line.read_count += 1
    keep_alive.heard()
    assert await asyncio.gather(*asking) == [True] * 3


async def test_a_client_that_does_not_answer_a_probe_is_closed() -> None:
    line = Line()
    assert not await of(line).probe()
    assert line.closed == "no answer to a liveness probe"
    assert not await of(line).probe()


async def test_who_is_not_read_cannot_answer_and_counts_as_alive() -> None:
    line = Line()
    line.muted.add(HoldKind.STORAGE, now_ns=0)
    assert await of(line).probe()
    assert line.frames == []
