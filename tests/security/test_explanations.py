# SPDX-License-Identifier: Apache-2.0
"""What the admin of a tenant is told of limits that slow it and belong to somebody else."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from penstock.admin.gateway import BrokerGateway
from penstock.broker.composition.administration import administration
from penstock.core.names import NamespaceName
from penstock.core.units import KIB
from penstock.governance.holds import HoldKind
from penstock.governance.muting import MUTES
from penstock.testing.client import Type
from penstock.testing.tokens import token
from tests.admin.application import before
from tests.net.harness import publish, until
from tests.security.roles import NAMESPACE, OWNER, ROOT, STRANGER, TENANT, administer, connected, guarded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.net.harness import Client, Harness

OURS: Final = f"persistent://{NAMESPACE}/ours"
THEIRS: Final = "persistent://other/ns/theirs"
GROUP: Final = "theirgroup"
PATHS: Final = (f"tenants/{TENANT}", f"namespaces/{NAMESPACE}", OURS.replace("://", "/"))
BOTH: Final = "both"  # administers a third tenant, and the other one


class Asked:
    """A broker where one connection publishes to two tenants, and its admin port."""

    def __init__(self, harness: Harness, http: httpx.AsyncClient, client: Client) -> None:
        self.harness = harness
        self.client = client
        self._http = http

    async def findings(self, role: str, path: str = PATHS[0]) -> list[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {token(role)}"}
        answer = await self._http.get(f"/admin/v3/why/{path}", headers=headers)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["findings"]
        return found

    def publish_theirs(self) -> None:
        """Publish more than one connection may hold."""
        count = self.harness.memory.size // 8 // (64 * KIB) + 20
        self.client.write(b"".join(publish(bytes(64 * KIB), number, producer_id=1) for number in range(count)))

    def mute(self, reason: HoldKind, owner: str | None) -> None:
        self.harness.connection_of(self.client).mute(reason, owner)


@asynccontextmanager
async def asked(directory: Path) -> AsyncIterator[Asked]:
    async with guarded(directory) as harness:
        broker = harness.broker
        client = await connected(harness, ROOT)
        for producer_id, topic in enumerate((OURS, THEIRS)):
            await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=producer_id)
        app = before(BrokerGateway(lambda: administration(broker), broker.loop, lambda _: []))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://penstock") as http:
            yield Asked(harness, http, client)


async def give_group(harness: Harness, tenant: str, group: str) -> None:
    admin = administration(harness.broker)
    await admin.resource_groups.put(group, {"publishRateInMsgs": 12_345})
    await admin.resource_groups.attach_tenant(tenant, group)


@pytest.mark.parametrize("path", PATHS)
async def test_a_rate_of_another_tenant_on_the_same_connection_is_not_shown(tmp_path: Path, path: str) -> None:
    async with asked(tmp_path) as ask:
        rate = {"publishThrottlingRateInMsg": 3, "publishThrottlingRateInByte": -1}
        await ask.harness.broker.policies.set_topic(THEIRS, "publishRate", rate)
        ask.publish_theirs()
        await until(ask.harness.muted)
        (found,) = await ask.findings(OWNER, path)
        assert (found["limit"], found["reason"]) == ("a limit of another tenant", "another-tenant")
        assert found["what"].startswith("producer ")
        assert OURS in found["what"]
        assert found["numbers"] == {}
        assert "other" not in json.dumps({**found, "limit": "", "reason": ""})


async def test_those_who_administer_a_limit_see_it_with_its_numbers(tmp_path: Path) -> None:
    async with asked(tmp_path) as ask:
        rate = {"publishThrottlingRateInMsg": 3, "publishThrottlingRateInByte": -1}
        await ask.harness.broker.policies.set_topic(THEIRS, "publishRate", rate)
        ask.publish_theirs()
        await until(ask.harness.muted)
        for role, path in ((ROOT, PATHS[0]), (STRANGER, "tenants/other")):
            found = (await ask.findings(role, path))[-1]
            assert found["limit"].startswith(f"publish rate of {THEIRS}: its connection holds as much")
            assert found["numbers"]["messages_per_s"] == 3
        assert (await ask.findings(ROOT))[0]["tenants"] == ["other"]
        # Who administers both tenants may see the limit of one in what slows the other.
        await administer(ask.harness, TENANT, BOTH, NAMESPACE, {})
        await administer(ask.harness, "other", BOTH, "other/ns", {})
        assert (await ask.findings(BOTH))[0]["limit"].startswith(f"publish rate of {THEIRS}")


async def test_a_group_is_shown_to_the_tenants_that_belong_to_it(tmp_path: Path) -> None:
    async with asked(tmp_path) as ask:
        await give_group(ask.harness, "other", GROUP)
        ask.mute(HoldKind.GROUP_QUOTA, GROUP)
        (found,) = await ask.findings(OWNER)
        assert (found["limit"], found["numbers"]) == ("a limit of another tenant", {})
        for role, path in ((ROOT, PATHS[0]), (STRANGER, "tenants/other")):
            assert (await ask.findings(role, path))[0]["numbers"]["quota_messages_per_s"] == 12_345
        await administration(ask.harness.broker).resource_groups.attach_namespace(NamespaceName.parse(NAMESPACE), GROUP)
        (found,) = await ask.findings(OWNER)
        assert found["limit"].startswith(f"publish quota of resource group {GROUP}")
        assert found["numbers"]["quota_messages_per_s"] == 12_345


@pytest.mark.parametrize("reason", MUTES)
async def test_whatever_mutes_a_connection_strangers_learn_no_owner(tmp_path: Path, reason: HoldKind) -> None:
    async with asked(tmp_path) as ask:
        await give_group(ask.harness, "other", GROUP)
        for owner in (THEIRS, GROUP, "persistent://other/ns/gone", "nobody", "tenant other"):
            ask.mute(reason, owner)
            (found,) = await ask.findings(OWNER)
            assert (found["limit"], found["numbers"]) == ("a limit of another tenant", {})
            assert owner not in json.dumps(found)
            assert (await ask.findings(ROOT))[0]["limit"] != "a limit of another tenant"
            ask.harness.connection_of(ask.client).unmute(reason, owner)


@pytest.mark.parametrize("reason", [HoldKind.REQUEST_MEMORY, HoldKind.COMMANDS])
async def test_what_the_broker_itself_lacks_is_told_to_everybody(tmp_path: Path, reason: HoldKind) -> None:
    async with asked(tmp_path) as ask:
        ask.mute(reason, None)
        assert await ask.findings(OWNER) == await ask.findings(ROOT)
        assert (await ask.findings(OWNER))[0]["reason"] == reason.value
