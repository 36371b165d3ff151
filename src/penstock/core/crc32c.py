# SPDX-License-Identifier: Apache-2.0
"""`crc32c(data, value=0)`: the checksum of every entry, computed in hardware.

Why not `from crc32c import crc32c`: the package also loads its command line, and what finds its own version: 46 modules
that nothing here uses, a tenth of the time in which a broker starts, and 1.4 MiB. So only its extension module is
loaded; if that is not where it is expected, the whole package is.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


class Checksum(Protocol):
    """The checksum of `data`, which continues that of earlier data."""

    def __call__(self, data: Buffer, value: int = 0) -> int: ...


def checksum_of(package_path: Sequence[str] | None) -> Checksum:
    """Return the function of the extension module of a package that is there; None: of the package."""
    spec = PathFinder.find_spec("crc32c._crc32c", package_path) if package_path else None
    if spec is None or spec.loader is None:
        import crc32c as package  # noqa: PLC0415 -- only if it has to be

        return package.crc32c
    module: Any = spec.loader.create_module(spec)
    spec.loader.exec_module(module)
    function: Checksum = module.crc32c
    return function


_package: Final = PathFinder.find_spec("crc32c")
crc32c: Final = checksum_of(_package.submodule_search_locations if _package is not None else None)
