# SPDX-License-Identifier: Apache-2.0
"""The kinds of findings of `penstock doctor`: one row each, with how bad it is, why it matters and what to do.

Where: the checks of `doctor_directory`, `doctor_settings` and `doctor_cluster` yield findings, `doctor` prints
them, and the reference shows the table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Severity(StrEnum):
    """How bad a finding is."""

    FAULT = "fault"  # messages are lost or out of reach, or a start is refused
    WARNING = "warning"  # it will become a fault, or is open to others
    NOTE = "note"  # to know; it does not change the exit status


class Kind(NamedTuple):
    """The part that all findings of a kind share."""

    severity: Severity
    why: str
    do: str


class Finding(NamedTuple):
    """One finding. `id` is its row in KINDS."""

    id: str
    what: str

    def row(self) -> dict[str, str]:
        """Return it as an object of JSON."""
        kind = KINDS[self.id]
        return {"id": self.id, "severity": kind.severity, "what": self.what, "why": kind.why, "do": kind.do}


_FAULT, _WARNING, _NOTE = Severity.FAULT, Severity.WARNING, Severity.NOTE
_FROM_BACKUP: Final = "stop the broker and restore a backup (`penstock restore`)"

KINDS: Final[dict[str, Kind]] = {
    # --- of a data directory
    "directory-unreadable": Kind(
        _FAULT,
        "a file cannot be read, so penstock would not start, or skip it",
        "run this as the user of the broker; if it is, look for errors of the disk with `dmesg`",
    ),
    "directory-in-use": Kind(
        _NOTE,
        "files that change cannot be judged, so log and catalog were not checked",
        "ask the broker: `penstock doctor URL`; or stop it and check again",
    ),
    "format-newer": Kind(
        _FAULT,
        "this penstock does not start on files of a newer one, which it would damage",
        "start the penstock that wrote them, or a newer one",
    ),
    "format-damaged": Kind(
        _FAULT,
        "penstock does not start on a directory that it does not recognize",
        "write the line `penstock 2` into FORMAT if this directory is penstock's for certain",
    ),
    "format-older": Kind(
        _NOTE,
        "the next start converts the catalog, and older versions no longer start on it; it was not checked",
        "take a backup before the first start of this version",
    ),
    "catalog-missing": Kind(
        _FAULT,
        "topics, subscriptions or cursors are in this file; the log has only their messages",
        f"put the file back with its -wal, or {_FROM_BACKUP}",
    ),
    "catalog-damaged": Kind(
        _FAULT,
        "penstock does not start on a catalog of which it could serve a part only",
        f"put a copy of this file and its -wal in their place, or {_FROM_BACKUP}",
    ),
    "catalog-newer": Kind(
        _FAULT,
        "this penstock does not start on files of a newer one, which it would damage",
        "start the penstock that wrote them, or a newer one",
    ),
    "broker-missing": Kind(
        _FAULT,
        "the messages and cursors of topics on this broker are in its directory, and nobody serves them",
        "put the directory back, and start with as many --brokers as before",
    ),
    "segment-missing": Kind(
        _FAULT,
        "messages in this file cannot be delivered; subscriptions keep them in their backlogs",
        f"put the file back, or {_FROM_BACKUP}; autoSkipNonRecoverableData=true gives its messages up for good",
    ),
    "segment-short": Kind(
        _FAULT,
        "messages behind the end of this file cannot be delivered",
        f"put the whole file back, or {_FROM_BACKUP}; autoSkipNonRecoverableData=true gives them up for good",
    ),
    "log-damaged": Kind(
        _FAULT,
        "these bytes are not as they were written; their messages are skipped, all others are served",
        f"check the disk and its cables (`smartctl -a`); {_FROM_BACKUP} if you need the messages",
    ),
    "segment-twice": Kind(
        _FAULT,
        "two files of the log are copies of each other, so directories were mixed up; messages would be served twice",
        "put each broker-N back from its own copy",
    ),
    "ledger-unknown": Kind(
        _FAULT,
        "the log has messages of topics that the catalog never had: the two are of different directories or times",
        "put meta.sqlite and all broker-N back from one backup",
    ),
    "ledger-elsewhere": Kind(
        _FAULT,
        "the catalog says that another broker serves this topic, so nobody delivers these messages",
        "put each broker-N back from its own copy, or all of one backup",
    ),
    "cursor-behind-log": Kind(
        _FAULT,
        "the log is older than the catalog; what is published next would be skipped as acknowledged",
        "put catalog and log back from one backup",
    ),
    "index-missing": Kind(
        _WARNING,
        "the next start reads the whole log to build it again, and cannot tell whether segments are missing",
        "nothing, if this directory was just restored; else find out who deleted it",
    ),
    "index-damaged": Kind(
        _WARNING,
        "the next start reads the whole log to build it again, and cannot tell whether segments are missing",
        "check the disk (`smartctl -a`); the start repairs the index",
    ),
    "temporary-left": Kind(
        _NOTE, "a write was interrupted before its file was in place", "nothing; or delete it while no broker runs"
    ),
    "file-foreign": Kind(
        _WARNING,
        "penstock neither wrote nor reads this file; a renamed or misplaced one may be what is missing elsewhere",
        "move it out of the data directory",
    ),
    "directory-open": Kind(
        _WARNING,
        "every user of this machine can read the messages, past all permissions",
        "take the rights of others away: `chmod -R o= DIR`",
    ),
    "stored-setting": Kind(
        _WARNING,
        "an administrator changed this setting at run time, and the broker ignores it",
        "delete it with `penstock brokers delete-dynamic-config`, or set it anew",
    ),
    "clock-behind": Kind(
        _WARNING,
        "messages seem to be from the future: retention, TTL and delays are late by as much",
        "set the clock, and let chrony or systemd-timesyncd keep it",
    ),
    # --- of the machine
    "disk-full": Kind(
        _FAULT,
        "the log cannot grow: publishers are refused until there is room",
        "free or add space; shorten retention; delete topics or subscriptions that nobody reads",
    ),
    "disk-read-only": Kind(
        _FAULT,
        "nothing can be stored, so the broker does not start",
        "find out why with `dmesg`; mount it writable (`mount -o remount,rw`)",
    ),
    "files-limit": Kind(
        _FAULT,
        "a broker needs files for its log and one for each connection, and does not start with so few",
        "raise the limit: `ulimit -n`, or LimitNOFILE= of a systemd unit",
    ),
    "memory-above-machine": Kind(
        _FAULT,
        "the kernel kills the broker before its own limit is reached",
        "lower memoryLimitMB, or give the machine or container more memory",
    ),
    # --- of settings
    "settings-unreadable": Kind(
        _FAULT,
        "penstock does not start without the file that --config names",
        "correct the name, the rights or the line",
    ),
    "setting-invalid": Kind(
        _FAULT, "penstock does not start with a value that it cannot use", "correct the value as the message says"
    ),
    "settings-fight": Kind(
        _FAULT, "penstock does not start with settings that exclude each other", "change one of them"
    ),
    "setting-unknown": Kind(
        _WARNING, "nobody reads it: what it was meant to do is not done", "correct the name, or remove the line"
    ),
    "settings-ignored": Kind(
        _NOTE, "settings of Apache Pulsar that penstock does not have are ignored", "nothing; or remove them"
    ),
    "settings-doubtful": Kind(
        _WARNING, "it is allowed, and seldom what somebody wants", "change it as the message says, or accept it"
    ),
    "certificate-unusable": Kind(
        _FAULT,
        "TLS ports need a certificate and the key that belongs to it; penstock does not start",
        "give the certificate and the key of one pair, in PEM",
    ),
    "certificate-expired": Kind(
        _FAULT,
        "clients that check certificates refuse to connect",
        "renew the certificate, then `kill -HUP` the broker",
    ),
    "certificate-expires": Kind(
        _WARNING,
        "once it has expired, clients that check certificates refuse to connect",
        "renew the certificate, then `kill -HUP` the broker",
    ),
    "secret-open": Kind(
        _WARNING,
        "every user of this machine can read the secret, and act as anybody",
        "`chmod 600` the file, and replace the secret if others were there",
    ),
    "secret-unreadable": Kind(
        _FAULT, "penstock does not start without a file that its settings name", "correct the path or its rights"
    ),
    "retention-above-disk": Kind(
        _WARNING,
        "the disk is full before the first message is deleted",
        "lower the limit, or set a shorter retention time",
    ),
    "address-unresolved": Kind(
        _WARNING,
        "clients are told to connect to this name; those that cannot resolve it either fail",
        "correct the name, or add it to the DNS that clients ask",
    ),
    "port-taken": Kind(
        _FAULT,
        "the broker cannot listen there, so it does not start",
        "stop who has it (`ss -ltnp`), or take another port",
    ),
    # --- of a running cluster
    "cluster-failing": Kind(
        _FAULT, "the broker says of itself that it cannot do its work", "read its log from the time of the reason on"
    ),
    "cluster-degraded": Kind(
        _FAULT, "something stored is damaged, missing or cannot be used", "stop it and run `penstock doctor DIR`"
    ),
    "clock-differs": Kind(
        _WARNING,
        "tokens and certificates seem expired or not yet valid; delays and TTL are off by as much",
        "set the clocks of both machines, and let chrony or systemd-timesyncd keep them",
    ),
    "version-differs": Kind(
        _NOTE, "this command may know other findings than its broker", "use the same version of both, if it is penstock"
    ),
    "disk-nearly-full": Kind(
        _WARNING,
        "when it is full, publishers are refused",
        "free or add space; shorten retention; delete topics or subscriptions that nobody reads",
    ),
}
