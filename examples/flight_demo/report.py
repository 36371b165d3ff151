# SPDX-License-Identifier: Apache-2.0
"""What the demo found out, as a person likes to read it.

Where: each act returns a `Report`; `main` prints them and decides by their checks how the demo ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Check:
    """Something that had to be true."""

    passed: bool
    claim: str
    detail: str = ""


@dataclass(slots=True)
class Report:
    """One act: what it was, its figures by name, its checks, and what went wrong in the participants' own words."""

    title: str
    figures: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def check(self, passed: bool, claim: str, detail: str = "") -> None:  # noqa: FBT001 - reads as a sentence.
        """Add a check."""
        self.checks.append(Check(passed, claim, detail))

    @property
    def passed(self) -> bool:
        """Whether all is well."""
        return all(check.passed for check in self.checks) and not self.faults

    def print_to(self, console: Console) -> None:
        """Print figures, then checks, then faults."""
        console.print()
        console.rule(f"[bold]{self.title}", align="left")
        figures = Table.grid(padding=(0, 2))
        for name, value in self.figures.items():
            figures.add_row(Text(name, style="dim"), Text(value))
        checks = Table.grid(padding=(0, 1))
        for check in self.checks:
            mark = Text("✓", "bold green") if check.passed else Text("✗", "bold red")
            checks.add_row(mark, Text.assemble(check.claim, (f": {check.detail}" if check.detail else "", "dim")))
        console.print(Padding(figures, (1, 2)))
        console.print(Padding(checks, (0, 2)), highlight=False)
        for fault in self.faults:
            console.print(Padding(Text(fault, "red"), (0, 4)))


def mib(size_bytes: float) -> str:
    """A size, in MiB."""
    return f"{size_bytes / MIB:,.1f} MiB"
