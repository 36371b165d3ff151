# SPDX-License-Identifier: Apache-2.0
"""Schemas, and whether one may follow another: pure functions, no clock, no storage.

Start reading in `compatibility`; `model` has the words, `avro` and `resolution` the part that needs thought.
"""

from __future__ import annotations
