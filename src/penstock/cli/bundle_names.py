# SPDX-License-Identifier: Apache-2.0
"""Pseudonyms for the names of tenants, topics, roles, hosts and whatever else users have named.

Why words are kept and not replaced by a list: nobody can list what stands in a log. So a word stays only if penstock's
own source has it, or if it is a number or a time, and names that the cluster knows are replaced even then. Pseudonyms
are given in the order of the names, so the same names have the same pseudonyms in all files of an archive.
Where: `support_bundle`, with --anonymous.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import penstock

if TYPE_CHECKING:
    from collections.abc import Callable

Json: TypeAlias = Any

# Of each kind at most; what comes later is a `word`.
_NAMES_MAX: Final = 200_000
# What every cluster has, and what says nothing about anybody.
_EVERYBODYS: Final = frozenset(
    {"public", "default", "pulsar", "system", "standalone", "localhost", "127.0.0.1", "persistent", "non-persistent",
     "penstock", "*"}
)  # fmt: skip
_OF_MACHINES: Final = frozenset(
    {"usr", "lib", "lib64", "local", "site", "dist", "packages", "python", "etc", "var", "opt", "home", "tmp", "linux",
     "glibc", "musl", "x86", "aarch64", "amd64", "gnu", "log", "gz", "utc", "cpp", "java", "go", "node", "rust"}
)  # fmt: skip
_DOMAINS: Final = ("persistent://", "non-persistent://")
_TOPIC: Final = re.compile(
    r"((?:non-)?persistent)://([^/\s\"\\]+)/([^/\s\"\\]+)/((?:[^\s\"'\\,;)}\]]|\\.)*[^\s\"',;)}\]:.])"
)
_LABEL: Final = re.compile(r'(?<!\w)(\w{1,64})="((?:[^"\\]|\\.){0,4096})"')
_LABELS: Final = {
    "tenant": "tenant", "namespace": "namespace", "topic": "topic", "subscription": "subscription",
    "cluster": "cluster", "producer_name": "producer", "consumer_name": "consumer", "group": "group",
    "resource_group": "group", "role": "role", "payer": "tenant", "broker": "host", "address": "host",
}  # fmt: skip
# Members of JSON whose values are names.
_MEMBERS: Final = {
    "producerName": "producer", "consumerName": "consumer", "activeConsumerName": "consumer", "address": "host",
    "adminRoles": "role", "appId": "role", "role": "role", "allowedClusters": "cluster",
    "replication_clusters": "cluster", "resource_group_name": "group", "resourceGroup": "group",
    "advertisedAddress": "host", "bindAddress": "host", "clusterName": "cluster", "superUserRoles": "role",
    "proxyRoles": "role", "anonymousUserRole": "role", "tenant": "tenant", "namespace": "namespace", "topic": "topic",
    "subscription": "subscription", "brokers": "host", "tenants": "tenant", "clusters": "cluster",
    "namespaces": "namespace", "groups": "group",
}  # fmt: skip
# Members of JSON whose members have names.
_MAPS: Final = {
    "subscriptions": "subscription", "cursors": "subscription", "namespaceAuth": "role", "namespace_auth": "role",
    "subscriptionAuthentication": "subscription", "subscription_auth_roles": "subscription",
    "clusterDispatchRate": "cluster", "publishMaxMessageRate": "cluster", "clusterSubscribeRate": "cluster",
    "topicDispatchRate": "cluster", "subscriptionDispatchRate": "cluster", "replicatorDispatchRate": "cluster",
    "replication": "cluster", "properties": "word", "metadata": "word", "tenants": "tenant", "namespaces": "namespace",
}  # fmt: skip
# What is within their members: the roles of each topic, and of each subscription.
_WITHIN: Final = {
    "destination_auth": "namespace_auth", "topicAuthentication": "namespaceAuth", "subscription_auth_roles": "role",
    "subscriptionAuthentication": "role", "properties": "word", "metadata": "word",
}  # fmt: skip
_SUFFIX: Final = re.compile(r"(.+?)((?:-partition-\d+|-DLQ|-RETRY)+)")
_PIECES: Final = re.compile(
    r'"(?P<quoted>[^"\\]{0,8192}+(?:\\.[^"\\]{0,8192}+){0,200}+)"'
    r"|(?P<topic>(?:non-)?persistent://[^/\s]+/[^/\s]+/[^\s\"',;)}\]]*[^\s\"',;)}\]:.])"
    r"|(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
    r"|(?P<six>\[[0-9A-Fa-f:.%]{2,60}\])"
    r"|(?P<atom>[\w@~%*]+(?:[.\-+][\w@~%]+)*)"
)
_NUMBER: Final = re.compile(
    r"[vV]?\d+|0x[0-9a-f]+(?:_0x[0-9a-f]+)?|[0-9.]+(?:[eE][+-]?\d+)?(?:ns|us|ms|s|h|d|m|MB|MiB|KiB|GiB|k|M)?|NaN|Inf|inf|\d+L?"
)
_FOUR: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_PARTS: Final = re.compile(r"[^\W_]+")
_IDENTIFIER: Final = re.compile(r"\w+")


@cache
def vocabulary() -> frozenset[str]:
    """Return all words of penstock's source, in lower case."""
    root = Path(penstock.__file__).parent
    files = [*root.rglob("*.py"), *root.rglob("*.json")]
    words = {word for file in files for word in _IDENTIFIER.findall(file.read_text(encoding="utf-8"))}
    parts = {part for word in words for one in _PARTS.findall(word) for part in _cut(one)}
    return frozenset(one.lower() for one in _OF_MACHINES | words | parts)


