# SPDX-License-Identifier: Apache-2.0
"""What expires: which tokens and certificates are watched, and when health names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.net.own_credentials import own_credentials
from penstock.stats.expiry import Expiry, notes, of_credentials
from penstock.testing.tokens import token

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.stats.expiry import Source

NOW_MS = 1_800_000_000_000
MINUTE_MS, DAY_MS = 60_000, 86_400_000


@pytest.mark.parametrize(
    ("source", "left_ms", "said"),
    [
        ("certificate", 3 * DAY_MS, ""),
        ("certificate", 3 * DAY_MS - 1, "the certificate for clients expires soon: it is valid until 2027-01-18"),
        ("certificate", 0, "the certificate for clients has expired: it is valid until 2027-01-15T08:00:00+00:00"),
        ("setting", 3 * DAY_MS - 1, "the token for clients expires soon"),
        ("file", 5 * MINUTE_MS, ""),  # It is replaced in time.
        ("file", 5 * MINUTE_MS - 1, "the token for clients expires soon"),
        ("file", -1, "the token for clients has expired"),
    ],
)
def test_health_names_what_expires_before_somebody_could_do_something(source: Source, left_ms: int, said: str) -> None:
    one = Expiry("clients", source, NOW_MS + left_ms)
    found = list(notes([one], NOW_MS))
    assert len(found) == bool(said)
    assert not said or found[0].startswith(said)


def test_a_token_in_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token("proxy", exp=1_000))
    own = own_credentials("brokerClientAuthentication", "token", f"file://{file}")
    assert list(of_credentials("brokers", own)) == [Expiry("brokers", "file", 1_000_000)]
    file.write_text(token("proxy", exp=2_000))
    assert list(of_credentials("brokers", own)) == [Expiry("brokers", "file", 2_000_000)]
    file.unlink()  # What was shown last is shown on.
    assert list(of_credentials("brokers", own)) == [Expiry("brokers", "file", 1_000_000)]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("none", ""),
        ("basic", "user:password"),
        ("token", "token:no-json-web-token"),
        ("token", "token:a.b.c"),
        ("token", f"token:{token('proxy')}"),
        ("token", f"token:{token('proxy', exp='soon')}"),
    ],
)
def test_what_does_not_say_when_it_expires_is_not_watched(method: str, parameters: str) -> None:
    assert list(of_credentials("brokers", own_credentials("brokerClientAuthentication", method, parameters))) == []


def test_a_token_in_a_setting_says_so() -> None:
    own = own_credentials("authentication", "token", f"token:{token('broker', exp=1_800_000_000.5)}")
    assert list(of_credentials("cluster west", own)) == [Expiry("cluster west", "setting", 1_800_000_000_500)]
