# SPDX-License-Identifier: Apache-2.0
"""Lets live brokers observe quotas before they are set, and compares what they measured with what was predicted.

Each minute the brokers are asked what the observed quotas would have done (`governance.observed_rate`). A minute is
limited if something would have waited in it on any broker.

Where: `penstock spark whatif --shadow`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.errors import NotFound
from penstock.spark.accounting.admin_calls import group_path
from penstock.spark.accounting.whatif import CLASSES, wanted_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.spark.accounting.admin_calls import Admin

SECONDS_PER_MINUTE: Final = 60.0


class Read(NamedTuple):
    """Counters of all brokers for one class of traffic."""

    limited_ms: int = 0
    in_force_ms: int = 0
    messages: int = 0


@dataclass
class Measured:
    """Observations of one class of traffic of a group.

    Attributes:
        limited_part: the predicted part of minutes, at most.
        minutes: that were observed.
        limited_minutes: in which something would have waited.
        limited_ms: for how long, in all.
        in_force_minutes: in which something did wait, for the quota in force.
        messages: that arrived.
    """

    resource_group: str
    name: str
    limited_part: float
    minutes: int = 0
    limited_minutes: int = 0
    limited_ms: int = 0
    in_force_minutes: int = 0
    messages: int = 0
    _last: Read = field(default_factory=Read)

    @property
    def is_as_predicted(self) -> bool:
        """Whether no more minutes were limited than were predicted; of few minutes, one at least may be."""
        return self.limited_minutes <= math.ceil(self.limited_part * self.minutes)

    def add(self, now: Read) -> None:
        """Add a minute."""
        self.minutes += 1
        self.limited_minutes += now.limited_ms > self._last.limited_ms
        self.in_force_minutes += now.in_force_ms > self._last.in_force_ms
        self.limited_ms, self.messages = now.limited_ms, now.messages
        self._last = now


def observe(
    admins: Sequence[Admin],
    rows: Sequence[Mapping[str, Any]],
    minutes: int,
    *,
    target: float | None,
    wait: Callable[[float], object],
) -> list[Measured]:
    """Observe the quotas of a replay for some minutes, on these brokers; then end it.

    Args:
        admins: of all brokers.
        rows: of the replay, see `whatif.RESULT`.
        minutes: how long.
        target: the part of minutes that are not to be limited, if quotas were recommended.
        wait: waits for so many seconds.

    Raises:
        PenstockError: a broker does not answer.
    """
    wanted = wanted_rates(rows)
    measured = [
        Measured(group, name, _predicted(rows, group, kinds, target))
        for group, rates in wanted.items()
        for name, kinds in CLASSES.items()
        if any(rate > 0 for member, rate in rates.items() if member.startswith(name))
    ]
    try:
        for minute in range(minutes if measured else 0):
            if minute == 0:
                _begin(admins, wanted)
            wait(SECONDS_PER_MINUTE)
            answers = {group: [_asked(admin, "GET", group) for admin in admins] for group in wanted}
            for one in measured:
                one.add(_read(answers[one.resource_group], one.name))
    finally:
        for group in wanted:
            for admin in admins:
                _asked(admin, "DELETE", group)
    return measured


def _begin(admins: Sequence[Admin], wanted: Mapping[str, Mapping[str, int]]) -> None:
    for group, rates in wanted.items():
        for admin in admins:
            _asked(admin, "PUT", group, rates)


def _asked(admin: Admin, method: str, group: str, body: Mapping[str, int] | None = None) -> Any:  # noqa: ANN401 - JSON
    """A broker's answer; nothing if no topic of the group is in use there."""
    try:
        return admin.ask(method, f"{group_path(group)}/observed", body) or {}
    except NotFound:
        return {}


def _read(answers: Sequence[Mapping[str, Any]], name: str) -> Read:
    found = [answer[name] for answer in answers if answer.get(name)]
    names = ("limitedMs", "limitedInForceMs", "arrivedMessages")
    return Read(*(sum(one[member] for one in found) for member in names))


def _predicted(rows: Sequence[Mapping[str, Any]], group: str, kinds: Sequence[str], target: float | None) -> float:
    """The part of minutes that are limited at most, as the replay or the target says."""
    parts = [
        1 - target
        if target is not None and row["recommended"] is not None
        else row["limited_minutes"] / max(1, row["minutes"])
        for row in rows
        if row["resource_group"] == group and row["kind"] in kinds
    ]
    return max(parts, default=0.0)
