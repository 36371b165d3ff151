# SPDX-License-Identifier: Apache-2.0
"""Reads keys and files as named in Pulsar's configuration: paths, file: and data: URLs, base64.

Where: `authentication` uses it at the start and on SIGHUP. Imports `cryptography`, which is slow to import.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from penstock.core.errors import ConfigurationError

PublicKey: TypeAlias = "rsa.RSAPublicKey | ec.EllipticCurvePublicKey"

# RFC 7518: a key for HMAC is at least as long as the hash.
SECRET_BYTES_MIN: Final = 32
SECRET_BITS: Final = {"HS256": 256, "HS384": 384, "HS512": 512}
CURVES: Final = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_RSA_BITS_MIN: Final = 2048
_BEGIN: Final = b"-----BEGIN"


def read_source(key: str, source: str) -> bytes:
    """The content of a setting: of a file (path, `file:` URL), of a `data:` URL, or base64.

    Raises:
        ConfigurationError: it names the setting, and of the value only the path.
    """
    if source.startswith("data:"):
        return _data_url(key, source)
    path = _file_url(source) if source.startswith("file:") else Path(source)
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        # A misspelled path must not become the secret: base64 with a slash must end with "=", as no path does.
        if not source.startswith("file:") and ("/" not in source or source.endswith("=")):
            decoded = _base64(source)
            if decoded is not None:
                return decoded
        # A value that is no path may be the key itself: it is not shown.
        where = f" {path}" if source.startswith("file:") or "/" in source[:2] else ""
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is neither a file nor base64"
        raise ConfigurationError(f"{key}: the file{where} cannot be read: {why}") from None


def _file_url(url: str) -> Path:
    """The path of `file:///absolute`, and of `file:relative` or `file://relative` as used with Pulsar."""
    parts = urlsplit(url)
    host = "" if parts.netloc == "localhost" else parts.netloc
    return Path(unquote(host + parts.path))


def _data_url(key: str, url: str) -> bytes:
    head, comma, data = url.partition(",")
    if not comma:
        raise ConfigurationError(f"{key}: a data: URL wants a comma before its data, like data:;base64,QUJD")
    if not head.endswith(";base64"):
        return unquote_to_bytes(data)
    decoded = _base64(unquote(data))
    if decoded is None:
        raise ConfigurationError(f"{key}: what stands behind ;base64, is not base64")
    return decoded


def _base64(text: str) -> bytes | None:
    """Decode base64 of either alphabet, with or without padding; None if it is not base64."""
    compact = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True) or None
    except (binascii.Error, ValueError):
        return None


def secret_key(key: str, source: str) -> bytes:
    """A symmetric key. Raises ConfigurationError if it is too short, or is a public key."""
    secret = read_source(key, source)
    if _BEGIN in secret or _public_key(secret) is not None:
        # A public key is known to everyone: as a secret it would let everyone sign.
        raise ConfigurationError(f"{key} is a public key or a certificate; set tokenPublicKey for these")
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigurationError(f"{key} has {len(secret)} bytes; a secret key has {SECRET_BYTES_MIN} or more")
    return secret


def secret_algorithms(secret: bytes) -> tuple[str, ...]:
    return tuple(name for name, bits in SECRET_BITS.items() if 8 * len(secret) >= bits)


def public_key(key: str, source: str, algorithm: str) -> PublicKey:
    """A public key: X.509 as DER or PEM. Raises ConfigurationError if it does not fit the algorithm."""
    found = _public_key(read_source(key, source))
    if found is None:
        raise ConfigurationError(f"{key} is no public key for RSA or an elliptic curve, in DER or PEM")
    if isinstance(found, rsa.RSAPublicKey):
        if found.key_size < _RSA_BITS_MIN:
            raise ConfigurationError(f"{key} has {found.key_size} bits; an RSA key has {_RSA_BITS_MIN} or more")
        fits = algorithm[:2] in {"RS", "PS"}
    else:
        fits = CURVES.get(algorithm) == found.curve.name
    if not fits:
        raise ConfigurationError(f"{key} is not a key for {algorithm}; see tokenPublicAlg")
    return found


def public_algorithms(algorithm: str) -> tuple[str, ...]:
    """The algorithms that a public key for `algorithm` may verify: for an elliptic curve only that one."""
    if algorithm.startswith("ES"):
        return (algorithm,)
    return tuple(algorithm[:2] + bits for bits in ("256", "384", "512"))


def _public_key(data: bytes) -> PublicKey | None:
    loads = load_pem_public_key if _BEGIN in data else load_der_public_key
    try:
        found = loads(data)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return found if isinstance(found, rsa.RSAPublicKey | ec.EllipticCurvePublicKey) else None
