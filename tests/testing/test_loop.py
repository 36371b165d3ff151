# SPDX-License-Identifier: Apache-2.0
"""An event loop in virtual time, its threads and its network."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from penstock.core.units import KIB, MIB, NS_PER_MS, NS_PER_S
from penstock.storage import segment
from penstock.testing.disk import VirtualDisk
from penstock.testing.loop import Deadlock, VirtualClock, VirtualLoop, run_virtual

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.testing.sockets import MemorySocket


def virtual_loop() -> VirtualLoop:
    """The loop that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


# -- time


def test_an_hour_passes_when_nothing_else_is_to_be_done() -> None:
    async def main() -> float:
        await asyncio.sleep(3_600)
        return virtual_loop().time()

    assert run_virtual(main()) == 3_600


def test_what_is_ready_goes_before_any_timer() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        loop = virtual_loop()
        loop.call_later(0.001, seen.append, "timer")
        for _ in range(100):
            await asyncio.sleep(0)
        seen.append("ready")
        await asyncio.sleep(1)
        return seen

    assert run_virtual(main()) == ["ready", "timer"]


def test_a_clock_that_is_advanced_makes_timers_due() -> None:
    async def main() -> int:
        loop = virtual_loop()
        clock = VirtualClock(loop.virtual_time)
        sleeping = asyncio.create_task(asyncio.sleep(10))
        await loop.quiet()
        clock.advance(ms=9_999)
        await loop.quiet()
        assert not sleeping.done()
        clock.advance(ms=1)
        await loop.quiet()
        assert sleeping.done()
        return clock.monotonic_ns()

    assert run_virtual(main()) == 10 * NS_PER_S


def test_the_wall_clock_is_set_without_time_passing() -> None:
    async def main() -> tuple[int, int]:
        clock = VirtualClock(virtual_loop().virtual_time, wall_ms=5_000)
        clock.step_wall(ms=-1_000)
        await asyncio.sleep(0.25)
        return clock.monotonic_ns(), clock.wall_ms()

    assert run_virtual(main()) == (250 * NS_PER_MS, 4_250)


def test_who_waits_for_what_can_never_happen_is_told() -> None:
    async def main() -> None:
        await virtual_loop().create_future()

    with pytest.raises(Deadlock, match="nothing can happen any more"):
        run_virtual(main())


def test_until_goes_on_in_the_turn_in_which_it_is_so() -> None:
    async def main() -> float:
        loop, seen = virtual_loop(), list[int]()
        loop.call_later(2, seen.append, 1)
        loop.call_later(3, seen.append, 2)
        await loop.until(lambda: seen, 10)
        assert seen == [1]
        return loop.time()

    assert run_virtual(main()) == 2


@pytest.mark.parametrize("busy", [False, True])
def test_until_fails_at_once_in_real_time(*, busy: bool) -> None:
    async def main() -> None:
        loop = virtual_loop()
        ticking = asyncio.create_task(tick()) if busy else None
        with pytest.raises(Deadlock, match="time is over" if busy else "nothing can happen"):
            await loop.until(lambda: False, 10)
        assert loop.time() == (10 if busy else 0)
        if ticking is not None:
            ticking.cancel()

    async def tick() -> None:
        for _ in range(1_000):
            await asyncio.sleep(1)

    run_virtual(main())


