# SPDX-License-Identifier: Apache-2.0
"""Credentials: bytes that a connection shows in CONNECT, and again whenever the broker asks.

Where: options make one, `Connection` asks it for the bytes each time, so that a token file may be renewed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.spark.client.errors import UnusableFile


@dataclass(frozen=True, slots=True)
class Credentials:
    """A method of authentication and where its bytes come from. Never printed: the secret stays out of `repr`."""

    method: str = "none"
    secret: str = field(default="", repr=False)
    secret_file: str = ""

    def data(self) -> bytes:
        """Return the bytes to show now.

        Raises:
            UnusableFile: the token's file cannot be read, or is empty, which passes where it is being written anew.
        """
        if not self.secret_file:
            return self.secret.encode()
        try:
            held = Path(self.secret_file).read_bytes().strip()
        except OSError as error:
            raise UnusableFile("token", self.secret_file, error.strerror or str(error), may_pass=True) from error
        if not held:
            raise UnusableFile("token", self.secret_file, "it is empty", may_pass=True)
        return held


NO_CREDENTIALS: Final = Credentials()


def of_token(text: str) -> Credentials:
    """A token as such, or `token:…`, or the file that holds it as `file:///…`."""
    if text.startswith("file:"):
        return Credentials("token", secret_file=text.removeprefix("file://").removeprefix("file:"))
    return Credentials("token", text.removeprefix("token:"))


def of_password(user: str, password: str) -> Credentials:
    """Basic authentication."""
    return Credentials("basic", f"{user}:{password}")


def of_certificate() -> Credentials:
    """The certificate that TLS shows is all there is to show."""
    return Credentials("tls")
