"""FedCGS: its heads against normal densities, what it sends, and a record that stands alone in its
class."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from attacks.inversion.class_opening import open_message
from privdd.distillation.gaussian_heads import lda_head, qda_head, score_rows
from privdd.distillation.linear_head import record_moments
from privdd.federated.experiment import Experiment
from privdd.methods.fedcgs import FedCGS
from tests.federations import finished, tiny

torch.set_num_threads(1)
LAST = 0.5
WIDTH = 4
PRIOR = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def labelled_rows(count: int = 300) -> tuple[Tensor, Tensor]:
    """Rows of three classes, which end with LAST."""
    g = torch.Generator().manual_seed(0)
    y = torch.multinomial(PRIOR, count, replacement=True, generator=g)
    mixing = torch.randn(3, WIDTH, WIDTH, generator=g, dtype=torch.float64)
    noise = torch.randn(count, WIDTH, generator=g, dtype=torch.float64)
    x = torch.einsum("nd,ndk->nk", noise, mixing[y]) + 2 * y[:, None]
    return torch.cat([x, torch.full((count, 1), LAST, dtype=torch.float64)], 1), y


def class_statistics(rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    members = [rows[y == label] for label in range(3)]
    sums = torch.stack([own.sum(0) for own in members])
    second = torch.stack([own.T @ own for own in members])
    return sums, y.bincount(minlength=3), second


def differences(scores: Tensor) -> Tensor:
    return scores - scores[:, :1]


def test_lda_is_the_normal_density_with_the_covariance_of_all_records() -> None:
    rows, y = labelled_rows()
    sums, count, second = class_statistics(rows, y)
    head = lda_head(sums, count, second.sum(0), LAST, ridge=0.0)
    x = rows[:, :-1]
    expected = [
        MultivariateNormal(x[y == c].mean(0), torch.cov(x.T)).log_prob(x)
        + (count[c] / len(y)).log()
        for c in range(3)
    ]
    torch.testing.assert_close(
        differences(score_rows(head, rows)), differences(torch.stack(expected, 1))
    )


@pytest.mark.parametrize("shrinkage", [0.0, 0.4, 1.0])
def test_qda_is_the_normal_density_of_each_class(shrinkage: float) -> None:
    rows, y = labelled_rows()
    sums, count, second = class_statistics(rows, y)
    head = qda_head(sums, count, second, LAST, ridge=0.0, shrinkage=shrinkage)
    x = rows[:, :-1]
    own = torch.stack([torch.cov(x[y == c].T) for c in range(3)])
    within = ((count - 1)[:, None, None] * own).sum(0) / (len(y) - 3)
    mixed = (1 - shrinkage) * own + shrinkage * within
    expected = [
        MultivariateNormal(x[y == c].mean(0), mixed[c]).log_prob(x) + (count[c] / len(y)).log()
        for c in range(3)
    ]
    torch.testing.assert_close(
        differences(score_rows(head, rows)), differences(torch.stack(expected, 1))
    )


def test_a_class_without_records_is_never_chosen() -> None:
    rows, y = labelled_rows()
    sums, count, second = class_statistics(rows[y != 1], y[y != 1])
    linear = lda_head(sums, count, second.sum(0), LAST, ridge=0.01)
    quadratic = qda_head(sums, count, second, LAST, ridge=0.01, shrinkage=0.5)
    for head in (linear, quadratic):
        assert not (score_rows(head, rows).argmax(1) == 1).any()


def client_message(experiment: Experiment, shard: object) -> dict[str, Tensor]:
    plan = experiment.plan
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    upload, _ = plan.method.local(broadcast, {}, shard, plan.client_context(0, 0))
    return dict(upload["prototypes"].value)


def test_it_sends_what_its_private_twin_sends_before_noise() -> None:
    """The upper triangle of its second moments is that of dp_moments."""
    experiment = tiny("fedcgs")
    method = experiment.plan.method
    assert isinstance(method, FedCGS)
    train = experiment.shards[0].train
    value = client_message(experiment, experiment.shards[0])
    own = record_moments(method.rows.embed_rows(train.x), train.y, 10, 0.5)
    width = len(value["second"])
    left, right = torch.triu_indices(width, width)
    weight = torch.where(left == right, 1.0, 2**0.5) * 0.5**0.5
    torch.testing.assert_close(value["second"][left, right] * weight, own["xx"].sum(0))
    torch.testing.assert_close(value["sum"] * 0.5**0.5, own["xy"].sum(0))
    assert torch.equal(value["count"], train.y.bincount(minlength=10).float())


@pytest.mark.parametrize("head", ["means", "lda", "qda"])
def test_digits_are_learned(head: str) -> None:
    """Chance is 0.1; 120 records."""
    experiment = tiny("fedcgs", f"algo.head={head}", "algo.rows.width=40", "algo.ridge=0.1")
    test = experiment.test_records
    server = finished(experiment).server
    scores = experiment.plan.method.predict(server, None, test.x)
    assert float((scores.argmax(1) == test.y).double().mean()) > 0.5
    model = experiment.plan.method.classifier(experiment.plan.problem)
    model.load_state_dict({"head.weight": server["model/head.weight"]}, strict=False)
    torch.testing.assert_close(model(test.x), scores, rtol=1e-4, atol=1e-3)


def test_a_record_alone_in_its_class_is_opened_in_nine_of_ten_cases() -> None:
    """Ten records, each in turn the only one of its class."""
    experiment = tiny("fedcgs")
    shard = experiment.shards[0]
    train = shard.train
    hits = 0
    for planted in range(10):
        label = int(train.y[planted])
        others = (train.y != label).nonzero()[:, 0].tolist()
        alone = shard.with_train(train.take([planted, *others]))
        opened = open_message(client_message(experiment, alone), 10)
        assert opened is not None
        own = experiment.plan.method.rows.embed_rows(train.x)  # type: ignore[attr-defined]
        row = opened.rows[opened.labels == label]
        hits += len(row) == 1 and int((own - row).norm(dim=1).argmin()) == planted
    assert hits >= 9


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("algo.head=nb", "head='nb'"),
        ("algo.ridge=-1", "ridge"),
        ("algo.shrinkage=2", "shrinkage=2"),
    ],
)
def test_settings_without_a_meaning_are_refused(override: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        tiny("fedcgs", override)
