"""The evaluator's side of every reconstruction attack: reconstructions against records, beside
naive reconstructions that need no attack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from attacks.measures import ReconstructionMeasures
from attacks.tensors import accepts_numpy
from attacks.types import (
    Attack,
    DataColumn,
    Evidence,
    Family,
    Finding,
    RecordShape,
    Truth,
    View,
    is_image,
)

EVALUATION_SEED = 20  # of the evaluator's own draws: bootstrap rows, random same-class records
CLEAR = 3.0  # dB: half the squared error of the closest guess for the same record; a choice
# public records, and held-out ones for the level of chance, a record is compared with
SEARCHED = 500
BASELINE_ORDER = ("class_mean", "mean", "black", "random_same_class")
ROW_ARRAYS = ("x", "mean")  # where captures hold images, features, representations, prototypes


@accepts_numpy
def class_mean_images(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """(classes, c, h, w) mean image of each class; a class without records gets the mean of all."""
    means = []
    for label in range(classes):
        records = x[y == label]
        if not len(records):
            records = x
        means.append(records.mean(0))
    return torch.stack(means)


def guess_class_images(view: View, labels: Tensor) -> dict[str, Tensor]:
    """What needs no attack for the mean images of classes, (k, c, h, w) each: the public mean of
    each of ``labels`` (k,), that of all public records, and black."""
    knowledge = view.knowledge
    means = class_mean_images(knowledge.public_x, knowledge.public_y, knowledge.classes)[labels]
    return {
        "class_mean": means,
        "mean": knowledge.public_x.mean(0).expand_as(means),
        "black": means * 0,
    }


def measure_class_images(
    images: Tensor, means: Tensor, guesses: Mapping[str, Tensor]
) -> ReconstructionMeasures:
    """How close images of classes (k, c, h, w) are to the mean images of the client's records
    (k, c, h, w), beside as many ``guesses`` of each kind."""
    qualities: dict[str, Any] = {
        name: float(values.mean()) for name, values in image_qualities(images, means).items()
    }
    blind = {name: psnr(guess, means) for name, guess in guesses.items()}
    measures = ReconstructionMeasures(
        **qualities,
        n=len(images),
        baselines={f"psnr_{name}": float(values.mean()) for name, values in blind.items()},
        note="against the mean image of each class of the client",
    )
    if not len(images):
        return measures
    closest = torch.stack(list(blind.values())).amax(0)
    quality = psnr(images, means)
    return replace(measures, pictures=pictures(quality, list(blind.values()), closest))


@accepts_numpy
def naive_reconstructions(
    truth_y: Tensor, public_x: Tensor, public_y: Tensor, generator: torch.Generator
) -> Mapping[str, Tensor]:
    """The four reconstructions that need no attack, (n, c, h, w) each, from public records and
    labels."""
    classes = int(torch.cat([truth_y, public_y]).max()) + 1
    means = class_mean_images(public_x, public_y, classes)
    n = len(truth_y)
    same_class = [_random_image_of_class(int(y), public_x, public_y, generator) for y in truth_y]
    return {
        "black": torch.zeros((n, *public_x.shape[1:])).to(public_x),
        "mean": public_x.mean(0).expand(n, *public_x.shape[1:]),
        "class_mean": means[truth_y],
        "random_same_class": torch.stack(same_class),
    }


def _random_image_of_class(
    label: int, public_x: Tensor, public_y: Tensor, generator: torch.Generator
) -> Tensor:
    """A public image of the class, or of any class if it has none."""
    pool = torch.nonzero(public_y == label).flatten()
    if not len(pool):
        pool = torch.arange(len(public_y))
    return public_x[pool[int(torch.randint(len(pool), (1,), generator=generator))]]


@dataclass(frozen=True)
class GalleryRanks:
    """Ranks (n,) from 1 in a gallery of ``size`` images."""

    ranks: Tensor
    size: int

    @property
    def chance_rate(self) -> float:
        """The expected top-1 rate of a blind guess."""
        return 1 / self.size

    def top_k_rate(self, k: int) -> float:
        """Share of reconstructions whose record is among the k nearest."""
        return float((self.ranks <= k).double().mean())

    @property
    def median_rank(self) -> float:
        return float(self.ranks.double().median())

    def describe(self) -> dict[str, float]:
        """The ranks in three numbers, for the diagnostics of a finding."""
        return {
            "median_rank": self.median_rank,
            "gallery": self.size,
            "top5": self.top_k_rate(5),
        }


@accepts_numpy
def rank_in_gallery(reconstructions: Tensor, truth: Tensor, decoys: Tensor) -> GalleryRanks:
    """Rank of each record among itself and the decoys by pixel distance to its reconstruction.

    reconstructions, truth: (n, c, h, w) in the same order; decoys: (m, c, h, w), other records. A
    tie counts against the attacker.
    """
    similarity = negative_mse(reconstructions, truth).diagonal()
    decoy_similarity = negative_mse(reconstructions, decoys)
    is_nearer = decoy_similarity >= similarity.unsqueeze(1)
    return GalleryRanks(1 + is_nearer.sum(1), len(decoys) + 1)


@dataclass(frozen=True)
class ComparedImages:
    """Reconstructions beside their records, as measures and figures of a finding."""

    measures: ReconstructionMeasures
    figures: Mapping[str, Tensor]
    rows: Tensor  # (m,): the record that each reconstruction belongs to
    baselines: Mapping[str, Tensor]  # metric_baseline -> (m,), of guesses that need no attack


def has_record_shape(images: Tensor, shape: RecordShape) -> bool:
    """Whether the images, or rows, have the shape of records."""
    return tuple(images.shape[1:]) == tuple(shape)


def image_qualities(images: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """psnr; of images ssim and, if pretrained weights are at hand, lpips too: (m,) each."""
    scores = {"psnr": psnr(images, truth)}
    if not is_image(truth.shape[1:]):
        return scores
    scores["ssim"] = ssim(images, truth)
    if load_pretrained_trunk() is not None:
        scores["lpips"] = lpips(images, truth)
    return scores


def column_errors(
    rows: Tensor, truth: Tensor, columns: Sequence[DataColumn]
) -> list[dict[str, Any]]:
    """How well each column of a table is reconstructed.

    Args:
        rows: (m, d) in [0, 1], the numbers of the columns in order.
        truth: (m, d), the record behind each row.
        columns: what the numbers stand for.

    Returns:
        Of each column what it holds, and ``error``: of numbers the mean absolute error in their
        ranges, in [0, 1]; of categories the share of wrong ones, in [0, 1]. The largest of a
        column's numbers is its category; no category, where a value is missing, counts as wrong.
    """
    errors = []
    start = 0
    for column in columns:
        guess = rows[:, start : start + column.width]
        real = truth[:, start : start + column.width]
        start += column.width
        if column.categories:
            is_right = (guess.argmax(1) == real.argmax(1)) & (real.amax(1) > 0)
            error = 1 - float(is_right.double().mean())
        else:
            error = float((guess - real).abs().double().mean())
        errors.append({**asdict(column), "error": error})
    return errors


def compare_with_records(
    images: Tensor,
    view: View,
    truth: Truth,
    rows: Tensor | None = None,
    earlier: ComparedImages | None = None,
) -> ComparedImages:
    """Quality of reconstructions against their records, beside naive ones that need no attack.

    Each reconstruction is assigned a record (Hungarian method), and so is each baseline, unless
    ``rows`` (m,) says which record each one stems from. identified: the share whose record is
    nearer than every held-out record; identified_chance: that of a blind pick among records and
    held-out records, which may choose among all n records if they are assigned. earlier: the
    comparison of other images with the same ``rows``, whose guesses are the same.
    """
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    images = images[: len(truth.x)].to(truth.x)
    paired = rows is not None
    choices = 1
    if rows is None:
        rows = match(truth.x, images)
        choices = len(truth.x)
    real = truth.x[rows]
    labels = truth.y[rows]
    scores = image_qualities(images, real)
    naive = naive_reconstructions(
        labels, view.knowledge.public_x, view.knowledge.public_y, generator
    )
    if paired and earlier is not None:
        baselines = earlier.baselines
    else:
        baselines = _baseline_qualities(naive, rows, truth, paired)
    public = view.knowledge.public_x[:SEARCHED]
    guesses = torch.cat([public, *(naive[name] for name in BASELINE_ORDER)]).to(real)
    guess_psnr = _decibels(negative_mse(real, guesses))  # (m, guesses)
    measures = _quality_measures(scores, baselines, view)
    law = chance_of_gain(
        public, truth.heldout_x[:SEARCHED], _count_class_guesses(view, labels), choices
    )
    psnr_baselines = [value for name, value in baselines.items() if name.startswith("psnr_")]
    best_images = pictures(scores["psnr"], psnr_baselines, guess_psnr.amax(1), law)
    interval = bootstrap_interval(scores["psnr"], generator)
    diagnostics: dict[str, Any] = {"psnr_interval": list(interval), "rows": rows.tolist()}
    if view.knowledge.columns:
        diagnostics["columns"] = column_errors(images, real, view.knowledge.columns)
    if len(truth.heldout_x):
        gallery = rank_in_gallery(images, real, truth.heldout_x)
        chance = choices / (choices + len(truth.heldout_x))
        measures = replace(measures, identified=gallery.top_k_rate(1), identified_chance=chance)
        diagnostics |= gallery.describe()
    measures = replace(measures, pictures=best_images, diagnostics=diagnostics)
    closest = guesses[guess_psnr.argmax(1)]
    figures = {"real": real, "reconstructed": images, "guess": closest}
    return ComparedImages(measures, figures, rows, baselines)


def _quality_measures(
    scores: Mapping[str, Tensor], baselines: Mapping[str, Tensor], view: View
) -> ReconstructionMeasures:
    """The means of the qualities (m,) over the images, and of the baselines'."""
    qualities: dict[str, Any] = {name: float(value.mean()) for name, value in scores.items()}
    if is_image(view.knowledge.shape):
        qualities["lpips_trunk"] = getattr(load_pretrained_trunk(), "name", "not available")
    return ReconstructionMeasures(
        **qualities,
        n=len(scores["psnr"]),
        baselines={name: float(value.mean()) for name, value in baselines.items()},
    )


