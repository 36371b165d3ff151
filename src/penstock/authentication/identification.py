# SPDX-License-Identifier: Apache-2.0
"""Turns the credentials of a client into its identity.

Where: the broker's `AccessControl`, and the sessions and admin port of a proxy.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.authentication.credentials import Identity
from penstock.core.errors import AuthenticationFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.authentication.authenticator import Authenticator
    from penstock.authentication.credentials import Credentials
    from penstock.core.clock import Clock


class Identification:
    """Asks the enabled providers, slow ones on a thread."""

    def __init__(self, authenticator: Authenticator, anonymous_role: Callable[[], str | None], clock: Clock) -> None:
        """Args: anonymous_role: of clients without known credentials; None: they are refused."""
        self._authenticator = authenticator
        self._anonymous_role = anonymous_role
        self._clock = clock
        # A single thread: guessing passwords must not take the processor from publishers.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="authentication")

    def reload(self) -> None:
        """Read keys and users again, for clients that connect from now on."""
        self._authenticator.reload()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def identify(self, credentials: Credentials) -> Identity:
        """The identity for these credentials; without known credentials, the anonymous role. For any event loop.

        Raises:
            AuthenticationFailed: the reason is for the log; the client is told only that it failed.
        """
        provider = self._authenticator.provider(credentials.method)
        now_ms = self._clock.wall_ms()
        if provider is not None and provider.slow:
            return await asyncio.wrap_future(self._thread.submit(provider.identify, credentials, now_ms))
        if provider is not None:
            return provider.identify(credentials, now_ms)
        role = self._anonymous_role()
        if role is None:
            raise AuthenticationFailed(f"there is no provider {credentials.method[:50]!r}, and no anonymousUserRole")
        return Identity(role)
