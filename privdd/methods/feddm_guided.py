"""FedDM's idea with more than class means: a data set of images and soft labels out of two noised reads.

Clients release noised class sums in one public map and noised gradients of a linear head in another. From both, which
is post-processing, the server makes images, labels them by the head, trains a network on them, and publishes all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.types import Surface
from privdd.core.keys import Keys
from privdd.core.state import pack, unpack
from privdd.core.types import Artifact, Problem, Received, Records, Shard, State, Tensors, Upload
from privdd.distillation.fitting import Fitting
from privdd.distillation.guided_images import Guiding, guided_set
from privdd.distillation.networks import embedded
from privdd.distillation.private_matching import refuse_batch_norm
from privdd.distillation.public_features import AlexNet
from privdd.distillation.public_head import centre_of
from privdd.federated.aggregation import in_order
from privdd.federated.channel import ClientContext
from privdd.methods.dp_head import DPHead
from privdd.models import ModelSpec, initial
from privdd.models.build import skeleton
from privdd.privacy.mechanism import Mechanism
from privdd.training.local import outputs
from privdd.training.server import ServerTraining, train_on

SUMS = "class_sums"
COUNTED = 0.3  # of a record's length, how much counts it
FEWEST = 20  # a mean is never taken over fewer records than this


@dataclass(frozen=True, kw_only=True)
class FedDMGuided(DPHead):
    """model: the network that is trained on the images (no batch norm); looks: the public map in which class means are
    read and images are fitted; reach: embeddings further than this from the centre are pulled in; reads: the first
    rounds, in which class sums are released beside the head's gradients; ipc: images a class that others
    are mixed from; fitting, guiding: how images follow the means and then the head; server: the network's training.
    """

    model: ModelSpec
    looks: AlexNet
    fitting: Fitting
    guiding: Guiding
    server: ServerTraining
    reads: int = 1
    reach: float = 1.9
    ipc: int = 10

    uploads: ClassVar[Mapping[str, Surface]] = {**DPHead.uploads, "prototypes": Surface.PROTOTYPES}
    queries: ClassVar[Mapping[str, Surface]] = {**DPHead.queries, SUMS: Surface.PROTOTYPES}
    broadcasts: ClassVar[Mapping[str, Surface]] = {
        "model": Surface.GLOBAL_MODEL,
        "images": Surface.GLOBAL_IMAGES,
        "labels": Surface.GLOBAL_IMAGES,
        "network": Surface.GLOBAL_MODEL,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("reads", "ipc"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: at least 1")
        if self.reads > self.rounds:
            raise ValueError(f"reads={self.reads}: at most rounds={self.rounds}")
        if not 0 < self.reach < float("inf"):
            raise ValueError(f"reach={self.reach!r}: a finite number above 0")
        refuse_batch_norm(self.model.norm, "model")

    def from_rows(
        self, broadcast: Mapping[str, Tensors], rows: Tensor, shard: Shard, ctx: ClientContext
    ) -> tuple[Upload, State]:
        upload = dict(super().from_rows(broadcast, rows, shard, ctx)[0])
        if ctx.round < self.reads:
            upload["prototypes"] = self._sums(shard.train, ctx)
        return upload, {}

    def _sums(self, records: Records, ctx: ClientContext) -> Artifact:
        """Of each class: the sum of what its records add (``_added``), and their number."""
        if private := ctx.protected(SUMS):
            records = records.take(ctx.sample(SUMS, len(records)).to(records.y.device))
        part = self._added(embedded(self.looks, records.x), ctx.problem.shape)
        rows, sums = torch.cat([part, torch.full_like(part[:, :1], COUNTED)], 1), []
        scale = float(ctx.mechanisms[SUMS].clip_norm) if private else 1.0  # type: ignore[attr-defined]
        for label in ctx.problem.class_list:
            own = {"sum": scale * rows[records.y == label]}
            made = ctx.mechanism(SUMS, own, partition=f"label:{label}") if private else {"sum": own["sum"].sum(0)}
            sums.append(made["sum"] / scale)
        total = torch.stack(sums)
        std = float(ctx.mechanisms[SUMS].noise_std) / scale if private else 0.0  # type: ignore[attr-defined]
        value = {"sum": total[:, :-1], "count": total[:, -1] / COUNTED, "variance": torch.tensor([std**2])}
        return Artifact(value, private=private)

    def _centre(self, shape: tuple[int, int, int]) -> Tensor:
        """A public constant: the mean embedding of smooth noise."""
        return centre_of(self.looks, shape, Keys(0).fold("looks"))

    def _added(self, embeddings: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """What records with these embeddings (n, p) add to a sum: their way from the centre, over ``reach``."""
        moved = embeddings - self._centre(shape)
        return moved / moved.norm(dim=1, keepdim=True).clamp_min(self.reach) * (1 - COUNTED**2) ** 0.5

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """The head's next step; after the last round, the data set and a network that is trained on it."""
        clients = in_order(inbox)
        server = super().aggregate(server, inbox, keys)
        sent = [one.values["prototypes"] for one in clients if "prototypes" in one.values]
        for name in sent[0] if sent else ():
            total = torch.stack([one[name].double() for one in sent]).sum(0)
            server[f"sums/{name}"] = server.get(f"sums/{name}", 0.0) + total
        if clients[0].round + 1 == self.rounds:
            server |= self._published(server, keys)
        return server

    def _published(self, server: State, keys: Keys) -> State:
        shape = tuple(server["seen/shape"].tolist())
        weight, classes = server["model/head.weight"], len(server["model/head.weight"])

        def score(x: Tensor) -> Tensor:
            return self.rows(x) @ weight.T

        x, soft = guided_set(
            self._targets(server, shape), self.looks, score, shape, self.ipc, self.fitting, self.guiding, keys
        )
        start = initial(self.model, shape, classes, keys.fold("network").torch())

        def loss(net: nn.Module, images: Tensor, at: Tensor) -> Tensor:
            return -(soft[at] * F.log_softmax(net(images), 1)).sum(1).mean()

        at = torch.arange(len(x))
        network = skeleton(self.model, shape, classes)
        trained = train_on(network, start, Records(x, at, at), self.server, keys.fold("batch").torch(), loss)
        labels = {"y": soft.argmax(1), "soft": soft}
        return {"images/x": x, **pack("labels", labels), **pack("network", trained)}

    def _targets(self, server: State, shape: tuple[int, int, int]) -> Tensor:
        """Mean embedding of every class (C, p): the linear estimate of least squared error from the noised sums."""
        sums, count = server["sums/sum"], server["sums/count"].clamp_min(FEWEST)[:, None]
        drowned = sums.shape[1] * server["sums/variance"]  # squared length of the noise; a sum of n is about n long
        move = sums * count / (count.square() + drowned) * self.reach / (1 - COUNTED**2) ** 0.5
        return self._centre(shape) + move.float()

    def init(self, problem: Problem, keys: Keys) -> State:
        return {**super().init(problem, keys), "seen/shape": torch.tensor(problem.shape)}

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        """Logits (n, C) of the network that was trained on the data set; of the head until there is one."""
        state = unpack("network", server)
        if not state:
            return super().predict(server, memory, x)
        return outputs(skeleton(self.model, tuple(x.shape[1:]), len(state["head.weight"])), state, x)  # type: ignore[arg-type]

    def spends(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        sums = {name: 1 for name in mechanisms if name == SUMS and round < self.reads}
        return {**super().spends(round, mechanisms), **sums}

    def maps(self, broadcast: Mapping[str, Tensors], memory: State, problem: Problem) -> dict[str, Any]:
        """A record to what it adds to its class's sum."""

        def added(x: Tensor) -> Tensor:
            return self._added(self.looks(x), problem.shape)

        return {"embedding": added, "public": added}
