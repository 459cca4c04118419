"""From shared features back to images, for four attackers with decreasing knowledge, and as an
attack of the audit.

Each level of the knowledge ladder names what the attacker holds, and ``FeatureInverter`` uses only
that. A small decoder, trained on public pairs, turns features into images; who holds the map
improves its guess by white-box optimisation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from attacks.inversion.evaluation import class_mean_images, compare_with_records, describe_no_gain
from attacks.inversion.gradient_matching import mean_total_variation
from attacks.inversion.victim import Reconstruction
from attacks.tensors import accepts_numpy, draw_ahead
from attacks.types import (
    ANY_ADVERSARY,
    Attack,
    Capture,
    Evidence,
    Family,
    Finding,
    Surface,
    Truth,
    View,
)
from attacks.validation import check_counts, check_non_negative, check_positive


def uninitialised_layer(layer: type[nn.Module], *sizes: int, **options: int) -> nn.Module:
    """A layer whose weights are not drawn yet: the global random stream stays untouched."""
    return skip_init(layer, *sizes, **options)  # type: ignore[arg-type]


@torch.no_grad()
def draw_weights(network: nn.Module, generator: torch.Generator) -> None:
    """Kaiming-normal weights and zero biases for every linear and convolutional layer."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            fan = module.weight[0].numel()
            module.weight.copy_(
                torch.randn(module.weight.shape, generator=generator) * math.sqrt(2 / fan)
            )
            if module.bias is not None:
                module.bias.zero_()


class Decoder(nn.Module):
    """(b, *feature shape) -> (b, c, h, w) in [0, 1].

    Works at half the image's size: full-size maps are folded to it (four pixels to four channels),
    others are resized, vectors pass a linear layer; the image is unfolded at the end. Inputs are
    standardised by the training features' mean and
    deviation. centres: (C, c, h, w) images of the classes, from which it starts where labels are
        given."""

    def __init__(
        self,
        features: Tensor,
        shape: tuple[int, int, int],
        width: int,
        centres: Tensor | None = None,
    ) -> None:
        super().__init__()
        c, h, w = shape
        self.size = (h, w)
        self.middle = (math.ceil(h / 2), math.ceil(w / 2))
        self.low = (math.ceil(h / 4), math.ceil(w / 4))
        self.centres = None if centres is None else centres.clamp(0.02, 0.98).logit()
        self.mean = features.mean(0, keepdim=True)
        self.spread = features.std().clamp_min(1e-6)
        self.spatial = features.ndim == 4
        self.folded = self.spatial and tuple(features.shape[-2:]) == (
            2 * self.middle[0],
            2 * self.middle[1],
        )
        channels = features.shape[1] * (4 if self.folded else 1) if self.spatial else width
        flat = features.flatten(1).shape[1]
        self.enter = (
            nn.Identity()
            if self.spatial
            else uninitialised_layer(nn.Linear, flat, width * self.low[0] * self.low[1])
        )
        self.first, self.second, self.third = (
            uninitialised_layer(nn.Conv2d, inputs, width, 3, padding=1)
            for inputs in (channels, width, width)
        )
        self.last = uninitialised_layer(nn.Conv2d, width, 4 * c, 3, padding=1)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        z = (features - self.mean) / self.spread
        z = z if self.spatial else F.relu(self.enter(z.flatten(1))).unflatten(1, (-1, *self.low))
        z = F.pixel_unshuffle(z, 2) if self.folded else z
        z = F.relu(self.first(z))
        z = (
            z
            if z.shape[-2:] == self.middle
            else F.interpolate(z, self.middle, mode="bilinear", align_corners=False)
        )
        z = F.relu(self.third(F.relu(self.second(z))))
        image = F.pixel_shuffle(self.last(z), 2)[..., : self.size[0], : self.size[1]]
        known = self.centres is not None and labels is not None
        return torch.sigmoid(image + self.centres[labels] if known else image)  # type: ignore[index]


