# SPDX-License-Identifier: Apache-2.0
"""Administrators of several brokers who get in each other's way, by seed: what is left fits together everywhere."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.broker.cluster import several
from tests.broker.test_administrators_at_once import administer, misfits
from tests.net.harness import until

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.catalog import Catalog

SEEDS = range(int(os.environ.get("PENSTOCK_SIM_SEEDS", "6")))
ONE = os.environ.get("PENSTOCK_SIM_SEED")
BROKERS = 3
ADMINISTRATORS = 3  # of each broker


def shared(catalog: Catalog) -> object:
    """What all brokers know."""
    return (
        {name: dict(stored) for name, stored in catalog.tenants().items()},
        {name: dict(stored) for name, stored in catalog.namespaces().items()},
        {record.name: record for record in catalog.topics()},
        dict(catalog.documents("partitioned")),
    )


@pytest.mark.parametrize("seed", [int(ONE)] if ONE else SEEDS)
async def test_what_administrators_of_several_brokers_leave_fits_together(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with several(tmp_path, BROKERS, force_delete_tenant=True, force_delete_namespace=True) as harnesses:
        brokers = [harness.broker for harness in harnesses]
        await asyncio.gather(
            *(administer(broker, random.Random(rng.random())) for broker in brokers for _ in range(ADMINISTRATORS))
        )
        await until(lambda: not any(broker.changes.unfinished or broker.topics.loading for broker in brokers))
        for broker in brokers:
            assert shared(broker.catalog) == shared(brokers[0].catalog)
            assert misfits(broker) == []
