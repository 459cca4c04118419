"""LiRA, RMIA, BASE and the signals against brute force and closed forms."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score

from attacks.membership import signals as sig
from attacks.membership.attack import score_leave_one_out
from attacks.membership.base_attack import base
from attacks.membership.lira import CONVENTIONS, _fit_variance_prior, lira
from attacks.membership.rmia import OfflineRmia, rmia, shadow_indices
from attacks.membership.threshold import loss_threshold
from attacks.roc import roc
from attacks.types import Adversary, Knowledge, Surface, View, Worlds

# LiRA, RMIA, BASE and the signals against brute force and closed forms.


def game(worlds=20, records=60, gap=1.0, seed=0):
    rng = np.random.default_rng(seed)
    masks = rng.random((worlds, records)) < 0.5
    masks[:2], masks[2:4] = True, False  # at least two worlds on each side
    hard = rng.normal(size=records) * 3
    signals = hard + gap * masks + rng.normal(size=masks.shape) * (1 + 0.5 * masks)
    truth = rng.random(records) < 0.5
    target = hard + gap * truth + rng.normal(size=records)
    return tuple(torch.from_numpy(a) for a in (signals, masks, target, truth))


@pytest.mark.parametrize("centre", ["mean", "median"])
@pytest.mark.parametrize("variance", ["per_record", "pooled"])
@pytest.mark.parametrize("online", [True, False])
def test_lira_is_the_loop_over_records(centre, variance, online):
    signals, masks, target, _ = game()
    s = signals.numpy()
    m = masks.numpy()
    middle = {"mean": np.mean, "median": np.median}[centre]
    columns = {side: [s[m[:, j] == side, j] for j in range(s.shape[1])] for side in (True, False)}
    pooled = {
        side: np.std(np.concatenate([c - middle(c) for c in columns[side]])) for side in columns
    }
    if centre == "median":  # residuals around the median do not average to zero
        pooled = {
            side: np.sqrt(np.mean(np.concatenate([c - middle(c) for c in columns[side]]) ** 2))
            for side in columns
        }
    expected = []
    for j in range(s.shape[1]):
        law = {}
        for side in (True, False):
            spread = np.std(columns[side][j]) if variance == "per_record" else pooled[side]
            law[side] = norm(middle(columns[side][j]), spread)
        ratio = law[True].logpdf(target[j]) - law[False].logpdf(target[j])
        expected.append(ratio if online else law[False].logcdf(target[j]))
    actual = lira(signals, masks, target, online=online, variance=variance, centre=centre)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("online", [True, False])
def test_bayesian_lira_is_the_loop_over_records(online):
    """Murphy (2007), section 6, one record at a time; the prior of the variances is given by its
    own test."""
    signals, masks, target, _ = game(12)
    s = signals.numpy()
    m = masks.numpy()
    means = {
        side: np.array([s[m[:, j] == side, j].mean() for j in range(s.shape[1])])
        for side in (True, False)
    }
    gap = np.sort(means[True] - means[False])[29]  # the lower of the two middle ones
    expected = []
    for j in range(s.shape[1]):
        law = {}
        for side, shift in ((True, gap), (False, -gap)):
            prior_degrees, prior_variance = (
                float(one) for one in variance_prior(signals, masks == side)
            )
            own = s[m[:, j] == side, j]
            weight = 1.0 if online else 0.0
            there = means[not side][j] + shift
            total = weight + len(own)
            alpha = prior_degrees / 2 + len(own) / 2
            between = weight * len(own) * (own.mean() - there) ** 2 / (2 * total)
            beta = (
                prior_degrees * prior_variance / 2 + ((own - own.mean()) ** 2).sum() / 2 + between
            )
            centre = (weight * there + len(own) * own.mean()) / total
            law[side] = student(2 * alpha, centre, np.sqrt(beta * (total + 1) / (alpha * total)))
        ratio = law[True].logpdf(target[j]) - law[False].logpdf(target[j])
        expected.append(ratio if online else law[False].logcdf(target[j]))
    np.testing.assert_allclose(
        lira(signals, masks, target, online=online, variance="bayes"), expected, rtol=1e-8
    )
    assert torch.equal(
        lira(signals, masks, target, online=online),
        lira(signals, masks, target, online=online, variance="bayes"),
    )


def variance_prior(signals, side):
    count = side.sum(0).double()
    mean = signals.masked_fill(~side, 0).sum(0) / count
    squares = (signals - mean).masked_fill(~side, 0).square().sum(0)
    return _fit_variance_prior(count[:, None], squares[:, None])


@pytest.mark.parametrize("degrees", [4.0, 20.0])
def test_the_prior_of_the_variances_is_recovered(degrees):
    rng = np.random.default_rng(5)
    variances = 3.0 * degrees / rng.chisquare(degrees, 4000)
    signals = torch.from_numpy(rng.normal(size=(9, 4000)) * np.sqrt(variances))
    found = variance_prior(signals, torch.ones_like(signals, dtype=torch.bool))
    assert 0.8 * degrees < float(found[0]) < 1.25 * degrees
    assert float(found[1]) == pytest.approx(3.0, rel=0.1)
    equal = torch.from_numpy(rng.normal(size=(9, 4000)))  # all of one variance
    assert float(variance_prior(equal, torch.ones_like(equal, dtype=torch.bool))[0]) > 100


@pytest.mark.nightly(cases=["16"])
@pytest.mark.parametrize("replays", [8, 16])
def test_bayesian_lira_is_unbiased_without_a_leak_and_best_with_few_shadow_models(replays):
    areas = {name: [] for name in ("null", "bayes", "pooled", "per_record")}
    for seed in range(14):
        rng = np.random.default_rng([replays, seed])
        masks = torch.from_numpy(rng.random((replays, 150)) < 0.5)
        noise = rng.normal(size=(replays, 150)) * np.sqrt(5 / rng.chisquare(5, 150))
        signals = torch.from_numpy(noise + 2 * rng.normal(size=150))
        cases = {"null": signals} | dict.fromkeys(
            ("bayes", "pooled", "per_record"), signals + 1.2 * masks
        )
        for name, values in cases.items():
            form = "bayes" if name == "null" else name
            scores = score_leave_one_out(partial(lira, variance=form), values, masks)
            areas[name].append(roc_auc_score(masks.flatten(), scores.flatten()))
    null = np.array(areas["null"])
    assert abs(null.mean() - 0.5) < 4 * null.std() / math.sqrt(len(null))
    assert (
        np.mean(areas["bayes"])
        > max(np.mean(areas["pooled"]), np.mean(areas["per_record"])) + 0.005
    )


def test_lira_separates_better_than_a_global_threshold_and_offline_is_weaker():
    areas = {"online": [], "offline": [], "global": []}
    for seed in range(5):
        signals, masks, target, truth = game(64, 400, gap=1.5, seed=seed)
        areas["online"].append(roc_auc_score(truth, lira(signals, masks, target)))
        areas["offline"].append(roc_auc_score(truth, lira(signals, masks, target, online=False)))
        areas["global"].append(roc_auc_score(truth, loss_threshold(target)))
    best = norm.cdf(1.5 / math.sqrt(2))  # closed form for known means and equal spreads
    online, offline, plain = (np.mean(areas[k]) for k in ("online", "offline", "global"))
    assert (
        online == pytest.approx(best, abs=0.04)
        and online > offline - 0.01
        and offline > plain + 0.1
    )


@pytest.mark.parametrize(
    "attack", [lambda s, m, t: lira(s, m, t), lambda s, m, t: lira(s, m, t, online=False)]
)
def test_permuting_records_permutes_scores(attack):
    signals, masks, target, _ = game()
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(target)))
    torch.testing.assert_close(
        attack(signals[:, order], masks[:, order], target[order]),
        attack(signals, masks, target)[order],
    )


def test_several_queries_average_their_log_ratios():
    signals, masks, target, _ = game()
    other, _, aim, _ = game(seed=4)
    both = lira(torch.stack([signals, other], -1), masks, torch.stack([target, aim], -1))
    torch.testing.assert_close(both, (lira(signals, masks, target) + lira(other, masks, aim)) / 2)


def test_the_script_convention_uses_the_in_spread_twice():
    signals, masks, target, _ = game()
    s = signals.numpy()
    m = masks.numpy()
    t = target.numpy()
    spread = np.std(s[m])
    for_record = [
        norm.logpdf(t[j], np.median(s[m[:, j], j]), spread)
        - norm.logpdf(t[j], np.median(s[~m[:, j], j]), spread)
        for j in range(len(t))
    ]
    np.testing.assert_allclose(
        lira(signals, masks, target, **CONVENTIONS["carlini-script-fixed"]), for_record
    )
    for name in CONVENTIONS:
        assert torch.isfinite(lira(signals, masks, target, **CONVENTIONS[name])).all()


def test_records_without_an_in_world_borrow_the_gap_of_the_rest():
    signals, masks, target, _ = game()
    masks[:, 0] = False
    score = lira(signals, masks, target, variance="pooled")
    assert torch.isfinite(score).all()
    with pytest.raises(ValueError, match="IN"):
        lira(signals, torch.zeros_like(masks), target)


def test_rmia_is_its_formula_and_z_only_quantises_it():
    rng = np.random.default_rng(2)
    probs = rng.random((10, 30))
    masks = np.arange(10)[:, None] % 2 == np.arange(30) % 2
    target = rng.random(30)
    p, m, t = (torch.from_numpy(np.array(a)) for a in (probs, masks, target))
    torch.testing.assert_close(rmia(p, m, t), t / p.mean(0))  # balanced worlds: the plain average
    out = np.array([probs[~masks[:, j], j].mean() for j in range(30)])
    np.testing.assert_allclose(rmia(p, m, t, online=False, a=0.3), target / ((1.3 * out + 0.7) / 2))
    z = rng.random((10, 25))
    zt = rng.random(25)
    ratio = target / probs.mean(0)
    z_ratio = zt / ((1.3 * z.mean(0) + 0.7) / 2)
    fraction = np.array([(r / z_ratio >= 1.0).mean() for r in ratio])
    extra = {"z_probs": torch.from_numpy(z), "z_target": torch.from_numpy(zt)}
    np.testing.assert_allclose(rmia(p, m, t, **extra, tie_break=False), fraction)
    ordered = rmia(p, m, t, **extra)
    np.testing.assert_array_equal(np.argsort(ordered), np.argsort(ratio))
    assert ordered.min() >= 0 and ordered.max() < 1


def test_base_is_log_mean_exp():
    rng = np.random.default_rng(3)
    probs = rng.random((7, 12))
    masks = rng.random((7, 12)) < 0.5
    target = rng.random(12)
    p, m, t = (torch.from_numpy(a) for a in (np.log(probs), masks, np.log(target)))
    np.testing.assert_allclose(base(p, m, t), np.log(target / probs.mean(0)))
    np.testing.assert_allclose(
        base(p, m, t, temperature=2.0), np.log(target**0.5 / (probs**0.5).mean(0))
    )
    out = [
        probs[~masks[:, j], j].mean() if (~masks[:, j]).any() else probs[:, j].mean()
        for j in range(12)
    ]
    np.testing.assert_allclose(base(p, m, t, online=False), np.log(target / np.array(out)))


def test_logit_scaling_is_exact_where_probabilities_saturate():
    logits = torch.tensor([[[300.0, 0.0, 2.2]], [[-150.0, 1.0, 0.0]]], dtype=torch.float64)
    labels = torch.tensor([0])
    expected = [300 - math.log(1 + math.exp(2.2)), -150 - math.log(math.e + 1)]
    np.testing.assert_allclose(sig.logit_scaled(logits, labels)[:, 0], expected, rtol=1e-12)
    mild = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(6) % 5
    p = mild.softmax(-1).gather(-1, labels.expand(4, 6).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(sig.logit_scaled(mild, labels), (p / (1 - p)).log())
    torch.testing.assert_close(sig.negative_loss(mild, labels), p.log())


def test_matched_filter_finds_the_record_behind_noise_and_shared_noise_is_no_protection():
    g = torch.Generator().manual_seed(1)
    clean = torch.randn(60, 40, generator=g, dtype=torch.float64)
    member = torch.arange(60) < 30
    own = clean[:30] + 2.0 * torch.randn(30, 40, generator=g, dtype=torch.float64)
    shared = clean[:30] + 8.0 * torch.randn(1, 40, generator=g, dtype=torch.float64)
    areas = [
        roc_auc_score(member, sig.matched_filter(own, clean, 2.0)),
        roc_auc_score(member, sig.matched_filter(shared, clean, 8.0)),
        roc_auc_score(member, sig.matched_filter(shared, clean, 8.0, shared_noise=True)),
    ]
    assert areas[0] > 0.8 and areas[2] > 0.95 and areas[1] < areas[2] - 0.1


def test_geometry_signals_are_their_definitions():
    g = torch.Generator().manual_seed(2)
    update = torch.randn(3, 8, generator=g)
    grads = torch.randn(5, 8, generator=g)
    cosine = torch.nn.functional.cosine_similarity(update[:, None], -grads[None], dim=-1)
    torch.testing.assert_close(sig.gradient_alignment(update, grads), cosine)
    torch.testing.assert_close(
        sig.gradient_alignment(update, grads, cosine=False), -update @ grads.T
    )
    records = torch.rand(4, 1, 3, 3, generator=g)
    pool = torch.rand(2, 6, 1, 3, 3, generator=g)
    pairs = (records[None, :, None] - pool[:, None]).flatten(3).norm(dim=-1)
    torch.testing.assert_close(sig.nearest_distance(records, pool), -pairs.min(-1).values)
    means = torch.randn(2, 3, 8, generator=g)
    labels = torch.tensor([0, 2, 2, 1, 0])
    expected = torch.stack([torch.cosine_similarity(m[labels], grads, dim=-1) for m in means])
    torch.testing.assert_close(sig.embedding_alignment(means, grads, labels), expected)
    std = torch.rand(2, 3, 8, generator=g) + 0.5
    law = torch.distributions.Normal(means[:, labels], std[:, labels])
    dense = law.log_prob(grads).sum(-1) + 4 * math.log(2 * math.pi)
    torch.testing.assert_close(sig.class_log_density(means, std, grads, labels), dense)


def test_refusals():
    signals, masks, target, _ = game()
    with pytest.raises(ValueError, match="NaN"):
        lira(signals * float("nan"), masks, target)
    with pytest.raises(ValueError, match="target"):
        lira(signals, masks, target[:-1])
    with pytest.raises(ValueError, match="at most 0"):
        base(signals.abs(), masks, target)
    with pytest.raises(ValueError, match="lie in"):
        rmia(signals, masks, target)
    with pytest.raises(ValueError, match="noise_std"):
        sig.matched_filter(torch.zeros(2, 3), torch.zeros(2, 3), float("nan"))


# RMIA with few shadow models that lack the record, against the closed form and on a null.


def view(gap: float, seed: int = 0, worlds: int = 12, n: int = 200) -> View:
    g = torch.Generator().manual_seed(seed)
    masks = torch.rand(worlds, n, generator=g) < 0.5
    signal = 2 * torch.randn(n, generator=g) + torch.randn(worlds, n, generator=g) + gap * masks
    held = Worlds({"confidence": signal}, masks, torch.zeros(n), torch.zeros(n, dtype=torch.long))
    public = torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.long)
    return View(
        Surface.UPDATE,
        Adversary.SERVER,
        (),
        Knowledge((1, 2, 2), 2, *public, settings={"delta": 1e-5}),
        held,
    )


def auc(seen: View, attack: OfflineRmia) -> float:
    scores = attack.run(seen, torch.Generator().manual_seed(1)).scores
    return roc(scores.flatten(), seen.worlds.masks.flatten().numpy()).auc


def test_the_score_is_the_offline_ratio_of_the_shadows_chosen() -> None:
    seen = view(1.0)
    scores = OfflineRmia(shadows=3).run(seen, torch.Generator().manual_seed(1)).scores
    chosen = [6, 7, 8]
    probs = seen.worlds.signals["confidence"].double().sigmoid()
    expected = rmia(probs[chosen], seen.worlds.masks[chosen], probs[5], a=0.3, online=False)
    torch.testing.assert_close(scores[5], expected)
    # p = ((1 + a) p_out + 1 - a) / 2 by hand
    record = int((~seen.worlds.masks[chosen]).all(0).nonzero()[0])
    torch.testing.assert_close(
        scores[5][record], probs[5][record] / ((1.3 * probs[chosen][:, record].mean() + 0.7) / 2)
    )


@pytest.mark.parametrize(
    ("target", "worlds", "count", "expected"),
    [(0, 12, 3, [1, 2, 3]), (10, 12, 3, [11, 0, 1]), (1, 3, 9, [2, 0])],
)
def test_shadows_are_the_worlds_after_the_target_and_never_itself(
    target, worlds, count, expected
) -> None:
    assert shadow_indices(target, worlds, count).tolist() == expected


def test_it_finds_a_leak_and_no_more_shadows_are_used_than_are_paid_for() -> None:
    assert auc(view(1.5), OfflineRmia()) > 0.65
    seen = view(1.5)
    changed = seen.worlds.signals["confidence"].clone()
    changed[7:] = 0.1  # worlds that the first target does not use
    other = View(
        seen.surface,
        seen.adversary,
        (),
        seen.knowledge,
        Worlds(
            {"confidence": changed}, *(seen.worlds.masks, seen.worlds.blind, seen.worlds.labels)
        ),
    )
    first, again = (
        OfflineRmia().run(v, torch.Generator().manual_seed(1)).scores[0] for v in (seen, other)
    )
    torch.testing.assert_close(first, again)


def test_on_a_null_it_guesses() -> None:
    found = [auc(view(0.0, seed), OfflineRmia()) for seed in range(20)]
    assert abs(sum(found) / 20 - 0.5) < 0.01
