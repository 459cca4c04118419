"""ROC curves against scikit-learn, closed forms and simulated coverage."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score, roc_curve

from attacks.roc import _auc_influence, auc_interval, number_labels, roc, thin_curve, tpr_at_fpr


@pytest.mark.parametrize("levels", [2, 4, 50, None])
def test_matches_scikit_learn_with_ties(levels):
    rng = np.random.default_rng(3)
    member = rng.random(300) < 0.5
    scores = rng.normal(size=300) + member
    if levels is not None:
        scores = np.round(scores * levels / 6)
    fpr, tpr, thresholds = roc_curve(member, scores, drop_intermediate=False)
    curve = roc(scores, member)
    np.testing.assert_allclose(curve.fpr, fpr, atol=1e-15)
    np.testing.assert_allclose(curve.tpr, tpr, atol=1e-15)
    np.testing.assert_array_equal(curve.thresholds[1:], thresholds[1:])
    assert curve.auc == pytest.approx(roc_auc_score(member, scores), abs=1e-14)


def test_constant_scores_are_chance_and_a_reversed_score_mirrors_the_area():
    member = torch.tensor([True, False, False, True, False])
    assert roc(torch.zeros(5), member).auc == 0.5
    scores = torch.tensor([0.1, 0.4, 0.4, 0.9, 0.2])
    assert roc(scores, member).auc + roc(-scores, member).auc == pytest.approx(1.0, abs=1e-15)


def test_area_of_gaussian_scores_has_its_closed_form():
    rng = np.random.default_rng(0)
    member = np.arange(200_000) % 2 == 0
    scores = rng.normal(size=200_000) + 1.3 * member
    assert roc(scores, member).auc == pytest.approx(norm.cdf(1.3 / math.sqrt(2)), abs=0.004)


def test_tpr_at_fpr_is_an_attained_vertex_and_says_when_it_is_not_resolvable():
    member = np.array([True] * 50 + [False] * 200)
    scores = np.concatenate([np.linspace(0, 2, 50), np.linspace(-1, 1, 200)])
    tpr, (low, high), resolvable = tpr_at_fpr(scores, member, 0.01)
    assert tpr == max((scores[:50] >= cut).mean() for cut in scores if (scores[50:] >= cut).mean() <= 0.01)
    assert low < tpr < high and resolvable
    assert tpr_at_fpr(scores, member, 0.005)[2]
    assert not tpr_at_fpr(scores, member, 0.001)[2]


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_delong_interval_covers_the_closed_form_at_its_level(shift):
    rng = np.random.default_rng(7)
    truth, covered = norm.cdf(shift / math.sqrt(2)), 0
    for _ in range(400):
        member = rng.random(120) < 0.5
        low, high = auc_interval(rng.normal(size=120) + shift * member, member)
        covered += low <= truth <= high
    assert binom.cdf(covered, 400, 0.95) > 1e-3  # not below its level
    assert binom.sf(covered - 1, 400, 0.95) > 1e-3  # nor uselessly wide


def test_clusters_widen_the_interval_when_scores_hang_together_and_keep_coverage():
    rng = np.random.default_rng(11)
    plain = clustered = 0
    group = np.repeat(np.arange(40), 10)
    for _ in range(200):
        member = np.repeat(rng.random(40) < 0.5, 10)
        scores = np.repeat(rng.normal(size=40), 10) + 0.3 * rng.normal(size=400)
        plain += (lambda i: i[0] <= 0.5 <= i[1])(auc_interval(scores, member))
        clustered += (lambda i: i[0] <= 0.5 <= i[1])(auc_interval(scores, member, clusters=(group,)))
    assert plain < 0.7 * 200  # ten copies of each score counted as ten scores
    assert clustered >= 0.92 * 200


def test_separated_scores_keep_a_limit_below_one():
    member = np.arange(40) < 20
    low, high = auc_interval(member.astype(float), member)
    assert high == 1.0 and low == pytest.approx(0.025 ** (1 / 20))
    assert auc_interval(-member.astype(float), member)[0] == 0.0


def test_thinning_keeps_vertices_and_both_ends():
    rng = np.random.default_rng(1)
    member = rng.random(5000) < 0.5
    curve = roc(rng.normal(size=5000) + member, member)
    fpr, tpr = thin_curve(curve, 50)
    assert len(fpr) <= 52 and fpr[-1] == tpr[-1] == 1.0 and fpr[0] == 0.0
    pairs = set(zip(curve.fpr.tolist(), curve.tpr.tolist()))
    assert set(zip(fpr.tolist(), tpr.tolist())) <= pairs


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        roc([0.0, float("nan")], [True, False])
    with pytest.raises(ValueError, match="non-members"):
        roc([0.0, 1.0], [True, True])
    with pytest.raises(ValueError, match="equally long"):
        roc([0.0, 1.0], [True])
    with pytest.raises(ValueError, match="fpr="):
        tpr_at_fpr([0.0, 1.0], [True, False], float("nan"))


@pytest.mark.parametrize("levels", [3, 40, 10**9])
def test_influences_and_labels_are_those_of_a_search(levels):
    """Ties, infinities and clusters with gaps; by two searches a score and by sorting, as before they were counted."""
    rng = np.random.default_rng(levels)
    values, inside = rng.integers(0, levels, 300).astype(float), rng.random(300) < 0.4
    values[:2], values[2] = np.inf, -np.inf
    positive, negative = np.sort(values[inside]), np.sort(values[~inside])
    below, under = ((np.searchsorted(one, values) + np.searchsorted(one, values, "right")) / 2 for one in (negative, positive))
    placement = np.where(inside, below / len(negative), 1 - under / len(positive))
    area = float(placement[inside].mean())
    found = _auc_influence(values, inside)
    assert found[1] == area and np.array_equal(found[0], (placement - area) / np.where(inside, len(positive), len(negative)))
    for labels in (rng.choice([0, 3, 7, 90], 300), rng.integers(-5, 5, 300), rng.choice([0, 10**9], 300), rng.random(300)):
        assert np.array_equal(number_labels(labels), np.unique(labels, return_inverse=True)[1])
    curve = roc(values, inside)
    for rate in (0.01, 0.3):
        assert tpr_at_fpr(values, inside, rate, curve=curve) == tpr_at_fpr(values, inside, rate)
