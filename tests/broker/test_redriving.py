# SPDX-License-Identifier: Apache-2.0
"""Redriving a dead letter topic: at one time it is done once, whoever asks."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import ConsumerBusy
from penstock.core.names import TopicName
from tests.broker.consuming import Peer
from tests.net.harness import TOPIC, Harness

NAME = TopicName.parse(TOPIC)
INTO = TopicName.parse("persistent://public/default/into")


async def test_two_who_redrive_a_topic_do_not_send_a_message_twice(harness: Harness) -> None:
    """Requests that another broker passes on have an administration of their own."""
    peer = await Peer.connected(harness)
    await peer.produce()
    for number in range(20):
        await peer.publish(b"%d" % number)
    await harness.broker.topics.get_or_create(INTO, create=True)
    here, passed_on = administration(harness.broker), administration(harness.broker, for_peers=True)
    first = asyncio.ensure_future(here.sending.redrive(NAME, INTO))
    await asyncio.sleep(0)
    with pytest.raises(ConsumerBusy, match="is being redriven"):
        await passed_on.sending.redrive(NAME, INTO)
    assert (await first).sent == {str(INTO): 20}
    assert harness.broker.topics.get(str(INTO)).last_entry_id == 19  # type: ignore[union-attr]
    assert (await passed_on.sending.redrive(NAME, INTO)).sent == {}
