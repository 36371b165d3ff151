# SPDX-License-Identifier: Apache-2.0
"""What a client has shown reaches the broker as it is, in the fields of CONNECT, or the client is refused.

The broker here answers CONNECT with what it says. The proxy takes clients of methods that it does not know for its
`anonymousUserRole`, so any string and any bytes may be shown.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.errors import WireCode
from penstock.core.units import KIB
from penstock.testing.client import RawClient, Type, frame
from penstock.testing.tokens import SECRET, data_url
from tests.proxy.guarded import PROVIDER
from tests.proxy.in_process import Peer, running_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.real

GUEST: Final = "guest"
FORWARDING: Final = {
    "authenticationEnabled": "true",
    "authenticationProviders": f"{PROVIDER}Token",
    "tokenSecretKey": data_url(SECRET),
    "anonymousUserRole": GUEST,
    "forwardAuthorizationCredentials": "true",
    "brokerClientAuthenticationPlugin": "token",
    "brokerClientAuthenticationParameters": "token:own",
}
SHOWN: Final = st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode))
METHODS: Final = st.text(max_size=60).filter(lambda method: method != "token")


@asynccontextmanager
async def repeating_broker() -> AsyncIterator[str]:
    """A broker that answers CONNECT with an error that repeats what it says of a client; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = (await Peer(reader, writer).next(Type.CONNECT)).body
        told = json.dumps([said.original_principal, said.original_auth_method, said.original_auth_data])
        writer.write(frame(Type.ERROR, request_id=0, error=WireCode.METADATA_ERROR, message=told))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_what_is_forwarded_arrives_unchanged_or_the_client_is_refused() -> None:
    async with repeating_broker() as broker, running_proxy(f"pulsar://{broker}", **FORWARDING) as proxy:

        @given(method=METHODS, shown=SHOWN)
        @example(method="", shown=b"")
        @example(method="None", shown=b" null\r\n")
        @example(method="Token ", shown=b"\xff")
        @example(method="m" * KIB, shown=b"a\0" * 16 * KIB)
        def check(method: str, shown: bytes) -> None:
            with RawClient(proxy.port, connect=False) as client:
                fields = {"auth_method_name": method, "auth_data": shown, "proxy_to_broker_url": broker}
                client.write(frame(Type.CONNECT, client_version="raw", protocol_version=20, **fields))
                answer = client.read().body
            if answer.error == WireCode.AUTHENTICATION_ERROR:
                assert "are not UTF-8" in answer.message
                assert shown.decode("utf-8", "replace").encode() != shown
            else:
                assert json.loads(answer.message) == [GUEST, method, shown.decode()]

        await asyncio.to_thread(check)
