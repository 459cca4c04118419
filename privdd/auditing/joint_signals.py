"""Each audited record's part in what was released, all records solved for together: the signals named "joint...".

See ``attacks.membership.ridge``. In a model's parameters every layer is solved by itself: their noise differs, and what
they say together is for an attack that takes several signals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.membership.readout import class_means
from attacks.membership.ridge import class_coefficients
from privdd.auditing.signals import Lens


def parts_by_layer(lens: Lens, vector: Tensor) -> dict[str, Tensor]:
    """ "joint_LAYER" -> (n,): the records' parts in a sum of their gradients, shaped like the parameters (p,)."""
    return {f"joint_{layer}": matrix @ vector[place] for layer, (place, matrix) in lens.solvers.items()}


def parts_in_means(lens: Lens, inside: Tensor, labels: Tensor, own: Tensor) -> Tensor:
    """(n,): the records' parts in the class means of released rows (m, d) with labels (m,); own: the records' (n, d)."""
    means = class_means(inside, labels, lens.problem.classes)
    absent = torch.bincount(labels.long(), minlength=lens.problem.classes) == 0
    means = means.masked_fill(absent.unsqueeze(-1), torch.nan)
    return class_coefficients(means, own, lens.candidates.y)
