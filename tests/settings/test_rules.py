# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot go together, and those that somebody should think about."""

from __future__ import annotations

import pytest

from penstock.core.errors import ConfigurationError
from penstock.core.units import GIB
from penstock.settings import MachineFacts, Settings, load
from penstock.settings.rows.security import PROVIDER_BASIC, PROVIDER_TLS, PROVIDER_TOKEN

FACTS = MachineFacts(ram_bytes=8 * GIB, cgroup_limit_bytes=None, hostname="host-1")
CERTIFICATE = {"tlsCertificateFilePath": "cert.pem", "tlsKeyFilePath": "key.pem"}
TOKENS = {"authenticationEnabled": "true", "authenticationProviders": PROVIDER_TOKEN, "tokenSecretKey": "file:///key"}


BUCKETS = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"


def made_of(values: dict[str, str]) -> Settings:
    return load(environment={f"PULSAR_PREFIX_{key}": value for key, value in values.items()}, facts=FACTS)


def refusal(values: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        made_of(values)
    return str(refused.value)


def test_authentication_wants_a_provider_and_the_refusal_says_which_keys_to_set() -> None:
    said = refusal({"authenticationEnabled": "true"})
    assert "authenticationProviders" in said
    assert "tokenSecretKey" in said


@pytest.mark.parametrize(
    ("provider", "wants"),
    [
        (PROVIDER_TOKEN, "tokenSecretKey or tokenPublicKey"),
        (PROVIDER_BASIC, "basicAuthConf"),
        (PROVIDER_TLS, "tlsTrustCertsFilePath"),
    ],
)
def test_a_provider_wants_what_it_checks_with(provider: str, wants: str) -> None:
    said = refusal({"authenticationEnabled": "true", "authenticationProviders": provider})
    assert provider.rpartition(".")[2] in said
    assert wants in said


def test_providers_of_a_broker_that_asks_nobody_are_not_looked_at() -> None:
    assert made_of({"authenticationProviders": PROVIDER_TOKEN}).authentication_providers == (PROVIDER_TOKEN,)


def test_a_provider_that_nobody_knows_is_refused_by_its_name() -> None:
    assert "AuthenticationProviderAthenz is none of" in refusal(
        {"authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderAthenz"}
    )


def test_authorization_wants_authentication() -> None:
    assert "authenticationEnabled=true" in refusal({"authorizationEnabled": "true"})


def test_an_audience_claim_wants_an_audience() -> None:
    assert "tokenAudience" in refusal({**TOKENS, "tokenAudienceClaim": "aud"})
    assert made_of({**TOKENS, "tokenAudienceClaim": "aud", "tokenAudience": "broker"}).token_audience == "broker"


@pytest.mark.parametrize(("key", "value"), [("tlsEnabled", "true"), ("webServicePortTls", "8443")])
def test_whatever_speaks_tls_wants_a_certificate(key: str, value: str) -> None:
    assert f"{key}={value} needs tlsCertificateFilePath" in refusal({key: value})
    made_of({**CERTIFICATE, key: value})


def test_java_key_stores_are_refused_rather_than_left_out() -> None:
    assert "convert yours to PEM" in refusal({"tlsEnabledWithKeyStore": "true"})
    made_of({"tlsEnabledWithKeyStore": "false"})


def test_asking_clients_for_certificates_wants_somebody_to_trust() -> None:
    asks = {**CERTIFICATE, "tlsRequireTrustedClientCertOnConnect": "true"}
    assert "tlsTrustCertsFilePath" in refusal(asks)
    assert made_of({**asks, "tlsTrustCertsFilePath": "ca.pem"}).tls_require_client_cert


def test_listening_wider_than_this_machine_without_authentication_is_told() -> None:
    (warning,) = made_of({"bindAddress": "0.0.0.0"}).warnings
    assert "bindAddress=0.0.0.0" in warning
    assert "authenticationEnabled=true" in warning


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_listening_on_this_machine_alone_is_not_worth_a_word(host: str) -> None:
    assert made_of({"bindAddress": host}).warnings == ()


def test_credentials_that_others_can_read_along_are_told() -> None:
    wide = {**TOKENS, "authorizationEnabled": "true", "superUserRoles": "admin", "bindAddress": "0.0.0.0"}
    (warning,) = made_of(wide).warnings
    assert "without TLS" in warning


def test_authorization_without_a_superuser_and_authentication_without_authorization_are_told() -> None:
    (nobody,) = made_of({**TOKENS, "authorizationEnabled": "true"}).warnings
    assert "superUserRoles" in nobody
    (everything,) = made_of(TOKENS).warnings
    assert "authorizationEnabled" in everything


def test_a_secret_is_in_no_message() -> None:
    settings = made_of({**TOKENS, "tokenSecretKey": "data:;base64,c2VjcmV0"})
    assert settings.spelled("tokenSecretKey") == "***"
    assert settings.spelled("basicAuthConf") == ""
    assert "c2VjcmV0" not in "".join(settings.warnings)


def test_what_has_no_effect_here_is_said_when_it_differs_from_pulsars_default() -> None:
    told = made_of(
        {
            "delayedDeliveryFixedDelayDetectionLookahead": "1000",
            "delayedDeliveryTrackerFactoryClassName": BUCKETS,
        }
    ).warnings
    assert [one.partition(" is ignored")[0] for one in told] == [
        "delayedDeliveryFixedDelayDetectionLookahead=1000",
        f"delayedDeliveryTrackerFactoryClassName={BUCKETS}",
    ]
    shipped = {
        "delayedDeliveryFixedDelayDetectionLookahead": "50000",
        "delayedDeliveryTrackerFactoryClassName": BUCKETS.replace("Bucket", "InMemory"),
    }
    assert made_of(shipped).warnings == ()


def test_a_size_that_is_raised_is_said_with_what_it_is_raised_to() -> None:
    (warning,) = made_of({"maxMessagePublishBufferSizeInMB": "1"}).warnings
    assert warning.startswith("maxMessagePublishBufferSizeInMB=1 is raised to 10.0: ")
    assert made_of({"maxMessagePublishBufferSizeInMB": "50"}).warnings == ()


@pytest.mark.parametrize("tick", ["0", "-5"])
def test_a_tick_that_cannot_be_is_refused_by_its_name(tick: str) -> None:
    assert refusal({"delayedDeliveryTickTimeMillis": tick}).startswith(f"delayedDeliveryTickTimeMillis={tick} ")


UPSTREAM = {"brokerServiceURL": "pulsar://host:6650"}
TOKEN_OF_PROXY = {"brokerClientAuthenticationPlugin": "token", "brokerClientAuthenticationParameters": "token:words"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"brokerClientCertificateFilePath": "own.pem"}, "brokerClientCertificateFilePath and brokerClientKeyFilePath"),
        ({"brokerClientKeyFilePath": "own.pem"}, "brokerClientCertificateFilePath and brokerClientKeyFilePath"),
        (UPSTREAM | {"brokerClientAuthenticationPlugin": "tls"}, "brokerClientAuthenticationPlugin=tls needs"),
    ],
)
def test_a_proxys_certificate_wants_its_key(values: dict[str, str], says: str) -> None:
    assert says in refusal(values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (UPSTREAM | TOKENS, "brokers that authenticate refuse this proxy"),
        (UPSTREAM | {"forwardAuthorizationCredentials": "true"}, "has no effect without authenticationEnabled=true"),
        (UPSTREAM | TOKENS | TOKEN_OF_PROXY | {"authorizationEnabled": "true"}, ""),
        (UPSTREAM | TOKENS | TOKEN_OF_PROXY, ""),
    ],
)
def test_a_proxy_warns_of_what_cannot_work_and_not_of_what_only_brokers_do(values: dict[str, str], says: str) -> None:
    warned = made_of(values).warnings
    assert len(warned) == bool(says)
    assert says in "".join(warned)


def test_a_proxy_has_the_same_credentials_for_its_topics_unless_it_has_others() -> None:
    same = made_of(UPSTREAM | TOKEN_OF_PROXY)
    assert (same.own_topics_method, same.own_topics_parameters) == ("token", "token:words")
    other = made_of(UPSTREAM | TOKEN_OF_PROXY | {"proxyTopicsAuthenticationPlugin": "none"})
    assert (other.own_topics_method, other.own_topics_parameters) == ("none", "")


def test_a_proxy_with_tls_to_brokers_asks_their_admin_port_with_tls() -> None:
    both = {"brokerWebServiceURL": "http://host:8080", "brokerWebServiceURLTLS": "https://host:8443"}
    with_tls = {"brokerServiceURLTLS": "pulsar+ssl://host:6651", "tlsEnabledWithBroker": "true"}
    assert made_of(UPSTREAM | both).upstream_admin_url == "http://host:8080"
    assert made_of(UPSTREAM | both | with_tls).upstream_admin_url == "https://host:8443"
