"""Do synthetic images copy records? Are they nearer to members than to held-out records of the same kind?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.images import negative_mse
from attacks.inversion.evaluation import CLEAR, has_record_shape, image_qualities, pictures
from attacks.inversion.feature_inversion import release_as_images
from attacks.statistics import binomial_interval
from attacks.tensors import accepts_numpy
from attacks.types import ANY_ADVERSARY, IMAGE_SURFACES, Attack, Evidence, Family, Finding, Truth, View
from attacks.validation import check_counts


@dataclass(frozen=True)
class CopyReport:
    """member, heldout (m,): squared distance per pixel to the nearest of each side, of equal sizes.

    nearest (m,): position of the nearest member. closer: share of synthetic images nearer to a member (a tie counts half);
    interval: Clopper-Pearson, of the images without a tie. Under "no copying" the share is 1/2. Images that stem from one
    optimisation are not independent, so the interval is a lower limit on the width.
    """

    member: Tensor
    heldout: Tensor
    nearest: Tensor
    closer: float
    interval: tuple[float, float]
    compared: int


@accepts_numpy
def compare_copies(synthetic: Tensor, members: Tensor, heldout: Tensor, generator: torch.Generator) -> CopyReport:
    """Compare each of ``synthetic`` (m, c, h, w) with as many members as held-out records, drawn at random.

    members (n, c, h, w) and heldout (k, c, h, w) must stem from one distribution. Raises ValueError
    where one side is empty.
    """
    size = min(len(members), len(heldout))
    if size == 0 or len(synthetic) == 0:
        raise ValueError(f"{len(synthetic)} images, {len(members)} members, {len(heldout)} held out: none may be empty")
    inside, outside = (torch.randperm(len(x), generator=generator)[:size].to(x.device) for x in (members, heldout))
    near, at = (-negative_mse(synthetic, members[inside])).min(1)
    far = (-negative_mse(synthetic, heldout[outside])).amin(1)
    wins, ties = int((near < far).sum()), int((near == far).sum())
    closer = (wins + ties / 2) / len(synthetic)
    interval = binomial_interval(wins, len(synthetic) - ties)
    return CopyReport(near, far, inside[at], closer, interval, len(synthetic) - ties)


@dataclass(frozen=True)
class CopyDetection(Attack):
    """Whether synthetic images lie nearer to the client's records than to held-out ones of the same distribution."""

    limit: int = 200
    name: str = "copy_detection"
    family = Family.RECONSTRUCTION
    on_gpu = True
    surfaces = IMAGE_SURFACES
    adversaries = ANY_ADVERSARY

    def __post_init__(self) -> None:
        check_counts(self, "limit")

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images: the released ones; the attack computes nothing."""
        x = view.captures[0].value["x"].detach()
        picked = torch.randperm(len(x), generator=generator)[: self.limit]
        shown = x[picked]
        if not has_record_shape(x, view.knowledge.shape):
            shown = release_as_images(shown, view.knowledge.public_x)
        return Evidence(images=shown.clamp(0, 1))

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """psnr, ssim, lpips: to the nearest member; baselines: to the nearest of as many held-out records."""
        images = evidence.images if evidence.images is not None else truth.x[:0]
        report = compare_copies(images, truth.x, truth.heldout_x, torch.Generator().manual_seed(0))
        nearest = truth.x[report.nearest]
        measures: dict[str, Any] = {k: float(v.mean()) for k, v in image_qualities(images, nearest).items()}
        measures |= {"n": len(images), "identified": report.closer, "identified_chance": 0.5}
        member, heldout = (-10 * d.clamp_min(1e-20).log10() for d in (report.member, report.heldout))
        measures["baselines"] = {"psnr_nearest_heldout": float(heldout.mean())}
        # without copying, an image lies as often so much nearer to a held-out record: at most so often, at 99.9 %
        turned = binomial_interval(int((heldout - member >= CLEAR).sum()), len(member), 0.998)[1]
        measures["pictures"] = pictures(member, [heldout], heldout) | {"chance": turned}
        measures["diagnostics"] = {
            "closer_interval": list(report.interval),
            "compared": report.compared,
            "copies": int((report.member < 1e-4).sum()),
            "distance_member": float(report.member.mean()),
            "distance_heldout": float(report.heldout.mean()),
        }
        measures["note"] = "identified: share of released images nearer to a member than to any held-out record"
        figures = {"real": nearest, "reconstructed": images}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)
