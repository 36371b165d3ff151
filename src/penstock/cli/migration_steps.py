# SPDX-License-Identifier: Apache-2.0
"""Steps of a move to another cluster: make everything there, copy, and send the clients of a namespace on.

Why every step looks first: what is set at both clusters is the state of a move, so there is no file that could be
lost, or be wrong. A step does what is missing; whoever was killed begins again.
Where: `penstock migrate`.

Sending on a namespace
    Before: a reader of the copy of each topic, which knows where its messages are there, and a consumer of each
    subscription there, which acknowledges what was acknowledged here. They stay open, so that little is left to do.
    Then the namespace is held: all clients wait. When everything has arrived there, the last acknowledgements are
    made, and clients are sent on. If that takes too long, the hold is given up, clients go on here, and it is tried
    again. If this command is killed, the hold ends by itself.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import ExitStack, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import quote

from penstock.broker.policies.unenforced_policies import ALL
from penstock.cli.exits import CommandFailed
from penstock.cli.migration_places import Marks, Places, Topic, source_of
from penstock.cli.migration_plan import contents, copied, found, path_of
from penstock.core.names import COMPACTION_SUBSCRIPTION, REPLICATOR_PREFIX
from penstock.core.units import NS_PER_S
from penstock.spark.client.errors import ClientError
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.subscription import Subscription
from penstock.wire.client.events import ConsumerClosed, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.cli.migration_plan import Contents, Ends
    from penstock.core.clock import Clock
    from penstock.core.position import Position
    from penstock.spark.client.cluster import Cluster

# How many entries may be missing there when a namespace is held: they arrive while clients wait.
CLOSE_BEHIND: Final = 500
POLL_S: Final = 0.02
COPY_POLL_S: Final = 0.5
# What a hold lasts at the broker; the command never extends one, and does not use its end.
_HOLD_S: Final = 10
_MARGIN_S: Final = 3
_TOLD_EVERY_S: Final = 5
_WINDOW: Final = 1_000
_ACKS_AT_ONCE: Final = 1_000
_EVENT_S: Final = 10.0
# Of one cursor, before the command gives up.
_DELETIONS_MAX: Final = 20
# Of one namespace, before the command gives up; and the longest pause between them.
ATTEMPTS_MAX: Final = 20
_PAUSE_S_MAX: Final = 30.0
_FIRST: Final = {"ledgerId": -1, "entryId": -1}


class TooLong(CommandFailed):
    """Clients would wait too long; they go on here."""


# -- everything but messages ------------------------------------------------------------------------------------------


def make_cluster(both: Ends, data: dict[str, Any]) -> None:
    """Name the other cluster here, and say where clients will be sent."""
    path = f"/admin/v2/clusters/{quote(both.label, safe='')}"
    if found(both.here, path) is None:
        both.here.ask("PUT", path, body=data)
    else:
        both.here.ask("POST", path, body=data)
    urls = {key: value for key, value in data.items() if key.lower().startswith(("serviceurl", "brokerserviceurl"))}
    both.here.ask("POST", f"/admin/v2/clusters/{both.own}/migrate", {"migrated": "false"}, urls)


def make_groups(both: Ends) -> None:
    """Make the resource groups there that are missing."""
    groups = both.here.get("/admin/v2/resourcegroups")
    there = set(both.there.get("/admin/v2/resourcegroups")) if groups else set()
    for group in groups:
        if group not in there:
            path = f"/admin/v2/resourcegroups/{quote(group, safe='')}"
            both.there.ask("PUT", path, body=both.here.get(path))


def make_namespace(both: Ends, namespace: str) -> None:
    """Make tenant and namespace there, with policies and permissions, if they are missing."""
    tenant = namespace.partition("/")[0]
    path = f"/admin/v2/tenants/{quote(tenant, safe='')}"
    if tenant not in both.there.get("/admin/v2/tenants"):
        roles = both.here.get(path).get("adminRoles") or []
        both.there.ask("PUT", path, body={"adminRoles": roles, "allowedClusters": [both.theirs]})
    if namespace not in both.there.get(f"/admin/v2/namespaces/{quote(tenant, safe='')}"):
        policies = copied(both.here.get(f"/admin/v2/namespaces/{namespace}"), both)
        both.there.ask(
            "PUT", f"/admin/v2/namespaces/{namespace}", body={**policies, "replication_clusters": [both.theirs]}
        )


def make_topics(both: Ends, namespace: str) -> Contents:
    """Make topics there, with policies, schemas and subscriptions, as far as they are missing; returns ours."""
    ours, theirs = contents(both.here, namespace), contents(both.there, namespace)
    for topic in ours.wholes:
        path = path_of(topic)
        if topic not in theirs.wholes:
            if partitions := ours.partitioned.get(topic):
                both.there.ask("PUT", f"{path}/partitions", body=partitions)
            else:
                both.there.ask("PUT", path)
        ours_of = found(both.here, f"{path}/properties")
        if ours_of and not found(both.there, f"{path}/properties"):
            both.there.ask("PUT", f"{path}/properties", body=ours_of)
        _copy_schemas(both, topic)
        _copy_policies(both, topic)
        here, there = (set(one.get(f"{path}/subscriptions")) for one in (both.here, both.there))
        missing = here - there - {COMPACTION_SUBSCRIPTION}
        for subscription in missing:
            target = f"{path}/subscription/{quote(subscription, safe='')}"
            properties = found(both.here, f"{target}/properties") or {}
            both.there.ask("PUT", target, body={**_FIRST, "properties": properties})
    return ours


def _copy_schemas(both: Ends, topic: str) -> None:
    path = path_of(topic).replace("/persistent/", "/schemas/", 1)
    ours = (found(both.here, f"{path}/schemas") or {}).get("getSchemaResponses") or []
    theirs = (found(both.there, f"{path}/schemas") or {}).get("getSchemaResponses") or []
    for one in ours[len(theirs) :]:
        body = {"type": one["type"], "schema": one["data"], "properties": one.get("properties") or {}}
        both.there.ask("POST", f"{path}/schema", body=body)


def _copy_policies(both: Ends, topic: str) -> None:
    path = path_of(topic)
    for row in ALL:
        level = row.topic
        if level is None or not level.routed or row.name in {"replication", "shadowTopics"}:
            continue
        target = f"{path}/{level.path or row.name}"
        value = found(both.here, target)
        if value is not None and value != level.unset:
            both.there.ask(level.verb, target, body=value)
    if (ttl_s := found(both.here, f"{path}/messageTTL")) is not None:
        both.there.ask("POST", f"{path}/messageTTL", {"messageTTL": str(ttl_s)})
    for kind, quota in (found(both.here, f"{path}/backlogQuotaMap") or {}).items():
        both.there.ask("POST", f"{path}/backlogQuota", {"backlogQuotaType": kind}, quota)


# -- messages ---------------------------------------------------------------------------------------------------------


def replicate(both: Ends, namespace: str, *, all_retained: bool) -> None:
    """Replicate the topics of a namespace from their oldest message that somebody needs."""
    path = f"/admin/v2/namespaces/{namespace}"
    clusters = both.here.get(f"{path}/replication")
    known = _place_cursors(both, namespace, all_retained=all_retained)
    if both.label in clusters:
        return
    tenant = f"/admin/v2/tenants/{quote(namespace.partition('/')[0], safe='')}"
    info = both.here.get(tenant)
    allowed = info.get("allowedClusters") or [both.own]
    if both.label not in allowed:
        both.here.ask("POST", tenant, body={**info, "allowedClusters": [*allowed, both.label]})
    if own := found(both.here, f"{path}/allowedClusters"):
        both.here.ask("POST", f"{path}/allowedClusters", body=sorted({*own, both.label}))
    both.here.ask("POST", f"{path}/replication", body=[*(clusters or [both.own]), both.label])
    # Topics that were made in between have a cursor at their end.
    for topic in set(contents(both.here, namespace).topics) - known:
        both.here.ask("POST", f"{_cursor(both, topic)}/resetcursor", body=_FIRST)


def _place_cursors(both: Ends, namespace: str, *, all_retained: bool) -> set[str]:
    topics = contents(both.here, namespace).topics
    for topic in topics:
        state = look(both, topic)
        if state.replicated is None:
            oldest = 0 if all_retained else state.oldest()
            both.here.ask("PUT", _cursor(both, topic), body={"ledgerId": state.ledger_id, "entryId": oldest})
    return set(topics)


def _cursor(both: Ends, topic: str) -> str:
    return f"{path_of(topic)}/subscription/{quote(REPLICATOR_PREFIX + both.label, safe='')}"


def look(both: Ends, topic: str) -> Topic:
    """Return the state of a topic here."""
    return Topic.of(both.here.get(f"{path_of(topic)}/internalStats"), both.label)


def stop_replicating(both: Ends, namespace: str) -> None:
    """Replicate a namespace no more; cursors of its topics go."""
    path = f"/admin/v2/namespaces/{namespace}"
    clusters = both.here.get(f"{path}/replication")
    if both.label in clusters:
        both.here.ask("POST", f"{path}/replication", body=[one for one in clusters if one != both.label])
    if both.label in (own := found(both.here, f"{path}/allowedClusters") or []):
        both.here.ask("POST", f"{path}/allowedClusters", body=[one for one in own if one != both.label])
    # Of topics that are not loaded, cursors would stay, and hold messages back.
    for topic in contents(both.here, namespace).topics:
        _delete_cursor(both, topic)


def _delete_cursor(both: Ends, topic: str) -> None:
    refusal: CommandFailed | None = None
    for _ in range(_DELETIONS_MAX):
        if look(both, topic).replicated is None:
            return
        try:
            both.here.ask("DELETE", _cursor(both, topic), {"force": "true"})
        except CommandFailed as error:  # The broker may be deleting it just now.
            refusal = error
        threading.Event().wait(COPY_POLL_S)
    if refusal is not None:
        raise refusal


def forget_cluster(both: Ends) -> None:
    """Let nothing here name the other cluster any more."""
    for tenant in both.here.get("/admin/v2/tenants"):
        path = f"/admin/v2/tenants/{quote(tenant, safe='')}"
        info = both.here.get(path)
        allowed = info.get("allowedClusters") or []
        if both.label in allowed:
            both.here.ask("POST", path, body={**info, "allowedClusters": [one for one in allowed if one != both.label]})
    if found(both.here, f"/admin/v2/clusters/{quote(both.label, safe='')}") is not None:
        both.here.ask("DELETE", f"/admin/v2/clusters/{quote(both.label, safe='')}")


# -- clients ----------------------------------------------------------------------------------------------------------


class _Done(NamedTuple):
    """Acknowledgements that a subscription there has."""

    marks: Marks
    last: int  # the last entry here that had arrived then
    second_copies: int


_NOTHING: Final = _Done(Marks(-1, ()), -1, 0)


class Copy:
    """One topic: what of it is there, and its subscriptions there. Use it in a `with`."""

    def __init__(self, both: Ends, cluster: Cluster, topic: str) -> None:
        """Args: cluster: the one there."""
        self.topic = topic
        self._both = both
        self._cluster = cluster
        self._places = Places()
        self._reader: Subscription | None = None
        self._read: MessageId = EARLIEST
        self._consumers: dict[str, Subscription] = {}
        self._done: dict[str, _Done] = {}  # what was acknowledged there, by subscription

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections; acknowledgements are made again, because the cluster there may have lost them."""
        self._close_reader()
        while self._consumers:
            self._consumers.popitem()[1].close()
        self._done.clear()

    def state(self) -> Topic:
        """Return the state of the topic here."""
        return look(self._both, self.topic)

    def read(self, ledger_id: int) -> None:
        """Read the copy to its end. Raises ClientError, CommandFailed."""
        if self._reader is None:
            start = self._read._replace(entry_id=self._read.entry_id + 1) if self._read != EARLIEST else EARLIEST
            self._reader = Subscription.reading(self._cluster, self.topic, start)
            self._reader.refill(_WINDOW)
        last = self._reader.last_id()
        while last is not None and self._read[:2] < last[:2]:
            event = self._reader.connection.next_event(_EVENT_S)
            if event is None or isinstance(event, ConsumerClosed):
                self._close_reader()
                raise TooLong(f"the copy of {self.topic} cannot be read now: its topic moves there; trying again")
            if isinstance(event, Message):
                self._reader.connection.flow(self._reader.consumer)
                self._read = MessageId(*event.position)
                about = event.metadata()
                if not about.HasField("marker_type"):
                    self._places.add(source_of(about.properties, ledger_id, self.topic), event.position)

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def carry_over(self, state: Topic) -> None:
        """Acknowledge there what was acknowledged here. Raises ClientError."""
        places = self._places
        for name, marks in state.cursors.items():
            done, now = self._done.get(name, _NOTHING), _Done(marks, places.last, len(places.second_copies))
            if done == now:
                continue
            consumer = self._consumers.get(name)
            if consumer is None:
                consumer = self._consumers[name] = Subscription.durable(self._cluster, self.topic, name)
            through = places.through(marks.through)
            if through is not None:
                consumer.connection.acknowledge(consumer.consumer, through, f"acknowledging in {name} of {self.topic}")
            fresh = marks.without(done.marks, through=done.last)
            positions = [place for first, last in fresh for place in places.within(first, last)]
            self._acknowledge(consumer, [*positions, *places.second_copies[done.second_copies :]])
            self._done[name] = now

    def _acknowledge(self, consumer: Subscription, positions: list[Position]) -> None:
        rest = iter(positions)
        while some := list(islice(rest, _ACKS_AT_ONCE)):
            consumer.connection.acknowledge_each(consumer.consumer, some, wait=True)

    def leave(self) -> None:
        """Close the consumers there: clients take their places. Raises ClientError."""
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            with consumer:
                consumer.connection.unsubscribe(consumer.consumer)


