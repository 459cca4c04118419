"""Components of Opacus, NVFlare, pfl, jax-privacy, diffprivlib, OpenDP and PyDP, called as their
documentation calls them.

Each library but Opacus is imported when one of its components is.
"""

from __future__ import annotations

import copy
import functools
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from privdd.core.validation import BadConfig, check_integer, check_number

DELTA = 1e-5
Adapted = tuple[type, dict[str, Any]]
# the others are keywords of make_private
OURS = ("records", "batch_size", "shuffle", "steps", "layers", "accountant")


def number_argument(args: Mapping[str, Any], name: str) -> float:
    if name not in args:
        raise BadConfig(f"args.{name}= is needed")
    check_number(f"args.{name}", args[name])
    return float(args[name])


def _without(args: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name not in names}


def _adapt_release(
    release: Callable[..., Any], relation: str, epsilon: float, delta: float = 0.0
) -> Adapted:
    """A function of the records, called again for each transcript."""
    return _callable_class(lambda: release), {
        "epsilon": epsilon,
        "delta": delta,
        "kind": "records",
        "relation": relation,
    }


def _callable_class(make: Callable[[], Callable[..., Any]]) -> type:
    """A class whose instances call what ``make`` returned to each of them."""

    class Component:
        def __init__(self) -> None:
            self.f = make()

        def __call__(self, *data: Any) -> Any:
            return self.f(*data)

    return Component


