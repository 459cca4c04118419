"""FedFed's two model inversion attackers (Yang et al. 2023, appendix E) as attacks of the audit."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attacks.baselines import class_means
from attacks.images import psnr
from attacks.inversion.compare import fit_to, pictures, qualities
from attacks.inversion.feature_attack import true_map
from attacks.inversion.features import FeatureMap
from attacks.inversion.generative import GenerativeInversion, Prior, Role, WganGp
from attacks.inversion.judge import Judge, success
from attacks.ranges import check_counts
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View


def role_of(view: View) -> Role:
    """The server sees uploaded features and holds no data; a peer sees the shared ones and holds its own data."""
    return Role.SERVER if view.adversary == Adversary.SERVER else Role.CLIENT


@dataclass(frozen=True)
class RoleInversion(Attack):
    """GMI against the shared classifier with the prior that the attacker's role allows.

    server: the prior is trained on the features themselves. client: it is trained on the attacker's
    own images (public records stand for them), conditioned on their features where the map is
    known; the search then conditions on a shared feature of each class.
    """

    prior: WganGp = field(default_factory=WganGp)
    search: GenerativeInversion = field(default_factory=lambda: GenerativeInversion(iterations=200, starts=2))
    referee: Judge = field(default_factory=Judge)
    limit: int = 1000
    name: str = "role_inversion"
    family = Family.MODEL_INVERSION
    on_gpu = True
    surfaces = frozenset({Surface.FEATURES, Surface.SHARED_FEATURES})
    adversaries = frozenset({Adversary.SERVER, Adversary.PEER})

    def __post_init__(self) -> None:
        check_counts(self, "limit")

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (k, c, h, w), labels (k,): one for each class that has a feature."""
        value, knowledge, role = view.captures[0].value, view.knowledge, role_of(view)
        z = value["x"].detach()
        if knowledge.model is None or "y" not in value or not fit_to(z, knowledge.shape):
            return Evidence(notes={"skipped": "needs image-like features with labels, and the classifier"})
        labels = value["y"].unique()
        shown = torch.stack([z[value["y"] == c][0] for c in labels])
        prior, given = self._prior(role, z, shown, knowledge.public_x, true_map(view), generator)
        model = copy.deepcopy(knowledge.model).eval().requires_grad_(False)
        found = self.search.reconstruct(model, prior, labels, generator, auxiliary=given)
        return Evidence(images=found.images, labels=labels, notes={"role": str(role)})

    def _prior(
        self, role: Role, z: Tensor, shown: Tensor, own: Tensor, known: FeatureMap | None, rng: torch.Generator
    ) -> tuple[Prior, Tensor | None]:
        if role is Role.SERVER:
            return self.prior.fit(z[: self.limit].clamp(0, 1), rng), None
        own = own[: self.limit]
        if known is None:
            return self.prior.fit(own, rng), None
        with torch.no_grad():
            features = known(own)
        return self.prior.fit(own, rng, auxiliary=features), shown

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """Against the mean image of each class; label_accuracy by an independent classifier."""
        if evidence.images is None or evidence.labels is None:
            return Finding(view.surface, self.name, self.family, view.adversary, {"note": evidence.notes["skipped"]})
        knowledge, rng = view.knowledge, torch.Generator().manual_seed(0)
        keep = torch.tensor([bool((truth.y == c).any()) for c in evidence.labels])
        images, labels = evidence.images[keep], evidence.labels[keep]
        referee = self.referee.fit(knowledge.public_x, knowledge.public_y, knowledge.classes, rng)
        means = class_means(truth.x, truth.y, knowledge.classes)[labels]
        public = class_means(knowledge.public_x, knowledge.public_y, knowledge.classes)[labels]
        measures: dict[str, Any] = {k: float(v.mean()) for k, v in qualities(images, means).items()}
        measures |= {"label_accuracy": success(referee, images, labels), "n": len(images)}
        blind = {"class_mean": psnr(public, means), "black": psnr(public * 0, means)}
        if len(images):
            measures["pictures"] = pictures(
                psnr(images, means), [*blind.values()], torch.stack([*blind.values()]).amax(0)
            )
        measures["baselines"] = {
            **{f"psnr_{name}": float(one.mean()) for name, one in blind.items()},
            "label_accuracy_class_mean": success(referee, public, labels),
        }
        measures["diagnostics"] = {"role": evidence.notes["role"]}
        measures["note"] = "against the mean image of each class of the client"
        figures = {"real": means, "reconstructed": images}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)
