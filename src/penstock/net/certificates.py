# SPDX-License-Identifier: Apache-2.0
"""From and until when certificates are valid.

Why by hand: Python's ssl tells that of peers only, and the package cryptography is optional. The two times are looked
up in DER: they are in the fourth element of what is signed, without the version, which is optional.
Where: `tls` notes it of the certificates that it loads; `penstock doctor` checks files.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Final

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def validity(pem: str) -> tuple[int, int]:
    """Return from and until when all certificates of a file are valid, in ms since 1970. Raises ValueError, IndexError.

    A chain is worth nothing without its intermediate certificates.
    """
    each = [_validity(base64.b64decode(part.partition(_END)[0])) for part in pem.split(_BEGIN)[1:]]
    return max(first for first, _ in each), min(last for _, last in each)


def _validity(der: bytes) -> tuple[int, int]:
    signed = _elements(_elements(_elements(der)[0][1])[0][1])
    _serial, _algorithm, _issuer, times, *_ = [one for one in signed if one[0] != 0xA0]
    first, last = (_time(tag, text.decode("ascii")) for tag, text in _elements(times[1]))
    return first, last


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each element."""
    found, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            more = size & 0x7F
            size, at = int.from_bytes(der[at : at + more]), at + more
        found.append((tag, der[at : at + size]))
        at += size
    return found


def _time(tag: int, text: str) -> int:
    if tag == 0x17:  # UTCTime has two digits of the year, from 1950 on.
        text = ("19" if text[:2] >= "50" else "20") + text
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1_000)
