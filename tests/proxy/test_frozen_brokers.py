# SPDX-License-Identifier: Apache-2.0
"""Lookups through a proxy while a broker is frozen: its port takes connections, and nothing is answered."""

from __future__ import annotations

from functools import partial

import pytest

from penstock import proxy_app
from penstock.core.errors import WireCode
from penstock.proxy.upstreams import UpstreamOptions
from penstock.testing.client import Type, frame
from tests.proxy.in_process import Peer, RunningProxy, ScriptedBroker, running_proxy, scripted_broker

pytestmark = pytest.mark.real

TOPIC = "persistent://public/default/t"


def both(first: ScriptedBroker, second: ScriptedBroker) -> str:
    return f"{first.url},127.0.0.1:{second.port}"


async def connected(proxy: RunningProxy) -> Peer:
    client = await proxy.client()
    proxy.connect(client, through=False)
    await client.next(Type.CONNECTED)
    return client


def ask(client: Peer) -> None:
    client.write(frame(Type.PARTITIONED_METADATA, topic=TOPIC, request_id=1))


async def test_a_broker_that_does_not_greet_is_not_waited_for_again_while_another_answers() -> None:
    async with (
        scripted_broker(greets=False) as frozen,
        scripted_broker() as works,
        running_proxy(both(frozen, works), brokerProxyConnectTimeoutMs="300") as proxy,
    ):
        for _ in range(3):
            await connected(proxy)
        assert (frozen.opened.qsize(), works.opened.qsize()) == (1, 1)


async def test_after_one_lookup_without_an_answer_the_next_ones_ask_another_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_app, "UpstreamOptions", partial(UpstreamOptions, request_timeout_s=0.3))
    async with (
        scripted_broker() as frozen,
        scripted_broker() as works,
        running_proxy(both(frozen, works)) as proxy,
    ):
        client = await connected(proxy)
        ask(client)
        answer = await client.next(Type.PARTITIONED_METADATA_RESPONSE)
        assert answer.body.error == WireCode.SERVICE_NOT_READY
        ask(client)
        asked = await works.opened.get()
        await asked.next(Type.PARTITIONED_METADATA)
