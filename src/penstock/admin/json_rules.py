# SPDX-License-Identifier: Apache-2.0
r"""Rules for JSON bodies beyond JSON, so that they can be stored, compared and returned.

Why: JSON allows numbers without a value (`NaN`, and `1e999`), halves of characters (`"\ud800"`) and any nesting. The
parser accepts them, but storing or rendering fails later, and whatever was stored must always be readable. Where: `api`
makes `check_body` a dependency of every route.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request  # noqa: TC002 -- FastAPI reads annotations
from starlette.exceptions import HTTPException

# Administrators send objects in objects in lists, and schemas as texts. Encoders stop at 255, the parser at 1,000.
DEPTH_MAX: Final = 32


async def check_body(request: Request) -> None:
    """Raise HTTPException for a body that is valid JSON but breaks the rules."""
    if hasattr(request, "_json"):  # FastAPI has parsed it; otherwise there is no body to read.
        fault = unreadable(await request.json())
        if fault is not None:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"body: {fault}")


def unreadable(value: Any) -> str | None:  # noqa: ANN401 -- JSON
    """Return what is wrong with a JSON value, or None."""
    pending = [(value, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str):
            if not _is_text(value):
                return "a text holds half of a character (a lone surrogate)"
        elif isinstance(value, float):
            if not math.isfinite(value):
                return f"{value} is no number"
        elif isinstance(value, dict | list):
            if depth > DEPTH_MAX:
                return f"it is nested deeper than {DEPTH_MAX} levels"
            if isinstance(value, dict):
                pending += [(key, depth) for key in value]
                value = value.values()
            pending += [(each, depth + 1) for each in value]
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
