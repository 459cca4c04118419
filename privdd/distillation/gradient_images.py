"""Images whose training gradient is that of the client's records, class by class, in networks along their training.

Zhao, Mopuri and Bilen, "Dataset Condensation with Gradient Matching" (ICLR 2021), algorithm 1: for each new network, and
T times as it is trained on the images, the images of every class take a step towards the records' gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attacks.ranges import check_below_one, check_counts, check_positive
from privdd.core.keys import Keys
from privdd.core.long_loops import turns
from privdd.core.types import Shard, State
from privdd.distillation.class_subsets import Cells, one_world
from privdd.distillation.gradient_matching import gradient_distance, slopes
from privdd.distillation.initial_images import check_init, initial_images, remembered
from privdd.distillation.sampling import priorities, taken
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
        for k in turns(range(self.networks if len(cells) else 0)):
            weights = initial(model, shard.shape, shard.classes, ctx.public("gradient", "networks").fold(k).torch())
            network = skeleton(model, shard.shape, shard.classes)
            weights = {name: value.to(images.device) for name, value in weights.items()}
            images = self._along(network, weights, cells, images, ctx.keys.fold("gradient", k))
        return remembered(images, cells.labels)

    def _along(self, network: nn.Module, state: State, cells: Cells, images: Tensor, keys: Keys) -> Tensor:
        """The images (M, ipc, c, h, w) after ``matches`` steps along one network's training."""
        velocity = torch.zeros_like(images)
        for t in turns(range(self.matches)):
            if t:
                state = self._trained(network, state, images, cells, keys.fold("training", t))
            gradient = matching_slope(network, state, cells, images, self.batch, keys.fold("batch", t))
            velocity = self.momentum * velocity + gradient
            images = images - self.lr * velocity
        return images

    def _trained(self, network: nn.Module, state: State, images: Tensor, cells: Cells, keys: Keys) -> State:
        whole = as_records(images.flatten(0, 1), cells.labels.to(images.device).repeat_interleave(self.ipc))
        length = {"lr": self.network_lr, "steps": self.network_steps, "batch_size": self.network_batch}
        return local_sgd(network, state, whole, generator=keys.torch(), **length)[0]  # type: ignore[arg-type]


def matching_slope(
    network: nn.Module, state: Mapping[str, Tensor], cells: Cells, images: Tensor, batch: int, keys: Keys
) -> Tensor:
    """Gradient (M, ipc, c, h, w), by the images, of the distance of each class's gradient to that of real records."""
    priority, parts = priorities(cells.pool.ids, keys), []
    for group, own in zip(cells.groups, images):
        at = group.at[taken(priority[group.at], group.present, batch)[0]]
        target = slopes(network, state, cells.pool.x[at], cells.pool.y[at])
        x = own.detach().requires_grad_(True)
        found = slopes(network, state, x, torch.full((len(own),), group.label, device=own.device), graph=True)
        parts.append(torch.autograd.grad(gradient_distance(found, target), x)[0])
    return torch.stack(parts)
