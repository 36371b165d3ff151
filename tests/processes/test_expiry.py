# SPDX-License-Identifier: Apache-2.0
"""A broker and a proxy say when their certificates and tokens expire, until they have read new ones."""

from __future__ import annotations

import datetime as dt
import re
import signal
import time
from typing import TYPE_CHECKING

import httpx

from penstock.testing.certificates import VALID_UNTIL, Certificate
from penstock.testing.process import BrokerProcess, ProxyProcess
from penstock.testing.tokens import token

if TYPE_CHECKING:
    from pathlib import Path

CERTIFICATE, TOKEN = "penstock_certificate_expiry_timestamp_seconds", "penstock_token_expiry_timestamp_seconds"
PATIENCE_S = 60


def expiry(admin_url: str, metric: str, labels: str, not_s: float = 0) -> float:
    """The value of a metric, once it is there and not `not_s`."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        text = httpx.get(f"{admin_url}/metrics", trust_env=False, timeout=60).text
        found = re.search(rf"^{metric}\{{{labels}\}} (\S+)$", text, re.MULTILINE)
        if found is not None and float(found[1]) != not_s:
            return float(found[1])
        assert time.monotonic() < until_s, text


def test_a_certificate_that_expires_is_named_until_a_new_one_was_read(tmp_path: Path) -> None:
    soon = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(days=2)
    made = Certificate.make(tmp_path, soon)
    config = tmp_path / "broker.conf"
    config.write_text(
        "brokerServicePortTls=0\nwebServicePortTls=0\n"
        f"tlsCertificateFilePath={made.certificate}\ntlsKeyFilePath={made.key}\n"
    )
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker:
        assert expiry(broker.admin_url, CERTIFICATE, 'use="clients"') == soon.timestamp()
        assert expiry(broker.admin_url, CERTIFICATE, 'use="admin"') == soon.timestamp()
        health = httpx.get(f"{broker.admin_url}/healthz", trust_env=False, timeout=60).json()
        assert health["status"] == "ok"
        assert [note.partition(":")[0] for note in health["notes"]] == [
            "the certificate for clients expires soon",
            "the certificate for admin expires soon",
        ]
        Certificate.make(tmp_path)
        broker.send_signal(signal.SIGHUP)
        assert expiry(broker.admin_url, CERTIFICATE, 'use="clients"', soon.timestamp()) == VALID_UNTIL.timestamp()
        assert httpx.get(f"{broker.admin_url}/healthz", trust_env=False, timeout=60).json() == {"status": "ok"}


def test_a_proxy_watches_its_token_and_its_certificates(tmp_path: Path) -> None:
    made = Certificate.make(tmp_path)
    (tmp_path / "token").write_text(token("proxy", exp=2_000_000_000))
    config = tmp_path / "proxy.conf"
    config.write_text(
        "servicePortTls=0\n"
        f"tlsCertificateFilePath={made.certificate}\ntlsKeyFilePath={made.key}\n"
        "brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\n"
        f"brokerClientAuthenticationParameters=file://{tmp_path}/token\n"
    )
    with ProxyProcess("pulsar://127.0.0.1:1", ["--config", str(config)], log_path=tmp_path / "proxy.log") as proxy:
        assert expiry(proxy.admin_url, TOKEN, 'use="own topics",source="file"') == 2_000_000_000
        assert expiry(proxy.admin_url, CERTIFICATE, 'use="clients"') == VALID_UNTIL.timestamp()
        (tmp_path / "token").write_text(token("proxy", exp=1))
        proxy.send_signal(signal.SIGHUP)
        assert expiry(proxy.admin_url, TOKEN, 'use="own topics",source="file"', 2_000_000_000) == 1
        shown = httpx.get(f"{proxy.admin_url}/proxy-stats/overview", trust_env=False, timeout=60).json()
        assert shown["notes"] == ["the token for own topics has expired: it is valid until 1970-01-01T00:00:01+00:00"]
