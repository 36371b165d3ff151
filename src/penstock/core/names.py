# SPDX-License-Identifier: Apache-2.0
"""Names of tenants, namespaces and topics, parsed and printed.

Why: clients write one topic in three ways (`t`, `tenant/ns/t`, `persistent://tenant/ns/t`), and the broker needs one.
Rules and corner cases are Pulsar's, so a name means the same topic in both. Where: sessions and the admin port parse
once; the rest of the broker uses `TopicName` and prints it with `str`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from penstock.core.errors import InvalidTopicName

Domain: TypeAlias = Literal["persistent", "non-persistent"]

DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"

# The characters Pulsar allows in tenants and namespaces. A topic's own name may hold any but the slash.
_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)

# As of names of files. Nobody types longer ones, and three of them fit a topic's name.
ENTITY_CHARACTERS_MAX: Final = 255

_PARTITION_MARK: Final = "-partition-"
# Written as Pulsar prints it, nothing else: `t-partition-01` and `t-partition--1` are plain topics there too.
_PARTITION_SUFFIX: Final = re.compile(rf"{_PARTITION_MARK}(0|[1-9][0-9]{{0,9}})\Z", re.ASCII)
_PARTITION_INDEX_MAX: Final = 2**31 - 1  # partition ids travel as int32

# The durable subscription that stands where compaction has come to, as Pulsar calls it. Nobody consumes from it, and
# only compaction moves it: what is before it may go when all others have acknowledged it.
COMPACTION_SUBSCRIPTION: Final = "__compaction"

# How the names of producers and cursors of replicators begin; nobody else subscribes under such a name.
REPLICATOR_PREFIX: Final = "pulsar.repl."


def is_brokers_own(subscription: str) -> bool:
    """Return whether a subscription of this name is the broker's own: of compaction, or of a replicator."""
    return subscription == COMPACTION_SUBSCRIPTION or subscription.startswith(REPLICATOR_PREFIX)


def check_entity(name: str) -> None:
    """Raise ValueError unless a cluster, tenant, namespace or group may be created with this name.

    Pulsar allows `.` and `..`, too. But in a path of HTTP these are the directory itself and the one above: what has
    such a name can hardly be read or deleted, and what is done with it may be done with something else.
    """
    if _ENTITY.fullmatch(name) is None or name in {".", ".."} or len(name) > ENTITY_CHARACTERS_MAX:
        raise ValueError(
            f"{name[:ENTITY_CHARACTERS_MAX]!r} may hold letters, digits and - = : . _ only, at most "
            f"{ENTITY_CHARACTERS_MAX} of them, and may not be . or .."
        )


def parent_text(topic: str) -> str:
    """Return a topic's full name without the suffix of its partition.

    On text, for walks over a hundred thousand names.
    """
    if _PARTITION_MARK not in topic:
        return topic
    match = _PARTITION_SUFFIX.search(topic)
    return topic if match is None or int(match[1]) > _PARTITION_INDEX_MAX else topic[: match.start()]


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/namespace`; it has policies."""

    tenant: str
    namespace: str

    def __post_init__(self) -> None:
        for kind, part in (("tenant", self.tenant), ("namespace", self.namespace)):
            if _ENTITY.fullmatch(part) is None:
                raise InvalidTopicName(str(self), f"{kind} {part!r} may hold letters, digits and - = : . _ only")

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        """Parse `tenant/namespace`.

        Raises:
            InvalidTopicName: the text has another form, or characters that names may not have.
        """
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidTopicName(text, "want tenant/namespace")
        return cls(*parts)


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """The full name of a topic, or of one partition of a partitioned topic."""

    domain: Domain
    tenant: str
    namespace: str
    local: str

    def __post_init__(self) -> None:
        if self.domain not in get_args(Domain):
            raise InvalidTopicName(str(self), f"unknown domain {self.domain!r}, want persistent or non-persistent")
        if not self.local.strip() or "/" in self.local:
            raise InvalidTopicName(str(self), "the topic's own name is empty or holds a slash")
        NamespaceName(self.tenant, self.namespace)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse a full name or one of the short forms `t` and `tenant/ns/t`, which are persistent.

        Raises:
            InvalidTopicName: the text has another form, or characters that names may not have.
        """
        domain, mark, path = text.partition("://")
        parts = (path if mark else text).split("/")
        if not mark:
            domain = "persistent"
            if len(parts) == 1:
                parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, *parts]
        if len(parts) == 4:
            raise InvalidTopicName(text, "names with a cluster in them (four parts) went with Pulsar 1")
        if len(parts) != 3:
            raise InvalidTopicName(text, "want topic, tenant/namespace/topic or domain://tenant/namespace/topic")
        # The constructor checks the domain; until then it is any text.
        return cls(domain, *parts)  # type: ignore[arg-type]

    @property
    def is_persistent(self) -> bool:
        """Whether entries of this topic are stored."""
        return self.domain == "persistent"

    @property
    def namespace_name(self) -> NamespaceName:
        """The namespace of this topic."""
        return NamespaceName(self.tenant, self.namespace)

    @property
    def partition(self) -> int:
        """The index of the partition, from the name; -1 for a topic that is no partition."""
        match = _PARTITION_SUFFIX.search(self.local)
        if match is None:
            return -1
        index = int(match[1])
        return index if index <= _PARTITION_INDEX_MAX else -1

    @property
    def parent(self) -> TopicName:
        """The partitioned topic of this partition; the topic itself if it is no partition."""
        if self.partition < 0:
            return self
        return TopicName(self.domain, self.tenant, self.namespace, self.local[: self.local.rindex(_PARTITION_MARK)])

    def of_partition(self, index: int) -> TopicName:
        """Return the name of partition `index` of this topic."""
        assert self.partition < 0, f"{self} is a partition itself"
        assert 0 <= index <= _PARTITION_INDEX_MAX, index
        return TopicName(self.domain, self.tenant, self.namespace, f"{self.local}{_PARTITION_MARK}{index}")
