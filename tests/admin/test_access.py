# SPDX-License-Identifier: Apache-2.0
"""Who may call which route: real HTTP, with and without TLS, in front of a whole broker on the test's loop."""

from __future__ import annotations

import asyncio
import base64
import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request

from penstock.admin import api, http_server
from penstock.admin.access import Needs, unguarded
from penstock.admin.gateway import BrokerGateway
from penstock.admin.server import AdminServer, HttpLimits
from penstock.authentication.authenticator import Authenticator
from penstock.authentication.credentials import ProviderOptions
from penstock.broker.access.rules import AccessRules
from penstock.broker.composition.administration import administration
from penstock.net.listener import listen_for_callers
from penstock.net.tls import TlsOptions, server_context
from penstock.testing.certificates import Certificate
from penstock.testing.tokens import SECRET, data_url, token, unsigned
from tests.net.harness import running, until

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.admin.gateway import Gateway
    from penstock.admin.http_memory import HttpMemory
    from penstock.broker.broker import Broker

NOW_S = 1_700_000_000
USERS = "admin:$apr1$xyz12345$qRX/glElflL3JeMb2ocXi0\n"
RULES = AccessRules(authorizing=True, super_user_roles=frozenset({"admin"}), proxy_roles=frozenset({"proxy"}))
OPTIONS = ProviderOptions(
    methods=frozenset({"token", "basic", "tls"}),
    token_secret_key=data_url(SECRET),
    basic_users=data_url(USERS.encode()),
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls(certificate: Certificate) -> ssl.SSLContext:
    options = TlsOptions(certificate=certificate.certificate, key=certificate.key, trust=certificate.certificate)
    return server_context(options)


def route_for_each_need(gateway: Gateway, memory: HttpMemory) -> FastAPI:
    """The application, and in it a route for each kind of check, which answers whoever gets there."""
    app, needs, router = api.build(gateway, memory), Needs(gateway), APIRouter()

    async def here() -> str:
        return "here"

    for path, need in {
        "nobody": needs.nobody,
        "anybody": needs.anybody,
        "superuser": needs.superuser,
        "tenant_admin/{tenant}": needs.tenant_admin,
        "namespace_admin/{tenant}/{namespace}": needs.namespace_admin,
        "lookup/{domain}/{tenant}/{namespace}/{topic}": needs.topic_lookup,
        "list/{tenant}/{namespace}": needs.topic_lookup,
        "produce/{domain}/{tenant}/{namespace}/{topic}": needs.produce,
        "consume/{domain}/{tenant}/{namespace}/{topic}/{subscription}": needs.consume,
    }.items():
        router.get(f"/{path}", dependencies=[need])(here)
    app.include_router(router)

    @app.post("/superuser", dependencies=[needs.superuser])
    async def there(body: dict[str, str]) -> dict[str, str]:
        return body

    @app.post("/echo", dependencies=[needs.nobody])
    async def echo(request: Request) -> int:
        return len(await request.body())

    return app


class Admin:
    """Calls the ports of a broker."""

    def __init__(self, broker: Broker, server: AdminServer, certificate: Certificate) -> None:
        self.broker = broker
        self.server = server
        self._certificate = certificate

    async def get(
        self,
        path: str,
        shows: str | None = None,
        certificate: Certificate | None = None,
        **headers: str,
    ) -> httpx.Response:
        """Ask, over TLS when there is a certificate to show."""
        if shows is not None:
            headers["Authorization"] = shows
        context = self._certificate.client(shows=certificate)
        async with httpx.AsyncClient(trust_env=False, timeout=60, verify=context) as client:
            base = f"http://127.0.0.1:{self.server.port}"
            if certificate is not None:
                base = f"https://127.0.0.1:{self.server.tls_port}"
            return await client.get(
                base + path, headers={name.replace("_", "-"): text for name, text in headers.items()}
            )

    async def status(self, path: str, role: str | None = None) -> int:
        """The status for a role with a token."""
        return (await self.get(path, bearer(role) if role is not None else None)).status_code


@asynccontextmanager
async def serving(
    directory: Path,
    certificate: Certificate,
    tls: ssl.SSLContext | None = None,
    rules: AccessRules = RULES,
    limits: HttpLimits | None = None,
    authenticator: Authenticator | None = None,
    peers: socket.socket | None = None,
) -> AsyncIterator[Admin]:
    async with running(directory, authenticator=authenticator or Authenticator(OPTIONS), access=rules) as harness:
        broker = harness.broker
        await broker.changes.stored(lambda done: broker.catalog.put_tenant("shop", {"adminRoles": ["owner"]}, done))
        grants = {
            "namespace_auth": {"writer": ["produce"]},
            "destination_auth": {"persistent://shop/orders/t": {"reader": ["consume"]}},
            "subscription_auth_roles": {"mine": ["other"]},
        }
        await broker.changes.stored(
            lambda done: broker.catalog.put_namespace("shop/orders", {"auth_policies": grants}, done)
        )
        server = AdminServer(
            plain=listen_for_callers("127.0.0.1", 0),
            loop=broker.loop,
            secure=listen_for_callers("127.0.0.1", 0) if tls is not None else None,
            tls=tls,
            limits=limits,
            peers=peers,
        )
        gateway = BrokerGateway(lambda: administration(broker), broker.loop, lambda _: ["one 1\n"])
        server.start_with(partial(route_for_each_need, gateway))
        try:
            yield Admin(broker, server, certificate)
        finally:
            await server.stop()


@pytest.fixture(autouse=True)
def _only_these_routes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Two hundred other routes take a second to build."""
    if "every_route" not in request.node.name:
        monkeypatch.setattr(api, "GROUPS", ())


@pytest.fixture
async def admin(tmp_path: Path, certificate: Certificate, tls: ssl.SSLContext) -> AsyncIterator[Admin]:
    async with serving(tmp_path, certificate, tls) as started:
        yield started


def bearer(role: str) -> str:
    return f"Bearer {token(role)}"


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


# -- every route is guarded


def test_every_route_carries_a_check(tmp_path: Path) -> None:
    assert unguarded(api.build(cast("Gateway", None))) == []


def test_a_route_without_a_check_is_found() -> None:
    app = FastAPI(openapi_url=None)
    needs, inside, around = Needs(cast("Gateway", None)), APIRouter(), APIRouter(prefix="/around")

    async def here() -> None: ...

    app.get("/open")(here)
    app.get("/guarded", dependencies=[needs.anybody])(here)
    inside.get("/inner")(here)
    around.get("/guarded", dependencies=[needs.superuser])(here)
    around.get("/bare")(here)
    around.include_router(inside)
    app.include_router(around)
    app.include_router(inside, prefix="/all", dependencies=[needs.anybody])
    assert sorted(unguarded(app)) == ["/around/bare", "/around/inner", "/open"]


# -- who is asking


async def test_whoever_shows_nothing_gets_to_probes_and_no_further(admin: Admin) -> None:
    for path in ("/nobody", "/metrics", "/healthz"):
        assert await admin.status(path) == 200
    for path in ("/anybody", "/superuser", "/list/shop/orders", "/openapi.json"):
        answer = await admin.get(path)
        assert (answer.status_code, answer.json()) == (401, {"reason": "Authentication required"})


async def test_whoever_shows_something_wrong_gets_no_further(admin: Admin) -> None:
    for shows in (
        "Bearer garbage",
        "Bearer",
        f"Bearer {unsigned('admin')}",
        f"Bearer {token('admin', b'x' * 64)}",
        f"Bearer {token('admin', exp=NOW_S)}",
        "Basic !",
        basic("admin:wrong"),
        basic("nobody:123456"),
        "Digest x",
        token("admin"),
        bearer("admin").upper(),
    ):
        answer = await admin.get("/anybody", shows)
        assert (answer.status_code, answer.json()) == (401, {"reason": "Authentication required"}), shows


async def test_a_token_a_password_or_a_certificate_will_do(admin: Admin, certificate: Certificate) -> None:
    assert (await admin.get("/superuser", bearer("admin"))).json() == "here"
    assert (await admin.get("/superuser", bearer("admin").replace("Bearer", "bearer"))).json() == "here"
    assert (await admin.get("/superuser", basic("admin:123456"))).json() == "here"
    assert (await admin.get("/superuser", certificate=certificate.signed("admin"))).json() == "here"
    assert (await admin.get("/superuser", certificate=certificate.signed("audit"))).status_code == 403


async def test_the_method_may_be_named(admin: Admin, certificate: Certificate) -> None:
    async def named(method: str, shows: str | None = None, shown: Certificate | None = None) -> int:
        return (await admin.get("/superuser", shows, shown, X_Pulsar_Auth_Method_Name=method)).status_code

    assert await named("token", bearer("admin")) == 200
    assert await named("basic", basic("admin:123456")) == 200
    assert await named("tls", shown=certificate.signed("admin")) == 200
    assert await named("token", basic("admin:123456")) == 401
    assert await named("basic", bearer("admin")) == 401
    assert await named("tls", bearer("admin")) == 401
    assert await named("sasl", bearer("admin")) == 401


async def test_a_token_counts_before_the_certificate_of_the_connection(admin: Admin, certificate: Certificate) -> None:
    shown = certificate.signed("admin")
    assert (await admin.get("/superuser", bearer("audit"), shown)).status_code == 403
    assert (await admin.get("/superuser", "Bearer garbage", shown)).status_code == 401


async def test_the_reason_goes_to_the_log_and_what_was_shown_does_not(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await admin.get("/anybody", basic("admin:hunter2"))
    await admin.get("/anybody", f"Bearer {token('admin', b'x' * 64)}")
    await admin.get("/anybody", bearer("audit"))
    assert "is refused: unknown user or wrong password" in caplog.text
    assert "is refused: the token is not signed with our key" in caplog.text
    for secret in ("hunter2", basic("admin:hunter2")[6:], token("admin", b"x" * 64), token("audit")):
        assert secret not in caplog.text


async def test_an_anonymous_role_is_one_like_others(tmp_path: Path, certificate: Certificate) -> None:
    rules = AccessRules(authorizing=True, anonymous_role="owner")
    async with serving(tmp_path, certificate, rules=rules) as admin:
        assert await admin.status("/openapi.json") == 200
        assert (await admin.get("/openapi.json", "Bearer garbage")).status_code == 401


# -- what they may do


async def test_each_kind_of_check_lets_in_whom_it_should(admin: Admin) -> None:
    places = {
        "/superuser": {"admin"},
        "/tenant_admin/shop": {"admin", "owner"},
        "/tenant_admin/other": {"admin"},
        "/namespace_admin/shop/orders": {"admin", "owner"},
        "/namespace_admin/other/orders": {"admin"},
        "/list/shop/orders": {"admin", "owner", "writer"},
        "/lookup/persistent/shop/orders/t": {"admin", "owner", "writer", "reader"},
        "/lookup/non-persistent/shop/orders/t": {"admin", "owner", "writer"},
        "/lookup/persistent/shop/orders/u": {"admin", "owner", "writer"},
        "/produce/persistent/shop/orders/t": {"admin", "owner", "writer"},
        "/consume/persistent/shop/orders/t/any": {"admin", "owner", "reader"},
        "/consume/persistent/shop/orders/t/mine": {"admin", "owner"},
        "/consume/persistent/shop/orders/u/any": {"admin", "owner"},
        "/anybody": {"admin", "owner", "writer", "reader", "nobody"},
    }
    for path, allowed in places.items():
        for role in ("admin", "owner", "writer", "reader", "nobody"):
            assert await admin.status(path, role) == (200 if role in allowed else 403), (path, role)


async def test_a_refusal_says_who_lacks_what(admin: Admin) -> None:
    answer = await admin.get("/produce/persistent/shop/orders/t", bearer("reader"))
    assert answer.json() == {
        "reason": "Client is not authorized to Produce: role 'reader': "
        "produce is not granted to it on persistent://shop/orders/t"
    }


async def test_a_name_in_the_path_is_read_as_the_route_reads_it(admin: Admin) -> None:
    for path in ("/produce/persistent/shop%2Forders/x/t", "/produce/persistent/shop/orders/t%2Fu"):
        assert await admin.status(path, "writer") == 412
    assert await admin.status("/lookup/persistent/shop/orders/%74", "reader") == 200
    assert await admin.status("/lookup/persistent/shop/orders/%2574", "reader") == 403


async def test_a_proxy_and_its_client_must_both_be_allowed(admin: Admin) -> None:
    rules = AccessRules(
        authorizing=True, super_user_roles=frozenset({"admin", "proxy"}), proxy_roles=frozenset({"proxy"})
    )
    admin.broker.limits_in_force.now = replace(admin.broker.limits, access=rules)

    async def for_client(role: str | None, proxy: str = "proxy") -> int:
        return (await admin.get("/superuser", bearer(proxy), X_Original_Principal=role or "")).status_code

    assert await for_client("admin") == 200
    assert await for_client("owner") == 403
    assert await for_client("proxy") == 403
    assert await for_client(None) == 403
    assert await for_client("admin", proxy="owner") == 403


async def test_a_role_that_a_proxy_cannot_have_passed_on_unchanged_is_refused(admin: Admin) -> None:
    rules = AccessRules(
        authorizing=True, super_user_roles=frozenset({"proxy", "admin"}), proxy_roles=frozenset({"proxy"})
    )
    admin.broker.limits_in_force.now = replace(admin.broker.limits, access=rules)

    async def named(*roles: bytes) -> httpx.Response:
        headers = [(b"authorization", bearer("proxy").encode()), *((b"X-Original-Principal", role) for role in roles)]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            return await client.get(f"http://127.0.0.1:{admin.server.port}/superuser", headers=headers)

    assert (await named(b"admin")).status_code == 200
    for role in (b"adm\xefn", "adm\u00efn".encode(), b"admin\tadmin", b"a" * 1_025):
        answer = await named(role)
        assert (answer.status_code, "cannot be passed on" in answer.json()["reason"]) == (403, True)
    for roles in ((b"audit", b"admin"), (b"admin", b"audit"), (b"admin", b"admin")):
        answer = await named(*roles)
        assert (answer.status_code, "may come once" in answer.json()["reason"]) == (403, True)


async def test_roles_that_change_while_running_count_at_once(admin: Admin) -> None:
    assert await admin.status("/superuser", "owner") == 403
    rules = AccessRules(authorizing=True, super_user_roles=frozenset({"owner"}))
    admin.broker.limits_in_force.now = replace(admin.broker.limits, access=rules)
    assert await admin.status("/superuser", "owner") == 200
    assert await admin.status("/superuser", "admin") == 403


async def test_where_it_is_not_checked_what_roles_may_do_everybody_known_may_do_everything(
    tmp_path: Path, certificate: Certificate
) -> None:
    async with serving(tmp_path, certificate, rules=AccessRules()) as admin:
        assert await admin.status("/superuser", "nobody") == 200
        assert await admin.status("/superuser") == 401


# -- the port with TLS


async def test_both_ports_sleep_until_either_is_called(
    tmp_path: Path, certificate: Certificate, tls: ssl.SSLContext
) -> None:
    for shown in (None, certificate.signed("admin")):
        async with serving(tmp_path / str(shown is None), certificate, tls) as admin:
            assert admin.server._thread is None  # noqa: SLF001 - asleep
            assert (await admin.get("/healthz", certificate=shown)).status_code == 200
            assert (await admin.get("/healthz")).status_code == 200


async def test_a_certificate_that_nobody_vouches_for_does_not_get_in(
    tmp_path: Path, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stranger = Certificate.make(tmp_path).signed("admin")
    with pytest.raises(httpx.TransportError):
        await admin.get("/healthz", certificate=stranger)
    assert (await admin.get("/healthz")).status_code == 200
    assert "TLS handshake failed: certificate verify failed" in caplog.text


async def test_a_new_certificate_counts_for_those_who_connect_from_then_on(
    tmp_path: Path, admin: Admin, certificate: Certificate
) -> None:
    other = Certificate.make(tmp_path)
    admin.server.tls = server_context(TlsOptions(certificate=other.certificate, key=other.key, trust=other.certificate))
    with pytest.raises(httpx.ConnectError):
        await admin.get("/healthz", certificate=certificate.signed("admin"))
    renewed = Admin(admin.broker, admin.server, other)
    assert (await renewed.get("/superuser", certificate=other.signed("admin"))).status_code == 200


async def test_tls_on_the_port_without_and_http_on_the_port_with_are_said_once_each(
    admin: Admin, certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", admin.server.port, ssl=certificate.client())
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.server.tls_port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert not (await reader.read()).startswith(b"HTTP")
    writer.close()

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "penstock.admin.http_server"]

    await until(lambda: len(lines()) == 2)
    assert "speaks TLS, and this port is for those without; see webServicePortTls" in lines()[0]
    assert "does not speak TLS; see webServicePort" in lines()[1]


# -- limits


async def test_whoever_may_not_ask_is_told_so_before_a_body_has_come(admin: Admin) -> None:
    for shows, status in ((None, 401), (bearer("nobody"), 403)):
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.server.port)
        head = "POST /superuser HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
        head += f"Authorization: {shows}\r\n" if shows else ""
        writer.write(f"{head}\r\n{{".encode())
        async with asyncio.timeout(60):
            assert f" {status} ".encode() in await reader.readline()
        writer.close()


async def test_whoever_may_not_ask_is_not_told_what_is_wrong_with_a_body(admin: Admin) -> None:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{admin.server.port}", trust_env=False, timeout=60
    ) as client:
        for role, status in (("nobody", 403), ("admin", 400)):
            answer = await client.post("/superuser", content=b"{", headers={"Authorization": bearer(role)})
            assert answer.status_code == status


async def test_a_body_that_comes_in_drops_is_given_up_with_408(
    tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    async with serving(tmp_path, certificate) as admin:
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.server.port)
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")

        async def drip() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        try:
            async with asyncio.timeout(60):
                answer = await reader.readuntil(b"}")
        finally:
            dripping.cancel()
            writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'{"reason": "the body did not come within 0.2 s"}' in answer


async def test_a_body_larger_than_any_is_refused_before_it_is_read(tmp_path: Path, certificate: Certificate) -> None:
    async with serving(tmp_path, certificate) as admin:
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.server.port)
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        answer = await reader.readline()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_callers_beyond_the_bound_are_closed_as_they_come(
    tmp_path: Path, certificate: Certificate, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Those in the middle of a TLS handshake count."""
    async with serving(tmp_path, certificate, tls, limits=HttpLimits(connections_max=3)) as admin:
        ports = (admin.server.port, admin.server.tls_port, admin.server.tls_port)
        held = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
        await until(lambda: getattr(admin.server._server, "_open", 0) == 3)  # noqa: SLF001 - nothing else tells
        for port in ports:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()
        assert caplog.text.count("is turned away: 3 connections are open") == 1
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(60):
            while True:
                try:
                    assert (await admin.get("/healthz")).status_code == 200
                    break
                except httpx.TransportError:  # The last of them is not gone yet.
                    await asyncio.sleep(0.01)


async def test_a_caller_that_asks_nothing_makes_way_when_all_connections_are_taken(
    tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "IDLE_IN_THE_WAY_S", 0.0)
    async with serving(tmp_path, certificate, limits=HttpLimits(connections_max=3)) as admin:
        held = [await asyncio.open_connection("127.0.0.1", admin.server.port) for _ in range(3)]
        held[0][1].write(b"GET /hea")
        held[1][1].write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12")
        await until(lambda: getattr(admin.server._server, "_open", 0) == 3)  # noqa: SLF001 - nothing else tells
        for _ in range(3):
            assert (await admin.get("/healthz")).status_code == 200
        for _, writer in held:
            writer.close()
