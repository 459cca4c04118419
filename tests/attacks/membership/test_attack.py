"""Tests of ``attacks.membership.attack``."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest, gaussian_kde, norm

from attacks.membership.attack import (
    SAME_FOR_ALL_RECORDS,
    SAME_IN_ALL_REPLAYS,
    MembershipAttack,
    primary_signal,
    why_all_uninformative,
    why_uninformative,
)
from attacks.membership.base_attack import Base
from attacks.membership.density import GradientDensity, density_ratio
from attacks.membership.lira import Lira
from attacks.membership.measures import (
    guess_counts,
    measure_by_kind,
    measure_worst_records,
    membership_measures,
    one_run_bound,
)
from attacks.membership.rmia import OfflineRmia, Rmia
from attacks.membership.shadow_classifier import ShadowClassifier, shadow_classifier
from attacks.membership.threshold import LossThreshold
from attacks.types import Adversary, Attack, Knowledge, Surface, Truth, View, Worlds
from privdd.cli.build import build_attacks
from privdd.cli.compose import compose_config

# Whole membership audits: null, power, independence of the target's own mask, and the config files.


ATTACKS = [Lira(), Rmia(), Base(), LossThreshold(), ShadowClassifier(), GradientDensity()]


def worlds(count=16, records=80, gap=0.0, seed=0, logits=False):
    rng = np.random.default_rng(seed)
    masks = rng.random((count, records)) < 0.5
    hard = 2 * rng.normal(size=records)
    signal = hard + gap * masks + rng.normal(size=masks.shape) + rng.normal(size=(count, 1))
    labels = torch.arange(records) % 3
    found = None
    if logits:
        found = torch.from_numpy(rng.normal(size=(count, records, 3)))
        found[:, torch.arange(records), labels] += torch.from_numpy(gap * masks)
    kwargs = {
        "masks": torch.from_numpy(masks),
        "blind": torch.from_numpy(rng.normal(size=records)),
        "labels": labels,
    }
    return Worlds({"confidence": torch.from_numpy(signal)}, logits=found, **kwargs)


def view(w, surface=Surface.UPDATE, **settings):
    knowledge = Knowledge(
        (1, 2, 2),
        3,
        torch.zeros(4, 1, 2, 2),
        torch.arange(4) % 3,
        settings={"delta": 1e-5, **settings},
    )
    return View(surface, Adversary.SERVER, (), knowledge, w)


def truth():
    x = torch.zeros(2, 1, 2, 2)
    y = torch.zeros(2, dtype=torch.long)
    return Truth(x, y, x, y, torch.tensor([2, 0, 0]))


def audit(attack, w):
    seen = view(w)
    return attack.judge(attack.run(seen, torch.Generator().manual_seed(5)), seen, truth())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
def test_a_leak_is_found_and_every_measure_is_there(attack):
    assert isinstance(attack, Attack)
    finding = audit(attack, worlds(24, 120, gap=2.5, logits=True))
    low, high = finding.measures.auc_ci
    assert 0.6 < low <= finding.measures.auc <= high <= 1
    assert set(finding.measures.to_row()) == {
        "auc",
        "auc_ci",
        "tpr_at_fpr",
        "blind_auc",
        "epsilon_shown",
        "epsilon_method",
        "epsilon_validity",
        "confidence",
        "n",
        "worlds",
        "worst_records",
        *["tpr_at_fpr_per_record"] * (attack.name == "loss_threshold"),
    }
    assert (finding.measures.n, finding.measures.worlds) == (120, 24)
    assert abs(finding.measures.blind_auc - 0.5) < 0.06
    assert finding.figures["roc_fpr"].shape == finding.figures["roc_tpr"].shape


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
def test_the_targets_own_mask_does_not_reach_its_scores(attack):
    w = worlds(6, 40, gap=2.0, logits=True)
    masks = w.masks.clone()
    masks[0] = ~masks[0]
    scores = [
        attack.run(view(v), torch.Generator().manual_seed(5)).scores
        for v in (w, replace(w, masks=masks))
    ]
    assert torch.equal(scores[0][0], scores[1][0])


@pytest.mark.nightly
def test_null_over_200_seeds_claims_nothing_beyond_its_level():
    above = 0
    covered = 0
    for seed in range(200):
        measures = audit(Lira(), worlds(12, 60, seed=seed)).measures.to_row()
        above += measures["epsilon_shown"] > 0
        covered += measures["auc_ci"][0] <= 0.5 <= measures["auc_ci"][1]
    assert above <= 10 and covered >= 190


@pytest.mark.parametrize(
    "attack", [Rmia(), Base(), LossThreshold(), GradientDensity(limit=200)], ids=lambda a: a.name
)
def test_null_of_the_other_attacks(attack):
    found = [audit(attack, worlds(8, 40, seed=seed)).measures.to_row() for seed in range(40)]
    above = sum(m["epsilon_shown"] > 0 for m in found)
    covered = sum(m["auc_ci"][0] <= 0.5 <= m["auc_ci"][1] for m in found)
    assert binom.sf(above - 1, 40, 0.05) > 1e-3 and binom.cdf(covered, 40, 0.95) > 1e-3


@pytest.mark.nightly(cases=["60"])
@pytest.mark.parametrize("seeds", [20, 60])
def test_interval_covers_the_mean_area_although_worlds_share_noise(seeds):
    found = [
        audit(Lira(), worlds(16, 60, gap=1.0, seed=seed)).measures.to_row() for seed in range(seeds)
    ]
    centre = np.mean([m["auc"] for m in found])
    covered = sum(m["auc_ci"][0] <= centre <= m["auc_ci"][1] for m in found)
    assert 0.52 < centre < 0.7 and binom.cdf(covered, seeds, 0.95) > 1e-3


def test_epsilon_stays_below_a_randomised_response_and_grows_with_the_targets_signal():
    rng = np.random.default_rng(3)
    values = []
    for _ in range(40):
        masks = torch.from_numpy(rng.random((4, 400)) < 0.5)
        told = torch.from_numpy(rng.random((4, 400)) < math.e / (1 + math.e))
        scores = torch.where(told, masks, ~masks).double()
        values.append([one_run_bound(scores, masks, 1e-6, rng, targets=t).value for t in (1, 4)])
    above = (np.array(values) > 1.0).sum(0)
    assert (binom.sf(above - 1, 40, 0.05) > 1e-3).all()
    assert np.mean(values) > 0.4


def test_epsilon_uses_the_runs_delta_and_only_the_first_row():
    w = worlds(8, 100, gap=6.0)
    scores = w.masks.double()
    finding = LossThreshold().judge(
        LossThreshold().run(
            view(replace(w, signals={"confidence": scores}), delta=1e-2), torch.Generator()
        ),
        view(replace(w, signals={"confidence": scores}), delta=1e-2),
        truth(),
    )
    small = one_run_bound(scores, w.masks, 1e-6, np.random.default_rng(0)).value
    assert finding.measures.epsilon_shown < small
    scores[1:] = 0.0
    assert one_run_bound(scores, w.masks, 1e-6, np.random.default_rng(0)).value == small


def test_area_of_known_gaussians_is_reached_with_many_worlds():
    w = worlds(96, 100, gap=2.0, seed=4)
    signal = w.signals["confidence"] - w.signals["confidence"].mean(1, keepdim=True)
    measures, _ = membership_measures(
        Lira().run(view(replace(w, signals={"confidence": signal})), torch.Generator()).scores,
        w,
        delta=1e-5,
        generator=np.random.default_rng(0),
    )
    low, high = measures.auc_ci
    assert low - 0.03 < norm.cdf(2 / math.sqrt(2)) < high + 0.03


def test_guesses_are_settled_by_the_number_of_records_alone():
    assert guess_counts(100) == [(5, 5), (25, 25), (50, 50)]
    assert guess_counts(3) == [(1, 1)]


def test_the_primary_signal_is_a_rule_not_a_search():
    w = worlds(4, 10)
    both = replace(
        w, signals={"distance": w.signals["confidence"], "confidence": w.signals["confidence"]}
    )
    assert primary_signal(Surface.SYNTHETIC_IMAGES, both) == "confidence"
    assert primary_signal(Surface.SYNTHETIC_IMAGES, both, "distance") == "distance"
    assert primary_signal(Surface.COUNTS, w) == "confidence"  # the only one present
    with pytest.raises(ValueError, match="signal='loss'"):
        primary_signal(Surface.UPDATE, w, "loss")
    with pytest.raises(ValueError, match="no worlds"):
        Lira().run(view(None), torch.Generator())


def test_a_signal_that_says_nothing_gives_way_to_one_that_may():
    """A stranger's "count" that says which classes the client has is the same in every replay."""
    w = worlds(4, 10)
    constant = torch.ones(4, 10)
    both = replace(w, signals={"count": constant, "joint_opening": w.signals["confidence"]})
    assert primary_signal(Surface.PROTOTYPES, both) == "joint_opening"
    assert Lira().nothing_to_read(view(both, Surface.PROTOTYPES)) == ""
    silent = replace(w, signals={"count": constant, "row": w.signals["confidence"]})
    assert primary_signal(Surface.PROTOTYPES, silent) == "count", "a norm compares no record"
    assert Lira().nothing_to_read(view(silent, Surface.PROTOTYPES))


