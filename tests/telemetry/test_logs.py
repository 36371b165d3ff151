# SPDX-License-Identifier: Apache-2.0
"""Log lines: one event, one line, whatever is in it."""

from __future__ import annotations

import json
import logging
import warnings
from typing import TYPE_CHECKING

import pytest

from penstock.telemetry.logs import JsonLines, TextLines, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

# 2013-01-01 10:17:00.123 UTC
MOMENT = 1_357_035_420.123


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back as it was; without the handlers that pytest keeps there."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield root
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


def event(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    trace = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("penstock.broker", logging.WARNING, __file__, 1, message, args, trace)
    record.created, record.msecs = MOMENT, 123
    return record


def raised(message: str) -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_a_text_line_tells_the_time_in_utc_the_level_the_logger_and_the_message() -> None:
    line = TextLines().format(event("connection %s closed: %s", "10.0.0.1:5", "time-out"))
    assert line == "2013-01-01T10:17:00.123Z WARNING penstock.broker: connection 10.0.0.1:5 closed: time-out"


def test_a_json_line_holds_the_same() -> None:
    assert json.loads(JsonLines().format(event("topic %s created", "naïve"))) == {
        "time": "2013-01-01T10:17:00.123Z",
        "level": "WARNING",
        "logger": "penstock.broker",
        "message": "topic naïve created",
    }


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()], ids=["text", "json"])
@pytest.mark.parametrize("name", ["a\nb", "a\r\nb", "a\x1b[2Jb", "a\x85b", "a\u2028b", "a\x00b"])
def test_a_name_with_line_breaks_or_control_characters_stays_on_the_line(
    formatter: logging.Formatter, name: str
) -> None:
    line = formatter.format(event("topic %s created", name))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()], ids=["text", "json"])
def test_a_traceback_stays_on_the_line_of_its_event(formatter: logging.Formatter) -> None:
    line = formatter.format(event("cannot", error=raised("no such thing")))
    assert len(line.splitlines()) == 1
    assert "ValueError: no such thing" in line
    assert "test_logs.py" in line


@pytest.mark.usefixtures("root_logger")
def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("text", "warning")
    logging.getLogger("penstock.somewhere").info("too fine")
    logging.getLogger("penstock.somewhere").warning("just right")
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.endswith("WARNING penstock.somewhere: just right\n")
    assert len(written.err.splitlines()) == 1


@pytest.mark.usefixtures("root_logger")
def test_events_of_libraries_and_warnings_have_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("json", "info")
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old\nways", stacklevel=1)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["logger"] for line in events] == ["asyncio", "py.warnings"]
