# SPDX-License-Identifier: Apache-2.0
"""Patterns of topics, of one namespace or of several: `tenant/namespace/expression`.

Why the tenant is plain: who may list all tenants may do everything.
Where: `options` parses the option `topicsPattern`; the planner asks for topics again before each micro-batch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.names import NamespaceName, parent_text

if TYPE_CHECKING:
    from collections.abc import Iterable

# More are an error: a pattern that is too wide would ask brokers for all of them before each micro-batch.
NAMESPACES_MAX: Final = 10_000
TOPICS_MAX: Final = 100_000
_EXPRESSION: Final = re.compile(r"[\\^$*+?{}\[\]|()]")
# Up to the first slash that is in no brackets.
_NAMESPACE_AND_TOPIC: Final = re.compile(r"((?:\\.|\[\^?\]?[^\]]*\]|[^/\[\\])+)/(.+)")
# Topics that Apache Pulsar keeps for itself in every namespace. Older versions list them with the others.
_PULSARS_OWN: Final = re.compile(
    r".*/(__change_events|__transaction_buffer_snapshot(_segments|_indexes)?|[^/]*__transaction_pending_ack)"
    r"|persistent://pulsar/system/(transaction_coordinator_assign|__transaction_log_).*"
)


class TopicsPattern(NamedTuple):
    """A tenant, and regular expressions for namespaces and for topics in them."""

    tenant: str
    namespace: str
    topic: str

    @property
    def has_one_namespace(self) -> bool:
        """Whether the namespace is a name, not an expression."""
        return not _EXPRESSION.search(self.namespace)

    def namespaces(self, names: Iterable[str]) -> list[str]:
        """Return those of a tenant's namespaces that match, as `tenant/namespace`. Raises ValueError for too many."""
        wanted = re.compile(self.namespace)
        found = [str(NamespaceName(self.tenant, name)) for name in names if wanted.fullmatch(name)]
        return _bounded(found, NAMESPACES_MAX, "namespaces", self)

    def topics(self, names: Iterable[str]) -> list[str]:
        """Return those of the full names of topics that match, but for Pulsar's own. Raises ValueError for too many."""
        wanted = re.compile(self.topic)
        found = [
            name
            for name in names
            if wanted.fullmatch(parent_text(name).rpartition("/")[2]) and not _is_kept_by_pulsar(name)
        ]
        return _bounded(found, TOPICS_MAX, "topics", self)


def pattern_of(text: str) -> TopicsPattern:
    """Parse `tenant/namespace/expression`, or an expression for `public/default`.

    Raises:
        ValueError: it has another form, or is no regular expression.
    """
    path = text.removeprefix("persistent://")
    tenant, slash, rest = path.partition("/")
    found = _NAMESPACE_AND_TOPIC.fullmatch(rest)
    if slash and not _EXPRESSION.search(tenant) and found is not None:
        pattern = TopicsPattern(tenant, found[1], found[2])
    elif "/" not in path:
        pattern = TopicsPattern("public", "default", path)
    else:
        raise ValueError(f"option topicsPattern is {text!r}; want tenant/namespace/expression, the tenant plain")
    for part in (pattern.namespace, pattern.topic):
        try:
            re.compile(part)
        except re.error as error:
            raise ValueError(f"option topicsPattern: {part!r} is no regular expression: {error}") from None
    return pattern


def _bounded(found: list[str], most: int, what: str, pattern: TopicsPattern) -> list[str]:
    if len(found) > most:
        raise ValueError(f"option topicsPattern: {'/'.join(pattern)} matches {len(found)} {what}; at most {most}")
    return found


def _is_kept_by_pulsar(topic: str) -> bool:
    """Whether a pattern leaves out a topic because of its name; with its name it can be read."""
    return _PULSARS_OWN.fullmatch(parent_text(topic)) is not None