def test_one_world_is_enough_for_a_threshold_and_too_few_for_shadows():
    measures = audit(LossThreshold(), worlds(1, 200, gap=6.0)).measures.to_row()
    low, high = measures["auc_ci"]
    assert low < measures["auc"] < high and high - low < 0.1 and measures["epsilon_shown"] > 0.5
    for attack in ATTACKS:
        if attack.least_worlds > 1:
            with pytest.raises(ValueError, match="worlds=1"):
                audit(attack, worlds(1, 40))


@pytest.mark.parametrize("kind", ["mlp", "logistic"])
def test_a_classifier_that_is_sure_gives_finite_scores(kind):
    """A target far from every shadow model, as where training diverged: the classifier says 1 and 0
    exactly."""
    masks = torch.rand(8, 20, generator=torch.Generator().manual_seed(0)) < 0.5
    features = torch.where(masks, 1.0, -1.0).double().unsqueeze(-1)
    far = torch.tensor([1e9, -1e9]).double().repeat(10).reshape(1, 20, 1)
    scores = shadow_classifier(features, masks, far, torch.zeros(20, dtype=torch.long), kind=kind)
    assert (
        torch.isfinite(scores).all()
        and (scores[0, ::2] > 30).all()
        and (scores[0, 1::2] < -30).all()
    )


