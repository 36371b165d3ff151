# SPDX-License-Identifier: Apache-2.0
"""Reads of values that do not fit the topic's schema: the three modes of Spark's own sources.

    FAILFAST        the query fails, and names the topic and the value
    PERMISSIVE      the columns of the value are null, and `_corrupt_record` holds its bytes
    DROPMALFORMED   the message is left out, counted, and told in the log of the task

Why fail by default: a message that is left out without a word is a loss. Where: `options` makes one, `rows` follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as spark

if TYPE_CHECKING:
    from penstock.spark.values import Values

FAILFAST: Final = "FAILFAST"
PERMISSIVE: Final = "PERMISSIVE"
DROPMALFORMED: Final = "DROPMALFORMED"
MODES: Final = (FAILFAST, PERMISSIVE, DROPMALFORMED)
CORRUPT: Final = "_corrupt_record"


@dataclass(frozen=True, slots=True)
class BrokenValues:
    """The mode, and the name of the column for the bytes of broken values; can be pickled."""

    mode: str = FAILFAST
    column: str = CORRUPT

    @property
    def fails(self) -> bool:
        """Whether one broken value fails the query."""
        return self.mode == FAILFAST

    @property
    def drops(self) -> bool:
        """Whether messages with broken values are left out."""
        return self.mode == DROPMALFORMED

    def fields(self, found: Values) -> tuple[spark.StructField, ...]:
        """Return the column that a read has in addition. Raises ValueError if a field of the value has its name."""
        if self.mode != PERMISSIVE or found.kind is None:
            return ()
        if any(one.name == self.column for one in found.fields):
            raise ValueError(
                f"the topic's schema has a field {self.column}, too; name another column with the option "
                "columnNameOfCorruptRecord"
            )
        return (spark.StructField(self.column, spark.BinaryType()),)

    def column_in(self, schema: spark.StructType, found: Values) -> str:
        """Return the name of this column if a read has it; else an empty string."""
        return self.column if self.column in schema.names and self.fields(found) else ""


FAIL: Final = BrokenValues()
