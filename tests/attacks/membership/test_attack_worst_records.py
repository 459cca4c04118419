"""The most exposed records: found where they are exposed, and not made up where none is."""

import numpy as np
import torch
from scipy.stats import binomtest

from attacks.membership.attack import measure_by_kind, measure_worst_records


def game(seed, worlds=64, records=200, exposed=0):
    """Scores of pure noise, but members among the first ``exposed`` records stand out in every second replay."""
    rng = np.random.default_rng(seed)
    masks = rng.random((worlds, records)) < 0.5
    scores = rng.normal(size=masks.shape)
    out = masks[:, :exposed] & (rng.random((worlds, exposed)) < 0.5)
    scores[:, :exposed] += 20 * out
    return torch.from_numpy(scores), torch.from_numpy(masks)


def test_two_exposed_records_of_200_are_found_at_their_own_rate():
    covered, total = 0, []
    for seed in range(40):
        found = measure_worst_records(*game(seed, exposed=2))
        total.append(found["tpr"])
        covered += found["ci"][0] <= 0.5 <= found["ci"][1]
        assert found["share"] == 0.01
    assert abs(np.mean(total) - 0.5) < 0.03  # 64 coins a run: 0.0625 / sqrt(40) standard error
    assert covered >= 35


def test_in_a_null_the_worst_records_are_no_worse_than_the_rate():
    """Chosen and judged on the same replays, the worst two would be named in several per cent of replays."""
    runs = [measure_worst_records(*game(seed)) for seed in range(60)]
    assert np.mean([run["tpr"] for run in runs]) < 0.003
    assert sum(run["ci"][0] > 0.001 for run in runs) <= 4


def test_the_interval_is_that_of_clopper_and_pearson():
    """All 200 records named in every replay that they are in, with no false alarm."""
    _, masks = game(0)
    found = measure_worst_records(masks.double(), masks)
    even = torch.arange(64) % 2 == 0
    assert found["tpr"] == 1.0 and found["ci"][1] == 1.0
    trials = [n for n in range(20, 130) if abs(binomtest(n, n).proportion_ci(0.95, "exact").low - found["ci"][0]) < 1e-12]
    assert len(trials) == 1 and trials[0] <= 2 * 64 and even.sum() == 32


def test_a_rate_that_cannot_be_seen_is_not_reported():
    scores, masks = game(0, worlds=8, records=60)
    assert measure_worst_records(scores, masks) is None
    assert measure_worst_records(*game(0, worlds=2, records=2000)) is None


def test_each_exposed_record_is_counted_in_the_replays_that_did_not_choose_it():
    """By hand: in every replay a record that is in is found with its own rate; both halves choose the exposed two."""
    scores, masks = game(3, exposed=2)
    found = measure_worst_records(scores, masks)
    threshold = scores[~masks].sort(descending=True).values[int(0.001 * int((~masks).sum()))]
    assert [one["record"] for one in found["records"]] == [0, 1]
    for one in found["records"]:
        inside = masks[:, one["record"]]
        assert one["trials"] == int(inside.sum()) and one["hits"] == int((scores[inside, one["record"]] > threshold).sum())
        exact = binomtest(one["hits"], one["trials"]).proportion_ci(0.95, "exact")
        assert np.allclose(one["ci"], [exact.low, exact.high]) and one["tpr"] == one["hits"] / one["trials"]
    assert found["tpr"] == sum(one["hits"] for one in found["records"]) / sum(one["trials"] for one in found["records"])


def test_in_a_null_no_single_record_looks_exposed():
    """Judged where it was chosen, one record in a run of a null would be found several times over."""
    rates = [one["tpr"] for seed in range(40) for one in measure_worst_records(*game(seed))["records"]]
    assert len(rates) >= 80 and np.mean(rates) < 0.003


def test_kinds_are_told_apart_at_one_threshold():
    scores, masks = game(5, exposed=4)
    kinds = {"mislabelled": torch.tensor([0, 1, 2, 3]), "near_duplicates": torch.arange(10, 30)}
    found = measure_by_kind(scores, masks, kinds)
    threshold = scores[~masks].sort(descending=True).values[int(0.001 * int((~masks).sum()))]
    assert list(found) == ["mislabelled", "near_duplicates", "ordinary"] and found["ordinary"]["n"] == 176
    for kind, at in {**kinds, "ordinary": torch.tensor([*range(4, 10), *range(30, 200)])}.items():
        named, inside = (scores > threshold)[:, at], masks[:, at]
        assert found[kind]["tpr"] == float((named & inside).sum() / inside.sum().double())
        assert found[kind]["fpr"] == float((named & ~inside).sum() / (~inside).sum().double())
    assert found["mislabelled"]["auc"] > 0.65 > 0.6 > found["ordinary"]["auc"]
    assert measure_by_kind(scores, masks, {}) is None and measure_by_kind(scores[:4], masks[:4], kinds) is None


def test_a_record_that_is_named_in_or_out_is_counted_in_both():
    """One record stands out whenever its coin of its own says so, whether it is in or not: as often out as in."""
    rng = np.random.default_rng(5)
    scores, masks = game(5, worlds=400, records=1200)
    loud = torch.from_numpy(rng.random(400) < 0.4)
    scores[:, 7] += 20 * loud
    (one,) = [one for one in measure_worst_records(scores, masks)["records"] if one["record"] == 7]
    assert one["hits"] == int((loud & masks[:, 7]).sum()) and one["wrong"] == int((loud & ~masks[:, 7]).sum())
    assert one["trials"] + one["out"] == 400
