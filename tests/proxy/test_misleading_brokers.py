# SPDX-License-Identifier: Apache-2.0
"""Brokers that name what is no broker in their answers to lookups: the client hears why, and nobody is connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.testing.client import Type, frame
from tests.abuse.broken_upstream import NO_BROKERS
from tests.proxy.in_process import running_proxy, scripted_broker

if TYPE_CHECKING:
    from tests.proxy.in_process import Peer, RunningProxy

pytestmark = pytest.mark.real

TOPIC = "persistent://public/default/t"


async def looked_up(proxy: RunningProxy, upstream: Peer, client: Peer, url: str, response: int) -> str:
    """Let the broker answer a lookup with this; return the error that the client gets."""
    client.write(frame(Type.LOOKUP, topic=TOPIC, request_id=1))
    asked = await upstream.next(Type.LOOKUP)
    said = {"request_id": asked.body.request_id, "response": response, "authoritative": True}
    upstream.write(frame(Type.LOOKUP_RESPONSE, brokerServiceUrl=url, brokerServiceUrlTls=url, **said))
    answer = (await client.next(Type.LOOKUP_RESPONSE)).body
    assert answer.response == answer.Failed
    return str(answer.message)


async def test_a_broker_that_does_not_know_where_it_is_reached_is_reached_where_it_was_asked() -> None:
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy:
        client = await proxy.client()
        proxy.connect(client, through=False)
        await client.next(Type.CONNECTED)
        upstream = await broker.opened.get()
        client.write(frame(Type.LOOKUP, topic=TOPIC, request_id=1))
        asked = await upstream.next(Type.LOOKUP)
        found = {"request_id": asked.body.request_id, "response": 1, "brokerServiceUrl": "pulsar://in-a-container:6650"}
        upstream.write(frame(Type.LOOKUP_RESPONSE, authoritative=True, proxy_through_service_url=True, **found))
        answer = (await client.next(Type.LOOKUP_RESPONSE)).body
        assert (answer.brokerServiceUrl, answer.proxy_through_service_url) == (broker.url, True)


@pytest.mark.parametrize("response", [0, 1], ids=["redirect", "connect"])
async def test_what_is_no_address_of_a_broker_is_an_error_with_the_reason(
    response: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy:
        client = await proxy.client()
        proxy.connect(client, through=False)
        await client.next(Type.CONNECTED)
        upstream = await broker.opened.get()
        for url in NO_BROKERS:
            text = await looked_up(proxy, upstream, client, url, response)
            assert "a lookup's answer without the broker's plain address" in text
            assert len(text) < 500
        assert broker.opened.empty()
    said = [record for record in caplog.records if "a lookup's answer without" in record.getMessage()]
    assert len(said) == len(NO_BROKERS)
    assert [record for record in caplog.records if record.exc_info] == []
