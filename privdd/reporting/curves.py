"""The arrays behind the figures: a ROC with its band, looked up as steps, and PSNR."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from attacks import images
from attacks.roc import Clusters, roc, tpr_at_fpr


@dataclass(frozen=True)
class Curve:
    """A step ROC: at a false-positive rate of at most fpr[i] the attack reaches tpr[i], within lo and hi.

    fpr, tpr, lo, hi: (k,) in [0, 1], fpr increasing; members, outsiders: how many of each.
    """

    fpr: np.ndarray
    tpr: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    members: int
    outsiders: int
    auc: float


def curve(scores: np.ndarray, members: np.ndarray, *, clusters: Clusters = (), points: int = 100) -> Curve:
    """The ROC at no more than ``points`` + 1 log-spaced rates, each a rate that a threshold attains.

    scores, members: (m,), larger = member. The band is attacks.roc.tpr_at_fpr's 95 % interval,
    pointwise. Between points the curve is drawn as a step: joining them by a line would overstate the
    true-positive rate. Raises ValueError without both classes.
    """
    members = np.asarray(members).astype(bool)
    outsiders = int((~members).sum())
    area = roc(scores, members).auc
    wanted = np.unique(np.round(np.geomspace(1, outsiders, points)).astype(int)) / outsiders
    # tpr_at_fpr takes no rate of zero: half of one non-member stands for "no false positives".
    rates = np.append(0.5 / outsiders, wanted)
    found = [tpr_at_fpr(scores, members, float(rate), clusters=clusters) for rate in rates]
    tpr, bounds = np.array([f[0] for f in found]), np.array([f[1] for f in found])
    fpr = np.append(0.0, wanted)
    return Curve(fpr, tpr, bounds[:, 0], bounds[:, 1], int(members.sum()), outsiders, area)


def psnr(real: np.ndarray, other: np.ndarray) -> np.ndarray:
    """``attacks.images.psnr`` of arrays."""
    return images.psnr(torch.as_tensor(real), torch.as_tensor(other)).numpy()