def _count_class_guesses(view: View, labels: Tensor) -> int:
    """How many of the searched public records have a record's class, in the mean over ``labels``
    (m,)."""
    public_labels = view.knowledge.public_y[:SEARCHED]
    return int((public_labels[None] == labels[:, None]).sum(1).double().mean())


def _baseline_qualities(
    naive: Mapping[str, Tensor], rows: Tensor, truth: Truth, paired: bool = False
) -> Mapping[str, Tensor]:
    """metric_baseline -> (m,), the strongest first. Unless they are ``paired``, these guesses are
    assigned records as well."""
    guesses = [naive[name].to(truth.x) for name in BASELINE_ORDER]
    assigned = [rows if paired else match(truth.x, images) for images in guesses]
    real = [truth.x[assignment] for assignment in assigned]
    # all at once: the records are the same, and LPIPS looks at each image once
    scores = image_qualities(torch.cat(guesses), torch.cat(real))
    sizes = [len(images) for images in guesses]
    by_metric = {metric: values.split(sizes) for metric, values in scores.items()}
    qualities: dict[str, Tensor] = {}
    for index, name in enumerate(BASELINE_ORDER):
        for metric, values in by_metric.items():
            qualities[f"{metric}_{name}"] = values[index]
    return qualities


@dataclass(frozen=True)
class ChanceOfGain:
    """How often an image that depends on a record's class alone lies so many dB closer to it than
    all guesses."""

    # Among s guesses of that class it is the closest with the chance 1 / (s + 1). The ratio of the
    # distances to the closest of many points and to the next one follows a power law whose exponent
    # is the dimension d of the data (Facco, d'Errico, Rodriguez and Laio 2017): with a gain of g
    # dB,   P = 10^(-d g / 20) / (s + 1).
    searched: int
    dimension: float  # its lower limit at 97.5 %
    choices: int = 1  # records that an image may be assigned; each is one more try

    def at(self, gain: float, tries: int = 1) -> float:
        """The probability that the best of ``tries`` images gains ``gain`` dB."""
        decay = math.exp(-self.dimension * max(gain, 0.0) * math.log(10) / 20)
        return min(1.0, tries * self.choices * (decay / (self.searched + 1)))


