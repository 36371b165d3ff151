# SPDX-License-Identifier: Apache-2.0
"""Requests of other brokers: that a broker sends them says nothing of what may be done. Real HTTP, by an inbox."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from fastapi import APIRouter

from penstock.admin import api
from penstock.broker.access.rules import AccessRules
from penstock.core.caller import CALLER, HEADER, NOBODY, BrokerItself, Caller, encode_asker
from penstock.net.peer_socket import connect, open_inbox
from penstock.net.peers import Peers
from penstock.testing.certificates import Certificate
from tests.admin.test_access import bearer, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway
    from penstock.core.caller import Asker
    from penstock.net.peer_socket import Inbox
    from tests.admin.test_access import Admin

RULES = AccessRules(authorizing=True, super_user_roles=frozenset({"admin", "proxy"}), proxy_roles=frozenset({"proxy"}))
ME = BrokerItself(1)


def of_token(role: str, original_role: str | None = None) -> Caller:
    return Caller(role, "token", original_role)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def _only_these_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred other routes take a second to build."""

    def whose(_gateway: Gateway, needs: Needs) -> APIRouter:
        router = APIRouter()

        @router.get("/caller", dependencies=[needs.nobody])
        async def caller() -> str:
            return CALLER.get().role

        return router

    monkeypatch.setattr(api, "GROUPS", (whose,))


@asynccontextmanager
async def asked(directory: Path, certificate: Certificate) -> AsyncIterator[tuple[Admin, Inbox]]:
    inbox = open_inbox()
    try:
        async with serving(directory, certificate, rules=RULES, peers=inbox.receiving) as admin:
            yield admin, inbox
    finally:
        inbox.close()


async def status(inbox: Inbox, path: str, by: Asker) -> int:
    async with Peers({0: inbox.sending}).send(0, "GET", path, by=by) as response:
        return response.status


async def answer(inbox: Inbox, request: str) -> str:
    """What a connection of a broker is answered to a request that no broker sends."""
    reader, writer = await asyncio.open_unix_connection(sock=connect(inbox.sending))
    writer.write(request.encode())
    text = (await reader.read()).decode()
    writer.close()
    return text


async def test_a_caller_may_do_over_another_broker_what_it_may_do_itself(
    tmp_path: Path, certificate: Certificate
) -> None:
    async with asked(tmp_path, certificate) as (admin, inbox):
        for path in (
            "/superuser",
            "/tenant_admin/shop",
            "/tenant_admin/other",
            "/namespace_admin/shop/orders",
            "/list/shop/orders",
            "/lookup/persistent/shop/orders/t",
            "/produce/persistent/shop/orders/t",
            "/consume/persistent/shop/orders/t/any",
            "/consume/persistent/shop/orders/t/mine",
            "/anybody",
        ):
            for role in ("admin", "owner", "writer", "reader", "nobody", "admin ", "Admin"):
                own = await admin.status(path, role)
                assert await status(inbox, path, of_token(role)) == own, (path, role)


async def test_a_proxy_and_its_client_are_both_authorized_again(tmp_path: Path, certificate: Certificate) -> None:
    async with asked(tmp_path, certificate) as (_, inbox):
        assert await status(inbox, "/superuser", of_token("proxy", "admin")) == 200
        assert await status(inbox, "/superuser", of_token("proxy", "owner")) == 403
        assert await status(inbox, "/superuser", of_token("proxy")) == 403
        assert await status(inbox, "/superuser", of_token("admin", "owner")) == 403
        assert await status(inbox, "/tenant_admin/shop", of_token("proxy", "owner")) == 200


async def test_a_broker_itself_works_on_topics_and_is_no_superuser(tmp_path: Path, certificate: Certificate) -> None:
    async with asked(tmp_path, certificate) as (_, inbox):
        for path, expected in {
            "/lookup/persistent/shop/orders/t": 200,
            "/consume/persistent/shop/orders/t/any": 200,
            "/namespace_admin/shop/orders": 200,
            "/produce/persistent/shop/orders/t": 403,
            "/tenant_admin/shop": 403,
            "/superuser": 403,
            "/anybody": 403,
        }.items():
            assert await status(inbox, path, ME) == expected, path


async def test_a_request_that_does_not_say_who_asks_is_refused(tmp_path: Path, certificate: Certificate) -> None:
    async with asked(tmp_path, certificate) as (_, inbox):
        assert await status(inbox, "/anybody", NOBODY) == 401, "nobody was authenticated"
        for line in (
            "",
            f"{HEADER}: \r\n",
            f"{HEADER}: admin\r\n",
            f"{HEADER}: caller;admin\r\n",
            f"{HEADER}: broker;1, broker;1\r\n",
            f"authorization: {bearer('admin')}\r\n",
            "x-original-principal: admin\r\n",
        ):
            text = await answer(inbox, f"GET /superuser HTTP/1.0\r\nhost: x\r\n{line}\r\n")
            assert text.startswith("HTTP/1.1 401 "), (line, text)
            assert '{"reason":"a broker has passed on a request, and' in text, "an error, for whoever looks for it"


async def test_a_client_that_says_it_is_a_broker_is_asked_for_credentials(
    tmp_path: Path, certificate: Certificate
) -> None:
    async with asked(tmp_path, certificate) as (admin, _):
        for asker in (ME, of_token("admin")):
            assert HEADER == "x-penstock-caller"
            claims = encode_asker(asker)
            assert (await admin.get("/superuser", X_Penstock_Caller=claims)).status_code == 401
            assert (await admin.get("/superuser", bearer("nobody"), X_Penstock_Caller=claims)).status_code == 403


async def test_a_request_never_has_the_caller_of_the_one_before_it(tmp_path: Path, certificate: Certificate) -> None:
    first = f"GET /superuser HTTP/1.1\r\nhost: x\r\nauthorization: {bearer('admin')}\r\n\r\n"
    second = "GET /caller HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    async with asked(tmp_path, certificate) as (admin, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.server.port)
        writer.write((first + second).encode())
        text = (await reader.read()).decode()
        writer.close()
        assert text.endswith('""'), "of both requests, that came at once on one connection"
        assert '"here"' in text
