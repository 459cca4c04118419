"""Shadow models and shadow updates of a target: trained by the owner's function, or by plain SGD
with known settings; and the signals of updates."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from attacks.membership.signals import (
    SMALL_RIDGE_SHARE,
    gradient_alignment,
    logit_scaled,
    ridge_coefficients,
)
from attacks.types import Capture
from privdd.auditing.record_gradients import RecordGradients
from privdd.blackbox.target import load_target
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.external.membership_game import CoinGame
from privdd.external.predictor import build_predictor
from privdd.external.records import LabelledRecords
from privdd.runtime.engine import Engine
from privdd.runtime.progress import show_progress

# (x, y, seed) -> what was made; or its name, module:function
TrainingFunction = str | Callable[..., Any]
MAX_SEED = 2**31 - 1  # scikit-learn takes no more
TRANSFORM_KEY = "target.transform"
# numbers of all records' gradients together, up to which they are solved for jointly
MAX_JOINT_NUMBERS = 50_000_000
TRAINING_KEY = "target.training"
# as a training function: plain SGD by target.lr, target.steps, target.batch and target.momentum
SGD_NAME = "sgd"
DRAWN_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
NORM_LAYERS = (_NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class ShadowModelTask:
    """One training. asked: the records that the shadow model is asked about; names: the target's
    classes."""

    fit: TrainingFunction
    key: str
    records: LabelledRecords
    seed: int
    asked: Tensor
    names: NDArray[Any]


def shadow_outputs(
    fit: TrainingFunction,
    key: str,
    game: CoinGame,
    queries: Tensor,
    names: NDArray[Any],
    keys: Keys,
    engine: Engine,
) -> tuple[Tensor, bool]:
    """(K - 1, a, C) outputs of the shadow models for ``queries`` (a, ...), and whether training
    drew from torch's global generator. Raises BadConfig, naming ``key``, where the function fails
    or gives no model."""
    seeds = enumerate(draw_shadow_seeds(game, keys), 1)
    tasks = [
        ShadowModelTask(fit, key, game.shadow_set(k), seed, queries, names) for k, seed in seeds
    ]
    outputs, draws_randomly = run_tasks(train_shadow_model, tasks, "train shadow models", engine)
    return torch.stack(outputs), draws_randomly


def transformed_copies(
    transform: TrainingFunction | None, records: LabelledRecords, queries: int, keys: Keys
) -> list[Tensor]:
    """queries - 1 copies of the records (n, ...) under draws of the owner's transform; none without
    one.

    transform: (x, seed) -> x, as training transforms a batch. Raises BadConfig, one line, for what
        it raises and for copies of another shape or with numbers that are not finite.
    """
    if transform is None:
        return []
    if isinstance(transform, str):
        function = load_target(transform, TRANSFORM_KEY)
    else:
        function = transform
    copies = []
    for index in range(1, queries):
        try:
            transformed = function(
                records.form.original_rows(records.x.clone()),
                keys.fold("queries", index).integer() % MAX_SEED,
            )
            copy_of_records = torch.as_tensor(transformed).to(records.x.dtype)
        except Exception as error:  # whatever the function raises
            message = " ".join(str(error).split())[:200]
            raise BadConfig(
                f"{TRANSFORM_KEY}: failed on {len(records)} records: "
                f"{type(error).__name__}: {message}"
            ) from error
        if (
            copy_of_records.shape != records.x.shape
            or not torch.isfinite(copy_of_records.double()).all()
        ):
            message = (
                f"gives {tuple(copy_of_records.shape)}; finite numbers "
                f"{tuple(records.x.shape)}, one copy a record, are needed"
            )
            raise BadConfig(f"{TRANSFORM_KEY}: {message}")
        copies.append(copy_of_records)
    return copies


def draw_shadow_seeds(game: CoinGame, keys: Keys) -> list[int]:
    return [keys.fold("shadow", k).integer() % MAX_SEED for k in range(1, len(game.masks))]


def run_tasks(
    function: Callable[[Any], Any], tasks: Sequence[Any], label: str, engine: Engine
) -> tuple[list[Any], bool]:
    """What every task made, and whether any drew from torch's global generator: function: task ->
    (made, drew)."""
    done = []
    with show_progress(label, len(tasks)) as bar:
        for result in engine.map(function, tasks):
            done.append(result)
            bar.advance()
    return [outcome for outcome, _ in done], any(draws_randomly for _, draws_randomly in done)


def train_shadow_model(task: ShadowModelTask) -> tuple[Tensor, bool]:
    """Outputs (n, C) of one shadow model; whether its training drew from torch's global
    generator."""
    model, draws_randomly = call_user_function(task.fit, task.key, task.records, task.seed)
    predict = replace(build_predictor(model, task.key, task.records.form), names=task.names)
    return predict(task.asked, len(task.names)), draws_randomly


def call_user_function(
    fit: TrainingFunction, key: str, records: LabelledRecords, seed: int, *sent: nn.Module
) -> tuple[Any, bool]:
    """(what the user's function makes of the records, whether it drew from torch's global
    generator); sent: a model to start from. Raises BadConfig for any exception of it."""
    if isinstance(fit, str):
        function = load_target(fit, key)
    else:
        function = fit
    if sent and not _takes_four_arguments(function):
        raise BadConfig(f"{key}: for updates a function (model, x, y, seed) is needed")
    before = torch.get_rng_state()
    try:
        returned = function(*sent, *records.original_arrays(), seed)
    except Exception as error:  # whatever the function raises
        message = " ".join(str(error).split())[:200]
        raise BadConfig(
            f"{key}: failed on {len(records)} records: {type(error).__name__}: {message}"
        ) from error
    return returned, not torch.equal(before, torch.get_rng_state())


def target_and_shadow_signals(
    model: nn.Module,
    worlds: Sequence[Sequence[Capture]],
    records: LabelledRecords,
    classes: int,
    gradients_sent: bool,
) -> dict[str, Tensor]:
    """name -> (K, n) float64, the mean over captures; worlds: the same rounds each, sent the same
    models. "alignment": cosine of the change with each record's own descent direction (the gradient
    attack of Nasr, Shokri and Houmansadr 2019); "joint": the same for all records at once, by ridge
    regression, where their gradients fit into memory; "confidence": by how much the client's
    training raised it, not of a sent gradient."""
    signals: dict[str, list[Tensor]] = {}
    for same_round in zip(*worlds, strict=True):
        sent = same_round[0]
        names = [name for name, _ in model.named_parameters()]
        steps = torch.stack(
            [_update_step(capture, names, gradients_sent) for capture in same_round]
        )
        joint = len(records) * steps.shape[1] <= MAX_JOINT_NUMBERS
        cosines = []
        blocks = []
        for block in iterate_record_gradients(model, sent, records):
            rows = block.double()
            cosines.append(torch.stack([gradient_alignment(step.double(), rows) for step in steps]))
            if joint:
                blocks += [block]
        signals.setdefault("alignment", []).append(torch.cat(cosines, 1))
        if joint:
            signals.setdefault("joint", []).append(
                ridge_coefficients(steps, -torch.cat(blocks), SMALL_RIDGE_SHARE)
            )
        if not gradients_sent:
            before = _confidence_of(model, sent.broadcast, sent, records, classes)
            after = [
                _confidence_of(model, capture.value, capture, records, classes)
                for capture in same_round
            ]
            signals.setdefault("confidence", []).append(torch.stack(after) - before)
    return {name: torch.stack(values).double().mean(0) for name, values in signals.items()}


def _update_step(capture: Capture, names: Sequence[str], gradients_sent: bool) -> Tensor:
    """(p,): the change of all parameters, or minus the gradient."""
    value = {name: capture.value[name].to(capture.broadcast[name].dtype) for name in names}
    change = {
        name: -value[name] if gradients_sent else value[name] - capture.broadcast[name]
        for name in names
    }
    return torch.cat([change[name].flatten() for name in names])


def iterate_record_gradients(
    model: nn.Module, capture: Capture, records: LabelledRecords
) -> Iterable[Tensor]:
    """Blocks (b, p) of each record's loss gradient at the model that was sent, in eval mode."""
    plain = copy_with_weights(model, capture.broadcast)
    weights = {name: value.detach() for name, value in plain.named_parameters()}  # tied ones once
    state = weights | dict(plain.named_buffers())
    names = tuple(weights)
    kind = state[names[0]].dtype
    if records.x.is_floating_point():
        x = records.x.to(kind)
    else:
        x = records.x
    return RecordGradients(plain, state, x, records.y, names).iterate_blocks()


