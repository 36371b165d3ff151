# SPDX-License-Identifier: Apache-2.0
"""Tokens, keys and users for tests of authentication.

Why not files in the repository: scanners would report them.
Where: tests of access, and the example of docs/guide/security.md. Needs the packages of authentication.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    PrivateKey: TypeAlias = "rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey"

# 64 bytes, long enough for every HMAC.
SECRET: Final = b"not a secret, for it stands in the repository of a test suite".ljust(64, b".")


def token(role: str, key: bytes | PrivateKey = SECRET, algorithm: str = "HS256", **claims: Any) -> str:  # noqa: ANN401
    return signed({"sub": role, **claims}, key, algorithm)


def signed(claims: Mapping[str, Any], key: bytes | PrivateKey = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode(dict(claims), key, algorithm=algorithm)


def unsigned(role: str) -> str:
    """A token without signature (`alg` is `none`)."""
    return jwt.encode({"sub": role}, "", algorithm="none")


def data_url(data: bytes) -> str:
    """Return bytes as a `data:` URL, for settings."""
    return f"data:;base64,{base64.b64encode(data).decode()}"


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def curve_key(curve: ec.EllipticCurve | None = None) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(curve or ec.SECP256R1())


def public_bytes(key: PrivateKey, encoding: Encoding = Encoding.DER) -> bytes:
    """The public key, as `pulsar tokens create-key-pair` writes it (DER), or in PEM."""
    return key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)


def private_bytes(key: PrivateKey) -> bytes:
    """The private key, as `pulsar tokens create-key-pair` writes it."""
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
