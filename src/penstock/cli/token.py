# SPDX-License-Identifier: Apache-2.0
"""`penstock token`: keys for tokens, and tokens, as brokers of penstock and Apache Pulsar take them.

Why HMAC by hand: a token signed with a secret key is three lines of the standard library, so it needs no extra.
Where: `main`. Keys and tokens are written to files of their user alone.
"""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.cli import output
from penstock.cli.exits import Exit, wrong

if TYPE_CHECKING:
    import argparse

Claims: TypeAlias = "dict[str, Any]"

_DESCRIPTION: Final = "Create keys for tokens, create tokens for roles, and look into tokens."
_SECRET_BYTES: Final = 64
# RFC 7518: a key for HMAC is at least as long as the hash.
_SECRET_BYTES_MIN: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "y": 31_536_000}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    secret = actions.add_parser("create-secret-key", help="write a random key that signs and checks tokens")
    secret.set_defaults(run=_create_secret)
    secret.add_argument("file", metavar="FILE", help="must not exist")
    pair = actions.add_parser(
        "create-key-pair", help="write a key that signs and one that checks (needs the extra auth)"
    )
    pair.set_defaults(run=_create_pair)
    pair.add_argument("private", metavar="PRIVATE", help="must not exist; signs, and stays with who creates tokens")
    pair.add_argument("public", metavar="PUBLIC", help="must not exist; for tokenPublicKey of brokers")
    create = actions.add_parser("create", help="create a token for a role")
    create.set_defaults(run=_create)
    create.add_argument("role", metavar="ROLE", help="of the client that shows it")
    key = create.add_mutually_exclusive_group(required=True)
    key.add_argument("--secret-key", metavar="FILE", help="as `create-secret-key` writes it")
    key.add_argument(
        "--private-key", metavar="FILE", help="as `create-key-pair` writes it, or in PEM (needs the extra auth)"
    )
    create.add_argument("--algorithm", metavar="NAME", help="default: HS256, or RS256 with a private key")
    create.add_argument("--expires", metavar="AGE", help="as 12h, 30d or 1y (default: never)")
    create.add_argument(
        "--claim", action="append", default=[], metavar="NAME=VALUE", help="one more claim, such as aud=…"
    )
    create.add_argument("--out", metavar="FILE", help="write it there, for its user alone (default: print it)")
    show = actions.add_parser("show", help="print what a token says; its signature is not checked")
    show.set_defaults(run=_show)
    show.add_argument("file", metavar="FILE")
    output.add_option(show)


def _create_secret(arguments: argparse.Namespace) -> int:
    _write(arguments.file, os.urandom(_SECRET_BYTES))
    return Exit.OK


def _create_pair(arguments: argparse.Namespace) -> int:
    try:
        from cryptography.hazmat.primitives.asymmetric import rsa
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    except ImportError as error:
        raise _needs_extra() from error
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write(arguments.private, key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
    _write(arguments.public, key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    return Exit.OK


def _create(arguments: argparse.Namespace) -> int:
    claims = _claims(arguments)
    if arguments.secret_key:
        made = signed(claims, _read(arguments.secret_key), arguments.algorithm or "HS256")
    else:
        made = _signed_by_private(claims, arguments.private_key, arguments.algorithm or "RS256")
    if arguments.out:
        _write(arguments.out, made.encode())
    else:
        print(made)
    return Exit.OK


def _claims(arguments: argparse.Namespace) -> Claims:
    from penstock.net.clock import SystemClock

    now_s = SystemClock().wall_ms() // 1000
    claims: Claims = {"sub": arguments.role, "iat": now_s}
    if arguments.expires:
        claims["exp"] = now_s + _seconds(arguments.expires)
    for one in arguments.claim:
        name, sign, value = one.partition("=")
        if not sign:
            raise wrong(f"--claim takes NAME=VALUE, and {one!r} has no =")
        claims[name] = value
    return claims


def _seconds(age: str) -> int:
    found = re.fullmatch(r"(\d+)([smhdy])", age)
    if found is None:
        raise wrong(f"--expires {age!r}: want a number with s, m, h, d or y, such as 30d")
    return int(found[1]) * _UNITS_S[found[2]]


def signed(claims: Claims, secret: bytes, algorithm: str) -> str:
    """Return a token, signed with a secret key. Raises CommandFailed: the key is too short, or no such algorithm."""
    import hmac

    needed = _SECRET_BYTES_MIN.get(algorithm)
    if needed is None:
        raise wrong(f"--algorithm {algorithm}: a secret key has {', '.join(_SECRET_BYTES_MIN)}")
    if len(secret) < needed:
        raise wrong(f"the key has {len(secret)} bytes, and {algorithm} needs {needed}: see `token create-secret-key`")
    said = ".".join(_part(json.dumps(one).encode()) for one in ({"alg": algorithm}, claims))
    digest = hmac.digest(secret, said.encode(), f"sha{algorithm[2:]}")
    return f"{said}.{_part(digest)}"


def _signed_by_private(claims: Claims, file: str, algorithm: str) -> str:
    try:
        import jwt
        from cryptography.hazmat.primitives.serialization import load_der_private_key, load_pem_private_key
    except ImportError as error:
        raise _needs_extra() from error
    data = _read(file)
    try:
        load = load_pem_private_key if data.startswith(b"-----BEGIN") else load_der_private_key
        key: Any = load(data, None)
        return jwt.encode(claims, key, algorithm=algorithm)
    except (ValueError, TypeError, NotImplementedError, jwt.PyJWTError) as error:
        raise wrong(f"--private-key {file} cannot sign with {algorithm}: {error}") from error


def _show(arguments: argparse.Namespace) -> int:
    from penstock.net.clock import SystemClock

    parts = _read(arguments.file).decode("ascii", "replace").strip().split(".")
    try:
        head, claims = (json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in parts[:2])
    except ValueError as error:
        raise wrong(f"{arguments.file} holds no token: {error}") from error
    output.show({**head, **claims}, arguments.output)
    expires_s = claims.get("exp")
    if isinstance(expires_s, int) and expires_s * 1000 <= SystemClock().wall_ms():
        output.notice("this token has expired")
        return Exit.BAD_NEWS
    return Exit.OK


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise wrong(f"{file} cannot be read: {error.strerror}") from error


def _write(file: str, data: bytes) -> None:
    """Write a new file that only its user may read. An old key or token is never overwritten."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise wrong(f"{file} cannot be created: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as into:
        into.write(data)


def _needs_extra() -> Exception:
    return wrong("this needs the extra auth: pip install 'penstock[auth]'; or use a secret key")
