# SPDX-License-Identifier: Apache-2.0
"""A role reaches the broker behind a proxy exactly as the proxy has authenticated it, or is refused: for every string.

Real processes: the proxy's HTTP server and its HTTP client, the broker's HTTP server, and CONNECT from end to end. A
broker that refuses a role says which role it has seen, so each answer shows what arrived.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.caller import ROLE_CHARS_MAX
from penstock.core.errors import WireCode
from penstock.core.units import KIB
from penstock.testing.client import RawClient, Type, frame
from penstock.testing.tokens import token
from tests.proxy.guarded import ADMIN, GUARDING, PROXY, TOPIC, bearer, broker_process, proxy_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.process import BrokerProcess, ProxyProcess

pytestmark = pytest.mark.real

# What a program on the way may drop, or take for something else.
AROUND: Final = (" ", "\t", "\n", "\r\n", "\r\n ", "\0", "\v", "\f", "\x1c", "\x7f", "\x85", "\xa0", "\u00ad",
                 "\u200b", "\u2028", "\u3000", "\ufeff", "\ud800", ",", ";", '"', "'", "%20", "+",
                 "\\", "#")  # fmt: skip
LIKE_ADMIN: Final = ("ADMIN", "Admin", "\uff41dmin", "\u0430dmin", "adm\u0131n", "adm\u0130n", "adm\u0069\u0307n", "",
                     "None", "null", "undefined", "admin, admin", "admin\r\nx-original-principal: admin", "ad%6din",
                     "=?utf-8?q?admin?=", "\u202enimda", "a\u0301dmin", "\u00e1dmin")  # fmt: skip
ROLES: Final = st.one_of(
    st.sampled_from(LIKE_ADMIN),
    st.builds(str.__add__, st.sampled_from(AROUND), st.just(ADMIN)),
    st.builds(str.__add__, st.just(ADMIN), st.sampled_from(AROUND)),
    st.builds(str.__add__, st.sampled_from(AROUND), st.sampled_from(AROUND)),
    st.text(st.characters(exclude_categories=()), max_size=40),
    st.text(st.characters(max_codepoint=0x7F), max_size=40),
)
NOT_GRANTED: Final = "nothing is granted on namespace shop/orders, which does not exist"
# The longest texts of the proxy's errors are cut.
CUT: Final = 900


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="module")
def proxy(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with proxy_process(broker, tmp_path_factory.mktemp("proxy"), f"{GUARDING}proxyRoles={PROXY}\n") as process:
        yield process


@pytest.fixture(scope="module")
def through_proxy(proxy: ProxyProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.admin_url, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def to_broker(broker: BrokerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.admin_url, trust_env=False, timeout=60) as client:
        yield client


def passed_by_http(http: httpx.Client, role: str) -> bool:
    """Whether a superuser's request of this role reaches the broker, which must see the same role."""
    answer = http.get("/admin/v2/tenants", headers=bearer(role))
    if answer.status_code == 200:
        assert role == ADMIN
        return True
    assert 400 <= answer.status_code < 500, answer.text
    reason = answer.json()["reason"]
    if reason.startswith("This operation requires super-user access"):
        assert reason.startswith(f"This operation requires super-user access: role {role!r}: ")
        return True
    return False


def connected(proxy: ProxyProcess, role: str) -> tuple[int, Any]:
    """Send CONNECT with this role's token; return the kind of the answer, and its body."""
    with RawClient(proxy.port, connect=False) as client:
        client.write(_connect(role))
        answer = client.read()
        return answer.kind, answer.body


def passed_by_connect(proxy: ProxyProcess, role: str) -> bool:
    """Whether a lookup of this role reaches the broker, which must see the same role."""
    with RawClient(proxy.port, connect=False) as client:
        client.write(_connect(role))
        answer = client.read()
        if answer.kind == Type.ERROR:
            assert answer.body.error in {WireCode.AUTHENTICATION_ERROR, WireCode.AUTHORIZATION_ERROR}
            return False
        client.write(frame(Type.LOOKUP, topic=TOPIC, request_id=1))
        found = client.next(Type.LOOKUP_RESPONSE).body
        if "not authorized" in found.message:
            assert found.message[:CUT] == f"Client is not authorized to Lookup: role {role!r}: {NOT_GRANTED}"[:CUT]
        else:
            assert role == ADMIN
        return True


