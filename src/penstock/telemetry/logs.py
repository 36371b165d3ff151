# SPDX-License-Identifier: Apache-2.0
"""Log lines: one line per event, to standard error, as text or as JSON.

Why one line: lines of several threads and brokers end in one file, and log tools read lines. A name that a client
chose, with line breaks, must not look like another event. Where: `app.run` sets it up before anything else can log;
modules use `logging.getLogger(__name__)`.

Log lines contain names, addresses, sizes, counts and reasons. They never contain payloads, properties, tokens or keys.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


def set_up_logging(log_format: str, log_level: str, *, broker: int | None = None) -> None:
    """Log everything from `log_level` on to standard error, as `text` or `json`.

    Where several brokers share it, each line says which `broker` it is from.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(broker) if log_format == "json" else TextLines(broker))
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


class TextLines(logging.Formatter):
    """`2013-01-01T10:17:00.123Z INFO penstock.broker.broker: topic … created`.

    Of one of several brokers: `2013-01-01T10:17:00.123Z INFO broker-2 penstock.broker.broker: topic … created`.
    """

    def __init__(self, broker: int | None = None) -> None:
        super().__init__()
        self._of = "" if broker is None else f"broker-{broker} "

    def format(self, record: logging.LogRecord) -> str:
        """Return the event as one line; a traceback follows the message, its line breaks escaped."""
        parts = [record.getMessage(), _trace(self, record)]
        text = _one_line("\n".join(part for part in parts if part))
        return f"{_utc(record)} {record.levelname} {self._of}{record.name}: {text}"


class JsonLines(logging.Formatter):
    """One object per line with `time`, `level`, `logger` and `message`; after an exception also `traceback`.

    Of one of several brokers also `broker`, its number.
    """

    def __init__(self, broker: int | None = None) -> None:
        super().__init__()
        self._of = {} if broker is None else {"broker": broker}

    def format(self, record: logging.LogRecord) -> str:
        """Return the event as one JSON object."""
        event: dict[str, object] = {
            "time": _utc(record),
            "level": record.levelname,
            **self._of,
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = _trace(self, record)
        if trace:
            event["traceback"] = trace
        return json.dumps(event)


def _utc(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the exception and the stack, if the caller asked for them. A raised exception is a bug of penstock."""
    parts = [formatter.formatException(record.exc_info) if record.exc_info else "", record.stack_info or ""]
    return "\n".join(part for part in parts if part)


def _one_line(text: str) -> str:
    """Escape characters that would break the line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
