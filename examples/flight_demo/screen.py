# SPDX-License-Identifier: Apache-2.0
"""The screen while the demo runs: a live table on a terminal, a plain line every few seconds elsewhere.

Where: an act hands it rows of (who, how far, of how many, remark) several times a second.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Self

from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console

PLAIN_LINE_EVERY_S = 5.0
BAR_COLUMNS = 30


class Row(NamedTuple):
    """One participant's line."""

    who: str
    done: int
    total: int
    remark: str


class Screen:
    """Draws in place while its `with` block runs. Draws from the caller's thread only: processes are forked here."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._plain_due_s = 0.0

    def say(self, line: str) -> None:
        """Print a line that stays, above what is drawn."""
        self.console.print(line, highlight=False)

    def show(self, title: str, rows: Sequence[Row], footer: str) -> None:
        """Draw the present state."""
        if self._live is not None:
            self._live.update(_panel(title, rows, footer), refresh=True)
        elif time.monotonic() >= self._plain_due_s:
            self._plain_due_s = time.monotonic() + PLAIN_LINE_EVERY_S
            progress = " · ".join(f"{row.who} {row.done:,}" for row in rows)
            self.console.print(f"{title} · {progress} · {footer}", soft_wrap=True, highlight=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def _panel(title: str, rows: Sequence[Row], footer: str) -> Panel:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        bar = ProgressBar(total=max(row.total, 1), completed=row.done, width=BAR_COLUMNS)
        table.add_row(row.who, bar, f"{row.done:>11,}", row.remark)
    table.add_row()
    inner = Table.grid()
    inner.add_row(table)
    inner.add_row(footer)
    return Panel(inner, title=title, title_align="left", padding=(1, 2))
