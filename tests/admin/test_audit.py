# SPDX-License-Identifier: Apache-2.0
"""The log has a line for each change that is asked for, and no secrets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx

LOGGER = "penstock.admin.audit"


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


async def test_a_change_is_one_line_with_its_route_target_and_status(
    admin: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await admin.put("/admin/v2/persistent/public/default/t%0Ax")
    (line,) = texts(caplog)
    assert "somebody at " in line
    assert "PUT /admin/v2/{domain:domain}/{tenant}/{namespace}/{topic:local}" in line
    assert "'topic': 't\\nx'" in line
    assert line.endswith(": status 204")
    assert "\n" not in line


async def test_reads_and_paths_without_a_route_are_not_logged(
    admin: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await admin.get("/admin/v2/tenants")
    await admin.head("/admin/v2/tenants")
    await admin.put("/nothing/here")
    assert texts(caplog) == []


async def test_values_of_settings_bodies_and_queries_are_not_logged(
    admin: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await admin.post("/admin/v2/brokers/configuration/maxProducersPerTopic/4711")
    await admin.post("/admin/v3/messages/persistent/public/default/t?token=4711", json={"value": "4711"})
    assert len(texts(caplog)) == 2
    assert "4711" not in "".join(texts(caplog))
    assert "maxProducersPerTopic" in texts(caplog)[0]
