# SPDX-License-Identifier: Apache-2.0
"""Where settings come from, and which source wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.core.units import GIB, KIB, MIB, NS_PER_MS
from penstock.net.listing_memory import TopicListLimits
from penstock.settings import MachineFacts, Settings, load
from penstock.settings.limits import Live
from penstock.settings.sources import changed

FACTS = MachineFacts(ram_bytes=8 * GIB, cgroup_limit_bytes=None, hostname="host-1")


def from_file(tmp_path: Path, text: str, **variables: str) -> Settings:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    return load(file=file, environment=variables, facts=FACTS)


def from_variables(**variables: str) -> Settings:
    return load(environment=variables, facts=FACTS)


def test_nothing_needs_to_be_set() -> None:
    settings = load(facts=FACTS)
    assert (settings.bind_address, settings.advertised_address) == ("127.0.0.1", "127.0.0.1")
    assert (settings.port, settings.tls_port, settings.admin_port) == (6650, 6651, 8080)
    assert settings.tls_certificate is None
    assert not settings.relaxed
    assert settings.max_message_bytes == 5 * MIB
    assert settings.frame_bytes_max == 5 * MIB + 10 * KIB
    assert settings.memory_limit_mb == 4096
    assert settings.request_bytes_max == settings.budget.rows["requests"] == 64 * MIB
    assert (settings.outbound_mb, settings.tail_cache_mb) == (64, 64)
    assert set(settings.sources.values()) == {"default"}
    assert settings.warnings == ()


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("webServicePort=1\nbrokerServicePort=1\nkeepAliveIntervalSeconds=1\n")
    settings = load(
        file=file,
        environment={"PENSTOCK_BROKER_SERVICE_PORT": "2", "PENSTOCK_WEB_SERVICE_PORT": "2", "HOME": "/"},
        flags={"brokerServicePort": "3"},
        facts=FACTS,
    )
    assert (settings.keep_alive_interval_s, settings.admin_port, settings.port) == (1, 2, 3)
    assert settings.cluster_name == "standalone"
    assert settings.sources["keepAliveIntervalSeconds"] == "broker.conf line 3"
    assert settings.sources["webServicePort"] == "PENSTOCK_WEB_SERVICE_PORT"
    assert settings.sources["brokerServicePort"] == "--port"
    assert settings.sources["clusterName"] == "default"


def test_a_file_is_read_as_pulsars_is(tmp_path: Path) -> None:
    settings = from_file(
        tmp_path,
        "# Pulsar's own file\n\n  ### ---\nclusterName = test=1 \nadvertisedAddress=\nallowAutoTopicCreation=FALSE\n"
        "queued.max.request.bytes=16M\nqueued.max.request.bytes=32M\n",
    )
    assert settings.cluster_name == "test=1"
    assert settings.advertised_address == "127.0.0.1"
    assert not settings.allow_auto_topic_creation
    assert settings.request_bytes_max == 32 * MIB


def test_pulsars_name_of_a_key_that_has_another_name_here_sets_it(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "resourceUsageTransportPublishIntervalInSecs=2.5\n")
    assert settings.resource_usage_publish_interval_in_secs == 2.5
    assert settings.sources["resourceUsagePublishIntervalInSecs"] == "broker.conf line 1"
    assert settings.warnings == ()
    live = Live(settings).changed({"resourceUsageTransportPublishIntervalInSecs": "10"})
    assert live.limits.resource_usage_publish_interval_in_secs == 10
    assert live.aliases["resourceUsageTransportPublishIntervalInSecs"] in live.dynamic


@pytest.mark.parametrize(
    ("key", "value", "wants"),
    [
        ("resourceUsagePublishIntervalInSecs", "0", "want a number of seconds from 0.1 to 3600"),
        ("resourceUsagePublishIntervalInSecs", "nan", "want a number of seconds from 0.1 to 3600"),
        ("resourceUsagePublishTopicName", "usage", "want a full name"),
        ("resourceUsagePublishTopicName", "persistent://a/b", "want topic"),
        ("resourceGroupShareStrategy", "fair", "want max-min or pulsar"),
    ],
)
def test_an_option_of_shared_quotas_that_cannot_be_is_refused(tmp_path: Path, key: str, value: str, wants: str) -> None:
    with pytest.raises(ConfigurationError, match=wants):
        from_file(tmp_path, f"{key}={value}\n")


def test_unknown_keys_are_named_in_one_warning_with_what_they_may_mean_and_otherwise_ignored(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "keepAliveIntervalSecs=3\nx=\n", PENSTOCK_PROT="6650")
    (warning,) = settings.warnings
    assert warning == (
        "unknown settings are ignored: keepAliveIntervalSecs (broker.conf line 1; do you mean "
        "keepAliveIntervalSeconds?), x (broker.conf line 2), PENSTOCK_PROT (PENSTOCK_PROT)"
    )


def test_keys_that_are_pulsars_and_not_ours_are_told_apart_once_and_only_where_they_say_something(
    tmp_path: Path,
) -> None:
    settings = from_file(
        tmp_path,
        "zookeeperServers=zk:2181\nloadBalancerEnabled=true\nmanagedLedgerDefaultEnsembleSize=2\n"
        "configurationStoreServers=\nnumIOThreads=8\nnumIOThreads=16\n",
    )
    (warning,) = settings.warnings
    assert warning == (
        "4 settings of broker.conf are not penstock's and are ignored: "
        "loadBalancerEnabled, managedLedgerDefaultEnsembleSize, numIOThreads, zookeeperServers"
    )


def test_containers_of_pulsar_are_configured_as_they_are_used_to() -> None:
    settings = from_variables(
        PULSAR_PREFIX_clusterName="eu", PULSAR_PREFIX_brokerServicePort="6655", PENSTOCK_BROKER_SERVICE_PORT="6660"
    )
    assert settings.cluster_name == "eu"
    assert settings.sources["clusterName"] == "PULSAR_PREFIX_clusterName"
    assert settings.port == 6660
    assert from_variables(PULSAR_PREFIX_loadBalancerEnabled="true").warnings == (
        "1 setting of the environment is not penstock's and is ignored: loadBalancerEnabled",
    )


def test_a_port_that_is_empty_in_a_file_stays_closed_and_elsewhere_it_is_not_set(tmp_path: Path) -> None:
    tls = "tlsCertificateFilePath=cert.pem\ntlsKeyFilePath=key.pem\n"
    closed = from_file(tmp_path, f"brokerServicePort=\nwebServicePort=\n{tls}")
    assert (closed.port, closed.admin_port, closed.tls_port) == (None, None, 6651)
    assert from_variables(PENSTOCK_BROKER_SERVICE_PORT="").port == 6650
    with pytest.raises(ConfigurationError, match="no client could connect"):
        from_file(tmp_path, "brokerServicePort=\n")


def test_lists_are_read_in_their_order_without_blanks_and_doubles(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "superUserRoles= admin , ops,admin,\nsubscriptionTypesEnabled=Shared,Failover\n")
    assert settings.super_user_roles == ("admin", "ops")
    assert settings.subscription_types_enabled == ("Shared", "Failover")
    with pytest.raises(ConfigurationError, match="Key-Shared is none of Exclusive, Shared, Failover, Key_Shared"):
        from_file(tmp_path, "subscriptionTypesEnabled=Shared,Key-Shared\n")


def test_pulsars_own_sizes_count_where_ours_are_not_set(tmp_path: Path) -> None:
    text = "maxMessagePublishBufferSizeInMB=32\nmanagedLedgerCacheSizeMB=8\nmanagedLedgerMaxReadsInFlightSizeInMB=16\n"
    settings = from_file(tmp_path, text)
    assert (settings.request_bytes_max, settings.tail_cache_mb, settings.outbound_mb) == (32 * MIB, 8, 16)
    both = from_file(tmp_path, text, PENSTOCK_TAIL_CACHE_MB="4", PENSTOCK_QUEUED_MAX_REQUEST_BYTES="20M")
    assert (both.request_bytes_max, both.tail_cache_mb, both.outbound_mb) == (20 * MIB, 4, 16)


def test_pulsars_sizes_never_keep_us_from_starting(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "maxMessagePublishBufferSizeInMB=100000\n")
    assert settings.request_bytes_max == load(facts=FACTS).request_bytes_max
    (warning,) = settings.warnings
    assert warning.startswith("maxMessagePublishBufferSizeInMB: ")
    assert "memoryLimitMB" in warning
    small = from_file(tmp_path, "maxMessagePublishBufferSizeInMB=1\n")
    assert small.request_bytes_max == 2 * small.frame_bytes_max


def test_switching_pulsars_bounds_off_means_what_it_can_mean_here(tmp_path: Path) -> None:
    text = "maxMessagePublishBufferSizeInMB=-1\nmanagedLedgerMaxReadsInFlightSizeInMB=0\nmanagedLedgerCacheSizeMB=0\n"
    settings = from_file(tmp_path, text)
    assert settings.request_bytes_max == -1
    assert settings.tail_cache_mb == 0
    assert settings.outbound_mb == load(facts=FACTS).outbound_mb  # What is on its way out is always bounded.


def test_a_change_while_running_wins_over_a_flag_and_taking_it_back_leaves_the_flag() -> None:
    start = load(flags={"logLevel": "warning"}, environment={"PENSTOCK_MAX_PRODUCERS_PER_TOPIC": "3"}, facts=FACTS)
    now = changed(start, {"logLevel": "debug"})
    assert (now.log_level, now.sources["logLevel"]) == ("debug", "admin API")
    assert (now.max_producers_per_topic, now.sources["maxProducersPerTopic"]) == (
        3,
        "PENSTOCK_MAX_PRODUCERS_PER_TOPIC",
    )
    assert changed(now, {}).log_level == "warning"


def test_a_change_while_running_is_held_against_all_other_settings() -> None:
    start = load(facts=FACTS)
    with pytest.raises(ConfigurationError, match=r"tailCacheMB=-1 \(admin API\) cannot be"):
        changed(start, {"tailCacheMB": "-1"})
    with pytest.raises(ConfigurationError, match="the memory budget does not fit"):
        changed(start, {"tailCacheMB": "4000"})


@pytest.mark.parametrize(
    ("variable", "text", "wanted"),
    [
        ("PENSTOCK_BROKER_SERVICE_PORT", "65536", "brokerServicePort=65536 .* whole number from 0 to 65535"),
        ("PENSTOCK_KEEP_ALIVE_INTERVAL_SECONDS", "0", "whole number, 1 or more"),
        ("PENSTOCK_MAX_MESSAGE_SIZE", "5 apples", "not a size"),
        ("PENSTOCK_MAX_MESSAGE_SIZE", "0", "at least 1 bytes"),
        ("PENSTOCK_QUEUED_MAX_REQUESTS", "many", "0 or less switches the bound off"),
        ("PENSTOCK_DURABILITY", "sometimes", "fsync or relaxed"),
        ("PENSTOCK_ALLOW_AUTO_TOPIC_CREATION", "yes", "true or false"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_key_source_and_what_was_wanted(
    variable: str, text: str, wanted: str
) -> None:
    with pytest.raises(ConfigurationError, match=wanted) as refusal:
        from_variables(**{variable: text})
    assert variable in str(refusal.value)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.conf cannot be read"):
        load(file=tmp_path / "missing.conf", facts=FACTS)


def test_a_line_without_a_value_is_refused_by_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="line 2 is 'webServicePort'; want key=value"):
        from_file(tmp_path, "# ports\nwebServicePort\n")


@pytest.mark.parametrize(
    ("host", "advertised"), [("10.1.2.3", "10.1.2.3"), ("0.0.0.0", "host-1"), ("::", "host-1"), ("::1", "[::1]")]
)
def test_clients_are_told_an_address_they_can_reach(host: str, advertised: str) -> None:
    assert from_variables(PENSTOCK_BIND_ADDRESS=host).advertised_address == advertised


def test_tls_wants_certificate_and_key() -> None:
    with pytest.raises(ConfigurationError, match="give both"):
        from_variables(PENSTOCK_TLS_KEY_FILE_PATH="key.pem")
    with pytest.raises(ConfigurationError, match="needs tlsCertificateFilePath"):
        from_variables(PENSTOCK_BROKER_SERVICE_PORT_TLS="6651")
    settings = from_variables(PENSTOCK_TLS_KEY_FILE_PATH="key.pem", PENSTOCK_TLS_CERTIFICATE_FILE_PATH="cert.pem")
    assert (settings.tls_certificate, settings.tls_key) == (Path("cert.pem"), Path("key.pem"))


def test_the_bytes_of_requests_must_hold_one_request() -> None:
    frame = 5 * MIB + 10 * KIB
    assert from_variables(PENSTOCK_QUEUED_MAX_REQUEST_BYTES=str(frame)).request_bytes_max == frame
    with pytest.raises(ConfigurationError, match=f"cannot hold one request of socket.request.max.bytes={frame}"):
        from_variables(PENSTOCK_QUEUED_MAX_REQUEST_BYTES=str(frame - 1))


def test_the_count_of_requests_must_hold_what_one_producer_may_send() -> None:
    assert from_variables(PENSTOCK_QUEUED_MAX_REQUESTS="20000").requests_max == 20_000
    with pytest.raises(ConfigurationError, match="set 20000 or more"):
        from_variables(PENSTOCK_QUEUED_MAX_REQUESTS="19999")


@pytest.mark.parametrize("off", ["0", "-1"])
def test_either_bound_on_requests_can_be_switched_off(off: str) -> None:
    without_bytes = from_variables(PENSTOCK_QUEUED_MAX_REQUEST_BYTES=off)
    assert without_bytes.request_bytes_max <= 0
    assert without_bytes.requests_max == 0
    assert from_variables(PENSTOCK_QUEUED_MAX_REQUEST_BYTES=off, PENSTOCK_QUEUED_MAX_REQUESTS="30000").requests_max > 0
    without_count = from_variables(PENSTOCK_QUEUED_MAX_REQUESTS=off)
    assert without_count.requests_max <= 0
    assert without_count.request_bytes_max > 0


@pytest.mark.parametrize(("size", "count"), [("16M", 16 * MIB // 32), ("6M", 6 * MIB // 32), ("1G", GIB // 32)])
def test_by_default_the_bytes_are_reached_before_the_count(size: str, count: int) -> None:
    settings = from_variables(PENSTOCK_QUEUED_MAX_REQUEST_BYTES=size, PENSTOCK_MEMORY_LIMIT_MB="4096")
    assert settings.requests_max == count


def test_a_small_pool_still_holds_one_producers_window() -> None:
    settings = from_variables(PENSTOCK_MAX_MESSAGE_SIZE="1K", PENSTOCK_QUEUED_MAX_REQUEST_BYTES="64K")
    assert settings.requests_max == 20_000


def test_a_request_may_not_be_bounded_below_the_largest_message() -> None:
    with pytest.raises(ConfigurationError, match="is below maxMessageSize=5242880"):
        from_variables(PENSTOCK_SOCKET_REQUEST_MAX_BYTES="1M")


def test_the_rows_set_by_hand_must_fit_the_limit() -> None:
    with pytest.raises(ConfigurationError, match=r"4,096\.0 MiB"):
        from_variables(PENSTOCK_TAIL_CACHE_MB="4000")


LISTINGS = "maxTopicListInFlightHeapMemSizeMB=100\nmaxTopicListInFlightDirectMemSizeMB=100\n"


def test_listings_have_the_seeds_100_mb_each_where_the_machine_is_large_enough_and_a_twentieth_where_it_is_not() -> (
    None
):
    large, small = from_variables(), from_variables(PENSTOCK_MEMORY_LIMIT_MB="564")
    assert (large.listings_heap_mb, large.budget.rows["listings-direct"]) == (100, 100 * MIB)
    assert (small.listings_heap_mb, small.budget.rows["listings-direct"]) == (25, 25 * MIB)


def test_listings_set_by_hand_keep_their_value_and_must_fit() -> None:
    chosen = from_variables(PENSTOCK_MAX_TOPIC_LIST_IN_FLIGHT_HEAP_MEM_SIZE_MB="300")
    assert (chosen.budget.rows["listings-heap"], chosen.budget.rows["listings-direct"]) == (300 * MIB, 100 * MIB)
    with pytest.raises(ConfigurationError, match="maxTopicListInFlightHeapMemSizeMB"):
        from_variables(PENSTOCK_MAX_TOPIC_LIST_IN_FLIGHT_HEAP_MEM_SIZE_MB="5000")


def test_the_listings_of_pulsars_own_file_count_where_they_fit_and_stop_no_small_machine(tmp_path: Path) -> None:
    fits = from_file(tmp_path, f"memoryLimitMB=640\n{LISTINGS}")
    assert (fits.listings_heap_mb, fits.listings_direct_mb) == (100, 100)
    small = from_file(tmp_path, f"memoryLimitMB=164\n{LISTINGS}")
    assert (small.listings_heap_mb, small.listings_direct_mb) == (5, 5)
    (warning,) = [text for text in small.warnings if "maxTopicListInFlight" in text]
    assert "does not fit memoryLimitMB" in warning
    with pytest.raises(ConfigurationError, match="memory budget does not fit"):
        from_file(tmp_path, f"memoryLimitMB=164\n{LISTINGS.replace('100', '101')}")


def test_the_six_keys_of_listings_change_while_the_broker_runs() -> None:
    limits = (
        Live(from_variables())
        .changed(
            {
                "maxTopicListInFlightHeapMemSizeMB": "7",
                "maxTopicListInFlightHeapMemSizePermitsAcquireTimeoutMillis": "8",
                "maxTopicListInFlightHeapMemSizePermitsAcquireQueueSize": "9",
                "maxTopicListInFlightDirectMemSizeMB": "-1",
                "maxTopicListInFlightDirectMemSizePermitsAcquireTimeoutMillis": "11",
                "maxTopicListInFlightDirectMemSizePermitsAcquireQueueSize": "0",
            }
        )
        .limits.listings
    )
    assert limits == TopicListLimits(
        heap_bytes_max=7 * MIB,
        heap_timeout_ns=8 * NS_PER_MS,
        heap_queue_max=9,
        direct_bytes_max=-MIB,
        direct_timeout_ns=11 * NS_PER_MS,
        direct_queue_max=0,
    )


def test_a_group_too_small_for_penstock_is_refused_at_the_start() -> None:
    tiny = MachineFacts(ram_bytes=8 * GIB, cgroup_limit_bytes=48 * MIB, hostname="host-1")
    with pytest.raises(ConfigurationError, match="memory budget does not fit"):
        load(facts=tiny)
