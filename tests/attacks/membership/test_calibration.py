"""Rates for each record by itself, and the null of LiRA under independent and under balanced
coins."""

import math

import numpy as np
import torch
from scipy import stats

from attacks.membership.attack import score_leave_one_out
from attacks.membership.calibration import calibrate_by_record
from attacks.membership.lira import lira
from attacks.membership.measures import measure_rates_per_record
from attacks.roc import roc, tpr_at_fpr


def draw_replays(seed, replays, records, gap=0.0, record_effect=0.0, spreads=None):
    """Signals and coins (K, n) of Gaussian signals; spreads (n,): the standard deviation of each
    record."""
    rng = np.random.default_rng(seed)
    masks = rng.random((replays, records)) < 0.5
    noise = rng.normal(size=(replays, records)) * (1.0 if spreads is None else spreads)
    signals = noise + gap * masks + record_effect * rng.normal(size=records)
    return torch.from_numpy(signals), torch.from_numpy(masks)


def test_p_values_are_those_of_a_loop_over_records_and_replays():
    signals, masks = draw_replays(0, 9, 6, gap=1.0, record_effect=3.0)
    found = calibrate_by_record(signals, masks)
    for k in range(9):
        for i in range(6):
            others = [signals[j, i].item() for j in range(9) if j != k and not masks[j, i]]
            if len(others) < 3:
                assert math.isnan(found[k, i])
                continue
            studentised = (
                (signals[k, i].item() - np.mean(others))
                / np.std(others, ddof=1)
                / math.sqrt(1 + 1 / len(others))
            )
            assert np.isclose(
                found[k, i].item(), -stats.t.logsf(studentised, len(others) - 1), rtol=1e-9
            )


def test_every_record_keeps_the_rate_that_one_threshold_gives_to_a_few():
    """Half of the records vary ten times as much: a common threshold accuses them alone."""
    spreads = np.where(np.arange(200) < 100, 1.0, 10.0)
    signals, masks = draw_replays(1, 64, 200, spreads=spreads)
    calibrated = calibrate_by_record(signals, masks)
    for scores, least, most in ((signals.double(), 0.0, 0.001), (calibrated, 0.03, 0.07)):
        curve = roc(scores.flatten(), masks.flatten())
        threshold = curve.thresholds[
            int(np.searchsorted(curve.fpr.numpy(), 0.05, side="right")) - 1
        ]
        accused = (scores >= threshold) & ~masks
        quiet = accused[:, :100].sum() / (~masks[:, :100]).sum()
        assert least <= float(quiet) <= most


def test_rates_for_each_record_have_their_closed_form():
    """A gap of two standard deviations in each record, and records that differ by ten: TPR = Phi(2
    - z), up to the t law."""
    signals, masks = draw_replays(2, 128, 300, gap=2.0, record_effect=10.0)
    rates = measure_rates_per_record(signals, masks)
    for rate in (0.01, 0.1):
        truth = stats.norm.sf(stats.norm.isf(rate) - 2)
        assert abs(rates[str(rate)]["tpr"] - truth) < 0.03
        pooled = tpr_at_fpr(signals.flatten(), masks.flatten(), rate)[0]
        assert pooled < 2 / 3 * truth  # what one threshold finds
    assert measure_rates_per_record(signals[:8], masks[:8]) is None


def test_rates_for_each_record_are_chance_without_a_leak():
    found = []
    for seed in range(6):
        signals, masks = draw_replays(10 + seed, 24, 200, record_effect=3.0)
        found.append(
            [measure_rates_per_record(signals, masks)[rate]["tpr"] for rate in ("0.01", "0.1")]
        )
    mean = np.mean(found, axis=0)
    assert 0.007 < mean[0] < 0.015 and 0.085 < mean[1] < 0.115


def null_area(balanced, replays, seeds=24, records=150):
    """Mean AUC of LiRA with per-record variances on signals that know nothing of the coins."""
    areas = []
    for seed in range(seeds):
        signals, masks = draw_replays(100 + seed, replays, records, record_effect=2.0)
        if balanced:
            order = torch.rand(
                replays, records, generator=torch.Generator().manual_seed(seed)
            ).argsort(0)
            masks = order < replays // 2
        scores = score_leave_one_out(
            lambda s, m, t: lira(s, m, t, variance="per_record"), signals, masks
        )
        areas.append(roc(scores.flatten(), masks.flatten()).auc)
    return np.mean(areas), np.std(areas) / math.sqrt(seeds)


def test_independent_coins_leave_no_finite_population_bias():
    area, error = null_area(False, 8)
    assert abs(area - 0.5) < 4 * error + 0.005
    area, error = null_area(True, 8)  # as many in as out for each record: the others' count tells
    assert area < 0.5 - 6 * error
