# SPDX-License-Identifier: Apache-2.0
"""The sources of settings and their precedence: default < file < environment < flag < changed at run time.

Why: an operator must be able to find the source of a value, and an error must name the file, variable or flag to
correct. Where: `penstock serve` calls `load` once, before anything is opened; `changed` computes the settings again
when an administrator changes one at run time.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigurationError
from penstock.core.setting import COMMAND_VARIABLES, VARIABLE_PREFIX, of_listener
from penstock.core.units import MIB
from penstock.governance.budget import ROWS
from penstock.settings import near_misses, properties, rules
from penstock.settings.memory import MachineFacts, MemoryBudget, share_of_limit
from penstock.settings.model import ALIASES, FIELDS, GROUPS, KEYS, SECURITY, Given, Origin, Settings, keys_of
from penstock.settings.near_misses import PULSAR_PREFIX
from penstock.settings.pulsar_keys import is_pulsars
from penstock.settings.rules import CLIENT_WINDOW_MAX, METADATA_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from penstock.governance.budget import RowShare

DEFAULT: Final = "default"

# Pulsar takes the file with users as a property of its Java machine, too, and most set-ups give it so.
_PULSAR_OPTIONS: Final = "PULSAR_EXTRA_OPTS"
_USERS_PROPERTY: Final = re.compile(r"(?:^|\s)-Dpulsar\.auth\.basic\.conf=(\S+)")

# Set through the admin port while the broker ran.
ADMIN: Final = "admin API"

# Fields whose default is that they are not set.
NOT_SET: Final = tuple(name for name, key in KEYS.items() if key.default is None and key.default_text == "none")

# The smallest request of a published message is about this large, so that this many fill the pool's bytes first.
_REQUEST_BYTES_MIN: Final = 32

_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 -- compared with, not bound to

# Rows of the budget that bound nearly the same as one of Pulsar's keys does, which counts when ours is not set.
_PULSARS_SIZES: Final = {
    "request_bytes_max": "max_publish_buffer_mb",
    "outbound_mb": "max_reads_in_flight_mb",
    "tail_cache_mb": "ledger_cache_mb",
}
# The one of these keys that can be changed at run time. Then it is chosen for this broker, and must fit.
_LEDGER_CACHE: Final = KEYS[_PULSARS_SIZES["tail_cache_mb"]].name
# Rows whose keys are Pulsar's own, and what its shipped file says of them, chosen by nobody for this machine.
# The rows of the memory budget that have a key, by its field.
_ROWS: Final = {field: row for row in ROWS for field, key in KEYS.items() if key.name == row.key}
_LISTINGS_AS_SHIPPED: Final = {"listings_heap_mb": 100, "listings_direct_mb": 100}


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    facts: MachineFacts | None = None,
    brokers: int = 1,
) -> Settings:
    """Read all sources, check every value, and freeze the result.

    Args:
        file: a `broker.conf`; see `read_file`.
        environment: variables of the process; those with the prefix PENSTOCK_ or PULSAR_PREFIX_ are settings.
        flags: values given on the command line, by key.
        facts: the machine; read if not given.
        brokers: how many brokers share memoryLimitMB; the budget is that of each.

    Raises:
        ConfigurationError: an invalid value, with its key and source; or a combination that is not allowed.
    """
    given = tuple(_everything(file, environment or {}, flags or {}))
    return _settle(Origin(given, facts or MachineFacts.read(), brokers), {})


def changed(settings: Settings, changes: Mapping[str, str]) -> Settings:
    """Return the settings with these run-time changes only.

    Raises:
        ConfigurationError: an invalid value, or a combination that is not allowed.
    """
    return _settle(settings.origin, changes)


def described(settings: Settings) -> list[dict[str, object]]:
    """Return every setting with its value, `***` for secrets, and its source."""
    return [
        {
            "group": str(group.__doc__).rstrip("."),
            "key": key.name,
            "value": settings.spelled(key.name),
            "source": settings.sources[key.name],
            "dynamic": key.dynamic,
        }
        for group in GROUPS
        for key in keys_of(group).values()
    ]


def read_file(file: Path) -> Iterator[Given]:
    """Yield key, value and source of each entry of a `broker.conf`, which is a Java properties file.

    Raises:
        ConfigurationError: the file cannot be read, or a line is invalid.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"configuration file {file} cannot be read: {error}") from error
    try:
        for entry in properties.parse(text):
            yield Given(entry.name, entry.value, f"{file.name} line {entry.line}", from_file=True)
    except properties.NotAnEntry as error:
        raise ConfigurationError(f"{file} {error}") from error


