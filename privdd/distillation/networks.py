"""The networks whose features are matched: freshly initialised ones, or draws around the server's model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attacks.gpu import images_at_once
from privdd.core.keys import Keys
from privdd.core.packed import packed, sent
from privdd.core.types import State
from privdd.privacy.batch_invariance import compute_rows

Embed = Callable[[Tensor], Tensor]  # images (b, c, h, w) -> (b, p)
Networks = Callable[[int], Embed]  # iteration -> the network of that iteration
CHUNK = 64  # images per forward pass: larger batches no longer fit in the cache


@torch.no_grad()
def embedded(embed: Embed, x: Tensor, chunk: int = CHUNK) -> Tensor:
    """Embeddings (n, p) without a graph, ``chunk`` images at a time (0 = all at once; on a GPU the usual number is larger);
    (0, p) of no images.

    Not every layer takes an empty batch, so that the width of none is read off one black image.
    """
    if not len(x):
        return embed(x.new_zeros(1, *x.shape[1:]))[:0]
    return torch.cat([embed(part) for part in x.split(images_at_once(x, chunk, CHUNK) or len(x))])


def record_embeddings(embed: Embed, x: Tensor, chunk: int = CHUNK) -> Tensor:
    """``embedded``, where a mechanism is to bound what one record does: a row is a function of its image alone, in every bit."""
    rows = compute_rows(lambda _, part: {"": embedded(embed, part, 0)}, {}, x, at_most=images_at_once(x, chunk, CHUNK))
    return rows[""]


class _Embedding(nn.Module):
    """A classifier seen as its penultimate features, with its logits behind them if wanted."""

    def __init__(self, model: nn.Module, logits: bool) -> None:
        super().__init__()
        self.model, self.logits = model, logits

    def forward(self, x: Tensor) -> Tensor:
        features = self.model.features(x)  # type: ignore[operator]
        return torch.cat([features, self.model.head(features)], 1) if self.logits else features  # type: ignore[operator]


def _norm(tensors: Mapping[str, Tensor]) -> float:
    """Euclidean norm over all tensors together."""
    return float(torch.stack([t.square().sum(dtype=torch.float64) for t in tensors.values()]).sum().sqrt())


def embedder(model: nn.Module, state: Mapping[str, Tensor], *, logits: bool = False) -> Embed:
    """x (b, c, h, w) -> (b, d) features of ``model`` at ``state``, or (b, d + C) with the logits."""
    view = _Embedding(model, logits)
    named = {f"model.{name}": tensor.detach() for name, tensor in state.items()}
    return lambda x: functional_call(view, named, (x,))


def in_ball(state: Mapping[str, Tensor], names: Iterable[str], rho: float, generator: torch.Generator) -> State:
    """w + rho u with u uniform on the sphere over all parameters ``names`` together; buffers stay.

    Xiong et al. 2023 (FedDM) draw N(w, I) truncated at radius rho = 5; in 3e5 dimensions such a draw
    has norm about 566, so the truncation always acts and this is its law. Raises ValueError for a
    negative radius.
    """
    return _moved(state, _moves(state, names, rho, generator))


def _moves(state: Mapping[str, Tensor], names: Iterable[str], rho: float, generator: torch.Generator) -> State:
    """rho u, on the generator's device."""
    if not rho >= 0:
        raise ValueError(f"rho={rho}: a radius of at least 0 is needed")
    noise = {name: torch.randn(state[name].shape, generator=generator, device=generator.device) for name in names}
    norm = _norm(noise)
    return {name: drawn * (rho / norm) for name, drawn in noise.items()}


def _moved(state: Mapping[str, Tensor], moves: Mapping[str, Tensor]) -> State:
    return {**state, **{name: state[name] + move.to(state[name]) for name, move in moves.items()}}


def to_ball(state: Mapping[str, Tensor], centre: Mapping[str, Tensor], rho: float) -> State:
    """The nearest state whose distance to ``centre``, over all its tensors together, is at most rho."""
    gaps = {name: state[name] - centre[name] for name in centre}
    norm = _norm(gaps)
    if norm <= rho:
        return dict(state)
    return {**state, **{name: centre[name] + gap * (rho / norm) for name, gap in gaps.items()}}


@dataclass(frozen=True)
class Drawn:
    """A network for each iteration, from numbers that are drawn on the CPU and sent to ``device``.

    draw: iteration -> the numbers, from a stream of that iteration; network: those numbers on the device -> network.
    """

    draw: Callable[[int], State]
    network: Callable[[State], Embed]
    device: torch.device

    def __call__(self, t: int) -> Embed:
        drawn = self.draw(t)
        return self.network(dict(zip(drawn, sent(list(drawn.values()), self.device))))

    def in_turn(self, steps: int) -> Iterator[Embed]:
        """The networks of iterations 0, ..., steps - 1, sent to the device many at a time."""
        return map(self.network, packed(self.draw, steps, self.device))


def in_turn(networks: Networks, steps: int) -> Iterator[Embed]:
    """The networks of iterations 0, ..., steps - 1, each when it is asked for."""
    return networks.in_turn(steps) if isinstance(networks, Drawn) else map(networks, range(steps))


def ball(
    model: nn.Module, state: Mapping[str, Tensor], names: Iterable[str], rho: float, keys: Keys, *, logits: bool
) -> Networks:
    """Networks around the server's model: one draw per iteration, the same for all classes."""
    names = tuple(names)
    return Drawn(
        lambda t: _moves(state, names, rho, keys.fold(t).torch()),
        lambda moves: embedder(model, _moved(state, moves), logits=logits),
        next((tensor.device for tensor in state.values()), torch.device("cpu")),
    )


def fresh(
    model: nn.Module,
    initial: Callable[[torch.Generator], State],
    keys: Keys,
    *,
    logits: bool = False,
    device: str | torch.device = "cpu",
) -> Networks:
    """Newly initialised networks: ``initial`` gives a state from a generator; one draw per iteration."""
    return Drawn(
        lambda t: initial(keys.fold(t).torch()),
        lambda state: embedder(model, state, logits=logits),
        torch.device(device),
    )


def fixed(model: nn.Module, state: Mapping[str, Tensor], *, logits: bool = False) -> Networks:
    """The same network at every iteration (FedLGD's iterative matching)."""
    embed = embedder(model, state, logits=logits)
    return lambda t: embed
