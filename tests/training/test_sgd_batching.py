"""Shared batches: one forward pass with the private one, and draws with even classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Records
from privdd.models import build, initial
from privdd.training.sgd import (
    JointForward,
    SharedBatches,
    draw_balanced,
    draw_batches,
    local_adam,
    local_sgd,
    predict_logits,
)
from tests.fake_device import fake_gpu, repeated
from tests.methods.toy import BATCH_NORM, digits

SHAPE = (1, 8, 8)


def shifted(at: range, centre: float, spread: float) -> Records:
    """Digits under an affine change of grey values: another law than ``digits``, with the same classes."""
    records = digits().take(at)
    return Records(centre + spread * records.x, records.y, records.ids)


@pytest.mark.parametrize("n", [1, 7, 8])
@pytest.mark.parametrize("steps", [0, 1, 3, 130])
def test_a_number_of_steps_changes_no_batch_and_leaves_the_same_generator(n: int, steps: int) -> None:
    """On the CPU and on a device, whichever block of passes the last step falls into."""
    endless, known, there = (Keys(3).torch() for _ in range(3))
    plain = draw_batches(n, 4, endless, torch.device("cpu"))
    expected = [next(plain) for _ in range(steps)]
    ahead = draw_batches(n, 4, known, torch.device("cpu"), steps)
    assert all(torch.equal(next(ahead), one) for one in expected)
    with fake_gpu():
        moved = draw_batches(n, 4, there, torch.device("cuda"), steps)
        assert all(torch.equal(next(moved).cpu(), one) for one in expected)
    assert torch.equal(endless.get_state(), known.get_state()) and torch.equal(endless.get_state(), there.get_state())


@pytest.mark.parametrize("train", [local_sgd, local_adam])
def test_more_passes_on_a_device_send_nothing_more(train) -> None:
    state = initial(BATCH_NORM, SHAPE, 10, Keys(1).torch())

    def run(epochs: int) -> None:
        there = {name: value.to("cuda") for name, value in state.items()}
        records, model = digits().take(range(8)).to("cuda"), build(BATCH_NORM, SHAPE, 10)
        train(model, there, records, lr=0.1, batch_size=4, epochs=epochs, generator=Keys(2).torch())

    assert repeated(run, 2, 5) == {}


def test_balanced_draws_have_even_classes():
    """10 of each of 3 classes and one more; without repeats where a class suffices, all rows of its class where not."""
    y = torch.tensor([0] * 100 + [1] * 20 + [4] * 3)
    drawn = draw_balanced(y, 31, Keys(0).torch())
    counts = torch.bincount(y[drawn], minlength=5)
    assert len(drawn) == 31 and (counts[[0, 1, 4]] >= 10).all() and counts.sum() == 31 and counts[[2, 3]].sum() == 0
    whole = draw_balanced(y, 30, Keys(1).torch())
    for label in (0, 1):
        rows = whole[y[whole] == label]
        assert len(rows.unique()) == 10
    assert not torch.equal(y[whole], y[whole].sort().values)  # in random order


def test_balanced_draws_are_uniform_within_a_class():
    """Every row of a class as often as any other: chi-squared over 400 draws (32.0 is its 0.99 quantile at 15)."""
    y = torch.tensor([0] * 16 + [1] * 64)
    generator = Keys(2).torch()
    hits = sum(torch.bincount(draw_balanced(y, 8, generator), minlength=80) for _ in range(400))[:16].double()
    assert float(((hits - hits.mean()) ** 2 / hits.mean()).sum()) < 32.0


def test_a_mix_of_its_own_size_goes_in_passes():
    records = digits().take(range(100))
    index = SharedBatches(records, Keys(0).torch(), 16, balanced=40).draw_indices(torch.device("cpu"))
    sizes = [len(next(index)) for _ in range(6)]
    assert sizes == [16, 16, 8, 16, 16, 8]


def test_one_pass_is_the_gradient_and_the_statistics_of_the_concatenated_batch():
    """Against torch on one concatenated batch: parameters and running statistics after a step with batch norm."""
    state, (own, shared) = initial(BATCH_NORM, SHAPE, 10, Keys(1).torch()), (digits().take(range(32)), shifted(range(50, 82), 2.0, 0.2))
    extra = SharedBatches(shared, Keys(5).torch(), 32, weight=0.7)
    got, _ = local_sgd(
        build(BATCH_NORM, SHAPE, 10), state, own, lr=0.1, batch_size=32, steps=1, generator=Keys(2).torch(), extra=extra
    )
    model = build(BATCH_NORM, SHAPE, 10)
    model.load_state_dict(state)
    ours, theirs = torch.randperm(32, generator=Keys(2).torch()), torch.randperm(32, generator=Keys(5).torch())
    logits = model(torch.cat([own.x[ours], shared.x[theirs]]))
    (F.cross_entropy(logits[:32], own.y[ours]) + 0.7 * F.cross_entropy(logits[32:], shared.y[theirs])).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    for name, value in got.items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.seen = nn.Identity(), []

    def features(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return x


@pytest.mark.parametrize(("passes", "seen"), [(0, [3]), (1, [7]), (2, [7, 4])])
def test_only_the_first_pass_of_a_step_takes_the_shared_batch_along(passes, seen):
    """A loss that looks twice, or not at all, still gets its own images, and the shared batch is seen once."""
    net = Counting()
    joined, own, shared = JointForward(net), torch.zeros(4, 2), torch.ones(3, 2)
    joined.add_shared_batch(shared)
    for _ in range(passes):
        assert torch.equal(joined(own), own)
    assert torch.equal(joined.shared_logits(), shared) and net.seen == seen


def accuracy(logits: torch.Tensor, y: torch.Tensor) -> float:
    return float((logits.argmax(1) == y).float().mean())


def test_evaluation_under_batch_norm_is_within_two_points_of_batch_statistics():
    """Private digits and shared ones of quite another law: the running statistics fit what training saw."""
    own, shared, test = digits().take(range(600)), shifted(range(600, 1200), 1.5, 0.3), digits().take(range(1200, 1797))
    options = {"lr": 0.05, "momentum": 0.9, "batch_size": 32, "epochs": 6, "generator": Keys(2).torch()}
    state, model = initial(BATCH_NORM, SHAPE, 10, Keys(1).torch()), build(BATCH_NORM, SHAPE, 10)
    trained, _ = local_sgd(model, state, own, extra=SharedBatches(shared, Keys(5).torch(), 32), **options)
    model.load_state_dict({**state, **trained})
    by_batch = accuracy(model.train()(torch.cat([test.x, shared.x[: len(test)]]))[: len(test)], test.y)
    assert by_batch > 0.8 and abs(accuracy(predict_logits(model, trained, test.x), test.y) - by_batch) <= 0.02
