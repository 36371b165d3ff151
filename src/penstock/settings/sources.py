# SPDX-License-Identifier: Apache-2.0
"""Where settings come from, and which source wins: default < file < environment < flag.

Why: an operator who sees a value must be able to find who set it, and a value that cannot be must say which file,
variable or flag to mend.
Where: `penstock serve` calls `load` once, before anything is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigurationError
from penstock.core.units import MIB
from penstock.settings.memory import MachineFacts, MemoryBudget
from penstock.settings.model import CLIENT_WINDOW_MAX, KEYS, METADATA_BYTES_MAX, VARIABLE_PREFIX, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DEFAULT: Final = "default"

# The smallest request of a published message is about this large, so that this many fill the pool's bytes first.
_REQUEST_BYTES_MIN: Final = 32

_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 -- compared with, not bound to


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    facts: MachineFacts | None = None,
) -> Settings:
    """Read every source, check every value, and freeze the result.

    Args:
        file: `key=value` lines; see `read_file`.
        environment: variables of the process; names beginning with PENSTOCK_ are ours.
        flags: values given on the command line, by key.
        facts: the machine; asked when not given.

    Raises:
        ConfigurationError: a value that cannot be, by its key and source; or values that cannot go together.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys((key.name for key in KEYS.values()), DEFAULT)
    unknown: list[str] = []
    fields = {key.name: name for name, key in KEYS.items()}
    for name, text, source in _everything(file, environment or {}, flags or {}):
        if name not in fields:
            unknown.append(f"{name} ({source})")
        elif text:  # An empty value is Pulsar's way to write "not set".
            values[fields[name]] = _parse(name, text, source)
            sources[name] = source
    _work_out(values, sources, facts or MachineFacts.read())
    warnings = (f"unknown settings are ignored: {', '.join(unknown)}",) if unknown else ()
    return Settings(**values, sources=sources, warnings=warnings)


def read_file(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and source of each line of a `broker.conf`: `key=value`, `#` for comments, blank lines.

    Raises:
        ConfigurationError: the file cannot be read, or a line is something else.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"configuration file {file} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, text = line.partition("=")
        if not equals:
            raise ConfigurationError(f"{file} line {number} is {line.strip()!r}; want key=value, or # for a comment")
        yield name.strip(), text.strip(), f"{file.name} line {number}"


def _everything(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield key, text and source of all that was set, weakest first, so that later ones win."""
    if file is not None:
        yield from read_file(file)
    variables = {key.variable: key.name for key in KEYS.values()}
    for variable, text in sorted(environment.items()):
        if variable.startswith(VARIABLE_PREFIX):
            yield variables.get(variable, variable), text.strip(), variable
    spelled = {key.name: key.flag for key in KEYS.values()}
    for name, text in flags.items():
        yield name, text, spelled[name] or name


def _parse(name: str, text: str, source: str) -> object:
    key = next(key for key in KEYS.values() if key.name == name)
    try:
        return key.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{name}={text} ({source}) cannot be: {error}") from error


def _work_out(values: dict[str, Any], sources: Mapping[str, str], facts: MachineFacts) -> None:
    """Fill in every default, the plain ones first, then those that hang on other keys and on the machine."""
    for name, key in KEYS.items():
        if key.default is not None:
            values.setdefault(name, key.default)
    for name in ("tls_certificate", "tls_key"):
        values.setdefault(name, None)
    if values["tls_certificate"] is None and sources["brokerServicePortTls"] != DEFAULT:
        raise ConfigurationError(
            f"brokerServicePortTls ({sources['brokerServicePortTls']}) wants tlsCertificateFilePath and tlsKeyFilePath"
        )
    host = values["bind_address"]
    advertised = facts.hostname if host in _EVERY_ADDRESS else host
    values.setdefault("advertised_address", f"[{advertised}]" if ":" in advertised else advertised)
    values.setdefault("frame_bytes_max", values["max_message_bytes"] + METADATA_BYTES_MAX)
    values.setdefault("memory_limit_mb", facts.limit_bytes // MIB)
    _split_budget(values)
    default_requests = max(CLIENT_WINDOW_MAX, values["request_bytes_max"] // _REQUEST_BYTES_MIN)
    values.setdefault("requests_max", default_requests if values["request_bytes_max"] > 0 else 0)


def _split_budget(values: dict[str, Any]) -> None:
    """Divide the memory, and let each key of a row say what its row came to."""

    def given(name: str) -> int | None:
        return values[name] * MIB if name in values else None

    budget = MemoryBudget.split(
        values["memory_limit_mb"] * MIB,
        frame_bytes_max=values["frame_bytes_max"],
        requests_bytes=values.get("request_bytes_max"),
        outbound_bytes=given("outbound_mb"),
        tail_cache_bytes=given("tail_cache_mb"),
    )
    values["budget"] = budget
    values["request_bytes_max"] = budget.requests_bytes
    values["outbound_mb"] = budget.outbound_bytes // MIB
    values["tail_cache_mb"] = budget.tail_cache_bytes // MIB
