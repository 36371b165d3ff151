# SPDX-License-Identifier: Apache-2.0
"""`CREATE TABLE … USING pulsar`: a topic as a table of Spark's catalog, for SELECT and INSERT.

Why by way of a column: Spark passes the options of a table to the source once, when the table is created without
columns, and never again; neither a SELECT nor an INSERT has them (4.2 and 4.3). But it keeps the schema that the source
returns, with the metadata of columns. So the options are stored there, in the column `__topic`.
Where: `source` asks here before it parses options.

**Which table's column is it?** An INSERT has the columns of its query; Spark gives them the metadata of the table's if
their types differ, and leaves them alone else. `insert into a select * from b` would then write to b. So the column is
declared as `varchar` of a length that no other table has: the types of two tables always differ. Spark removes this
declaration from what it has given a table's metadata. Where it is still there, the column comes from a query.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as spark

from penstock.spark.rows import TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFINITION: Final = "penstock.table"
# Where Spark notes that a column of strings was declared with a length.
VARCHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
_LENGTH_MIN: Final = 1 << 16  # longer than the name of any topic
_LENGTHS: Final = 1 << 30
# What Spark adds to the options of a table that is created.
_PROVIDER: Final = "provider"
_SPARKS: Final = frozenset({_PROVIDER, "owner", "comment", "collation", "location", "path", "external"})
_COPY: Final = "option."
_SECRETS: Final = ("token", "password", "authparams")


def is_creation(given: Mapping[str, str]) -> bool:
    """Return whether these are the options of a CREATE TABLE."""
    return any(name.lower() == _PROVIDER for name in given)


def definition_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a CREATE TABLE has given. Raises ValueError for secrets, which would be stored."""
    options = {
        name: text for name, text in given.items() if name.lower() not in _SPARKS and not name.lower().startswith(_COPY)
    }
    for name, text in options.items():
        if name.lower().rpartition(".")[2] in _SECRETS and "file:" not in text.lower():
            raise ValueError(
                f"option {name} of a table would be stored in Spark's catalog as it is: give a token as "
                "file:///path, or give this option with each query, after the table: WITH ('token' = …)"
            )
    return options


def with_definition(schema: spark.StructType, options: Mapping[str, str]) -> spark.StructType:
    """Return the schema of a table, which holds its options."""
    text = json.dumps(dict(sorted(options.items())))
    length = _LENGTH_MIN + zlib.crc32(text.encode()) % _LENGTHS
    marked = spark.StructField(TOPIC, spark.StringType(), metadata={DEFINITION: text, VARCHAR: f"varchar({length})"})
    others = [field for field in schema.fields if field.name != TOPIC]
    places = [field.name for field in schema.fields]
    at = places.index(TOPIC) if TOPIC in places else len(others)
    return spark.StructType([*others[:at], marked, *others[at:]])


def options_for(schema: spark.StructType, given: Mapping[str, str], *, writing: bool = False) -> dict[str, str]:
    """Return all options of a read or a write: those of its table, and those that it was given itself.

    Raises:
        ValueError: there are none, because Spark has not kept them.
    """
    said = schema[TOPIC].metadata if TOPIC in schema.names else {}
    is_of_query = writing and VARCHAR in said
    if DEFINITION in said and not is_of_query and "service.url" not in {name.lower() for name in given}:
        return {**json.loads(said[DEFINITION]), **given}
    if not given:
        raise ValueError(
            "there are no options. Spark keeps none for a table that is created with a list of columns, or AS SELECT: "
            "create it without, as CREATE TABLE t USING pulsar OPTIONS ('service.url' …, 'topic' …); its columns are "
            "those of the topic's schema"
        )
    return dict(given)
