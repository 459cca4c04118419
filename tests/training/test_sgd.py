"""Tests of ``privdd.training.sgd``."""

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
    evaluate_model,
    local_adam,
    local_sgd,
    predict_logits,
    split_state,
)
from tests.fake_device import fake_gpu, repeated
from tests.methods.toy import BATCH_NORM, SPEC, digits

# Shared batches: one forward pass with the private one, and draws with even classes.


SHAPE = (1, 8, 8)


def shifted(at: range, centre: float, spread: float) -> Records:
    """Digits under an affine change of grey values: another law than ``digits``, with the same
    classes."""
    records = digits().take(at)
    return Records(centre + spread * records.x, records.y, records.ids)


@pytest.mark.parametrize("n", [1, 7, 8])
@pytest.mark.parametrize("steps", [0, 1, 3, 130])
def test_a_number_of_steps_changes_no_batch_and_leaves_the_same_generator(
    n: int, steps: int
) -> None:
    """On the CPU and on a device, whichever block of passes the last step falls into."""
    endless, known, there = (Keys(3).torch() for _ in range(3))
    plain = draw_batches(n, 4, endless, torch.device("cpu"))
    expected = [next(plain) for _ in range(steps)]
    ahead = draw_batches(n, 4, known, torch.device("cpu"), steps)
    assert all(torch.equal(next(ahead), one) for one in expected)
    with fake_gpu():
        moved = draw_batches(n, 4, there, torch.device("cuda"), steps)
        assert all(torch.equal(next(moved).cpu(), one) for one in expected)
    assert torch.equal(endless.get_state(), known.get_state()) and torch.equal(
        endless.get_state(), there.get_state()
    )


@pytest.mark.parametrize("train", [local_sgd, local_adam])
def test_more_passes_on_a_device_send_nothing_more(train) -> None:
    state = initial(BATCH_NORM, SHAPE, 10, Keys(1).torch())

    def run(epochs: int) -> None:
        there = {name: value.to("cuda") for name, value in state.items()}
        records = digits().take(range(8)).to("cuda")
        model = build(BATCH_NORM, SHAPE, 10)
        train(model, there, records, lr=0.1, batch_size=4, epochs=epochs, generator=Keys(2).torch())

    assert repeated(run, 2, 5) == {}


def test_balanced_draws_have_even_classes():
    """10 of each of 3 classes and one more; without repeats where a class suffices, all rows of its
    class where not."""
    y = torch.tensor([0] * 100 + [1] * 20 + [4] * 3)
    drawn = draw_balanced(y, 31, Keys(0).torch())
    counts = torch.bincount(y[drawn], minlength=5)
    assert (
        len(drawn) == 31
        and (counts[[0, 1, 4]] >= 10).all()
        and counts.sum() == 31
        and counts[[2, 3]].sum() == 0
    )
    whole = draw_balanced(y, 30, Keys(1).torch())
    for label in (0, 1):
        rows = whole[y[whole] == label]
        assert len(rows.unique()) == 10
    assert not torch.equal(y[whole], y[whole].sort().values)  # in random order


def test_balanced_draws_are_uniform_within_a_class():
    """Every row of a class as often as any other: chi-squared over 400 draws (32.0 is its 0.99
    quantile at 15)."""
    y = torch.tensor([0] * 16 + [1] * 64)
    generator = Keys(2).torch()
    hits = sum(torch.bincount(draw_balanced(y, 8, generator), minlength=80) for _ in range(400))[
        :16
    ].double()
    assert float(((hits - hits.mean()) ** 2 / hits.mean()).sum()) < 32.0


def test_a_mix_of_its_own_size_goes_in_passes():
    records = digits().take(range(100))
    index = SharedBatches(records, Keys(0).torch(), 16, balanced=40).draw_indices(
        torch.device("cpu")
    )
    sizes = [len(next(index)) for _ in range(6)]
    assert sizes == [16, 16, 8, 16, 16, 8]


