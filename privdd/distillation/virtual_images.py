"""Virtual images: what a client trains on in place of its records.

A distiller makes them once, or the records stand for themselves. FedLGD's (Huang et al. 2024,
section 3.3.1 and equation 1): a long first distillation by plain distribution matching in new
random networks, then short refinements in the current global feature extractor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.validation import check_counts
from privdd.core.rng import Keys
from privdd.core.types import ClientData, Records, RecordShape, State, Values
from privdd.distillation.class_cells import (
    ClassCells,
    carry_over_images,
    check_init,
    draw_initial_images,
    draw_noise_images,
    images_to_memory,
    single_client_cells,
    start_streams,
)
from privdd.distillation.distribution_matching import (
    MatchingSettings,
    MatchingStreams,
    Networks,
    fixed_network,
    fresh_networks,
    match_distributions,
    record_transform_of,
)
from privdd.distillation.private_matching import draw_public_maps, match_embeddings
from privdd.federated.audit_hooks import RecordTransform
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, build_skeleton, initial
from privdd.training.sgd import Loss

# the number: of noised reads
MatchingStage = tuple[MatchingSettings, Networks, MatchingStreams, int]
# where a client's memory keeps them: images/x (M, ipc, c, h, w) and images/label (M,)
IMAGES_PREFIX = "images/"


class Distiller(ABC):
    """How a client's images are made. Subclasses are frozen dataclasses that hold settings only."""

    @abstractmethod
    def distil(self, model: ModelSpec, shard: ClientData, ctx: ClientContext) -> State:
        """The images of each class that the client holds, for its memory (see IMAGES_PREFIX), in
        networks like ``model``."""

    def replace_records(self, images: State, shard: ClientData) -> ClientData:
        """The client with its images, one after the other by class, where its records were.

        Records that zero-out adjacency blackened are gone too: what they would have changed is in
        the images."""
        x = images["images/x"]
        label = images["images/label"]
        image_records = as_records(
            x.flatten(0, 1), label.to(x.device).repeat_interleave(x.shape[1])
        )
        return replace(shard, train=image_records, nulls=None)

    def without_matching(self) -> Distiller | None:
        """The same with no matching step; None if it matches nothing."""
        return None

    @property
    def mixes_records(self) -> bool:
        """Whether one image may hold several records, and one record be in several images."""
        return True

    def record_transform(self, shape: RecordShape) -> RecordTransform | None:
        """How records of ``shape`` (c, h, w) are transformed at random before they are distilled;
        None if they are not."""
        return None


@dataclass(frozen=True)
class OwnRecords(Distiller):
    """No distillation: the client's records stand for themselves. The grid's control, and the
    identity in tests."""

    def distil(self, model: ModelSpec, shard: ClientData, ctx: ClientContext) -> State:
        return {}

    def replace_records(self, images: State, shard: ClientData) -> ClientData:
        return shard

    @property
    def mixes_records(self) -> bool:
        return False


def images_in_memory(memory: State) -> State:
    """The part of a client's memory that its distiller made."""
    return {name: value for name, value in memory.items() if name.startswith(IMAGES_PREFIX)}


def replace_by_images(
    distiller: Distiller, model: ModelSpec, memory: State, shard: ClientData, ctx: ClientContext
) -> tuple[ClientData, State]:
    """(the client as its method sees it, the images to remember): made once, in the first round
    that needs them."""
    images = images_in_memory(memory) or distiller.distil(model, shard, ctx)
    return distiller.replace_records(images, shard), images


