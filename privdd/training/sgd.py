"""Local training: one client's round, its batches, and one SGD loop with a correction hook.

Every model-averaging method shares the loop. A step sees a client's own records, and a batch of
shared ones in the same forward pass where there are any. Many small models of one architecture can
be trained as one wide network: they lie side by side as channels, activations are (b, K * c, h, w)
and (b, K * d), a convolution becomes one with K groups and a linear layer one batched product.
What every model computes is what it would compute alone, up to the order of its sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.device import stream_to_device, to_device
from privdd.core.loop_timing import timed_steps
from privdd.core.types import ClientData, Records, State, Tensors
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, build_skeleton

POINTWISE = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Identity, nn.MaxPool2d, nn.AvgPool2d)


def draw_batches(
    n: int,
    batch_size: int,
    generator: torch.Generator,
    device: torch.device,
    steps: int | None = None,
) -> Iterator[Tensor]:
    """Index batches: a fresh permutation each pass, the last batch of a pass may be smaller.

    Args:
        n: number of records.
        batch_size: of all batches but the last one of a pass.
        generator: of the permutations.
        device: of the batches.
        steps: how many batches are needed, if known: the permutations of many passes then travel to
            a GPU together. They are the same ones, and so is the generator after that many steps.
            None: endless.
    """
    while steps is None or device.type == "cpu":
        yield from torch.randperm(n, generator=generator).to(device).split(batch_size)
    passes = math.ceil(steps / math.ceil(n / batch_size))

    def draw_order(_: int) -> dict[str, Tensor]:
        return {"order": torch.randperm(n, generator=generator)}

    for draw in stream_to_device(draw_order, passes, device):
        yield from draw["order"].split(batch_size)


def draw_balanced(y: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """``size`` indices into labels y (n,), in random order: equally many of every class that
    occurs.

    size // C of each of the C classes, without replacement if a class has that many, and the rest
    uniformly from all (the released code of FedFed).
    """
    labels = y.cpu()
    classes = labels.unique()
    quota = size // len(classes)
    parts = []
    for label in classes:
        members = (labels == label).nonzero()[:, 0]
        if len(members) >= quota:
            places = torch.randperm(len(members), generator=generator)[:quota]
        else:
            places = torch.randint(len(members), (quota,), generator=generator)
        parts.append(members[places])
    rest = size - quota * len(classes)
    parts.append(torch.randint(len(labels), (rest,), generator=generator))
    indices = torch.cat(parts)
    return indices[torch.randperm(size, generator=generator)].to(y.device)


@dataclass(frozen=True)
class SharedBatches:
    """A second labelled set that joins every step with its own batch, e.g. FedFed's shared
    features.

    The step's loss becomes ``loss(private) + weight * cross-entropy(batch of records)``, both from
    one forward pass: batch norm sees the two batches as one. The second set has draws of its own,
    so that the private batches are those without it.

    Attributes:
        records: the second set.
        generator: of its draws.
        batch_size: of its batches.
        weight: of its loss.
        balanced: passes of so many records with equally many of every class; None: permutations of
            all of it.
    """

    records: Records
    generator: torch.Generator
    batch_size: int
    weight: float = 1.0
    balanced: int | None = None

    def draw_indices(self, device: torch.device) -> Iterator[Tensor]:
        """Endless index batches into ``records``."""
        if self.balanced is None:
            yield from draw_batches(len(self.records), self.batch_size, self.generator, device)
        y = self.records.y
        while True:
            indices = draw_balanced(y, self.balanced or len(y), self.generator)
            yield from indices.to(device).split(self.batch_size)


class JointForward:
    """A classifier whose first forward pass of a step takes a shared batch along with the private
    one.

    It stands in for the network in a local loss: ``features`` and the call return the private
    images' values; the shared images' features wait in ``shared``. Later passes of the step see
    private images alone."""

    def __init__(self, net: Any) -> None:
        self.net = net
        self.head = net.head
        self.waiting: Tensor | None = None
        self.shared: Tensor | None = None

    def add_shared_batch(self, x: Tensor) -> None:
        """The next first pass takes images x (b, c, h, w) along."""
        self.waiting = x
        self.shared = None

    def features(self, x: Tensor) -> Tensor:
        if self.waiting is None:
            return self.net.features(x)
        shared = self.waiting
        self.waiting = None
        features = self.net.features(torch.cat([x, shared]))
        private_features, self.shared = features.split([len(x), len(shared)])
        return private_features

    def shared_logits(self) -> Tensor:
        """Logits of the shared batch (b, C), from an extra forward pass if the loss computed
        none."""
        if self.shared is None and self.waiting is not None:
            self.shared = self.net.features(self.waiting)
            self.waiting = None
        return self.head(self.shared)

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


Batch = tuple[Tensor, Tensor]  # x (b, c, h, w), y (b,)
Loss = Callable[[Any, Tensor, Tensor], Tensor]  # (network, x (b, c, h, w), y (b,)) -> scalar
Correction = Callable[[Tensors, Tensors], Tensors]  # (parameters, gradients) -> gradients


def batch_cross_entropy(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of ``net`` on one batch: the default local loss."""
    return F.cross_entropy(net(x), y)


