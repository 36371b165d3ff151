# SPDX-License-Identifier: Apache-2.0
"""Plan of a move to another cluster: what it consists of, and what will not fit, before anything is touched.

Where: `penstock migrate plan` prints it, and `start` refuses to begin while something in it blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from penstock.cli.exits import CommandFailed, Exit
from penstock.core.names import REPLICATOR_PREFIX, TopicName, parent_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.cli.rest import Json, Rest

# Of a namespace's policies: what belongs to a cluster itself, and is set anew.
NOT_COPIED: Final = frozenset(
    {"replication_clusters", "allowed_clusters", "bundles", "deleted", "migrated", "latency_stats_sample_rate"}
)
# Settings of brokers that decide what happens to topics without policies of their own.
_SETTINGS: Final = (
    "maxMessageSize", "allowAutoTopicCreation", "allowAutoTopicCreationType", "defaultNumPartitions",
    "allowAutoSubscriptionCreation", "defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB",
    "ttlDurationDefaultInSeconds", "backlogQuotaDefaultLimitBytes", "backlogQuotaDefaultRetentionPolicy",
    "brokerDeduplicationEnabled", "transactionCoordinatorEnabled", "acknowledgmentAtBatchIndexLevelEnabled",
    "maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription", "maxConsumersPerSubscription",
    "maxProducersPerTopic", "maxTopicsPerNamespace", "delayedDeliveryEnabled", "topicLevelPoliciesEnabled",
    "schemaCompatibilityStrategy", "brokerDeleteInactiveTopicsEnabled",
)  # fmt: skip
_ONLY_HERE: Final = ("pulsar",)  # tenants of the brokers themselves


class Finding(NamedTuple):
    """Something that an administrator should know."""

    of: str
    what: str
    blocks: bool = False


class Ends(NamedTuple):
    """Both clusters, as a move sees them."""

    here: Rest
    there: Rest
    own: str  # name of the cluster here
    theirs: str  # name of the cluster there
    label: str  # what the cluster here calls that one


def ends(here: Rest, there: Rest) -> Ends:
    """Ask both clusters for their names. Raises CommandFailed."""
    own, theirs = (str(_settings(one).get("clusterName") or "") for one in (here, there))
    # Their names may be alike; then ours must have another one for theirs.
    return Ends(here, there, own, theirs, theirs if theirs != own else f"{theirs}-moved-to")


def namespaces(here: Rest, wanted: Sequence[str]) -> list[str]:
    """Return the namespaces to move. Raises CommandFailed for one that is not there."""
    tenants = [one for one in here.get("/admin/v2/tenants") if one not in _ONLY_HERE]
    found = [one for tenant in tenants for one in here.get(f"/admin/v2/namespaces/{quote(tenant, safe='')}")]
    for one in wanted:
        if one not in found:
            raise CommandFailed(f"there is no namespace {one}", Exit.NOT_FOUND)
    return [one for one in found if not wanted or one in wanted]


class Contents(NamedTuple):
    """Topics of a namespace."""

    topics: tuple[str, ...]  # those that hold messages: each partition is one
    partitioned: dict[str, int]  # partitions, by full name

    @property
    def wholes(self) -> list[str]:
        """Topics, of which partitions are parts."""
        return sorted({*self.partitioned, *map(parent_text, self.topics)})


def contents(rest: Rest, namespace: str) -> Contents:
    """List a namespace's persistent topics. Raises CommandFailed."""
    base = f"/admin/v2/persistent/{namespace}"
    topics = tuple(sorted(rest.get(base)))
    partitioned = {one: rest.get(f"{path_of(one)}/partitions")["partitions"] for one in rest.get(f"{base}/partitioned")}
    return Contents(topics, partitioned)


def path_of(topic: str) -> str:
    """Return the path of a topic at an admin port."""
    name = TopicName.parse(topic)
    return f"/admin/v2/{name.domain}/{name.tenant}/{name.namespace}/{quote(name.local, safe='')}"


def found(rest: Rest, path: str) -> Json:
    """Return what a path answers; None if it does not exist. Raises CommandFailed."""
    try:
        return rest.get(path)
    except CommandFailed as error:
        if error.status is Exit.NOT_FOUND:
            return None
        raise


