# SPDX-License-Identifier: Apache-2.0
"""Words of a command line as the paths and the JSON that a route takes.

Where: `resources` has the shapes, from `operations.json`. The broker checks values; here only their form is made, and
misspelt names are met with a question.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.cli.exits import did_you_mean, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Json: TypeAlias = Any
Shape: TypeAlias = "Mapping[str, Any]"

_SWITCHES: Final = {"true": True, "false": False, "on": True, "off": False, "yes": True, "no": False}


def path_part(metavar: str, given: str) -> str:
    """Return a name as a part of a path. Raises InvalidTopicName."""
    from urllib.parse import quote

    from penstock.core.names import NamespaceName, TopicName

    if metavar == "TOPIC":
        topic = TopicName.parse(given)
        return f"{topic.domain}/{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}"
    if metavar == "NAMESPACE":
        return str(NamespaceName.parse(given))
    return quote(given, safe="")


def described(shape: Shape) -> str:
    """Return how to write a value of this shape, for help and errors."""
    kind = shape["kind"]
    if kind == "object":
        return "KEY=VALUE…, of " + ", ".join(f"{name} ({_short(one)})" for name, one in shape["fields"].items())
    if kind == "map":
        return "KEY=VALUE…"
    return {"array": f"{_short(shape)}, separated by spaces or commas", "json": "JSON"}.get(kind, _short(shape))


def _short(shape: Shape) -> str:
    if "words" in shape:
        return "|".join(map(str, shape["words"]))
    return {"integer": "a whole number", "number": "a number", "boolean": "true|false", "string": "text",
            "array": "words"}.get(shape["kind"], "JSON")  # fmt: skip


def body_of(words: Sequence[str], shape: Shape, what: str) -> Json:
    """Return the body of a request, for words in one of the forms that `described` tells, JSON, or @FILE with JSON.

    Raises:
        CommandFailed: they have none of these forms.
    """
    if len(words) == 1 and (words[0].startswith(("{", "[", "@"))):
        return _json(read_named(words[0]), what)
    kind = shape["kind"]
    if kind == "object":
        return _object(words, shape, what)
    if kind == "map":
        return dict(_pair(word, what) for word in words)
    if kind == "array":
        return [_word(one, shape, what) for word in words for one in word.split(",") if one]
    if len(words) != 1:
        raise wrong(f"{what} takes one value: {described(shape)}")
    return scalar(words[0], shape, what)


def _object(words: Sequence[str], shape: Shape, what: str) -> Json:
    made = {}
    for word in words:
        name, text = _pair(word, what)
        if name not in shape["fields"]:
            near = did_you_mean(name, list(shape["fields"]))
            raise wrong(f"{what} has no {name}{near or f'; it takes {described(shape)}'}")
        made[name] = scalar(text, shape["fields"][name], f"{name} of {what}")
    if missing := [name for name in shape.get("needs", ()) if name not in made]:
        raise wrong(f"{what} needs {', '.join(missing)} too; it takes {described(shape)}")
    return made


def _pair(word: str, what: str) -> tuple[str, str]:
    name, sign, text = word.partition("=")
    if not sign:
        raise wrong(f"{what} takes KEY=VALUE, and {word!r} has no =")
    return name, read_named(text)


def scalar(text: str, shape: Shape, what: str) -> Json:
    """Return one value. Raises CommandFailed."""
    kind = shape["kind"]
    if kind == "string":
        return _word(text, shape, what)
    if kind == "boolean":
        if text.lower() not in _SWITCHES:
            raise wrong(f"{what} is true or false, not {text!r}")
        return _SWITCHES[text.lower()]
    if kind == "array":
        return [_word(one, shape, what) for one in text.split(",") if one]
    if kind in {"integer", "number"}:
        try:
            return int(text) if kind == "integer" else float(text)
        except ValueError:
            raise wrong(f"{what} is {_short(shape)}, not {text!r}") from None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _word(text: str, shape: Shape, what: str) -> str:
    """Return one of the shape's words, however it is capitalised; the text if it may be any."""
    words = {str(word).lower().replace("-", "_"): str(word) for word in shape.get("words", ())}
    if not words:
        return text
    found = words.get(text.lower().replace("-", "_"))
    if found is None:
        raise wrong(f"{what} is one of {', '.join(words.values())}, not {text!r}")
    return found


def read_named(text: str) -> str:
    """Return the content of FILE for @FILE, of standard input for @-, and other text as it is. Raises CommandFailed."""
    if not text.startswith("@"):
        return text
    try:
        return sys.stdin.read() if text == "@-" else Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(f"{text[1:]} cannot be read: {error}") from error


def _json(text: str, what: str) -> Json:
    try:
        return json.loads(text)
    except ValueError as error:
        raise wrong(f"{what}: {text[:40]!r} is not JSON: {error}") from error