def _connect(role: str) -> bytes:
    shown = {"auth_method_name": "token", "auth_data": token(role).encode()}
    return frame(Type.CONNECT, client_version="raw", protocol_version=20, **shown)


@settings(max_examples=200)
@given(role=ROLES)
@example(role="admin ")
@example(role="\tadmin")
@example(role=ADMIN)
def test_a_role_arrives_unchanged_or_not_at_all_by_http_and_by_connect(
    proxy: ProxyProcess, through_proxy: httpx.Client, role: str
) -> None:
    by_http = passed_by_http(through_proxy, role)
    assert passed_by_connect(proxy, role) == by_http


@pytest.mark.parametrize("length", [1_023, 1_024, 1_025, 7_000, 11_000])
def test_a_long_role_arrives_whole_or_not_at_all(proxy: ProxyProcess, through_proxy: httpx.Client, length: int) -> None:
    assert passed_by_http(through_proxy, "a" * length) == (length <= ROLE_CHARS_MAX)
    assert passed_by_connect(proxy, "a" * length) == (length <= ROLE_CHARS_MAX)


def test_a_role_of_64_kib_is_refused(proxy: ProxyProcess, through_proxy: httpx.Client) -> None:
    role = "a" * 64 * KIB
    with contextlib.suppress(httpx.TransportError):  # The proxy need not read such a head to the end.
        assert through_proxy.get("/admin/v2/tenants", headers=bearer(role)).status_code in {401, 431}
    kind, error = connected(proxy, role)
    assert kind == Type.ERROR
    assert "CONNECT" in error.message


@pytest.mark.parametrize("role", ["admin ", " admin", "admin\t", "\u00e1dmin", "admin\0", "a" * 2_000])
def test_a_role_that_cannot_be_passed_on_is_refused_with_the_reason(
    proxy: ProxyProcess, through_proxy: httpx.Client, role: str
) -> None:
    answer = through_proxy.get("/admin/v2/tenants", headers=bearer(role))
    assert answer.status_code == 403
    assert "cannot be passed on" in answer.json()["reason"]
    kind, error = connected(proxy, role)
    assert (kind, error.error) == (Type.ERROR, WireCode.AUTHORIZATION_ERROR)
    assert "cannot be passed on" in error.message


@settings(max_examples=50)
@given(role=ROLES)
def test_the_broker_itself_takes_no_role_for_another_one(to_broker: httpx.Client, role: str) -> None:
    passed_by_http(to_broker, role)


def test_permissions_are_for_a_role_as_it_is_written(to_broker: httpx.Client) -> None:
    path, admin = "/admin/v2/namespaces/public/default/permissions", bearer(ADMIN)
    roles = [
        "angstrom",
        "angstrom ",
        "\u212bngstr\u00f6m",
        "\u00c5ngstr\u00f6m",
        "A\u030angstro\u0308m",
        "a+b",
        "a b",
        "a%20b",
    ]
    for role in roles:
        to_broker.post(f"{path}/{quote(role, safe='')}", json=["produce"], headers=admin).raise_for_status()
    assert to_broker.get(path, headers=admin).json() == {role: ["produce"] for role in roles}
    for bad in ("%FF", "a%C3", "%ED%A0%80"):
        assert to_broker.post(f"{path}/{bad}", json=["produce"], headers=admin).status_code == 400
    for role in roles[1:]:
        to_broker.delete(f"{path}/{quote(role, safe='')}", headers=admin).raise_for_status()
    assert list(to_broker.get(path, headers=admin).json()) == roles[:1]
