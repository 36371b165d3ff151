# SPDX-License-Identifier: Apache-2.0
"""A signal reaches the loop also when its pipe is full, and when it sleeps."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.net.stopping import Signals
from tests.net.harness import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

# More than any pipe holds of single bytes.
REPORTS = 100_000


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.real
async def test_a_signal_is_heard_when_threads_have_filled_the_pipe_of_a_busy_loop() -> None:
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    reported = 0

    def count() -> None:
        nonlocal reported
        reported += 1

    def report() -> None:
        for _ in range(REPORTS):
            loop.call_soon_threadsafe(count)

    with Signals(loop) as signals:
        signals.on(signal.SIGUSR1, heard.set)
        thread = threading.Thread(target=report)
        thread.start()
        thread.join()  # The loop is busy all the time.
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(TIMEOUT_S):
            await heard.wait()
    assert reported == REPORTS


@pytest.mark.real
async def test_a_signal_wakes_a_loop_that_has_nothing_to_do() -> None:
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    with Signals(loop) as signals:
        signals.on(signal.SIGUSR1, heard.set)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        async with asyncio.timeout(TIMEOUT_S):
            await heard.wait()
        assert not signals.unheard([signal.SIGUSR1])


@pytest.mark.real
async def test_a_thread_knows_of_a_signal_that_a_loop_that_hangs_has_not_heard() -> None:
    heard, seen = asyncio.Event(), []
    looked = threading.Event()
    with Signals(asyncio.get_running_loop()) as signals:
        signals.on(signal.SIGUSR1, heard.set)

        def look() -> None:
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # It has come when this returns.
            seen.append((signals.unheard([signal.SIGUSR1]), signals.unheard([signal.SIGTERM]), heard.is_set()))
            looked.set()

        threading.Thread(target=look).start()
        looked.wait()  # The loop does not turn.
        assert seen == [(True, False, False)]
        async with asyncio.timeout(TIMEOUT_S):
            await heard.wait()
        await asyncio.sleep(0)
        assert not signals.unheard([signal.SIGUSR1])
