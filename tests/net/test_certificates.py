# SPDX-License-Identifier: Apache-2.0
"""Until when certificates are valid: of one, of a chain, and of the context that has loaded it."""

from __future__ import annotations

import datetime as dt
import ssl
from typing import TYPE_CHECKING

import pytest

from penstock.net.certificates import validity
from penstock.net.tls import TlsOptions, client_context, server_context, valid_until_ms
from penstock.testing.certificates import VALID_FROM, VALID_UNTIL, Certificate

if TYPE_CHECKING:
    from pathlib import Path

SOON = dt.datetime(2049, 12, 31, 23, 59, 59, tzinfo=dt.UTC)  # the last second of two digits


def ms(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1_000)


@pytest.mark.parametrize("until", [VALID_UNTIL, SOON])
def test_a_certificate_is_valid_from_and_until(tmp_path: Path, until: dt.datetime) -> None:
    made = Certificate.make(tmp_path, until)
    assert validity(made.certificate.read_text()) == (ms(VALID_FROM), ms(until))


def test_a_chain_is_valid_until_its_first_certificate_is_not(tmp_path: Path) -> None:
    root = Certificate.make(tmp_path, SOON)
    chain = root.signed("leaf").certificate.read_text() + "\n" + root.certificate.read_text()
    assert validity(chain) == (ms(VALID_FROM), ms(SOON))


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"])
def test_what_is_no_certificate_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        validity(text)


def test_a_context_is_valid_until_the_certificate_that_it_has_loaded_is_not(tmp_path: Path) -> None:
    made = Certificate.make(tmp_path, SOON)
    server = server_context(TlsOptions(certificate=made.certificate, key=made.key))
    client = client_context(made.certificate, check_hostname=True, certificate=made.certificate, key=made.key)
    Certificate.make(tmp_path)  # A new file that nobody has read.
    assert (valid_until_ms(server), valid_until_ms(client)) == (ms(SOON), ms(SOON))
    assert valid_until_ms(client_context(made.certificate, check_hostname=True)) is None
    assert valid_until_ms(ssl.create_default_context()) is None
