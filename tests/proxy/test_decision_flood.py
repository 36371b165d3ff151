# SPDX-License-Identifier: Apache-2.0
"""A proxy with more decisions to record than it may, and a cluster that does not take the records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.records.decisions import QUEUE_BYTES_MAX
from penstock.testing.client import Type, entry, frame, send
from tests.proxy.in_process import running_proxy, scripted_broker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

GROUPS: Final = 300
PER_SECOND: Final = 5
FREE: Final = GROUPS + 1  # the producer without a group
PATIENCE_S: Final = 60


async def test_a_flood_of_decisions_is_dropped_and_counted_and_slows_nobody(tmp_path: Path) -> None:
    groups = tmp_path / "groups.toml"
    groups.write_text(
        "".join(f'[g{one}]\npublishRateInMsgs = 1\nnamespaces = ["public/n{one}"]\n' for one in range(GROUPS))
    )
    async with (
        scripted_broker() as broker,  # It answers nobody who wants to write records.
        running_proxy(
            broker.url,
            proxyDrainTimeoutMs="50",
            resourceGroupsFile=str(groups),
            resourceUsagePublishToTopic="false",
            governanceRecordsEnabled="true",
            governanceRecordsPerSecond=str(PER_SECOND),
        ) as proxy,
        httpx.AsyncClient(base_url=proxy.serving.admin_url, trust_env=False, timeout=PATIENCE_S) as http,
    ):
        writing_records = await broker.opened.get()
        client = await proxy.client()
        proxy.connect(client)
        await client.next(Type.CONNECTED)
        peer = await broker.opened.get()
        for one in range(GROUPS):
            client.write(frame(Type.PRODUCER, topic=f"persistent://public/n{one}/t", producer_id=one, request_id=one))
            # The group is in debt for a day; what follows waits.
            client.write(send(one, 0, entry(b"x"), num_messages=100_000) + send(one, 1, entry(b"x")))
        seen = await scraped_when(http, "penstock_records_dropped_total", "too-many")
        # A look at all of them, which is one a second, begins an episode for each that waits by then.
        assert seen["penstock_records_queued_bytes", ""] <= QUEUE_BYTES_MAX
        assert seen["penstock_records_written_total", "decisions"] == 0
        client.write(frame(Type.PRODUCER, topic="persistent://public/free/t", producer_id=FREE, request_id=FREE))
        client.write(send(FREE, 0, entry(b"y")))
        passed = 0
        while passed < 2:  # its PRODUCER and its SEND, behind those of the others
            came = await peer.read()
            assert came is not None
            passed += came.body.producer_id == FREE
        assert writing_records is not peer


async def scraped_when(http: httpx.AsyncClient, name: str, label: str) -> dict[tuple[str, str], float]:
    """Metrics of records, as soon as this one is not 0."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = await scraped(http)
            if seen[name, label]:
                return seen
            await asyncio.sleep(0.1)


async def scraped(http: httpx.AsyncClient) -> dict[tuple[str, str], float]:
    """Metrics of records, by name and label."""
    text = (await http.get("/metrics")).text
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("penstock_records_")
    }
