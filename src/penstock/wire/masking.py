# SPDX-License-Identifier: Apache-2.0
"""Masking of messages that people look at: values of properties, and fields of JSON, by their names.

Why a value that is no JSON is hidden as a whole where fields are masked: what cannot be read cannot be masked, and a
field that is secret in JSON is as secret in Avro. A large one is hidden, too: objects take twenty times its size.
Where: the routes of messages of the admin port, before bytes leave.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from penstock.core.units import MIB

if TYPE_CHECKING:
    from penstock.wire.messages import Message

MASKED: Final = "***"
# The largest value that is read.
VALUE_BYTES_MAX: Final = MIB


@dataclass(frozen=True, slots=True)
class Mask:
    """Names that are masked, as patterns in which * and ? stand for others."""

    properties: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.properties or self.fields)

    def masked(self, message: Message) -> Message:
        """Return the message without what is masked. A key is masked where the property or field `key` is."""
        properties = {
            name: MASKED if _any(self.properties, name) else value for name, value in message.properties.items()
        }
        key, is_base64 = message.key, message.key_is_base64
        if key is not None and (_any(self.properties, "key") or _any(self.fields, "key")):
            key, is_base64 = MASKED, False
        value = self._value(message.value) if self.fields and message.value is not None else message.value
        return replace(message, properties=properties, key=key, key_is_base64=is_base64, value=value)

    def _value(self, value: bytes) -> bytes:
        if len(value) > VALUE_BYTES_MAX:
            return MASKED.encode()
        try:
            read = json.loads(value)
            return json.dumps(self._without(read), ensure_ascii=False, separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            return MASKED.encode()

    def _without(self, read: Any) -> Any:  # noqa: ANN401 -- JSON
        if isinstance(read, dict):
            return {name: MASKED if _any(self.fields, name) else self._without(one) for name, one in read.items()}
        return [self._without(one) for one in read] if isinstance(read, list) else read


def _any(patterns: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, one) for one in patterns)
