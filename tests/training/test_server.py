"""A network that diverged is trained again, more slowly; one that learned is left as it is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from privdd.core.rng import Keys
from privdd.core.types import Records
from privdd.training.server import (
    MAX_TRIES,
    ServerTraining,
    ball_projected_loss,
    is_better_than_constant,
    train_on_records,
    train_on_soft_labels,
)
from privdd.training.sgd import predict_logits


def task() -> tuple[nn.Module, dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 1, 4, 4, generator=generator)
    soft = F.one_hot((x.flatten(1)[:, 0] > 0.5).long(), 2).float() * 0.9 + 0.05
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    start = {n: torch.randn(p.shape, generator=generator) / 4 for n, p in net.named_parameters()}
    return net, start, x, soft


def test_what_diverges_at_first_learns_at_a_lower_rate() -> None:
    net, start, x, soft = task()
    wild = ServerTraining(epochs=10, batch_size=20, lr=2.0, momentum=0.9)
    at = torch.arange(len(x))
    loss = lambda m, images, i: -(soft[i] * F.log_softmax(m(images), 1)).sum(1).mean()  # noqa: E731
    once = train_on_records(net, start, Records(x, at, at), wild, Keys(0).torch(), loss)
    assert not is_better_than_constant(predict_logits(net, once, x), soft), (
        "it learned at once: the test tests nothing"
    )
    assert is_better_than_constant(
        predict_logits(net, train_on_soft_labels(net, start, x, soft, wild, Keys(0)), x), soft
    )
    assert MAX_TRIES > 1


def test_what_learns_at_once_is_left_as_it_is_after_all_phases() -> None:
    """The rate falls twice, by a factor of four; the epochs are those that were asked for."""
    net, start, x, soft = task()
    calm = ServerTraining(epochs=20, batch_size=20, lr=0.2)
    at = torch.arange(len(x))
    generator = Keys(0).torch()
    loss = lambda m, images, i: -(soft[i] * F.log_softmax(m(images), 1)).sum(1).mean()  # noqa: E731
    state = start
    for epochs, lr in ((12, 0.2), (5, 0.05), (3, 0.0125)):
        state = train_on_records(
            net,
            state,
            Records(x, at, at),
            ServerTraining(epochs=epochs, batch_size=20, lr=lr),
            generator,
            loss,
        )
    again = train_on_soft_labels(net, start, x, soft, calm, Keys(0))
    assert is_better_than_constant(predict_logits(net, state, x), soft) and all(
        torch.equal(state[n], again[n]) for n in state
    )


def test_outputs_that_are_no_numbers_are_not_better() -> None:
    soft = torch.eye(2).repeat(3, 1)
    assert is_better_than_constant(10 * soft, soft)
    assert not is_better_than_constant(torch.zeros(6, 2), soft)
    assert not is_better_than_constant(torch.full((6, 2), torch.nan), soft)


def test_each_step_starts_in_the_ball_around_the_received_network() -> None:
    """Outside, the nearest point of the ball; inside, the network stays as it is."""
    net, start, x, soft = task()
    centre = {name: torch.zeros_like(value) for name, value in start.items()}
    net.load_state_dict(start)
    before = torch.cat([p.detach().flatten() for p in net.parameters()])
    norm = float(before.norm())
    for radius in (2 * norm, norm / 3):
        ball_projected_loss(centre, radius)(net, x, soft.argmax(1))
        after = torch.cat([p.detach().flatten() for p in net.parameters()])
        torch.testing.assert_close(after, before * min(1.0, radius / norm))
