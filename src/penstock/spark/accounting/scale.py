# SPDX-License-Identifier: Apache-2.0
"""PIP-82's largest case on Spark: 100,000 resource groups shared by 100 brokers, minute by minute.

Each group has its own chance, by its number, so the result does not depend on how Spark divides the groups. What is
replayed is the broker's own division of quotas (`governance.quota_replay`); only sums leave an executor.

Where: `python -m benchmarks.accounting scale`, on local[2] or any cluster.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.governance.quota_replay import Columns, QuotaReplay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

BROKERS: Final = 100
QUOTA: Final = 10_000
# Groups of one task: enough to hide what a task costs, and few enough that all cores are busy to the end.
GROUPS_PER_TASK: Final = 500
MESSAGE_BYTES: Final = 1_000


class Totals(NamedTuple):
    """Sums of groups; `fairness` of minutes."""

    groups: int
    minutes: int
    limited: int
    wanted: int
    passed: float
    fairness: float


def added(*some: Totals) -> Totals:
    groups, minutes, limited, wanted, passed, fairness = zip(*some, strict=True)
    return Totals(sum(groups), sum(minutes), sum(limited), sum(wanted), sum(passed), sum(fairness))


SUMS: Final = pa.schema(
    [pa.field(name, pa.float64() if name in {"passed", "fairness"} else pa.int64()) for name in Totals._fields]
)


def of_group(group: int, *, brokers: int, minutes: int, seed: int) -> Totals:
    """Replay one group: a few busy brokers, many calm ones, and one of four groups wants more than its quota."""
    chance = random.Random(seed * 1_000_003 + group)
    load = QUOTA * (chance.uniform(1.1, 2.0) if group % 4 == 0 else chance.uniform(0.05, 0.9))
    weights = [chance.paretovariate(1.2) for _ in range(brokers)]
    replay = QuotaReplay((float(QUOTA), None))
    per_weight, number = load * 60 / sum(weights), chance.random
    for _ in range(minutes):
        messages = [round(weight * per_weight * (0.5 + number())) for weight in weights]
        replay.feed_columns(Columns(messages, [one * MESSAGE_BYTES for one in messages]))
    outcome = replay.outcome
    return Totals(1, outcome.minutes, outcome.limited, outcome.recorded[0], outcome.passed[0], outcome.fairness_sum)


def simulate(spark: SparkSession, groups: int, *, brokers: int = BROKERS, minutes: int = 2, seed: int = 1) -> Totals:
    """Replay so many groups, and return their sums."""

    def sums(parts: Iterator[Any]) -> Iterator[Any]:
        totals = Totals(0, 0, 0, 0, 0.0, 0.0)
        for part in parts:
            for group in part["id"].to_pylist():
                totals = added(totals, of_group(group, brokers=brokers, minutes=minutes, seed=seed))
        yield pa.RecordBatch.from_pylist([totals._asdict()], schema=SUMS)

    tasks = max(1, groups // GROUPS_PER_TASK)
    found = spark.range(groups, numPartitions=tasks).mapInArrow(sums, from_arrow_schema(SUMS)).toArrow()
    return added(*(Totals(**row) for row in found.to_pylist()))