def plan(both: Ends, chosen: Sequence[str]) -> Iterator[Finding]:
    """Yield what an administrator should know before the move. Changes nothing. Raises CommandFailed."""
    yield from _of_clusters(both)
    tenants = set(both.there.get("/admin/v2/tenants"))
    yield from _of_groups(both)
    for namespace in chosen:
        tenant = namespace.partition("/")[0]
        if tenant in tenants:
            allowed = both.there.get(f"/admin/v2/tenants/{quote(tenant, safe='')}").get("allowedClusters") or []
            if both.theirs not in allowed:
                yield Finding(f"tenant {tenant}", f"exists there without {both.theirs} in its allowedClusters", True)
        is_there = tenant in tenants and namespace in both.there.get(f"/admin/v2/namespaces/{quote(tenant, safe='')}")
        policies = both.here.get(f"/admin/v2/namespaces/{namespace}")
        if is_there:
            yield from _of_policies(both, namespace, policies)
        moving = both.label in policies["replication_clusters"]
        if others := sorted(set(policies["replication_clusters"]) - {both.own, both.label}):
            yield Finding(namespace, f"is replicated to {', '.join(others)} from here: set that up there, too")
        yield from _of_topics(both, namespace, is_there=is_there, moving=moving)


def _of_clusters(both: Ends) -> Iterator[Finding]:
    here, there = _settings(both.here), _settings(both.there)
    if both.own == both.theirs:
        yield Finding("clusters", f"both are called {both.own}; here the other one will be called {both.label}")
    for key in _SETTINGS:
        if key in here and key in there and here[key] != there[key]:
            yield Finding("settings", f"{key} is {here[key]} here and {there[key]} there")
    if _number(there.get("maxMessageSize")) < _number(here.get("maxMessageSize")):
        yield Finding("settings", "messages that are larger than maxMessageSize there stop the copy of their topic")


def _of_groups(both: Ends) -> Iterator[Finding]:
    groups = both.here.get("/admin/v2/resourcegroups")
    if groups and found(both.there, "/admin/v2/resourcegroups") is None:
        yield Finding("resource groups", f"{', '.join(groups)}: the cluster there has none", True)
    for tenant in both.here.get("/admin/v2/tenants"):
        group = found(both.here, f"/admin/v2/tenants/{quote(tenant, safe='')}/resourcegroup")
        if group:
            yield Finding(f"tenant {tenant}", f"its resource group {group} stays behind: only namespaces have one")


def _of_policies(both: Ends, namespace: str, policies: dict[str, Any]) -> Iterator[Finding]:
    theirs = both.there.get(f"/admin/v2/namespaces/{namespace}")
    for key, value in copied(policies, both).items():
        if value and theirs.get(key) != value:
            yield Finding(namespace, f"exists there, and keeps its {key}: {theirs.get(key)!r}, here {value!r}")


def _of_topics(both: Ends, namespace: str, *, is_there: bool, moving: bool) -> Iterator[Finding]:
    ours = contents(both.here, namespace)
    theirs = contents(both.there, namespace) if is_there else Contents((), {})
    for topic in ours.wholes:
        here, there = ours.partitioned.get(topic, 0), theirs.partitioned.get(topic, 0)
        exists = topic in theirs.wholes
        if exists and here != there:
            yield Finding(topic, f"has {here} partitions here and {there} there", True)
    for topic in set(ours.topics) & set(theirs.topics) if not moving else ():
        if both.there.get(f"{path_of(topic)}/stats").get("storageSize"):
            yield Finding(topic, "has messages there, which are not copies of ours", True)
    if unkept := both.here.get(f"/admin/v2/non-persistent/{namespace}"):
        yield Finding(namespace, f"{len(unkept)} non-persistent topics: clients move, and there is nothing to copy")
    for topic in ours.topics:
        stats = both.here.get(f"{path_of(topic)}/internalStats")
        if stats["state"] == "Terminated":
            yield Finding(topic, "is terminated here: terminate it there when it has moved")
        if stats["compactedLedger"]["ledgerId"] != -1:
            yield Finding(topic, "is compacted: values that are only in its compacted ledger stay behind")
        names = [name for name in stats["cursors"] if not name.startswith(REPLICATOR_PREFIX)]
        if not names and stats["numberOfEntries"]:
            yield Finding(topic, f"has no subscription: all its {stats['numberOfEntries']:,} entries are copied")


def copied(policies: dict[str, Any], both: Ends) -> dict[str, Any]:
    """Return the policies of a namespace as they are set there."""
    return {
        key: {both.theirs: value[both.own]} if isinstance(value, dict) and set(value) == {both.own} else value
        for key, value in policies.items()
        if key not in NOT_COPIED and value not in (None, {}, [])
    }


def _settings(rest: Rest) -> dict[str, str]:
    values: dict[str, str] = rest.get("/admin/v2/brokers/configuration/runtime")
    return values


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
