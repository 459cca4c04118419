"""Do attacks reconstruct planted images and labels, and nothing else?

    python -m tests.power.pictures [--seeds 3] [--write docs/power_pictures.md]

Uploads carry known digits: updates and gradients are computed from them, features and images
are the digits themselves with noise of a tenth of the range of grey, labels are theirs, and
class statistics are exact. Logits for `paired_logits_inversion` are those of a classifier by
the nearest class mean on public digits, among which none has a class of the client. In a null
the same is sent of other digits. Images are found if the 95 % interval of the mean PSNR lies
above the best guess from public records; copies if the 95 % interval of the share of images
nearer to a member lies above one half; labels if more are right than in 97.5 % of uniform
guesses; opened rows if more belong to the client's digits than in 97.5 % of guesses; images of
classes if the 95 % interval of their gain on the closest guess lies above 0.1 dB. The exit
status is 1 if an attack finds less than nine of ten planted leaks, or more nulls than chance
explains.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from scipy.stats import binom
from sklearn.datasets import load_digits
from torch import Tensor, nn

from attacks.images import negative_mse
from attacks.inversion.analytic import AnalyticInversion
from attacks.inversion.class_opening import ClassOpening
from attacks.inversion.copy_detection import CopyDetection
from attacks.inversion.evaluation import class_mean_images, describe_no_gain
from attacks.inversion.feature_inversion import (
    DecoderTraining,
    FeatureInversion,
    WhiteBox,
)
from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.gradient_attack import GradientInversion, UpdateInversion
from attacks.inversion.labels import CLASS_SURFACES, LabelCounts, label_overlap
from attacks.inversion.paired_logits_inversion import LEAST_GAIN, PairedLogitsInversion
from attacks.inversion.victim import Victim
from attacks.types import Adversary, Attack, Capture, Knowledge, Surface, Truth, View
from privdd.models import ModelSpec, build, initial
from tests.power.membership import LEVEL, blind_or_wrong, command

CLASSES = 10
RECORDS = 8
NOISE = 0.1
LR = 0.1
SOLVER = InvertingGradients(iterations=150, lr=0.03, tv=1e-4, schedule="cosine", soften=100.0)
ATTACKS: Mapping[str, Attack] = {
    "gradient_inversion": GradientInversion(
        replace(SOLVER, objective="absolute", soften=0.0), captures=4
    ),
    "update_inversion": UpdateInversion(SOLVER),
    "analytic_inversion": AnalyticInversion(WhiteBox(100), captures=4),
    "feature_inversion": FeatureInversion(
        limit=RECORDS, decoder=DecoderTraining(100, width=12), whitebox=WhiteBox(100)
    ),
    "copy_detection": CopyDetection(),
    "label_counts": LabelCounts(),
    "class_opening": ClassOpening(),
    "paired_logits_inversion": PairedLogitsInversion(),
}
PRIVATE_CLASSES = 5  # 0 to 4: of the client whose logits are inverted, and of no public digit


@dataclass(frozen=True)
class Found:
    """Of ``seeds`` planted leaks and as many nulls, how many were found."""

    surface: Surface
    attack: str
    found: int
    nulls: int
    seeds: int

    @property
    def broken(self) -> bool:
        """Blind to the leak, or crying wolf (p < 0.001)."""
        return blind_or_wrong(self.found, self.nulls, self.seeds)


@lru_cache
def _digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(
        data.target
    ).long()


def claimed() -> Iterator[tuple[Surface, str]]:
    """Every surface with every attack here that claims it; how many records were sent is a number,
    no picture."""
    for name, attack in ATTACKS.items():
        yield from (
            (surface, name)
            for surface in Surface
            if surface in attack.surfaces and surface != Surface.COUNTS
        )


def _truth(rows: Tensor, heldout: Tensor) -> Truth:
    x, y = _digits()
    counts = torch.bincount(y[rows], minlength=CLASSES)
    return Truth(x[rows], y[rows], x[heldout], y[heldout], counts)


def planted(surface: Surface, attack: Attack, seed: int) -> tuple[View, Truth, Truth]:
    """A view whose upload carries eight digits (one at a time if the attack asks for it), these,
    and eight others."""
    rng = torch.Generator().manual_seed(seed)
    order, (x, y) = torch.randperm(1797, generator=rng), _digits()
    if attack.name == "paired_logits_inversion":
        return _planted_logits(order)
    truth, other = (_truth(order[i : i + RECORDS], order[200:260]) for i in (0, 100))
    spec = (
        ModelSpec("mlp", width=32, depth=2)
        if attack.name == "analytic_inversion"
        else ModelSpec("convnet", width=16, norm="none")
    )
    model = build(spec, (1, 8, 8), CLASSES)
    model.load_state_dict(initial(spec, (1, 8, 8), CLASSES, rng))
    alone = attack.name in ("gradient_inversion", "analytic_inversion")
    parts = truth.x.split(1 if alone else RECORDS), truth.y.split(1 if alone else RECORDS)
    captures = tuple(_capture(surface, model, a, b, rng) for a, b in zip(*parts))
    settings = {
        "lr": LR,
        "local_steps": 1,
        "batch_size": RECORDS,
        "batch_records": 1 if alone else RECORDS,
        "noise_std": NOISE,
    }
    if surface in CLASS_SURFACES and attack.name in ("label_counts", "class_opening"):
        captures = (Capture(0, 0, str(surface), _class_statistics(truth), {}),)
    maps = dict.fromkeys(("feature", "projection", "embedding"), nn.Identity())
    public = order[300:1300]
    known = model if surface in (Surface.UPDATE, Surface.GRADIENT) else None
    knowledge = Knowledge((1, 8, 8), CLASSES, x[public], y[public], known, maps, settings)
    return View(surface, Adversary.SERVER, captures, knowledge), truth, other


def _planted_logits(order: Tensor) -> tuple[View, Truth, Truth]:
    """Logits of one who knows the mean of each class on public digits, beside a server's who knows
    those of public classes alone; in the null, each class of the client is another one."""
    x, y = _digits()
    is_private = y[order] < PRIVATE_CLASSES
    own = order[is_private][:200]
    public = order[~is_private][:200]
    truth = _truth(own, own[:0])
    shifted = (truth.y + 1) % PRIVATE_CLASSES
    counts = torch.bincount(shifted, minlength=CLASSES)
    other = replace(truth, y=shifted, counts=counts)
    public_means = class_mean_images(x[public], y[public], CLASSES)
    own_means = class_mean_images(truth.x, truth.y, CLASSES)
    means = torch.cat([own_means[:PRIVATE_CLASSES], public_means[PRIVATE_CLASSES:]])
    sent = {"logits": negative_mse(x[public], means) * x[0].numel()}
    sent_before = {"logits": negative_mse(x[public], public_means) * x[0].numel()}
    capture = Capture(0, 0, "logits", sent, sent_before)
    knowledge = Knowledge((1, 8, 8), CLASSES, x[public], y[public], asked_images=x[public])
    return View(Surface.LOGITS, Adversary.SERVER, (capture,), knowledge), truth, other


def _capture(
    surface: Surface, model: nn.Module, x: Tensor, y: Tensor, rng: torch.Generator
) -> Capture:
    noised = x + NOISE * torch.randn(x.shape, generator=rng)
    value = {"x": noised, "y": y}
    broadcast: dict[str, Tensor] = {}
    if surface in (Surface.UPDATE, Surface.GRADIENT):
        broadcast = {n: p.detach().clone() for n, p in model.named_parameters()}
        value = dict(zip(broadcast, (g.detach() for g in Victim(model).simulated_gradients(x, y))))
        if surface == Surface.UPDATE:
            value = {n: broadcast[n] - LR * g for n, g in value.items()}
    if surface == Surface.LOGITS:  # of a network that predicts each class as often as it was seen
        share = torch.bincount(y, minlength=CLASSES) / len(y)
        logits = (share + 1e-3).log().expand(50, CLASSES)
        value = {"logits": logits + NOISE * torch.randn(logits.shape, generator=rng)}
    if surface == Surface.PROTOTYPES:
        value = {"mean": noised, "count": torch.ones(len(x))}
    return Capture(0, 0, str(surface), value, broadcast)


def _class_statistics(truth: Truth) -> dict[str, Tensor]:
    """The exact sum, count and second moment of each class's digits."""
    rows = truth.x.flatten(1)
    one_hot = torch.nn.functional.one_hot(truth.y, CLASSES).float()
    second = torch.einsum("nc,nd,nk->cdk", one_hot, rows, rows)
    return {"sum": one_hot.T @ rows, "count": one_hot.sum(0), "second": second}


