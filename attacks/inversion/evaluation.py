"""The evaluator's side of every reconstruction attack: reconstructions against records, beside
naive reconstructions that need no attack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import chi2
from torch import Tensor

from attacks.images import (
    MAX_PSNR,
    bootstrap_interval,
    load_pretrained_trunk,
    lpips,
    match,
    negative_mse,
    psnr,
    ssim,
)
from attacks.tensors import accepts_numpy
from attacks.types import Attack, Evidence, Family, Finding, Truth, View


@accepts_numpy
def class_mean_images(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """(classes, c, h, w) mean image of each class; a class without records gets the mean of all."""
    rows = [x[y == c].mean(0) if bool((y == c).any()) else x.mean(0) for c in range(classes)]
    return torch.stack(rows)


@accepts_numpy
def naive_reconstructions(
    truth_y: Tensor, public_x: Tensor, public_y: Tensor, generator: torch.Generator
) -> Mapping[str, Tensor]:
    """The four reconstructions that need no attack, (n, c, h, w) each, from public records and
    labels."""
    classes = int(torch.cat([truth_y, public_y]).max()) + 1
    means = class_mean_images(public_x, public_y, classes)
    n = len(truth_y)
    return {
        "black": torch.zeros((n, *public_x.shape[1:])).to(public_x),
        "mean": public_x.mean(0).expand(n, *public_x.shape[1:]),
        "class_mean": means[truth_y],
        "random_same_class": torch.stack(
            [_random_image_of_class(int(y), public_x, public_y, generator) for y in truth_y]
        ),
    }


def _random_image_of_class(
    label: int, public_x: Tensor, public_y: Tensor, generator: torch.Generator
) -> Tensor:
    pool = torch.nonzero(public_y == label).flatten()
    pool = pool if len(pool) else torch.arange(len(public_y))
    return public_x[pool[int(torch.randint(len(pool), (1,), generator=generator))]]


@dataclass(frozen=True)
class GalleryRanks:
    """Ranks (n,) from 1 in a gallery of ``size``; chance: expected top-1 rate of a blind guess."""

    ranks: Tensor
    size: int

    @property
    def chance_rate(self) -> float:
        return 1 / self.size

    def top_k_rate(self, k: int) -> float:
        """Share of reconstructions whose record is among the k nearest."""
        return float((self.ranks <= k).double().mean())

    @property
    def median_rank(self) -> float:
        return float(self.ranks.double().median())


@accepts_numpy
def rank_in_gallery(reconstructions: Tensor, truth: Tensor, others: Tensor) -> GalleryRanks:
    """Rank of each record among itself and ``others`` by pixel distance to its reconstruction.

    reconstructions, truth: (n, c, h, w) in step; others: (m, c, h, w), records that are none of the
        truth. A tie counts against the attacker.
    """
    own = negative_mse(reconstructions, truth).diagonal()
    rivals = negative_mse(reconstructions, others)
    return GalleryRanks(1 + (rivals >= own.unsqueeze(1)).sum(1), len(others) + 1)


EVALUATION_SEED = 20  # of the evaluator's own draws: bootstrap rows, random same-class records
CLEAR = 3.0  # dB: half the squared error of the closest guess for the same record; a choice
# public records that are compared with each record, and held-out ones that show what chance does
SEARCHED = 500
BASELINE_ORDER = ("class_mean", "mean", "black", "random_same_class")


@dataclass(frozen=True)
class ComparedImages:
    """measures and figures for a finding; rows (m,): the record that each reconstruction belongs
    to."""

    measures: Mapping[str, Any]
    figures: Mapping[str, Tensor]
    rows: Tensor


def has_record_shape(images: Tensor, shape: tuple[int, int, int]) -> bool:
    """Whether images are pictures of records' shape."""
    return images.ndim == 4 and tuple(images.shape[1:]) == tuple(shape)


