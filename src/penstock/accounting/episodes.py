# SPDX-License-Identifier: Apache-2.0
"""Turns what limiters do into episodes: one record when one begins, one when it ends, one a minute in between.

Why: a connection may be stopped a thousand times a second for an hour. That is one episode, and its numbers say how
often and for how long.

An episode belongs to a limiter and to the client, topic or group that it slows. It ends when nothing was seen for
QUIET_NS. Refusals are counted in the same way; since they do not last, the records are called `refused`.

Where: `records.decisions` looks at the counters of limiters once a second, and passes on what has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
# Nothing seen for so long ends an episode. Limiters of rates work in seconds.
QUIET_NS: Final = 5 * NS_PER_S
GOES_ON_NS: Final = 60 * NS_PER_S
# Episodes at a time, of about 0.7 KiB; episodes beyond that are only counted.
EPISODES_MAX: Final = 2_000


class Slowed(NamedTuple):
    """A limiter, and the client, topic or group that it slows: fields of a decision record."""

    limiter: str
    reason: str = ""
    tenant: str = ""
    namespace: str = ""
    topic: str = ""
    resource_group: str = ""
    client: str = ""
    refuses: bool = False  # it refuses requests, instead of slowing


@dataclass(slots=True)
class _Episode:
    since_ms: int
    recorded_ns: int
    seen_ns: int
    times: int = 0
    held_ns: int = 0


class Episodes:
    """Episodes that go on now.

    Attributes:
        missed: how often something was seen that was not followed, because there are too many episodes.
    """

    def __init__(self, episodes_max: int = EPISODES_MAX) -> None:
        self.missed = 0
        self._max = episodes_max
        self._episodes: dict[Slowed, _Episode] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def seen(self, who: Slowed, now_ns: int, now_ms: int, *, times: int, held_ns: int = 0) -> dict[str, Any] | None:
        """Add what a limiter did since it was looked at last; returns the record's fields if an episode begins."""
        episode = self._episodes.get(who)
        begins = episode is None
        if episode is None:
            if len(self._episodes) >= self._max:
                self.missed += 1
                return None
            episode = self._episodes[who] = _Episode(now_ms, now_ns, now_ns)
        episode.seen_ns = now_ns
        episode.times += times
        episode.held_ns += held_ns
        return _fields("refused" if who.refuses else "begun", who, episode) if begins else None

    def pass_time(self, now_ns: int) -> Iterator[dict[str, Any]]:
        """Yield the fields of records of episodes that have ended, or have gone on for a minute. Consume it whole."""
        for who, episode in list(self._episodes.items()):
            if now_ns - episode.seen_ns >= QUIET_NS:
                del self._episodes[who]
                yield _fields("refused" if who.refuses else "ended", who, episode)
            elif now_ns - episode.recorded_ns >= GOES_ON_NS:
                episode.recorded_ns = now_ns
                yield _fields("refused" if who.refuses else "goes-on", who, episode)


def _fields(kind: str, who: Slowed, episode: _Episode) -> dict[str, Any]:
    fields = who._asdict()
    del fields["refuses"]
    return {
        **fields,
        "kind": kind,
        "since_ms": episode.since_ms,
        "times": episode.times,
        "held_ms": episode.held_ns // NS_PER_MS,
    }
