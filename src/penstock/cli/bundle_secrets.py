# SPDX-License-Identifier: Apache-2.0
"""Removal of secrets from text and JSON that leaves the user's hands.

Two nets: what stands beside the name of a secret goes, and what looks like one goes wherever it stands. The names are
those of settings that `penstock config` hides, and words that people and other programs use. Too much is removed rather
than too little. Where: all that `support_bundle` puts into its archive.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from penstock.settings.model import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Json: TypeAlias = Any

HIDDEN: Final = "***"
# Values of settings that say whether there are secrets.
_HARMLESS: Final = (None, "", "true", "false", True, False)
# Text that is looked for wherever it stands: shorter would take words of others away.
_LITERAL_MIN: Final = 6
_OURS: Final = "|".join(
    re.escape(name) for key in KEYS.values() if key.secret for name in (key.name, key.variable, key.snake_case)
)
_WORDS: Final = (
    "passw(?:or)?d|passphrase|passwd|secret|credential|private_?key|auth_?param|authentication_?param|api_?key|jaas"
    "|access_?key|account_?key|connection_?string"
)
_NAME: Final = re.compile(rf"(?:.*[._-])?(?:{_OURS})|.*(?:{_WORDS}).*|(?:.*[._-])?(?:\w+_)?token", re.IGNORECASE)
_NAME_MAX: Final = 256
# All repetitions have a bound or one place where they can begin: lines are of anybody, and long.
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"?|' + r"'(?:[^'\\]|\\.)*'?"
# A setting of ours may have spaces in it, so that the rest of its line goes; of others, a word does.
_OUR_PAIR: Final = re.compile(
    rf"(?P<head>(?<![A-Za-z0-9])(?:{_OURS})[\"']?\s*[:=]\s*)(?:{_QUOTED}|[^\r\n]+)", re.IGNORECASE
)
_PAIR: Final = re.compile(
    rf"(?P<head>(?:{_WORDS})[\w.-]{{0,64}}[\"']?\s*[:=]\s*|(?<![A-Za-z0-9])token[\"']?\s*[:=]\s*)"
    rf"(?:{_QUOTED}|[^\s,;&)}}\]]+)",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(
    rf"(?P<head>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*|\b(?:set-)?cookie[\"']?\s*[:=]\s*|\bx-api-key[\"']?\s*[:=]\s*)"
    rf"(?:{_QUOTED}|[^\r\n]+)",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"(?P<head>\bbearer\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_BASIC: Final = re.compile(r"(?P<head>\bbasic\s+)(?P<words>[A-Za-z0-9+/=]{4,})", re.IGNORECASE)
_TOKEN: Final = re.compile(r"\beyJ[\w-]{5,4096}(?:\.[\w-]*){2,4}")
_DATA: Final = re.compile(r"(?P<head>\bdata:)[^,\s\"']{0,200},[^\s\"']+", re.IGNORECASE)
# Names of topics are no URLs with a user, whatever they have behind their domain.
_USER: Final = re.compile(
    r"(?P<head>\b(?!(?:non-)?persistent://)[a-z][a-z0-9+.-]{0,20}://)[^\s\"'<>]{0,1024}@", re.IGNORECASE
)
_HASH: Final = re.compile(r"\$(?:2[abxy]?|apr1|[1567]|argon2\w*|y)\$[^\s\"',]+|\{SHA\}[^\s\"',]+")
_BEGIN: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)")
_END: Final = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
# A line of a key whose first line is not here, as where a log was cut.
_KEY_LINE: Final = re.compile(r"(?=[A-Za-z]*[0-9+/])[A-Za-z0-9+/]{60,76}={0,2}")


def is_secret_name(name: str) -> bool:
    """Return whether a value of this name is hidden, whatever it is."""
    return _NAME.fullmatch(name[-_NAME_MAX:]) is not None


class Secrets:
    """The rules, with the secrets that are known on this machine."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """Hide these words, too, in the forms in which programs write them."""
        words = {form for one in known if len(one) >= _LITERAL_MIN for form in _forms(one)}
        longest_first = sorted(words, key=lambda one: (-len(one), one))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def value(self, value: Json, name: str = "") -> Json:
        """Return a value of JSON without secrets; `name` is the member that it stands in."""
        if isinstance(value, dict):
            return {self.line(str(key)): self.value(one, str(key)) for key, one in value.items()}
        if isinstance(value, list):
            return [self.value(one, name) for one in value]
        if name and is_secret_name(name) and value not in _HARMLESS:
            return HIDDEN
        if not isinstance(value, str):
            return value
        if value[:1] in {"{", "["}:  # JSON in JSON, as in credentials of Pulsar's clients.
            try:
                return json.dumps(self.value(json.loads(value), name))
            except ValueError:
                pass
        return "\n".join(self.lines(value.split("\n")))

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines without secrets; of a private key all lines are left out but the first."""
        within = False
        for line in lines:
            if within:
                within = _END.search(line) is None
                continue
            begun = [*_BEGIN.finditer(line)]
            within = bool(begun) and _END.search(line, begun[-1].end()) is None
            yield self.line(line)

    def line(self, line: str) -> str:
        """Return one line without secrets."""
        if self._known is not None:
            line = self._known.sub(HIDDEN, line)
        if _KEY_LINE.fullmatch(line.strip()):
            return HIDDEN
        line = _PEM.sub(HIDDEN, line)
        for pattern in (_OUR_PAIR, _HEADER, _PAIR):
            line = pattern.sub(_hidden, line)
        line = _BASIC.sub(_basic, line)
        for pattern in (_BEARER, _DATA, _USER):
            line = pattern.sub(lambda found: f"{found['head']}{HIDDEN}{'@' if found[0].endswith('@') else ''}", line)
        return _HASH.sub(HIDDEN, _TOKEN.sub(HIDDEN, line))


def _forms(word: str) -> Iterator[str]:
    """Yield a word as it is, and as URLs, JSON and headers have it."""
    yield from (word, quote(word), quote(word, safe=""), json.dumps(word)[1:-1])
    yield base64.b64encode(word.encode()).decode().rstrip("=")
    yield base64.urlsafe_b64encode(word.encode()).decode().rstrip("=")


def _hidden(found: re.Match[str]) -> str:
    """Keep the name, and quotes, so that JSON stays JSON."""
    value = found[0][len(found["head"]) :]
    if value in _HARMLESS:
        return found[0]
    mark = value[0] if value[0] in "\"'" else ""
    return f"{found['head']}{mark}{HIDDEN}{mark}"


def _basic(found: re.Match[str]) -> str:
    """Hide user:password, and leave words as in `basic authentication`."""
    words = found["words"]
    try:
        decoded = base64.b64decode(words + "=" * (-len(words) % 4), validate=True)
    except (binascii.Error, ValueError):
        return found[0]
    return f"{found['head']}{HIDDEN}" if b":" in decoded else found[0]
