# SPDX-License-Identifier: Apache-2.0
"""Spark waits 10 s for a Python process; when it was late, the query begins again."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from penstock.core.errors import PenstockError
from penstock.spark.accounting.late_workers import ATTEMPTS_MAX, patiently

LATE = "[STREAM_FAILED] java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back"


class Query:
    """Fails so many times."""

    def __init__(self, failures: int, text: str) -> None:
        self.failures = failures
        self.text = text
        self.runs = 0

    def run(self) -> int:
        self.runs += 1
        if self.runs <= self.failures:
            raise StreamingQueryException(self.text)
        return self.runs


def test_a_query_begins_again_when_a_process_was_late() -> None:
    assert patiently(Query(ATTEMPTS_MAX - 1, LATE).run) == ATTEMPTS_MAX


def test_in_the_end_the_error_says_what_to_do() -> None:
    query = Query(ATTEMPTS_MAX, LATE)
    with pytest.raises(PenstockError, match=r"machine is too busy.*--engine arrow"):
        patiently(query.run)
    assert query.runs == ATTEMPTS_MAX


def test_other_failures_are_not_repeated() -> None:
    query = Query(1, "messages are missing")
    with pytest.raises(PySparkException, match="messages are missing"):
        patiently(query.run)
    assert query.runs == 1