def _everything(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Iterator[Given]:
    """Yield all values that were set, weakest first, so that later ones win."""
    users = _USERS_PROPERTY.search(environment.get(_PULSAR_OPTIONS, ""))
    if users is not None:
        yield Given("basicAuthConf", users[1], _PULSAR_OPTIONS)
    if file is not None:
        yield from read_file(file)
    for variable, text in sorted(environment.items()):
        if variable.startswith(PULSAR_PREFIX):
            yield Given(variable.removeprefix(PULSAR_PREFIX), text.strip(), variable)
        elif text.strip() and not variable.startswith(VARIABLE_PREFIX):
            _check_variable(variable)
    variables = {key.variable: key.name for key in KEYS.values()}
    for variable, text in sorted(environment.items()):
        if variable.startswith(VARIABLE_PREFIX) and variable not in COMMAND_VARIABLES:
            yield Given(variables.get(variable, variable), text.strip(), variable)
    for name, text in flags.items():
        yield Given(name, text, KEYS[FIELDS[name]].flag or name)


def _check_variable(variable: str) -> None:
    """Raise ConfigurationError for a variable that is not read, and that is meant to be a security setting."""
    key = near_misses.variable_meant(variable)
    if key is not None:
        raise _missed(f"{variable} of the environment", KEYS[FIELDS[key]].variable)


def _missed(name: str, meant: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} is no setting; do you mean {meant}? That concerns security, so penstock does not start: correct the "
        f"name, or remove it"
    )


def _settle(origin: Origin, changes: Mapping[str, str]) -> Settings:
    values: dict[str, Any] = {}
    sources = dict.fromkeys(FIELDS, DEFAULT)
    as_shipped: set[str] = set()
    foreign: list[Given] = []
    stated: dict[str, str] = {}
    for each in (*origin.given, *(Given(name, text, ADMIN) for name, text in changes.items())):
        given = each._replace(name=ALIASES.get(each.name, each.name))
        field = FIELDS.get(given.name)
        if given.text:
            stated[given.name] = given.text
        if field is None:
            foreign.append(given)
        # An empty value is Pulsar's way to write "not set"; of a port it means in a file that it stays closed.
        elif given.text or (given.from_file and KEYS[field].empty):
            values[field] = parse(given)
            sources[given.name] = given.source
            as_shipped.discard(field)
            if given.from_file and values[field] == _LISTINGS_AS_SHIPPED.get(field):
                as_shipped.add(field)
    rules.check_ignored(stated)
    warnings = _warnings_on_others(foreign)
    _work_out(values, sources, origin, as_shipped, warnings)
    settings = Settings(**values, sources=sources, origin=origin)
    return dataclasses.replace(settings, warnings=(*warnings, *rules.warnings(settings)))


def _warnings_on_others(foreign: list[Given]) -> list[str]:
    """Return one warning for all ignored keys of Pulsar, per file or for variables, and one for unknown keys.

    Raises:
        ConfigurationError: an unknown key is a near miss of a security setting.
    """
    pulsars: dict[str, dict[str, None]] = defaultdict(dict)
    unknown = []
    for given in foreign:
        if not is_pulsars(given.name):
            unknown.append(_told_of_unknown(given))
        elif given.text:
            place = given.source.rpartition(" line ")[0] if given.from_file else "the environment"
            pulsars[place][given.name] = None
    warnings = []
    for place, names in pulsars.items():
        count = "1 setting" if len(names) == 1 else f"{len(names)} settings"
        verb = "is" if len(names) == 1 else "are"
        told = ", ".join(sorted(names))
        warnings.append(f"{count} of {place} {verb} not penstock's and {verb} ignored: {told}")
    if unknown:
        warnings.append(f"unknown settings are ignored: {', '.join(unknown)}")
    return warnings


def _told_of_unknown(given: Given) -> str:
    """Return an unknown key with its source, and with the key that it is near to. Raises ConfigurationError."""
    key = near_misses.meant(given.name.removeprefix(VARIABLE_PREFIX))
    if key is None:
        return f"{given.name} ({given.source})"
    meant = key if given.from_file else KEYS[FIELDS[key]].variable
    # Without a value it would not be set either.
    if key in SECURITY and given.text:
        raise _missed(f"{given.name} ({given.source})", meant)
    return f"{given.name} ({given.source}; do you mean {meant}?)"


def parse(given: Given) -> object:
    """Return the parsed value of one key. Raises ConfigurationError."""
    key = KEYS[FIELDS[given.name]]
    try:
        return key.parse(given.text)
    except ValueError as error:
        shown = "***" if key.secret else given.text
        raise ConfigurationError(f"{given.name}={shown} ({given.source}) cannot be: {error}") from error


