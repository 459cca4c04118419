"""Labels and layer inputs that gradients give away exactly, and where they do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attacks.images import match, psnr
from attacks.inversion import analytic, labels
from attacks.inversion.feature_inversion import WhiteBox
from attacks.types import Adversary, Capture, Knowledge, Surface, Truth, View
from tests.attacks.pictures import convnet, digits, drawn, mlp, pictures, rng, sent


@pytest.mark.parametrize("bias", [True, False])
def test_idlg_names_the_label_of_every_single_record(bias: bool) -> None:
    x, y = pictures()
    model = drawn(
        nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10, bias=bias))
    )
    for i in range(20):
        found = labels.recover_labels(model, sent(model, x[i : i + 1], y[i : i + 1]), 1, x[100:200])
        assert found.tolist() == y[i : i + 1].tolist()


@pytest.mark.parametrize("batch", [4, 16, 64])
def test_counts_of_an_untrained_model_beat_chance_by_far(batch: int) -> None:
    (x, y), model = pictures(), convnet(16)
    scores = []
    chances = []
    for start in range(0, 5 * batch, batch):
        rows = slice(start, start + batch)
        found = labels.recover_labels(
            model,
            sent(model, x[rows], y[rows]),
            batch,
            torch.rand((64, 1, 28, 28), generator=rng()),
        )
        true = labels.count_labels(y[rows], 10)
        scores.append(labels.label_overlap(labels.count_labels(found, 10), true))
        chances.append(labels.chance_overlap(true))
        assert len(found) == batch
    assert sum(scores) / 5 > 0.95 > sum(chances) / 5


def test_a_head_without_bias_is_read_through_its_mean_input() -> None:
    """All probabilities are those of an empty head, and all records are one: the gradient is (p_c -
    n_c / B) f exactly."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4, bias=False))
    nn.init.zeros_(model[1].weight)
    x = torch.full((4, 1, 4, 4), 3.0)
    y = torch.tensor([0, 0, 0, 1])
    assert labels.recover_labels(model, sent(model, x, y), 4, x).tolist() == y.tolist()


def test_counts_are_exact_when_the_probabilities_are() -> None:
    true = torch.tensor([3, 0, 5, 0, 8])
    p = torch.softmax(torch.randn(5, generator=rng()), 0)
    assert labels.label_counts_from_bias(p - true / 16, 16, p).tolist() == true.tolist()
    wrong = torch.softmax(torch.randn(5, generator=rng(1)), 0)
    found = labels.label_counts_from_bias(p - true / 16, 16, wrong)
    assert int(found.sum()) == 16 and bool((found[(p - true / 16) < 0] >= 1).all())


def test_chance_overlap_equals_simulation() -> None:
    true = torch.tensor([5, 0, 1, 2])
    guesses = torch.randint(4, (20000, 8), generator=rng())
    simulated = sum(labels.label_overlap(labels.count_labels(g, 4), true) for g in guesses) / len(
        guesses
    )
    assert labels.chance_overlap(true) == pytest.approx(simulated, abs=0.005)
    with pytest.raises(ValueError, match="at least one record"):
        labels.chance_overlap(torch.zeros(3))


def test_displacement_is_the_mass_of_heavy_ball_steps() -> None:
    rho = 0.9
    steps = 7
    closed = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert labels.sgd_displacement(steps, rho) == pytest.approx(closed)
    assert labels.sgd_displacement(5, 0.0) == 5


def test_probing_leaves_the_model_in_its_mode() -> None:
    model = convnet(4, norm=nn.BatchNorm2d).train()
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    labels.mean_probabilities(model, pictures()[0][:8])
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, kept[k]) for k, v in model.state_dict().items())


def test_every_row_is_the_input_of_a_single_record() -> None:
    x = torch.randn(12, generator=rng(), dtype=torch.float64)
    slope = torch.randn(6, generator=rng(1), dtype=torch.float64)
    slope[2] = 0
    rows = analytic.linear_inputs(slope[:, None] * x, slope)
    assert rows.shape == (5, 12) and torch.allclose(rows, x.expand(5, -1))
    with pytest.raises(ValueError, match="zero everywhere"):
        analytic.linear_inputs(torch.zeros(3, 4), torch.zeros(3))
    with pytest.raises(ValueError, match=r"\(m, d\)"):
        analytic.linear_inputs(torch.zeros(3, 4), torch.zeros(4))


