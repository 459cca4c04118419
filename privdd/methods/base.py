"""What families of methods share: one network that the server trains, or a linear head over a
public map."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import ClientData, Problem, State, Values, Work, pack, unpack
from privdd.distillation.private_matching import check_no_batch_norm
from privdd.distillation.public_map import PublicHead, PublicRows, embed_shards
from privdd.federated.audit_hooks import FastReplay, ReadsUploads, StatesClaims
from privdd.federated.channel import ClientContext
from privdd.federated.method import Method
from privdd.models import ModelSpec, build, initial
from privdd.privacy.mechanism import Mechanism
from privdd.training.sgd import predict_images


@dataclass(frozen=True, kw_only=True)
class ServerNetwork(Method, ReadsUploads, StatesClaims, FastReplay):
    """model: the network that the server trains and sends; it must treat each image alone (no batch
    norm)."""

    model: ModelSpec

    broadcasts: ClassVar[Mapping[str, Surface]] = {"model": Surface.GLOBAL_MODEL}

    def __post_init__(self) -> None:
        check_no_batch_norm(self.model.norm, "model")

    def init(self, problem: Problem, keys: Keys) -> State:
        return pack(
            "model", initial(self.model, problem.shape, problem.classes, keys.fold("model").torch())
        )

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        return predict_images(self.model, unpack("model", server), x)

    def classifier(self, problem: Problem) -> nn.Module:
        return build(self.model, problem.shape, problem.classes)

    def sent_state(self, broadcast: Values) -> State | None:
        """The network as the server sent it; a synthetic set implies none by itself."""
        return dict(broadcast["model"])


@dataclass(frozen=True, kw_only=True)
class PublicMap(Method, ReadsUploads, FastReplay, hooks=("from_rows",)):
    """rows: the public map, whose rows the head reads. Relatives say what a client sends of its
    rows."""

    rows: PublicRows

    broadcasts: ClassVar[Mapping[str, Surface]] = {"model": Surface.GLOBAL_MODEL}
    worlds_per_pass: ClassVar[int] = 16
    shares_work: ClassVar[bool] = True

    @abstractmethod
    def from_rows(
        self, broadcast: Values, rows: Tensor, shard: ClientData, ctx: ClientContext
    ) -> Work:
        """A client's round; rows: of its records (n, d), as the public map sees them."""

    def init(self, problem: Problem, keys: Keys) -> State:
        return {"model/head.weight": torch.zeros(problem.classes, self.rows.width + 1)}

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        return self.from_rows(broadcast, embed_shards(self.rows, [shard])[0], shard, ctx)

    def local_batched(
        self,
        broadcast: Values,
        memories: Sequence[State],
        shards: Sequence[ClientData],
        contexts: Sequence[ClientContext],
    ) -> Sequence[Work] | None:
        """Each record goes through the map once for all of them."""
        pairs = zip(embed_shards(self.rows, shards), shards, contexts)
        return [self.from_rows(broadcast, rows, shard, ctx) for rows, shard, ctx in pairs]

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        rows = self.rows.embed_rows(x)
        return rows @ server["model/head.weight"].to(rows).T

    def aggregation_kind(
        self, mechanisms: Mapping[str, Mechanism]
    ) -> Literal["sum", "mean"] | None:
        """Sums suffice: clients send sums over their records."""
        return "sum"

    def releases_per_round(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        """One release of each query, for each class where it is made class by class."""
        return {name: 1 for name in mechanisms if name in self.queries}

    def classifier(self, problem: Problem) -> nn.Module:
        return PublicHead(self.rows, problem.shape, problem.classes)

    def sent_state(self, broadcast: Values) -> State | None:
        return dict(broadcast["model"])

    def maps(
        self, broadcast: Values, memory: State, problem: Problem
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        return {"embedding": self.rows, "public": self.rows}

    def settings(self, shard_size: int) -> Mapping[str, Any]:
        return {"lr": 1.0, "batch_size": max(1, shard_size), "local_steps": 1}