def test_one_pass_is_the_gradient_and_the_statistics_of_the_concatenated_batch():
    """Against torch on one concatenated batch: parameters and running statistics after a step with
    batch norm."""
    state, (own, shared) = (
        initial(BATCH_NORM, SHAPE, 10, Keys(1).torch()),
        (digits().take(range(32)), shifted(range(50, 82), 2.0, 0.2)),
    )
    extra = SharedBatches(shared, Keys(5).torch(), 32, weight=0.7)
    got, _ = local_sgd(
        build(BATCH_NORM, SHAPE, 10),
        state,
        own,
        lr=0.1,
        batch_size=32,
        steps=1,
        generator=Keys(2).torch(),
        extra=extra,
    )
    model = build(BATCH_NORM, SHAPE, 10)
    model.load_state_dict(state)
    ours = torch.randperm(32, generator=Keys(2).torch())
    theirs = torch.randperm(32, generator=Keys(5).torch())
    logits = model(torch.cat([own.x[ours], shared.x[theirs]]))
    (
        F.cross_entropy(logits[:32], own.y[ours])
        + 0.7 * F.cross_entropy(logits[32:], shared.y[theirs])
    ).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    for name, value in got.items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Identity()
        self.seen = []

    def features(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return x


@pytest.mark.parametrize(("passes", "seen"), [(0, [3]), (1, [7]), (2, [7, 4])])
def test_only_the_first_pass_of_a_step_takes_the_shared_batch_along(passes, seen):
    """A loss that looks twice, or not at all, still gets its own images, and the shared batch is
    seen once."""
    net = Counting()
    joined = JointForward(net)
    own = torch.zeros(4, 2)
    shared = torch.ones(3, 2)
    joined.add_shared_batch(shared)
    for _ in range(passes):
        assert torch.equal(joined(own), own)
    assert torch.equal(joined.shared_logits(), shared) and net.seen == seen


def accuracy(logits: torch.Tensor, y: torch.Tensor) -> float:
    return float((logits.argmax(1) == y).float().mean())


@pytest.mark.nightly
def test_evaluation_under_batch_norm_is_within_two_points_of_batch_statistics():
    """Private digits and shared ones of quite another law: the running statistics fit what training
    saw. On average over
    seeds, within twice its standard error: six epochs turn a difference in the last bit into points
    of accuracy, so that one seed's gap has a deviation of four points, and another processor
    has other gaps."""
    own = digits().take(range(600))
    shared = shifted(range(600, 1200), 1.5, 0.3)
    test = digits().take(range(1200, 1797))
    found = []
    for seed in range(8):
        options = {
            "lr": 0.05,
            "momentum": 0.9,
            "batch_size": 32,
            "epochs": 6,
            "generator": Keys(2 + seed).torch(),
        }
        state = initial(BATCH_NORM, SHAPE, 10, Keys(1 + seed).torch())
        model = build(BATCH_NORM, SHAPE, 10)
        trained, _ = local_sgd(
            model, state, own, extra=SharedBatches(shared, Keys(5 + seed).torch(), 32), **options
        )
        model.load_state_dict({**state, **trained})
        by_batch = accuracy(
            model.train()(torch.cat([test.x, shared.x[: len(test)]]))[: len(test)], test.y
        )
        found.append([by_batch, accuracy(predict_logits(model, trained, test.x), test.y)])
    by_batch, evaluated = torch.tensor(found).T
    gaps = evaluated - by_batch
    assert by_batch.mean() > 0.8 and abs(gaps.mean()) <= 0.02 + 2 * gaps.std() / len(gaps) ** 0.5, (
        gaps
    )


# The local SGD loop against PyTorch's own optimiser on the same batches.


SHAPE_LOCAL = (1, 8, 8)


def reference(spec, state, records, steps, lr, momentum, weight_decay, batch_size, generator):
    model = build(spec, SHAPE_LOCAL, 10)
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay
    )
    taken = 0
    while taken < steps:
        for at in torch.randperm(len(records), generator=generator).split(batch_size)[
            : steps - taken
        ]:
            optimiser.zero_grad()
            F.cross_entropy(model(records.x[at]), records.y[at]).backward()
            optimiser.step()
            taken += 1
    return model.state_dict()


@pytest.mark.parametrize("spec", [SPEC, BATCH_NORM], ids=["instance", "batch"])
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 1e-2)])
def test_same_steps_as_torch_sgd(spec, momentum, weight_decay):
    records = digits().take(range(70))
    state = initial(spec, SHAPE_LOCAL, 10, Keys(1).torch())
    options = {"lr": 0.05, "momentum": momentum, "weight_decay": weight_decay, "batch_size": 32}
    ours, steps = local_sgd(
        build(spec, SHAPE_LOCAL, 10), state, records, epochs=2, generator=Keys(2).torch(), **options
    )
    theirs = reference(spec, state, records, steps, generator=Keys(2).torch(), **options)
    assert steps == 6
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-6, msg=name)


