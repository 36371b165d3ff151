# SPDX-License-Identifier: Apache-2.0
"""Makes the registration of a process in ZooKeeper from its settings.

Why apart from `zookeeper`: that one needs kazoo, which is imported only if `membershipUrl` is set.
Where: `app` registers brokers in the folder BROKERS with it, and proxies register in PROXIES.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.core.errors import ConfigurationError
from penstock.core.member_record import MemberRecord, is_name
from penstock.core.setting import ZooKeeperUrl

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.service_urls import Addresses
    from penstock.net.zookeeper import ZooKeeperMembers

# Folders below the path of membershipUrl. A process in one of them shares quotas with all others there.
BROKERS: Final = "brokers"
PROXIES: Final = "proxies"


def registration(
    url: str, folder: str, *, name: str, owns: str, addresses: Addresses, timeout_ms: int, clock: Clock
) -> ZooKeeperMembers:
    """Return the members in a folder, of which this process is to be one once they are started.

    Args:
        url: of ZooKeeper, with the path above the folder.
        folder: of processes that share quotas.
        name: of this process in usage reports; others in the folder must have other names.
        owns: what only one process on this machine can have, such as its data directory or its port. If a process that
            had the same is registered, it has ended, and is replaced.
        addresses: of this process, for those who read the node.
        timeout_ms: how long a process may be silent.
        clock: the real one.

    Raises:
        ConfigurationError: kazoo is not installed, or others would ignore the name.
    """
    if not is_name(name):
        raise ConfigurationError(
            f"a process cannot be registered as {name!r}: give it a name of up to 255 letters, digits and . _ : - [ ]"
        )
    try:
        from penstock.net.zookeeper import ZooKeeperMembers  # noqa: PLC0415 -- see above
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"membershipUrl needs the package {error.name}, which is not installed: pip install 'penstock[zookeeper]'"
        ) from error
    host = socket.gethostname()
    record = MemberRecord(
        name=name,
        instance=f"{owns} on {host}",
        start_ms=clock.wall_ms(),
        host=host,
        pid=os.getpid(),
        service_url=addresses.service.plain,
        service_url_tls=addresses.service.tls or "",
        web_url=addresses.web.plain,
        web_url_tls=addresses.web.tls or "",
        version=__version__,
    )
    return ZooKeeperMembers(
        ZooKeeperUrl.parse(url),
        folder,
        record,
        timeout_ms=timeout_ms,
        clock=clock,
        loop=asyncio.get_running_loop(),
        chance=random.Random(),
    )
