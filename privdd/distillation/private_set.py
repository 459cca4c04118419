"""Private set generation: images whose training gradient points where noised gradients of the records point.

Chen, Kerkouche and Fritz, "Private Set Generation with Discriminative Information" (NeurIPS 2022), algorithm 1: in newly
drawn networks, the records' gradients are clipped one by one, summed and noised (DP-SGD), the images follow them
(gradient matching, Zhao et al. 2021), and the network then trains on the images. Noise is spent on the records' gradient
alone; all else is post-processing. Momentum begins anew with each read (the released code keeps one optimiser for all).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from attacks.ranges import check_below_one, check_counts, check_positive
from privdd.core.keys import Keys
from privdd.core.long_loops import turns
from privdd.core.types import Records, State, Tensors
from privdd.distillation.gradient_matching import compared, match_gradient, slopes
from privdd.federated.channel import ClientContext
from privdd.training import dp_sgd
from privdd.training.contrastive import as_records
from privdd.training.local import local_sgd

QUERY = "set_gradient"
AT_ONCE = 64  # networks whose gradients are kept until the images have followed them
Read = Callable[[Tensors], Tensors]  # a network's state -> the records' gradient there, by name


@dataclass(frozen=True)
class SetGeneration:
    """networks: newly drawn ones, each at first untrained; turns: times that the images learn in one network, between
    which it trains on them; reads: noised gradients in one turn; steps: of the images along each of them; lr,
    momentum: of these; net_lr, net_epochs: of the network's training on the images."""

    networks: int = 1000
    turns: int = 10
    reads: int = 10
    steps: int = 1
    lr: float = 0.1
    momentum: float = 0.5
    net_lr: float = 0.01
    net_epochs: int = 50

    def __post_init__(self) -> None:
        check_counts(self, "networks", "turns", "reads", "steps", "net_epochs", under="generation.")
        check_positive(self, "lr", "net_lr", under="generation.")
        check_below_one(self, "momentum", under="generation.")

    @property
    def releases(self) -> int:
        """How often the records are read."""
        return self.networks * self.turns * self.reads


def generate(
    images: Tensor, labels: Tensor, model: nn.Module, draw: Callable[[int], State], read: Read, settings: SetGeneration, keys: Keys
) -> Tensor:  # fmt: skip
    """Images (m, c, h, w) of ``labels`` (m,) after ``settings.releases`` reads; draw: number -> a new network's state."""
    follow = partial(match_gradient, model, iterations=settings.steps, lr=settings.lr, momentum=settings.momentum)
    if settings.turns == 1:
        return _from_new_networks(images, labels, draw, read, settings, follow)
    for number in turns(range(settings.networks)):
        state = draw(number)
        for turn in turns(range(settings.turns)):
            if turn:
                state = _trained(model, state, images, labels, settings, keys.fold("net", number, turn))
            for _ in turns(range(settings.reads)):
                images = follow(state, read(state), images, labels)
    return images


def _from_new_networks(
    images: Tensor, labels: Tensor, draw: Callable[[int], State], read: Read, settings: SetGeneration,
    follow: Callable[[State, Tensors, Tensor, Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """Where no network learns from the images, no read depends on them. The reads come first: a test of what is released
    stops after the last one."""
    for first in turns(range(0, settings.networks, AT_ONCE)):
        some = range(first, min(first + AT_ONCE, settings.networks))
        noised = [(state, [read(state) for _ in turns(range(settings.reads))]) for state in map(draw, turns(some))]
        for network in turns(range(len(some))):
            state, gradients = noised[network % len(noised)]  # fewer were read where a price runs a part
            for number in turns(range(settings.reads)):
                images = follow(state, gradients[number % len(gradients)], images, labels)
    return images


def _trained(
    model: nn.Module, state: State, images: Tensor, labels: Tensor, settings: SetGeneration, keys: Keys
) -> State:
    records, size, generator = as_records(images, labels), min(256, len(labels)), keys.torch()
    return local_sgd(
        model, state, records, lr=settings.net_lr, batch_size=size, epochs=settings.net_epochs, generator=generator
    )[0]


def noised_gradient(model: nn.Module, records: Records, ctx: ClientContext) -> Read:
    """The records' gradient through ``ctx.mechanism``: of all weights that matching looks at, a Poisson sample a read."""
    loss = dp_sgd.cross_entropy_of(model)

    def read(state: Tensors) -> Tensors:
        def alone(weights: State, x: Tensor, y: Tensor) -> Tensor:
            return loss({**state, **weights}, x, y)

        taken = ctx.sample(QUERY, len(records)).nonzero()[:, 0].to(records.y.device)
        gradients = dp_sgd.record_gradients(alone, compared(model, state), records.x[taken], records.y[taken])
        released = ctx.mechanism(QUERY, gradients)
        return {name: value.to(state[name]) for name, value in released.items()}

    return read


def plain_gradient(model: nn.Module, records: Records) -> Read:
    """The gradient of the mean cross-entropy of all records, where nothing protects them."""
    return lambda state: slopes(model, state, records.x, records.y)