def _cut(word: str) -> list[str]:
    """Return a word, and the words of which it is made: msgRateIn is msg, Rate and In."""
    return [word, *re.findall(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*", word)]


class Names:
    """The names that were found so far, by kind; then the pseudonym of each."""

    def __init__(self, keeps: Callable[[], frozenset[str]] = vocabulary) -> None:
        """Keep the words that `keeps` returns, in lower case; it is called once, for the first text."""
        self._found: dict[str, dict[str, None]] = defaultdict(dict)
        self._pseudonyms: dict[str, str] | None = None
        self._in_any_case: dict[str, str] = {}  # the same by names in lower case
        self._words: dict[str, str] = {}
        self._others: set[str] = set()  # words of other programs, as names of their metrics
        self._keeps = keeps

    def learn(self, kind: str, name: str) -> None:
        """Note a name. A namespace is `tenant/name`, a topic its full name."""
        if self._pseudonyms is not None:
            raise AssertionError("names are learned before any is replaced")
        if kind == "host":
            name = name.rpartition("://")[2].removeprefix("/")
            name = name.rpartition(":")[0] if re.fullmatch(r"[^:]+:\d+|\[.*\]:\d+", name) else name
        if name.startswith(_DOMAINS) and name.count("/") > 3:
            self._learn_topic(*name.partition("://")[2].split("/", 2))
        elif "/" in name and kind in {"namespace", "topic", "tenant"}:
            for part, one in zip(("tenant", "namespace"), name.split("/"), strict=False):
                self._note(part, one)
        elif name:
            self._note(kind, _stem(name)[0])

    def keep(self, word: str) -> None:
        """Keep a word of another program: one that no user has chosen."""
        self._others.add(word)

    def learn_line(self, line: str) -> None:
        """Note the names in a line of a log, or of metrics."""
        for topic in _TOPIC.finditer(line):
            self._learn_topic(topic[2], topic[3], _unescaped(topic[4]))
        for label, text in _LABEL.findall(line):
            if label in _LABELS:
                self.learn(_LABELS[label], _unescaped(text))

    def learn_value(self, value: Json, member: str = "") -> None:
        """Note the names in a value of JSON that is this member of another one."""
        if isinstance(value, dict):
            for key, one in value.items():
                if member in _MAPS:
                    self.learn(_MAPS[member], key)
                elif "://" in key:
                    self.learn("topic", key)
                self.learn_value(one, member if key == "value" else _WITHIN.get(member) or key)
        elif isinstance(value, list):
            for one in value:
                self.learn_value(one, member)
        elif isinstance(value, str):
            if member == "word":
                self.learn("word", value)
            elif member in _MEMBERS:
                for one in value.strip("[]").split(","):  # Brackets are Java's.
                    self.learn(_MEMBERS[member], one.strip())
            elif "://" in value:
                self.learn_line(value)

    def known(self) -> dict[str, str]:
        """Return every name that was replaced and its pseudonym; afterwards nothing can be learned."""
        return {**self._settled(), **self._words}

    def line(self, line: str) -> str:
        """Return a line with pseudonyms instead of names."""
        return _PIECES.sub(self._piece, line)

    def _learn_topic(self, tenant: str, namespace: str, local: str) -> None:
        self._note("tenant", tenant)
        self._note("namespace", namespace)
        self._note("topic", _stem(local)[0])

    def _note(self, kind: str, name: str) -> None:
        if (
            name not in _EVERYBODYS
            and name.partition(":")[0] not in _EVERYBODYS
            and len(self._found[kind]) < _NAMES_MAX
        ):
            self._found[kind][name] = None

    def _settled(self) -> dict[str, str]:
        if self._pseudonyms is None:
            self._pseudonyms = {}
            for kind in sorted(self._found):
                for number, name in enumerate(sorted(self._found[kind]), 1):
                    self._pseudonyms.setdefault(name, f"{kind}-{number}")
            self._in_any_case = {name.lower(): one for name, one in self._pseudonyms.items()}
        return self._pseudonyms

    def _piece(self, found: re.Match[str]) -> str:
        if found["time"] is not None:
            return found[0]
        if found["quoted"] is not None:
            return f'"{self._text(found["quoted"])}"'
        if found["topic"] is not None:
            return self._topic(found["topic"])
        return self._six(found["six"]) if found["six"] is not None else self._atom(found["atom"])

    def _text(self, quoted: str) -> str:
        """Return what stands between quotes: one name, or many words."""
        text = _unescaped(quoted)
        if (name := self._name(text)) is not None:
            return name
        is_topic = text.startswith(_DOMAINS) and text.count("/") > 3
        return self._topic(quoted) if is_topic else self.line(quoted)

    def _topic(self, text: str) -> str:
        domain, _, rest = text.partition("://")
        return f"{domain}://" + "/".join(self._name(_unescaped(one)) or self._word(one) for one in rest.split("/", 2))

    def _name(self, text: str) -> str | None:
        """Return the pseudonym of a name, with what Pulsar's clients put behind it; None if it is no name."""
        if text in _EVERYBODYS:
            return text
        known = self._settled()
        if text in known:
            return known[text]
        stem, suffix = _stem(text)
        return known[stem] + suffix if suffix and stem in known else None

    def _six(self, text: str) -> str:
        return text if text in {"[::1]", "[::]"} else self._name(text) or self._word(text)

    def _atom(self, atom: str) -> str:
        if (name := self._name(atom)) is not None:
            return name
        if _FOUR.fullmatch(atom):
            return atom if atom.startswith("0.0.") else self._word(atom)
        if _NUMBER.fullmatch(atom):
            return atom
        if atom in self._others or (not atom.isalpha() and atom.lower() in self._keeps()):
            return atom  # One of our identifiers, whatever names are parts of it.
        return atom if all(map(self._is_kept, _PARTS.findall(atom))) else self._word(atom)

    def _is_kept(self, part: str) -> bool:
        if part.lower() in self._in_any_case:
            return False
        if part.lower() in self._keeps() or _NUMBER.fullmatch(part):
            return True
        pieces = [piece.lower() for piece in _cut(part)[1:]]
        return "".join(pieces) == part.lower() and all(
            piece in self._keeps() and piece not in self._in_any_case for piece in pieces
        )

    def _word(self, word: str) -> str:
        known = self._in_any_case.get(word.lower()) or self._words.get(word)
        if known is None and len(self._words) == _NAMES_MAX:
            return "word"
        return known or self._words.setdefault(word, f"word-{len(self._words) + 1}")


def _stem(name: str) -> tuple[str, str]:
    """Return the topic that a partition, a retry or dead letter topic belongs to, and the rest of its name."""
    found = _SUFFIX.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def _unescaped(quoted: str) -> str:
    try:
        return str(json.loads(f'"{quoted}"'))
    except ValueError:
        return quoted
