"""Three methods as their authors would bring them, written after the papers alone: FedProto, FedCGS
and FedDM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.api import Artifact, Method, ReadsUploads, Surface, pack, unpack

WIDTH = 32


class PrototypeNet(nn.Module):
    """A body whose rows are averaged into prototypes, and a head of the client's own."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        size = shape[0] * shape[1] * shape[2]
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(size, WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def build_net(shape: tuple[int, int, int], classes: int, seed: int) -> PrototypeNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PrototypeNet(shape, classes)


@dataclass(frozen=True, kw_only=True)
class StrangersFedProto(Method, ReadsUploads):
    """Tan et al. 2022: clients send the mean row of each class that they hold; every client keeps
    its own network."""

    rounds: int = 2
    steps: int = 30
    lr: float = 0.2
    second: str = "count"  # the name of the tensor beside the means

    uploads: ClassVar[Mapping[str, Surface]] = {"protos": Surface.PROTOTYPES}
    broadcasts: ClassVar[Mapping[str, Surface]] = {"protos": Surface.PROTOTYPES}
    accuracy_kind: ClassVar[Any] = "personal"

    def init(self, problem: Any, keys: Any) -> Any:
        return pack(
            "protos",
            {"mean": torch.zeros(problem.classes, WIDTH), "count": torch.zeros(problem.classes)},
        )

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        net = build_net(shard.shape, shard.classes, 0)
        if own := unpack("net", memory):
            net.load_state_dict(own)
        mean = broadcast["protos"]["mean"]
        known = broadcast["protos"]["count"]
        x = shard.train.x
        y = shard.train.y
        optimiser = torch.optim.SGD(net.parameters(), lr=self.lr)
        with torch.enable_grad():
            for _ in range(self.steps):
                rows = net.features(x)
                loss = F.cross_entropy(net.head(rows), y)
                seen = known[y] > 0
                if seen.any():
                    loss = loss + (rows - mean[y])[seen].square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        with torch.no_grad():
            rows = net.features(x)
            count = torch.bincount(y, minlength=shard.classes).float()
            sums = torch.zeros(shard.classes, WIDTH).index_add_(0, y, rows)
            protos = sums / count.clamp_min(1)[:, None]
            known = (count > 0).float()
        kept = {name: value.detach().clone() for name, value in net.state_dict().items()}
        return {"protos": Artifact({"mean": protos, self.second: known})}, pack("net", kept)

    def aggregate(self, server: Any, inbox: Any, keys: Any) -> Any:
        sent = [received.values["protos"] for received in inbox]
        count = sum(value[self.second] for value in sent)
        total = sum(value["mean"] * value[self.second][:, None] for value in sent)
        return pack("protos", {"mean": total / count.clamp_min(1)[:, None], "count": count})

    def predict(self, server: Any, memory: Any, x: Tensor) -> Tensor:
        classes = len(server["protos/count"])
        net = build_net(tuple(x.shape[1:]), classes, 0)
        if own := unpack("net", memory or {}):
            net.load_state_dict(own)
        with torch.no_grad():
            distance = torch.cdist(net.features(x), server["protos/mean"])
        return -distance.masked_fill(server["protos/count"] == 0, 1e9)


@dataclass(frozen=True, kw_only=True)
class MappedFedProto(StrangersFedProto):
    """The same with two hooks: everybody knows the network that clients start from."""

    def classifier(self, problem: Any) -> nn.Module:
        return build_net(problem.shape, problem.classes, 0)

    def initial_classifier(self, problem: Any, seed: int) -> Any:
        return dict(self.classifier(problem).state_dict())


@dataclass(frozen=True, kw_only=True)
class RenamingFedProto(MappedFedProto):
    """The same with a server that sends the global prototypes under names of its own."""

    def broadcast(self, server: Any) -> Any:
        values = unpack("protos", server)
        return {"protos": {"global_protos": values["mean"], "known": values["count"]}}

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        sent = broadcast["protos"]
        protos = {"mean": sent["global_protos"], "count": sent["known"]}
        return super().local({"protos": protos}, memory, shard, ctx)


def public_rows(x: Tensor) -> Tensor:
    """(n, WIDTH) of images: a frozen public network, untrained here."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), WIDTH), nn.ReLU())
    with torch.no_grad():
        return net(x).double()


@dataclass(frozen=True, kw_only=True)
class StrangersFedCGS(Method, ReadsUploads):
    """Guan et al. 2025: one round of class sums, class counts, the sum of all rows and their Gram
    matrix."""

    rounds: int = 1
    uploads: ClassVar[Mapping[str, Surface]] = {"stats": Surface.STATISTICS}
    broadcasts: ClassVar[Mapping[str, Surface]] = {"head": Surface.GLOBAL_MODEL}

    def init(self, problem: Any, keys: Any) -> Any:
        return pack(
            "head",
            {"weight": torch.zeros(problem.classes, WIDTH), "bias": torch.zeros(problem.classes)},
        )

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        rows = public_rows(shard.train.x)
        y = shard.train.y
        sums = torch.zeros(shard.classes, WIDTH, dtype=torch.float64).index_add_(0, y, rows)
        counts = torch.bincount(y, minlength=shard.classes).float()
        return {
            "stats": Artifact({"A": sums, "N": counts, "B": rows.T @ rows, "s": rows.sum(0)})
        }, {}

    def aggregate(self, server: Any, inbox: Any, keys: Any) -> Any:
        sent = [received.values["stats"] for received in inbox]
        sums, counts, gram, total = (
            sum(value[key] for value in sent) for key in ("A", "N", "B", "s")
        )
        mean = total / counts.sum()
        spread = (
            gram / counts.sum()
            - torch.outer(mean, mean)
            + 1e-2 * torch.eye(WIDTH, dtype=torch.float64)
        )
        means = sums / counts.clamp_min(1)[:, None].double()
        weight = torch.linalg.solve(spread, means.T).T
        bias = -0.5 * (weight * means).sum(1) + counts.clamp_min(1).double().log()
        return pack("head", {"weight": weight.float(), "bias": bias.float()})

    def record_loss(self, name: str, value: Any, broadcast: Any, problem: Any) -> Any:
        means = value["A"] / value["N"].double().clamp_min(1)[:, None]
        spread = value["B"] / value["N"].double().sum() + 1e-2 * torch.eye(
            WIDTH, dtype=torch.float64
        )

        def loss(x: Tensor, y: Tensor) -> Tensor:
            gap = public_rows(x) - means[y]
            return (torch.linalg.solve(spread, gap.T).T * gap).sum(1).float()

        return loss

    def predict(self, server: Any, memory: Any, x: Tensor) -> Tensor:
        return public_rows(x).float() @ server["head/weight"].T + server["head/bias"]


class BareFedCGS(StrangersFedCGS):
    """Without the hook that says how a record would fit the sums."""

    record_loss = ReadsUploads.record_loss


@dataclass(frozen=True, kw_only=True)
class StrangersFedDM(Method, ReadsUploads):
    """Xiong et al. 2023: images that start as records and are matched to the records' mean rows;
    the server trains on them."""

    rounds: int = 1
    per_class: int = 2
    steps: int = 5
    lr: float = 0.01
    uploads: ClassVar[Mapping[str, Surface]] = {
        "images": Surface.SYNTHETIC_IMAGES,
        "labels": Surface.LABELS,
    }
    broadcasts: ClassVar[Mapping[str, Surface]] = {"model": Surface.GLOBAL_MODEL}

    def init(self, problem: Any, keys: Any) -> Any:
        return pack("model", build_net(problem.shape, problem.classes, 1).state_dict())

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        net = build_net(shard.shape, shard.classes, 1)
        net.load_state_dict(broadcast["model"])
        images = []
        labels = []
        for c in shard.train.y.unique().tolist():
            own = shard.train.x[shard.train.y == c]
            made = own[: self.per_class].clone().requires_grad_(True)
            optimiser = torch.optim.SGD([made], lr=self.lr)
            with torch.enable_grad():
                for _ in range(self.steps):
                    gap = net.features(made).mean(0) - net.features(own).mean(0).detach()
                    optimiser.zero_grad()
                    gap.square().sum().backward()
                    optimiser.step()
            images.append(made.detach())
            labels.append(torch.full((len(made),), c))
        return {
            "images": Artifact({"x": torch.cat(images)}),
            "labels": Artifact({"y": torch.cat(labels)}),
        }, {}

    def aggregate(self, server: Any, inbox: Any, keys: Any) -> Any:
        x = torch.cat([received.values["images"]["x"] for received in inbox])
        y = torch.cat([received.values["labels"]["y"] for received in inbox])
        state = unpack("model", server)
        net = build_net(tuple(x.shape[1:]), len(state["head.weight"]), 1)
        net.load_state_dict(state)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        with torch.enable_grad():
            for _ in range(50):
                optimiser.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimiser.step()
        return pack("model", {name: value.detach() for name, value in net.state_dict().items()})

    def predict(self, server: Any, memory: Any, x: Tensor) -> Tensor:
        state = unpack("model", server)
        net = build_net(tuple(x.shape[1:]), len(state["head.weight"]), 1)
        net.load_state_dict(state)
        with torch.no_grad():
            return net(x)
