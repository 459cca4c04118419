"""Shadow models by the user's own training function: one for each world of the game, on the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from privdd.auditing.targets.coin_game import CoinGame
from privdd.auditing.targets.labelled import Labelled
from privdd.auditing.targets.predictor import predictor
from privdd.checking.named import load_target
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys
from privdd.runtime.engine import Engine
from privdd.runtime.progress import stage

Fit = str | Callable[..., Any]  # (x, y, seed) -> what was made; or its name, module:function
SEEDS = 2**31 - 1  # scikit-learn takes no more


@dataclass(frozen=True)
class OneTraining:
    """One training. asked: the records that the shadow model is asked about; names: the target's classes."""

    fit: Fit
    key: str
    records: Labelled
    seed: int
    asked: Tensor
    names: NDArray[Any]


def shadow_outputs(
    fit: Fit, key: str, game: CoinGame, names: NDArray[Any], keys: Keys, engine: Engine
) -> tuple[Tensor, bool]:
    """(K - 1, n + m, C) outputs of the shadow models for the audited records and the reference ones, and whether the
    training function drew from torch's global generator, so that its models would be others next time.

    Raises BadConfig, naming ``key``, where the function fails or gives no model.
    """
    asked = torch.cat([game.records.x, game.reference.x.to(game.records.x.dtype)])
    tasks = [
        OneTraining(fit, key, game.shadow_set(k), keys.fold("shadow", k).integer() % SEEDS, asked, names)
        for k in range(1, len(game.masks))
    ]
    found = list(run_all(trained, tasks, "train shadow models", engine))
    return torch.stack([outputs for outputs, _ in found]), any(drew for _, drew in found)


def run_all(function: Callable[[Any], Any], tasks: Sequence[Any], label: str, engine: Engine) -> list[Any]:
    """Every task on the engine, with a progress bar."""
    done = []
    with stage(label, len(tasks)) as bar:
        for result in engine.map(function, tasks):
            done.append(result)
            bar.advance()
    return done


def trained(task: OneTraining) -> tuple[Tensor, bool]:
    """Outputs (n, C) of one shadow model; whether its training drew from torch's global generator."""
    model, drew = called(task.fit, task.key, task.records, task.seed)
    predict = replace(predictor(model, task.key, task.records.form), names=task.names)
    return predict(task.asked, len(task.names)), drew


def called(fit: Fit, key: str, records: Labelled, seed: int) -> tuple[Any, bool]:
    """What the user's function makes of the records. Raises BadConfig for whatever it raises."""
    function = load_target(fit, key) if isinstance(fit, str) else fit
    before = torch.get_rng_state()
    try:
        made = function(*records.given(), seed)
    except Exception as error:  # whatever the function raises
        said = " ".join(str(error).split())[:200]
        raise BadConfig(f"{key}: failed on {len(records)} records: {type(error).__name__}: {said}") from error
    return made, not torch.equal(before, torch.get_rng_state())
