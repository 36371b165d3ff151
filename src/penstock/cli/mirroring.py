# SPDX-License-Identifier: Apache-2.0
"""Copies topics of another cluster into the broker of this process: the thread of `penstock mirror`.

Why a thread: the client of the command line waits for sockets (docs/adr/0103-messages-on-the-command-line.md), which
the broker's loop must not. What is copied is given to the loop some entries at a time.

Theory of operation
    Each topic, or partition, is read by a reader without a durable cursor, in turns, as fast as the rate allows.
    Entries are stored as they are; only one that names a schema gets the number that the schema has here.
    How far a copy is stands in a file, which is written now and then. After a crash the log may have more entries than
    the file says. They are known again by their checksums when they are read once more, and passed over.
"""

from __future__ import annotations

import asyncio
import json
import select
import threading
from collections import deque
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.broker.publishing.own_entries import OwnEntry
from penstock.broker.schemas.checks.model import TYPES
from penstock.cli.exits import CommandFailed
from penstock.cli.feeds import Feed, connected, ends, reader_body, said, start_of
from penstock.core.checksum import SEAL_BYTES
from penstock.core.errors import PenstockError, WireCode
from penstock.core.names import TopicName, parent_text
from penstock.core.units import KIB, MIB, NS_PER_S
from penstock.governance.resource_group import TokenBucket
from penstock.net.clock import SystemClock
from penstock.spark.client.errors import ClientError, Refused
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.wire.client import entries

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from pathlib import Path

    from penstock.broker.administration.copies import Copies
    from penstock.cli.contexts import Target
    from penstock.core.clock import Clock
    from penstock.spark.client.cluster import Cluster
    from penstock.wire.client.events import Message

T = TypeVar("T")

# Of one topic in its turn: they are in memory together, and synced together.
ENTRIES_PER_TURN: Final = 500
BYTES_PER_TURN_MAX: Final = 1 * MIB
BYTES_PER_TURN_MIN: Final = 16 * KIB
# Where nothing comes, and between looks at the end.
WAIT_S: Final = 0.5
# A topic that fails is tried again; one that is gone or not allowed seldom.
RETRY_NS: Final = 5 * NS_PER_S
RETRY_SELDOM_NS: Final = 60 * NS_PER_S
SAVE_NS: Final = NS_PER_S
TELL_NS: Final = 10 * NS_PER_S
# Namespaces are listed again for topics that are new, and topics asked for new partitions.
LIST_NS: Final = 30 * NS_PER_S
# The last messages of a topic that do not come in this time are none that readers are given.
LAST_NS: Final = 30 * NS_PER_S
# Names that Apache Pulsar keeps for itself in a namespace.
_SYSTEM: Final = "__"
_PENDING_ACKS: Final = "__transaction_pending_ack"


class Stopped(Exception):
    """The broker ends."""


class Wanted(NamedTuple):
    """Copies that are asked for.

    Attributes:
        names: full names of topics, and namespaces.
        since: where a new copy begins, as `tail --from` has it.
        rate: bytes a second; 0: as fast as can be.
        follow: whether to go on when all is here that there is now.
    """

    names: tuple[str, ...]
    since: str
    rate: int
    follow: bool


class Place(NamedTuple):
    """How far a topic is copied: the next entry where it comes from, and the next one here."""

    source: MessageId
    here: int


class Places:
    """Places of all copies, in a file."""

    def __init__(self, path: Path, source: str) -> None:
        """Read them. Raises CommandFailed: they are of another cluster, or no places."""
        self._path, self._source = path, source
        self._changed = False
        self._places: dict[str, Place] = {}
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            self._places = {
                topic: Place(MessageId(*map(int, where.split(":"))), int(here))
                for topic, (where, here) in kept["topics"].items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandFailed(
                f"{path} does not say how far the mirror is: {error}; name another --data-dir"
            ) from error
        if kept.get("from") != source:
            raise CommandFailed(
                f"{path.parent} has a copy of {kept.get('from')}, not of {source}: name another --data-dir; if it is "
                f"the same cluster under a new address, write that into {path}"
            )

    def get(self, topic: str) -> Place | None:
        """Return how far a topic is; None if it is not copied yet."""
        return self._places.get(topic)

    def put(self, topic: str, place: Place) -> None:
        """Note how far a topic is, for the next `save`."""
        self._places[topic] = place
        self._changed = True

    def save(self) -> None:
        """Write the file, if something has changed. Raises OSError."""
        if not self._changed:
            return
        topics = {
            topic: (f"{one.source.ledger_id}:{one.source.entry_id}", one.here) for topic, one in self._places.items()
        }
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"from": self._source, "topics": topics}, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self._path)
        self._changed = False


