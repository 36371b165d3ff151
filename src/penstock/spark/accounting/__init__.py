# SPDX-License-Identifier: Apache-2.0
"""Tables of who used what, from the records of brokers (docs/reference/accounting.md).

`stream` reads the records with Spark, `differing` is what its executors do, `store` writes tables that a repeated
micro-batch does not change, and `derived` makes the tables that follow from others. What is decided is in
`penstock.accounting`, without Spark.
"""
