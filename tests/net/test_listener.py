# SPDX-License-Identifier: Apache-2.0
"""Accepting connections when the process has no more descriptors for them."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from penstock.net.listener import RESERVED_DESCRIPTORS
from penstock.testing.client import Type
from tests.net.harness import SMALL, Client, Harness, connect, running, turns, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def descriptors(limit: int) -> Iterator[None]:
    """Allow this process so many open files for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def taken_descriptors() -> Iterator[None]:
    """Leave this process without a single descriptor for a while."""
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says about not accepting."""
    return [record.getMessage() for record in caplog.records if "cannot accept" in record.msg]


async def test_connections_leave_descriptors_to_the_log_and_those_without_one_wait(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    with descriptors(RESERVED_DESCRIPTORS + 2):
        first, second = await Client.producing(harness.port), await Client.connected(harness.port)
        third = await Client.open(harness.port)
        third.write(connect())
        await until(lambda: lines(caplog))
        await turns()
        assert len(harness.connections) == 2

        first.publish(SMALL)
        assert await first.receipts(1) == [0]
        second.abort()
        await third.expect(Type.CONNECTED)
    assert len(lines(caplog)) == 1


@pytest.mark.real
async def test_a_process_out_of_descriptors_says_so_once_and_accepts_when_it_has_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.net.listener.RESERVED_DESCRIPTORS", 0)
    async with running(tmp_path) as broker:
        with socket.socket() as sock, descriptors(1000), taken_descriptors():
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", broker.port))
            await until(lambda: lines(caplog))
            assert len(broker.connections) == 0
            assert "open files" in lines(caplog)[0]
        await until(lambda: broker.connections.accepted == 1)
        assert len(lines(caplog)) == 1
