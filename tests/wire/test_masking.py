# SPDX-License-Identifier: Apache-2.0
"""Masks of messages: properties and keys by name, fields of JSON at any depth, and nothing that cannot be read."""

from __future__ import annotations

import json

import pytest

from penstock.core.units import MIB
from penstock.wire.masking import MASKED, Mask
from penstock.wire.messages import Message


def masked(mask: Mask, value: bytes | None = None, key: str | None = None, **properties: str) -> Message:
    return mask.masked(Message(value=value, key=key, properties=properties))


def test_properties_are_masked_by_pattern_and_others_are_kept() -> None:
    shown = masked(Mask(properties=("x?to*", "email")), email="a@b", other="c", x_token="t")
    assert shown.properties == {"email": MASKED, "other": "c", "x_token": MASKED}


@pytest.mark.parametrize("mask", [Mask(properties=("key",)), Mask(fields=("k?y",))])
def test_a_key_is_masked_by_its_name(mask: Mask) -> None:
    assert masked(mask, key="secret").key == MASKED
    assert masked(mask).key is None


def test_fields_are_masked_at_any_depth() -> None:
    value = {"card": {"number": 1}, "lines": [{"card": "4000", "price": 1.5}], "name": "é"}
    shown = masked(Mask(fields=("card",)), json.dumps(value).encode())
    assert json.loads(shown.value or b"") == {
        "card": MASKED,
        "lines": [{"card": MASKED, "price": 1.5}],
        "name": "é",
    }


@pytest.mark.parametrize("value", [b"card=4000", b"\xff\x00", b"[" * 100_000, b'{"card": 1', b'"' + b"x" * MIB + b'"'])
def test_a_value_that_is_no_json_is_hidden_where_fields_are_masked(value: bytes) -> None:
    assert masked(Mask(fields=("card",)), value).value == MASKED.encode()
    assert masked(Mask(properties=("card",)), value).value == value


def test_a_tombstone_stays_one() -> None:
    assert masked(Mask(fields=("card",))).value is None


def test_without_names_nothing_is_masked() -> None:
    assert not Mask()
    assert Mask(fields=("card",))
