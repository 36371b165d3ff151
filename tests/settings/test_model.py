# SPDX-License-Identifier: Apache-2.0
"""The table of settings."""

from __future__ import annotations

import pytest

from penstock.settings.model import KEYS, Key


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("queued.max.request.bytes", "PENSTOCK_QUEUED_MAX_REQUEST_BYTES"),
        ("memoryLimitMB", "PENSTOCK_MEMORY_LIMIT_MB"),
        ("maxMessageSize", "PENSTOCK_MAX_MESSAGE_SIZE"),
        ("brokerServicePortTls", "PENSTOCK_BROKER_SERVICE_PORT_TLS"),
        ("durability", "PENSTOCK_DURABILITY"),
    ],
)
def test_a_key_is_spelled_in_capitals_in_the_environment(name: str, variable: str) -> None:
    assert {key.name: key.variable for key in KEYS.values()}[name] == variable


def test_no_two_keys_share_a_name_a_variable_or_a_flag() -> None:
    for spelling in ("name", "variable"):
        spelled = [getattr(key, spelling) for key in KEYS.values()]
        assert len(spelled) == len(set(spelled))
    flags = [key.flag for key in KEYS.values() if key.flag]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("key", [key for key in KEYS.values() if key.default is not None], ids=lambda key: key.name)
def test_a_default_can_be_written_into_a_file(key: Key) -> None:
    assert key.parse(key.default_text) == key.default
