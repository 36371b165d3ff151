# SPDX-License-Identifier: Apache-2.0
"""Finds the setting that a misspelt name means.

Why: `authenticationEnabeld=true` is not a setting, and whoever wrote it believes that clients must authenticate. So a
near miss of a security setting refuses the start, and that of any other is a warning. Where: `sources` asks about names
that are neither settings nor Pulsar's, `main` about unknown flags.

Names are compared without case, dots and underscores, as they stand and with their words in order, so that
`enable_authentication` is near to `authenticationEnabled`. Similarity is that of difflib: 1 for equal names. No key of
Pulsar's files is near to a setting; `tests/settings/test_near_misses.py` has them all.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.core.setting import VARIABLE_PREFIX
from penstock.settings.model import ALIASES, FIELDS, KEYS, SECURITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# How containers of Pulsar take settings: PULSAR_PREFIX_clusterName=eu.
PULSAR_PREFIX: Final = "PULSAR_PREFIX_"

# At 0.8, one word of three may be missing or three letters of ten wrong. Names of variables have a prefix in common.
_SIMILAR: Final = 0.8
_SIMILAR_VARIABLES: Final = 0.93

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@cache
def meant(name: str) -> str | None:
    """Return the setting whose name is near to this one, which is none; None if there is none."""
    plain = _plain(name)
    return _nearest((plain, _in_order(name)), _names(), _SIMILAR) if plain else None


def variable_meant(variable: str) -> str | None:
    """Return the security setting that a variable means which penstock does not read; None if it means none.

    These are variables with a misspelt prefix, and those that Pulsar's containers read without a prefix.
    """
    if variable in SECURITY:
        return variable
    plain = _plain(variable)
    if not plain.startswith(("pen", "pulsarpre")) and "stock" not in plain:
        return None  # Most variables are of other programs.
    return _nearest((plain,), _variables(), _SIMILAR_VARIABLES)


def _nearest(spellings: Iterable[str], names: Mapping[str, str], similar: float) -> str | None:
    from difflib import get_close_matches  # noqa: PLC0415 -- hardly any start has a near miss

    for spelling in spellings:
        near = [spelling] if spelling in names else get_close_matches(spelling, names, 1, similar)
        if near:
            return names[near[0]]
    return None


@cache
def _names() -> Mapping[str, str]:
    """Return the keys by the spellings of their names, of their other names, and of their flags."""
    flags = {key.flag: key.name for key in KEYS.values() if key.flag is not None}
    names = {**flags, **ALIASES, **{key: key for key in FIELDS}}
    return {_in_order(name): key for name, key in names.items()} | {_plain(name): key for name, key in names.items()}


@cache
def _variables() -> Mapping[str, str]:
    prefixes = (VARIABLE_PREFIX, PULSAR_PREFIX)
    return {_plain(prefix + key): key for prefix in prefixes for key in SECURITY}


def _plain(name: str) -> str:
    return "".join(_WORD.findall(name)).lower()


def _in_order(name: str) -> str:
    return "".join(sorted(word.lower() for word in _WORD.findall(name)))
