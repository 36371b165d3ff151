# SPDX-License-Identifier: Apache-2.0
"""A broker that asks nobody who they are pays nothing for being able to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.authentication.authenticator import Authenticator
from penstock.authentication.credentials import ProviderOptions
from penstock.core.errors import ConfigurationError

COSTLY = {"bcrypt", "cryptography", "jwt", "passlib"}


def modules_of(program: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {program}; print(*sys.modules)"],
        capture_output=True,
        check=True,
        text=True,
    )
    return set(run.stdout.split())


def test_without_authentication_nothing_of_it_is_imported() -> None:
    assert not COSTLY & modules_of("import penstock.app, penstock.admin.access")


def test_only_what_is_switched_on_is_imported() -> None:
    program = (
        "from penstock.authentication.authenticator import Authenticator as A; "
        "from penstock.authentication.credentials import ProviderOptions as O; "
        "A(O(methods=frozenset({'tls'})))"
    )
    assert not COSTLY & modules_of(program)


def test_a_provider_that_cannot_be_made_is_an_error_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="tokenSecretKey or tokenPublicKey"):
        Authenticator(ProviderOptions(methods=frozenset({"tls", "token"})))


@pytest.mark.parametrize(("method", "package"), [("token", "jwt"), ("basic", "passlib")])
def test_a_package_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, method: str, package: str
) -> None:
    for module in [one for one in sys.modules if one.startswith(("penstock.authentication.", f"{package}."))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"needs the package {package}.*pip install 'penstock\[auth\]'"):
        Authenticator(ProviderOptions(methods=frozenset({method})))
