# SPDX-License-Identifier: Apache-2.0
"""Keys of end-to-end encryption: a data key encrypts payloads, and is encrypted itself with a reader's public key.

    payload   AES-GCM, a tag of 16 bytes behind
    RSA       OAEP with SHA-1 and MGF1                                                  all clients of Pulsar
    EC        ephemeral public key | data key, encrypted | HMAC: ECIES as BouncyCastle has it          Java only

Where: `encryption` wraps a producer's data key, and unwraps those of messages. It imports this module when it has an
entry to encrypt or to decrypt, because `cryptography` is an extra.
Source: Java's `MessageCryptoBc`, BouncyCastle's `IESEngine` (IEEE P1363a, DHAES mode, KDF2 and HMAC with SHA-1).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final, TypeAlias

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

if TYPE_CHECKING:
    from penstock.core.checksum import Buffer

PublicKey: TypeAlias = "rsa.RSAPublicKey | ec.EllipticCurvePublicKey"
PrivateKey: TypeAlias = "rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey"

# SHA-1 is what Pulsar's clients agree on; neither OAEP nor HMAC needs a hash without collisions.
_OAEP: Final = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)  # noqa: S303
_TAG_BYTES: Final = 20
_MAC_KEY_BYTES: Final = 16
# What follows the data in the HMAC: how long an encoding parameter is, of which there is none.
_NO_PARAMETER: Final = bytes(8)
# The key itself: the file may also hold the parameters of its curve.
_KEY_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z ]*(?:PUBLIC|PRIVATE) KEY)-----.*?-----END \1-----", re.DOTALL)


class DataKey:
    """Encrypts and decrypts payloads."""

    def __init__(self, key: bytes) -> None:
        """Raises ValueError if it is no key of AES."""
        self._cipher = AESGCM(key)

    def encrypt(self, nonce: bytes, payload: Buffer) -> bytes:
        return self._cipher.encrypt(nonce, bytes(payload), None)  # Not every buffer of Arrow is one to it.

    def decrypt(self, nonce: bytes, payload: Buffer) -> bytes:
        """Raises ValueError if the payload is not as it was encrypted with this key."""
        try:
            return self._cipher.decrypt(nonce, payload, None)
        except InvalidTag:
            raise ValueError("another key, or other bytes") from None


def public_key(pem: bytes) -> PublicKey:
    """Read a public key. Raises ValueError."""
    try:
        key = load_pem_public_key(_block(pem))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"want a public key in PEM: {error}") from None
    if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        raise ValueError("want a public key of RSA or of an elliptic curve")  # noqa: TRY004 -- a value of a file
    return key


def private_key(pem: bytes) -> PrivateKey:
    """Read a private key. Raises ValueError, which says nothing of its content."""
    try:
        key = load_pem_private_key(_block(pem), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("want a private key in PEM, without a password") from None
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise ValueError("want a private key of RSA or of an elliptic curve")  # noqa: TRY004 -- a value of a file
    return key


def wrapped(key: PublicKey, data_key: bytes) -> bytes:
    """Encrypt a data key."""
    if isinstance(key, rsa.RSAPublicKey):
        return key.encrypt(data_key, _OAEP)
    ephemeral = ec.generate_private_key(key.curve)
    point = ephemeral.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    mac_key, mask = _derived(point, ephemeral.exchange(ec.ECDH(), key), len(data_key))
    hidden = _xor(data_key, mask)
    return point + hidden + _tag(mac_key, hidden)


def unwrapped(key: PrivateKey, said: bytes) -> bytes:
    """Decrypt a data key. Raises ValueError if it was encrypted for another key."""
    if isinstance(key, rsa.RSAPrivateKey):
        return key.decrypt(said, _OAEP)
    point_bytes = 1 + 2 * -(-key.curve.key_size // 8)
    point, hidden, tag = said[:point_bytes], said[point_bytes:-_TAG_BYTES], said[-_TAG_BYTES:]
    sender = ec.EllipticCurvePublicKey.from_encoded_point(key.curve, point)
    mac_key, mask = _derived(point, key.exchange(ec.ECDH(), sender), len(hidden))
    if not hmac.compare_digest(tag, _tag(mac_key, hidden)):
        raise ValueError("it was encrypted for another key")
    return _xor(hidden, mask)


def _block(pem: bytes) -> bytes:
    found = _KEY_BLOCK.search(pem)
    return pem if found is None else found[0] + b"\n"


def _derived(point: bytes, secret: bytes, count: int) -> tuple[bytes, bytes]:
    """Return the key of the HMAC, and a mask of `count` bytes: KDF2."""
    stream = b""
    counter = 0
    while len(stream) < _MAC_KEY_BYTES + count:
        counter += 1
        stream += hashlib.sha1(point + secret + counter.to_bytes(4, "big"), usedforsecurity=False).digest()
    return stream[:_MAC_KEY_BYTES], stream[_MAC_KEY_BYTES : _MAC_KEY_BYTES + count]


def _tag(mac_key: bytes, hidden: bytes) -> bytes:
    return hmac.digest(mac_key, hidden + _NO_PARAMETER, "sha1")


def _xor(data: bytes, mask: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(data, mask, strict=True))