def test_rows_come_best_conditioned_first() -> None:
    slope = torch.tensor([1e-7, 0.5, -2.0])
    x = torch.ones(4)
    gradient = slope[:, None] * x + 1e-6 * torch.randn(3, 4, generator=rng())
    rows = analytic.linear_inputs(gradient, slope)
    assert float((rows[0] - 1).abs().max()) < 1e-5 < float((rows[2] - 1).abs().max())


def test_neurons_that_one_record_alone_activates_give_it_away_from_a_batch() -> None:
    """A layer of thresholds on brightness (Fowl et al. 2022): each band's difference isolates one
    record."""
    x, y = pictures()
    order = x[:40].flatten(1).mean(1).argsort()[[0, 20, 39]]
    x = x[order]
    y = y[order]
    model = drawn(nn.Sequential(nn.Flatten(), nn.Linear(784, 3), nn.ReLU(), nn.Linear(3, 10)))
    bright = x.flatten(1).mean(1)
    layer = model[1]
    with torch.no_grad():
        layer.weight.fill_(1 / 784)
        layer.bias.copy_(-torch.cat([bright[:1] - 0.01, (bright[:-1] + bright[1:]) / 2]))
    gradients = sent(model, x, y)
    weight = gradients[0]
    bias = gradients[1]
    # only the brightest record passes the top threshold
    alone = analytic.linear_inputs(weight[2:], bias[2:])
    assert float(psnr(alone.view(1, 1, 28, 28), x[2:])) > 80


def test_a_conv_net_gives_its_features_which_are_inverted_in_turn() -> None:
    (x, y), model, shape = digits(), convnet(16, side=8, depth=1), (1, 1, 8, 8)
    gradients = sent(model, x[:1], y[:1])
    features = model[:-1].requires_grad_(False)
    found = analytic.layer_inputs(model, gradients, model[-1])[:1]
    assert torch.allclose(found, features(x[:1]), atol=1e-4)
    with pytest.raises(ValueError, match="pass invert="):
        analytic.reconstruct_from_layer(model, gradients, shape)
    start = torch.full(shape, 0.5)
    box = WhiteBox(iterations=300, tv=1e-4)
    result = analytic.reconstruct_from_layer(
        model, gradients, shape, invert=lambda z: box.optimise_images([features], [z], start)[0]
    )
    assert (
        float(psnr(result.images, x[:1]))
        > 30
        > float(psnr(x[100:].mean(0, keepdim=True), x[:1])) + 5
    )


def test_distinct_inputs_of_a_batch_are_told_apart() -> None:
    x, y = pictures()
    picked = analytic.distinct_rows(torch.cat([x[:3], 2 * x[:3]]).flatten(1), 5)
    assert len(picked) == 3
    assert match(picked.view(3, 1, 28, 28), x[:3]).tolist() == [0, 1, 2]
    repeated = analytic.reconstruct_from_layer(mlp(), sent(mlp(), x[:1], y[:1]), (3, 1, 28, 28))
    assert repeated.diagnostics["distinct"] == 1 and torch.equal(
        repeated.images[0], repeated.images[2]
    )


HISTOGRAM = torch.tensor([3.0, 0.0, 1.0, 7.0])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"mean": torch.rand(4, 5), "count": HISTOGRAM}, True),
        ({"sum": torch.rand(4, 5), "n": HISTOGRAM.long()[:, None]}, True),
        ({"order": torch.arange(4), "class_counts": HISTOGRAM}, True),
        ({"count": HISTOGRAM + 0.5}, False),
        ({"count": -HISTOGRAM}, False),
        ({"count": torch.zeros(4)}, False),
        ({"count": HISTOGRAM[:3]}, False),
        ({"total": torch.tensor(11.0)}, False),
        ({"count": torch.tensor([1.0, float("nan"), 2.0, 3.0])}, False),
    ],
)
def test_whole_numbers_of_each_class_are_its_counts(
    value: dict[str, torch.Tensor], found: bool
) -> None:
    counts = labels.sent_class_counts(value, 4)
    assert (counts is not None and counts.tolist() == HISTOGRAM.tolist()) is found