def _work_out(
    values: dict[str, Any], sources: Mapping[str, str], origin: Origin, as_shipped: set[str], warnings: list[str]
) -> None:
    """Fill in every default: plain ones first, then those that depend on other keys and on the machine."""
    for name, key in KEYS.items():
        if key.default is not None:
            values.setdefault(name, key.default)
    for name in NOT_SET:
        values.setdefault(name, None)
    if values["tls_certificate"] is None and sources["brokerServicePortTls"] != DEFAULT:
        raise ConfigurationError(
            f"brokerServicePortTls ({sources['brokerServicePortTls']}) needs tlsCertificateFilePath and tlsKeyFilePath"
        )
    values.setdefault(
        "broker_delete_inactive_topics_max_inactive_duration_seconds",
        values["broker_delete_inactive_topics_frequency_seconds"],
    )
    values.setdefault("admin_tls_protocols", values["tls_protocols"])
    values.setdefault("admin_tls_ciphers", values["tls_ciphers"])
    if values["upstream_tls"] and values["upstream_admin_url_tls"] is not None:
        values["upstream_admin_url"] = values["upstream_admin_url_tls"]
    if sources["proxyTopicsAuthenticationPlugin"] == DEFAULT:
        values.setdefault("own_topics_parameters", values["own_parameters"])
    values.setdefault("own_topics_method", values["own_method"])
    values.setdefault("own_topics_parameters", "")
    host = values["bind_address"]
    advertised = origin.facts.hostname if host in _EVERY_ADDRESS else host
    values.setdefault("advertised_address", f"[{advertised}]" if ":" in advertised else advertised)
    listeners = values["advertised_listeners"]
    values.setdefault("internal_listener_name", of_listener(listeners[0])[0] if listeners else None)
    values.setdefault("frame_bytes_max", values["max_message_bytes"] + METADATA_BYTES_MAX)
    values.setdefault("memory_limit_mb", origin.facts.limit_bytes // MIB)
    _split_budget(values, sources, as_shipped, warnings, origin.brokers)
    default_requests = max(CLIENT_WINDOW_MAX, values["request_bytes_max"] // _REQUEST_BYTES_MIN)
    values.setdefault("requests_max", default_requests if values["request_bytes_max"] > 0 else 0)


def _split_budget(
    values: dict[str, Any], sources: Mapping[str, str], as_shipped: set[str], warnings: list[str], brokers: int
) -> None:
    """Divide the memory of each broker, and set each key of a row to its result."""
    asked = {name: values[name] for name in _ROWS if name in values and name not in as_shipped}
    borrowed = {row: size for row, size in _from_pulsars_keys(values).items() if row not in asked}
    buffer_mb = values["max_publish_buffer_mb"] or 0
    if 0 < buffer_mb * MIB < borrowed.get("request_bytes_max", 0):
        warnings.append(
            f"maxMessagePublishBufferSizeInMB={buffer_mb} is raised to {borrowed['request_bytes_max'] / MIB:.1f}: "
            f"two requests of socket.request.max.bytes={values['frame_bytes_max']} must fit"
        )
    borrowed |= {name: values[name] for name in as_shipped}
    try:
        budget = _budget(values, {**asked, **borrowed}, brokers)
    except ConfigurationError:
        if not borrowed or sources[_LEDGER_CACHE] == ADMIN:
            raise
        # Pulsar's keys were chosen for a Java heap; that they do not fit here is no reason not to start.
        budget = _budget(values, asked, brokers)
        names = ", ".join(sorted(KEYS[_PULSARS_SIZES.get(row, row)].name for row in borrowed))
        warnings.append(f"{names}: what the file asks for does not fit memoryLimitMB; the memory is divided without it")
    values["budget"] = budget
    for field, row in _ROWS.items():
        values[field] = budget.rows[row.name] // _unit_bytes(row)


def _from_pulsars_keys(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the rows that Pulsar's keys set, in the units of our keys."""
    sizes = {}
    buffer_mb = values["max_publish_buffer_mb"]
    if buffer_mb is not None:
        # The pool holds one request of the largest size, whatever the file says.
        sizes["request_bytes_max"] = -1 if buffer_mb <= 0 else max(buffer_mb * MIB, 2 * values["frame_bytes_max"])
    if values["max_reads_in_flight_mb"]:  # 0 switches it off there; here this is always bounded.
        sizes["outbound_mb"] = values["max_reads_in_flight_mb"]
    if values["ledger_cache_mb"] is not None:
        sizes["tail_cache_mb"] = values["ledger_cache_mb"]
    return sizes


def _budget(values: Mapping[str, Any], asked: Mapping[str, int], brokers: int) -> MemoryBudget:
    return MemoryBudget.split(
        share_of_limit(values["memory_limit_mb"] * MIB, brokers),
        frame_bytes_max=values["frame_bytes_max"],
        asked={row.name: asked[field] * _unit_bytes(row) for field, row in _ROWS.items() if field in asked},
    )


def _unit_bytes(row: RowShare) -> int:
    """Return the unit of a row's key."""
    return MIB if row.key is not None and row.key.endswith("MB") else 1