def share_tensors(module: nn.Module) -> nn.Module:
    """A module with its own submodules that still shares every tensor with ``module``.

    Ten times cheaper than ``copy.deepcopy``, whose milliseconds matter for small clients.
    """
    copy = module.__new__(type(module))
    copy.__dict__.update(module.__dict__)
    copy._parameters = dict(module._parameters)
    copy._buffers = dict(module._buffers)
    copy._modules = {
        name: None if child is None else share_tensors(child)
        for name, child in module._modules.items()
    }
    return copy


class FlatParameters:
    """Parameters and gradients by name, as views of two flat vectors: one in-place operation then
    updates them all.

    That keeps small clients fast.
    """

    def __init__(self, values: Tensors) -> None:
        sizes = [value.numel() for value in values.values()]
        self.flat = torch.cat([value.reshape(-1) for value in values.values()])
        self.grad = torch.zeros_like(self.flat)
        shapes = {name: value.shape for name, value in values.items()}
        self.params = _view_parts(self.flat, sizes, shapes)
        self.grads = _view_parts(self.grad, sizes, shapes)

    def correct_gradients(self, correction: Correction) -> None:
        """Replace the gradients by ``correction(parameters, gradients)``."""
        for name, value in correction(self.params, self.grads).items():
            if value is not self.grads[name]:
                self.grads[name].copy_(value)

    def step(
        self, velocity: Tensor | None, lr: float, momentum: float, weight_decay: float
    ) -> None:
        """One step of SGD with heavy-ball momentum and weight decay (PyTorch's rule)."""
        if weight_decay:
            self.grad.add_(self.flat, alpha=weight_decay)
        direction = self.grad
        if velocity is not None:
            direction = velocity.mul_(momentum).add_(self.grad)
        self.flat.sub_(direction, alpha=lr)


