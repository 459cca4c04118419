"""The evaluator's side of every reconstruction attack: reconstructions against records, beside naive guesses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.baselines import guesses, identify
from attacks.images import bootstrap, lpips, match, psnr, ssim
from attacks.lpips_weights import pretrained
from attacks.types import Attack, Evidence, Family, Finding, Truth, View

SEED = 20  # of the evaluator's own draws: bootstrap rows, random same-class records
FIRST = ("class_mean", "mean", "black", "random_same_class")


@dataclass(frozen=True)
class Compared:
    """measures and figures for a finding; rows (m,): the record that each reconstruction belongs to."""

    measures: Mapping[str, Any]
    figures: Mapping[str, Tensor]
    rows: Tensor


def assign(images: Tensor, records: Tensor) -> Tensor:
    """The record of each image, (m,), no record twice. Raises ValueError with more images than records."""
    return match(records, images)


def fit_to(images: Tensor, shape: tuple[int, int, int]) -> bool:
    """Whether images are pictures of records' shape."""
    return images.ndim == 4 and tuple(images.shape[1:]) == tuple(shape)


def qualities(images: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """psnr, ssim and, where pretrained weights are at hand, lpips: (m,) each."""
    scores = {"psnr": psnr(images, truth), "ssim": ssim(images, truth)}
    if pretrained() is not None:
        scores["lpips"] = lpips(images, truth)
    return scores


def compare(images: Tensor, view: View, truth: Truth, rows: Tensor | None = None) -> Compared:
    """Each reconstruction gets its own record (Hungarian); the baselines get the same privilege.

    rows: (m,) the record that each reconstruction stems from, where it is known; then nothing is assigned.
    identified: share whose record is nearer than every held-out record; chance: of one who picks
    among records and held-out records blindly (an assignment may choose among all n records).
    """
    generator = torch.Generator().manual_seed(SEED)
    images = images[: len(truth.x)].to(truth.x)
    paired = rows is not None
    rows = rows if rows is not None else assign(images, truth.x)
    real = truth.x[rows]
    scores = qualities(images, real)
    means = {name: float(value.mean()) for name, value in scores.items()}
    gallery = identify(images, real, truth.heldout_x) if len(truth.heldout_x) else None
    measures: dict[str, Any] = {
        **means,
        "n": len(images),
        "baselines": _baselines(rows, view, truth, generator, paired),
    }
    measures["lpips_trunk"] = getattr(pretrained(), "name", "not available")
    diagnostics: dict[str, Any] = {"psnr_interval": list(bootstrap(scores["psnr"], generator)), "rows": rows.tolist()}
    if gallery is not None:
        measures["identified"] = gallery.top(1)
        choices = 1 if paired else len(truth.x)
        measures["identified_chance"] = choices / (choices + len(truth.heldout_x))
        diagnostics |= {"median_rank": gallery.median, "gallery": gallery.size, "top5": gallery.top(5)}
    return Compared({**measures, "diagnostics": diagnostics}, {"real": real, "reconstructed": images}, rows)


def _baselines(
    rows: Tensor, view: View, truth: Truth, generator: torch.Generator, paired: bool = False
) -> dict[str, float]:
    """metric_baseline -> value; the strongest comes first. Guesses know the labels, then choose records as well."""
    knowledge = view.knowledge
    free = guesses(truth.y[rows], knowledge.public_x, knowledge.public_y, generator)
    out: dict[str, float] = {}
    for name in FIRST:
        chosen = truth.x[rows if paired else assign(free[name].to(truth.x), truth.x)]
        out |= {f"{metric}_{name}": float(v.mean()) for metric, v in qualities(free[name], chosen).items()}
    return out


def adds_nothing(measures: Mapping[str, Any]) -> str:
    """A sentence where the pictures are no nearer to the records than a guess that needs no artifact, else ""."""
    guess = max((v for k, v in measures["baselines"].items() if k.startswith("psnr_")), default=-torch.inf)
    low = measures["diagnostics"].get("psnr_interval", [measures["psnr"]])[0]
    return "" if low > guess else "adds nothing to what a guess from public records gives"


def _images(evidence: Evidence) -> Tensor:
    if evidence.images is None:
        raise ValueError("evidence.images is None: reconstructions are needed")
    return evidence.images


ROWS = ("x", "mean")  # where captures keep images, features, representations, prototypes


def nothing_sent(attack: Attack, view: View) -> Finding | None:
    """The finding of an attack on rows where no capture holds any, else None.

    Membership attacks are never excused: that nothing was sent may itself tell members from others.
    """
    rows = [len(capture.value[name]) for capture in view.captures for name in ROWS if name in capture.value]
    if attack.family == Family.MEMBERSHIP or not rows or any(rows):
        return None
    measures = {"n": 0, "status": "nothing_to_read", "note": "nothing to attack: the client sent an empty set"}
    return Finding(view.surface, attack.name, attack.family, view.adversary, measures)
