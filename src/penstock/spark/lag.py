# SPDX-License-Identifier: Apache-2.0
"""How far a stream is behind the ends of its topics, as numbers in the query's progress.

Why in the latest offset: a source in Python has no metrics of its own in Spark; the offset that it reports as the
latest one is shown as it is, in `sources[].latestOffset`, and not used for anything else.
Where: the planner measures, the stream reader reports. Pure.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# Partitions that are listed, those with most messages first: with thousands, a progress report would be megabytes.
LISTED_MAX: Final = 100


class Lag(NamedTuple):
    """Backlog of partitions that are behind: messages (estimated), and seconds since the next one was published.

    Both are None if they are unknown.
    """

    behind: dict[str, tuple[int | None, float | None]]

    def to_json(self) -> dict[str, Any]:
        """Return the figures of all partitions together, of the worst one, and of each that is behind."""
        messages = [one for one, _ in self.behind.values() if one is not None]
        is_known = len(messages) == len(self.behind)
        seconds = [one for _, one in self.behind.values() if one is not None]
        listed = sorted(self.behind, key=lambda topic: (-(self.behind[topic][0] or 0), topic))[:LISTED_MAX]
        return {
            "messages": sum(messages) if is_known else None,
            "maxMessages": max(messages, default=0) if is_known else None,
            # Unknown if there are messages that were not looked at.
            "seconds": round(max(seconds), 3) if seconds else (None if self.behind else 0.0),
            "partitions": {
                topic: {"messages": self.behind[topic][0], "seconds": self.behind[topic][1]} for topic in listed
            },
        }