def _confidence_of(
    model: nn.Module,
    state: Mapping[str, Tensor],
    capture: Capture,
    records: LabelledRecords,
    classes: int,
) -> Tensor:
    held = copy_with_weights(model, {**capture.broadcast, **state})
    return logit_scaled(build_predictor(held, "target.model")(records.x, classes), records.y)


def copy_with_weights(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with these values, in eval mode."""
    held = copy.deepcopy(model)
    held.load_state_dict(dict(state))
    return held.eval()


# Trained by the owner's function ``(model, x, y, seed) -> model``, which is given the model that
# the server sent in each round, or by plain SGD with the known settings (``SGD_NAME``); a gradient
# needs neither.


@dataclass(frozen=True)
class PlainSGD:
    """Minibatches of ``batch`` records in a random order, epoch after epoch; None: all records at
    each step."""

    lr: float
    steps: int
    batch: int | None = None
    momentum: float = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> nn.Module:
        generator = torch.Generator().manual_seed(seed)
        waiting = torch.empty(0, dtype=torch.long)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)
        kind = next(model.parameters()).dtype
        size = min(self.batch or len(x), len(x))
        for _ in range(self.steps):
            if len(waiting) < size:
                waiting = torch.randperm(len(x), generator=generator)
            rows = waiting[:size]
            waiting = waiting[size:]
            optimizer.zero_grad()
            inputs = x[rows].to(kind) if x.is_floating_point() else x[rows]
            nn.functional.cross_entropy(model(inputs), y[rows]).backward()
            optimizer.step()
        return model


@dataclass(frozen=True)
class ShadowUpdateTask:
    """One world: the client's rounds as they were captured, trained again on other records."""

    fit: TrainingFunction | PlainSGD
    model: nn.Module
    rounds: tuple[Capture, ...]
    records: LabelledRecords
    seed: int


def compute_shadow_updates(
    fit: TrainingFunction | PlainSGD | None,
    model: nn.Module,
    rounds: Sequence[Capture],
    game: CoinGame,
    keys: Keys,
    engine: Engine,
) -> tuple[list[tuple[Capture, ...]], bool]:
    """The K - 1 other worlds' captures, and whether their training drew from torch's global
    generator; fit: None where gradients were sent. Raises BadConfig, one line, where the function
    fails or gives no model of these weights."""
    each = fit or PlainSGD(1.0, 1)
    seeds = enumerate(draw_shadow_seeds(game, keys), 1)
    tasks = [
        ShadowUpdateTask(each, model, tuple(rounds), game.shadow_set(k), seed) for k, seed in seeds
    ]
    if fit:
        work = train_shadow_update
    else:
        work = differentiate_shadow_update
    return run_tasks(work, tasks, "train shadow updates", engine)


def train_shadow_update(task: ShadowUpdateTask) -> tuple[tuple[Capture, ...], bool]:
    """Each round's weights, from the model that was sent in it; whether the global generator was
    drawn from."""
    before = torch.get_rng_state()
    updates = tuple(
        replace(capture, value=_trained_weights(task, capture, task.seed + index))
        for index, capture in enumerate(task.rounds)
    )
    return updates, not torch.equal(before, torch.get_rng_state())


def differentiate_shadow_update(task: ShadowUpdateTask) -> tuple[tuple[Capture, ...], bool]:
    """The mean gradient over the world's records, at the model that was sent; nothing is drawn."""
    gradients = []
    for capture in task.rounds:
        plain = copy_with_weights(task.model, capture.broadcast)
        x = task.records.x
        if x.is_floating_point():
            x = x.to(next(plain.parameters()).dtype)
        nn.functional.cross_entropy(plain(x), task.records.y).backward()
        value = dict(capture.value)
        for name, parameter in plain.named_parameters():
            if name not in value:
                continue
            if parameter.grad is None:
                value[name] = torch.zeros_like(parameter)
            else:
                value[name] = parameter.grad
        gradients.append(replace(capture, value=value))
    return tuple(gradients), False


def _trained_weights(task: ShadowUpdateTask, capture: Capture, seed: int) -> dict[str, Tensor]:
    started = copy_with_weights(task.model, capture.broadcast).train()
    records = task.records
    if isinstance(task.fit, PlainSGD):
        trained: Any = task.fit(started, records.x, records.y, seed)
    else:
        trained, _ = call_user_function(task.fit, TRAINING_KEY, records, seed, started)
    if not isinstance(trained, nn.Module):
        raise BadConfig(
            f"{TRAINING_KEY}: returned a {type(trained).__name__}; the trained torch "
            "module is needed"
        )
    state = {name: value.detach() for name, value in trained.state_dict().items()}
    for name, value in sorted(capture.value.items()):
        if name not in state or state[name].shape != value.shape:
            raise BadConfig(
                f"{TRAINING_KEY}: the model that it returned has no {name} {tuple(value.shape)}"
            )
        if not torch.isfinite(state[name].double()).all():
            raise BadConfig(
                f"{TRAINING_KEY}: NaN or infinity in {name} of the model that it returned"
            )
    return {name: state[name].to(value.dtype) for name, value in capture.value.items()}


def _takes_four_arguments(function: Any) -> bool:
    try:
        inspect.signature(function).bind(None, None, None, 0)
    except (TypeError, ValueError):
        return False
    return True


# First values follow PyTorch's default laws (uniform within 1 / sqrt(fan-in); norms start as the
# identity).


@dataclass(frozen=True)
class NetworkRetraining:
    """A training function (x, y, seed) -> model, from new first values of ``model``. Raises
    BadConfig for layers whose laws are not known."""

    model: nn.Module
    training: PlainSGD

    def __post_init__(self) -> None:
        for name, part in self.model.named_modules():
            layers = [leaf for leaf, _ in part.named_parameters(recurse=False)]
            layers += [leaf for leaf, _ in part.named_buffers(recurse=False)]
            if layers and not isinstance(part, DRAWN_LAYERS + NORM_LAYERS):
                raise BadConfig(
                    f"target.training=sgd: {name or type(part).__name__} "
                    f"({type(part).__name__}) holds "
                    f"{', '.join(layers)}, whose first values are not known here; give a "
                    "function (x, y, seed) -> model"
                )

    def __call__(self, x: Any, y: Any, seed: int) -> nn.Module:
        started = copy_with_new_weights(self.model, Keys(seed).fold("start").torch()).train()
        return self.training(started, torch.as_tensor(x), torch.as_tensor(y).long(), seed).eval()


def copy_with_new_weights(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with new first values."""
    network = copy.deepcopy(model)
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, DRAWN_LAYERS):
                bound = 1 / math.sqrt(_fan_in(part))
                for parameter in part.parameters(recurse=False):
                    parameter.uniform_(-bound, bound, generator=generator)
            elif isinstance(part, NORM_LAYERS):
                for name, value in (
                    *part.named_parameters(recurse=False),
                    *part.named_buffers(recurse=False),
                ):
                    value.fill_(1 if name in ("weight", "running_var") else 0)
    return network.requires_grad_(True)


def _fan_in(part: nn.Module) -> int:
    """As PyTorch counts it: the second dimension of the weight, also for transposed convolutions,
    times the kernel."""
    weight: torch.Tensor = part.weight  # type: ignore[assignment]
    return weight.shape[1] * math.prod(weight.shape[2:])
