"""DP-SGD (Abadi et al. 2016, Algorithm 1): Poisson batches, each record's gradient clipped, noised
sums.

Opacus decides which models have per-record gradients at all. Noise, clipping and accounting are
those of the mechanism set for the query "dpsgd"; the optimiser's steps are post-processing.

Each record's gradient comes from one forward and one backward pass over all of them. The backward
pass goes to the layers' outputs only. With a layer's input and the gradient of its output, its
weights' gradient is known for each record: an outer product of the two where the layer read one
vector a record, which is kept as its factors (Goodfellow 2015, "Efficient per-example gradient
computations"; Bu et al. 2023, "Differentially private optimization on large model at small cost"),
and a sum of such products elsewhere. Records are kept apart by ``torch.func.vmap``, under which
code that mixes records, or branches on what they hold, does not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from privdd.core.loop_timing import timed_steps
from privdd.core.types import Records, State, Tensors
from privdd.federated.channel import ClientContext
from privdd.privacy.batch_invariance import compute_rows
from privdd.privacy.clipping import FactoredRows, OuterProducts, Part
from privdd.privacy.mechanism import Mechanism
from privdd.training.sgd import Correction, SharedBatches

# step, ids (n,) of a batch -> tensors (n, ...) that read no data
Draws = Callable[[int, Tensor], tuple[Tensor, ...]]
QUERY = "dpsgd"
LEFT = " (left)"
RIGHT = " (right)"
RECORDS_AT_ONCE = 256  # beyond that a pass is not faster, and needs more memory
CONVOLUTION = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def check_model(model: nn.Module) -> None:
    """Raises ValueError for layers that mix records or that Opacus does not support."""
    # slow to import, and methods that may use DP-SGD need not
    from opacus.validators import ModuleValidator

    training = model.training
    errors = ModuleValidator.validate(model.train())
    model.train(training)
    if not errors:
        return
    mixing = {
        type(module).__name__
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    }
    if mixing:
        raise ValueError(
            f"model: {', '.join(sorted(mixing))} mixes records, so DP-SGD has no bound: set "
            "model.norm=group"
        )
    problems = "; ".join(str(problem).splitlines()[0] for problem in errors)
    raise ValueError(f"model: no per-record gradients for DP-SGD: {problems}")


def cross_entropy_of(model: nn.Module) -> RecordLoss:
    """The default loss: cross-entropy of one record."""
    return lambda params, x, y: (
        -F.log_softmax(functional_call(model, params, (x,)), 1).gather(1, y.unsqueeze(1)).mean()
    )


def dp_local_sgd(
    model: nn.Module,
    params: Tensors,
    records: Records,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    steps: int,
    ctx: ClientContext,
    correct: Correction | None = None,
    loss: RecordLoss | None = None,
    draws: Draws | None = None,
    extra: SharedBatches | None = None,
) -> State:
    """Steps of DP-SGD (Abadi et al. 2016, algorithm 1), L the Poisson sample of a step.

        g_t = (sum_{i in L} g_i / max(1, ||g_i|| / C) + N(0, sigma^2 C^2 I)) / |L|_expected
        w_{t+1} = w_t - lr g_t

    The sum, the noise and the divisor are the mechanism's, for "dpsgd". Weight decay and heavy-ball
    momentum (PyTorch's rule) act on the result.

    Args:
        model: whose layers must not mix records.
        params: to start from.
        records: of the client.
        lr, momentum, weight_decay: of the steps.
        steps: how many; a public constant (``count_private_steps``), however many records there
            are.
        ctx: samples and releases.
        correct: changes the noised gradient and must read no records (a proximal term, control
            variates from noised gradients).
        loss: of one record, (parameters, x, y, *draws); None: cross-entropy.
        draws: further per-record inputs that read no data (a generator's latent noise). Each
            record's row must depend on the step and its own id alone, else one record moves the sum
            by more than the clip norm.
        extra: records that everyone knows already: the exact gradient of a batch of them is added
            to what ``correct`` returns.

    Returns:
        The new parameters, which depend on the records only through ``ctx.mechanism("dpsgd")``.

    Raises:
        ValueError: for models whose layers mix records.
    """
    check_model(model)
    loss = loss or cross_entropy_of(model)
    if extra is not None:
        correct = _add_shared_gradient(model, extra, correct)
    state = {name: params[name].detach().clone() for name, _ in model.named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in state.items()}
    for step in timed_steps(range(steps)):
        gradients = _release_gradient(loss, state, records, draws, step, ctx)
        if correct:
            gradients = correct(state, gradients)
        _descend(state, velocity, gradients, lr, momentum, weight_decay)
    return state


def _release_gradient(
    loss: RecordLoss,
    params: Tensors,
    records: Records,
    draws: Draws | None,
    step: int,
    ctx: ClientContext,
) -> Tensors:
    """The mechanism's gradient g_t of a Poisson sample drawn for this step."""
    sample = ctx.sample(QUERY, len(records)).nonzero()[:, 0].to(records.y.device)
    x = records.x[sample]
    y = records.y[sample]
    inputs: tuple[Tensor, ...] = ()
    if draws:
        inputs = tuple(tensor.to(x.device) for tensor in draws(step, records.ids[sample]))
    return ctx.mechanism(QUERY, record_gradients(loss, params, x, y, inputs))


@torch.no_grad()
def _descend(
    params: State,
    velocity: State,
    gradients: Tensors,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """One step of SGD by PyTorch's rule, in place: v <- momentum v + (g + weight_decay w),
    w <- w - lr v."""
    for name, value in params.items():
        direction = gradients[name].to(value)
        if weight_decay:
            direction = direction + weight_decay * value
        if momentum:
            direction = velocity[name].mul_(momentum).add_(direction)
        value.sub_(direction, alpha=lr)


def count_private_steps(mechanism: Mechanism, epochs: float) -> int:
    """DP-SGD steps in ``epochs`` expected passes: epochs / sampling probability, at least one."""
    return max(1, round(epochs / float(mechanism.sampling_probability)))


def _add_shared_gradient(
    model: nn.Module, extra: SharedBatches, correct: Correction | None
) -> Correction:
    """The given correction, then the gradient of the cross-entropy on one batch of shared
    records."""
    indices = extra.draw_indices(extra.records.y.device)

    def shared_loss(params: State, x: Tensor, y: Tensor) -> Tensor:
        return extra.weight * F.cross_entropy(functional_call(model, params, (x,)), y)

    def correct_gradients(params: Tensors, grads: Tensors) -> Tensors:
        batch = next(indices)
        x = extra.records.x[batch]
        y = extra.records.y[batch]
        if correct is None:
            corrected = grads
        else:
            corrected = correct(params, grads)
        with torch.enable_grad():
            shared = grad(shared_loss)(dict(params), x, y)
        return {name: value + shared[name] for name, value in corrected.items()}

    return correct_gradients


# (parameters, x (1, c, h, w), y (1,), *draws (1, ...)) -> scalar
RecordLoss = Callable[..., Tensor]


def record_gradients(
    loss: RecordLoss, params: Tensors, x: Tensor, y: Tensor, draws: tuple[Tensor, ...] = ()
) -> FactoredRows:
    """Gradient of ``loss`` for each record alone: name -> (n, *parameter shape); n = 0 allowed."""
    parts = compute_rows(LayerGradients(loss), dict(params), x, y, *draws, at_most=RECORDS_AT_ONCE)
    gradients: dict[str, Tensor | OuterProducts] = {}
    for name in params:
        if name in parts:
            gradients[name] = parts[name]
        else:
            gradients[name] = OuterProducts(parts[name + LEFT], parts[name + RIGHT])
    return FactoredRows(gradients)


@dataclass(frozen=True)
class LayerGradients:
    """(parameters, x (n, ...), y (n,), *draws (n, ...)) -> the parts of ``FactoredRows`` as tensors
    (n, ...)."""

    loss: RecordLoss

    def __call__(self, params: Tensors, *rows: Tensor) -> State:
        is_nested = torch._C._functorch.peek_interpreter_stack() is not None  # many runs at once
        gradients = None
        if not is_nested:
            gradients = _gradients_by_layer(self.loss_of_record, params, rows)
        if gradients is None:
            dims = (None,) + (0,) * len(rows)
            return vmap(grad(self.loss_of_record), in_dims=dims)(dict(params), *rows)  # type: ignore[no-any-return]
        rows_of: State = {}
        for name, part in gradients.items():
            if isinstance(part, Tensor):
                rows_of[name] = part
            else:
                rows_of[name + LEFT] = part.left
                rows_of[name + RIGHT] = part.right
        return rows_of

    def loss_of_record(self, values: State, *record: Tensor) -> Tensor:
        return self.loss(values, *(tensor.unsqueeze(0) for tensor in record))


@dataclass
class LayerUse:
    """A call of a layer on all records: its input and its output, as they are below ``vmap``.

    bound: its other arguments; names: argument -> parameter.
    """

    names: Mapping[str, str]
    bound: Mapping[str, Any]
    inputs: Tensor
    output: Tensor
    output_axis: int
    versions: tuple[int, int]
    rule: Rule

    def parts(self, upstream: Tensor) -> Iterator[tuple[str, Part]]:
        """Each parameter's gradient, from the gradient of the loss in the layer's output."""
        parts = self.rule(self.inputs, upstream.movedim(self.output_axis, 0), self.bound)
        yield from ((name, parts[argument]) for argument, name in self.names.items())

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing has written into its input or its output."""
        return (self.inputs._version, self.output._version) == self.versions


Rule = Callable[[Tensor, Tensor, Mapping[str, Any]], dict[str, Part]]


def _linear_gradients(
    inputs: Tensor, upstream: Tensor, bound: Mapping[str, Any]
) -> dict[str, Part]:
    a, b = (t.reshape(len(t), -1, t.shape[-1]) for t in (inputs, upstream))
    if a.shape[1] == 1:
        return {"weight": OuterProducts(b[:, 0], a[:, 0]), "bias": b[:, 0]}
    return {"weight": torch.bmm(b.mT, a), "bias": b.sum(1)}


def _convolution_gradients(
    inputs: Tensor, upstream: Tensor, bound: Mapping[str, Any]
) -> dict[str, Part]:
    """inputs (n, k, c, h, w) of k images a record, upstream likewise."""
    return {"weight": _match_patches(upstream, inputs, bound), "bias": upstream.sum((1, 3, 4))}


def _transposed_convolution_gradients(
    inputs: Tensor, upstream: Tensor, bound: Mapping[str, Any]
) -> dict[str, Part]:
    return {"weight": _match_patches(inputs, upstream, bound), "bias": upstream.sum((1, 3, 4))}


def _match_patches(of: Tensor, images: Tensor, bound: Mapping[str, Any]) -> Tensor:
    """For each record the sum over places of ``of``'s numbers there times the patches of ``images``
    there, as weights are shaped."""
    weight = bound["weight"]
    groups = bound["groups"]
    patches = F.unfold(
        images.flatten(0, 1), weight.shape[2:], bound["dilation"], bound["padding"], bound["stride"]
    )
    rows = (
        of.flatten(0, 1).flatten(2).unflatten(1, (groups, -1))
        @ patches.unflatten(1, (groups, -1)).mT
    )
    rows = rows.reshape(*of.shape[:2], *weight.shape)
    if rows.shape[1] == 1:
        return rows[:, 0]
    return rows.sum(1)


def _group_norm_gradients(
    inputs: Tensor, upstream: Tensor, bound: Mapping[str, Any]
) -> dict[str, Part]:
    b = upstream.reshape(*upstream.shape[:3], -1)
    plain = F.group_norm(inputs.flatten(0, 1), bound["num_groups"], eps=bound["eps"]).reshape(
        b.shape
    )
    return {"weight": (plain * b).sum((1, 3)), "bias": b.sum((1, 3))}


def _embedding_gradients(
    inputs: Tensor, upstream: Tensor, bound: Mapping[str, Any]
) -> dict[str, Part]:
    places = F.one_hot(inputs.flatten(1), len(bound["weight"])).to(upstream)
    b = upstream.reshape(len(upstream), -1, upstream.shape[-1])
    rows = torch.bmm(places.mT, b)
    if bound["padding_idx"] is not None:
        rows[:, bound["padding_idx"]] = 0
    return {"weight": rows}


@dataclass(frozen=True)
class Layer:
    """A function of a layer: its arguments in order, with the defaults of those that have one, and
    its gradients."""

    arguments: tuple[str, ...]
    defaults: Mapping[str, Any]
    rule: Rule


LAYERS: dict[Any, Layer] = {
    F.linear: Layer(("input", "weight", "bias"), {"bias": None}, _linear_gradients),
    F.conv2d: Layer(("input", "weight", *CONVOLUTION), CONVOLUTION, _convolution_gradients),
    F.conv_transpose2d: Layer(
        ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
        CONVOLUTION | {"output_padding": 0},
        _transposed_convolution_gradients,
    ),
    F.group_norm: Layer(
        ("input", "num_groups", "weight", "bias", "eps"),
        {"weight": None, "bias": None, "eps": 1e-5},
        _group_norm_gradients,
    ),
    F.embedding: Layer(
        ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
        {"padding_idx": None, "max_norm": None, "scale_grad_by_freq": False},
        _embedding_gradients,
    ),
}


def _is_plain(bound: Mapping[str, Any]) -> bool:
    """Whether no setting of a layer changes what its gradients are."""
    odd = isinstance(bound.get("padding"), str) or bound.get("output_padding", 0) not in (0, (0, 0))
    return not odd and bound.get("max_norm") is None and not bound.get("scale_grad_by_freq")


@dataclass
class _LayerTrace(TorchFunctionMode):
    """Notes every use of a parameter; known: whether all of them are layers that ``LAYERS`` has."""

    names: Mapping[int, str]
    count: int
    uses: list[LayerUse] = field(default_factory=list)
    known: bool = True

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if (
            self.known
            and isinstance(output, Tensor | tuple | list)
            and self._reads_parameter((*args, *(kwargs or {}).values()))
        ):
            self.known = self._note_use(func, args, kwargs or {}, output)
        return output

    def _reads_parameter(self, values: Any) -> bool:
        return any(
            id(v) in self.names or (isinstance(v, tuple | list) and self._reads_parameter(v))
            for v in values
        )

    def _note_use(self, func: Any, args: Any, kwargs: Any, output: Any) -> bool:
        if func not in LAYERS:
            return False
        layer = LAYERS[func]
        bound = {**layer.defaults, **dict(zip(layer.arguments, args)), **kwargs}
        names = {key: self.names[id(v)] for key, v in bound.items() if id(v) in self.names}
        inputs = bound.pop("input")
        axis = torch._C._functorch.maybe_get_bdim(output)
        if id(inputs) in self.names or axis < 0 or not _is_plain(bound):
            return False
        plain_inputs = _below_vmap(inputs, self.count)
        plain_output = torch._C._functorch.get_unwrapped(output)
        versions = (plain_inputs._version, plain_output._version)
        self.uses.append(
            LayerUse(names, bound, plain_inputs, plain_output, axis, versions, layer.rule)
        )
        return True


def _below_vmap(value: Tensor, count: int) -> Tensor:
    axis = torch._C._functorch.maybe_get_bdim(value)
    if axis < 0:
        return value.detach().expand(count, *value.shape)
    return torch._C._functorch.get_unwrapped(value).detach().movedim(axis, 0)


def _gradients_by_layer(
    loss: Callable[..., Tensor], params: Tensors, rows: tuple[Tensor, ...]
) -> dict[str, Part] | None:
    """The parts of each record's gradient; None where a parameter is used by other than the layers
    of ``LAYERS``."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    trace = _LayerTrace({id(value): name for name, value in leaves.items()}, len(rows[0]))

    def traced_loss(*record: Tensor) -> Tensor:
        with trace:
            return loss(leaves, *record)

    with torch.enable_grad():
        losses = vmap(traced_loss)(*rows)
    if not trace.known or not all(use.is_unchanged for use in trace.uses):
        return None
    total = losses.sum()
    unused = set(params).difference(*(use.names.values() for use in trace.uses))
    if _depends_on(total, [leaves[name] for name in unused]):
        return None  # used where no trace sees it
    parts: dict[str, list[Part]] = {name: [] for name in params}
    upstream = torch.autograd.grad(total, [use.output for use in trace.uses])
    for use, output_gradient in zip(trace.uses, upstream):
        for name, part in use.parts(output_gradient):
            parts[name].append(part)
    return {
        name: _add_parts(layer_parts, params[name], len(rows[0]))
        for name, layer_parts in parts.items()
    }


def _depends_on(total: Tensor, leaves: list[Tensor]) -> bool:
    """Whether any leaf has a gradient of ``total``; the graph stays for another pass."""
    if not leaves:
        return False
    gradients = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in gradients)


def _add_parts(parts: list[Part], like: Tensor, count: int) -> Part:
    if len(parts) == 1:
        return parts[0]
    rows = [part if isinstance(part, Tensor) else part.to_rows() for part in parts]
    if rows:
        return torch.stack(rows).sum(0)
    return like.new_zeros(count, *like.shape)
