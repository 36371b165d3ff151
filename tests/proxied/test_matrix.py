# SPDX-License-Identifier: Apache-2.0
"""Every command of the matrix of `tests/security`, by every kind of role, through a proxy that authenticates clients.

The proxy's own role may do everything; its clients may do no more through it than without it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import WireCode
from penstock.testing.client import Type, frame
from penstock.testing.tokens import token
from tests.net.harness import running, turns
from tests.proxied.harness import KEEP_ALIVE_NS, PROXY, RULES, Proxied, proxied, tokens
from tests.security.roles import GRANTS, NAMESPACE, OWNER, ROLES, ROOT, STRANGER, TENANT, administer, everything
from tests.security.test_matrix import MATRIX, Row, error_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# What a proxy asks for its clients. Brokers of these tests do not say where a topic is served, so a LOOKUP ends there.
ASKED_BY_PROXY = {Type.LOOKUP, Type.PARTITIONED_METADATA, Type.GET_TOPICS_OF_NAMESPACE, Type.GET_SCHEMA}
LOOKUPS = {name: row for name, row in MATRIX.items() if row.command in ASKED_BY_PROXY}


@asynccontextmanager
async def guarded(directory: Path) -> AsyncIterator[Proxied]:
    """A proxy before the broker of the matrix."""
    rules = replace(RULES, super_user_roles=frozenset({ROOT, PROXY}))
    async with (
        running(directory, authenticator=tokens(), access=rules, keep_alive_ns=KEEP_ALIVE_NS) as harness,
        proxied(harness) as proxy,
    ):
        await administer(harness, TENANT, OWNER, NAMESPACE, GRANTS)
        await administer(harness, "other", STRANGER, "other/ns", {STRANGER: ["produce", "consume"]})
        yield proxy


@pytest.mark.parametrize("row", MATRIX.values(), ids=MATRIX.keys())
async def test_a_command_is_carried_out_for_those_who_may_and_changes_nothing_for_others(
    tmp_path: Path, row: Row
) -> None:
    async with guarded(tmp_path) as proxy:
        before = everything(proxy.broker)
        for role in sorted(ROLES, key=lambda role: role in row.allowed):  # Others first: then nothing may have changed.
            client = await proxy.connected(token(role), proxy_to_broker_url=proxy.target)
            client.write(frame(row.command, request_id=7, **row.fields))
            answer = await client.read()
            if role in row.allowed:
                assert (answer.type, error_of(answer)) == (row.answer, row.otherwise), role
            else:
                assert error_of(answer) is WireCode.AUTHORIZATION_ERROR, role
                await turns()
                assert everything(proxy.broker) == before, role
            client.write(frame(Type.PING))
            await client.expect(Type.PONG)
            client.writer.close()
            await turns()


@pytest.mark.parametrize("row", LOOKUPS.values(), ids=LOOKUPS.keys())
async def test_a_proxy_asks_for_a_client_what_that_may_ask(tmp_path: Path, row: Row) -> None:
    async with guarded(tmp_path) as proxy:
        before = everything(proxy.broker)
        for role in ROLES:
            client = await proxy.connected(token(role))
            client.write(frame(row.command, request_id=7, **row.fields))
            error = error_of(await client.read())
            assert (error is WireCode.AUTHORIZATION_ERROR) is (role not in row.allowed), role
        assert everything(proxy.broker) == before


async def test_who_does_not_say_who_it_is_is_not_even_asked_what_it_wants(tmp_path: Path) -> None:
    async with guarded(tmp_path) as proxy:
        before = everything(proxy.broker)
        for row in MATRIX.values():
            client = await proxy.client("", auth_method_name="none")
            client.write(frame(row.command, request_id=7, **row.fields))
            await client.closed()
        assert everything(proxy.broker) == before
        assert proxy.roles() == []
