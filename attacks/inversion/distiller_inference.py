"""Which algorithm, and which network, distilled a set of images? (Chen et al. 2026, arXiv
2603.01053, first step of the information revelation attack.)

The attacker runs each algorithm that it thinks of on public records, several times, and compares
the released set with these sets. Whoever knows the algorithm can then train shadow sets, which the
membership attacks of this library are granted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.tensors import accepts_numpy
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View
from attacks.validation import check_counts

# (records (n, c, h, w), classes (n,), number of classes, images a class, generator) -> a set
Distil = Callable[[Tensor, Tensor, int, int, torch.Generator], tuple[Tensor, Tensor]]

SMALL = 1e-6  # below any difference of two grey levels; added to what a logarithm is taken of
DECIMALS = 4  # to which pixels are rounded before they are compared with public records' levels
PUBLIC_SHARE = 0.5  # of the public records that each set is distilled of


@accepts_numpy
def describe_set(images: Tensor, labels: Tensor, records: Tensor) -> Tensor:
    """What a distilled set looks like, in numbers that do not depend on what it shows.

    Args:
        images: (m, c, h, w).
        labels: (m,) their classes.
        records: (n, c, h, w) public records, for the grey levels that records have.

    Returns:
        (8,) float64: logarithms of the roughness along rows and columns, of the roughness of a
        second difference, of the spread of pixels, of the spread within classes and of what lies
        outside [0, 1]; the mean; the share of pixels outside [0, 1]; the share at a grey level
        that records have.
    """
    x = images.double()
    across = x.diff(dim=-1)
    down = x.diff(dim=-2)
    roughness = across.square().mean() + down.square().mean()
    second = across.diff(dim=-1).square().mean() + down.diff(dim=-2).square().mean()
    centres = torch.stack([x[labels == label].mean(0) for label in labels])
    within = (x - centres).square().mean()
    excess = (x - x.clamp(0, 1)).abs()
    levels = (records.double() * 10**DECIMALS).round().unique()
    pixels = (x * 10**DECIMALS).round()
    at_level = torch.isin(pixels, levels).double().mean()
    logarithms = [roughness, second, x.var(), within, excess.mean()]
    return torch.stack(
        [
            *[(value + SMALL).log() for value in logarithms],
            x.mean(),
            (excess > SMALL).double().mean(),
            at_level,
        ]
    )


def describe_own_sets(
    distillers: Mapping[str, Distil],
    records: tuple[Tensor, Tensor, int],
    images_per_class: int,
    sets: int,
    generator: torch.Generator,
) -> Tensor:
    """What an attacker's own sets look like, each distilled of a random half of its records.

    Args:
        distillers: name -> algorithm, A of them.
        records: (n, c, h, w), their classes (n,), and how many classes there are.
        images_per_class: of each set.
        sets: S of each algorithm.
        generator: all randomness comes from it.

    Returns:
        (A, S, 8) float64, of ``describe_set``.
    """
    x, y, classes = records
    described = []
    for distil in distillers.values():
        descriptions = []
        for _ in range(sets):
            part = torch.rand(len(x), generator=generator) < PUBLIC_SHARE
            images, labels = distil(x[part], y[part], classes, images_per_class, generator)
            descriptions.append(describe_set(images, labels, x))
        described.append(torch.stack(descriptions))
    return torch.stack(described)


@accepts_numpy
def distiller_scores(sets: Tensor, target: Tensor) -> Tensor:
    """Log-likelihood of each algorithm for a set, up to a constant.

    Args:
        sets: (A, S, q) descriptions of S >= 2 sets of each of A algorithms.
        target: (q,) description of the released one.

    Returns:
        (A,) float64; the largest is the algorithm that is named.

    Raises:
        ValueError: for fewer than two sets an algorithm.
    """
    # sum_q -(t_q - mean_aq)^2 / (2 v_aq) - ln(v_aq) / 2, with v_aq the mean of the algorithm's own
    # variance and that of all algorithms
    if sets.ndim != 3 or sets.shape[1] < 2:
        raise ValueError(f"sets {tuple(sets.shape)}: (A, S, q) with S of at least 2 is needed")
    centre = sets.mean(1)
    spread = sets.var(1)
    variance = (spread + spread.mean(0)) / 2 + SMALL
    return (-(target - centre).square() / (2 * variance) - variance.log() / 2).sum(1)


@dataclass(frozen=True)
class DistillerInference(Attack):
    """Names the algorithm and the network that made a released set of images.

    Attributes:
        distillers: name -> an algorithm that the attacker can run.
        sets: how many sets of public records each of them distils.
    """

    distillers: Mapping[str, Distil]
    sets: int = 6
    name: ClassVar[str] = "distiller_inference"
    family: ClassVar[Family] = Family.RECONSTRUCTION
    surfaces: ClassVar[frozenset[Surface]] = frozenset({Surface.SYNTHETIC_IMAGES})
    adversaries: ClassVar[frozenset[Adversary]] = frozenset({Adversary.SERVER})
    # an algorithm is named once: no rate of success among records
    unmeasured: ClassVar[frozenset[Surface]] = frozenset({Surface.SYNTHETIC_IMAGES})
    images_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_counts(self, "sets", least=2)
        if len(self.distillers) < 2:
            raise ValueError(f"distillers={sorted(self.distillers)}: at least 2 are needed")

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """notes: "scores", by name of the algorithm."""
        images = view.captures[0].value["x"].cpu()
        labels = view.captures[0].value["y"].cpu()
        x = view.knowledge.public_x.cpu()
        records = (x, view.knowledge.public_y.cpu(), view.knowledge.classes)
        per_class = int(labels.bincount().max())
        reference = describe_own_sets(self.distillers, records, per_class, self.sets, generator)
        target = describe_set(images, labels, x)
        scores = distiller_scores(reference, target)
        return Evidence(notes={"scores": dict(zip(self.distillers, scores.tolist()))})

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """diagnostics: the named algorithm, the true one ("" if it is none of them), the chance
        level and all scores."""
        scores: Mapping[str, float] = evidence.notes["scores"]
        named = max(scores, key=lambda name: scores[name])
        chance = 1 / len(scores)
        maker = truth.distiller if truth.distiller in scores else ""
        diagnostics: dict[str, Any] = {
            "distiller": named,
            "true_distiller": maker,
            "chance": chance,
            "scores": dict(scores),
        }
        note = (
            f"of {len(scores)} algorithms the set is most like those of {named} "
            f"(chance level {chance:.0%})"
        )
        if maker:
            note += f"; it was made by {maker}"
        elif truth.distiller:
            note += "; it was made by none of them"
        measures = self.family.measures(
            n=len(view.captures[0].value["y"]), diagnostics=diagnostics, note=note
        )
        return Finding(view.surface, self.name, self.family, view.adversary, measures)