def _view_parts(
    flat: Tensor, sizes: Sequence[int], shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """The parts of a flat vector by name, in their shapes."""
    parts = zip(shapes, flat.split(list(sizes)))
    return {name: part.view(shapes[name]) for name, part in parts}


class Replica(FlatParameters):
    """A trainable copy of a model.

    state: every parameter by name, and every float buffer where the model has any (ValueError
        otherwise)."""

    def __init__(self, model: nn.Module, state: Tensors) -> None:
        self.module: Any = share_tensors(model)
        shapes = {name: p.shape for name, p in self.module.named_parameters()}
        buffers = dict(self.module.named_buffers())
        float_buffers = {name for name, b in buffers.items() if b.is_floating_point()}
        absent = sorted((shapes.keys() | float_buffers) - state.keys())
        if absent:
            raise ValueError(f"state lacks {absent}: every parameter and float buffer is needed")
        super().__init__({name: state[name].detach() for name in shapes})
        for name, value in self.params.items():
            parameter = nn.Parameter(value)
            parameter.grad = self.grads[name]
            self._set_tensor(name, parameter)
        for name, buffer in buffers.items():
            if name in state:
                value = state[name].detach().clone()
            else:
                value = torch.zeros(buffer.shape, dtype=buffer.dtype)
            self._set_tensor(name, value.to(self.flat.device))

    def _set_tensor(self, name: str, tensor: Tensor) -> None:
        owner, _, leaf = name.rpartition(".")
        module = self.module.get_submodule(owner)
        setattr(module, leaf, tensor)

    def copy_state(self) -> State:
        """Copies of the parameters and of the float buffers, by name."""
        floats = {name: b for name, b in self.module.named_buffers() if b.is_floating_point()}
        return {name: tensor.detach().clone() for name, tensor in {**self.params, **floats}.items()}


def split_state(model: nn.Module, state: Tensors) -> tuple[State, State]:
    """A state as (parameters, buffers): the two travel under different names."""
    names = {name for name, _ in model.named_parameters()}
    params = {name: t for name, t in state.items() if name in names}
    rest = {name: t for name, t in state.items() if name not in names}
    buffers = {name: t for name, t in rest.items() if t.is_floating_point()}
    return params, buffers


def memory_format_of(model: nn.Module) -> torch.memory_format:
    """The memory format for batches: channels last for convolutions, whose steps then take 5 to 40
    % less time.

    Networks with group or instance norm are slower that way and keep channels first.
    """
    parts = list(model.modules())
    by_groups = any(isinstance(part, nn.GroupNorm) for part in parts)
    convolves = any(isinstance(part, nn.Conv2d) for part in parts)
    if convolves and not by_groups:
        return torch.channels_last
    return torch.contiguous_format


def count_steps(n: int, batch_size: int, epochs: float) -> int:
    """SGD steps in ``epochs`` (fractions allowed) passes over n records: at least one."""
    return max(1, round(epochs * math.ceil(n / batch_size)))


def _total_steps(records: Records, batch_size: int, epochs: float | None, steps: int | None) -> int:
    if len(records) == 0:
        raise ValueError(
            "records=0: a client needs at least one record to train; drop empty clients "
            "from the round"
        )
    if (epochs is None) == (steps is None):
        raise ValueError(f"epochs={epochs!r}, steps={steps!r}: exactly one of the two is needed")
    if steps is not None:
        return steps
    return count_steps(len(records), batch_size, epochs or 0.0)


def local_sgd(
    model: nn.Module,
    params: Tensors,
    records: Records,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    generator: torch.Generator,
    loss: Loss | None = None,
    correct: Correction | None = None,
    extra: SharedBatches | None = None,
) -> tuple[State, int]:
    """SGD with heavy-ball momentum on one client -> (state after training, steps taken).

    v <- momentum v + (g + weight_decay w),  w <- w - lr v

    Args:
        model: the network.
        params: parameters and, for models with batch norm, float buffers by name; both come back
            (see ``split_state``).
        records: of the client.
        lr, momentum, weight_decay: PyTorch's rule, with a fresh velocity each call.
        batch_size: of the steps.
        epochs: passes, fractions allowed; or
        steps: how many.
        generator: of all randomness.
        loss: of one batch; None: cross-entropy.
        correct: of the raw gradients; weight decay and momentum act on what it returns.
        extra: a second set, a batch of which joins every step.

    Raises:
        ValueError: for no records, and for both or neither of epochs and steps.
    """
    total = _total_steps(records, batch_size, epochs, steps)
    replica = Replica(model, params)
    net = replica.module.train()
    indices = draw_batches(len(records), batch_size, generator, replica.flat.device, total)
    order = memory_format_of(model)
    batches = _take_batches(records, indices, replica.flat, order)
    if extra is None:
        losses = _batch_losses(net, loss or batch_cross_entropy, batches)
    else:
        shared_indices = extra.draw_indices(replica.flat.device)
        shared = _take_batches(extra.records, shared_indices, replica.flat, order)
        losses = _joint_losses(net, loss or batch_cross_entropy, batches, shared, extra.weight)
    velocity = _zero_velocity(replica, momentum)
    for _ in timed_steps(range(total)):
        replica.grad.zero_()
        next(losses).backward()
        with torch.no_grad():
            if correct is not None:
                replica.correct_gradients(correct)
            replica.step(velocity, lr, momentum, weight_decay)
    return replica.copy_state(), total


def _zero_velocity(parameters: FlatParameters, momentum: float) -> Tensor | None:
    """The velocity before the first step; None for steps without momentum."""
    if momentum:
        return torch.zeros_like(parameters.flat)
    return None


def _batch_losses(net: Any, loss: Loss, batches: Iterator[Batch]) -> Iterator[Tensor]:
    """The loss of one batch after the other, with the parameters that ``net`` has by then."""
    for x, y in batches:
        yield loss(net, x, y)


def _joint_losses(
    net: Any, loss: Loss, batches: Iterator[Batch], shared: Iterator[Batch], weight: float
) -> Iterator[Tensor]:
    """loss(private batch) + weight * cross-entropy(shared batch), both from one forward pass."""
    joined = JointForward(net)
    for shared_x, shared_y in shared:
        joined.add_shared_batch(shared_x)
        private_loss = loss(joined, *next(batches))
        yield private_loss + weight * F.cross_entropy(joined.shared_logits(), shared_y)


def _take_batches(
    records: Records, indices: Iterator[Tensor], like: Tensor, order: torch.memory_format
) -> Iterator[Batch]:
    x = records.x.to(like)
    y = records.y.to(like.device)
    return ((x[batch].to(memory_format=order), y[batch]) for batch in indices)


@torch.no_grad()
def predict_logits(model: nn.Module, state: Tensors, x: Tensor, batch: int = 512) -> Tensor:
    """Logits (n, C) of the model in evaluation mode on x's device, ``batch`` images at a time."""
    replica = Replica(model, to_device(state, x.device))
    net = replica.module.eval()
    return torch.cat([net(part.to(replica.flat)) for part in x.split(batch)])


def predict_images(spec: ModelSpec, state: Tensors, x: Tensor) -> Tensor:
    """``predict_logits`` of the classifier that ``spec`` describes."""
    return predict_logits(
        build_skeleton(spec, tuple(x.shape[1:]), len(state["head.weight"])), state, x
    )  # type: ignore[arg-type]


def evaluate_model(
    model: nn.Module, state: Tensors, records: Records, batch: int = 512
) -> tuple[float, Tensor]:
    """(accuracy in [0, 1], logits (n, C)). Raises ValueError for no records."""
    if len(records) == 0:
        raise ValueError("records=0: accuracy needs at least one record")
    logits = predict_logits(model, state, records.x, batch)
    return (logits.argmax(1).cpu() == records.y.cpu()).float().mean().item(), logits


def local_adam(
    model: nn.Module,
    params: Tensors,
    records: Records,
    *,
    lr: float,
    batch_size: int,
    epochs: float,
    generator: torch.Generator,
    loss: Loss | None = None,
) -> State:
    """Adam with PyTorch's defaults, fresh each call -> state after ``epochs`` passes in train mode.

    params: parameters and float buffers by name; both come back. Raises ValueError for no records.
    """
    if len(records) == 0:
        raise ValueError("records=0: training needs at least one record")
    replica = Replica(model, params)
    loss = loss or batch_cross_entropy
    net = replica.module.train()
    flat = replica.flat
    x = records.x.to(flat)
    y = records.y.to(flat.device)
    total = count_steps(len(y), batch_size, epochs)
    index = draw_batches(len(y), batch_size, generator, flat.device, total)
    flat.grad = replica.grad
    optimiser = torch.optim.Adam([flat], lr=lr)
    for _ in timed_steps(range(total)):
        replica.grad.zero_()
        batch = next(index)
        loss(net, x[batch], y[batch]).backward()
        optimiser.step()
    return replica.copy_state()


@dataclass(frozen=True)
class ClientRound:
    """A client's received messages, memory and data: everything that its local training starts
    from."""

    broadcast: Mapping[str, Tensors]
    memory: State
    shard: ClientData
    ctx: ClientContext


@dataclass(frozen=True)
class Trained:
    """The result of local training, and the initial parameters."""

    start: Tensors
    params: State
    buffers: State
    steps: int


def _flat_bias(bias: Tensor | None) -> Tensor | None:
    """(K, out) -> (K out,), of layers that have one."""
    if bias is None:
        return None
    return bias.flatten()


class WideConv(nn.Module):
    """K convolutions; weight (K, out, in, kh, kw), bias (K, out) or None."""

    def __init__(self, conv: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        # in a list: not a submodule
        self.weight = weight
        self.bias = bias
        self.conv = [conv]

    def forward(self, x: Tensor) -> Tensor:
        conv = self.conv[0]
        bias = _flat_bias(self.bias)
        groups = len(self.weight) * conv.groups
        return F.conv2d(
            x, self.weight.flatten(0, 1), bias, conv.stride, conv.padding, conv.dilation, groups
        )  # type: ignore[arg-type]


class WideConvTranspose(nn.Module):
    """K transposed convolutions; weight (K, in, out, kh, kw), bias (K, out) or None."""

    def __init__(self, conv: nn.ConvTranspose2d, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.conv = [conv]

    def forward(self, x: Tensor) -> Tensor:
        conv: Any = self.conv[0]
        bias = _flat_bias(self.bias)
        groups = len(self.weight) * conv.groups
        padding = (conv.padding, conv.output_padding)
        return F.conv_transpose2d(
            x, self.weight.flatten(0, 1), bias, conv.stride, *padding, groups, conv.dilation
        )


class WideLinear(nn.Module):
    """K linear layers; weight (K, out, in), bias (K, out) or None."""

    def __init__(self, linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        count, _, inputs = self.weight.shape
        x = x.view(len(x), count, inputs).transpose(0, 1)
        weight = self.weight.transpose(1, 2)
        if self.bias is None:
            out = torch.bmm(x, weight)
        else:
            out = torch.baddbmm(self.bias[:, None], x, weight)
        return out.transpose(0, 1).flatten(1)


class WideGroupNorm(nn.Module):
    """K group norms; weight and bias (K, channels)."""

    def __init__(self, norm: nn.GroupNorm, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.groups = norm.num_groups
        self.eps = norm.eps

    def forward(self, x: Tensor) -> Tensor:
        bias = _flat_bias(self.bias)
        return F.group_norm(
            x, len(self.weight) * self.groups, self.weight.flatten(), bias, self.eps
        )


WIDE_LAYERS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor | None], nn.Module]] = {
    nn.Conv2d: WideConv,
    nn.ConvTranspose2d: WideConvTranspose,
    nn.Linear: WideLinear,
    nn.GroupNorm: WideGroupNorm,
}


def is_vectorisable(model: nn.Module) -> bool:
    """Whether every layer of a network has a wide form (batch norm, for one, has none)."""
    leaves = [part for part in model.modules() if not list(part.children())]
    plain = all(
        type(leaf) in POINTWISE or (type(leaf) in WIDE_LAYERS and leaf.weight is not None)
        for leaf in leaves
    )
    padded = any(isinstance(leaf, nn.Conv2d) and leaf.padding_mode != "zeros" for leaf in leaves)
    return plain and not padded and not list(model.buffers())


class ModelEnsemble(FlatParameters):
    """K trainable copies of a model, all starting at ``state``; params, grads: name -> (K,
    *shape)."""

    def __init__(self, model: nn.Module, state: Tensors, count: int) -> None:
        self.module: Any = share_tensors(model)
        names = [name for name, _ in self.module.named_parameters()]
        super().__init__({name: torch.stack([state[name].detach()] * count) for name in names})
        leaves = {name: value.detach().requires_grad_(True) for name, value in self.params.items()}
        for name, leaf in leaves.items():
            leaf.grad = self.grads[name]
        for name, part in list(self.module.named_modules()):
            if type(part) in WIDE_LAYERS:
                wide = WIDE_LAYERS[type(part)](
                    part, leaves[f"{name}.weight"], leaves.get(f"{name}.bias")
                )
                owner, _, leaf_name = name.rpartition(".")
                setattr(self.module.get_submodule(owner), leaf_name, wide)

    def copy_state(self, k: int) -> State:
        """Copies of one model's parameters, by name."""
        return {name: tensor[k].clone() for name, tensor in self.params.items()}


def plan_batches(
    rows: Sequence[Tensor],
    batch_size: int,
    steps: Sequence[int],
    generators: Sequence[torch.Generator],
) -> tuple[Tensor, Tensor]:
    """The batches that each model would draw alone, from its own records (positions) and generator:
    positions (S, b, K) in a pool, and weights (S, b, K).

    A batch shorter than b is filled up with records of weight zero; the weights of a batch add up
    to one, or to zero once its model has taken all its steps.
    """
    width = min(batch_size, max(len(r) for r in rows))
    longest = max(steps)
    positions = torch.zeros(longest, width, len(rows), dtype=torch.long)
    weight = torch.zeros(longest, width, len(rows))
    for k, (rows_of_replay, count, generator) in enumerate(zip(rows, steps, generators)):
        batches = draw_batches(len(rows_of_replay), batch_size, generator, torch.device("cpu"))
        for s in range(count):
            index = next(batches)
            positions[s, : len(index), k] = rows_of_replay[index]
            weight[s, : len(index), k] = 1 / len(index)
    return positions, weight


def pool_records(parts: Sequence[Records]) -> tuple[Records, list[Tensor]]:
    """The union of the records of several replays of a client, once each by id, and the positions
    of each replay's."""
    positions: dict[int, int] = {}
    rows = []
    fresh = []
    for part in parts:
        ids = part.ids.tolist()
        new = [i for i, identity in enumerate(ids) if identity not in positions]
        positions |= {ids[i]: len(positions) + n for n, i in enumerate(new)}
        fresh.append(part.take(torch.tensor(new, dtype=torch.long)))
        rows.append(torch.tensor([positions[identity] for identity in ids]))
    return Records.concat(fresh), rows


def vectorised_sgd(
    model: nn.Module,
    params: Tensors,
    clients: Sequence[Records],
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    generators: Sequence[torch.Generator],
    correct: Correction | None = None,
) -> list[tuple[State, int]]:
    """``local_sgd`` for K sets of records at once -> (state, steps taken) of each, equal up to
    rounding.

    All start at ``params``; clients may hold different numbers of records, their ids must tell
    records apart. The correction sees parameters and gradients with a first axis over the K models
    and acts on each entry by itself. Raises ValueError where ``is_vectorisable`` is False or a
    client is empty."""
    if not is_vectorisable(model):
        raise ValueError(
            f"model={type(model).__name__}: one of its layers has no form for many models at once"
        )
    counts = [_total_steps(records, batch_size, epochs, steps) for records in clients]
    pool, rows = pool_records(clients)
    positions, weight = plan_batches(rows, batch_size, counts, generators)
    ensemble = ModelEnsemble(model, params, len(clients))
    pool = pool.to(ensemble.flat.device)
    ended: dict[int, State] = {}
    velocity = _zero_velocity(ensemble, momentum)
    for s in range(max(counts)):
        now = positions[s].to(pool.y.device)
        share = weight[s].to(ensemble.flat)
        ensemble.grad.zero_()
        logits = ensemble.module(pool.x[now].to(ensemble.flat).flatten(1, 2)).view(*now.shape, -1)
        losses = F.cross_entropy(logits.flatten(0, 1), pool.y[now].flatten(), reduction="none")
        # each model's gradient of its own mean cross-entropy
        (losses * share.flatten()).sum().backward()
        with torch.no_grad():
            if correct is not None:
                ensemble.correct_gradients(correct)
            ensemble.step(velocity, lr, momentum, weight_decay)
        ended |= {k: ensemble.copy_state(k) for k, count in enumerate(counts) if count == s + 1}
    return [(ended[k], count) for k, count in enumerate(counts)]
