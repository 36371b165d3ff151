# SPDX-License-Identifier: Apache-2.0
"""What was tried, as tables of the documentation: each limiter at each place, and each move against each limiter."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.evade.limiters import LIMITERS
from tests.evade.moves import CHOICES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.evade.play import Played
    from tests.evade.world import Place

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "internals" / "evasion.md"


@dataclass
class Tried:
    """All plays of a limiter at a place."""

    limiter: str
    place: Place
    plays: int = 0
    nothing: int = 0  # plays in which nothing passed
    ratio: float = 0.0  # the most that passed, as a part of what was allowed
    escapes: list[Played] = field(default_factory=list)
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, played: Played) -> None:
        """Count a play."""
        self.plays += 1
        self.nothing += not played.verdict.passed
        self.ratio = max(self.ratio, played.verdict.ratio)
        for choice in LIMITERS[self.limiter].tries:
            self.moves[choice, getattr(played.moves, choice)] += 1
        if played.verdict.over:
            self.escapes.append(played)

    def line(self) -> str:
        """For the terminal."""
        over = f"{len(self.escapes)} OVER" if self.escapes else "none over"
        return f"{self.limiter:<28} {self.place!s:<10} {self.plays:>6} plays, {over}; the most: {self.ratio:.2f}"


def limiters_table(tried: Iterable[Tried]) -> str:
    """Each limiter at each place."""
    rows = []
    for one in tried:
        row = LIMITERS[one.limiter]
        rows.append(
            (
                f"`{one.limiter}`",
                row.payer,
                row.burst,
                str(one.place),
                str(one.plays),
                f"{one.ratio:.2f}",
                str(len(one.escapes)),
            )
        )
    return _table(("limiter", "who pays", "one burst", "where", "plays", "most / allowed", "over"), rows)


def moves_table(tried: Iterable[Tried]) -> str:
    """How often each move was tried, in all places, and against how many limiters."""
    counts: Counter[tuple[str, str]] = Counter()
    against: dict[tuple[str, str], set[str]] = {}
    for one in tried:
        counts.update(one.moves)
        for move in one.moves:
            against.setdefault(move, set()).add(one.limiter)
    rows = [
        (choice, _shown(value), str(counts[choice, value]), str(len(against[choice, value])))
        for choice, values in CHOICES.items()
        for value in values
        if counts[choice, value]
    ]
    return _table(("choice", "move", "plays", "limiters"), rows)


def _shown(value: str) -> str:
    """A move as text: what cannot be seen is escaped."""
    text = value.encode("unicode_escape").decode()
    return f"`{text}`" if text else "none"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows))


def write(tried: Iterable[Tried]) -> None:
    """Replace the tables of the page."""
    found = list(tried)
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("limiters", limiters_table(found)), ("moves", moves_table(found))):
        part = re.compile(rf"(<!-- played: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        (found_part,) = part.finditer(text)
        text = f"{text[: found_part.start()]}{found_part[1]}\n{table}\n\n{found_part[2]}{text[found_part.end() :]}"
    PAGE.write_text(text, encoding="utf-8")
