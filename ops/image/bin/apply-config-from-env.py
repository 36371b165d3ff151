#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write settings from the environment into files of settings, as images of Apache Pulsar do before they start.

    apply-config-from-env.py FILE...

`PULSAR_PREFIX_key=value` sets `key`, whether the file has it or not. A variable with the name of a key that the file
has, or has in a comment, sets that one. What each file sets already is replaced where it stands.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "PULSAR_PREFIX_"
KEY = re.compile(r"^(?P<comment>#\s?)?(?P<key>[A-Za-z][\w.-]*)\s*=")


def applied(lines: list[str], environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The lines with what the environment sets, and the keys that were set."""
    given = {name.removeprefix(PREFIX): value for name, value in environment.items() if name.startswith(PREFIX)}
    places: dict[str, int] = {}
    for number, line in enumerate(lines):
        found = KEY.match(line)
        if found is not None and (found["comment"] is None or found["key"] not in places):
            places[found["key"]] = number
    given = {**{key: environment[key] for key in places if key in environment}, **given}
    result = list(lines)
    for key, value in given.items():
        if key in places:
            result[places[key]] = f"{key}={value}"
        else:
            result.append(f"{key}={value}")
    return result, sorted(given)


def main(files: list[str]) -> int:
    """Rewrite the files; say which keys were set, and no values, which may be secrets."""
    if not files:
        print("apply-config-from-env.py: want the names of files", file=sys.stderr)
        return 2
    for name in files:
        path = Path(name)
        try:
            lines, keys = applied(path.read_text(encoding="utf-8").splitlines(), os.environ)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"apply-config-from-env.py: {name}: {error.strerror}", file=sys.stderr)
            return 1
        print(f"{name}: {', '.join(keys) or 'nothing'} set from the environment")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