def test_scores_that_are_no_numbers_fail_the_attack(monkeypatch):
    monkeypatch.setattr(
        LossThreshold, "score", lambda self, view, name, seed: torch.full((4, 10), math.inf)
    )
    with pytest.raises(ValueError, match="loss_threshold gives scores that are NaN or infinite"):
        LossThreshold().run(view(worlds(4, 10)), torch.Generator())


def test_density_ratio_agrees_with_scipy():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(80, 1))
    b = rng.normal(1, 2, size=(60, 1))
    q = rng.normal(size=(20, 1))
    spread = np.concatenate([a, b]).std(ddof=1)
    logs = []
    for points in (a, b):
        scaled = points[:, 0] / spread
        kde = gaussian_kde(scaled, bw_method=len(points) ** -0.2 / scaled.std(ddof=1))
        logs.append(kde.logpdf(q[:, 0] / spread))
    actual = density_ratio(*(torch.from_numpy(v) for v in (a, b, q)))
    np.testing.assert_allclose(actual, logs[0] - logs[1], rtol=1e-6, atol=1e-8)
    assert density_ratio(torch.ones(5, 2), torch.ones(5, 2), torch.ones(3, 2)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
def test_config_files_build_the_defaults(attack):
    assert build_attacks(compose_config("audit", [f"attack=[{attack.name}]"])) == {
        attack.name: attack
    }


@pytest.mark.parametrize("options", [{"confidence": float("nan")}, {"delta": 1.0}, {"targets": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Lira(**options)


# What counts as nothing to read, and that an attack then says so instead of failing.


NOISE = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (NOISE, ""),
        (NOISE[:, :1].expand(5, 7), SAME_FOR_ALL_RECORDS),
        (NOISE[:1].expand(5, 7), SAME_IN_ALL_REPLAYS),
        (torch.zeros(5, 7), SAME_FOR_ALL_RECORDS),
        (NOISE[:1], ""),  # one replay: nothing to compare with
        (NOISE[:, :1], ""),  # one record: its replays differ
        (NOISE[:1, :1].expand(5, 1), SAME_IN_ALL_REPLAYS),
        (NOISE[:, :1, None].expand(5, 7, 3), SAME_FOR_ALL_RECORDS),
        (
            torch.stack([NOISE, NOISE[:1].expand(5, 7)], -1),
            "",
        ),  # one of two numbers may say something
    ],
)
def test_constant_over_records_or_over_replays(values, why):
    assert why_uninformative(values) == why


def test_one_value_of_one_record_in_one_replay_that_differs_is_enough():
    for flat in (NOISE[:, :1].expand(5, 7), NOISE[:1].expand(5, 7)):
        moved = flat.clone()
        moved[3, 4] += 1e-6
        assert why_uninformative(moved) == ""


def test_of_several_signals_one_that_speaks_is_enough():
    flat = torch.zeros(5, 7)
    assert (
        why_all_uninformative([flat, NOISE]) == ""
        and why_all_uninformative([flat, NOISE[:1].expand(5, 7)]) == SAME_FOR_ALL_RECORDS
    )
    assert why_all_uninformative([]) == ""


def test_each_attack_is_asked_about_what_it_reads():
    """The shadow classifier reads logits, the density attack gradients, LiRA the confidence."""
    w = worlds(logits=True)
    flat = {"confidence": torch.zeros(16, 80), "gradient_norm": w.signals["confidence"]}
    seen = view(replace(w, signals=flat))
    assert SAME_FOR_ALL_RECORDS in Lira().nothing_to_read(seen)
    assert ShadowClassifier().nothing_to_read(seen) == GradientDensity().nothing_to_read(seen) == ""
    other = view(
        replace(
            w, signals={"confidence": w.signals["confidence"], "gradient_norm": torch.zeros(16, 80)}
        )
    )
    assert (
        Lira().nothing_to_read(other) == ""
        and GradientDensity().nothing_to_read(other) == SAME_FOR_ALL_RECORDS
    )
    still = view(replace(w, logits=torch.zeros(16, 80, 3)))
    assert ShadowClassifier().nothing_to_read(still) == SAME_FOR_ALL_RECORDS


def test_scores_that_are_all_alike_get_no_rate():
    class Mute(MembershipAttack):
        name = "mute"

        def score(self, view, name, seed):
            return torch.zeros(view.worlds.masks.shape, dtype=torch.float64)

    seen = view(worlds())
    measures = (
        Mute()
        .judge(Mute().run(seen, torch.Generator().manual_seed(0)), seen, truth())
        .measures.to_row()
    )
    assert measures["status"] == "nothing_to_read" and "scores" in measures["note"]
    assert (measures["n"], measures["worlds"]) == (80, 16) and not {
        "auc",
        "epsilon_shown",
    } & set(measures)


# The most exposed records: found where they are exposed, and not made up where none is.


def game(seed, worlds=64, records=200, exposed=0):
    """Scores of pure noise, but members among the first ``exposed`` records stand out in every
    second replay."""
    rng = np.random.default_rng(seed)
    masks = rng.random((worlds, records)) < 0.5
    scores = rng.normal(size=masks.shape)
    out = masks[:, :exposed] & (rng.random((worlds, exposed)) < 0.5)
    scores[:, :exposed] += 20 * out
    return torch.from_numpy(scores), torch.from_numpy(masks)


def test_two_exposed_records_of_200_are_found_at_their_own_rate():
    covered = 0
    total = []
    for seed in range(40):
        found = measure_worst_records(*game(seed, exposed=2))
        total.append(found["tpr"])
        covered += found["ci"][0] <= 0.5 <= found["ci"][1]
        assert found["share"] == 0.01
    assert abs(np.mean(total) - 0.5) < 0.03  # 64 coins a run: 0.0625 / sqrt(40) standard error
    assert covered >= 35


def test_in_a_null_the_worst_records_are_no_worse_than_the_rate():
    """Chosen and judged on the same replays, the worst two would be named in several per cent of
    replays."""
    runs = [measure_worst_records(*game(seed)) for seed in range(60)]
    assert np.mean([run["tpr"] for run in runs]) < 0.003
    assert sum(run["ci"][0] > 0.001 for run in runs) <= 4


def test_the_interval_is_that_of_clopper_and_pearson():
    """All 200 records named in every replay that they are in, with no false alarm."""
    _, masks = game(0)
    found = measure_worst_records(masks.double(), masks)
    even = torch.arange(64) % 2 == 0
    assert found["tpr"] == 1.0 and found["ci"][1] == 1.0
    trials = [
        n
        for n in range(20, 130)
        if abs(binomtest(n, n).proportion_ci(0.95, "exact").low - found["ci"][0]) < 1e-12
    ]
    assert len(trials) == 1 and trials[0] <= 2 * 64 and even.sum() == 32


def test_a_rate_that_cannot_be_seen_is_not_reported():
    scores, masks = game(0, worlds=8, records=60)
    assert measure_worst_records(scores, masks) is None
    assert measure_worst_records(*game(0, worlds=2, records=2000)) is None


def test_each_exposed_record_is_counted_in_the_replays_that_did_not_choose_it():
    """By hand: in every replay a record that is in is found with its own rate; both halves choose
    the exposed two."""
    scores, masks = game(3, exposed=2)
    found = measure_worst_records(scores, masks)
    threshold = scores[~masks].sort(descending=True).values[int(0.001 * int((~masks).sum()))]
    assert [one["record"] for one in found["records"]] == [0, 1]
    for one in found["records"]:
        inside = masks[:, one["record"]]
        assert one["trials"] == int(inside.sum()) and one["hits"] == int(
            (scores[inside, one["record"]] > threshold).sum()
        )
        exact = binomtest(one["hits"], one["trials"]).proportion_ci(0.95, "exact")
        assert (
            np.allclose(one["ci"], [exact.low, exact.high])
            and one["tpr"] == one["hits"] / one["trials"]
        )
    assert found["tpr"] == sum(one["hits"] for one in found["records"]) / sum(
        one["trials"] for one in found["records"]
    )


def test_in_a_null_no_single_record_looks_exposed():
    """Judged where it was chosen, one record in a run of a null would be found several times
    over."""
    rates = [
        one["tpr"] for seed in range(40) for one in measure_worst_records(*game(seed))["records"]
    ]
    assert len(rates) >= 80 and np.mean(rates) < 0.003


def test_kinds_are_told_apart_at_one_threshold():
    scores, masks = game(5, exposed=4)
    kinds = {"mislabelled": torch.tensor([0, 1, 2, 3]), "near_duplicates": torch.arange(10, 30)}
    found = measure_by_kind(scores, masks, kinds)
    threshold = scores[~masks].sort(descending=True).values[int(0.001 * int((~masks).sum()))]
    assert (
        list(found) == ["mislabelled", "near_duplicates", "ordinary"]
        and found["ordinary"]["n"] == 176
    )
    for kind, at in {**kinds, "ordinary": torch.tensor([*range(4, 10), *range(30, 200)])}.items():
        named = (scores > threshold)[:, at]
        inside = masks[:, at]
        assert found[kind]["tpr"] == float((named & inside).sum() / inside.sum().double())
        assert found[kind]["fpr"] == float((named & ~inside).sum() / (~inside).sum().double())
    assert found["mislabelled"]["auc"] > 0.65 > 0.6 > found["ordinary"]["auc"]
    assert (
        measure_by_kind(scores, masks, {}) is None
        and measure_by_kind(scores[:4], masks[:4], kinds) is None
    )


def test_a_record_that_is_named_in_or_out_is_counted_in_both():
    """One record stands out whenever its coin of its own says so, whether it is in or not: as often
    out as in."""
    rng = np.random.default_rng(5)
    scores, masks = game(5, worlds=400, records=1200)
    loud = torch.from_numpy(rng.random(400) < 0.4)
    scores[:, 7] += 20 * loud
    (one,) = [one for one in measure_worst_records(scores, masks)["records"] if one["record"] == 7]
    assert one["hits"] == int((loud & masks[:, 7]).sum()) and one["wrong"] == int(
        (loud & ~masks[:, 7]).sum()
    )
    assert one["trials"] + one["out"] == 400


QUERYING = [Lira, Rmia, OfflineRmia, Base]


@pytest.mark.parametrize("attack", QUERYING, ids=lambda a: a.name)
def test_more_queries_say_more_and_one_is_the_record_itself(attack):
    rng = np.random.default_rng(3)
    plain = worlds(24, 120, gap=0.7)
    more = plain.signals["confidence"].unsqueeze(-1) + torch.from_numpy(
        rng.normal(size=(24, 120, 9))
    )
    more[..., 1:] += 1.0 * plain.masks.unsqueeze(-1)
    more[..., 0] = plain.signals["confidence"]
    asked = replace(plain, queries={"confidence": more})
    areas = {}
    for queries in ("auto", 9, 3, 1):
        areas[queries] = audit(attack(queries=queries), asked).measures.auc
    assert areas["auto"] == areas[9] > areas[3] > areas[1]
    assert areas[1] == audit(attack(), plain).measures.auc
    for wrong in (0, True, 1.5, "all"):
        with pytest.raises(ValueError, match="queries="):
            attack(queries=wrong)
    with pytest.raises(ValueError, match=r"\(K, n, q\)"):
        replace(plain, queries={"confidence": more[:3]})
