# SPDX-License-Identifier: Apache-2.0
"""Marks on paper: what little of SVG and HTML the page is made of.

Why: the plots are bars, lines and squares. Written by hand they take their colours from the page's own style, so they
follow the reader's light or dark; and they are small. docs/adr/0014 has what was weighed against it.
Where: `squares` and `curves` draw with it, `document` writes the rest of the page with it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

VOID: Final = frozenset({"meta", "br"})


def tag(name: str, /, *children: str, **attributes: object) -> str:
    """An element with its children, which are markup already; attributes are escaped here.

    `class_` stands for class, `text_anchor` for text-anchor. Numbers are written with one decimal at most.
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>" if name in VOID else f"<{name}{written}>{''.join(children)}</{name}>"


def words(text: object) -> str:
    """Text as markup."""
    return escape(str(text), quote=False)


def label(x: float, y: float, text: object, class_: str = "", anchor: str = "start") -> str:
    """A text in a drawing; `y` is its base line."""
    return tag("text", words(text), x=x, y=y, class_=class_, text_anchor=anchor)


def square(x: float, y: float, width: float, height: float, class_: str, told: str = "", radius: float = 2) -> str:
    """A rectangle that tells something when pointed at."""
    return tag("rect", *_told(told), x=x, y=y, width=width, height=height, rx=radius, class_=class_)


def line(points: Iterable[tuple[float, float]], class_: str) -> str:
    """A line through points."""
    return tag("polyline", points=" ".join(f"{_value(x)},{_value(y)}" for x, y in points), class_=class_)


def rule(x1: float, y1: float, x2: float, y2: float, class_: str = "rule") -> str:
    """A straight line: an axis, a grid."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def dot(x: float, y: float, radius: float, class_: str, told: str = "") -> str:
    """A point that tells something when pointed at."""
    return tag("circle", *_told(told), cx=x, cy=y, r=radius, class_=class_)


def drawing(width: float, height: float, marks: Iterable[str], *, says: str, class_: str) -> str:
    """A whole drawing. `says` is what it tells those who cannot see it, in a sentence."""
    return tag(
        "svg",
        tag("title", words(says)),
        *marks,
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        role="img",
        aria_label=says,
        class_=class_,
    )


def ticks(highest: float, wanted: int) -> list[float]:
    """Round numbers from 0 up to about `highest`, about `wanted` of them."""
    rough = max(highest, 1e-9) / wanted
    power = 10.0 ** (len(str(int(rough))) - 1 if rough >= 1 else -1)
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= rough)
    return [step * index for index in range(int(highest / step) + 1)]


def _told(told: str) -> list[str]:
    return [tag("title", words(told))] if told else []


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))
