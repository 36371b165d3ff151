# SPDX-License-Identifier: Apache-2.0
"""The checks of `penstock doctor` of settings, of the files that they name, and of the machine.

Where: `doctor` calls `settings` for --config, and `machine` for a data directory too. Both ask a `Machine`, which tests
replace.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.cli.findings import Finding
from penstock.core.errors import ConfigurationError
from penstock.core.units import MIB
from penstock.net.certificates import validity
from penstock.net.clock import SystemClock
from penstock.net.listener import RESERVED_DESCRIPTORS
from penstock.settings.memory import MachineFacts
from penstock.settings.model import ALIASES, FIELDS, KEYS
from penstock.settings.sources import DEFAULT, load, parse, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.settings import Settings

# As `app` has it: fewer leave no room for clients.
FILES_MIN: Final = RESERVED_DESCRIPTORS * 3 // 2
# A new segment, and what its log keeps free beside it.
_DISK_MIN_BYTES: Final = 80 * MIB
_DISK_LOW_RATIO: Final = 0.05
_EXPIRES_SOON_MS: Final = 14 * 86_400_000
_UNKNOWN: Final = "unknown settings are ignored"
# Files with a secret, by the field of the setting that names them.
_SECRET_FILES: Final = (
    "tls_key",
    "own_key",
    "token_secret_key",
    "basic_auth_conf",
    "own_parameters",
    "own_topics_parameters",
)


class Disk(NamedTuple):
    """A file system."""

    size: int  # bytes
    free: int  # bytes, for this user
    read_only: bool


class Machine:
    """Questions to the machine; nothing is changed."""

    def files_max(self) -> int:
        """Return how many files a process may open at most."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def facts(self) -> MachineFacts:
        return MachineFacts.read()

    def wall_ms(self) -> int:
        return SystemClock().wall_ms()

    def disk(self, path: Path) -> Disk:
        """Return the file system of a path. Raises OSError."""
        usage = shutil.disk_usage(path)
        return Disk(usage.total, usage.free, bool(os.statvfs(path).f_flag & os.ST_RDONLY))

    def resolves(self, host: str) -> bool:
        """Return whether a host has an address."""
        try:
            return bool(socket.getaddrinfo(host.strip("[]"), None))
        except OSError:
            return False

    def is_free(self, host: str, port: int) -> bool:
        """Return whether a process could listen there now."""
        try:
            with socket.create_server((host.strip("[]"), port), family=_family(host)):
                return True
        except OSError:
            return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def machine(of: Machine, data_dir: Path) -> Iterator[Finding]:
    """Yield what keeps this machine from serving a data directory. Raises OSError."""
    if (files := of.files_max()) != resource.RLIM_INFINITY and files < FILES_MIN:
        yield Finding("files-limit", f"a process may open {files} files here, and a broker needs {FILES_MIN}")
    disk = of.disk(data_dir)
    what = f"the disk of {data_dir} has {disk.free / MIB:,.0f} of {disk.size / MIB:,.0f} MiB free"
    if disk.read_only:
        yield Finding("disk-read-only", f"the file system of {data_dir} is mounted read-only")
    elif disk.free < _DISK_MIN_BYTES:
        yield Finding("disk-full", what)
    elif disk.free < disk.size * _DISK_LOW_RATIO:
        yield Finding("disk-nearly-full", what)


def read(
    file: Path | None, environment: Mapping[str, str], of: Machine, brokers: int
) -> tuple[Settings | None, list[Finding]]:
    """Read settings as `penstock serve` would; returns None if it would not start with them, and all reasons."""
    try:
        given = [*read_file(file)] if file is not None else []
    except ConfigurationError as error:
        return None, [Finding("settings-unreadable", str(error))]
    invalid = []
    for one in given:
        named = one._replace(name=ALIASES.get(one.name, one.name))
        if one.text and named.name in FIELDS:
            try:
                parse(named)
            except ConfigurationError as error:
                invalid.append(Finding("setting-invalid", str(error)))
    if invalid:
        return None, invalid
    try:
        return load(file=file, environment=environment, facts=of.facts(), brokers=brokers), []
    except ConfigurationError as error:
        return None, [Finding("setting-unknown" if "do you mean" in str(error) else "settings-fight", str(error))]


