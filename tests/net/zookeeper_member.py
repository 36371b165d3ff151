# SPDX-License-Identifier: Apache-2.0
"""A process that is registered in ZooKeeper, for tests that kill and stop it: URL NAME INSTANCE TIMEOUT_MS.

It prints its members at every change, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys

from penstock.core.member_record import MemberRecord
from penstock.core.setting import ZooKeeperUrl
from penstock.net.clock import SystemClock
from penstock.net.zookeeper import ZooKeeperMembers


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    url, name, instance, timeout_ms = sys.argv[1:]
    clock = SystemClock()
    members = ZooKeeperMembers(
        ZooKeeperUrl.parse(url),
        "brokers",
        MemberRecord(name=name, instance=instance, start_ms=clock.wall_ms()),
        timeout_ms=int(timeout_ms),
        clock=clock,
        loop=asyncio.get_running_loop(),
        chance=random.Random(),
    )
    members.listen(lambda: print(*sorted(members.names), flush=True))
    members.start()
    await asyncio.to_thread(sys.stdin.read)
    await members.close()


if __name__ == "__main__":
    asyncio.run(main())
