# SPDX-License-Identifier: Apache-2.0
"""Messages as the command line reads them back, from JSON lines and tables that it has exported or people have written.

Where: `produce` and `import`. What a message is, and how it is written, is `wire.messages`.
"""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as BadBase64
from typing import TYPE_CHECKING, Final

from penstock.cli.exits import wrong
from penstock.wire.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.wire.messages import Json

# The columns of CSV: properties as JSON, times in ms since 1970. An import needs only `value` or `valueBase64`.
COLUMNS: Final = ("id", "topic", "publishTime", "eventTime", "key", "properties", "value", "valueBase64")


def message_of(given: Mapping[str, Json], where: str) -> Message:
    """Return the message that an object of `as_json` describes. Raises CommandFailed, which names `where` it stands."""
    try:
        value = _bytes_of(given)
        is_base64 = bool(given.get("keyBase64"))
        key = given["keyBase64"] if is_base64 else given.get("key")
        properties = given.get("properties") or {}
        if is_base64:
            b64decode(given["keyBase64"], validate=True)
        if not isinstance(properties, dict) or not all(isinstance(one, str) for one in properties.values()):
            raise ValueError("properties must be an object of texts")
        if key is not None and not isinstance(key, str):
            raise ValueError("key must be a text")
        return Message(
            value=value,
            key=key,
            key_is_base64=is_base64,
            properties=properties,
            event_time_ms=int(given.get("eventTime") or 0),
        )
    except (ValueError, TypeError, BadBase64) as error:
        raise wrong(f"{where} is no message: {error}") from None


def _bytes_of(given: Mapping[str, Json]) -> bytes | None:
    if given.get("valueBase64"):
        return b64decode(given["valueBase64"], validate=True)
    if "value" not in given:
        raise ValueError("it has neither value nor valueBase64")
    value = given["value"]
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value).encode()  # An object that somebody wrote without quotes around it.