@dataclass(slots=True)
class Copy:
    """One topic, or partition, that is copied.

    Attributes:
        stored: checksums of entries behind the place that are here already, after a crash.
        last: the last entry that the copy must have to be complete; None: it is.
        heard_ns: when an entry came last.
        problem: why it does not go on; empty: it does.
        given_up: whether it cannot be had, and nobody waits for it.
    """

    topic: str
    name: TopicName
    place: Place
    stored: deque[bytes]
    last: tuple[int, int] | None
    feed: Feed | None = None
    heard_ns: int = 0
    retry_ns: int = 0
    problem: str = ""
    given_up: bool = False
    messages: int = 0
    nbytes: int = 0
    versions: dict[bytes, bytes] = field(default_factory=dict)  # of schemas: there -> here

    @property
    def is_complete(self) -> bool:
        """Whether all is here that was there at the start."""
        return self.last is None

    def close(self) -> None:
        """Close its reader."""
        if self.feed is not None:
            self.feed.close()
            self.feed = None


class Mirror:
    """Copies topics in a thread until `stop`."""

    def __init__(
        self,
        target: Target,
        wanted: Wanted,
        places: Places,
        *,
        copies: Copies,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        """Args: copies: of the broker, called on its `loop`. say: tells people how far it is."""
        self._target, self._wanted, self._places = target, wanted, places
        self._home, self._loop, self._say = copies, loop, say
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._copies: dict[str, Copy] = {}
        self._bucket = TokenBucket(wanted.rate, self._now_ns()) if wanted.rate else None
        self._listed_ns = self._saved_ns = self._told_ns = self._now_ns()
        self._told = ""
        self._complete = False

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and note how far the copies are."""
        self._stopping.set()
        self._thread.join(WAIT_S * 10)

    def _now_ns(self) -> int:
        return self._clock.monotonic_ns()

    # -- all copies ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with connected(self._target) as cluster:
                    self._copy_all(cluster)
                return
            except Stopped:
                return
            except (PenstockError, OSError) as error:
                self._say(f"copying goes on in {RETRY_NS // NS_PER_S} s: {error}")
            finally:
                self._end()
            self._stopping.wait(RETRY_NS / NS_PER_S)

    def _end(self) -> None:
        for one in self._copies.values():
            one.close()
        with suppress(OSError):  # What the file lacks is found again in the log.
            self._places.save()

    def _copy_all(self, cluster: Cluster) -> None:
        self._find(cluster)
        while not self._stopping.is_set():
            now_ns = self._now_ns()
            if self._wanted.follow and now_ns - self._listed_ns >= LIST_NS:
                self._find(cluster)
            came = False
            for one in list(self._copies.values()):
                came |= self._go_on(cluster, one)
            if now_ns - self._saved_ns >= SAVE_NS:
                self._saved_ns = now_ns
                self._places.save()
            self._tell(now_ns)
            if self._complete and not self._wanted.follow:
                return
            if not came:
                self._wait()

    def _find(self, cluster: Cluster) -> None:
        """Make the topics that there are, as far as they are not copied yet. Raises ClientError, PenstockError."""
        self._listed_ns = self._now_ns()
        for topic, parts in topics_of(cluster, self._wanted.names, missing_ok=True).items():
            new = [one for one in parts if one not in self._copies]
            if new:
                count = 0 if parts == [topic] else len(parts)
                self._on_loop(self._home.make(TopicName.parse(topic), count))
            for one in new:
                self._copies[one] = self._begun(cluster, one)

    def _begun(self, cluster: Cluster, topic: str) -> Copy:
        name = TopicName.parse(topic)
        end = self._on_loop(self._home.end(name))
        place = self._places.get(topic)
        stored: deque[bytes] = deque()
        if place is None or place.here > end:
            start = start_of(cluster, topic, self._wanted.since)
            place = Place(start if start.ledger_id >= 0 else EARLIEST, end)
            self._places.put(topic, place)
            self._places.save()  # Before the first entry is stored, so that all of them are known again.
        elif place.here < end:
            stored.extend(self._on_loop(self._home.seals(name, place.here)))
        last = ends(cluster, [topic])[topic]
        missing = last is not None and last[:2] >= place.source[:2]
        copy = Copy(topic, name, place, stored, last[:2] if missing and last else None)
        if not missing:
            self._register_latest(cluster, copy)
        return copy

    def _tell(self, now_ns: int) -> None:
        copies = self._copies.values()
        complete = sum(one.is_complete or one.given_up for one in copies)
        messages, nbytes = sum(one.messages for one in copies), sum(one.nbytes for one in copies)
        done = f"{messages:,} messages, {nbytes / MIB:,.1f} MiB"
        if complete == len(copies) and not self._complete:
            self._complete = True
            given_up = sum(one.given_up for one in copies)
            but = f", {given_up:,} of which could not be read" if given_up else ""
            then = "what is published there follows" if self._wanted.follow else "it is served until Ctrl-C"
            self._say(f"the copy is complete: {done} of {len(copies):,} topics{but}; {then}")
            self._told, self._told_ns = done, now_ns
        elif now_ns - self._told_ns >= TELL_NS and done != self._told:
            self._told, self._told_ns = done, now_ns
            self._say(f"copied {done}; {complete:,} of {len(copies):,} topics are complete")

    def _wait(self) -> None:
        """Wait until something comes."""
        poll = select.poll()
        for one in self._copies.values():
            if one.feed is not None:
                poll.register(one.feed.fileno(), select.POLLIN)
        poll.poll(WAIT_S * 1000)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of something that the broker does. Raises Stopped, and what it raises."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # The loop is closed.
            work.close()
            raise Stopped from error
        while True:
            try:
                return future.result(WAIT_S)
            except TimeoutError:
                if future.done():
                    raise
                if self._stopping.is_set():
                    future.cancel()
                    raise Stopped from None
            except CancelledError:
                raise Stopped from None

    # -- one copy -----------------------------------------------------------------------------------------------------

    def _go_on(self, cluster: Cluster, one: Copy) -> bool:
        """Copy what has come, up to a turn's worth; return whether something has. A failure is told and passes."""
        if one.feed is None and self._now_ns() < one.retry_ns:
            return False
        try:
            if one.feed is None:
                one.feed = Feed(cluster, one.topic, _body(one))
                one.heard_ns = self._now_ns()
            came = self._take_turn(cluster, one)
        except ClientError as error:
            one.given_up = not error.may_pass
            self._failed(one, said(error), RETRY_NS if error.may_pass else RETRY_SELDOM_NS)
            return False
        except PenstockError as error:
            self._failed(one, str(error), RETRY_NS)
            return False
        one.given_up, one.problem = False, ""
        return came

    def _failed(self, one: Copy, why: str, pause_ns: int) -> None:
        one.close()
        one.retry_ns = self._now_ns() + pause_ns
        if why != one.problem:
            self._say(f"{one.topic} is not copied now: {why}")
        one.problem = why

    def _take_turn(self, cluster: Cluster, one: Copy) -> bool:
        assert one.feed is not None
        rate = self._wanted.rate
        share = rate // 4 // max(1, len(self._copies)) if rate else BYTES_PER_TURN_MAX
        bytes_max = min(max(share, BYTES_PER_TURN_MIN), BYTES_PER_TURN_MAX)
        taken: list[OwnEntry] = []
        source, nbytes = one.place.source, 0
        for _ in range(ENTRIES_PER_TURN):
            entry = one.feed.next_entry()
            if entry is None:
                break
            nbytes += len(entry.entry)
            source = MessageId(entry.position.ledger_id, entry.position.entry_id + 1)
            own = self._own(cluster, one, entry)
            if own is not None:
                taken.append(own)
            if nbytes >= bytes_max:
                break
        now_ns = self._now_ns()
        if nbytes:
            self._store(one, source, taken)
            one.heard_ns = now_ns
            one.nbytes += nbytes
        if one.last is not None and (_reached(one) or one.feed.is_over or now_ns - one.heard_ns > LAST_NS):
            one.last = None
            self._register_latest(cluster, one)
        if nbytes:
            self._keep_to_rate(nbytes)
        return nbytes > 0

    def _store(self, one: Copy, source: MessageId, taken: list[OwnEntry]) -> None:
        here = one.place.here
        while one.stored and taken:
            # An entry between may be gone there meanwhile; the rest is still in order.
            while one.stored and one.stored[0] != taken[0].data[:SEAL_BYTES]:
                one.stored.popleft()
                here += 1
            if one.stored:
                one.stored.popleft()
                here += 1
                taken.pop(0)
        if taken:
            here = self._on_loop(self._home.append(one.name, taken))
        one.messages += sum(own.messages for own in taken)
        one.place = Place(source, here)
        self._places.put(one.topic, one.place)

    def _own(self, cluster: Cluster, one: Copy, entry: Message) -> OwnEntry | None:
        """Return an entry as it is stored here; None of one that is damaged."""
        if not entry.is_whole:
            self._say(f"entry {entry.position} of {one.topic} came damaged, and is left out")
            return None
        about = entry.metadata()
        changed = False
        if about.schema_version:
            version = self._version(cluster, one, about.schema_version)
            changed = version != about.schema_version
            about.ClearField("schema_version")
            if version:
                about.schema_version = version
        if about.HasField("txnid_most_bits"):
            # Readers are given committed messages only. Here nobody would ever commit it.
            about.ClearField("txnid_most_bits")
            about.ClearField("txnid_least_bits")
            changed = True
        data = entries.entry(about, entry.payload) if changed else bytes(entry.entry)
        return OwnEntry(data, max(1, about.num_messages_in_batch))

    def _version(self, cluster: Cluster, one: Copy, there: bytes) -> bytes:
        if there not in one.versions:
            one.versions[there] = self._registered(cluster, one, there)
        return one.versions[there]

    def _registered(self, cluster: Cluster, one: Copy, there: bytes) -> bytes:
        """Register a schema as it is there (empty: the newest); returns its version here, empty if there is none."""
        schema = cluster.schema(one.topic, there)
        if schema is None or schema.kind not in TYPES:
            return b""
        return self._on_loop(self._home.register(one.name, schema.kind, schema.definition, schema.properties))

    def _register_latest(self, cluster: Cluster, one: Copy) -> None:
        """Register the newest schema, also if no message has needed it: consumers ask for it."""
        with suppress(Refused):
            self._registered(cluster, one, b"")

    def _keep_to_rate(self, nbytes: int) -> None:
        bucket = self._bucket
        if bucket is None:
            return
        bucket.consume(nbytes, self._now_ns())
        while bucket.in_debt(now_ns := self._now_ns()):
            if self._stopping.wait(min(WAIT_S, max(0, bucket.ready_at_ns() - now_ns) / NS_PER_S)):
                raise Stopped


def topics_of(cluster: Cluster, names: Iterable[str], *, missing_ok: bool = False) -> dict[str, list[str]]:
    """Return the topics of these names, and of namespaces, by their full names: of each its partitions, or itself.

    Raises ClientError: one may not be read; or, unless `missing_ok`, one that is named does not exist.
    """
    named = dict.fromkeys(name for name in names if "://" in name)
    spaces = [name for name in names if "://" not in name]
    listed = dict.fromkeys(map(parent_text, cluster.topics_of_all(spaces))) if spaces else {}
    found: dict[str, list[str]] = {}
    for topic, answer in cluster.partitions_of_all({**named, **listed}).items():
        if not isinstance(answer, Refused):
            if topic in named or not _is_system(topic):
                found[topic] = answer
        elif answer.code is not WireCode.TOPIC_NOT_FOUND or (topic in named and not missing_ok):
            raise answer
    return found


def _is_system(topic: str) -> bool:
    local = topic.rpartition("/")[2]
    return local.startswith(_SYSTEM) or local.endswith(_PENDING_ACKS)


def _body(one: Copy) -> Any:  # noqa: ANN401 - a generated class
    body = reader_body(one.topic, one.place.source)
    body.subscription = body.subscription.replace("spark", "mirror")  # Administrators there see it.
    return body


def _reached(one: Copy) -> bool:
    return one.last is not None and one.place.source[:2] > one.last
