# SPDX-License-Identifier: Apache-2.0
"""Filters of a query that spare reading: of `__topic` and `__publishTime`. Pure.

Why Spark applies them again: a broker finds a time by a binary search, in a topic whose publish times need not be in
order, because producers have clocks of their own. So a range is a bit wider than the filter says, and the rest is done
by Spark, which costs little.
Where: the batch reader, if `spark.sql.python.filterPushdown.enabled` is on. Streams have no pushdown in Spark.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from penstock.spark.rows import PUBLISH_TIME, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.datasource import Filter

# By how much the clocks of a topic's producers may differ. A message that is further out of order may be left out.
CLOCKS_APART_MS: Final = 300_000


class Pushed(NamedTuple):
    """The part of topics that can have rows that pass.

    Attributes:
        topics: only these; None for all.
        since_ms: no message before this time, in ms since 1970.
        until_ms: no message at this time or later.
    """

    topics: frozenset[str] | None = None
    since_ms: int | None = None
    until_ms: int | None = None


NOTHING_PUSHED: Final = Pushed()


def pushed(filters: Iterable[Filter]) -> Pushed:
    """Return the topics and publish times that all of these filters allow."""
    found = NOTHING_PUSHED
    for one in filters:
        attribute = getattr(one, "attribute", None)
        if attribute == (TOPIC,) and isinstance(one, EqualTo | In):
            names = frozenset([one.value] if isinstance(one, EqualTo) else one.value)
            found = found._replace(topics=names if found.topics is None else found.topics & names)
        elif attribute == (PUBLISH_TIME,) and (time := _time_ms(getattr(one, "value", None))) is not None:
            if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
                since = time - CLOCKS_APART_MS
                found = found._replace(since_ms=since if found.since_ms is None else max(found.since_ms, since))
            if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
                until = time + 1 + CLOCKS_APART_MS
                found = found._replace(until_ms=until if found.until_ms is None else min(found.until_ms, until))
    return found


def _time_ms(value: object) -> int | None:
    if not isinstance(value, datetime):
        return None
    return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1_000)