def adapt_update_filter(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> Adapted:
    """NVFlare: ``Filter.process`` of an update of weights, as a client's chain of filters calls it.

    args: of the filter; numbers: of the update that its accountant is asked about (default 20). It
        states what that says of a call; a filter without an accountant states nothing.
    """
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.fl_context import FLContext

    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    logging.getLogger(target.__name__).setLevel(logging.CRITICAL)
    numbers = check_integer("args.numbers", args.get("numbers", 20), 1, most=1_000_000)
    settings = _without(args, "numbers")
    context = FLContext()

    def make() -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        component = target(**settings)
        component.logger.setLevel(logging.CRITICAL)

        def process(update: Sequence[np.ndarray]) -> list[np.ndarray]:
            named = {str(index): part for index, part in enumerate(update)}
            sent = from_shareable(
                component.process(DXO(DataKind.WEIGHT_DIFF, named).to_shareable(), context)
            )
            return [sent.data[name] for name in named]

        process.component = component  # type: ignore[attr-defined]
        return process

    limit: dict[str, Any] = {"kind": "update", "relation": "zero_out"}
    first: Any = make()
    if hasattr(target, "get_privacy_spent"):
        first([np.zeros(numbers)])
        limit |= {"epsilon": float(first.component.get_privacy_spent()), "delta": 0.0}
    return _callable_class(make), limit


def adapt_statistics_cleanser(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> Adapted:
    """NVFlare: a cleanser's ``apply`` on the smallest and largest value of a column, its federated
    statistics. States nothing."""
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)

    def make() -> Callable[[np.ndarray], dict[str, Any]]:
        component = target(**args)
        component.logger.setLevel(logging.CRITICAL)

        def release(x: np.ndarray) -> dict[str, Any]:
            column = x[:, 0]
            values = {
                "min": {"set": {"column": float(column.min())}},
                "max": {"set": {"column": float(column.max())}},
            }
            return component.apply(values, "site")[0]

        return release

    return _callable_class(make), {"kind": "records", "relation": "add_remove"}


def _pfl_statistics(update: Sequence[np.ndarray]) -> Any:
    from pfl.stats import MappedVectorStatistics

    return MappedVectorStatistics({str(index): part for index, part in enumerate(update)}, weight=1)


def _adapt_pfl_local(
    make: Callable[[], Any], args: Mapping[str, Any], said: Mapping[str, Any]
) -> Adapted:
    """A user's ``privatize``, with pfl's numpy operations; a copy of one mechanism for each
    transcript, since making one looks for its noise scale, which takes longer than thirty calls."""
    from pfl.internal.ops import numpy_ops
    from pfl.internal.ops.selector import set_framework_module

    set_framework_module(numpy_ops)
    with_metrics = bool(args.get("with_metrics", False))
    first = functools.cache(make)

    def privatize_copy() -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        mechanism = copy.deepcopy(first())

        def privatize(update: Sequence[np.ndarray]) -> list[np.ndarray]:
            released, metrics = mechanism.privatize(_pfl_statistics(update))
            sent = [released[str(index)] for index in range(len(update))]
            if with_metrics:
                return [*sent, np.array([value.overall_value for _, value in metrics])]
            return sent

        return privatize

    return _callable_class(privatize_copy), {"kind": "update", "relation": "zero_out", **said}


def adapt_gaussian_mechanism(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> Adapted:
    """pfl: ``GaussianMechanism.construct_single_iteration(clipping_bound, epsilon, delta)``; it
    keeps what these say.

    args: epsilon (needed), clipping_bound (default 1), delta; with_metrics: the metrics that come
        with the update leave the user too; accountant=true: from ``PLDPrivacyAccountant`` instead,
        and ``postprocess_server`` on the sum over users.
    """
    bound = float(args.get("clipping_bound", 1.0))
    epsilon = number_argument(args, "epsilon")
    delta = float(args.get("delta", stated.get("delta", DELTA)))
    limit = {"epsilon": epsilon, "delta": delta}
    if not args.get("accountant", False):
        return _adapt_pfl_local(
            lambda: target.construct_single_iteration(bound, epsilon, delta), args, limit
        )
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    accountant = _pfl_accountant(epsilon, delta)
    central = CentrallyAppliedPrivacyMechanism(target.from_privacy_accountant(accountant, bound))
    return _adapt_pfl_central(lambda: central, limit)


def _pfl_accountant(epsilon: float, delta: float) -> Any:
    from pfl.privacy.privacy_accountant import PLDPrivacyAccountant

    return PLDPrivacyAccountant(
        num_compositions=1,
        sampling_probability=1.0,
        mechanism="gaussian",
        epsilon=epsilon,
        delta=delta,
    )


def adapt_adaptive_clipping(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> Adapted:
    """pfl: ``AdaptiveClippingGaussianMechanism.construct_from_privacy_accountant``, one round;
    epsilon needed.

    args: initial_clipping_bound, clipping_indicator_noise_stddev, adaptive_clipping_norm_quantile,
        log_space_step_size."""

    epsilon = number_argument(args, "epsilon")
    delta = float(args.get("delta", stated.get("delta", DELTA)))
    accountant = _pfl_accountant(epsilon, delta)
    settings = {
        "initial_clipping_bound": 1.0,
        "clipping_indicator_noise_stddev": 5.0,
        "adaptive_clipping_norm_quantile": 0.5,
        "log_space_step_size": 0.2,
        **_without(args, "epsilon", "delta"),
    }
    make = functools.partial(
        target.construct_from_privacy_accountant, accountant=accountant, **settings
    )
    return _adapt_pfl_central(make, {"epsilon": epsilon, "delta": delta}, adaptive=True)


def _adapt_pfl_central(
    make: Callable[[], Any], said: Mapping[str, Any], adaptive: bool = False
) -> Adapted:
    """Every user's ``postprocess_one_user``, pfl's sum of statistics, and ``postprocess_server``;
    each user weighs 1.

    adaptive: the next round's users are sent the clip that moved, which is thus released too.
    """
    from pfl.context import CentralContext, UserContext
    from pfl.hyperparam import get_param_value
    from pfl.internal.ops import numpy_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.metrics import Metrics

    set_framework_module(numpy_ops)

    def begin_round() -> Callable[..., list[np.ndarray]]:
        mechanism = make()

        def release(
            updates: Sequence[Sequence[np.ndarray]], weights: Sequence[int]
        ) -> list[np.ndarray]:
            users = []
            for index, update in enumerate(updates):
                seed = secrets.randbits(31)
                context = UserContext(num_datapoints=1, seed=seed, user_id=str(index))
                statistics = _pfl_statistics(update)
                user, _ = mechanism.postprocess_one_user(stats=statistics, user_context=context)
                users.append(user)
            central = CentralContext(
                current_central_iteration=0,
                do_evaluation=False,
                cohort_size=len(users),
                population=None,
                algorithm_params=None,
                model_train_params=None,
                seed=secrets.randbits(31),
            )
            total, _ = mechanism.postprocess_server(
                stats=sum(users[1:], start=users[0]),
                central_context=central,
                aggregate_metrics=Metrics(),
            )
            sent = [total[str(index)] for index in range(len(updates[0]))]
            if adaptive:
                return [*sent, np.array(get_param_value(mechanism.mutable_clipping_bound))]
            return sent

        return release

    return _callable_class(begin_round), {"kind": "aggregate", "relation": "zero_out", **said}


def adapt_laplace_mechanism(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> Adapted:
    """pfl: ``LaplaceMechanism(clipping_bound, epsilon)``: clipped in L1, pure epsilon."""
    bound = float(args.get("clipping_bound", 1.0))
    epsilon = number_argument(args, "epsilon")
    return _adapt_pfl_local(
        lambda: target(bound, epsilon), args, {"epsilon": epsilon, "delta": 0.0}
    )


def adapt_execution_plan(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> Adapted:
    """jax-privacy: a ``BandMFExecutionPlanConfig``'s plan: its batches, its clipped gradient and
    its noise, one step.

    args: noise_multiplier (needed), sampling_prob and others of the configuration. It states what
        the configuration's accountant says of the plan's event. Batches are padded to the size of
        the data, so that each size is compiled once.
    """
    import jax
    from jax_privacy.batch_selection import pad_to_multiple_of

    z = number_argument(args, "noise_multiplier")
    delta = float(stated.get("delta", DELTA))
    usual = {"iterations": 1, "strategy": [1.0], "epsilon": None, "delta": None}
    config = target(**{**usual, **args, "noise_multiplier": z})
    plan = config.plan
    accountant = copy.deepcopy(config.accountant)
    epsilon = float(accountant.compose(plan.dp_event).get_epsilon(delta))
    gradient = plan.clipped_grad(lambda params, row: jax.numpy.vdot(params, row[0]))
    noise = plan.noise_addition_transform
    states: dict[
        int, Any
    ] = {}  # of the noise, by the width of a row: each step goes on from the one before

    @jax.jit
    def step(x: Any, padding: Any, state: Any) -> Any:
        parameters = jax.numpy.zeros(x.shape[1])
        total = gradient(parameters, x, is_padding_example=padding)
        return noise.update(total, state)

    def release(x: np.ndarray) -> np.ndarray:
        width = x.shape[1]
        if width not in states:
            states[width] = noise.init(jax.numpy.zeros(width))
        batch = next(iter(plan.batch_selection_strategy.batch_iterator(len(x))))
        if len(batch):
            rows = pad_to_multiple_of(batch, len(x))
        else:
            rows = np.full(len(x), -1)
        released, states[width] = step(x[rows].astype(np.float32), rows < 0, states[width])
        return np.asarray(released)

    return _adapt_release(release, "zero_out", epsilon, delta)


def adapt_clipped_sum(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> Adapted:
    """jax-privacy: ``clipped_fun`` of the rows themselves, then ``matrix_factorization_privatizer``
    with independent noise.

    args: noise_multiplier (needed), and arguments of ``clipped_fun``, whose sums are scaled to
        sensitivity 1. It states what dp-accounting says of the Gaussian mechanism, for a row more
        or less.
    """
    import dp_accounting as dpa
    import jax
    from jax_privacy.noise_addition import matrix_factorization_privatizer

    z = number_argument(args, "noise_multiplier")
    delta = float(stated.get("delta", DELTA))
    usual = {"l2_clip_norm": 1.0, "rescale_to_unit_norm": True, "keep_batch_dim": False}
    clipped = target(lambda row: row, **{**usual, **_without(args, "noise_multiplier")})

    @jax.jit
    def step(x: Any, key: Any) -> Any:
        privatizer = matrix_factorization_privatizer(np.eye(1), stddev=z, prng_key=key)
        total = clipped(x)
        return privatizer.update(total, privatizer.init(total))[0]

    def release(x: np.ndarray) -> np.ndarray:
        return np.asarray(step(x.astype(np.float32), jax.random.key(secrets.randbits(32))))

    return _adapt_release(release, "add_remove", float(dpa.get_epsilon_gaussian(z, delta)), delta)


def adapt_statistics_tool(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> Adapted:
    """diffprivlib: a function of ``diffprivlib.tools`` on the first column, with the number of
    records public.

    args: its keywords; bounds and range are pairs. It states its epsilon.
    """
    epsilon = number_argument(args, "epsilon")
    settings = {
        name: tuple(value) if isinstance(value, list) else value for name, value in args.items()
    }
    release = lambda x: target(x[:, 0], **settings)  # noqa: E731
    if "histogram" in target.__name__:
        relation = "add_remove"
    else:
        relation = "replace"
    return _adapt_release(release, relation, epsilon)


def adapt_measurement(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> Adapted:
    """OpenDP: a clamped sum of the first column through ``make_laplace``, its scale by
    ``binary_search_chain``.

    args: epsilon (needed), lower and upper.
    """
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    epsilon = number_argument(args, "epsilon")
    bounds = (float(args.get("lower", 0.0)), float(args.get("upper", 1.0)))
    space = (
        opendp.vector_domain(opendp.atom_domain(T=float, nan=False)),
        opendp.symmetric_distance(),
    )
    total = space >> opendp.t.then_clamp(bounds) >> opendp.t.then_sum()
    chain = lambda scale: total >> target(*total.output_space, scale)  # noqa: E731
    measurement = opendp.binary_search_chain(chain, d_in=1, d_out=epsilon)
    release = lambda x: measurement([float(value) for value in x[:, 0]])  # noqa: E731
    return _adapt_release(release, "add_remove", epsilon)


def adapt_aggregation(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> Adapted:
    """PyDP: ``quick_result`` of an algorithm on the first column. args: epsilon (needed),
    lower_bound and upper_bound."""
    epsilon = number_argument(args, "epsilon")

    def release(x: Any) -> Any:
        return target(dtype="float", **args).quick_result([float(value) for value in x[:, 0]])

    return _adapt_release(release, "add_remove", epsilon)


class _Parts(nn.Module):
    """Linear scores of the parts of a row, one layer each: the gradient of their sum for one row is
    that row."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        columns = np.array_split(np.arange(width), min(layers, width))
        self.widths = [len(part) for part in columns]
        self.parts = nn.ModuleList(nn.Linear(width, 1, bias=False) for width in self.widths)

    def forward(self, x: Tensor) -> Tensor:
        columns = x.split(self.widths, dim=1)
        scores = [part(values) for part, values in zip(self.parts, columns)]
        return torch.cat(scores, dim=1)


class _ScoreLoss(nn.Module):
    """The score as the loss. reduction: mean, sum or none, which ghost clipping sets."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        each = scores.sum(dim=1)
        if self.reduction == "none":
            return each
        if self.reduction == "mean":
            return each.mean()
        return each.sum()


class _Training:
    """One training run on the rows: a new engine, model, optimizer and loader each time."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        usual = {
            "records": 40,
            "batch_size": 2,
            "shuffle": False,
            "steps": 1,
            "layers": 1,
            "accountant": "prv",
        }
        self.given = {**usual, **given}
        self.asked = {
            "max_grad_norm": 1.0,
            **{name: v for name, v in given.items() if name not in OURS},
        }
        self.batches = 0  # of an epoch
        self.engine = PrivacyEngine(accountant=self.given["accountant"])

    def __call__(self, x: np.ndarray) -> list[np.ndarray]:
        settings = self.given
        reduction = self.asked.get("loss_reduction", "mean")
        width = x.shape[1]
        layers = settings["layers"]
        model: Any
        if layers > 1:
            model = _Parts(width, layers)
        else:
            model = nn.Linear(width, 1, bias=False)
        criterion = _ScoreLoss(reduction)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        data = TensorDataset(torch.from_numpy(x).float(), torch.zeros(len(x)))
        loader: Any = DataLoader(
            data, batch_size=settings["batch_size"], shuffle=settings["shuffle"]
        )
        model, optimizer, *wrapped, loader = self.engine.make_private(
            module=model, optimizer=optimizer, criterion=criterion, data_loader=loader, **self.asked
        )
        if wrapped:
            criterion = wrapped[0]
        self.batches = len(loader)
        released = list[np.ndarray]()
        for rows, labels in loader:
            optimizer.zero_grad()
            criterion(model(rows), labels).backward()
            optimizer.step()
            gradients = [parameter.grad.numpy().ravel() for parameter in model.parameters()]
            released.append(np.concatenate(gradients))
            if len(released) == settings["steps"]:
                break
        return released


def adapt_privacy_engine(
    target: type, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> Adapted:
    """``make_private``, and steps of the optimizer and the loader that it returns.

    args: batch_size and shuffle of the loader, steps (0: one epoch), layers of the model,
        accountant (of the engine), keywords of ``make_private``. It states what the engine says
        after the steps on ``records`` rows. Raises BadConfig.
    """
    for name in ("records", "batch_size", "steps", "layers"):
        check_integer(f"args.{name}", args.get(name, 1), 0, most=10_000)
    noise_multiplier = number_argument(args, "noise_multiplier")
    logging.getLogger("opacus").setLevel(logging.CRITICAL)
    delta = float(stated.get("delta", DELTA))
    once = _Training(args)
    once(np.ones((once.given["records"], 4)))
    epsilon = float(once.engine.get_epsilon(delta))
    limit: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "kind": "records",
        "relation": "add_remove",
    }
    if not once.asked.get(
        "poisson_sampling", True
    ):  # batches of a fixed size: how many records there are is public
        limit["relation"] = "zero_out"
        if once.given["shuffle"]:
            limit |= {
                "sampling": "shuffled",
                "batches": once.batches,
                "noise_multiplier": noise_multiplier,
            }

    return _callable_class(lambda: _Training(args)), limit


def adapt_accountant(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> Adapted:
    """What an accountant of dp-accounting says of one Gaussian event, held against Opacus's clipped
    sum of all rows.

    args: noise_multiplier of both; relation=REPLACE_ONE, the accountant's, else its default.
    """
    relation = NeighboringRelation[str(args.get("relation", "ADD_OR_REMOVE_ONE"))]
    spent: Any = target(neighboring_relation=relation)
    settings = {
        "batch_size": 10_000,
        "loss_reduction": "sum",
        **{k: v for k, v in args.items() if k != "relation"},
    }
    training, limit = adapt_privacy_engine(PrivacyEngine, settings, stated)
    spent.compose(GaussianDpEvent(float(args["noise_multiplier"])))
    if relation is NeighboringRelation.REPLACE_ONE:
        kind = "replace"
    else:
        kind = "add_remove"
    return training, {
        **limit,
        "epsilon": float(spent.get_epsilon(limit["delta"])),
        "relation": kind,
    }
