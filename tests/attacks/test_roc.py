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
    assert tpr == max(
        (scores[:50] >= cut).mean() for cut in scores if (scores[50:] >= cut).mean() <= 0.01
    )
    assert low < tpr < high and resolvable
    assert tpr_at_fpr(scores, member, 0.005)[2]
    assert not tpr_at_fpr(scores, member, 0.001)[2]


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_delong_interval_covers_the_closed_form_at_its_level(shift):
    rng = np.random.default_rng(7)
    truth = norm.cdf(shift / math.sqrt(2))
    covered = 0
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
        clustered += (lambda i: i[0] <= 0.5 <= i[1])(
            auc_interval(scores, member, clusters=(group,))
        )
    assert plain < 0.7 * 200  # ten copies of each score counted as ten scores
    assert clustered >= 0.92 * 200


RATES = (0.001, 0.01, 0.1)


def replayed_scores(rng, gap, record_effect, replays=64, records=117):
    """Scores and coins of replays of the same records, (K n,), with their labels (record,
    replay)."""
    member = rng.random((replays, records)) < 0.5
    effects = record_effect * rng.normal(size=records)
    scores = gap * member + effects + rng.normal(size=(replays, records))
    labels = np.tile(np.arange(records), replays), np.repeat(np.arange(replays), records)
    return scores.ravel(), member.ravel(), labels


def true_values(gap, record_effect):
    """TPR at each of RATES, and the AUC, of Gaussian scores."""
    distance = gap / math.sqrt(1 + record_effect**2)
    return [
        *(norm.sf(norm.isf(rate) - distance) for rate in RATES),
        norm.cdf(distance / math.sqrt(2)),
    ]


def interval_ends(scores, member, labels):
    """(4, 2): of each rate, and of the AUC."""
    curve = roc(scores, member)
    ends = [tpr_at_fpr(scores, member, rate, clusters=labels, curve=curve)[1] for rate in RATES]
    return np.array([*ends, auc_interval(scores, member, clusters=labels)])


def bootstrap_widths(rng, scores, member, record, draws=200):
    """(4,): central 95 % over drawn records, each with a threshold of its own."""
    order = np.argsort(-scores, kind="stable")
    inside = member[order].astype(float)
    drawn = np.zeros((draws, 4))
    for at in range(draws):
        weight = np.bincount(
            rng.integers(0, record.max() + 1, record.max() + 1), minlength=record.max() + 1
        )[record[order]]
        hits = np.cumsum(weight * inside)
        false = np.cumsum(weight * (1 - inside))
        last = np.searchsorted(false, np.array(RATES) * false[-1] + 1e-9, side="right") - 1
        drawn[at, :3] = np.where(last < 0, 0, hits[last] / hits[-1])
        drawn[at, 3] = (weight * inside * (1 - false / false[-1])).sum() / hits[-1]
    return np.ptp(np.percentile(drawn, [2.5, 97.5], axis=0), axis=0)


def count_covered(gap, record_effect, simulations, compared, seed):
    """How often each interval holds the truth, (4,), and mean widths in units of a bootstrap's."""
    rng = np.random.default_rng(seed)
    truth = np.array(true_values(gap, record_effect))
    covered = np.zeros(4, int)
    widths = []
    usual = []
    for at in range(simulations):
        scores, member, labels = replayed_scores(rng, gap, record_effect)
        ends = interval_ends(scores, member, labels)
        covered += (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        widths.append(ends[:, 1] - ends[:, 0])
        if at < compared:
            usual.append(bootstrap_widths(rng, scores, member, labels[0]))
    return covered, np.mean(widths, axis=0) / np.mean(usual, axis=0)


def test_intervals_of_rates_and_area_hold_the_randomness_of_the_threshold():
    covered, width = count_covered(0.3, 0.5, 150, 8, 4)
    assert (binom.cdf(covered, 150, 0.95) > 1e-3).all()
    assert (binom.sf(covered - 1, 150, 0.98) > 1e-3).all()
    assert (width < 1.25).all() and (width > 0.8).all()  # of a bootstrap, from a few


@pytest.mark.nightly
@pytest.mark.parametrize(("gap", "record_effect"), [(0.0, 0.0), (0.3, 0.0), (0.3, 0.5)])
def test_coverage_of_a_thousand_simulations(gap, record_effect):
    covered, width = count_covered(gap, record_effect, 1000, 100, 5)
    assert (covered >= 935).all()
    assert (width <= 1.15).all()


def test_a_rate_of_nothing_or_of_everything_has_an_interval_with_room():
    member = np.arange(400) < 200
    none = tpr_at_fpr(np.where(member, 0.0, 1.0), member, 0.1)
    assert none[0] == 0 and none[1][0] == 0 and 0.001 < none[1][1] < 0.2
    every = tpr_at_fpr(member.astype(float), member, 0.1)
    assert every[0] == 1 and every[1][1] == 1 and 0.9 < every[1][0] < 1
    equal = tpr_at_fpr(np.zeros(400), member, 0.1)
    assert equal[0] == 0 and equal[1][0] == 0 and equal[1][1] < 0.2
    assert tpr_at_fpr(np.zeros(400), member, 1.0)[:2] == (1.0, (pytest.approx(1, abs=0.05), 1.0))


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
    """Ties, infinities and clusters with gaps; by two searches a score and by sorting, as before
    they were counted."""
    rng = np.random.default_rng(levels)
    values = rng.integers(0, levels, 300).astype(float)
    inside = rng.random(300) < 0.4
    values[:2], values[2] = np.inf, -np.inf
    positive = np.sort(values[inside])
    negative = np.sort(values[~inside])
    below, under = (
        (np.searchsorted(one, values) + np.searchsorted(one, values, "right")) / 2
        for one in (negative, positive)
    )
    placement = np.where(inside, below / len(negative), 1 - under / len(positive))
    area = float(placement[inside].mean())
    found = _auc_influence(values, inside)
    assert found[1] == area and np.array_equal(
        found[0], (placement - area) / np.where(inside, len(positive), len(negative))
    )
    for labels in (
        rng.choice([0, 3, 7, 90], 300),
        rng.integers(-5, 5, 300),
        rng.choice([0, 10**9], 300),
        rng.random(300),
    ):
        assert np.array_equal(number_labels(labels), np.unique(labels, return_inverse=True)[1])
    curve = roc(values, inside)
    for rate in (0.01, 0.3):
        assert tpr_at_fpr(values, inside, rate, curve=curve) == tpr_at_fpr(values, inside, rate)
