# SPDX-License-Identifier: Apache-2.0
"""Validity and compatibility of schemas: pure functions, no clock, no storage.

Start reading in `compatibility`; `model` has the types, `avro` and `resolution` the difficult part.
"""

from __future__ import annotations