@dataclass(frozen=True)
class DecoderTraining:
    """Adam on the squared error; lr halves at two thirds (He, Zhang, Lee 2019, sec. 4.2).

    noise_std: deviation of fresh Gaussian noise added to the features at each step, for noised
        releases."""

    steps: int = 300
    batch: int = 64
    width: int = 32
    lr: float = 2e-3
    noise_std: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "steps", "batch", "width")
        check_positive(self, "lr")
        check_non_negative(self, "noise_std")

    def fit(
        self,
        features: Tensor,
        images: Tensor,
        generator: torch.Generator,
        labels: Tensor | None = None,
        classes: int = 0,
    ) -> Decoder:
        """A decoder trained on pairs features (m, ...) and images (m, c, h, w) in [0, 1].

        labels: (m,), where those of the released features are known too; classes: how many there
            are, with absent ones."""
        centres = None if labels is None else class_mean_images(images, labels, classes)
        shape = (images.shape[1], images.shape[2], images.shape[3])
        decoder = Decoder(features, shape, self.width, centres).to(features.device)
        draw_weights(decoder, generator)
        optimiser = torch.optim.Adam(decoder.parameters(), lr=self.lr, fused=True)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [2 * self.steps // 3], 0.5)
        for rows, *noise in draw_ahead(
            lambda: self._draw_step(features, generator), self.steps, features.device
        ):
            given = features[rows]
            if noise:
                given = given + self.noise_std * noise[0].to(given)
            optimiser.zero_grad()
            F.mse_loss(
                decoder(given, None if labels is None else labels[rows]), images[rows]
            ).backward()
            optimiser.step()
            schedule.step()
        return decoder.eval().requires_grad_(False)

    def _draw_step(self, features: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The rows of one step, and where there is noise that of the rows."""
        rows = torch.randint(len(features), (min(self.batch, len(features)),), generator=generator)
        shape = (len(rows), *features.shape[1:])
        return (rows, torch.randn(shape, generator=generator)) if self.noise_std else (rows,)


FeatureMap = Callable[[Tensor], Tensor]


class KnowledgeLevel(StrEnum):
    """What the attacker knows about the map from images to features, from most to least."""

    KNOWS_MAP = "knows_map"  # holds it: white-box optimisation from a decoder's guess
    CAN_QUERY = "can_query"  # black box: a decoder trained on queried public images
    SHADOW_MAP = "shadow_map"  # knows architecture and public data: a decoder of another map
    NOTHING = "nothing"  # shows the release as an image


@dataclass(frozen=True)
class WhiteBox:
    """min over x in [0, 1] of sum_k |f_k(x) - z_k|^2 / numel + tv TV(x) (He, Zhang, Lee 2019, eq.
    2).

    Several maps f_k are several rounds of the same records.
    """

    iterations: int = 300
    lr: float = 0.02
    tv: float = 1e-3

    def __post_init__(self) -> None:
        check_counts(self, "iterations")
        check_positive(self, "lr")
        check_non_negative(self, "tv")

    def feature_residual(
        self, maps: Sequence[FeatureMap], released: Sequence[Tensor], images: Tensor
    ) -> Tensor:
        """(b,) squared feature error relative to the released features' variance, summed over the
        maps."""
        gaps = [
            (f(images) - z).square().flatten(1).mean(1) / z.var().clamp_min(1e-12)
            for f, z in zip(maps, released)
        ]
        return torch.stack(gaps).sum(0)

    def optimise_images(
        self,
        maps: Sequence[FeatureMap],
        released: Sequence[Tensor],
        start: Tensor,
        noise: float = 0.0,
        doubt: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Best images (b, c, h, w) met from ``start`` and their residuals (b,).

        noise: standard deviation of each released number's Gaussian noise. Above 0 the images are
            the most probable ones, min sum_k |f_k(x) - z_k|^2 / (2 noise^2) + |x - start|^2 / (2
            doubt^2), with doubt the RMSE of the start.
        """

        def total_cost(images: Tensor, residual: Tensor) -> Tensor:
            if not noise:
                return residual + self.tv * mean_total_variation(images)
            misfit = torch.stack(
                [(f(images) - z).square().flatten(1).sum(1) for f, z in zip(maps, released)]
            ).sum(0)
            return misfit / (2 * noise**2) + (images - start).square().flatten(1).sum(1) / (
                2 * max(doubt, 1e-3) ** 2
            )

        images = start.detach().clone().clamp(0, 1).requires_grad_()
        optimiser = torch.optim.Adam([images], lr=self.lr, fused=True)
        best = images.detach().clone()
        lowest = torch.full((len(images),), torch.inf, device=images.device)
        for step in range(self.iterations + 1):
            residual = self.feature_residual(maps, released, images)
            costs = total_cost(images, residual)
            judged = (costs if noise else residual).detach()
            better = judged < lowest
            best = torch.where(better.view(-1, 1, 1, 1), images.detach(), best)
            lowest = torch.where(better, judged, lowest)
            if step == self.iterations:
                break
            optimiser.zero_grad()
            costs.sum().backward(inputs=[images])
            optimiser.step()
            with torch.no_grad():
                images.clamp_(0, 1)
        with torch.no_grad():
            return best, self.feature_residual(maps, released, best)


@dataclass(frozen=True)
class FeatureInverter:
    """Images from features at one rung of the ladder."""

    rung: KnowledgeLevel = KnowledgeLevel.KNOWS_MAP
    decoder: DecoderTraining = field(default_factory=DecoderTraining)
    whitebox: WhiteBox = field(default_factory=WhiteBox)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rung", KnowledgeLevel(self.rung))

    def invert_features(
        self,
        released: Sequence[Tensor],
        public: Tensor,
        generator: torch.Generator,
        *,
        maps: Sequence[FeatureMap] = (),
        shadows: Sequence[FeatureMap] = (),
        labels: tuple[Tensor, Tensor] | None = None,
    ) -> Reconstruction:
        """Images of the records behind ``released``: one tensor (b, ...) a round, rows in step.

        public: (m, c, h, w) public images; maps: the rounds' true maps (rungs knows_map and
        can_query); shadows: as many maps of the same architecture (rung shadow_map); labels: of the
        released rows (b,) and of the public images (m,), where they are known. Raises ValueError
        where the rung's maps are missing."""
        needed = shadows if self.rung is KnowledgeLevel.SHADOW_MAP else maps
        if not released or (
            self.rung is not KnowledgeLevel.NOTHING and len(needed) != len(released)
        ):
            raise ValueError(
                f"rung={self.rung}: {len(released)} releases need as many maps, got {len(needed)}"
            )
        doubt = 0.0
        if self.rung is KnowledgeLevel.NOTHING:
            images = release_as_images(torch.stack(list(released)).mean(0), public)
        else:
            images, doubt = self._decode_features(released, needed, public, generator, labels)
        residual = images.new_zeros(len(images))
        if self.rung is KnowledgeLevel.KNOWS_MAP:
            images, residual = self.whitebox.optimise_images(
                maps, released, images, self.decoder.noise_std, doubt
            )
        return Reconstruction(
            images, torch.full((len(images),), -1, device=images.device), float(residual.mean())
        )

    def _decode_features(
        self,
        released: Sequence[Tensor],
        maps: Sequence[FeatureMap],
        public: Tensor,
        generator: torch.Generator,
        labels: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, float]:
        """Mean of the rounds' decoders, each of which sees the same records through another map,
        and its RMSE on a fifth of the public images, which the decoders are not fitted to where it
        is needed."""
        checked = self.decoder.noise_std and self.rung is KnowledgeLevel.KNOWS_MAP
        split = len(public) - (len(public) // 5 if checked else 0)
        own, known = labels if labels is not None else (None, None)
        classes = 0 if labels is None else int(torch.cat(labels).max()) + 1
        shown = public[:split]
        guesses = []
        checks = []
        for f, z in zip(maps, released):
            with torch.no_grad():
                pairs = torch.cat([f(part) for part in public.split(256)])
            told = None if known is None else known[:split]
            decoder = self.decoder.fit(pairs[:split], shown, generator, told, classes)
            guesses.append(decoder(z, own))
            if split < len(public):
                noise = self.decoder.noise_std * torch.randn(
                    pairs[split:].shape, generator=generator
                ).to(pairs)
                checks.append(
                    decoder(pairs[split:] + noise, None if known is None else known[split:])
                )
        error = (
            float((torch.stack(checks).mean(0) - public[split:]).square().mean().sqrt())
            if checks
            else 0.0
        )
        return torch.stack(guesses).mean(0), error


@accepts_numpy
def release_as_images(released: Tensor, public: Tensor) -> Tensor:
    """The release shown as images: channels averaged, resized, each stretched to [0, 1].

    A release without rows and columns shows nothing; the public mean image stands for it.
    """
    shape = public.shape[1:]
    if released.ndim != 4:
        return public.mean(0).expand(len(released), *shape).clone()
    z = released if released.shape[1] == shape[0] else released.mean(1, keepdim=True)
    z = F.interpolate(z, size=tuple(shape[1:]), mode="bilinear", align_corners=False)
    low = z.flatten(1).amin(1)
    high = z.flatten(1).amax(1)
    z = (z - low.view(-1, 1, 1, 1)) / (high - low).clamp_min(1e-6).view(-1, 1, 1, 1)
    return z.expand(-1, shape[0], -1, -1).clone()


@accepts_numpy
def remove_shared_noise(released: Tensor, batch: int, expected: Tensor) -> Tensor:
    """Subtract noise that a whole batch shares; what stays is the batch mean's own deviation.

    mean(batch) = noise + mean(features), so released - mean(batch) + expected is the feature up to
    a sampling error of deviation / sqrt(batch). released: (n, ...), ``batch`` consecutive rows with
    one noise; expected: (...) mean public feature."""
    if not batch >= 2:
        raise ValueError(f"batch={batch}: at least 2 rows must share a noise tensor")
    return torch.cat([part - part.mean(0) + expected for part in released.split(batch)])


@accepts_numpy
def average_copies(released: Tensor, copies: int) -> Tensor:
    """(copies * n, ...) -> (n, ...): several noised copies of a record averaged, which follow each
    other as whole sets."""
    if not copies >= 1 or len(released) % copies:
        raise ValueError(f"copies={copies}: a positive divisor of {len(released)} rows is needed")
    return released.unflatten(0, (copies, len(released) // copies)).mean(0)


MAP_NAMES = {
    Surface.FEATURES: "feature",
    Surface.SHARED_FEATURES: "feature",
    Surface.SYNTHETIC_REPRESENTATIONS: "projection",
    Surface.PROTOTYPES: "embedding",
}


def true_map(view: View) -> FeatureMap | None:
    """The map that the released features went through, if the view grants it."""
    maps = view.knowledge.maps
    model = view.knowledge.model
    known = maps.get(MAP_NAMES[view.surface])
    if (
        known is None
        and view.surface == Surface.PROTOTYPES
        and model is not None
        and hasattr(model, "features")
    ):
        frozen = copy.deepcopy(model).eval().requires_grad_(False)
        return frozen.features  # type: ignore[return-value]
    return known


def shadow_map(view: View, like: Tensor, generator: torch.Generator) -> FeatureMap | None:
    """A map of the same kind with weights of its own: granted by name, a fresh model, or two
    convolutions."""
    if "shadow" in view.knowledge.maps:
        return view.knowledge.maps["shadow"]
    model = view.knowledge.model
    if view.surface == Surface.PROTOTYPES and model is not None and hasattr(model, "features"):
        other = copy.deepcopy(model).eval().requires_grad_(False)
        draw_weights(other, generator)
        with torch.no_grad():
            fits = other.features(view.knowledge.public_x[:1]).shape[1:] == like.shape[1:]  # type: ignore[operator]
        return other.features if fits else None  # type: ignore[return-value]
    if like.ndim != 4 or tuple(like.shape[2:]) != tuple(view.knowledge.shape[1:]):
        return None
    c = view.knowledge.shape[0]
    other = nn.Sequential(
        nn.utils.skip_init(nn.Conv2d, c, 8, 3, padding=1),
        nn.ReLU(),
        nn.utils.skip_init(nn.Conv2d, 8, like.shape[1], 3, padding=1),
    ).requires_grad_(False)
    draw_weights(other, generator)
    return other.to(like.device)


def released_rows(view: View, capture: Capture, known: FeatureMap | None) -> Tensor:
    """The released rows after what anyone can undo: noise shared over a batch, copies averaged."""
    value = capture.value
    settings = view.knowledge.settings
    rows = value["x"] if "x" in value else class_mean_rows(value)
    copies = int(settings.get("copies", 1)) if view.surface == Surface.FEATURES else 1
    batch = settings.get("broadcast_batch")
    if batch and known is not None and view.surface == Surface.FEATURES:
        with torch.no_grad():
            centre = known(view.knowledge.public_x).mean(0)
        parts = rows.chunk(copies)
        rows = torch.cat([remove_shared_noise(part, int(batch), centre) for part in parts])
    return average_copies(rows, copies) if copies > 1 and len(rows) % copies == 0 else rows


def class_mean_rows(value: Mapping[str, Tensor]) -> Tensor:
    """(m, d): the mean of each class that has records, from class means or from class sums."""
    rows = value["mean"] if "mean" in value else value["sum"]
    if "count" not in value:  # a class without records has a row of zeros
        return rows[rows.flatten(1).any(1)]
    count = value["count"].flatten()
    mean = rows if "mean" in value else rows / count.clamp_min(1)[:, None]
    return mean[count > 0]


def average_captures(view: View, known: FeatureMap | None) -> tuple[Tensor, int]:
    """(rows, number of captures): the mean over all captures with the same records in the same
    order as the first.

    They are of the same client through the same map, so the mean is all that a squared error can
    use: sum_k |f(x) - z_k|^2 = K |f(x) - mean z|^2 and what does not depend on x.
    """
    first, *more = view.captures
    rows = [released_rows(view, first, known)]
    for capture in more:
        names = [n for n in ("y", "count") if n in first.value or n in capture.value]
        in_step = capture.name == first.name and all(
            n in first.value
            and n in capture.value
            and torch.equal(first.value[n], capture.value[n])
            for n in names
        )
        other = released_rows(view, capture, known) if in_step else None
        if other is not None and other.shape == rows[0].shape:
            rows.append(other)
    return torch.stack(rows).mean(0), len(rows)


def released_labels(view: View, rows: int) -> Tensor | None:
    """The class that was released with each row (rows,); None where no labels were released."""
    value = view.captures[0].value
    classes = view.knowledge.classes
    if "count" in value and len(value["count"].flatten()) == classes:
        labels = torch.nonzero(value["count"].flatten() > 0).flatten()
    elif (
        "x" not in value
        and "y" not in value
        and len(class_sums := value.get("mean", value.get("sum", ()))) == classes
    ):
        labels = torch.nonzero(class_sums.flatten(1).any(1)).flatten()
    elif "y" in value and value["y"].ndim == 1 and not value["y"].is_floating_point():
        labels = value["y"][:rows]
    else:
        return None
    return (
        labels if len(labels) == rows and bool(((labels >= 0) & (labels < classes)).all()) else None
    )


@dataclass(frozen=True)
class FeatureInversion(Attack):
    """Records from shared features, on every rung of the knowledge ladder that the view grants.

    Rounds in which the same rows went through the same map are averaged before the inversion.
    Decoders and the search know the stated noise, and the labels where they are released with the
    rows. report: the highest rung that counts. Who knows more can do all that who knows less can:
        the finding carries the best of that rung and those below it."""

    report: KnowledgeLevel = KnowledgeLevel.KNOWS_MAP
    limit: int = 16
    public: int = 500
    decoder: DecoderTraining = field(default_factory=DecoderTraining)
    whitebox: WhiteBox = field(default_factory=WhiteBox)
    name: str = "feature_inversion"
    family = Family.RECONSTRUCTION
    on_gpu = True
    surfaces = frozenset(MAP_NAMES)
    adversaries = ANY_ADVERSARY

    def __post_init__(self) -> None:
        check_counts(self, "limit", "public")
        object.__setattr__(self, "report", KnowledgeLevel(self.report))

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images: those of the highest rung that counts; extra: every rung's, by its name."""
        known = true_map(view)
        rows, captures = average_captures(view, known)
        picked = torch.randperm(len(rows), generator=generator)[: self.limit]
        z = rows[picked].detach()
        public = view.knowledge.public_x[: self.public]
        shadow = shadow_map(view, z, generator)
        own = released_labels(view, len(rows))
        labels = None if own is None else (own[picked], view.knowledge.public_y[: self.public])
        found: dict[str, Tensor] = {}
        for rung, maps in self._available_levels(known, shadow):
            inverter = FeatureInverter(rung, self._decoder_for_view(view, captures), self.whitebox)
            role = {"shadows": maps} if rung is KnowledgeLevel.SHADOW_MAP else {"maps": maps}
            found[str(rung)] = inverter.invert_features(
                [z], public, generator, labels=labels, **role
            ).images
        notes = {"captures": captures, "picked": picked.tolist(), "labels": labels is not None}
        return Evidence(images=found[self._counting(found)[0]], extra=found, notes=notes)

    def _counting(self, found: Mapping[str, Tensor]) -> list[str]:
        """The rungs that were run, from ``report`` down."""
        order = list(KnowledgeLevel)
        return [str(rung) for rung in order[order.index(self.report) :] if str(rung) in found]

    def _decoder_for_view(self, view: View, captures: int) -> DecoderTraining:
        settings = view.knowledge.settings
        if view.surface not in (Surface.FEATURES, Surface.SHARED_FEATURES):
            return self.decoder
        stds = tuple(settings.get("noise_stds") or (settings.get("noise_std", 0.0),))
        stds = () if settings.get("broadcast_batch") else tuple(float(std) for std in stds)
        count = (
            len(stds) if view.surface == Surface.FEATURES else 1
        )  # shared features: one copy per row
        noise = sum(std**2 for std in stds[:count]) ** 0.5 / count if count else 0.0
        return replace(self.decoder, noise_std=noise / captures**0.5)

    @staticmethod
    def _available_levels(
        known: FeatureMap | None, shadow: FeatureMap | None
    ) -> list[tuple[KnowledgeLevel, list[FeatureMap]]]:
        """The rungs that can be run, from the attacker who knows most to the one who knows
        least."""
        rungs: list[tuple[KnowledgeLevel, list[FeatureMap]]] = []
        if known is not None:
            rungs += [(KnowledgeLevel.KNOWS_MAP, [known]), (KnowledgeLevel.CAN_QUERY, [known])]
        if shadow is not None:
            rungs += [(KnowledgeLevel.SHADOW_MAP, [shadow])]
        return [*rungs, (KnowledgeLevel.NOTHING, [])]

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """The finding carries the best rung that counts; ``diagnostics.ladder`` all of them."""
        picked = torch.tensor(evidence.notes.get("picked", []), dtype=torch.int64)
        mine = self._records_of_rows(picked, view, truth)
        keep = mine >= 0 if mine is not None else torch.ones(len(picked), dtype=torch.bool)
        rows = None if mine is None else mine[keep]
        compared = {
            r: compare_with_records(images[keep], view, truth, rows)
            for r, images in evidence.extra.items()
        }
        ladder = {
            rung: {
                k: c.measures[k] for k in ("psnr", "ssim", "lpips", "identified") if k in c.measures
            }
            for rung, c in compared.items()
        }
        counting = self._counting(evidence.extra)
        # records matched, then pictures clearly above every guess, then PSNR
        quality = {name: compared[name].measures for name in counting}
        rung = max(
            counting,
            key=lambda r: (
                quality[r].get("identified") or 0.0,
                quality[r]["pictures"]["clear"],
                quality[r]["psnr"],
            ),
        )
        chosen = compared[rung]
        measures = {**compared[rung].measures, "picked": len(counting)}
        captures = int(evidence.notes.get("captures", 1))
        pairing = "row" if mine is not None else "nearest"
        more = {"ladder": ladder, "rung": rung, "captures": captures, "pairing": pairing}
        measures["diagnostics"] = {
            **measures["diagnostics"],
            **more,
            "labels_known": bool(evidence.notes["labels"]),
        }
        words = [
            f"{captures} rounds' releases joined" if captures > 1 else "",
            describe_no_gain(measures),
        ]
        if any(words):
            measures["note"] = "; ".join(filter(None, words))
        return Finding(
            view.surface, self.name, self.family, view.adversary, measures, chosen.figures
        )

    @staticmethod
    def _records_of_rows(picked: Tensor, view: View, truth: Truth) -> Tensor | None:
        """Which record each picked row stems from (-1: none of them), where the release has one row
        per record."""
        if (
            view.surface not in (Surface.FEATURES, Surface.SHARED_FEATURES)
            or truth.rows is None
            or not len(picked)
        ):
            return None
        rows = len(average_captures(view, true_map(view))[0])
        if rows <= int(truth.rows.max()) or rows > 2 * len(truth.rows):
            return None
        where = truth.rows.device
        records = torch.full((rows,), -1, device=where)
        records[truth.rows] = torch.arange(len(truth.rows), device=where)
        found = records[picked]
        labels = released_labels(view, rows)
        wrong = labels is not None and bool(
            (truth.y[found[found >= 0]] != labels[picked][found >= 0]).any()
        )
        return None if wrong or bool((found < 0).all()) else found
