"""Images whose training gradient is that of the client's records, class by class, in networks along their training.

Zhao, Mopuri and Bilen, "Dataset Condensation with Gradient Matching" (ICLR 2021), algorithm 1: for each new network, and
T times as it is trained on the images, the images of every class take a step towards the records' gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from attacks.ranges import check_below_one, check_counts, check_positive
from privdd.core.keys import Keys
from privdd.core.long_loops import turns
from privdd.core.packed import packed
from privdd.core.types import Records, Shard, State
from privdd.distillation.class_subsets import Cells, one_world
from privdd.distillation.gradient_matching import gradient_distance, slopes
from privdd.distillation.initial_images import check_init, initial_images, remembered
from privdd.distillation.real_batches import Batch, real_batches
from privdd.distillation.stand_ins import Distiller
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, initial
from privdd.models.build import skeleton
from privdd.training.contrastive import as_records
from privdd.training.local import local_sgd


@dataclass(frozen=True, kw_only=True)
class GradientImages(Distiller):
    """ipc: images per class; start: real | noise | statistics; networks: new networks, one after the other; matches:
    steps on the images in each; batch: real records per class and step; lr, momentum: SGD on the images; between matches
    the network is trained on all images for network_steps of SGD at network_lr, in batches of network_batch.
    """

    ipc: int = 10
    start: Literal["real", "noise", "statistics"] = "real"
    networks: int = 1000
    matches: int = 10
    batch: int = 256
    lr: float = 0.01
    momentum: float = 0.5
    network_steps: int = 50
    network_lr: float = 0.01
    network_batch: int = 256

    def __post_init__(self) -> None:
        check_init(self.start)
        check_counts(self, "ipc", "matches", "batch", "network_steps", "network_batch", under="virtual.")
        check_counts(self, "networks", least=0, under="virtual.")
        check_positive(self, "lr", "network_lr", under="virtual.")
        check_below_one(self, "momentum", under="virtual.")

    def distil(self, model: ModelSpec, shard: Shard, ctx: ClientContext) -> State:
        cells = one_world(shard.train, shard.classes)
        images = initial_images(self.start, cells, self.ipc, shard.shape, ctx.keys.fold("start")).to(shard.train.x)
        count = self.networks if len(cells) else 0
        streams, law = ctx.public("gradient", "networks"), partial(initial, model, shard.shape, shard.classes)
        starts = packed(lambda k: law(streams.fold(k).torch()), count, images.device)
        gradient = ctx.keys.fold("gradient")
        seen = real_batches(cells, self.batch, partial(self._stream, gradient), count * self.matches)
        labels = cells.labels.to(images.device).repeat_interleave(self.ipc)
        for k, weights in zip(turns(range(count)), starts):
            network = skeleton(model, shard.shape, shard.classes)
            images = self._along(network, weights, cells, (images, labels), seen, gradient.fold(k))
        return remembered(images, cells.labels)

    def _stream(self, keys: Keys, step: int) -> Keys:
        """Of the real records that step ``step`` of all sees."""
        return keys.fold(step // self.matches, "batch", step % self.matches)

    def _along(
        self,
        network: nn.Module,
        state: State,
        cells: Cells,
        start: tuple[Tensor, Tensor],
        seen: Iterator[Batch],
        keys: Keys,
    ) -> Tensor:
        """The images (M, ipc, c, h, w) after ``matches`` steps along one network's training, on the next batches of ``seen``.

        start: images and the class (M * ipc,) of each.
        """
        images, labels = start
        velocity = torch.zeros_like(images)
        for t, batch in zip(turns(range(self.matches)), seen):
            if t:
                whole = as_records(images.flatten(0, 1), labels)
                state = self._trained(network, state, whole, keys.fold("training", t))
            velocity = self.momentum * velocity + matching_slope(network, state, cells, images, batch)
            images = images - self.lr * velocity
        return images

    def _trained(self, network: nn.Module, state: State, images: Records, keys: Keys) -> State:
        length = {"lr": self.network_lr, "steps": self.network_steps, "batch_size": self.network_batch}
        return local_sgd(network, state, images, generator=keys.torch(), **length)[0]  # type: ignore[arg-type]


def matching_slope(
    network: nn.Module, state: Mapping[str, Tensor], cells: Cells, images: Tensor, batch: Batch
) -> Tensor:
    """Gradient (M, ipc, c, h, w), by the images, of the distance of each class's gradient to that of real records."""
    parts = []
    for group, own, at in zip(cells.groups, images, batch.at.split([rows.shape[1] for rows in batch.taken])):
        target = slopes(network, state, cells.pool.x[at], cells.pool.y[at])
        x = own.detach().requires_grad_(True)
        found = slopes(network, state, x, torch.full((len(own),), group.label, device=own.device), graph=True)
        parts.append(torch.autograd.grad(gradient_distance(found, target), x)[0])
    return torch.stack(parts)