def image_qualities(images: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """psnr, ssim and, where pretrained weights are at hand, lpips: (m,) each."""
    scores = {"psnr": psnr(images, truth), "ssim": ssim(images, truth)}
    if load_pretrained_trunk() is not None:
        scores["lpips"] = lpips(images, truth)
    return scores


def compare_with_records(
    images: Tensor, view: View, truth: Truth, rows: Tensor | None = None
) -> ComparedImages:
    """Each reconstruction gets its own record (Hungarian); the baselines get the same privilege.

    rows: (m,) the record that each reconstruction stems from, where it is known; then nothing is
        assigned.
    identified: share whose record is nearer than every held-out record; chance: of one who picks
    among records and held-out records blindly (an assignment may choose among all n records).
    """
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    images = images[: len(truth.x)].to(truth.x)
    paired = rows is not None
    rows, choices = (rows, 1) if rows is not None else (match(truth.x, images), len(truth.x))
    real = truth.x[rows]
    labels = truth.y[rows]
    scores = image_qualities(images, real)
    free = naive_reconstructions(
        labels, view.knowledge.public_x, view.knowledge.public_y, generator
    )
    blind = _baseline_qualities(free, rows, truth, paired)
    public = view.knowledge.public_x[:SEARCHED]
    public_labels = view.knowledge.public_y[:SEARCHED]
    alike = int((public_labels[None] == labels[:, None]).sum(1).double().mean())
    guesses = torch.cat([public, *(free[name] for name in BASELINE_ORDER)]).to(real)
    shown = pictures(
        scores["psnr"],
        [value for name, value in blind.items() if name.startswith("psnr_")],
        _decibels(negative_mse(real, guesses)).amax(1),
        chance_of_gain(public, truth.heldout_x[:SEARCHED], alike, choices),
    )
    measures: dict[str, Any] = {name: float(value.mean()) for name, value in scores.items()} | {
        "n": len(images)
    }
    measures |= {
        "baselines": {name: float(value.mean()) for name, value in blind.items()},
        "pictures": shown,
    }
    measures["lpips_trunk"] = getattr(load_pretrained_trunk(), "name", "not available")
    interval = bootstrap_interval(scores["psnr"], generator)
    diagnostics: dict[str, Any] = {"psnr_interval": list(interval), "rows": rows.tolist()}
    if len(truth.heldout_x):
        gallery = rank_in_gallery(images, real, truth.heldout_x)
        measures["identified"] = gallery.top_k_rate(1)
        measures["identified_chance"] = choices / (choices + len(truth.heldout_x))
        diagnostics |= {
            "median_rank": gallery.median_rank,
            "gallery": gallery.size,
            "top5": gallery.top_k_rate(5),
        }
    return ComparedImages(
        {**measures, "diagnostics": diagnostics}, {"real": real, "reconstructed": images}, rows
    )


def _baseline_qualities(
    free: Mapping[str, Tensor], rows: Tensor, truth: Truth, paired: bool = False
) -> dict[str, Tensor]:
    """metric_baseline -> (m,); the strongest comes first. Guesses know the labels, then choose
    records as well."""
    out: dict[str, Tensor] = {}
    for name in BASELINE_ORDER:
        chosen = truth.x[rows if paired else match(truth.x, free[name].to(truth.x))]
        out |= {
            f"{metric}_{name}": value
            for metric, value in image_qualities(free[name], chosen).items()
        }
    return out


@dataclass(frozen=True)
class ChanceOfGain:
    """How often a picture that knows nothing of a record but its class lies so many dB closer to it
    than all guesses.

    Among ``searched`` guesses of that class it is the closest with the chance 1 / (searched + 1).
    How much closer the closest of many points is than the next one follows a power law whose
    exponent is the dimension of the data (Facco, d'Errico, Rodriguez, Laio 2017): ``dimension`` is
        its lower end at 97.5 %. choices: records that a picture may choose among; each is one more
        try.
    """

    searched: int
    dimension: float
    choices: int = 1

    def at(self, gain: float, tries: int = 1) -> float:
        """That one of ``tries`` pictures gains at least ``gain`` dB."""
        one = math.exp(-self.dimension * max(gain, 0.0) * math.log(10) / 20) / (self.searched + 1)
        return min(1.0, tries * self.choices * one)


def chance_of_gain(
    public: Tensor, heldout: Tensor, searched: int, choices: int = 1
) -> ChanceOfGain:
    """From records (n, c, h, w) that were never in what is attacked; without any, being the closest
    is all that counts."""
    if len(public) < 2 or not len(heldout):
        return ChanceOfGain(searched, 0.0, choices)
    near = _decibels(negative_mse(heldout, public.to(heldout))).topk(2, dim=1).values
    ratios = float((near[:, 0] - near[:, 1]).double().sum()) * math.log(10) / 20
    dimension = float(chi2.ppf(0.025, 2 * len(heldout))) / 2 / max(ratios, 1e-9)
    return ChanceOfGain(searched, dimension, choices)


def _decibels(negative: Tensor) -> Tensor:
    """PSNR of the negative mean squared errors."""
    return -10 * (-negative).clamp_min(10 ** (-MAX_PSNR / 10)).log10()


def pictures(
    quality: Tensor, blind: Sequence[Tensor], closest: Tensor, chance: ChanceOfGain | None = None
) -> dict[str, Any]:
    """What a finding says of its pictures one by one: PSNR in dB, not averages, which hide the few
    that show a record.

    quality, closest: (m,) of each picture, and of the closest guess for the same record; blind:
        (m,) of each kind of guess.
    median, guess: of the pictures, and of the best kind of guess; clear: how many lie CLEAR dB
        above the closest guess for their record; best, best_guess: of the one furthest above.
        chance: how often a blind picture is clear; chance_best: how
    often the best of so many blind ones gains as much.
    """
    gain = quality.double() - closest.double()
    at = int(gain.argmax())
    found: dict[str, Any] = {
        "n": len(quality),
        "median": float(quality.double().quantile(0.5)),
        "guess": max(float(one.double().quantile(0.5)) for one in blind),
        "clear": int((gain >= CLEAR).sum()),
        "best": float(quality[at]),
        "best_guess": float(closest[at]),
    }
    if chance is None:
        return found
    return found | {
        "chance": chance.at(CLEAR),
        "chance_best": chance.at(float(gain[at]), len(quality)),
    }


def describe_no_gain(measures: Mapping[str, Any]) -> str:
    """A sentence where the pictures are no nearer to the records than a guess that needs no
    artifact, else ""."""
    guess = max(
        (v for k, v in measures["baselines"].items() if k.startswith("psnr_")), default=-torch.inf
    )
    low = measures["diagnostics"].get("psnr_interval", [measures["psnr"]])[0]
    nothing = low <= guess and not measures["pictures"]["clear"]
    return "on average no closer than a guess from public records" if nothing else ""


def _require_images(evidence: Evidence) -> Tensor:
    if evidence.images is None:
        raise ValueError("evidence.images is None: reconstructions are needed")
    return evidence.images


def own_records(evidence: Evidence, truth: Truth) -> Tensor | None:
    """The record behind each image where each capture is of one record alone, in the order of the
    truth; else None."""
    count = len(_require_images(evidence))
    alone = int(evidence.notes.get("records", 0)) == 1 and count <= len(truth.x)
    return torch.arange(count, device=truth.x.device) if alone else None


ROW_ARRAYS = ("x", "mean")  # where captures keep images, features, representations, prototypes


def empty_release_finding(attack: Attack, view: View) -> Finding | None:
    """The finding of an attack on rows where no capture holds any, else None.

    Membership attacks are never excused: that nothing was sent may itself tell members from others.
    """
    rows = [
        len(capture.value[name])
        for capture in view.captures
        for name in ROW_ARRAYS
        if name in capture.value
    ]
    if attack.family == Family.MEMBERSHIP or not rows or any(rows):
        return None
    measures = {
        "n": 0,
        "status": "nothing_to_read",
        "note": "nothing to attack: the client sent an empty set",
    }
    return Finding(view.surface, attack.name, attack.family, view.adversary, measures)
