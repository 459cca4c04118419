"""What an entry of the catalogue shows beside accuracies, by the name in its ``also``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from privdd.reproduce import ball_figures, domain_figures, image_figures
from privdd.reproduce.feature_kinds import Shown
from privdd.reproduce.plan_rows import PaperCell

Analysis = Callable[[Sequence[PaperCell], Sequence[int], Path], Shown]
ANALYSES: Mapping[str, Analysis] = {
    "domains": domain_figures.before_and_after,
    "regulariser": domain_figures.with_and_without,
    "images by round": image_figures.by_round,
    "virtual images": image_figures.local_and_global,
    "surrogate": ball_figures.surrogate,
    "radius": ball_figures.radius,
}


def analysed(names: Sequence[str], cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path) -> Shown:
    """All of them, of rows that are in ``rows``; what was not trained is left out."""
    found = [ANALYSES[name](cells, seeds, rows) for name in names]
    return [table for tables, _ in found for table in tables], [plot for _, plots in found for plot in plots]