def chance_of_gain(
    public: Tensor, heldout: Tensor, searched: int, choices: int = 1
) -> ChanceOfGain:
    """The law of gains, from records (n, c, h, w) that the attacked data never included; without
    any, of dimension 0."""
    # d = chi2_0.025(2 n) / (2 sum_i ln(r2_i / r1_i)), the lower limit of a Pareto exponent from the
    # distances r1, r2 of each held-out record to its two nearest public records
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
    """What a finding reports of single images: averages hide the few that show a record.

    Args:
        quality: PSNR of each image (m,), in dB.
        blind: PSNR of each kind of guess (m,).
        closest: PSNR of the closest guess for the same record (m,).
        chance: the law of gains by chance.

    Returns:
        median, guess: of the images, and of the best kind of guess. clear: how many images gain
        CLEAR dB on the closest guess for their record. best, best_guess: of the image with the
        largest gain. chance: how often a blind image is clear. chance_best: how often the best of
        so many blind ones gains as much.
    """
    gain = quality.double() - closest.double()
    best = int(gain.argmax())
    measures: dict[str, Any] = {
        "n": len(quality),
        "median": float(quality.double().quantile(0.5)),
        "guess": max(float(guesses.double().quantile(0.5)) for guesses in blind),
        "clear": int((gain >= CLEAR).sum()),
        "best": float(quality[best]),
        "best_guess": float(closest[best]),
    }
    if chance is not None:
        measures["chance"] = chance.at(CLEAR)
        measures["chance_best"] = chance.at(float(gain[best]), len(quality))
    return measures


