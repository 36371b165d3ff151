# SPDX-License-Identifier: Apache-2.0
"""Who may read and write the records of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.authentication.authenticator import Authenticator
from penstock.authentication.credentials import ProviderOptions
from penstock.broker.access.rules import AccessRules
from penstock.core.system_topics import DECISION_TOPIC, USAGE_TOPIC
from penstock.testing.client import Type, frame
from penstock.testing.tokens import SECRET, data_url
from tests.broker.usage import ON
from tests.net.harness import running, until
from tests.security.roles import NOBODY, OWNER, ROOT, STRANGER, administer, connected

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.net.harness import Harness

    Running = Callable[[], AbstractAsyncContextManager[Harness]]

PARTITION = "-partition-0"


@pytest.fixture
def recording(tmp_path: Path) -> Running:
    """A broker that records, and checks who may do what."""
    options = ProviderOptions(methods=frozenset({"token"}), token_secret_key=data_url(SECRET))
    return lambda: running(
        tmp_path,
        authenticator=Authenticator(options),
        access=AccessRules(authorizing=True, super_user_roles=frozenset({ROOT})),
        governance_records_enabled=True,
        **ON,
    )


async def answer_to_consumer(harness: Harness, role: str, topic: str) -> int:
    client = await connected(harness, role)
    client.write(frame(Type.SUBSCRIBE, request_id=1, topic=topic, subscription="s", consumer_id=0, subType=1))
    answer: int = (await client.read()).type
    await client.close()
    return answer


@pytest.mark.parametrize("topic", [USAGE_TOPIC + PARTITION, DECISION_TOPIC + PARTITION])
async def test_only_those_who_may_consume_in_the_system_namespace_read_records(recording: Running, topic: str) -> None:
    async with recording() as harness:
        await administer(harness, "shop", OWNER, "shop/orders", {STRANGER: ["produce", "consume"]})
        await until(lambda: harness.broker.topics.get(topic))
        for role in (NOBODY, OWNER, STRANGER):
            assert await answer_to_consumer(harness, role, topic) == Type.ERROR, role
        assert await answer_to_consumer(harness, ROOT, topic) == Type.SUCCESS
        await administer(harness, "pulsar", ROOT, "pulsar/system", {STRANGER: ["consume"]})
        assert await answer_to_consumer(harness, STRANGER, topic) == Type.SUCCESS
        assert await answer_to_consumer(harness, OWNER, topic) == Type.ERROR


@pytest.mark.parametrize("topic", [USAGE_TOPIC + PARTITION, DECISION_TOPIC + PARTITION])
async def test_not_even_a_superuser_publishes_records(recording: Running, topic: str) -> None:
    async with recording() as harness:
        await until(lambda: harness.broker.topics.get(topic))
        for role in (NOBODY, ROOT):
            client = await connected(harness, role)
            client.write(frame(Type.PRODUCER, request_id=1, topic=topic, producer_id=0))
            await client.expect(Type.ERROR)
