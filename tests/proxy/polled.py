# SPDX-License-Identifier: Apache-2.0
"""A cluster's admin port for tests of what a proxy asks by itself: answers by address, and failures on request."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.proxy.cluster_admin import MISSING, AdminPolls, AdminRequests, NoAnswer
from penstock.proxy.targets import AllowedTargets, Targets
from penstock.proxy.upstreams import Identity


class FakePolls(AdminPolls):
    """Answers after a millisecond, or fails after `fails_s`."""

    def __init__(self) -> None:
        super().__init__(AdminRequests((), None, Targets(AllowedTargets(), (), tls=False)), Identity("none", b""))
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.at_a_time = 0
        self.fails_s: float | None = None
        self._asking = 0

    async def get(self, target: str) -> Any:  # noqa: ANN401 - any JSON
        path = target.partition("?")[0]
        self.asked.append(path)
        self._asking += 1
        self.at_a_time = max(self.at_a_time, self._asking)
        try:
            await asyncio.sleep(0.001 if self.fails_s is None else self.fails_s)
        finally:
            self._asking -= 1
        if self.fails_s is not None:
            self.failures += 1
            raise NoAnswer(f"{target}: no answer")
        return self.answers.get(path, MISSING)