def describe_no_gain(measures: ReconstructionMeasures) -> str:
    """A sentence if the images are no nearer to the records than a guess that needs no artifact,
    else ""."""
    baselines = measures.baselines or {}
    guesses = [psnr for name, psnr in baselines.items() if name.startswith("psnr_")]
    low = (measures.diagnostics or {}).get("psnr_interval", [measures.psnr])[0]
    clear = (measures.pictures or {}).get("clear", 0)
    if low <= max(guesses, default=-torch.inf) and not clear:
        return "on average no closer than a guess from public records"
    return ""


def _require_images(evidence: Evidence) -> Tensor:
    if evidence.images is None:
        raise ValueError("evidence.images must hold reconstructions, not None")
    return evidence.images


def own_records(evidence: Evidence, truth: Truth) -> Tensor | None:
    """The record behind each image if each capture is of a single record, in the order of the
    truth; else None."""
    count = len(_require_images(evidence))
    if int(evidence.notes.get("records", 0)) != 1 or count > len(truth.x):
        return None
    return torch.arange(count, device=truth.x.device)


def empty_release_finding(attack: Attack, view: View) -> Finding | None:
    """The finding of an attack on rows if no capture holds any, else None.

    Membership attacks are never excused: that nothing was sent may itself identify members.
    """
    rows = []
    for capture in view.captures:
        rows += [len(capture.value[name]) for name in ROW_ARRAYS if name in capture.value]
    if attack.family == Family.MEMBERSHIP or not rows or any(rows):
        return None
    measures = attack.family.measures(
        n=0,
        status="nothing_to_read",
        note="nothing to attack: the client sent an empty set",
    )
    return Finding(view.surface, attack.name, attack.family, view.adversary, measures)
