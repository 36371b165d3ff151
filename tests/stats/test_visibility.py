# SPDX-License-Identifier: Apache-2.0
"""What an explanation tells whoever asked for it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.stats.visibility import ANOTHERS, shown

TENANTS = ("shop", "bank", "zoo")

owners = st.one_of(st.none(), st.lists(st.sampled_from(TENANTS), max_size=3, unique=True))
numbers = st.dictionaries(st.just("secret_left"), st.floats(allow_nan=False))


def finding_of(tenants: list[str] | None, secret: dict[str, float]) -> dict[str, Any]:
    return {
        "what": "producer p of persistent://shop/orders/t at 127.0.0.1:1",
        "limit": "publish rate of persistent://secret/ns/t",
        "reason": "secret-rate",
        "forMs": 12,
        "numbers": secret,
        "liftedBy": "raise the secret",
        "tenants": tenants,
    }


@given(tenants=owners, secret=numbers, administered=st.sets(st.sampled_from(TENANTS)))
def test_a_limit_of_tenants_that_the_asker_does_not_administer_is_only_another_tenants(
    tenants: list[str] | None, secret: dict[str, float], administered: set[str]
) -> None:
    found = finding_of(tenants, secret)
    seen = shown(found, administered.__contains__)
    if tenants is None or administered & set(tenants):
        assert seen == found
    else:
        assert (seen["what"], seen["limit"], seen["forMs"]) == (found["what"], ANOTHERS, 12)
        assert "secret" not in json.dumps(seen)
        assert not any(tenant in json.dumps({**seen, "what": ""}) for tenant in TENANTS)


@given(tenants=owners, secret=numbers)
def test_whoever_administers_everything_sees_every_limit(tenants: list[str] | None, secret: dict[str, float]) -> None:
    found = finding_of(tenants, secret)
    assert shown(found, lambda _tenant: True) == found