@dataclass(frozen=True, kw_only=True)
class VirtualImages(Distiller):
    """How a client's virtual images are distilled, by distribution matching.

    ipc: images per class; start: real | noise | statistics; released_statistics: class statistics
    as the published code computes them (see ``class_statistics``); warmup, refine: settings of the
    first distillation and of each refinement; warmup_reads, refine_reads: noised reads of the
    records that each takes where a mechanism is set for "embedding".
    """

    warmup: MatchingSettings
    refine: MatchingSettings
    ipc: int = 10
    start: Literal["real", "noise", "statistics"] = "statistics"
    released_statistics: bool = False
    warmup_reads: int = 8
    refine_reads: int = 2

    def __post_init__(self) -> None:
        check_counts(self, "ipc", "warmup_reads", "refine_reads", under="virtual.")
        check_init(self.start)

    def record_transform(self, shape: RecordShape) -> RecordTransform | None:
        """The first distillation's, which all images come from; the refinements' if that one reads
        records as they are."""
        return record_transform_of(self.warmup.augment, shape) or record_transform_of(
            self.refine.augment, shape
        )

    def without_matching(self) -> VirtualImages:
        still = {name: replace(getattr(self, name), iterations=0) for name in ("warmup", "refine")}
        return replace(self, **still)

    def distil(self, model: ModelSpec, shard: ClientData, ctx: ClientContext) -> State:
        """The images of the first distillation, in new networks."""
        cells = single_client_cells(shard.train, shard.classes)
        stages = self.matching_stages(model, {}, shard, ctx, first=True, refine=False)
        return images_to_memory(self.distil_cells(cells, {}, stages, shard, ctx), cells.labels)

    def matching_stages(
        self,
        spec: ModelSpec,
        broadcast: Values,
        shard: ClientData,
        ctx: ClientContext,
        *,
        first: bool,
        refine: bool,
    ) -> list[MatchingStage]:
        """The matching runs of this round."""
        model = build_skeleton(spec, shard.shape, shard.classes)
        stages = []
        if first:
            law = partial(initial, spec, shard.shape, shard.classes)
            device = shard.train.x.device
            networks = fresh_networks(model, law, ctx.public("warmup", "networks"), device=device)
            stages.append(
                (self.warmup, networks, MatchingStreams.of_round(ctx, "warmup"), self.warmup_reads)
            )
        if refine:
            networks = fixed_network(model, broadcast["model"])
            stages.append(
                (self.refine, networks, MatchingStreams.of_round(ctx, "refine"), self.refine_reads)
            )
        return stages

    def distil_cells(
        self,
        cells: ClassCells,
        memory: State,
        stages: list[MatchingStage],
        shard: ClientData,
        ctx: ClientContext,
        own: Sequence[Keys] | None = None,
    ) -> Tensor:
        """The images (M, ipc, c, h, w) of every cell after this round's ``stages``; ``own``: see
        ``start_streams``."""
        total = len(cells.pool) if self.released_statistics else None
        streams = start_streams(cells, ctx.keys, own)
        images = draw_initial_images(self.start, cells, self.ipc, shard.shape, streams, total=total)
        images = carry_over_images(images.to(shard.train.x), cells.labels, memory)
        for settings, networks, matching_streams, _ in stages:
            images = match_distributions(cells, images, networks, settings, matching_streams)
        return images

    def distil_protected(
        self, memory: State, stages: list[MatchingStage], shard: ClientData, ctx: ClientContext
    ) -> tuple[Tensor, Tensor]:
        """Images (C, ipc, c, h, w) and classes (C,) of the public list, by noised reads of the
        records alone.

        Raises ValueError unless the images start as noise.
        """
        if self.start != "noise":
            raise ValueError(
                f"virtual.start={self.start!r}: a guarantee needs noise, any other start "
                "reads the records"
            )
        labels = torch.tensor(ctx.problem.class_list)
        images = draw_noise_images(labels, self.ipc, shard.shape, ctx.keys.fold("start")).to(
            shard.train.x
        )
        images = carry_over_images(images, labels, memory)
        for settings, networks, streams, reads in stages:
            views = draw_public_maps(networks, reads, shard.shape, settings, streams)
            images = match_embeddings(images, views, shard.train, settings, ctx)
        return images, labels


def as_records(x: Tensor, y: Tensor) -> Records:
    """Images (m, c, h, w) and labels (m,) as records with ids of their own."""
    return Records(x, y, torch.arange(len(y), device=y.device))


def tied_loss(shared: Records, weight: float, temperature: float, regulariser: str) -> Loss:
    """Equation 2: cross-entropy of a batch + weight * supervised contrast of batch and all of
    ``shared``; or, with regulariser "mmd" (figure 3a), + weight * MMD between the two."""

    def batch_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        features = net.features(x)  # type: ignore[operator]
        anchors = net.features(shared.x)  # type: ignore[operator]
        if regulariser == "contrastive":
            tie = supervised_contrastive(
                torch.cat([features, anchors]), torch.cat([y, shared.y]), temperature
            )
        else:
            tie = class_mmd(features, y, anchors, shared.y)
        return F.cross_entropy(net.head(features), y) + weight * tie  # type: ignore[operator]

    return batch_loss


def class_mmd(a: Tensor, a_labels: Tensor, b: Tensor, b_labels: Tensor) -> Tensor:
    """Mean over common classes of the squared MMD (Gretton et al. 2012, biased, at most 2) with a
    Gaussian kernel as wide as the mean distance, as the released code bounds it; features (n, d) ->
    scalar; 0 with none."""
    common = [c for c in a_labels.unique().tolist() if bool((b_labels == c).any())]
    gaps = [gaussian_mmd(a[a_labels == c], b[b_labels == c]) for c in common]
    return torch.stack(gaps).mean() if gaps else a.sum() * 0


def gaussian_mmd(a: Tensor, b: Tensor) -> Tensor:
    """Squared MMD of two samples (n, d), (m, d), in [0, 2]."""
    rows = torch.cat([a, b])
    distances = (rows[:, None] - rows[None, :]).square().sum(2)
    kernel = torch.exp(-distances / distances.detach().mean().clamp_min(1e-12))
    n = len(a)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


def supervised_contrastive(features: Tensor, labels: Tensor, temperature: float = 0.07) -> Tensor:
    """Khosla et al. 2020, equation 2, mean over anchors; features (b, d), labels (b,) -> scalar.

    Features are normalised to length 1. An anchor without another example of its class counts
    nothing; with no such pair at all the loss is 0.
    """
    z = F.normalize(features, dim=1)
    logits = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_p = logits - torch.logsumexp(logits.masked_fill(itself, -torch.inf), 1, keepdim=True)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    pairs = positive.sum(1)
    anchors = pairs > 0
    if not bool(anchors.any()):
        return features.sum() * 0
    return -((log_p * positive).sum(1)[anchors] / pairs[anchors]).mean()
