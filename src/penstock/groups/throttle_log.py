# SPDX-License-Identifier: Apache-2.0
"""The log lines of adaptive throttling, in a bounded number.

Why: people search logs for these lines, so their words are fixed (docs/reference/adaptive-throttling.md). Ten thousand
topics may be activated in one cycle; ten thousand lines would help nobody.
Where: `adaptive_throttling` passes every decision. A cycle logs the first lines of each kind, then how many more.

Pressures are written without a leading zero, so that `memoryPressure=[^0]` finds those that are above 0.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.core.units import MIB
from penstock.governance.adaptive_throttle import Kind

if TYPE_CHECKING:
    from penstock.governance.adaptive_throttle import ThrottleDecision
    from penstock.groups.ports import MeasuredMemory

# Named as the whole: lines begin with a tag, by which they are found.
log = logging.getLogger("penstock.throttling")

LINES_PER_CYCLE: Final = 20

_WORDS: Final = {
    Kind.ACTIVATED: "ACTIVATED",
    Kind.DEACTIVATED: "DEACTIVATED",
    Kind.WOULD_ACTIVATE: "OBSERVE-ONLY would-activate",
    Kind.WOULD_DEACTIVATE: "OBSERVE-ONLY would-deactivate",
}


class ThrottleLog:
    """Logs decisions. `begin` and `end` enclose a cycle."""

    def __init__(self) -> None:
        self._count: Counter[tuple[Kind, str]] = Counter()
        self._memory_matters = False

    def begin(self) -> None:
        """A cycle begins."""
        self._count.clear()

    def decided(self, decision: ThrottleDecision) -> None:
        """Log a decision, unless it is one of many or only a step."""
        word = _WORDS.get(decision.kind)
        if word is None:
            return
        counted = decision.kind, "topics" if decision.topic else "payers"
        self._count[counted] += 1
        if self._count[counted] > LINES_PER_CYCLE:
            return
        numbers = _activation(decision) if decision.rate_messages or decision.rate_bytes else _release(decision)
        subject = f"topic={decision.topic}" if decision.topic else f"payer={decision.payer}"
        log.info("[AdaptiveThrottle] %s %s %s", word, subject, numbers)

    def end(self) -> None:
        """A cycle has ended."""
        for (kind, subjects), count in self._count.items():
            if count > LINES_PER_CYCLE:
                more = count - LINES_PER_CYCLE
                log.info("[AdaptiveThrottle] %s and %d more %s in this cycle", _WORDS[kind], more, subjects)

    def memory(self, pressure: float, measured: MeasuredMemory) -> None:
        """Log where the memory is when it begins to matter, and when it does not matter any more."""
        if (pressure > 0.0) is self._memory_matters:
            return
        self._memory_matters = pressure > 0.0
        log.info(
            "[AdaptiveThrottle] memory memoryPressure=%s used=%s limit=%s resident=%s %s",
            spell(pressure),
            _mib(measured.used),
            _mib(measured.limit),
            _mib(measured.resident),
            " ".join(f"{owner}={_mib(nbytes)}" for owner, nbytes in measured.owners.items()),
        )


def spell(pressure: float) -> str:
    """Return a pressure: `0`, `.42` or `1.00`."""
    if pressure <= 0.0:
        return "0"
    return f"{pressure:.2f}".lstrip("0") if pressure >= 0.005 else ".00"


def _activation(decision: ThrottleDecision) -> str:
    pressures = decision.pressures
    return (
        f"memoryPressure={spell(pressures.memory)} backlogPressure={spell(pressures.backlog)} "
        f"queueingPressure={spell(pressures.queueing)} weight={pressures.weight:.2f} "
        f"naturalMsgRate={decision.natural_messages:.1f}/s naturalByteRate={decision.natural_bytes:.0f}/s "
        f"msgRate={_rate(decision.rate_messages)} byteRate={_rate(decision.rate_bytes)}"
    )


def _release(decision: ThrottleDecision) -> str:
    why = f" because {decision.why}" if decision.why else ""
    return f"naturalMsgRate={decision.natural_messages:.1f}/s naturalByteRate={decision.natural_bytes:.0f}/s{why}"


def _rate(per_s: float | None) -> str:
    return "unlimited" if per_s is None else f"{per_s:.1f}/s"


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:.1f}MiB"
