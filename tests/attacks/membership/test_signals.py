"""Joint coefficients against numpy's least squares."""

import numpy as np
import pytest
import torch
from scipy.stats import ncx2
from sklearn.linear_model import Ridge

from attacks.membership.signals import (
    READOUT_RIDGE,
    SMALL_RIDGE_SHARE,
    LogitInfluence,
    class_ridge_coefficients,
    generated_share,
    moment_alignment,
    moment_coefficients,
    ridge_coefficients,
    ridge_readout,
    ridge_solver,
)


def directions(n=7, p=30, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, p, generator=g, dtype=torch.float64) + 2 * torch.randn(
        1, p, generator=g, dtype=torch.float64
    )


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize(("n", "p"), [(7, 30), (12, 5)])
def test_they_solve_ridge_regression(ridge, n, p) -> None:
    d = directions(n, p)
    released = directions(3, p, seed=5)
    weight = (ridge * d.square().sum(1).mean()).sqrt()
    # least squares with the penalty as more rows
    rows = np.vstack([d.T.numpy(), weight * np.eye(n)])
    for found, v in zip(ridge_coefficients(released, d, ridge), released):
        exact = np.linalg.lstsq(rows, np.concatenate([v.numpy(), np.zeros(n)]), rcond=None)[0]
        assert np.allclose(found, exact)


def test_a_sum_of_some_records_is_taken_apart_where_alignment_cannot() -> None:
    d = directions() * torch.linspace(1, 2, 7).unsqueeze(1)
    member = torch.tensor([1, 0, 1, 1, 0, 0, 1], dtype=torch.float64)
    assert torch.allclose(ridge_coefficients(member @ d, d, 1e-9), member, atol=1e-5)
    aligned = d @ (member @ d)
    assert (
        aligned[member == 0].max() > aligned[member == 1].min()
    )  # what all records share drowns who is in


def test_no_direction_has_no_part() -> None:
    assert torch.equal(
        ridge_coefficients(torch.ones(4), torch.zeros(3, 4)), torch.zeros(3, dtype=torch.float64)
    )
    assert ridge_coefficients(torch.ones(4), torch.zeros(0, 4)).shape == (0,)


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan")])
def test_a_ridge_that_is_not_positive_is_refused(ridge) -> None:
    with pytest.raises(ValueError, match="ridge"):
        ridge_solver(directions(), ridge)


def test_each_class_is_solved_by_itself() -> None:
    own = directions(9, 20)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])
    member = torch.tensor([1, 1, 0, 0, 0, 1, 0, 0, 1], dtype=torch.bool)
    means = torch.stack([own[member & (labels == c)].mean(0) for c in range(3)])
    found = class_ridge_coefficients(means, own, labels, 1e-9)
    for c in (0, 1):
        inside = found[member & (labels == c)]
        outside = found[~member & (labels == c)]
        assert inside.min() > outside.max() + 0.4  # 1 / members apart
    assert found[8] == pytest.approx(1, abs=1e-5)
    means[1] = torch.nan
    again = class_ridge_coefficients(means, own, labels, 1e-9)
    assert (again[labels == 1] == 0).all() and torch.equal(again[labels != 1], found[labels != 1])


@pytest.mark.parametrize(("rows", "columns"), [(40, 6), (40, 60), (2500, 6)])
def test_readout_is_ridge_regression_however_many_rows(rows: int, columns: int) -> None:
    """The penalty of scikit-learn is a ridge times the mean squared length of a row; many rows take
    no kernel of all pairs."""
    g = torch.Generator().manual_seed(rows)
    inside = torch.randn(rows, columns, generator=g)
    own = torch.randn(9, columns, generator=g)
    labels = torch.randint(3, (rows,), generator=g)
    penalty = READOUT_RIDGE * rows**0.5 * float(inside.square().sum(1).mean())
    known = (
        Ridge(alpha=penalty, fit_intercept=False)
        .fit(inside, torch.eye(3)[labels] - 1 / 3)
        .predict(own)
    )
    assert np.allclose(ridge_readout(inside, labels, own, 3), 10 * known, atol=1e-4)


def last_layer(seed: int = 0, records: int = 12, images: int = 30) -> dict[str, torch.Tensor]:
    """Features of public images and records, labels, and a linear layer without bias."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(images, 6, generator=g, dtype=torch.float64)
    own = torch.randn(records, 6, generator=g, dtype=torch.float64)
    weight = 0.3 * torch.randn(4, 6, generator=g, dtype=torch.float64)
    return {"rows": rows, "own": own, "y": torch.arange(records) % 4, "weight": weight}


def influence_of(case: dict[str, torch.Tensor]) -> LogitInfluence:
    labels = torch.nn.functional.one_hot(case["y"], 4)
    residual = labels - (case["own"] @ case["weight"].T).softmax(1)
    return LogitInfluence(case["own"] @ case["rows"].T + 1, residual)


def logit_change(case: dict[str, torch.Tensor], record: int) -> torch.Tensor:
    """What a gradient step on one record's cross-entropy changes, by autograd."""
    weight = case["weight"].clone().requires_grad_()
    bias = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    logits = case["own"][record] @ weight.T + bias
    loss = torch.nn.functional.cross_entropy(logits[None], case["y"][record][None])
    step, shift = torch.autograd.grad(loss, (weight, bias))
    return -(case["rows"] @ step.T + shift)