@pytest.mark.parametrize("surface", [Surface.PROTOTYPES, Surface.STATISTICS])
def test_the_histogram_beside_class_means_is_read_exactly_and_a_class_of_one_record_is_open(
    surface: Surface,
) -> None:
    y = torch.repeat_interleave(torch.arange(4), HISTOGRAM.long())
    x = torch.rand(len(y), 1, 2, 2)
    knowledge = Knowledge((1, 2, 2), 4, x, y)
    sent = Capture(0, 0, "prototypes", {"mean": torch.rand(4, 5), "count": HISTOGRAM})
    view = View(surface, Adversary.SERVER, (sent, sent), knowledge)
    attack = labels.LabelCounts()
    truth = Truth(x, y, x, y, HISTOGRAM.long())
    measures = attack.judge(attack.run(view, torch.Generator()), view, truth).measures.to_row()
    assert not attack.nothing_to_read(view)
    assert measures["label_accuracy"] == 1 > measures["baselines"]["label_accuracy_chance"]
    assert measures["diagnostics"]["open_classes"] == [2]
    assert "class 2 has one record, which is open" in measures["note"]
    marks = Capture(0, 0, "prototypes", {"mean": torch.rand(4, 5), "count": torch.ones(4)})
    held = View(surface, Adversary.SERVER, (marks,), knowledge)
    measures = attack.judge(attack.run(held, torch.Generator()), held, truth).measures.to_row()
    assert measures["diagnostics"]["open_classes"] == [2], "1 says that the client has the class"
    without = View(
        surface,
        Adversary.SERVER,
        (Capture(0, 0, "prototypes", {"mean": torch.rand(4, 5)}),),
        knowledge,
    )
    assert "one whole number a class" in attack.nothing_to_read(without)


def test_the_label_distribution_is_read_off_logits_on_public_images() -> None:
    """Closed case: a network that predicts each class as often as its records had it."""
    share = HISTOGRAM / HISTOGRAM.sum()
    noise = 0.1 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    records = int(HISTOGRAM.sum())
    found = labels.label_counts_of_logits((share + 1e-6).log() + noise, records)
    assert found.tolist() == HISTOGRAM.tolist()
    equal = labels.label_counts_of_logits(torch.zeros(5, 4), 10)
    assert equal.sum() == 10 and equal.max() - equal.min() == 1


def test_sums_of_votes_are_not_read_as_logits() -> None:
    capture = Capture(0, 0, "logits", {"logits": torch.rand(5, 4)})
    for settings, says in (({"votes": True}, "not logits"), ({}, "")):
        knowledge = Knowledge(
            (1, 2, 2), 4, torch.zeros(1), torch.zeros(1), settings={"batch_records": 9, **settings}
        )
        view = View(Surface.LOGITS, Adversary.SERVER, (capture,), knowledge)
        said = labels.LabelCounts().nothing_to_read(view)
        assert (says in said) and bool(said) == bool(says)


def test_class_shares_beside_a_generator_are_read_exactly() -> None:
    share = HISTOGRAM / HISTOGRAM.sum()
    layer = {"first.weight": torch.randn(3, 5), "first.bias": torch.randn(4)}
    knowledge = Knowledge((1, 2, 2), 4, torch.zeros(1), torch.zeros(1))
    capture = Capture(0, -1, "generator", {**layer, "prior": share})
    view = View(Surface.GENERATOR, Adversary.PEER, (capture,), knowledge)
    attack = labels.LabelCounts()
    assert not attack.nothing_to_read(view)
    y = torch.repeat_interleave(torch.arange(4), HISTOGRAM.long())
    x = torch.rand(len(y), 1, 2, 2)
    measures = attack.judge(
        attack.run(view, torch.Generator()), view, Truth(x, y, x, y, HISTOGRAM.long())
    ).measures
    assert measures.to_row()["label_accuracy"] == pytest.approx(1, abs=1e-6)
    second = Capture(0, -1, "other", {**layer, "prior": share})
    several = View(Surface.GENERATOR, Adversary.PEER, (capture, second), knowledge)
    truth = Truth(x, y, x, y, HISTOGRAM.long())
    measures = attack.judge(attack.run(several, torch.Generator()), several, truth).measures
    assert measures.to_row()["label_accuracy"] == pytest.approx(1, abs=1e-6)
    consensus = Capture(0, -1, "consensus", {"logits": torch.rand(5, 4)})
    joined = View(Surface.LOGITS, Adversary.PEER, (consensus,), knowledge)
    assert "no client's classes stand by themselves" in attack.nothing_to_read(joined)
    for unread in ({}, {"prior": torch.full((4,), 0.25)}, {"prior": share - 0.1}):
        assert labels.sent_class_shares({**layer, **unread}, 4) is None