def test_buffers_come_back_beside_parameters():
    state = initial(BATCH_NORM, SHAPE_LOCAL, 10, Keys(1).torch())
    model = build(BATCH_NORM, SHAPE_LOCAL, 10)
    out, _ = local_sgd(
        model,
        state,
        digits().take(range(64)),
        lr=0.1,
        batch_size=32,
        steps=2,
        generator=Keys(2).torch(),
    )
    params, buffers = split_state(model, out)
    assert set(params) == {n for n, _ in model.named_parameters()}
    assert buffers and all("running" in name for name in buffers)
    assert any(not torch.equal(buffers[n], state[n]) for n in buffers)
    with pytest.raises(ValueError, match="running_mean"):
        local_sgd(
            model, params, digits(), lr=0.1, batch_size=32, steps=1, generator=Keys(2).torch()
        )


def test_inputs_and_global_streams_are_left_alone():
    state = initial(SPEC, SHAPE_LOCAL, 10, Keys(1).torch())
    kept = {n: t.clone() for n, t in state.items()}
    before = torch.get_rng_state()
    options = {"lr": 0.1, "batch_size": 16, "epochs": 0.5}
    model = build(SPEC, SHAPE_LOCAL, 10)
    first, steps = local_sgd(model, state, digits(), generator=Keys(3).torch(), **options)
    again, _ = local_sgd(model, state, digits(), generator=Keys(3).torch(), **options)
    assert model.training and all(
        p.isnan().all() for p in model.parameters()
    )  # built without values, still without
    assert steps == round(0.5 * 113)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[n], kept[n]) for n in state)
    assert all(torch.equal(first[n], again[n]) for n in first)


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        (range(0), {"steps": 1}, "records=0"),
        (range(5), {}, "exactly one"),
        (range(5), {"steps": 1, "epochs": 1}, "exactly one"),
    ],
)
def test_refusals(records, options, message):
    state = initial(SPEC, SHAPE_LOCAL, 10, Keys(1).torch())
    some = (
        digits().take(list(records))
        if len(records)
        else Records(torch.zeros(0, 1, 8, 8), *torch.zeros(2, 0).long())
    )
    with pytest.raises(ValueError, match=message):
        local_sgd(
            build(SPEC, SHAPE_LOCAL, 10),
            state,
            some,
            lr=0.1,
            batch_size=4,
            generator=Keys(0).torch(),
            **options,
        )


def test_mixed_set_adds_its_own_gradient_and_leaves_private_batches():
    state = initial(SPEC, SHAPE_LOCAL, 10, Keys(1).torch())
    model = build(SPEC, SHAPE_LOCAL, 10)
    records = digits().take(range(64))
    shared = digits().take(range(64, 128))

    def run(extra):
        options = {"lr": 0.1, "batch_size": 64, "steps": 1, "generator": Keys(2).torch()}
        return local_sgd(model, state, records, extra=extra, **options)[0]

    alone = run(None)
    silent = run(SharedBatches(shared, Keys(5).torch(), 64, weight=0.0))
    assert all(torch.equal(alone[n], silent[n]) for n in alone)
    both = run(SharedBatches(shared, Keys(5).torch(), 64))
    other, _ = local_sgd(
        model, state, shared, lr=0.1, batch_size=64, steps=1, generator=Keys(5).torch()
    )
    for n in both:  # one step from the same point: the two displacements add
        torch.testing.assert_close(
            both[n] - state[n], alone[n] + other[n] - 2 * state[n], rtol=1e-4, atol=1e-6
        )


def test_evaluate_counts_by_hand():
    state = initial(SPEC, SHAPE_LOCAL, 10, Keys(1).torch())
    records = digits().take(range(50))
    accuracy, logits = evaluate_model(build(SPEC, SHAPE_LOCAL, 10), state, records, batch=7)
    whole = torch.func.functional_call(build(SPEC, SHAPE_LOCAL, 10).eval(), state, (records.x,))
    torch.testing.assert_close(logits, whole)
    assert accuracy == pytest.approx(
        sum(int(a == b) for a, b in zip(whole.argmax(1), records.y)) / 50
    )
