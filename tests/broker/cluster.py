# SPDX-License-Identifier: Apache-2.0
"""Several brokers on one virtual loop, which follow one writer of the metadata as the processes of a supervisor do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

import httpx

from penstock.admin.gateway import BrokerGateway
from penstock.admin.middleware import PEER
from penstock.broker.composition.administration import administration
from penstock.core.caller import HEADER, encode_asker
from penstock.core.errors import ServiceNotReady
from penstock.core.membership import ready
from penstock.core.service_urls import Addresses, ServiceUrls
from penstock.net.client import AsyncClient
from penstock.net.metadata_link import follow, serve
from penstock.net.peers import value_of
from penstock.net.usage_topic import Reporting
from penstock.storage.directory import open_data_directory
from penstock.storage.shared_writer import Writer
from penstock.testing.vfs import sqlite_on
from tests.admin.application import before
from tests.net.harness import compose, disk_of, nothing_left

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Container, Sequence
    from pathlib import Path

    from starlette.types import ASGIApp

    from penstock.core.caller import Asker
    from penstock.core.membership import Registry
    from penstock.testing.loop import VirtualLoop
    from tests.net.harness import Harness

# Signs the usage reports of these brokers.
KEY: Final = b"the key of these brokers"


@contextlib.asynccontextmanager
async def several(directory: Path, brokers: int = 2, **how: Any) -> AsyncIterator[list[Harness]]:  # noqa: ANN401
    """Run brokers, as `begin` makes them; at the end all must stop, and leave no memory in use."""
    async with contextlib.AsyncExitStack() as stack:
        harnesses = await begin(stack, directory, brokers, **how)
        yield harnesses
    for harness in harnesses:
        await nothing_left(harness)


async def begin(
    stack: contextlib.AsyncExitStack,
    directory: Path,
    brokers: int = 2,
    registries: Sequence[Registry | None] | None = None,
    silent: Container[int] = (),
    writers: list[Writer] | None = None,
    **limits: Any,  # noqa: ANN401
) -> list[Harness]:
    """Start brokers that all serve, with these limits; closing `stack` stops them.

    Args:
        stack: as above.
        directory: the data directory is in it.
        brokers: how many.
        registries: where each one registers.
        silent: those that answer nothing to the others.
        writers: gets the writer of the shared metadata, for whoever takes its power.
        limits: of each.
    """
    loop = cast("VirtualLoop", asyncio.get_running_loop())
    disk = disk_of(loop)
    vfs = stack.enter_context(sqlite_on(disk))
    data = open_data_directory(directory / "data", disk, brokers=brokers)

    def post(call: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(call)

    writer = Writer.open(data, post, disk, brokers=brokers, exclusive=True, vfs=vfs)
    stack.callback(writer.close)
    if writers is not None:
        writers.append(writer)
    where = [Addresses(service=ServiceUrls(f"pulsar://broker-{number}:6650", None)) for number in range(brokers)]
    writer.set_members([ready(number, addresses) for number, addresses in enumerate(where)])
    harnesses: list[Harness] = []
    requests = AdminRequests(harnesses, silent)

    async def dial(number: int) -> AsyncClient:
        if number >= len(harnesses):
            raise ConnectionRefusedError(f"broker {number} does not serve yet")
        return await AsyncClient.open("127.0.0.1", harnesses[number].peer_port)

    for number in range(brokers):
        near, far = socket_pair(loop)
        stack.callback(await serve(writer, near))
        follower, end = await follow(number, far)
        stack.callback(end)
        made = compose(
            stack,
            directory,
            membership=follower.membership,
            shared=follower,
            addresses=where[number],
            peers=requests,
            reporting=Reporting(dial, KEY),
            registry=registries[number] if registries is not None else None,
            **limits,
        )
        harnesses.append(made)
    return harnesses


class AdminRequests:
    """Requests to the admin APIs of these brokers, without sockets."""

    def __init__(self, harnesses: Sequence[Harness], silent: Container[int]) -> None:
        self._harnesses = harnesses
        self._silent = silent
        self._apps: dict[int, ASGIApp] = {}

    async def ask(self, broker: int, method: str, target: str, value: object = None, *, by: Asker) -> Any:  # noqa: ANN401
        """As `Peers.ask`."""
        if broker in self._silent:
            await asyncio.Event().wait()
        if broker >= len(self._harnesses):
            raise ServiceNotReady(f"broker {broker} does not serve yet")
        if broker not in self._apps:
            asked = self._harnesses[broker].broker
            gateway = BrokerGateway(lambda: administration(asked, for_peers=True), asked.loop, lambda _: [])
            self._apps[broker] = before(gateway, {PEER: True})
        transport = httpx.ASGITransport(self._apps[broker])
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
            with loop.real_work():  # Routes run in threads, which are real.
                answer = await client.request(method, target, json=value, headers={HEADER: encode_asker(by)})
        is_json = answer.headers.get("content-type") == "application/json"
        return value_of(broker, answer.status_code, answer.json() if is_json else None)


def socket_pair(loop: VirtualLoop) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets of the loop."""
    listener = loop.network.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    near = loop.network.connect(listener.getsockname()[1])
    far, _ = listener.accept()
    listener.close()
    return cast("socket.socket", near), far
