# SPDX-License-Identifier: Apache-2.0
"""Holds: why something waits, as data: a closed set of kinds, and for each wait what, whose, since when, what lifts it.

Why: an explanation that looks at states a second time, apart from the decision, errs: it names what would hold
something and not what does. So whoever decides that something waits says why, and whoever waits keeps it until the wait
ends.

Where: dispatchers, held SENDs and permits, muted connections, listings and quotas return holds; `stats.findings` makes
sentences of them, for brokers and proxies. Nothing here is made for a message, only for a wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

T = TypeVar("T")  # a limit

NOTHING: Final[Mapping[str, float]] = MappingProxyType({})
# An episode ends when nothing was held for this long. Rates let their waiters go on each second at the latest.
QUIET_NS: Final = 5 * NS_PER_S
# A wait that has paused for this long goes on: a rate's next token comes within a second.
PAUSE_NS: Final = NS_PER_S
# What lasts less long, and holds less of the time, slows nobody: a queue that is full between two FLOWs.
NOTED_NS: Final = NS_PER_S
NOTED_PART: Final = 0.1
# Clients whose producer was refused ask again within a minute.
REFUSED_NS: Final = 120 * NS_PER_S
# How much of the time was held is told for the last minute, in steps.
MINUTE_NS: Final = 60 * NS_PER_S
_STEP_NS: Final = 10 * NS_PER_S


class Effect(Enum):
    """Effect of a hold."""

    SLOWS = "slows"
    WAITS = "waits"  # as its clients have asked
    WOULD_REFUSE = "would-refuse"  # nobody is slowed now; a new client would be refused


class HoldKind(Enum):
    """Why something waits. The order is the one of explanations: what refuses everybody first, then down the stream.

    The values are the words of explanations, of metrics and of decision records, where these know the kind. Those for
    which connections are not read are `muting.MUTES`.
    """

    # Everybody.
    LOG_READ_ONLY = "log-read-only"
    CATALOG = "catalog-read-only"
    DISK_FULL = "disk-full"
    STORAGE = "storage"
    REQUEST_MEMORY = "request-memory"
    REQUEST_COUNT = "request-count"
    STOPPING = "stopping"
    # Publishers.
    BACKLOG_QUOTA = "backlog-quota"
    PUBLISH_RATE = "publish-rate"
    GROUP_QUOTA = "group-quota"  # of dispatch, too
    ADAPTIVE_RATE = "adaptive-publish-rate"
    EXCLUSIVE_ACCESS = "exclusive-access"
    COMMANDS = "commands"
    UPSTREAM = "upstream"
    # Consumers.
    NO_CONSUMER = "no-consumer"
    REPLICATION = "replication"
    RESETTING = "resetting"
    TRANSACTION = "open-transaction"
    FAILOVER_DELAY = "failover-delay"
    UNREADABLE = "unreadable"
    DISPATCH_RATE = "dispatch-rate"
    DISPATCH_MEMORY = "dispatch-memory"
    UNACKED = "unacked-messages"
    OUTBOUND = "outbound"
    NO_PERMITS = "no-permits"
    QUEUE_FULL = "queue-full"
    KEY_BLOCKED = "key-blocked"
    LOOK_AHEAD = "look-ahead"
    DELAYED = "delayed"
    # Lists of topics.
    TOPIC_LIST_MEMORY = "topic-list-memory"
    # Nobody now.
    MEMORY_ROW = "memory-row"
    WOULD_REFUSE = "would-refuse-producers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One wait.

    Attributes:
        kind: of hold.
        what: waits; a text such as `producer p of TOPIC at HOST:PORT`.
        of: whose it is: the limit's owner, a consumer, a message. It completes the kind's sentence.
        since_ns: when it began, monotonic; None: unknown.
        ready_ns: for how long it lasts if nothing else happens; None: until something does.
        after: what else is to be said of the limit: that a connection is not read for it.
        lifted_by: what ends it, where the kind alone does not tell: a setting, a consumer.
        numbers: wanted and got, used and allowed, by name with unit.
        tenants: who may see whose it is; None: everybody.
    """

    kind: HoldKind
    what: str
    of: str = ""
    after: str = ""
    since_ns: int | None = None
    ready_ns: int | None = None
    lifted_by: str = ""
    numbers: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    tenants: frozenset[str] | None = None


