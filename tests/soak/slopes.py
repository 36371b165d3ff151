# SPDX-License-Identifier: Apache-2.0
"""Whether a figure grows: the slope of a series of samples, and how sure that is."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# Neighbouring samples are alike: what a broker holds now depends on what it held half a minute ago. So means of blocks
# are compared, which hardly depend on each other, and of which there are too few to believe a slope too early.
BLOCKS: Final = 10
# The 97.5 % quantile of Student's t with BLOCKS - 2 degrees of freedom.
QUANTILE: Final = 2.306


class Slope(NamedTuple):
    """The slope of a line through samples, with its 95 % confidence interval, per hour."""

    per_hour: float
    low: float
    high: float


def slope(hours: Sequence[float], values: Sequence[float]) -> Slope:
    """Fit a line through the means of ten blocks by least squares.

    Raises:
        ValueError: there are fewer than two samples a block.
    """
    if len(hours) < 2 * BLOCKS:
        raise ValueError(f"{len(hours)} samples are too few for a slope: it takes {2 * BLOCKS}")
    edges = [round(place * len(hours) / BLOCKS) for place in range(BLOCKS + 1)]
    x = [statistics.fmean(hours[first:end]) for first, end in pairwise(edges)]
    y = [statistics.fmean(values[first:end]) for first, end in pairwise(edges)]
    per_hour, at_0 = statistics.linear_regression(x, y)
    left = sum((value - at_0 - per_hour * hour) ** 2 for hour, value in zip(x, y, strict=True))
    spread = sum((hour - statistics.fmean(x)) ** 2 for hour in x)
    wide = QUANTILE * (left / (BLOCKS - 2) / spread) ** 0.5
    return Slope(per_hour, per_hour - wide, per_hour + wide)
