"""Federated averaging whose clients train by a function of the user's own:
``algo.training=net:train``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.types import Surface
from privdd.methods.fedavg import FedAvg
from privdd.models import build
from privdd.models.own import format_error, import_object
from privdd.training.sgd import ClientRound, Trained, split_state

SEEDS = 2**31 - 1  # scikit-learn and numpy take no more
NEEDED = "module:function is needed, as in algo.training=net:train"


@dataclass(frozen=True, kw_only=True)
class OwnTraining(FedAvg):
    """training: module:function, (model, x, y, seed) -> the trained model, as ``target.training``
    takes it.

    model: the network as the server sent it, in train mode; x (n, c, h, w), y (n,): a client's
    records on the run's device; seed: another one for each client and round. What it draws has to
    come from the seed, or from torch's global generator, which is seeded with it for the time of
    the call. Shadow clients of an audit are trained by it too. Client-level privacy clips and
    noises what it gives; DP-SGD would have to act inside of it and is refused."""

    training: str = "privdd.methods.own_training:example"

    queries: ClassVar[Mapping[str, Surface]] = {}  # no DP-SGD
    sees_features: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._load_function()

    def _load_function(self) -> Callable[..., Any]:
        found = import_object("algo.training", self.training, NEEDED)
        if not callable(found):
            raise ValueError(f"algo.training={self.training}: it cannot be called")
        return found

    def settings(self, shard_size: int) -> dict[str, float]:
        return {"update_is_delta": self.update_is_delta}

    def _train_client(self, turn: ClientRound) -> Trained:
        params, buffers = self.start(turn)
        records = turn.shard.train
        if not len(records):
            return Trained(params, dict(params), dict(buffers), 1)
        model = build(self.model, turn.shard.shape, turn.shard.classes, records.x.device)
        model.load_state_dict({**params, **buffers}, strict=False)  # counters of batch norm stay 0
        wanted = {name: (value.shape, value.dtype) for name, value in model.state_dict().items()}
        made = self._call_training(
            model.train(), records.x, records.y, turn.ctx.keys.fold("own").integer() % SEEDS
        )
        if not isinstance(made, nn.Module):
            raise ValueError(
                f"algo.training={self.training}: gives a {type(made).__name__}, the "
                "trained model is needed"
            )
        state = {name: value.detach().clone() for name, value in made.state_dict().items()}
        if {name: (value.shape, value.dtype) for name, value in state.items()} != wanted:
            raise ValueError(
                f"algo.training={self.training}: gives a network of other names, shapes "
                "or types than it was sent"
            )
        return Trained(params, *split_state(model, state), 1)

    def _call_training(self, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Any:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.enable_grad():
            torch.manual_seed(seed)
            try:
                return self._load_function()(model, x.clone(), y.clone(), seed)
            except Exception as error:  # whatever the function raises
                said = f"{type(error).__name__}: {format_error(error)}"
                raise ValueError(
                    f"algo.training={self.training}: failed on {len(y)} records: {said}"
                ) from error


def example(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """The default of ``algo=own_training``: twenty steps of Adam on all records."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model
