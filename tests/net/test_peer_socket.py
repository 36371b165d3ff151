# SPDX-License-Identifier: Apache-2.0
"""Inboxes: how a broker gets connections that nobody else can make."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.core.caller import NOBODY
from penstock.core.clock import DEADLINE_S
from penstock.core.errors import ServiceNotReady
from penstock.net.peer_socket import Inbox, accept, connect, open_inbox
from penstock.net.peers import Peers

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

# What the kernel may let wait for a broker that takes nothing; a limit of it, not of ours.
WAITING_MAX = 2_000


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    opened = open_inbox()
    yield opened
    opened.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_sent_on_one_end_of_a_connection_is_received_at_the_other(inbox: Inbox) -> None:
    with connect(inbox.sending) as one, connect(inbox.sending) as other:
        with accept(inbox.receiving) as first, accept(inbox.receiving) as second:
            for near, far in ((one, first), (second, other)):
                near.sendall(b"hello")
                assert far.recv(10) == b"hello"
            assert first.gettimeout() == one.gettimeout() == 0
            assert not first.get_inheritable()
            assert not one.get_inheritable()
        assert one.recv(10) == b""


def test_nothing_about_it_has_a_name_that_others_could_connect_to(inbox: Inbox) -> None:
    with connect(inbox.sending) as near, accept(inbox.receiving) as far:
        for sock in (*inbox, near, far):
            assert sock.getsockname() == sock.getpeername() == ""
            with pytest.raises(OSError, match="No such device or address"):
                os.open(f"/proc/self/fd/{sock.fileno()}", os.O_RDWR)


def test_connections_wait_for_a_broker_that_does_not_take_them_yet(inbox: Inbox) -> None:
    with pytest.raises(BlockingIOError):
        accept(inbox.receiving)
    with connect(inbox.sending) as near:
        near.sendall(b"early")
        with accept(inbox.receiving) as far:
            assert far.recv(10) == b"early"


async def test_a_broker_that_takes_nothing_is_not_waited_for_and_leaves_no_descriptors(inbox: Inbox) -> None:
    before = descriptors()
    waiting: list[socket.socket] = []
    with contextlib.suppress(BlockingIOError):
        while len(waiting) <= WAITING_MAX:
            waiting.append(connect(inbox.sending))
    assert len(waiting) < WAITING_MAX
    with pytest.raises(ServiceNotReady, match="broker 1 of this cluster does not answer"):
        await Peers({1: inbox.sending}).ask(1, "GET", "/", by=NOBODY)
    assert descriptors() == before + len(waiting)
    for each in waiting:
        each.close()
    # Once it goes on, those that gave up meanwhile are over at once.
    with accept(inbox.receiving) as far:
        assert far.recv(10) == b""
    with connect(inbox.sending):
        pass


async def test_a_broker_that_has_ended_for_good_is_not_waited_for(inbox: Inbox) -> None:
    with connect(inbox.sending) as near:
        near.setblocking(True)
        inbox.receiving.close()
        assert near.recv(10) == b"", "its inbox is gone, and what waited there"
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        connect(inbox.sending)
    with pytest.raises(ServiceNotReady, match="broker 1 of this cluster does not answer"):
        await Peers({1: inbox.sending}).ask(1, "GET", "/", by=NOBODY)


async def test_a_broker_that_answers_nothing_has_less_time_than_whoever_asks_and_is_told_so(inbox: Inbox) -> None:
    loop = asyncio.get_running_loop()
    DEADLINE_S.set(loop.time() + 0.5)
    with pytest.raises(ServiceNotReady, match="broker 1 of this cluster does not answer"):
        await Peers({1: inbox.sending}).ask(1, "GET", "/", by=NOBODY)
    deadline_s = DEADLINE_S.get()
    assert deadline_s is not None
    assert loop.time() < deadline_s, "there is time to say so"
    with accept(inbox.receiving) as far:
        told = re.search(rb"x-penstock-within-ms: (\d+)\r\n", far.recv(1_000))
    assert told is not None
    assert 300 < int(told[1]) < 450


def test_a_message_without_a_connection_is_passed_over(inbox: Inbox) -> None:
    inbox.sending.send(b"\0")
    with pytest.raises(ConnectionAbortedError):
        accept(inbox.receiving)
    with connect(inbox.sending) as near, accept(inbox.receiving) as far:
        near.sendall(b"next")
        assert far.recv(10) == b"next"
