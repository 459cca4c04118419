"""The evaluator's side of every reconstruction attack: reconstructions against records, beside naive guesses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import chi2
from torch import Tensor

from attacks.baselines import guesses, identify
from attacks.images import CEILING, bootstrap, lpips, match, negative_mse, psnr, ssim
from attacks.lpips_weights import pretrained
from attacks.types import Attack, Evidence, Family, Finding, Truth, View

SEED = 20  # of the evaluator's own draws: bootstrap rows, random same-class records
CLEAR = 3.0  # dB: half the squared error of the closest guess for the same record; a choice
SEARCHED = 500  # public records that are compared with each record, and held-out ones that show what chance does
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
    free = guesses(truth.y[rows], view.knowledge.public_x, view.knowledge.public_y, generator)
    blind = _baselines(free, rows, truth, paired)
    public, labels = view.knowledge.public_x[:SEARCHED], view.knowledge.public_y[:SEARCHED]
    alike = int((labels[None] == truth.y[rows][:, None]).sum(1).double().mean())
    chance = chance_of_gain(public, truth.heldout_x[:SEARCHED], alike)
    measures: dict[str, Any] = {
        **means,
        "n": len(images),
        "baselines": {name: float(value.mean()) for name, value in blind.items()},
        "pictures": pictures(
            scores["psnr"],
            [value for name, value in blind.items() if name.startswith("psnr_")],
            _decibels(negative_mse(real, torch.cat([public, *(free[name] for name in FIRST)]).to(real))).amax(1),
            chance.of(choices=1 if paired else len(truth.x)),
        ),
    }
    measures["lpips_trunk"] = getattr(pretrained(), "name", "not available")
    diagnostics: dict[str, Any] = {"psnr_interval": list(bootstrap(scores["psnr"], generator)), "rows": rows.tolist()}
    if gallery is not None:
        measures["identified"] = gallery.top(1)
        choices = 1 if paired else len(truth.x)
        measures["identified_chance"] = choices / (choices + len(truth.heldout_x))
        diagnostics |= {"median_rank": gallery.median, "gallery": gallery.size, "top5": gallery.top(5)}
    return Compared({**measures, "diagnostics": diagnostics}, {"real": real, "reconstructed": images}, rows)


def _baselines(free: Mapping[str, Tensor], rows: Tensor, truth: Truth, paired: bool = False) -> dict[str, Tensor]:
    """metric_baseline -> (m,); the strongest comes first. Guesses know the labels, then choose records as well."""
    out: dict[str, Tensor] = {}
    for name in FIRST:
        chosen = truth.x[rows if paired else assign(free[name].to(truth.x), truth.x)]
        out |= {f"{metric}_{name}": value for metric, value in qualities(free[name], chosen).items()}
    return out


@dataclass(frozen=True)
class ChanceOfGain:
    """How often a picture that knows nothing of a record but its class lies so many dB closer to it than all guesses.

    Among ``searched`` guesses of that class it is the closest with the chance 1 / (searched + 1). How much closer the closest of many points is than the
    next one follows a power law whose exponent is the dimension of the data (Facco, d'Errico, Rodriguez, Laio 2017):
    ``dimension`` is its lower end at 97.5 %, from held-out records among the public ones. choices: records that a
    picture may choose among; each is one more try.
    """

    searched: int
    dimension: float
    choices: int = 1

    def of(self, choices: int) -> ChanceOfGain:
        return ChanceOfGain(self.searched, self.dimension, choices)

    def at(self, gain: float, tries: int = 1) -> float:
        """That one of ``tries`` pictures gains at least ``gain`` dB."""
        one = math.exp(-self.dimension * max(gain, 0.0) * math.log(10) / 20) / (self.searched + 1)
        return min(1.0, tries * self.choices * one)


def chance_of_gain(public: Tensor, heldout: Tensor, searched: int) -> ChanceOfGain:
    """From records (n, c, h, w) that were never in what is attacked; without any, being the closest is all that counts."""
    if len(public) < 2 or not len(heldout):
        return ChanceOfGain(searched, 0.0)
    near = _decibels(negative_mse(heldout, public.to(heldout))).topk(2, dim=1).values
    ratios = float((near[:, 0] - near[:, 1]).double().sum()) * math.log(10) / 20
    return ChanceOfGain(searched, float(chi2.ppf(0.025, 2 * len(heldout))) / 2 / max(ratios, 1e-9))


def _decibels(negative: Tensor) -> Tensor:
    """PSNR of the negative mean squared errors."""
    return -10 * (-negative).clamp_min(10 ** (-CEILING / 10)).log10()


def pictures(
    quality: Tensor, blind: Sequence[Tensor], closest: Tensor, chance: ChanceOfGain | None = None
) -> dict[str, Any]:
    """What a finding says of its pictures one by one: PSNR in dB, not averages, which hide the few that show a record.

    quality, closest: (m,) of each picture, and of the closest guess for the same record; blind: (m,) of each kind of guess.
    median, guess: of the pictures, and of the best kind of guess; clear: how many lie CLEAR dB above the closest guess for
    their record; best, best_guess: of the one furthest above. chance: how often a blind picture is clear; chance_best: how
    often the best of so many blind ones gains as much. Both are absent where nothing says what chance does.
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
    return found | {"chance": chance.at(CLEAR), "chance_best": chance.at(float(gain[at]), len(quality))}


def adds_nothing(measures: Mapping[str, Any]) -> str:
    """A sentence where the pictures are no nearer to the records than a guess that needs no artifact, else ""."""
    guess = max((v for k, v in measures["baselines"].items() if k.startswith("psnr_")), default=-torch.inf)
    low = measures["diagnostics"].get("psnr_interval", [measures["psnr"]])[0]
    nothing = low <= guess and not measures["pictures"]["clear"]
    return "on average no closer than a guess from public records" if nothing else ""


def _images(evidence: Evidence) -> Tensor:
    if evidence.images is None:
        raise ValueError("evidence.images is None: reconstructions are needed")
    return evidence.images


def own_records(evidence: Evidence, truth: Truth) -> Tensor | None:
    """The record behind each image where each capture is of one record alone, in the order of the truth; else None."""
    count = len(_images(evidence))
    alone = int(evidence.notes.get("records", 0)) == 1 and count <= len(truth.x)
    return torch.arange(count, device=truth.x.device) if alone else None


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
