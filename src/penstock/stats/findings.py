# SPDX-License-Identifier: Apache-2.0
"""Explanations: sentences for holds, in one vocabulary for brokers and proxies.

Where: `stats.explanations` collects holds; `penstock why`, the routes of explanations and the reference of holds
(`docs/reference/holds.md`) show what is made of them here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.core.units import NS_PER_MS
from penstock.governance.holds import Effect, HoldKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.governance.holds import Hold

Json: TypeAlias = dict[str, Any]

# Findings in one answer; more would be the same holds again, and are not looked for.
FINDINGS_MAX: Final = 200


class Sentence(NamedTuple):
    """Sentence about a kind of hold: `limit` completes "is slowed by", `lifted` says what ends it.

    `{of}` stands for whose it is, `{by}` for what lifts it, `{wait}` for the time after which it ends by itself.
    """

    limit: str
    lifted: str
    effect: Effect = Effect.SLOWS


_LESS_BACKLOG: Final = "its consumers acknowledge messages, or the backlog is cleared, or backlogQuota is raised"
_WORKS_AGAIN: Final = "the disk works and the broker has started again"

# Rows of a table; the formatter would take four lines for some.
# fmt: off
SENTENCES: Final[Mapping[HoldKind, Sentence]] = {
    HoldKind.LOG_READ_ONLY: Sentence("the log is read-only: {of}", _WORKS_AGAIN),
    HoldKind.CATALOG: Sentence("the catalog refuses changes: {of}", _WORKS_AGAIN),
    HoldKind.DISK_FULL: Sentence("the disk is full: {of}", "the disk has room again"),
    HoldKind.STORAGE: Sentence("the disk holds a write for too long", "the journal writes again; see /healthz"),
    HoldKind.REQUEST_MEMORY: Sentence("request memory is used up", "{by}, or queued.max.request.bytes is raised"),
    HoldKind.REQUEST_COUNT: Sentence("too many requests are unanswered", "{by}, or queued.max.requests is raised"),
    HoldKind.STOPPING: Sentence("the proxy is stopping", "the client connects to another proxy"),
    HoldKind.BACKLOG_QUOTA: Sentence("backlog quota: {of}", _LESS_BACKLOG),
    HoldKind.PUBLISH_RATE: Sentence("publish rate of {of}", "{wait}{by}"),
    HoldKind.GROUP_QUOTA: Sentence("{of}", "{wait}{by}"),
    HoldKind.ADAPTIVE_RATE: Sentence("adaptive publish throttle of {of}", "{by}"),
    HoldKind.EXCLUSIVE_ACCESS: Sentence(
        "its topic is for one producer at a time, now for {of}", "producers before it are closed", Effect.WAITS),
    HoldKind.COMMANDS: Sentence("too many of its commands wait", "half of them have ended"),
    HoldKind.UPSTREAM: Sentence("{of} takes nothing", "the broker takes what was sent; see its own limits"),
    HoldKind.NO_CONSUMER: Sentence("it has no consumer", "a consumer subscribes, or the subscription is deleted"),
    HoldKind.REPLICATION: Sentence(
        "it cannot be sent to cluster {of}", "that cluster takes it; it is tried again after at most a minute"),
    HoldKind.RESETTING: Sentence("it is being reset or deleted", "that has ended"),
    HoldKind.TRANSACTION: Sentence(
        "transaction {of} is open, and keeps back what was sent after it began",
        "it is committed or aborted, at the latest by its timeout; {by} aborts it"),
    HoldKind.FAILOVER_DELAY: Sentence(
        "its active consumer has changed", "activeConsumerFailoverDelayTimeMillis has passed"),
    HoldKind.UNREADABLE: Sentence("its messages cannot be read from the disk", "the disk reads again; see /healthz"),
    HoldKind.DISPATCH_RATE: Sentence("dispatch rate of the {of}", "{wait}{by}"),
    HoldKind.DISPATCH_MEMORY: Sentence(
        "the memory for unacknowledged messages is used up", "consumers acknowledge, or memoryLimitMB is raised"),
    HoldKind.UNACKED: Sentence("unacknowledged messages", "half of these messages are acknowledged, or {by} is raised"),
    HoldKind.OUTBOUND: Sentence(
        "its client does not read what it is sent", "the client reads, or outboundMB is raised"),
    HoldKind.NO_PERMITS: Sentence("its client asks for no messages", "the client receives: it sends FLOW"),
    HoldKind.QUEUE_FULL: Sentence(
        "its client has as many messages as it has asked for",
        "the client takes messages from its queue: it sends FLOW"),
    HoldKind.KEY_BLOCKED: Sentence(
        "keys are blocked by {of}", "it acknowledges the messages of these keys, or disconnects"),
    HoldKind.LOOK_AHEAD: Sentence(
        "as many messages are set aside for their keys as may be", "the consumers of these keys take them"),
    HoldKind.DELAYED: Sentence("delivery times of delayed messages", "these times have come", Effect.WAITS),
    HoldKind.TOPIC_LIST_MEMORY: Sentence(
        "{of} memory of topic listings is used up", "other listings have ended, or {by} is raised"),
    HoldKind.MEMORY_ROW: Sentence(
        "there is no memory for more {of}", "others have ended, or {by} is raised", Effect.WOULD_REFUSE),
    HoldKind.WOULD_REFUSE: Sentence(
        "a new producer would be refused by the backlog quota: {of}", _LESS_BACKLOG, Effect.WOULD_REFUSE),
}
# fmt: on


def finding(hold: Hold, now_ns: int) -> Json:
    """A hold in words."""
    sentence = SENTENCES[hold.kind]
    wait = f"wait {-(-hold.ready_ns // NS_PER_MS)} ms for its turn, or " if hold.ready_ns is not None else ""
    return {
        "what": hold.what,
        "limit": sentence.limit.format(of=hold.of) + hold.after,
        "reason": hold.kind.value,
        "effect": sentence.effect.value,
        "forMs": None if hold.since_ns is None else max(0, now_ns - hold.since_ns) // NS_PER_MS,
        "numbers": dict(hold.numbers),
        "liftedBy": sentence.lifted.format(of=hold.of, by=hold.lifted_by, wait=wait),
        **({"tenants": sorted(hold.tenants)} if hold.tenants is not None else {}),
    }


def explanation(of: str, holds: Iterable[Hold], now_ns: int, *, producers: int, subscriptions: int) -> Json:
    """The answer to a question: findings in the order of kinds, what refuses everybody first."""
    ordered = sorted(holds, key=lambda hold: _RANKS[hold.kind.value])
    findings = [finding(hold, now_ns) for hold in ordered[:FINDINGS_MAX]]
    counts = {"producers": producers, "subscriptions": subscriptions}
    return _answer(of, counts, findings, more=len(ordered) > FINDINGS_MAX)


def merged(own: Json, others: Sequence[Json], unanswered: Sequence[int]) -> Json:
    """The answers of several brokers in one."""
    answers = (own, *others)
    findings = [found for answer in answers for found in answer["findings"]]
    findings.sort(key=lambda found: _RANKS.get(found["reason"], 0))
    counts = {count: sum(answer[count] for answer in answers) for count in ("producers", "subscriptions")}
    more = any(answer["more"] for answer in answers) or len(findings) > FINDINGS_MAX
    return _answer(own["of"], counts, findings[:FINDINGS_MAX], unanswered, more=more)


def _answer(
    of: str, counts: Mapping[str, int], findings: Sequence[Json], unanswered: Sequence[int] = (), *, more: bool
) -> Json:
    return {
        "of": of, "slowed": slowed(findings), **counts, "findings": findings, "more": more, "unanswered": [*unanswered],
    }  # fmt: skip


def slowed(findings: Iterable[Json]) -> bool:
    """Whether one of these slows somebody. Brokers of before did not say; all of theirs do."""
    return any(found.get("effect", Effect.SLOWS.value) == Effect.SLOWS.value for found in findings)


_RANKS: Final = {kind.value: rank for rank, kind in enumerate(HoldKind)}
