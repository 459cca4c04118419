"""Components of Opacus, jax-privacy, NVFlare and pfl-research as callables on arrays; each library is imported when one of its components is called."""

from __future__ import annotations

import copy
import functools
import logging
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from privdd.core.validation import BadConfig, check_integer, check_number
from privdd.privacy.accounting import epsilon

JAX_DELTA = 1e-5


def adapt_clipped_sum(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``clipped_fun`` of the rows themselves, then ``matrix_factorization_privatizer`` with independent noise.

    args: noise_multiplier (noise over the sensitivity that ``clipped_fun`` states for a row more or less), and arguments
    of ``clipped_fun``. Raises BadConfig where the multiplier is missing.
    """
    if "noise_multiplier" not in args:
        raise BadConfig("args.noise_multiplier= is needed")
    z, delta = float(args["noise_multiplier"]), float(stated.get("delta", JAX_DELTA))
    given = {"l2_clip_norm": 1.0, "keep_batch_dim": False, **{k: v for k, v in args.items() if k != "noise_multiplier"}}
    said = {
        "epsilon": epsilon(dpa.GaussianDpEvent(z), delta),
        "delta": delta,
        "kind": "records",
        "relation": "add_remove",
    }

    release = functools.cache(
        lambda: _compile_noised_sum(target, given, z)
    )  # compiled once: it keeps nothing between calls

    class Rows:
        def __call__(self, x: np.ndarray) -> np.ndarray:
            return release()(x)

    return Rows, {**said, "noise_multiplier": z}


def _compile_noised_sum(target: Any, given: Mapping[str, Any], z: float) -> Callable[[np.ndarray], np.ndarray]:
    """One compiled function, with a key of its own for each call from the system's randomness."""
    import jax
    from jax_privacy.noise_addition import matrix_factorization_privatizer

    clipped = target(lambda row: row, **given)
    relation = dpa.NeighboringRelation.ADD_OR_REMOVE_ONE
    std = z * float(clipped.sensitivity(relation))
    one = np.eye(1)

    def add_noise(x: Any, key: Any) -> Any:
        privatizer = matrix_factorization_privatizer(one, stddev=std, prng_key=key)
        total = clipped(x)
        return privatizer.update(total, privatizer.init(total))[0]

    compiled = jax.jit(add_noise)
    return lambda x: np.asarray(compiled(x.astype(np.float32), jax.random.key(secrets.randbits(32))))


SELECTION_EPSILON, RELEASE_EPSILON = 1.0, 1.0  # epsilon of the two phases, where none is given


def adapt_sparse_vector(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``SVTPrivacy``: which numbers are sent is chosen by noised comparisons, and each of them gets Laplace noise.

    args: of the filter. It states for a call, by its own accountant, epsilon + epsilon_release at delta 0.
    """
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    logging.getLogger(target.__name__).setLevel(logging.CRITICAL)
    given = {"epsilon": SELECTION_EPSILON, "epsilon_release": RELEASE_EPSILON, **args}
    total = float(given["epsilon"]) + float(given["epsilon_release"])
    context = FLContext()

    class Filtered:
        def __init__(self) -> None:
            self.filter = target(**given)
            self.filter.logger.setLevel(logging.CRITICAL)

        def __call__(self, update: list[np.ndarray]) -> list[np.ndarray]:
            sent = DXO(DataKind.WEIGHT_DIFF, {str(at): part for at, part in enumerate(update)})
            filtered = self.filter.process_dxo(sent, Shareable(), context)
            return [filtered.data[str(at)] for at in range(len(update))]

    return Filtered, {"epsilon": total, "delta": 0.0, "kind": "update", "relation": "zero_out"}


OPACUS_DELTA = 1e-5
GRADIENT_PARTS = 3  # arrays that a gradient is split into


def _noise_multiplier_argument(args: Mapping[str, Any]) -> float:
    if "noise_multiplier" not in args:
        raise BadConfig("args.noise_multiplier= is needed")
    check_number("args.noise_multiplier", args["noise_multiplier"])
    return float(args["noise_multiplier"])


def _stated_privacy(event: dpa.DpEvent, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Epsilon of an event by the exact accountant, for one row more or less."""
    delta = float(stated.get("delta", OPACUS_DELTA))
    return {"epsilon": epsilon(event, delta), "delta": delta, "kind": "records", "relation": "add_remove"}


def _build_private_step(target: type, args: Mapping[str, Any]) -> Callable[[np.ndarray], list[np.ndarray]]:
    """An optimizer of its own for each width: the rows as per-sample gradients -> what ``step`` would apply."""
    made: dict[int, Any] = {}

    def private_step(rows: np.ndarray) -> list[np.ndarray]:
        widths = [len(part) for part in np.array_split(np.arange(rows.shape[1]), min(GRADIENT_PARTS, rows.shape[1]))]
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

    return private_step


def _rows_class(make: Callable[[], Callable[[np.ndarray], Any]]) -> type:
    class Rows:
        def __init__(self) -> None:
            self.f = make()

        def __call__(self, x: np.ndarray) -> Any:
            return self.f(x)

    return Rows


def adapt_dp_optimizer(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``DPOptimizer``: one step on all rows, the Gaussian mechanism of its noise multiplier."""
    z, given = _noise_multiplier_argument(args), {"max_grad_norm": 1.0, **args}
    said = _stated_privacy(dpa.GaussianDpEvent(z), stated)
    return _rows_class(lambda: _build_private_step(target, given)), {**said, "noise_multiplier": z}


def adapt_per_layer_optimizer(
    target: type, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    """``DPPerLayerOptimizer`` with three layers, ``max_grad_norm`` each."""
    each = float(args.get("max_grad_norm", 1.0))
    return adapt_dp_optimizer(target, {**args, "max_grad_norm": [each] * GRADIENT_PARTS}, stated)


def adapt_adaclip_optimizer(
    target: type, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    """``AdaClipDPOptimizer``: the count of unclipped gradients is noised too, within the same noise multiplier."""
    usual = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 1e8,
             "min_clipbound": 1e-4, "unclipped_num_std": 2.0}  # fmt: skip
    return adapt_dp_optimizer(target, {**usual, **args}, stated)


def adapt_poisson_sampler(
    target: type, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    """One batch of ``UniformWithReplacementSampler``, then ``DPOptimizer``."""
    from opacus.optimizers import DPOptimizer

    z, q = _noise_multiplier_argument(args), float(args.get("sample_rate", 0.1))
    said = _stated_privacy(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z)), stated)

    def build_step() -> Callable[[np.ndarray], list[np.ndarray]]:
        step = _build_private_step(
            DPOptimizer, {"noise_multiplier": z, "max_grad_norm": float(args.get("max_grad_norm", 1.0))}
        )

        def sample_and_step(x: np.ndarray) -> list[np.ndarray]:
            taken = next(iter(target(num_samples=len(x), sample_rate=q, steps=1)))
            return step(x[taken])

        return sample_and_step

    return _rows_class(build_step), said


def adapt_privacy_engine(
    target: type, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    """One epoch of the loader that ``PrivacyEngine`` prepares, every batch through ``DPOptimizer``.

    args: noise_multiplier, max_grad_norm, batches of an epoch, poisson_sampling. Stated is what the engine's accountant
    says after an epoch: Poisson sampling at rate 1 / batches, whichever loader was prepared.
    """
    from opacus.optimizers import DPOptimizer

    logging.getLogger("opacus").setLevel(logging.CRITICAL)
    z, batches = _noise_multiplier_argument(args), check_integer("args.batches", args.get("batches", 20), 1, most=1000)
    event = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(1 / batches, dpa.GaussianDpEvent(z)), batches)
    poisson = bool(args.get("poisson_sampling", True))

    def build_epoch() -> Callable[[np.ndarray], np.ndarray]:
        engine = target(accountant="rdp")
        step = _build_private_step(
            DPOptimizer, {"noise_multiplier": z, "max_grad_norm": float(args.get("max_grad_norm", 1.0))}
        )

        def run_epoch(x: np.ndarray) -> np.ndarray:
            data = TensorDataset(torch.from_numpy(x).float())
            loader = DataLoader(data, batch_size=max(1, math.ceil(len(x) / batches)), shuffle=True)
            prepared = engine._prepare_data_loader(loader, distributed=False, poisson_sampling=poisson)
            sent = [np.concatenate(step(batch.numpy().astype(np.float64))) for (batch,) in prepared]
            return np.stack(sent)

        return run_epoch

    return _rows_class(build_epoch), _stated_privacy(event, stated)


PFL_DELTA = 1e-5


def adapt_gaussian_mechanism(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    """``GaussianMechanism.construct_single_iteration(clipping_bound, epsilon, delta)``; it keeps what these say.

    args: clipping_bound (default 1), epsilon (needed), delta; with_metrics: the metrics that come with the update leave
    the user too.
    """
    delta = float(args.get("delta", stated.get("delta", PFL_DELTA)))
    bound, epsilon = float(args.get("clipping_bound", 1.0)), _epsilon_argument(args)
    said = {"epsilon": epsilon, "delta": delta, "kind": "update", "relation": "zero_out"}
    return _mechanism_class(lambda: target.construct_single_iteration(bound, epsilon, delta), args), said


def adapt_laplace_mechanism(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    """``LaplaceMechanism(clipping_bound, epsilon)``: clipped in L1, pure epsilon."""
    bound, epsilon = float(args.get("clipping_bound", 1.0)), _epsilon_argument(args)
    return _mechanism_class(lambda: target(bound, epsilon), args), {
        "epsilon": epsilon, "delta": 0.0, "kind": "update", "relation": "zero_out",
    }  # fmt: skip


def _epsilon_argument(args: Mapping[str, Any]) -> float:
    if "epsilon" not in args:
        raise BadConfig("args.epsilon= is needed")
    return float(args["epsilon"])


def _mechanism_class(make: Any, args: Mapping[str, Any]) -> type:
    """The mechanism with pfl's numpy operations, a copy of its own for each transcript: making one looks for its noise
    scale, which takes longer than thirty calls."""
    from pfl.internal.ops import numpy_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.stats import MappedVectorStatistics

    set_framework_module(numpy_ops)
    told, first = bool(args.get("with_metrics", False)), functools.cache(make)

    class Local:
        def __init__(self) -> None:
            self.mechanism = copy.deepcopy(first())

        def __call__(self, update: list[np.ndarray]) -> list[np.ndarray]:
            given = MappedVectorStatistics({str(at): part for at, part in enumerate(update)}, weight=1)
            released, metrics = self.mechanism.privatize(given)
            sent = [released[str(at)] for at in range(len(update))]
            return [*sent, np.array([value.overall_value for _, value in metrics])] if told else sent

    return Local
