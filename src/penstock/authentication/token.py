# SPDX-License-Identifier: Apache-2.0
"""The provider `token`: a signed JSON Web Token names the role.

Why strict about algorithms: the token itself says how it is signed. The accepted algorithms depend only on the kind of
our key; `none` is never accepted, and a public key never verifies an HMAC.
Where: `authentication` makes it if `token` is enabled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import jwt

from penstock.authentication import keys
from penstock.authentication.credentials import Credentials, CredentialsExpired, Identity
from penstock.core.errors import AuthenticationFailed, ConfigurationError
from penstock.core.units import KIB

if TYPE_CHECKING:
    from penstock.authentication.credentials import ProviderOptions

# Much longer than any role, and short enough for an HTTP header.
TOKEN_BYTES_MAX: Final = 16 * KIB
# The library would use the machine's clock for these; we check them with ours.
_SIGNATURE_ONLY: Final[Any] = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


class TokenProvider:
    """Verifies tokens with one key."""

    slow = False

    def __init__(self, options: ProviderOptions) -> None:
        """Read the key. Raises ConfigurationError."""
        self._key: Any
        if options.token_secret_key:
            self._key = keys.secret_key("tokenSecretKey", options.token_secret_key)
            self._algorithms = keys.secret_algorithms(self._key)
        elif options.token_public_key:
            algorithm = options.token_public_alg.upper()
            self._key = keys.public_key("tokenPublicKey", options.token_public_key, algorithm)
            self._algorithms = keys.public_algorithms(algorithm)
        else:
            raise ConfigurationError("AuthenticationProviderToken wants tokenSecretKey or tokenPublicKey; set one")
        if options.token_audience_claim and not options.token_audience:
            raise ConfigurationError(f"tokenAudienceClaim={options.token_audience_claim} wants tokenAudience; set it")
        self._claim = options.token_auth_claim
        self._audience_claim = options.token_audience_claim
        self._audience = options.token_audience
        self._skew_s = options.token_clock_skew_s

    def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        claims = self._claims(credentials.data)
        now_s = now_ms / 1000
        expires_s = _time(claims, "exp")
        if expires_s is not None and now_s >= expires_s + self._skew_s:
            raise CredentialsExpired(f"the token expired {now_s - expires_s:.0f} s ago")
        not_before_s = _time(claims, "nbf")
        if not_before_s is not None and now_s < not_before_s - self._skew_s:
            raise AuthenticationFailed(f"the token is not valid for another {not_before_s - now_s:.0f} s")
        self._check_audience(claims)
        expires_ms = None if expires_s is None else int((expires_s + self._skew_s) * 1000)
        return Identity(self._role(claims), expires_ms)

    def _claims(self, token: bytes) -> dict[str, Any]:
        if not token:
            raise AuthenticationFailed("no token was given")
        if len(token) > TOKEN_BYTES_MAX:
            raise AuthenticationFailed(f"the token has {len(token)} bytes; {TOKEN_BYTES_MAX} is the most")
        try:
            return jwt.decode(token.strip(), self._key, algorithms=self._algorithms, options=_SIGNATURE_ONLY)
        except jwt.InvalidAlgorithmError:
            why = f"the token is signed by another algorithm than {', '.join(self._algorithms)}"
        except jwt.InvalidSignatureError:
            why = "the token is not signed with our key"
        except (jwt.PyJWTError, ValueError):
            why = "it is no token that can be read"
        raise AuthenticationFailed(why)

    def _role(self, claims: dict[str, Any]) -> str:
        value = claims.get(self._claim)
        if isinstance(value, list):
            value = value[0] if value else None
        if not isinstance(value, str) or not value:
            raise AuthenticationFailed(f"the token's claim {self._claim!r} names no role")
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            # JSON can escape one half of a surrogate pair, which no protocol and no log can write.
            raise AuthenticationFailed(f"the token's claim {self._claim!r} is no text: {value[:50]!r}")
        return value

    def _check_audience(self, claims: dict[str, Any]) -> None:
        if self._audience_claim is None:
            return
        value = claims.get(self._audience_claim)
        if self._audience not in (value if isinstance(value, list) else [value]):
            raise AuthenticationFailed(f"the token's claim {self._audience_claim!r} does not name {self._audience!r}")


def _time(claims: dict[str, Any], name: str) -> float | None:
    """A claim as a time in seconds. A value that is not a number is refused."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise AuthenticationFailed(f"the token's claim {name!r} is no time")
    return float(value)
