# SPDX-License-Identifier: Apache-2.0
"""Begins again when Spark has not waited long enough for a Python process.

Why: to plan, Spark starts a Python process and waits 10 seconds for it, which no setting changes. On a busy machine
that is not always enough, and the query ends with a trace of Java. The records read are in the checkpoint, so a query
that begins again neither loses nor repeats anything.

Where: the queries of `stream`.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

ATTEMPTS_MAX: Final = 5
# What Spark's PythonWorkerFactory says.
_LATE: Final = re.compile(r"waiting for the Python worker to connect back|Python worker failed to connect back")
_TOO_BUSY: Final = (
    f"Spark waits 10 s for a Python process that it starts, and in {ATTEMPTS_MAX} attempts none was ready: the machine "
    "is too busy. Run this again when it is less so; nothing is lost. For a small day, --engine arrow needs no such "
    "process"
)
_log: Final = logging.getLogger(__name__)


def patiently(do: Callable[[], T]) -> T:
    """Return what `do` returns; call it again, at most four times, if a Python process was late.

    Raises:
        PenstockError: it was late each time.
        PySparkException: another failure, as it came.
    """
    attempts = 1
    while True:
        try:
            return do()
        except (PySparkException, Py4JError) as error:
            if _LATE.search(str(error)) is None:
                raise
            if attempts == ATTEMPTS_MAX:
                raise PenstockError(_TOO_BUSY) from error
            _log.warning("Spark did not wait for a Python process that starts (attempt %d); beginning again", attempts)
            attempts += 1