def finds(name: str, surface: Surface, seed: int, *, null: bool = False) -> bool:
    """Whether the attack finds the digits that were sent, or claims to find others."""
    attack = ATTACKS[name]
    view, truth, other = planted(surface, attack, seed)
    if attack.nothing_to_read(view):
        return False
    judged = other if null else truth
    finding = attack.judge(attack.run(view, torch.Generator().manual_seed(seed)), view, judged)
    if name == "label_counts":
        return float(finding.measures.label_accuracy) > _lucky(judged.counts, seed)
    if name == "class_opening":
        rows = int(finding.measures.n)
        hits = round(finding.measures.identified * rows)
        return float(binom.sf(hits - 1, rows, finding.measures.identified_chance)) < LEVEL
    if name == "copy_detection":
        return bool(finding.diagnostics["closer_interval"][0] > 0.5)
    if name == "paired_logits_inversion":
        return bool(finding.diagnostics["gain_interval"][0] >= LEAST_GAIN)
    return not describe_no_gain(finding.measures)


def _lucky(true: Tensor, seed: int) -> float:
    """The overlap that 97.5 % of uniform guesses stay below or reach."""
    guesses = torch.randint(
        CLASSES, (2000, int(true.sum())), generator=torch.Generator().manual_seed(seed)
    )
    reached = torch.tensor(
        [label_overlap(torch.bincount(g, minlength=CLASSES), true) for g in guesses]
    )
    return float(reached.quantile(1 - LEVEL))


def power(surface: Surface, name: str, seeds: Sequence[int]) -> Found:
    leaks, nulls = (
        sum(finds(name, surface, seed, null=null) for seed in seeds) for null in (False, True)
    )
    return Found(surface, name, leaks, nulls, len(seeds))


def markdown(rows: Sequence[Found], seconds: float) -> str:
    text = (__doc__ or "").split("\n\n")
    body = "\n".join(
        f"| {row.surface} | {row.attack} | {row.found}/{row.seeds} | {row.nulls}/{row.seeds} |"
        for row in rows
    )
    return (
        f"# {text[0]}\n\n{text[2].strip()}\n\n{text[1]}\n\n{seconds:.0f} CPU s; smaller "
        "settings than shipped.\n\n"
        f"| surface | attack | leaks found | nulls found |\n|---|---|---|---|\n{body}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    measured = lambda seeds: [power(*one, seeds) for one in claimed()]  # noqa: E731
    return command("pictures", __doc__, measured, markdown, arguments)


if __name__ == "__main__":
    sys.exit(main())
