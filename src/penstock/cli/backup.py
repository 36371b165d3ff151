# SPDX-License-Identifier: Apache-2.0
"""`penstock backup DIR BACKUP` and `penstock restore BACKUP DIR`.

Why on the machine of the broker: a backup copies files, and asks the admin port only what to copy
(docs/adr/0118). Where: `main` calls them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli import contexts
from penstock.cli.exits import CommandFailed, Exit

if TYPE_CHECKING:
    import argparse

    from penstock.cli.rest import Rest
    from penstock.storage.backup import KeptLog, Manifest

_BACKUP: Final = """\
Copy the data directory of a running broker, or of all of --brokers N, as it is at one moment.
Everything acknowledged before the command was called is in the copy. BACKUP is complete when it
has manifest.json, with size and SHA-256 of every file. Run it on the broker's machine, as its user.
"""
_RESTORE: Final = """\
Put a backup into a directory that is empty or not there, and compare every file with the manifest.
Then start penstock on it, with as many --brokers as before.
"""
# Of one question while the catalog is frozen: brokers answer in milliseconds, and must not wait for longer.
_ASK_S: Final = 10.0


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    if name == "backup":
        parser = commands.add_parser(name, description=_BACKUP)
        parser.set_defaults(run=_back_up)
        parser.add_argument("data_dir", type=Path, metavar="DIR", help="the data directory of the broker")
        parser.add_argument("backup", type=Path, metavar="BACKUP", help="a new directory")
        parser.add_argument(
            "--previous",
            type=Path,
            metavar="BACKUP",
            help="an earlier backup on the same file system: segments that it has are linked, not copied",
        )
        contexts.add_options(parser)
    else:
        parser = commands.add_parser(name, description=_RESTORE)
        parser.set_defaults(run=_restore)
        parser.add_argument("backup", type=Path, metavar="BACKUP", help="what `penstock backup` has made")
        parser.add_argument("data_dir", type=Path, metavar="DIR", help="a new directory")


def _back_up(arguments: argparse.Namespace) -> int:
    """Take a backup. Raises CommandFailed, BackupFailed."""
    from datetime import UTC, datetime

    from penstock import __version__
    from penstock.cli.rest import Rest
    from penstock.net.clock import SystemClock
    from penstock.storage.backup import KEEP_S, Backup
    from penstock.storage.directory import is_data_directory

    if not is_data_directory(arguments.data_dir):
        raise CommandFailed(f"{arguments.data_dir} is not a data directory of penstock: it has no FORMAT", Exit.USAGE)
    target = contexts.target(arguments)
    with Rest(target) as patient:
        _keep(patient, KEEP_S)  # The first request of an admin port may take seconds.
    with Rest(target, timeout_s=_ASK_S) as rest:
        clock = SystemClock()
        backup = Backup(
            arguments.data_dir,
            arguments.backup,
            keep=partial(_keep, rest),
            clock=clock,
            previous=arguments.previous,
        )
        taken_at = datetime.fromtimestamp(clock.wall_ms() // 1_000, UTC).isoformat()
        manifest = backup.take(penstock=__version__, taken_at=taken_at)
    linked = f", {backup.linked_bytes:,} of them linked" if backup.linked_bytes else ""
    print(f"{arguments.backup}: {_size(manifest)}{linked}, taken at {manifest.taken_at}")
    return Exit.OK


def _keep(rest: Rest, seconds: int) -> list[KeptLog]:
    from penstock.storage.backup import KeptLog

    answer = rest.ask("POST", "/admin/v2/brokers/backup", {"seconds": str(seconds)}).value()
    return [KeptLog(**one) for one in answer]


def _restore(arguments: argparse.Namespace) -> int:
    """Put a backup back. Raises BackupFailed."""
    from penstock.storage.backup import restore

    manifest = restore(arguments.backup, arguments.data_dir)
    brokers = f" --brokers {len(manifest.brokers)}" if len(manifest.brokers) > 1 else ""
    print(f"{arguments.data_dir}: {_size(manifest)}, of {manifest.taken_at}")
    print(f"Next: penstock serve --data-dir {arguments.data_dir}{brokers}")
    return Exit.OK


def _size(manifest: Manifest) -> str:
    return f"{len(manifest.files)} files, {manifest.bytes:,} bytes"
