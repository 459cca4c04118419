"""A logarithmic axis of epsilons, on which 0 and infinity have their places."""

from __future__ import annotations

import math
from collections.abc import Iterable

from matplotlib.axes import Axes

from privdd.reporting.figures.style import GRID


class EpsilonAxis:
    """Positions of epsilons: log10 between two decades, 0 and infinity in columns beside them."""

    def __init__(self, values: Iterable[float | None]) -> None:
        finite = [v for v in values if v is not None and 0 < v < math.inf]
        low = math.floor(math.log10(min(finite, default=0.1)))
        high = math.ceil(math.log10(max(finite, default=10)))
        self.low = max(min(low, -1), -4)
        self.high = max(high, 1)

    @property
    def zero_position(self) -> float:
        return self.low - 0.5

    @property
    def infinity_position(self) -> float:
        return self.high + 0.55

    def position_of(self, epsilon: float) -> float:
        if math.isinf(epsilon):
            return self.infinity_position
        if epsilon <= 10.0**self.low / 3:
            return self.zero_position
        return max(math.log10(epsilon), self.low - 0.3)

    def set_ticks(self, axes: Axes, label: str) -> None:
        """Ticks, the column of no limit, and the label."""
        step = 1 if self.high - self.low <= 6 else 2
        decades = list(range(self.low, self.high + 1, step))
        names = [f"{10.0**d:g}" if -4 < d < 5 else f"1e{d}" for d in decades]
        axes.set_xticks([self.zero_position, *decades, self.infinity_position], ["0", *names, "∞"])
        axes.axvspan(self.high + 0.2, self.high + 0.9, color=GRID, alpha=0.55, lw=0, zorder=0)
        axes.set_xlim(self.zero_position - 0.25, self.high + 0.9)
        axes.set_xlabel(label)
