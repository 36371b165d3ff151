# SPDX-License-Identifier: Apache-2.0
"""The tables of `penstock.accounting.tables` as Arrow and Spark know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.accounting.tables import COST_DIGITS, COST_SCALE, DAY, SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.accounting.tables import Table

TYPES: Final[dict[str, Any]] = {
    "string": pa.string(),
    "strings": pa.list_(pa.string()),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "decimal": pa.decimal128(COST_DIGITS, COST_SCALE),
}


def arrow_schema(table: Table) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The columns of a table's files; `day` is in the names of their directories."""
    return pa.schema([pa.field(one.name, TYPES[one.type.rstrip("?")], one.optional) for one in table.columns])


def spark_schema(table: Table) -> StructType:
    """The columns of a table, `day` last."""
    return from_arrow_schema(arrow_schema(table).append(pa.field(DAY, pa.string(), nullable=False)))


def fitted(table: Table, rows: Any) -> Any:  # noqa: ANN401 - pyarrow.Table
    """Return rows with the columns of a table, in their order."""
    if "version" not in rows.column_names:
        rows = rows.append_column("version", pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int64()), rows.num_rows))
    schema = arrow_schema(table)
    return pa.table([rows[one.name].cast(one.type) for one in schema], schema=schema)
