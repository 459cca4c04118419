"""FedFed's feature split (Yang et al. 2023, Eqs. 8-9): x = q(x) + x_s, and only x_s is shared.

A generator q reproduces as much of the image as it can, while a classifier must still predict the
label from the rest, x_s = x - q(x), under the noise that it will be shared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from attacks.tensors import as_factor
from attacks.validation import check_non_negative
from privdd.core.device import to_device
from privdd.core.loop_timing import timed_steps
from privdd.core.rng import Keys
from privdd.core.types import Records, RecordShape, State, Tensors, Values, pack, unpack
from privdd.distillation.class_cells import draw_record_normals
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, build
from privdd.models.networks import VAE
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import FeatureNoise
from privdd.training.dp_sgd import QUERY, count_private_steps, dp_local_sgd
from privdd.training.sgd import ModelEnsemble, is_vectorisable, pool_records

CLASSIFIER = "classifier."
GENERATOR = "generator."


def sent_networks(broadcast: Values) -> State:
    """Parameters and buffers of phase A's two networks as the server sent them."""
    return {**broadcast["generator"], **broadcast.get("generator_buffers", {})}


def inner_state(prefix: str, state: Tensors) -> State:
    """The entries of one network of a split, by its own names."""
    return {name[len(prefix) :]: t for name, t in state.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class SplitLoss:
    """Weights of the joint loss (released code: re 5 x 10, ce 2, kl 0.005, x_ce 0.4).

    stds: scales of the noise under which the classifier must read x_s, one per copy; distribution:
        its law, for laplace of scale b (standard deviation b sqrt 2). rho: bound on ||x_s|| / ||x||
        (section 3.3), None for no bound
    (the released code has none). These three are the mechanism's own (``for_mechanism``), not
    settings of the loss."""

    reconstruction: float = 50.0
    feature_ce: float = 2.0
    kl: float = 0.005
    image_ce: float = 0.4
    stds: tuple[float, ...] = (0.3872983346,)
    rho: float | None = None
    distribution: Literal["gaussian", "laplace"] = "gaussian"

    def __post_init__(self) -> None:
        check_non_negative(
            self, "reconstruction", "feature_ce", "kl", "image_ce", under="algo.loss."
        )
        if self.rho is not None and not 0 < self.rho <= 1:
            raise ValueError(f"algo.loss.rho={self.rho}: null or a number in (0, 1] is needed")
        if not self.stds or any(not 0 <= s < math.inf for s in self.stds):
            raise ValueError(
                f"algo.loss.stds={self.stds}: finite numbers from 0 are needed, one per copy"
            )

    def for_mechanism(self, mechanism: Mechanism | None, numbers: int) -> SplitLoss:
        """The loss for features of so many numbers that this mechanism releases; None: they are
        released as they are."""
        if mechanism is None:
            return replace(self, stds=(0.0,), rho=None)
        if not isinstance(mechanism, FeatureNoise):
            return self
        stds = mechanism.copy_stds(mechanism.norm_for_size(numbers))
        return replace(self, stds=stds, rho=mechanism.rho, distribution=mechanism.distribution)


def bound_features(features: Tensor, x: Tensor, rho: float | None) -> Tensor:
    """Scale each x_s (b, ...) down to ||x_s|| <= rho ||x|| where it is larger."""
    if rho is None:
        return features
    limit = rho * x.flatten(1).norm(dim=1)
    norm = features.flatten(1).norm(dim=1).clamp_min(1e-12)
    return features * as_factor((limit / norm).clamp(max=1.0), features)


class FeatureSplit(nn.Module):
    """generator: (x, noise) -> (q, mu, logvar); classifier: images -> logits."""

    def __init__(self, generator: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.generator = generator
        self.classifier = classifier

    def forward(self, x: Tensor, y: Tensor, noise: Mapping[str, Tensor], loss: SplitLoss) -> Tensor:
        """The joint loss of a batch. noise: ``latent`` (b, z) and ``copy_i`` (b, c, h, w), standard
        normal."""
        q, mu, logvar = self.generator(x, noise["latent"])
        shared = bound_features(x - q, x, loss.rho)
        draws = [noise[f"copy_{i}"] for i in range(len(loss.stds))]
        if loss.distribution == "laplace":
            draws = [laplace_from_normal(z) for z in draws]
        copies = [shared + std * z for std, z in zip(loss.stds, draws)]
        logits = self.classifier(torch.cat([*copies, x]))
        parts = logits.split(len(x))
        feature_ce = sum((F.cross_entropy(p, y) for p in parts[:-1]), logits.new_zeros(()))
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean() / (3 * mu.shape[1])
        return (
            loss.reconstruction * F.mse_loss(q, x)
            + loss.feature_ce * feature_ce
            + loss.kl * kl
            + loss.image_ce * F.cross_entropy(parts[-1], y)
        )


@lru_cache(maxsize=8)
def build_split_skeleton(
    generator: ModelSpec, classifier: ModelSpec, shape: RecordShape, classes: int
) -> FeatureSplit:
    """The module whose names the state uses; values come through functional_call."""
    return FeatureSplit(build(generator, shape, classes), build(classifier, shape, classes))


def feature_map(
    generator: nn.Module, state: Tensors, rho: float | None
) -> Callable[[Tensor], Tensor]:
    """x (n, c, h, w) -> x_s, the part of x that ``generator`` with parameters ``state`` does not
    reproduce."""

    def map_features(x: Tensor) -> Tensor:
        generator.eval()
        parts = [
            bound_features(p - functional_call(generator, dict(state), (p, None))[0], p, rho)
            for p in x.split(256)
        ]
        return torch.cat(parts) if parts else x

    return map_features


def laplace_from_normal(normal: Tensor) -> Tensor:
    """Standard normal draws -> Laplace draws of scale 1 with the same signs: P(|Z| > z) = P(|L| >
    -log P(|Z| > z))."""
    return -normal.sign() * torch.erfc(normal.abs() / math.sqrt(2)).log()


def draw_batch_noise(
    x: Tensor, latent: int, copies: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """The standard normal draws of one batch."""
    noise = {"latent": torch.randn(len(x), latent, generator=generator)}
    return noise | {f"copy_{i}": torch.randn(x.shape, generator=generator) for i in range(copies)}


def draw_record_noise(
    ids: Tensor, keys: Keys, shape: tuple[int, ...], latent: int, copies: int
) -> dict[str, Tensor]:
    """The noise of ``draw_batch_noise`` for records with these ids (n,): each record's draws from
    ``keys`` and its id alone."""
    size = math.prod(shape)
    parts = draw_record_normals(ids, keys, latent + copies * size).split(
        [latent, *[size] * copies], 1
    )
    return {"latent": parts[0]} | {
        f"copy_{i}": part.unflatten(1, shape) for i, part in enumerate(parts[1:])
    }


def train_split(
    model: FeatureSplit,
    state: State,
    optimiser: State,
    records: Records,
    loss: SplitLoss,
    *,
    lr: float,
    weight_decay: float,
    batch_size: int,
    epochs: int,
    generator: torch.Generator,
) -> tuple[State, State]:
    """AdamW epochs from ``state``; the moments are kept in ``optimiser`` (the released code keeps
    them).

    Returns (new state, new optimiser state); neither input is changed.
    """
    current = {name: t.clone() for name, t in state.items()}
    learned = {n: current[n].requires_grad_(True) for n, _ in model.named_parameters()}
    adam = torch.optim.AdamW(learned.values(), lr=lr, weight_decay=weight_decay, fused=True)
    _load_moments(adam, learned, optimiser)
    model.train()
    latent = int(getattr(model.generator, "latent"))  # noqa: B009
    for _ in timed_steps(range(epochs)):
        for index in timed_steps(
            torch.randperm(len(records), generator=generator).split(batch_size)
        ):
            x = records.x[index]
            y = records.y[index]
            noise = to_device(draw_batch_noise(x, latent, len(loss.stds), generator), x.device)
            adam.zero_grad()
            functional_call(model, current, (x, y, noise, loss)).backward()
            adam.step()
    return {n: t.detach() for n, t in current.items()}, _collect_moments(adam, learned)


def can_train_together(model: FeatureSplit) -> bool:
    """Whether ``train_splits`` has a wide form of both networks."""
    return isinstance(model.generator, VAE) and is_vectorisable(model)


def train_splits(
    model: FeatureSplit,
    state: State,
    clients: Sequence[Records],
    loss: SplitLoss,
    *,
    lr: float,
    weight_decay: float,
    batch_size: int,
    epochs: int,
    generators: Sequence[torch.Generator],
) -> list[State]:
    """``train_split`` for K sets of records at once, from fresh moments: what each would become
    alone, up to rounding.

    AdamW takes whole steps along a gradient that is zero but for rounding, as of a bias before
    instance norm; outputs do not depend on such a parameter. The sets may be of different size,
    their ids must tell records apart.
    """
    pool, rows = pool_records(clients)
    ensemble = ModelEnsemble(model, state, len(clients))
    pool = pool.to(ensemble.flat.device)
    ensemble.flat.grad = ensemble.grad
    adam = torch.optim.AdamW([ensemble.flat], lr=lr, weight_decay=weight_decay, fused=True)
    ensemble.module.train()
    counts = [epochs * math.ceil(len(r) / batch_size) for r in rows]
    width = min(batch_size, max(map(len, rows)))
    latent = int(model.generator.latent)  # type: ignore[arg-type]
    draws = [
        _draw_split_batches(pool.x, r, batch_size, latent, len(loss.stds), generator)
        for r, generator in zip(rows, generators)
    ]
    ended: dict[int, State] = {}
    for step in timed_steps(range(max(counts))):
        drawn = {k: next(draws[k]) for k, count in enumerate(counts) if step < count}
        position = torch.zeros(width, len(clients), dtype=torch.long)
        weight = torch.zeros(width, len(clients))
        noise: dict[str, Tensor] = {}
        for k, (index, noise_of_batch) in drawn.items():
            position[: len(index), k] = index
            weight[: len(index), k] = 1 / len(index)
            for name, value in noise_of_batch.items():
                if name not in noise:
                    noise[name] = torch.zeros(width, len(clients), *value.shape[1:])
                noise[name][: len(index), k] = value
        position, weight, noise = to_device((position, weight, noise), pool.x.device)
        ensemble.grad.zero_()
        losses = _losses_of_copies(ensemble.module, pool.x[position], pool.y[position], noise, loss)
        (losses * weight).sum().backward()
        adam.step()
        ended |= {k: ensemble.copy_state(k) for k, count in enumerate(counts) if count == step + 1}
    return [ended.get(k, state) for k in range(len(clients))]


def _draw_split_batches(
    x: Tensor, rows: Tensor, batch_size: int, latent: int, copies: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The batches and noise that ``train_split`` draws; rows: positions of the records in x (pool,
    c, h, w)."""
    while True:
        for index in torch.randperm(len(rows), generator=generator).split(batch_size):
            batch = rows[index]
            yield batch, draw_batch_noise(x[batch], latent, copies, generator)


def _losses_of_copies(
    model: Any, x: Tensor, y: Tensor, noise: Mapping[str, Tensor], loss: SplitLoss
) -> Tensor:
    """The joint loss of each record (b, K) in K models side by side, of which ``FeatureSplit``
    gives the mean.

    Args:
        model: a ``FeatureSplit`` whose layers are wide.
        x: (b, K, c, h, w).
        y: (b, K).
        noise: as in ``FeatureSplit.forward``, with a second axis over the models.
        loss: the weights.
    """
    count, models = y.shape
    q, mu, logvar = model.generator(x.flatten(1, 2), noise["latent"].flatten(1))
    q = q.view_as(x)
    shared = bound_features((x - q).flatten(0, 1), x.flatten(0, 1), loss.rho).view_as(x)
    draws = [noise[f"copy_{i}"] for i in range(len(loss.stds))]
    if loss.distribution == "laplace":
        draws = [laplace_from_normal(z) for z in draws]
    copies = [shared + std * z for std, z in zip(loss.stds, draws)]
    logits = model.classifier(torch.cat([*copies, x]).flatten(1, 2))
    labels = y.repeat(len(copies) + 1, 1).flatten()
    errors = F.cross_entropy(logits.view(len(labels), -1), labels, reduction="none").view(
        len(copies) + 1, count, models
    )
    each = (1 + logvar - mu.square() - logvar.exp()).view(count, models, -1)
    kl = -0.5 * each.sum(2) / (3 * each.shape[2])
    return (
        loss.reconstruction * (q - x).square().flatten(2).mean(2)
        + loss.feature_ce * errors[:-1].sum(0)
        + loss.kl * kl
        + loss.image_ce * errors[-1]
    )


def _load_moments(adam: torch.optim.AdamW, learned: Mapping[str, Tensor], saved: State) -> None:
    for name, parameter in learned.items():
        parts = unpack(name, saved)
        if parts:
            moments = {key: value.clone() for key, value in parts.items()}
            adam.state[parameter] = {**moments, "step": moments["step"].to(parameter.device)}


def _collect_moments(adam: torch.optim.AdamW, learned: Mapping[str, Tensor]) -> State:
    moments: State = {}
    for name, parameter in learned.items():
        moments |= pack(name, {k: torch.as_tensor(v) for k, v in adam.state[parameter].items()})
    return moments


def train_split_privately(
    model: FeatureSplit,
    state: State,
    records: Records,
    loss: SplitLoss,
    *,
    lr: float,
    momentum: float,
    epochs: int,
    ctx: ClientContext,
) -> State:
    """The joint loss, each record's gradient clipped over generator and classifier together.

    The loss's own draws are no secret, so a record's are keyed by step and record id: drawn by
    position in the batch, one record more or less would change the draws, and with them the
    gradients, of others."""
    shape = tuple(records.x.shape[1:])
    copies = len(loss.stds)
    latent = int(model.generator.latent)  # type: ignore[arg-type]

    def draw_step_noise(step: int, ids: Tensor) -> tuple[Tensor, ...]:
        noise = draw_record_noise(ids, ctx.keys.fold("split-noise", step), shape, latent, copies)
        return tuple(noise[name] for name in sorted(noise))

    names = sorted(["latent", *(f"copy_{i}" for i in range(copies))])

    def loss_of_record(params: Tensors, x: Tensor, y: Tensor, *noise: Tensor) -> Tensor:
        return functional_call(model, dict(params), (x, y, dict(zip(names, noise)), loss))

    model.train()
    steps = count_private_steps(ctx.mechanisms[QUERY], epochs)
    return dp_local_sgd(
        model,
        state,
        records,
        lr=lr,
        momentum=momentum,
        steps=steps,
        ctx=ctx,
        loss=loss_of_record,
        draws=draw_step_noise,
    )
