# SPDX-License-Identifier: Apache-2.0
"""The versions of Spark that the source works with.

Why a check: the interface of Python data sources grows with each version. A part that an old one lacks is told as an
import error from inside of Spark, and takes the data sources of other packages with it.
Where: `register` and the package `pyspark_pulsar`, before anything that needs a new Spark is imported.
"""

from __future__ import annotations

from typing import Final

# The same range is in pyproject.toml; a test compares them.
OLDEST: Final = (4, 2)
TESTED: Final = ("4.2", "4.3")


class UnsupportedSpark(ImportError):
    """The version of Spark lacks something that the source needs."""


def refusal(version: str) -> str:
    """Return why this version of Spark cannot be used; empty if it can."""
    if _numbers(version) >= OLDEST:
        return ""
    return (
        f"penstock's data source needs Spark {' or '.join(TESTED)}, and this is Spark {version}, which lacks parts of "
        f"the interface that it uses: pip install 'pyspark>={TESTED[0]},<4.4'"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return major and minor version."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2])


def check() -> None:
    """Raise UnsupportedSpark if the Spark of this process cannot be used."""
    import pyspark  # noqa: PLC0415 -- pyspark is large

    why = refusal(pyspark.__version__)
    if why:
        raise UnsupportedSpark(why)
