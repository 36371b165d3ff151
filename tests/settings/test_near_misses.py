# SPDX-License-Identifier: Apache-2.0
"""Misspelt settings: a security setting that is meant is never missed, and Pulsar's own files are no misspellings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.units import GIB
from penstock.settings import MachineFacts, Settings, load
from penstock.settings.model import ALIASES, FIELDS, KEYS, SECURITY
from penstock.settings.near_misses import meant
from penstock.settings.pulsar_keys import is_pulsars

FACTS = MachineFacts(ram_bytes=8 * GIB, cgroup_limit_bytes=None, hostname="host-1")
PULSARS = [
    line
    for line in Path(__file__).with_name("pulsar_keys.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
OTHERS = sorted(FIELDS.keys() - SECURITY)


def from_file(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "broker.conf"
    file.write_text(text, encoding="utf-8")
    return load(file=file, facts=FACTS)


def refusal(tmp_path: Path, name: str) -> str:
    with pytest.raises(ConfigurationError, match="concerns security") as refused:
        from_file(tmp_path, f"{name}=true\n")
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("authenticationEnabeld", "authenticationEnabled"),
        ("authenticationenabled", "authenticationEnabled"),
        ("authentication.enabled", "authenticationEnabled"),
        ("AUTHENTICATION_ENABLED", "authenticationEnabled"),
        ("authentificationEnabled", "authenticationEnabled"),
        ("enableAuthentication", "authenticationEnabled"),
        ("аuthenticationEnabled", "authenticationEnabled"),  # noqa: RUF001 -- the first letter is Cyrillic
        ("authenticationProvider", "authenticationProviders"),
        ("authorizationEnable", "authorizationEnabled"),
        ("superUserRole", "superUserRoles"),
        ("superUsers", "superUserRoles"),
        ("proxyRole", "proxyRoles"),
        ("tokenSecretkey", "tokenSecretKey"),
        ("tokenAudiance", "tokenAudience"),
        ("tlsRequireTrustedClientCert", "tlsRequireTrustedClientCertOnConnect"),
        ("requireTrustedClientCertOnConnect", "tlsRequireTrustedClientCertOnConnect"),
        ("tlsTrustCertFilePath", "tlsTrustCertsFilePath"),
        ("tlsProtocol", "tlsProtocols"),
        ("encryptionRequiredOnProducer", "encryptionRequireOnProducer"),
        ("brokerClientAuthenticationPlugn", "brokerClientAuthenticationPlugin"),
        ("brokerClientTrustCertFilePath", "brokerClientTrustCertsFilePath"),
        ("tlsHostnameVerification", "tlsHostnameVerificationEnabled"),
        ("forwardAuthorizationCredential", "forwardAuthorizationCredentials"),
        ("tlsEnabledWithBrokers", "tlsEnabledWithBroker"),
        ("brokerProxyAllowedHostnames", "brokerProxyAllowedHostNames"),
    ],
)
def test_a_near_miss_of_a_security_setting_refuses_the_start_and_names_it(tmp_path: Path, name: str, key: str) -> None:
    assert refusal(tmp_path, name).startswith(f"{name} (broker.conf line 1) is no setting; do you mean {key}? ")


@given(st.data())
def test_a_name_with_one_wrong_letter_is_near_to_its_setting(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(FIELDS)))
    place = data.draw(st.integers(0, len(key) - 1))
    letter = data.draw(st.sampled_from(["", key[place] * 2, key[place].swapcase(), "x", f"_{key[place]}"]))
    name = data.draw(
        st.sampled_from(
            [key[:place] + letter + key[place + 1 :], key[:place] + key[place:][:2][::-1] + key[place + 2 :]]
        )
    )
    if name not in FIELDS and name not in ALIASES:
        assert not is_pulsars(name) or key not in SECURITY
        if len(key) > 8:
            assert meant(name) == key


@pytest.mark.parametrize("key", sorted(SECURITY))
def test_no_misspelt_security_setting_is_taken_for_one_of_pulsars(key: str) -> None:
    for place in range(len(key)):
        for name in (key[:place] + key[place + 1 :], key[:place] + "q" + key[place:]):
            assert not is_pulsars(name), name


def test_a_near_miss_without_a_value_is_a_warning_as_it_would_set_nothing(tmp_path: Path) -> None:
    (warning,) = from_file(tmp_path, "authenticationEnabeld=\n").warnings
    assert warning == (
        "unknown settings are ignored: authenticationEnabeld (broker.conf line 1; do you mean authenticationEnabled?)"
    )


def test_a_near_miss_of_another_setting_is_a_warning_with_it(tmp_path: Path) -> None:
    (warning,) = from_file(tmp_path, "maxProducerPerTopic=3\nmyOwnSetting=4\n").warnings
    assert warning == (
        "unknown settings are ignored: maxProducerPerTopic (broker.conf line 1; do you mean maxProducersPerTopic?), "
        "myOwnSetting (broker.conf line 2)"
    )


@pytest.mark.parametrize(
    "variable",
    [
        "PENSTOCK_AUTHENTICATION_ENABELD",
        "PENSTOCK_AUTHENTICATIONENABLED",
        "PENSTOCK_authenticationEnabled",
        "penstock_authentication_enabled",
        "PENSTOK_AUTHENTICATION_ENABLED",
        "PENSTOCKS_AUTHENTICATION_ENABLED",
        "PULSAR_PREFIX_authenticationEnabeld",
        "PULSAR_PREFIX_AUTHENTICATION_ENABLED",
        "pulsar_prefix_authenticationEnabled",
        "authenticationEnabled",  # as containers of Pulsar read it, too
    ],
)
def test_so_is_a_variable_with_another_name_or_prefix(variable: str) -> None:
    with pytest.raises(ConfigurationError, match="do you mean PENSTOCK_AUTHENTICATION_ENABLED") as refused:
        load(environment={variable: "true"}, facts=FACTS)
    assert variable in str(refused.value)


def test_variables_of_other_programs_are_nobodys_misspelling() -> None:
    host = {
        f"{service}_{what}": "1"
        for service in ("PENSTOCK", "PENSTOCK_PROXY", "PENSTOCK_TLS", "PENSTOCK_ADMIN", "PULSAR")
        for what in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_TLS", "PORT", "PORT_6651_TCP", "PORT_6651_TCP_PROTO")
    }
    others = (
        "TLS_ENABLED",
        "PROXY_ROLES",
        "PENTEST_TLS_ENABLED",
        "STOCK_TLS_ENABLED",
        "PULSAR_MEM",
        "TOKEN_SECRET_KEY",
    )
    load(environment={**host, **dict.fromkeys(others, "true")}, facts=FACTS)


@pytest.mark.parametrize("name", PULSARS)
def test_no_key_of_pulsars_files_is_taken_for_a_misspelling(name: str) -> None:
    assert name in FIELDS or name in ALIASES or is_pulsars(name)


def test_pulsars_other_names_of_security_settings_set_them(tmp_path: Path) -> None:
    assert from_file(tmp_path, "tlsEnableHostnameVerification=true\n").upstream_hostname_check
    with pytest.raises(ConfigurationError, match="tlsEnabled=true needs tlsCertificateFilePath"):
        from_file(tmp_path, "tlsEnabledInProxy=true\n")


PROXY = "brokerServiceURL=pulsar://broker:6650\n"
TOKENS = (
    "authenticationEnabled=true\ntokenSecretKey=data:;base64,c2VjcmV0\n"
    "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
)


@pytest.mark.parametrize(
    ("text", "wants"),
    [
        ("tlsEnabledWithKeyStore=true\n", "set tlsCertificateFilePath and tlsKeyFilePath"),
        (f"{PROXY}brokerClientTlsEnabledWithKeyStore=true\n", "set brokerClientTrustCertsFilePath"),
        (f"{TOKENS}authenticateMetricsEndpoint=true\n", "/metrics of a broker needs no credentials"),
    ],
)
def test_a_setting_of_pulsars_that_cannot_be_ignored_safely_refuses_the_start(
    tmp_path: Path, text: str, wants: str
) -> None:
    with pytest.raises(ConfigurationError, match=wants):
        from_file(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "brokerClientTlsEnabledWithKeyStore=true\n",  # A broker is no client of brokers.
        "authenticateMetricsEndpoint=true\n",  # It needs authenticationEnabled in Pulsar, too.
        f"{TOKENS}authenticateMetricsEndpoint=false\n",
        f"{PROXY}{TOKENS}authenticateMetricsEndpoint=true\n",
        "strictAuthMethod=true\n",  # Credentials are checked by the method that they are of in any case.
    ],
)
def test_and_one_that_can_be_does_not(tmp_path: Path, text: str) -> None:
    from_file(tmp_path, text)


def test_every_security_setting_is_of_a_group_for_security() -> None:
    words = ("auth", "tls", "token", "role", "cert", "credential", "secret")
    named = {key.name for key in KEYS.values() if any(word in key.name.lower() for word in words)}
    assert named - SECURITY == {
        "brokerServicePortTls",
        "webServicePortTls",
        "brokerServiceURLTLS",
        "brokerWebServiceURLTLS",
    }