def test_an_error_of_the_condition_is_that_of_the_one_who_waits() -> None:
    async def main() -> None:
        loop, seen = virtual_loop(), list[int]()
        loop.call_later(1, seen.append, 0)
        with pytest.raises(ZeroDivisionError):
            await loop.until(lambda: seen and 1 // seen[0], 10)

    run_virtual(main())


# -- threads


def test_a_thread_runs_while_the_loop_waits_for_it() -> None:
    async def main() -> str:
        return await asyncio.to_thread(lambda: threading.current_thread().name)

    assert run_virtual(main()).startswith("default")


def test_while_a_thread_waits_for_the_disk_the_loop_goes_on(tmp_path: Path) -> None:
    async def main() -> tuple[bool, float]:
        loop = virtual_loop()
        disk = VirtualDisk(loop)
        disk.sync_ns = lambda: 5 * NS_PER_MS
        file = disk.open(tmp_path / "meta.sqlite", create=True)
        syncing = loop.run_in_executor(None, file.sync)
        await asyncio.sleep(0.004)
        early = syncing.done()
        await syncing
        return early, loop.time()

    assert run_virtual(main()) == (False, 0.005)


def test_modules_of_penstock_get_their_threads_here_until_the_loop_is_closed() -> None:
    real = vars(segment)["threading"]

    async def main() -> bool:
        seen: Callable[[], object] = vars(segment)["threading"].Condition
        return seen == virtual_loop().threads.condition and seen is not real.Condition

    assert run_virtual(main())
    assert vars(segment)["threading"] is real


def test_a_thread_that_is_waited_for_in_vain_is_a_deadlock() -> None:
    async def main() -> None:
        threads = virtual_loop().threads
        never = threads.event()
        thread = threads.thread(target=never.wait)
        thread.start()
        with pytest.raises(Deadlock):
            thread.join()

    run_virtual(main())


def test_threads_that_share_a_lock_have_it_in_turns() -> None:
    async def main() -> list[int]:
        loop, seen = virtual_loop(), list[int]()
        lock = loop.threads.lock()

        def work(number: int) -> None:
            with lock:
                seen.append(number)
                loop.threads.sleep(NS_PER_S)
                seen.append(number)

        await asyncio.gather(*[loop.run_in_executor(None, work, number) for number in range(3)])
        assert loop.time() == 3
        return seen

    seen = run_virtual(main())
    assert seen[::2] == seen[1::2]
    assert sorted(seen[::2]) == [0, 1, 2]


def test_a_thread_that_was_abandoned_is_not_woken() -> None:
    async def main() -> None:
        threads = virtual_loop().threads
        event = threads.event()
        thread = threads.thread(target=event.wait)
        thread.start()
        await asyncio.sleep(1)
        threads.abandon()
        event.set()
        await asyncio.sleep(1)
        assert not thread.is_alive()

    run_virtual(main())


def test_the_order_of_threads_is_the_seeds() -> None:
    async def main() -> list[int]:
        loop, seen = virtual_loop(), list[int]()
        for number in range(4):
            loop.threads.thread(target=partial(seen.append, number)).start()
        await loop.quiet()
        return seen

    orders = {seed: run_virtual(main(), seed=seed) for seed in range(20)}
    assert len({tuple(order) for order in orders.values()}) > 3
    assert all(run_virtual(main(), seed=seed) == order for seed, order in orders.items())


def test_an_event_and_a_queue_wait_no_longer_than_they_are_told() -> None:
    async def main() -> float:
        threads = virtual_loop().threads

        def work() -> None:
            assert not threads.event().wait(2)
            with pytest.raises(queue.Empty):
                threads.queue().get(timeout=3)

        await asyncio.to_thread(work)
        return virtual_loop().time()

    assert run_virtual(main()) == 5


# -- the network


def connected(buffer_bytes: int = 64 * KIB) -> tuple[MemorySocket, MemorySocket]:
    """Two ends of a connection; the listener's buffers are of this size."""
    network = virtual_loop().network
    listener = network.socket()
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        listener.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    near = network.connect(listener.getsockname()[1])
    far, address = listener.accept()
    assert address == near.getsockname() == far.getpeername()
    listener.close()
    return near, cast("MemorySocket", far)


def test_bytes_come_as_they_were_sent_and_then_the_end() -> None:
    async def main() -> None:
        near, far = connected()
        assert near.sendmsg([b"abc", b"def"]) == 6
        assert far.recv(2, socket.MSG_PEEK) == b"ab"
        first, second = bytearray(4), bytearray(4)
        assert far.recvmsg_into([first, second])[0] == 6
        assert (bytes(first), bytes(second)) == (b"abcd", b"ef\0\0")
        with pytest.raises(BlockingIOError):
            far.recv(1)
        near.send(b"last")
        near.close()
        assert far.recv(10) == b"last"
        assert far.recv(10) == b""

    run_virtual(main())


def test_who_does_not_read_blocks_who_sends() -> None:
    async def main() -> None:
        near, far = connected()
        sent = near.send(bytes(MIB))
        assert 0 < sent < MIB
        with pytest.raises(BlockingIOError):
            near.send(b"x")
        assert not near.events()
        far.recv(sent // 4)
        assert not near.events()  # as Linux: a third must be free
        far.recv(sent // 4)
        assert near.events()

    run_virtual(main())


def test_who_sends_to_a_closed_end_is_reset() -> None:
    async def main() -> None:
        near, far = connected()
        far.close()
        near.send(b"x")
        with pytest.raises(ConnectionResetError):
            near.recv(1)
        with pytest.raises(OSError, match="Bad file"):
            far.send(b"x")

    run_virtual(main())


def test_who_closes_with_unread_bytes_resets_the_other() -> None:
    async def main() -> None:
        near, far = connected()
        near.send(b"unread")
        far.close()
        with pytest.raises(ConnectionResetError):
            near.recv(1)

    run_virtual(main())


def test_asyncio_connects_to_a_listener_of_this_network() -> None:
    async def main() -> bytes:
        loop = virtual_loop()
        listener = loop.network.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        far, _ = listener.accept()
        writer.write(bytes(4 * MIB))
        received = 0
        while received < 4 * MIB:
            await loop.quiet()
            received += len(far.recv(MIB))
        far.send(b"answer")
        far.close()
        answer = await reader.read()
        writer.close()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        return answer

    assert run_virtual(main()) == b"answer"


def test_a_real_socket_is_refused() -> None:
    async def main() -> None:
        with socket.socket() as sock, pytest.raises(ValueError, match="needs a real loop"):
            virtual_loop().add_reader(sock, print)

    run_virtual(main())
