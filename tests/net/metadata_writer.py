# SPDX-License-Identifier: Apache-2.0
"""A process that writes the shared metadata of a directory until it is killed: `metadata_writer DIRECTORY FD…`."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.net.metadata_link import serve
from penstock.storage.directory import open_data_directory
from penstock.storage.files import OsFiles
from penstock.storage.shared_writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable


async def main(path: Path, descriptors: list[int]) -> None:
    loop, files = asyncio.get_running_loop(), OsFiles()

    def post(call: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(call)

    directory = open_data_directory(path, files, brokers=len(descriptors))
    writer = Writer.open(directory, post, files, brokers=len(descriptors))
    for descriptor in descriptors:
        await serve(writer, socket.socket(fileno=descriptor))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), [int(one) for one in sys.argv[2:]]))
