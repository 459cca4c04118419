"""The local SGD loop against PyTorch's own optimiser on the same batches."""

import pytest
import torch
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Records
from privdd.models import build, initial
from privdd.training.sgd import SharedBatches, evaluate_model, local_sgd, split_state
from tests.methods.toy import BATCH_NORM, SPEC, digits

SHAPE = (1, 8, 8)


def reference(spec, state, records, steps, lr, momentum, weight_decay, batch_size, generator):
    model = build(spec, SHAPE, 10)
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    taken = 0
    while taken < steps:
        for at in torch.randperm(len(records), generator=generator).split(batch_size)[: steps - taken]:
            optimiser.zero_grad()
            F.cross_entropy(model(records.x[at]), records.y[at]).backward()
            optimiser.step()
            taken += 1
    return model.state_dict()


@pytest.mark.parametrize("spec", [SPEC, BATCH_NORM], ids=["instance", "batch"])
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 1e-2)])
def test_same_steps_as_torch_sgd(spec, momentum, weight_decay):
    records, state = digits().take(range(70)), initial(spec, SHAPE, 10, Keys(1).torch())
    options = {"lr": 0.05, "momentum": momentum, "weight_decay": weight_decay, "batch_size": 32}
    ours, steps = local_sgd(build(spec, SHAPE, 10), state, records, epochs=2, generator=Keys(2).torch(), **options)
    theirs = reference(spec, state, records, steps, generator=Keys(2).torch(), **options)
    assert steps == 6
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-6, msg=name)


def test_buffers_come_back_beside_parameters():
    state, model = initial(BATCH_NORM, SHAPE, 10, Keys(1).torch()), build(BATCH_NORM, SHAPE, 10)
    out, _ = local_sgd(
        model, state, digits().take(range(64)), lr=0.1, batch_size=32, steps=2, generator=Keys(2).torch()
    )
    params, buffers = split_state(model, out)
    assert set(params) == {n for n, _ in model.named_parameters()}
    assert buffers and all("running" in name for name in buffers)
    assert any(not torch.equal(buffers[n], state[n]) for n in buffers)
    with pytest.raises(ValueError, match="running_mean"):
        local_sgd(model, params, digits(), lr=0.1, batch_size=32, steps=1, generator=Keys(2).torch())


def test_inputs_and_global_streams_are_left_alone():
    state = initial(SPEC, SHAPE, 10, Keys(1).torch())
    kept, before = {n: t.clone() for n, t in state.items()}, torch.get_rng_state()
    options = {"lr": 0.1, "batch_size": 16, "epochs": 0.5}
    model = build(SPEC, SHAPE, 10)
    first, steps = local_sgd(model, state, digits(), generator=Keys(3).torch(), **options)
    again, _ = local_sgd(model, state, digits(), generator=Keys(3).torch(), **options)
    assert model.training and all(p.isnan().all() for p in model.parameters())  # built without values, still without
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
    state = initial(SPEC, SHAPE, 10, Keys(1).torch())
    some = digits().take(list(records)) if len(records) else Records(torch.zeros(0, 1, 8, 8), *torch.zeros(2, 0).long())
    with pytest.raises(ValueError, match=message):
        local_sgd(build(SPEC, SHAPE, 10), state, some, lr=0.1, batch_size=4, generator=Keys(0).torch(), **options)


def test_mixed_set_adds_its_own_gradient_and_leaves_private_batches():
    state, model = initial(SPEC, SHAPE, 10, Keys(1).torch()), build(SPEC, SHAPE, 10)
    records, shared = digits().take(range(64)), digits().take(range(64, 128))

    def run(extra):
        options = {"lr": 0.1, "batch_size": 64, "steps": 1, "generator": Keys(2).torch()}
        return local_sgd(model, state, records, extra=extra, **options)[0]

    alone, silent = run(None), run(SharedBatches(shared, Keys(5).torch(), 64, weight=0.0))
    assert all(torch.equal(alone[n], silent[n]) for n in alone)
    both = run(SharedBatches(shared, Keys(5).torch(), 64))
    other, _ = local_sgd(model, state, shared, lr=0.1, batch_size=64, steps=1, generator=Keys(5).torch())
    for n in both:  # one step from the same point: the two displacements add
        torch.testing.assert_close(both[n] - state[n], alone[n] + other[n] - 2 * state[n], rtol=1e-4, atol=1e-6)


def test_evaluate_counts_by_hand():
    state, records = initial(SPEC, SHAPE, 10, Keys(1).torch()), digits().take(range(50))
    accuracy, logits = evaluate_model(build(SPEC, SHAPE, 10), state, records, batch=7)
    whole = torch.func.functional_call(build(SPEC, SHAPE, 10).eval(), state, (records.x,))
    torch.testing.assert_close(logits, whole)
    assert accuracy == pytest.approx(sum(int(a == b) for a, b in zip(whole.argmax(1), records.y)) / 50)