def settings(effective: Settings, of: Machine, data_dir: Path | None, *, listens: bool) -> Iterator[Finding]:
    """Yield what is doubtful about settings. Args: listens: whether the ports must be free now. Raises OSError."""
    for warning in effective.warnings:
        if warning.startswith(_UNKNOWN):
            yield Finding("setting-unknown", warning)
        elif "not penstock's" in warning:
            yield Finding("settings-ignored", warning)
        else:
            yield Finding("settings-doubtful", warning)
    yield from _memory(effective, of.facts())
    yield from _certificate(effective.tls_certificate, effective.tls_key, of.wall_ms())
    yield from _secrets(effective)
    yield from _addresses(effective, of)
    if listens:
        yield from _ports(effective, of)
    if data_dir is not None:
        yield from _limits_of_disk(effective, of.disk(data_dir))


def _memory(effective: Settings, facts: MachineFacts) -> Iterator[Finding]:
    limit = effective.memory_limit_mb * MIB
    has = min(facts.ram_bytes, facts.cgroup_limit_bytes or facts.ram_bytes)
    if limit > has:
        of = "the machine" if has == facts.ram_bytes else "the control group"
        what = f"memoryLimitMB={effective.memory_limit_mb}, and {of} has {has // MIB} MiB"
        yield Finding("memory-above-machine", what)


def _certificate(certificate: Path | None, key: Path | None, wall_ms: int) -> Iterator[Finding]:
    if certificate is None or key is None:
        return
    try:
        # An encrypted key would ask at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
        first, last = validity(certificate.read_text(encoding="ascii"))
    except (OSError, ValueError, IndexError) as error:
        reason = getattr(error, "reason", None) or error
        yield Finding("certificate-unusable", f"{certificate} with the key {key}: {reason}")
        return
    until = datetime.fromtimestamp(last / 1_000, UTC).isoformat()
    if wall_ms < first:
        yield Finding("certificate-unusable", f"{certificate} is not valid yet; check the clock")
    elif wall_ms > last:
        yield Finding("certificate-expired", f"{certificate} was valid until {until}")
    elif wall_ms > last - _EXPIRES_SOON_MS:
        yield Finding("certificate-expires", f"{certificate} is valid until {until}")


def _secrets(effective: Settings) -> Iterator[Finding]:
    for field in _SECRET_FILES:
        path = secret_file(getattr(effective, field))
        if path is None:
            continue
        key = KEYS[field].name
        try:
            if path.stat().st_mode & 0o004:
                yield Finding("secret-open", f"{path} of {key} can be read by every user")
            path.open("rb").close()
        except OSError as error:
            yield Finding("secret-unreadable", f"{path} of {key}: {error.strerror or error}")


def secret_file(value: Path | str | None) -> Path | None:
    """Return the file that a setting has its secret in; None: the value itself is the secret, or not set."""
    if isinstance(value, Path) or value is None:
        return value
    return Path("/" + value.removeprefix("file:").lstrip("/")) if value.startswith("file:") else None


def _addresses(effective: Settings, of: Machine) -> Iterator[Finding]:
    hosts = {}
    if effective.sources["advertisedAddress"] != DEFAULT:
        hosts[effective.advertised_address] = f"advertisedAddress={effective.advertised_address}"
    for one in effective.advertised_listeners:
        hosts[one.rpartition("://")[2].rpartition(":")[0]] = f"{one} of advertisedListeners"
    for host, what in hosts.items():
        if not of.resolves(host):
            yield Finding("address-unresolved", f"{what} has no address here")


def _ports(effective: Settings, of: Machine) -> Iterator[Finding]:
    ports = {"port": effective.port, "admin_port": effective.admin_port, "admin_tls_port": effective.admin_tls_port}
    if effective.tls_certificate is not None:
        ports["tls_port"] = effective.tls_port
    for field, port in ports.items():
        if port and not of.is_free(effective.bind_address, port):
            what = f"{KEYS[field].name}={port}: nobody can listen on {effective.bind_address}:{port} now"
            yield Finding("port-taken", what)


def _limits_of_disk(effective: Settings, disk: Disk) -> Iterator[Finding]:
    for field, size in (
        ("default_retention_size_in_mb", effective.default_retention_size_in_mb * MIB),
        ("backlog_quota_default_limit_bytes", effective.backlog_quota_default_limit_bytes),
    ):
        if size > disk.size:
            what = (
                f"{KEYS[field].name} keeps {size / MIB:,.0f} MiB of each topic, and the disk has {disk.size / MIB:,.0f}"
            )
            yield Finding("retention-above-disk", what)