class Episode(Generic[T]):
    """One wait with its pauses: since when it goes on, how much of the last minute it held, and what passed.

    Why pauses: a rate that is exceeded for an hour is a thousand waits of milliseconds. Whoever waits has an episode
    from its first wait on; times are monotonic.

    Attributes:
        of: the limit that it waits for, or has waited for last, if whoever waits has several.
    """

    __slots__ = ("_began_ns", "_ended_ns", "_held_ns", "_marks", "of", "since_ns")

    def __init__(self, now_ns: int, got: int = 0, wanted: int = 0) -> None:
        """Begin to wait. Args: got, wanted: counters of messages: what passed so far, and what was to pass."""
        self.since_ns = now_ns
        self.of: T | None = None
        self._began_ns: int | None = now_ns  # of the current wait
        self._ended_ns = now_ns  # of the last one
        self._held_ns = 0
        # Time, what was held until then, got and wanted.
        self._marks: list[tuple[int, int, int, int]] = [(now_ns, 0, got, wanted)]

    @classmethod
    def begun(cls, before: Self | None, now_ns: int, got: int = 0, wanted: int = 0) -> Self:
        """Begin to wait, for the first time or once more."""
        if before is None:
            return cls(now_ns, got, wanted)
        before.begin(now_ns, got, wanted)
        return before

    def begin(self, now_ns: int, got: int = 0, wanted: int = 0) -> None:
        """Wait, or go on waiting."""
        if self._began_ns is not None:
            return
        if now_ns - self._ended_ns >= QUIET_NS:
            self.since_ns, self._held_ns, self._marks = now_ns, 0, [(now_ns, 0, got, wanted)]
        elif now_ns - self._marks[-1][0] >= _STEP_NS:
            self._marks.append((now_ns, self._held_ns, got, wanted))
            if now_ns - self._marks[1][0] >= MINUTE_NS:
                del self._marks[0]
        self._began_ns = now_ns

    def end(self, now_ns: int) -> None:
        """Wait no more, or pause."""
        if self._began_ns is not None:
            self._held_ns += now_ns - self._began_ns
            self._began_ns, self._ended_ns = None, now_ns

    @property
    def waits(self) -> bool:
        """Whether it waits at this moment."""
        return self._began_ns is not None

    def slows(self, now_ns: int, *, at_once: bool = False) -> bool:
        """Whether it waits, or has only paused for a moment, and holds a noticeable part of the time.

        Args: at_once: a wait of any length counts.
        """
        if self._began_ns is not None and (at_once or now_ns - self._began_ns >= NOTED_NS):
            return True
        goes_on = self._began_ns is not None or now_ns - self._ended_ns < PAUSE_NS
        return goes_on and now_ns - self.since_ns >= NOTED_NS and self._held_part(now_ns) >= NOTED_PART

    def _held_part(self, now_ns: int) -> float:
        """The part of the last minute, or of the time since it began, that it held."""
        at_ns, held_ns, *_ = self._marks[0]
        held_ns = self._held_ns - held_ns + (now_ns - self._began_ns if self._began_ns is not None else 0)
        return min(1.0, held_ns / (now_ns - at_ns)) if now_ns > at_ns else 1.0

    def numbers(self, now_ns: int, got: int | None = None, wanted: int | None = None) -> dict[str, float]:
        """How much of the last minute it held, in percent; and how many messages passed and were wanted per second."""
        at_ns, _, got_then, wanted_then = self._marks[0]
        if now_ns <= at_ns:
            return {}
        per_s = NS_PER_S / (now_ns - at_ns)
        numbers: dict[str, float] = {"held_percent": round(100 * self._held_part(now_ns), 1)}
        if got is not None:
            numbers["got_messages_per_s"] = round((got - got_then) * per_s, 1)
        if wanted is not None:
            numbers["wanted_messages_per_s"] = round((wanted - wanted_then) * per_s, 1)
        return numbers


class Refusals:
    """Requests that were refused for the same reason, one after another.

    Attributes:
        since_ns: when the first of them was refused.
        times: how many were.
    """

    __slots__ = ("_last_ns", "since_ns", "times")

    def __init__(self, now_ns: int) -> None:
        self.since_ns = self._last_ns = now_ns
        self.times = 1

    def again(self, now_ns: int) -> None:
        """One more was refused."""
        self._last_ns = now_ns
        self.times += 1

    def goes_on(self, now_ns: int) -> bool:
        """Whether whoever was refused last would have asked again since."""
        return now_ns - self._last_ns < REFUSED_NS
