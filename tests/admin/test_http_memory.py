# SPDX-License-Identifier: Apache-2.0
"""What requests of the admin port take together: charged, bounded, given back; and probes are answered meanwhile."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from penstock.admin import http_memory
from penstock.admin.api import build
from penstock.admin.http_memory import BODY_FACTOR, CHARGE, VALUE_BYTES, HttpMemory
from penstock.admin.middleware import (
    ALWAYS_ANSWERED,
    BODY_BYTES_MAX,
    DROPPING_MAX,
    PIECE_BYTES,
    SCHEMA_BODY_BYTES_MAX,
    VALUES_MAX,
    RequestMiddleware,
    body_bytes_max,
)
from penstock.core.errors import ServiceNotReady
from penstock.core.units import MIB
from penstock.governance.budget import Row
from tests.admin.test_server import CannedGateway

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAMESPACE = "/admin/v2/namespaces/public/default"


class Caller:
    """Sends one request to an application, and takes its answer as slowly as a test likes."""

    def __init__(self, app: ASGIApp, *, path: str = "/", method: str = "POST", length: int | None = None) -> None:
        self._app = app
        headers = [(b"content-type", b"application/json")]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        self._scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
        self._scope |= {"query_string": b"", "headers": headers, "scheme": "http", "http_version": "1.1"}
        self._scope |= {"root_path": "", "client": ("caller", 1), "server": ("broker", 2)}
        self._sending: asyncio.Queue[Message] = asyncio.Queue()
        self.takes: int | None = None  # messages of the answer, before it stops to
        self.received: list[Message] = []
        self.task = asyncio.ensure_future(self._call())

    async def _call(self) -> None:
        async def send(message: Message) -> None:
            while self.takes is not None and len(self.received) >= self.takes:
                await turns(1)
            self.received.append(message)

        await self._app(self._scope, self._sending.get, send)

    def send(self, body: bytes, *, more: bool = False) -> None:
        self._sending.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def status(self) -> int:
        await self.task
        return int(self.received[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.received)

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.received[0]["headers"])


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_memory, "WAIT_S", 0.01)


@pytest.fixture(scope="module")
def whole() -> tuple[ASGIApp, Row]:
    """The application, which is slow to build, and the row that it charges."""
    row = Row("http", 4 * MIB)
    return build(CannedGateway(), HttpMemory(row)), row


async def test_what_fits_is_charged_at_once_and_what_does_not_waits_its_turn() -> None:
    row = Row("http", 100)
    memory = HttpMemory(row)
    with memory.charge() as first, memory.charge() as second, memory.charge() as third:
        await first.charge_when_free(80)
        await second.charge_when_free(50)  # one may go beyond
        assert row.used_bytes == 130
        waiting = asyncio.ensure_future(third.charge_when_free(30))
        await turns()
        assert not waiting.done()
        first.recharge(0)
        await waiting
        assert row.used_bytes == 80
    assert row.used_bytes == memory.used_bytes == 0


async def test_who_waits_for_too_long_is_told_to_come_again(hasty: None) -> None:
    row = Row("http", 100)
    memory = HttpMemory(row)
    with memory.charge() as first, memory.charge() as second:
        await first.charge_when_free(1_000)
        with pytest.raises(ServiceNotReady, match=r"1000 of 100 bytes.* 101 more"):
            await second.charge_when_free(101)
        assert row.refused_total == 1
    assert row.used_bytes == 0


async def test_who_stops_waiting_leaves_its_turn_to_the_next() -> None:
    row = Row("http", 100)
    memory = HttpMemory(row)
    with memory.charge() as first, memory.charge() as second, memory.charge() as third, memory.charge() as large:
        await first.charge_when_free(100)
        await large.charge_when_free(200)
        impatient = asyncio.ensure_future(second.charge_when_free(50))
        patient = asyncio.ensure_future(third.charge_when_free(60))
        await turns()
        assert not impatient.done()
        first.recharge(0)
        impatient.cancel()
        await patient
        large.recharge(0)
        assert row.used_bytes == 60


async def test_others_share_the_row_beside_the_one_request_beyond_it() -> None:
    row = Row("http", 100)
    memory = HttpMemory(row)
    with memory.charge() as large, memory.charge() as second, memory.charge() as third:
        await large.charge_when_free(1_000)
        await second.charge_when_free(100)
        waiting = asyncio.ensure_future(third.charge_when_free(1))
        await turns()
        assert not waiting.done()
        large.recharge(500)
        await turns()
        assert not waiting.done()
        second.recharge(99)
        await waiting
        assert row.used_bytes == 600


async def test_many_bodies_at_once_are_bounded_and_those_beyond_are_told_to_come_again(
    hasty: None, whole: tuple[ASGIApp, Row]
) -> None:
    app, row = whole
    callers = [Caller(app, path=f"{NAMESPACE}/permissions/role", length=BODY_BYTES_MAX) for _ in range(60)]
    for caller in callers:
        caller.send(b"[1" + b" " * (BODY_BYTES_MAX - 3), more=True)
    await turns()
    assert row.used_bytes <= 4 * MIB + BODY_FACTOR * BODY_BYTES_MAX
    probe = Caller(app, path="/metrics", method="GET")
    probe.send(b"")
    assert await probe.status() == 200
    await asyncio.sleep(0.05)
    for caller in callers:
        caller.send(b"]")
    answers = [await caller.status() for caller in callers]
    refused = [caller for caller, status in zip(callers, answers, strict=True) if status == 503]
    assert len(refused) > 50
    assert all(caller.headers[b"retry-after"] == b"1" for caller in refused)
    assert row.used_bytes == 0


async def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(whole: tuple[ASGIApp, Row]) -> None:
    caller = Caller(whole[0], path=f"{NAMESPACE}/permissions/role")
    caller.send(b"[" + b"1," * VALUES_MAX + b"1]")
    assert await caller.status() == 413
    assert json.loads(caller.body)["reason"] == f"the body has {VALUES_MAX + 2} values, and may have {VALUES_MAX}"


async def test_what_stands_in_a_text_is_no_value(whole: tuple[ASGIApp, Row]) -> None:
    caller = Caller(whole[0], path=f"{NAMESPACE}/permissions/role")
    caller.send(json.dumps(["[{," * 3 * VALUES_MAX + chr(34) + ","]).encode())
    assert await caller.status() == 400


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"1," * (VALUES_MAX - 2) + b"1]",
        b"[" + b"[]," * (VALUES_MAX // 2 - 2) + b"[]]",
        b"[" + b"{}," * (VALUES_MAX // 2 - 2) + b"{}]",
        b'["' + "\U0001f600".encode() * (BODY_BYTES_MAX // 4 - 2) + b'"]',
        b"[" + b'"' + b"a" * (BODY_BYTES_MAX - 6) + b'"]',
    ],
    ids=["numbers", "lists", "objects", "wide text", "text"],
)
@pytest.mark.parametrize("path", ["permissions/role", "messageTTL"])
async def test_a_body_takes_no_more_than_it_is_charged(body: bytes, path: str, whole: tuple[ASGIApp, Row]) -> None:
    app, row = whole
    warm = Caller(app, path=f"{NAMESPACE}/{path}")
    warm.send(b'["x"]')
    assert await warm.status() == 400
    caller = Caller(app, path=f"{NAMESPACE}/{path}")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        caller.send(body)
        assert await caller.status() == 400
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # What a failed request logs and remembers of its frames is a constant.
    assert taken <= BODY_FACTOR * len(body) + VALUE_BYTES * (1 + sum(map(body.count, (b",", b"[", b"{")))) + MIB
    assert row.used_bytes == 0


async def test_an_answer_that_nobody_takes_is_charged_and_handed_over_in_pieces() -> None:
    row = Row("http", MIB)
    answer = b"x" * (10 * PIECE_BYTES + 1)

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    caller = Caller(RequestMiddleware(app, memory=HttpMemory(row)), method="GET")
    caller.takes = 3
    await turns()
    assert row.used_bytes == len(answer)
    caller.takes = None
    assert await caller.status() == 200
    assert caller.body == answer
    assert max(len(message.get("body", b"")) for message in caller.received) == PIECE_BYTES
    assert [message.get("more_body", False) for message in caller.received] == [False, *[True] * 10, False]
    assert row.used_bytes == 0


async def test_large_answers_that_nobody_takes_are_one_beyond_the_row_at_most(hasty: None) -> None:
    row = Row("http", MIB)
    answer = b"x" * 5 * MIB

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            await scope[CHARGE].charge_when_free(2 * len(answer))  # as a route that reads an entry
        except ServiceNotReady:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    middleware = RequestMiddleware(app, memory=HttpMemory(row))
    callers = [Caller(middleware, method="GET") for _ in range(20)]
    for caller in callers:
        caller.takes = 3
    await turns()
    assert row.used_bytes == len(answer)
    await asyncio.wait([caller.task for caller in callers], timeout=0.1)
    assert row.used_bytes == len(answer)
    for caller in callers:
        caller.takes = None
    assert sorted([await caller.status() for caller in callers]) == [200, *[503] * 19]
    assert row.used_bytes == 0


async def test_more_requests_than_may_be_at_work_are_told_to_come_again_and_probes_are_answered() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    frame = RequestMiddleware(app, requests_max=3)
    held = [Caller(frame) for _ in range(3)]
    await turns()
    refused = Caller(frame)
    assert await refused.status() == 503
    assert refused.headers[b"retry-after"] == b"1"
    for path in ALWAYS_ANSWERED:
        probe = Caller(frame, path=path, method="GET")
        probe.send(b"")
        assert await probe.status() == 200
    for caller in held:
        caller.send(b"")
        assert await caller.status() == 200
    again = Caller(frame)
    again.send(b"")
    assert await again.status() == 200


def test_only_schemas_may_be_large() -> None:
    assert body_bytes_max("/admin/v2/schemas/public/default/t/schema") == SCHEMA_BODY_BYTES_MAX
    assert body_bytes_max(f"{NAMESPACE}/retention") == BODY_BYTES_MAX


async def test_whoever_sends_too_much_may_send_the_rest_of_it_and_so_gets_to_read_why() -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("it is refused before")

    caller = Caller(RequestMiddleware(app), length=BODY_BYTES_MAX + 1)
    await turns()
    assert json.loads(caller.body)["reason"].endswith(f"and may have {BODY_BYTES_MAX}")
    assert not caller.task.done()
    caller.send(b" " * BODY_BYTES_MAX, more=True)
    await turns()
    assert not caller.task.done()
    caller.send(b" ")
    assert await caller.status() == 413


async def test_a_flood_of_bodies_too_large_is_not_read() -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("it is refused before")

    frame = RequestMiddleware(app)
    callers = [Caller(frame, length=BODY_BYTES_MAX + 1) for _ in range(60)]
    await turns()
    assert sum(caller.task.done() for caller in callers) == 60 - DROPPING_MAX
    for caller in callers:
        caller.send(b"")
        assert await caller.status() == 413