class Sent(NamedTuple):
    """A namespace whose clients were sent on."""

    topics: int
    subscriptions: int
    pause_s: float  # from the hold until clients may connect there


class Switch:
    """Sends the clients of one namespace on."""

    def __init__(self, both: Ends, cluster: Cluster, namespace: str, clock: Clock, *, pause_max_s: float) -> None:
        """Args: pause_max_s: if clients would wait longer, they go on here, and it is tried again."""
        self._both, self._cluster, self._namespace = both, cluster, namespace
        self._clock = clock
        self._pause_max_s = pause_max_s
        self._path = f"/admin/v2/namespaces/{namespace}/migration"

    def run(self, told: Callable[[str], None]) -> Sent:
        """Wait until nearly everything is there, then send clients on. Args: told: called with what happens.

        Raises CommandFailed, ClientError: clients go on here.
        """
        copies: dict[str, Copy] = {}
        with ExitStack() as stack:
            for attempt in range(ATTEMPTS_MAX):
                for topic in make_topics(self._both, self._namespace).topics:
                    if topic not in copies:
                        copies[topic] = stack.enter_context(Copy(self._both, self._cluster, topic))
                try:
                    self._follow(list(copies.values()), told)
                    return self._attempt(copies)
                except (TooLong, ClientError) as error:
                    if isinstance(error, ClientError) and not error.may_pass:
                        raise
                    told(str(error))
                    for copy in copies.values() if isinstance(error, ClientError) else ():
                        copy.disconnect()
                threading.Event().wait(min(2.0**attempt, _PAUSE_S_MAX))
        raise CommandFailed(f"{self._namespace} could not be sent on in {ATTEMPTS_MAX} attempts; clients go on here")

    def _attempt(self, copies: dict[str, Copy]) -> Sent:
        if left_ms := self._both.here.get(self._path)["heldForMs"]:
            raise TooLong(f"{self._namespace} is held by another command for {left_ms / 1000:.1f} s; trying again then")
        hold = secrets.token_hex(8)
        began_ns = self._clock.monotonic_ns()
        try:
            self._both.here.ask("POST", f"{self._path}/{hold}", {"seconds": str(_HOLD_S)})
            if set(contents(self._both.here, self._namespace).topics) - copies.keys():
                raise TooLong(f"{self._namespace} has new topics; clients go on here, and it is tried again")
            subscriptions = self._finish(list(copies.values()), began_ns)
            self._check_time(began_ns, _HOLD_S - _MARGIN_S, self._namespace)
            self._both.here.ask("POST", self._path, {"migrated": "true", "hold": hold})
        except BaseException:
            with suppress(CommandFailed):  # It ends by itself.
                self._both.here.ask("DELETE", f"{self._path}/{hold}")
            raise
        return Sent(len(copies), subscriptions, (self._clock.monotonic_ns() - began_ns) / NS_PER_S)

    def _follow(self, copies: list[Copy], told: Callable[[str], None]) -> None:
        """Read the copies and acknowledge there, until little is missing."""
        told_ns = self._clock.monotonic_ns()
        while True:
            behind = 0
            for copy in copies:
                state = copy.state()
                behind += state.behind
                copy.read(state.ledger_id)
                copy.carry_over(state)
            if behind <= CLOSE_BEHIND:
                return
            if self._clock.monotonic_ns() - told_ns > _TOLD_EVERY_S * NS_PER_S:
                told_ns = self._clock.monotonic_ns()
                told(f"{self._namespace}: {behind:,} entries are not there yet")
            threading.Event().wait(COPY_POLL_S)

    def _finish(self, copies: list[Copy], began_ns: int) -> int:
        """Wait until topics rest and have arrived, and acknowledge the last there; returns how many subscriptions."""
        subscriptions = 0
        for copy in copies:
            for state in self._looks(copy, began_ns):
                if state.rests and not state.behind:
                    break
            copy.read(state.ledger_id)
            copy.carry_over(state)
            subscriptions += len(state.cursors)
        for copy in copies:
            copy.leave()
        return subscriptions

    def _looks(self, copy: Copy, began_ns: int) -> Iterator[Topic]:
        while True:
            yield copy.state()
            self._check_time(began_ns, self._pause_max_s, copy.topic)
            threading.Event().wait(POLL_S)

    def _check_time(self, began_ns: int, max_s: float, what: str) -> None:
        waited_s = (self._clock.monotonic_ns() - began_ns) / NS_PER_S
        if waited_s > max_s:
            raise TooLong(
                f"{what} was not complete there after {waited_s:.1f} s (an open transaction, or a slow line; "
                f"see `penstock why {what}`): clients go on here, and it is tried again"
            )
