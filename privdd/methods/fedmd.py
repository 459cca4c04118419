"""FedMD (Li and Wang, 2019) and its kin: clients send their networks' logits on public images and
learn from the consensus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.types import Surface
from attacks.validation import check_counts, check_non_negative, check_positive
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import (
    ClientData,
    Problem,
    Received,
    Records,
    RecordShape,
    State,
    Tensors,
    Values,
    Work,
    is_image,
    pack,
)
from privdd.distillation.class_cells import draw_smooth_images
from privdd.distillation.image_fitting import draw_silhouettes
from privdd.federated.aggregation import sort_by_client
from privdd.federated.channel import ClientContext
from privdd.methods.personal import PersonalNetworks
from privdd.models import ModelSpec, build_skeleton
from privdd.training.sgd import (
    ClientRound,
    Trained,
    local_sgd,
    predict_images,
    predict_logits,
    split_state,
)

Aggregation = Literal["mean", "era", "trim"]
LEAST_PROBABILITY = 1e-6  # of a class, after trimming
ROUNDING = 1e-9  # of a share times a count: .29 * 100 is a little below 29
CLASSIFIERS = ("convnet", "resnet18", "smallcnn", "simplecnn", "lenet", "mlp")


@lru_cache(maxsize=4)
def draw_public_images(count: int, shape: RecordShape, seed: int) -> Tensor:
    """Drawings (count, c, h, w) in [0, 1] that stand for the papers' public records: silhouettes of
    smooth noise; of rows (count, d) of a table, each number is drawn by itself.

    Everybody draws the same ones, so they are never sent. Kept between calls: do not change them.
    """
    keys = Keys(seed).fold("public", "fedmd", "images")
    smooth = draw_smooth_images(torch.zeros(1, dtype=torch.long), count, shape, keys)[0]
    if not is_image(shape):
        return smooth
    return draw_silhouettes(smooth, keys.fold("silhouettes").torch())


def average_logits(sent: Tensor) -> Tensor:
    """The mean over the clients of logits (K, m, C): the consensus of FedMD (Li and Wang 2019,
    algorithm 1)."""
    # f~(x) = 1/K sum_k f_k(x)
    return sent.mean(0)


def sharpened_average(sent: Tensor, temperature: float) -> Tensor:
    """Entropy reduction averaging (Itahara et al. 2020, DS-FL), as logits (m, C) of the
    consensus.

    Args:
        sent: logits (K, m, C) of the clients.
        temperature: > 0; the smaller, the surer the consensus.
    """
    # q = softmax(p / T),   p = 1/K sum_k softmax(z_k)
    return sent.softmax(2).mean(0) / temperature


def trimmed_average(sent: Tensor, share: float) -> Tensor:
    """Logits (m, C) of the trimmed mean of the clients' probabilities, each number by itself (Yin
    et al. 2018, definition 2).

    A robust mean in the place of the one of Cronus (Chang et al. 2019), which is the spectral
    filter of Diakonikolas et al. (2017).

    Args:
        sent: logits (K, m, C) of the clients.
        share: of the clients that is left out at either end, in [0, 0.5); above 0 at least one of
            three clients or more.
    """
    ordered = sent.softmax(2).sort(0).values
    clients = len(ordered)
    # cut = floor(share K), and 1 <= cut < K / 2 as far as K allows
    cut = int(share * clients + ROUNDING)
    if share > 0:
        cut = min(max(1, cut), (clients - 1) // 2)
    middle = ordered[cut : clients - cut].mean(0).clamp_min(LEAST_PROBABILITY)
    return (middle / middle.sum(1, keepdim=True)).log()


@dataclass(frozen=True, kw_only=True)
class FedMD(PersonalNetworks):
    """Each round a client digests the last consensus, trains on its records ("revisit"), and sends
    its logits on the public images.

    Attributes:
        images: how many public images there are.
        consensus: "mean", FedMD's mean of logits; "era", DS-FL's sharpened mean of probabilities;
            "trim", a robust mean of probabilities, as Cronus has one.
        temperature: of "era".
        trim: the share of clients that "trim" leaves out at either end.
        digest_epochs: passes over the public images with the consensus as target; 0 = none.
        digest_lr: learning rate of these passes.
        networks: names of networks that clients take in turn, each with its own defaults; ()
            gives all of them ``model``. Attackers read logits by ``model``.

    Digestion minimises the mean absolute error of logits under "mean" (Li and Wang's released
    code), and the cross-entropy with the consensus's probabilities otherwise (Itahara et al. 2020).
    """

    images: int = 200
    consensus: Aggregation = "mean"
    temperature: float = 0.1
    trim: float = 0.2
    digest_epochs: float = 1.0
    digest_lr: float = 0.05
    networks: tuple[str, ...] = ()

    uploads: ClassVar[Mapping[str, Surface]] = {"logits": Surface.LOGITS}
    broadcasts: ClassVar[Mapping[str, Surface]] = {"consensus": Surface.LOGITS}
    _stream: ClassVar[str] = "fedmd"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "images")
        check_positive(self, "temperature", "digest_lr")
        check_non_negative(self, "digest_epochs")
        if self.consensus not in get_args(Aggregation):
            allowed = ", ".join(get_args(Aggregation))
            raise ValueError(f"consensus={self.consensus!r}: allowed are {allowed}")
        if not 0 <= self.trim < 0.5:
            raise ValueError(f"trim={self.trim!r}: a share in [0, 0.5) is needed")
        object.__setattr__(self, "networks", tuple(self.networks))  # a list, from a config
        if unknown := [name for name in self.networks if name not in CLASSIFIERS]:
            allowed = ", ".join(CLASSIFIERS)
            raise ValueError(f"networks: {unknown[0]!r} is unknown; must be one of {allowed}")

    def init(self, problem: Problem, keys: Keys) -> State:
        unknown = torch.zeros(self.images, problem.classes)
        return {**super().init(problem, keys), "consensus/logits": unknown}

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        if not self.networks:
            return super().local(broadcast, memory, shard, ctx)
        index = shard.client % len(self.networks)
        upload, kept = self._with_network(index).local(broadcast, memory, shard, ctx)
        return upload, {**kept, "network/index": torch.tensor(index)}

    def start(self, turn: ClientRound) -> tuple[Tensors, Tensors]:
        params, buffers = super().start(turn)
        consensus = turn.broadcast["consensus"]["logits"]
        if not self.digest_epochs or not consensus.any():  # before the first round there is none
            return params, buffers
        model = build_skeleton(self.model, turn.shard.shape, turn.shard.classes)
        images = self._images_of(turn)
        places = torch.arange(len(images), device=images.device)

        def digestion_loss(net: torch.nn.Module, x: Tensor, at: Tensor) -> Tensor:
            if self.consensus == "mean":
                return F.l1_loss(net(x), consensus[at])
            return F.cross_entropy(net(x), consensus[at].softmax(1))

        state, _ = local_sgd(
            model,
            {**params, **buffers},
            Records(images, places, places),
            lr=self.digest_lr,
            momentum=self.momentum,
            batch_size=self.batch_size,
            epochs=self.digest_epochs,
            generator=turn.ctx.keys.fold("digest").torch(),
            loss=digestion_loss,
        )
        return split_state(model, state)

    def outcome(self, turn: ClientRound, trained: Trained) -> tuple[dict[str, Tensors], State]:
        state = {**trained.params, **trained.buffers}
        model = build_skeleton(self.model, turn.shard.shape, turn.shard.classes)
        logits = predict_logits(model, state, self._images_of(turn))
        return {"logits": {"logits": logits}}, {**turn.memory, **pack("personal", state)}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        messages = [received.values["logits"] for received in sort_by_client(inbox)]
        sent = torch.stack([message["logits"].double() for message in messages])
        if self.consensus == "era":
            consensus = sharpened_average(sent, self.temperature)
        elif self.consensus == "trim":
            consensus = trimmed_average(sent, self.trim)
        else:
            consensus = average_logits(sent)
        old = server["consensus/logits"]
        return {**server, "consensus/logits": consensus.to(old)}

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        if self.networks and memory:
            own = self._with_network(int(memory["network/index"]))
            return own.predict(server, memory, x)
        state = self._own_state(server, memory)
        return predict_images(self.model, to_device(state, x.device), x)

    def public_images(self, problem: Problem, seed: int) -> Tensor:
        return draw_public_images(self.images, problem.shape, seed)

    def _with_network(self, index: int) -> FedMD:
        """The method of the clients that have this network, which is all that they have of it."""
        name = self.networks[index]
        if name == self.model.name:
            return replace(self, networks=())
        model = ModelSpec(name=name, scale=self.model.scale)
        return replace(self, model=model, networks=())

    def _images_of(self, turn: ClientRound) -> Tensor:
        problem = turn.ctx.problem
        images = self.public_images(problem, turn.ctx.keys.seed)
        return images.to(problem.device)
