"""What soft labels of synthetic records say of real ones: a student of them learns what their
teacher memorised (Behrens and Zdeborova 2025, arXiv 2506.14457).

With as many soft labels as the student has features, a linear student is its teacher, up to a
factor; hard labels of the same rows say far less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attacks.membership.lira import Lira
from attacks.membership.signals import solve_ridge
from attacks.tensors import accepts_numpy
from attacks.types import Surface, View

SOFT_SIGNAL = "soft_confidence"  # a record's logit-scaled confidence under the student
SOFT_RIDGE = 1e-3  # of the mean diagonal number of the student's normal equations
LEAST_PROBABILITY = 1e-30  # of a soft label, whose logarithm is taken


@accepts_numpy
def soft_label_student(
    released: Tensor, soft: Tensor, query: Tensor, ridge: float = SOFT_RIDGE
) -> Tensor:
    """Logits of records under a linear student of the soft labels of a released set.

    Args:
        released: (m, d) rows of the set, in a map that the attacker knows.
        soft: (m, C) their labels, probabilities of C classes.
        query: (n, d) rows of the records, in the same map.
        ridge: share of the mean diagonal number of the normal equations that is added to each.

    Returns:
        (n, C) float64: the teacher's logits over its temperature, without their mean over classes,
        if the teacher is linear in the map and m > d.

    Raises:
        ValueError: for shapes that do not fit, or no row.
    """
    # z_jc = ln s_jc - mean_c ln s_jc,   W = argmin |Z - mean Z - (X - mean X) W|^2 + a |W|^2
    if not len(released) or len(released) != len(soft) or released.shape[1:] != query.shape[1:]:
        raise ValueError(
            f"rows {tuple(released.shape)}, soft labels {tuple(soft.shape)}, queries "
            f"{tuple(query.shape)}: (m, d), (m, C) and (n, d) with m of at least 1 are needed"
        )
    x = released.double()
    logarithms = soft.double().clamp_min(LEAST_PROBABILITY).log()
    taught = logarithms - logarithms.mean(1, keepdim=True)
    centre = x.mean(0)
    offset = taught.mean(0)
    x = x - centre
    asked = query.double() - centre
    if len(x) > x.shape[1]:
        weights = solve_ridge(x.T @ x, x.T @ (taught - offset), ridge)
        return asked @ weights + offset
    return asked @ x.T @ solve_ridge(x @ x.T, taught - offset, ridge) + offset


@dataclass(frozen=True)
class SoftLabels(Lira):
    """LiRA on the confidence of a student that learned from a released set's soft labels."""

    signal: str = SOFT_SIGNAL
    name: ClassVar[str] = "soft_labels"
    surfaces: ClassVar[frozenset[Surface]] = frozenset(
        {
            Surface.SYNTHETIC_IMAGES,
            Surface.SYNTHETIC_REPRESENTATIONS,
            Surface.GLOBAL_IMAGES,
        }
    )

    def nothing_to_read(self, view: View) -> str:
        if self._missing_signal(view) and self.signal == SOFT_SIGNAL:
            return "no soft labels were released with these rows"
        return super().nothing_to_read(view)
