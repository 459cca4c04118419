"""From shared features back to images, for four attackers with decreasing knowledge, and as an
attack of the audit.

Each level of the knowledge ladder names what the attacker has, and ``FeatureInverter`` uses only
that. A small decoder, trained on public pairs, turns features into images; an attacker with the map
improves its guess by white-box optimisation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.inversion.drawn_weights import draw_weights, uninitialised_layer
from attacks.inversion.evaluation import (
    ComparedImages,
    class_mean_images,
    compare_with_records,
    describe_no_gain,
)
from attacks.inversion.gradient_matching import mean_total_variation
from attacks.inversion.released_rows import (
    MAP_NAMES,
    FeatureMap,
    average_captures,
    release_as_images,
    released_labels,
    shadow_map,
    true_map,
)
from attacks.inversion.victim import Reconstruction
from attacks.measures import ReconstructionMeasures
from attacks.tensors import as_factor, draw_ahead
from attacks.types import (
    ANY_ADVERSARY,
    Attack,
    Evidence,
    Family,
    Finding,
    Surface,
    Truth,
    View,
    is_image,
)
from attacks.validation import check_counts, check_non_negative, check_positive

VALIDATION_SHARE = 5  # one in so many public images tests a decoder, if noise has to be weighed
LADDER_MEASURES = ("psnr", "ssim", "lpips", "identified")


class Decoder(nn.Module):
    """(b, *feature shape) -> (b, c, h, w) in [0, 1].

    It works at half the image's size: full-size maps are folded to it (four pixels to four
    channels), others are resized, vectors pass a linear layer; the image is unfolded at the end.
    Inputs are standardised by the mean and deviation of the training features. centres (C, c, h,
    w): images of the classes, from which it starts if labels are passed.
    """

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
        self.centres: Tensor | None = None
        if centres is not None:
            self.centres = centres.clamp(0.02, 0.98).logit()
        self.mean = features.mean(0, keepdim=True)
        self.spread = features.std().clamp_min(1e-6)
        self.spatial = features.ndim == 4
        full_size = (2 * self.middle[0], 2 * self.middle[1])
        self.folded = self.spatial and tuple(features.shape[-2:]) == full_size
        self.enter: nn.Module = nn.Identity()
        if self.folded:
            channels = 4 * features.shape[1]
        elif self.spatial:
            channels = features.shape[1]
        else:
            channels = width
            flat = features.flatten(1).shape[1]
            outputs = width * self.low[0] * self.low[1]
            self.enter = uninitialised_layer(nn.Linear, flat, outputs)
        self.first, self.second, self.third = (
            uninitialised_layer(nn.Conv2d, inputs, width, 3, padding=1)
            for inputs in (channels, width, width)
        )
        self.last = uninitialised_layer(nn.Conv2d, width, 4 * c, 3, padding=1)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        z = (features - self.mean) / self.spread
        if not self.spatial:
            z = F.relu(self.enter(z.flatten(1))).unflatten(1, (-1, *self.low))
        if self.folded:
            z = F.pixel_unshuffle(z, 2)
        z = F.relu(self.first(z))
        if z.shape[-2:] != self.middle:
            z = F.interpolate(z, self.middle, mode="bilinear", align_corners=False)
        z = F.relu(self.third(F.relu(self.second(z))))
        image = F.pixel_shuffle(self.last(z), 2)[..., : self.size[0], : self.size[1]]
        if self.centres is not None and labels is not None:
            image = image + self.centres[labels]
        return torch.sigmoid(image)


@dataclass(frozen=True)
class DecoderTraining:
    """Adam on the squared error; lr halves at two thirds (He, Zhang and Lee 2019, section 4.2)."""

    steps: int = 300
    batch: int = 64
    width: int = 32
    lr: float = 2e-3
    noise_std: float = 0.0  # of fresh noise, added to the features at each step

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

        labels: (m,), if those of the released features are known too; classes: their number,
        absent ones included."""
        centres = None
        if labels is not None:
            centres = class_mean_images(images, labels, classes)
        shape = (images.shape[1], images.shape[2], images.shape[3])
        decoder = Decoder(features, shape, self.width, centres).to(features.device)
        draw_weights(decoder, generator)
        optimiser = torch.optim.Adam(decoder.parameters(), lr=self.lr, fused=True)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [2 * self.steps // 3], 0.5)
        draws = draw_ahead(
            lambda: self._draw_step(features, generator), self.steps, features.device
        )
        for rows, *noise in draws:
            batch = features[rows]
            if noise:
                batch = batch + self.noise_std * noise[0].to(batch)
            batch_labels = None
            if labels is not None:
                batch_labels = labels[rows]
            optimiser.zero_grad()
            F.mse_loss(decoder(batch, batch_labels), images[rows]).backward()
            optimiser.step()
            schedule.step()
        return decoder.eval().requires_grad_(False)

    def _draw_step(self, features: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The rows of one step, and their noise if there is any."""
        rows = torch.randint(len(features), (min(self.batch, len(features)),), generator=generator)
        if not self.noise_std:
            return (rows,)
        shape = (len(rows), *features.shape[1:])
        return rows, torch.randn(shape, generator=generator)


class KnowledgeLevel(StrEnum):
    """What the attacker knows about the map from images to features, from most to least."""

    KNOWS_MAP = "knows_map"  # has it: white-box optimisation from a decoder's guess
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
        self,
        maps: Sequence[FeatureMap],
        released: Sequence[Tensor],
        images: Tensor,
        *,
        apart: bool = False,
    ) -> Tensor:
        """(b,) squared feature error relative to the released features' variance, summed over the
        maps. apart: each row's relative to its own numbers' variance, as if it were released
        alone."""
        gaps = []
        for feature_map, z in zip(maps, released):
            error = (feature_map(images) - z).square().flatten(1).mean(1)
            variance = z.var()
            if apart:
                variance = z.flatten(1).var(1)
            gaps.append(error / variance.clamp_min(1e-12))
        return torch.stack(gaps).sum(0)

    @staticmethod
    def _log_posterior_cost(
        maps: Sequence[FeatureMap],
        released: Sequence[Tensor],
        images: Tensor,
        start: Tensor,
        noise: float,
        doubt: float,
    ) -> Tensor:
        """(b,) minus the log posterior of images under noise of the features and a Gaussian prior
        around the start."""
        # sum_k |f_k(x) - z_k|^2 / (2 noise^2) + |x - start|^2 / (2 doubt^2)
        errors = []
        for feature_map, z in zip(maps, released):
            errors.append((feature_map(images) - z).square().flatten(1).sum(1))
        misfit = torch.stack(errors).sum(0)
        distance = (images - start).square().flatten(1).sum(1)
        return misfit / (2 * noise**2) + distance / (2 * max(doubt, 1e-3) ** 2)

    def optimise_images(
        self,
        maps: Sequence[FeatureMap],
        released: Sequence[Tensor],
        start: Tensor,
        noise: float = 0.0,
        doubt: float = 0.0,
        *,
        apart: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The best images (b, c, h, w) on the way from ``start``, and their residuals (b,).

        noise: standard deviation of each released number's Gaussian noise; above 0, the images are
        the most probable ones, with doubt the RMSE of the start; apart: as of
        ``feature_residual``.
        """
        images = start.detach().clone().clamp(0, 1).requires_grad_()
        optimiser = torch.optim.Adam([images], lr=self.lr, fused=True)
        best = images.detach().clone()
        lowest = torch.full((len(images),), torch.inf, device=images.device)
        for step in range(self.iterations + 1):
            residual = self.feature_residual(maps, released, images, apart=apart)
            if noise:
                costs = self._log_posterior_cost(maps, released, images, start, noise, doubt)
                criterion = costs.detach()
            else:
                costs = residual
                if is_image(images.shape[1:]):
                    costs = costs + self.tv * mean_total_variation(images)
                criterion = residual.detach()
            better = criterion < lowest
            best = torch.where(as_factor(better, images), images.detach(), best)
            lowest = torch.where(better, criterion, lowest)
            if step == self.iterations:
                break
            optimiser.zero_grad()
            costs.sum().backward(inputs=[images])
            optimiser.step()
            with torch.no_grad():
                images.clamp_(0, 1)
        with torch.no_grad():
            return best, self.feature_residual(maps, released, best, apart=apart)


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
        guess: Tensor | None = None,
    ) -> Reconstruction:
        """Images of the records behind released features.

        Args:
            released: one tensor (b, ...) a round, rows in the same order.
            public: public images (m, c, h, w).
            generator: of the decoder's weights and batches.
            maps: the rounds' true maps (rungs knows_map and can_query).
            shadows: as many maps of the same architecture (rung shadow_map).
            labels: of the released rows (b,) and of the public images (m,), if they are known.
            guess: images (b, c, h, w) that decoders of ``maps`` gave already, of features without
                noise; None trains decoders.

        Raises:
            ValueError: if the rung's maps are missing.
        """
        needed = maps
        if self.rung is KnowledgeLevel.SHADOW_MAP:
            needed = shadows
        has_maps = self.rung is KnowledgeLevel.NOTHING or len(needed) == len(released)
        if not released or not has_maps:
            raise ValueError(
                f"rung={self.rung}: {len(released)} releases need as many maps, got {len(needed)}"
            )
        doubt = 0.0
        if self.rung is KnowledgeLevel.NOTHING:
            images = release_as_images(torch.stack(list(released)).mean(0), public)
        elif guess is not None:
            images = guess
        else:
            images, doubt = self._decode_features(released, needed, public, generator, labels)
        residual = images.new_zeros(len(images))
        if self.rung is KnowledgeLevel.KNOWS_MAP:
            images, residual = self.whitebox.optimise_images(
                maps, released, images, self.decoder.noise_std, doubt
            )
        unknown = torch.full((len(images),), -1, device=images.device)
        return Reconstruction(images, unknown, float(residual.mean()))

    def _decode_features(
        self,
        released: Sequence[Tensor],
        maps: Sequence[FeatureMap],
        public: Tensor,
        generator: torch.Generator,
        labels: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, float]:
        """The mean guess of the rounds' decoders, which see the same records through different
        maps, and its RMSE on held-out public images; 0 if the search needs no RMSE."""
        split = len(public)
        if self.decoder.noise_std and self.rung is KnowledgeLevel.KNOWS_MAP:
            split = len(public) - len(public) // VALIDATION_SHARE
        row_labels = None
        train_labels = None
        test_labels = None
        classes = 0
        if labels is not None:
            row_labels, public_labels = labels
            train_labels = public_labels[:split]
            test_labels = public_labels[split:]
            classes = int(torch.cat(labels).max()) + 1
        guesses = []
        test_guesses = []
        for feature_map, z in zip(maps, released):
            with torch.no_grad():
                features = torch.cat([feature_map(batch) for batch in public.split(256)])
            decoder = self.decoder.fit(
                features[:split], public[:split], generator, train_labels, classes
            )
            guesses.append(decoder(z, row_labels))
            if split < len(public):
                test_features = features[split:]
                normal = torch.randn(test_features.shape, generator=generator)
                noise = self.decoder.noise_std * normal.to(features)
                test_guesses.append(decoder(test_features + noise, test_labels))
        error = 0.0
        if test_guesses:
            gap = torch.stack(test_guesses).mean(0) - public[split:]
            error = float(gap.square().mean().sqrt())
        return torch.stack(guesses).mean(0), error


@dataclass(frozen=True)
class FeatureInversion(Attack):
    """Records from shared features, on every rung of the knowledge ladder that the view grants.

    Rounds in which the same rows went through the same map are averaged before the inversion.
    Decoders and the search know the stated noise, and the labels if they are released with the
    rows. report: the highest rung that counts; as an attacker who knows more can do all that one
    who knows less can, the finding has the best of that rung and those below it.
    """

    report: KnowledgeLevel = KnowledgeLevel.KNOWS_MAP
    limit: int = 16
    public: int = 500
    decoder: DecoderTraining = field(default_factory=DecoderTraining)
    whitebox: WhiteBox = field(default_factory=WhiteBox)
    name: str = "feature_inversion"
    images_only = True
    family = Family.RECONSTRUCTION
    on_gpu = True
    surfaces = frozenset(MAP_NAMES)
    adversaries = ANY_ADVERSARY

    def __post_init__(self) -> None:
        check_counts(self, "limit", "public")
        object.__setattr__(self, "report", KnowledgeLevel(self.report))

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images: those of the highest rung that counts; extra: every rung's, by its name."""
        feature_map = true_map(view)
        rows, captures = average_captures(view, feature_map)
        picked = torch.randperm(len(rows), generator=generator)[: self.limit]
        z = rows[picked].detach()
        public = view.knowledge.public_x[: self.public]
        shadow = shadow_map(view, z, generator)
        row_labels = released_labels(view, len(rows))
        labels = None
        if row_labels is not None:
            labels = (row_labels[picked], view.knowledge.public_y[: self.public])
        decoder = self._decoder_for_view(view, captures)
        guess = None
        if feature_map is not None and not decoder.noise_std:
            # who knows the map and who queries it train on the same pairs
            query = FeatureInverter(KnowledgeLevel.CAN_QUERY, decoder, self.whitebox)
            guess = query.invert_features(
                [z], public, generator, maps=[feature_map], labels=labels
            ).images
        images: dict[str, Tensor] = {}
        for rung, maps in self._available_levels(feature_map, shadow):
            inverter = FeatureInverter(rung, decoder, self.whitebox)
            if rung is KnowledgeLevel.SHADOW_MAP:
                reconstruction = inverter.invert_features(
                    [z], public, generator, shadows=maps, labels=labels
                )
            else:
                reconstruction = inverter.invert_features(
                    [z], public, generator, maps=maps, labels=labels, guess=guess
                )
            images[str(rung)] = reconstruction.images
        notes = {"captures": captures, "picked": picked.tolist(), "labels": labels is not None}
        return Evidence(images=images[self._counted_rungs(images)[0]], extra=images, notes=notes)

    def _counted_rungs(self, images: Mapping[str, Tensor]) -> list[str]:
        """The rungs that were run, from ``report`` down."""
        order = list(KnowledgeLevel)
        return [str(rung) for rung in order[order.index(self.report) :] if str(rung) in images]

    def _decoder_for_view(self, view: View, captures: int) -> DecoderTraining:
        settings = view.knowledge.settings
        if view.surface not in (Surface.FEATURES, Surface.SHARED_FEATURES):
            return self.decoder
        stds = [
            float(std) for std in settings.get("noise_stds") or (settings.get("noise_std", 0.0),)
        ]
        if settings.get("broadcast_batch"):
            stds = []
        if view.surface == Surface.SHARED_FEATURES:
            copies = 1
        else:
            copies = len(stds)
        noise = 0.0
        if copies:
            noise = sum(std**2 for std in stds[:copies]) ** 0.5 / copies
        return replace(self.decoder, noise_std=noise / captures**0.5)

    @staticmethod
    def _available_levels(
        feature_map: FeatureMap | None, shadow: FeatureMap | None
    ) -> list[tuple[KnowledgeLevel, list[FeatureMap]]]:
        """The rungs that can be run, from the attacker who knows most to the one who knows
        least."""
        rungs: list[tuple[KnowledgeLevel, list[FeatureMap]]] = []
        if feature_map is not None:
            rungs.append((KnowledgeLevel.KNOWS_MAP, [feature_map]))
            rungs.append((KnowledgeLevel.CAN_QUERY, [feature_map]))
        if shadow is not None:
            rungs.append((KnowledgeLevel.SHADOW_MAP, [shadow]))
        return [*rungs, (KnowledgeLevel.NOTHING, [])]

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """The finding has the best rung that counts; ``diagnostics.ladder`` has all of them."""
        picked = torch.tensor(evidence.notes.get("picked", []), dtype=torch.int64)
        records = self._records_of_rows(picked, view, truth)
        pairing = "nearest"
        has_record = torch.ones(len(picked), dtype=torch.bool)
        rows = None
        if records is not None:
            pairing = "row"
            has_record = records >= 0
            rows = records[has_record]
        compared = {}
        ladder = {}
        comparison: ComparedImages | None = None
        for rung, images in evidence.extra.items():
            comparison = compare_with_records(images[has_record], view, truth, rows, comparison)
            compared[rung] = comparison
            row = comparison.measures.to_row()
            ladder[rung] = {name: row[name] for name in LADDER_MEASURES if name in row}
        counted = self._counted_rungs(evidence.extra)
        best = max(counted, key=lambda rung: _rank_reconstruction(compared[rung].measures))
        measures = compared[best].measures
        captures = int(evidence.notes.get("captures", 1))
        diagnostics = {
            **(measures.diagnostics or {}),
            "ladder": ladder,
            "rung": best,
            "captures": captures,
            "pairing": pairing,
            "labels_known": bool(evidence.notes["labels"]),
        }
        notes = []
        if captures > 1:
            notes.append(f"{captures} rounds' releases joined")
        no_gain = describe_no_gain(measures)
        if no_gain:
            notes.append(no_gain)
        measures = replace(
            measures,
            picked=len(counted),
            diagnostics=diagnostics,
            note="; ".join(notes) or None,
        )
        return Finding(
            view.surface,
            self.name,
            self.family,
            view.adversary,
            measures,
            compared[best].figures,
        )

    @staticmethod
    def _records_of_rows(picked: Tensor, view: View, truth: Truth) -> Tensor | None:
        """Which record each picked row stems from (-1: none of them), if the release has one row a
        record, else None."""
        if view.surface not in (Surface.FEATURES, Surface.SHARED_FEATURES):
            return None
        if truth.rows is None or not len(picked):
            return None
        rows = len(average_captures(view, true_map(view))[0])
        if rows <= int(truth.rows.max()) or rows > 2 * len(truth.rows):
            return None
        device = truth.rows.device
        record_of_row = torch.full((rows,), -1, device=device)
        record_of_row[truth.rows] = torch.arange(len(truth.rows), device=device)
        records = record_of_row[picked]
        has_record = records >= 0
        if not bool(has_record.any()):
            return None
        labels = released_labels(view, rows)
        if labels is not None:
            true_labels = truth.y[records[has_record]]
            if bool((true_labels != labels[picked][has_record]).any()):
                return None
        return records


def _rank_reconstruction(measures: ReconstructionMeasures) -> tuple[float, int, float]:
    """Records identified, then images clearly above every guess, then PSNR."""
    clear = (measures.pictures or {}).get("clear", 0)
    return measures.identified or 0.0, clear, measures.psnr or 0.0
