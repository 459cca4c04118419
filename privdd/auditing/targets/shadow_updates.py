"""Shadow updates: what the client would have sent, had its records been those of another world of the game.

Trained by the owner's function ``(model, x, y, seed) -> model``, which is given the model that the server sent in each round,
or by plain SGD with the known settings (``SGD``); a gradient needs neither.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.types import Capture
from privdd.auditing.targets.coin_game import CoinGame
from privdd.auditing.targets.labelled import Labelled
from privdd.auditing.targets.shadow_training import SEEDS, Fit, run_all
from privdd.auditing.targets.update_signals import loaded
from privdd.checking.named import load_target
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys
from privdd.runtime.engine import Engine

KEY = "target.training"
SGD = "sgd"  # as a training function: plain SGD by target.lr, target.steps, target.batch and target.momentum


@dataclass(frozen=True)
class PlainSGD:
    """Minibatches of ``batch`` records in a random order, epoch after epoch; None: all records at each step."""

    lr: float
    steps: int
    batch: int | None = None
    momentum: float = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> nn.Module:
        generator, waiting = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)
        kind, size = next(model.parameters()).dtype, min(self.batch or len(x), len(x))
        for _ in range(self.steps):
            if len(waiting) < size:
                waiting = torch.randperm(len(x), generator=generator)
            rows, waiting = waiting[:size], waiting[size:]
            optimizer.zero_grad()
            given = x[rows].to(kind) if x.is_floating_point() else x[rows]
            nn.functional.cross_entropy(model(given), y[rows]).backward()
            optimizer.step()
        return model


@dataclass(frozen=True)
class OneClient:
    """One world: the client's rounds as they were captured, trained again on other records."""

    fit: Fit | PlainSGD
    model: nn.Module
    rounds: tuple[Capture, ...]
    records: Labelled
    seed: int


def shadow_updates(
    fit: Fit | PlainSGD | None, model: nn.Module, rounds: Sequence[Capture], game: CoinGame, keys: Keys, engine: Engine
) -> tuple[list[tuple[Capture, ...]], bool]:
    """The K - 1 other worlds' captures, in order, and whether their training drew from torch's global generator, as dropout
    does, so that they would be others next time; fit: None where gradients were sent.

    Raises BadConfig, in one line, where the function fails or gives no model of these weights.
    """
    tasks = [
        OneClient(
            fit or PlainSGD(1.0, 1), model, tuple(rounds), game.shadow_set(k), keys.fold("shadow", k).integer() % SEEDS
        )
        for k in range(1, len(game.masks))
    ]
    found = run_all(trained if fit else differentiated, tasks, "train shadow updates", engine)
    return [captures for captures, _ in found], any(drew for _, drew in found)


def trained(task: OneClient) -> tuple[tuple[Capture, ...], bool]:
    """Each round's weights, from the model that was sent in it; whether the global generator was drawn from."""
    before = torch.get_rng_state()
    made = tuple(replace(one, value=_weights(task, one, task.seed + at)) for at, one in enumerate(task.rounds))
    return made, not torch.equal(before, torch.get_rng_state())


def differentiated(task: OneClient) -> tuple[tuple[Capture, ...], bool]:
    """The mean gradient over the world's records, at the model that was sent; nothing is drawn."""
    found = []
    for one in task.rounds:
        plain, x = loaded(task.model, one.broadcast), task.records.x
        kind = next(plain.parameters()).dtype
        nn.functional.cross_entropy(plain(x.to(kind) if x.is_floating_point() else x), task.records.y).backward()
        grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in plain.named_parameters()}
        found.append(replace(one, value={name: grads.get(name, value) for name, value in one.value.items()}))
    return tuple(found), False


def _weights(task: OneClient, one: Capture, seed: int) -> dict[str, Tensor]:
    made = _called(task.fit, loaded(task.model, one.broadcast).train(), task.records, seed)
    if not isinstance(made, nn.Module):
        raise BadConfig(f"{KEY}: returned a {type(made).__name__}; the trained torch module is needed")
    state = {name: value.detach() for name, value in made.state_dict().items()}
    for name, value in sorted(one.value.items()):
        if name not in state or state[name].shape != value.shape:
            raise BadConfig(f"{KEY}: the model that it returned has no {name} {tuple(value.shape)}")
        if not torch.isfinite(state[name].double()).all():
            raise BadConfig(f"{KEY}: NaN or infinity in {name} of the model that it returned")
    return {name: state[name].to(value.dtype) for name, value in one.value.items()}


def _called(fit: Fit | PlainSGD, model: nn.Module, records: Labelled, seed: int) -> Any:
    if isinstance(fit, PlainSGD):
        return fit(model, records.x, records.y, seed)
    function = load_target(fit, KEY) if isinstance(fit, str) else fit
    if not _takes_four(function):
        raise BadConfig(f"{KEY}: for updates a function (model, x, y, seed) is needed")
    try:
        return function(model, *records.given(), seed)
    except Exception as error:  # whatever the function raises
        said = " ".join(str(error).split())[:200]
        raise BadConfig(f"{KEY}: failed on {len(records)} records: {type(error).__name__}: {said}") from error


def _takes_four(function: Any) -> bool:
    try:
        inspect.signature(function).bind(None, None, None, 0)
    except (TypeError, ValueError):
        return False
    return True
