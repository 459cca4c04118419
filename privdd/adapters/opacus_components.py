"""Opacus's optimizers, sampler and loader: rows are the gradients of single records, what is released is the noised gradient."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from privdd.core.checks import check_number, whole
from privdd.core.errors import BadConfig
from privdd.privacy.accounting import epsilon

DELTA = 1e-5
PARTS = 3  # arrays that a gradient is split into


def _multiplier(args: Mapping[str, Any]) -> float:
    if "noise_multiplier" not in args:
        raise BadConfig("args.noise_multiplier= is needed")
    check_number("args.noise_multiplier", args["noise_multiplier"])
    return float(args["noise_multiplier"])


def _said(event: dpa.DpEvent, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Epsilon of an event by the exact accountant, for one row more or less."""
    delta = float(stated.get("delta", DELTA))
    return {"epsilon": epsilon(event, delta), "delta": delta, "kind": "records", "relation": "add_remove"}


def _step(target: type, args: Mapping[str, Any]) -> Callable[[np.ndarray], list[np.ndarray]]:
    """An optimizer of its own for each width: the rows as per-sample gradients -> what ``step`` would apply."""
    made: dict[int, Any] = {}

    def step(rows: np.ndarray) -> list[np.ndarray]:
        widths = [len(part) for part in np.array_split(np.arange(rows.shape[1]), min(PARTS, rows.shape[1]))]
        if rows.shape[1] not in made:
            parameters = [nn.Parameter(torch.zeros(width)) for width in widths]
            given = {"expected_batch_size": 1, "loss_reduction": "sum", **args}
            made[rows.shape[1]] = target(torch.optim.SGD(parameters, lr=1.0), **given)
        optimizer = made[rows.shape[1]]
        optimizer.zero_grad()
        for parameter, part in zip(optimizer.params, torch.from_numpy(rows).float().split(widths, dim=1)):
            parameter.grad_sample = part.contiguous()
        optimizer.pre_step()
        return [parameter.grad.numpy().copy() for parameter in optimizer.params]

    return step


def _as_class(make: Callable[[], Callable[[np.ndarray], Any]]) -> type:
    class Rows:
        def __init__(self) -> None:
            self.f = make()

        def __call__(self, x: np.ndarray) -> Any:
            return self.f(x)

    return Rows


def optimizer(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``DPOptimizer``: one step on all rows, the Gaussian mechanism of its noise multiplier."""
    z, given = _multiplier(args), {"max_grad_norm": 1.0, **args}
    said = _said(dpa.GaussianDpEvent(z), stated)
    return _as_class(lambda: _step(target, given)), {**said, "noise_multiplier": z}


def per_layer(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``DPPerLayerOptimizer`` with three layers, ``max_grad_norm`` each."""
    each = float(args.get("max_grad_norm", 1.0))
    return optimizer(target, {**args, "max_grad_norm": [each] * PARTS}, stated)


def adaptive(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``AdaClipDPOptimizer``: the count of unclipped gradients is noised too, within the same noise multiplier."""
    usual = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 1e8,
             "min_clipbound": 1e-4, "unclipped_num_std": 2.0}  # fmt: skip
    return optimizer(target, {**usual, **args}, stated)


def poisson_step(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """One batch of ``UniformWithReplacementSampler``, then ``DPOptimizer``."""
    from opacus.optimizers import DPOptimizer

    z, q = _multiplier(args), float(args.get("sample_rate", 0.1))
    said = _said(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z)), stated)

    def make() -> Callable[[np.ndarray], list[np.ndarray]]:
        step = _step(DPOptimizer, {"noise_multiplier": z, "max_grad_norm": float(args.get("max_grad_norm", 1.0))})

        def f(x: np.ndarray) -> list[np.ndarray]:
            taken = next(iter(target(num_samples=len(x), sample_rate=q, steps=1)))
            return step(x[taken])

        return f

    return _as_class(make), said


def engine_epoch(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """One epoch of the loader that ``PrivacyEngine`` prepares, every batch through ``DPOptimizer``.

    args: noise_multiplier, max_grad_norm, batches of an epoch, poisson_sampling. Stated is what the engine's accountant
    says after an epoch: Poisson sampling at rate 1 / batches, whichever loader was prepared.
    """
    from opacus.optimizers import DPOptimizer

    logging.getLogger("opacus").setLevel(logging.CRITICAL)
    z, batches = _multiplier(args), whole("args.batches", args.get("batches", 20), 1, most=1000)
    event = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(1 / batches, dpa.GaussianDpEvent(z)), batches)
    poisson = bool(args.get("poisson_sampling", True))

    def make() -> Callable[[np.ndarray], np.ndarray]:
        engine = target(accountant="rdp")
        step = _step(DPOptimizer, {"noise_multiplier": z, "max_grad_norm": float(args.get("max_grad_norm", 1.0))})

        def f(x: np.ndarray) -> np.ndarray:
            data = TensorDataset(torch.from_numpy(x).float())
            loader = DataLoader(data, batch_size=max(1, math.ceil(len(x) / batches)), shuffle=True)
            prepared = engine._prepare_data_loader(loader, distributed=False, poisson_sampling=poisson)
            sent = [np.concatenate(step(batch.numpy().astype(np.float64))) for (batch,) in prepared]
            return np.stack(sent)

        return f

    return _as_class(make), _said(event, stated)