def test_the_influence_on_logits_is_that_of_a_step_of_the_last_layer() -> None:
    case = last_layer()
    influence = influence_of(case)
    changes = torch.stack([logit_change(case, i).flatten() for i in range(len(case["y"]))])
    torch.testing.assert_close(influence.gram_matrix, changes @ changes.T)
    observed = torch.randn(30, 4, dtype=torch.float64)
    torch.testing.assert_close(influence.inner_products(observed), changes @ observed.flatten())


@pytest.mark.parametrize("seed", range(10))
def test_members_are_read_off_logits_after_one_step(seed: int) -> None:
    """Closed case: one step on the sum over the members; every member stands above all others."""
    case = last_layer(seed)
    member = torch.rand(12, generator=torch.Generator().manual_seed(seed)) < 0.5
    changes = torch.stack([logit_change(case, i) for i in range(12)])
    found = influence_of(case).signals(changes[member].sum(0))["joint"]
    assert found[member].min() > found[~member].max()
    silent = influence_of(case).signals(torch.zeros(30, 4))
    assert all((scores == 0).all() for scores in silent.values())


def sent_moments(seed: int, *, by_class: bool) -> dict[str, torch.Tensor]:
    """Rows of norm 1 of 40 candidates in four classes, half of them summed, and of public
    records."""
    g = torch.Generator().manual_seed(seed)
    rows = 1 + torch.randn(90, 30, generator=g)
    rows = rows / rows.norm(dim=1, keepdim=True)
    own, public = rows[:40], rows[40:]
    y = torch.arange(40) % 4
    member = torch.randperm(40, generator=g) < 20
    groups = y if by_class else torch.zeros_like(y)
    parts = [own[member & (groups == group)] for group in groups.unique()]
    return {
        "moments": torch.stack([part.T @ part for part in parts]),
        "count": torch.tensor([len(part) for part in parts]),
        "rows": own,
        "labels": y,
        "reference": public.T @ public / len(public),
        "member": member,
    }


@pytest.mark.parametrize("by_class", [False, True])
def test_moment_signals_are_inner_products_of_outer_products(by_class: bool) -> None:
    case = sent_moments(0, by_class=by_class)
    member = case.pop("member")
    reference = case["reference"].double()
    outer = torch.einsum("nd,ne->nde", case["rows"], case["rows"]).double()
    groups = case["labels"] if by_class else torch.zeros(40, dtype=torch.int64)
    means = case["moments"].double() / case["count"][:, None, None]
    torch.testing.assert_close(
        moment_alignment(**case), (outer * (means[groups] - reference)).sum((1, 2))
    )
    for group in groups.unique().tolist():
        inside = groups == group
        directions = (outer[inside] - reference).flatten(1)
        total = (outer[inside & member] - reference).sum(0).flatten()
        torch.testing.assert_close(
            moment_coefficients(**case)[inside],
            ridge_coefficients(total, directions, SMALL_RIDGE_SHARE),
            rtol=1e-4,
            atol=1e-4,
        )


@pytest.mark.parametrize("by_class", [False, True])
def test_members_are_read_off_second_moments_in_nine_of_ten_seeds(by_class: bool) -> None:
    """Closed case: all records are candidates; every member stands above every other record."""
    hits = 0
    for seed in range(10):
        case = sent_moments(seed, by_class=by_class)
        member = case.pop("member")
        found = moment_coefficients(**case)
        hits += bool(found[member].min() > found[~member].max())
    assert hits >= 9


def test_the_share_of_generated_rows_is_the_generators_mass_near_a_record() -> None:
    """Closed case: a generator of normal rows of deviation s in d dimensions; the squared distance
    to a record at distance a of its mean, over s^2, is noncentral chi-square."""
    g = torch.Generator().manual_seed(0)
    spread = 0.7
    radius = 2.0
    generated = spread * torch.randn(40_000, 5, generator=g)
    records = torch.zeros(4, 5)
    records[:, 0] = torch.tensor([0.0, 0.5, 1.0, 2.0])
    offset = (records[:, 0].numpy() / spread) ** 2

    def fits(found: torch.Tensor, radius: float) -> bool:
        mass = ncx2.cdf((radius / spread) ** 2, 5, np.maximum(offset, 1e-12))
        error = np.sqrt(mass * (1 - mass) / len(generated))
        return bool((np.abs(found.numpy() - mass) < 4 * error).all())

    found = generated_share(records, generated, radius)
    assert fits(found, radius)
    assert not fits(found, 2 / 3 * radius) and not fits(found, 3 / 2 * radius)
    with pytest.raises(ValueError, match="generated"):
        generated_share(records, generated[:0], radius)


def test_a_record_that_a_generator_repeats_is_found_in_nine_of_ten_seeds() -> None:
    """One generated row in twenty is near the planted record, the others are drawn as all records
    are."""
    hits = 0
    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        records = torch.randn(40, 12, generator=g)
        generated = torch.randn(500, 12, generator=g)
        generated[::20] = records[7] + 0.1 * torch.randn(25, 12, generator=g)
        nearest = torch.cdist(records, generated).amin(1)
        hits += int(generated_share(records, generated, float(nearest.median())).argmax()) == 7
    assert hits >= 9
