"""The noised sums of a run are read as they were made, and audits that read them replay less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from attacks.inversion.copy_detection import CopyDetection
from attacks.measures import GuaranteeMeasures
from attacks.membership.lira import Lira
from attacks.membership.noised_sums import NoisedSumAttack
from attacks.membership.threshold import LossThreshold
from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing import noised_sums, pipeline
from privdd.auditing.noised_sums import (
    NotPerRecord,
    collect_noised_sums,
    federation_count,
    is_closed_form,
    needs_releases,
    replay_count,
    score_noised_sums,
)
from privdd.auditing.pipeline import AuditState, audit_experiment, membership_game_of
from privdd.cli.build import build_experiment
from privdd.federated import channel
from privdd.federated.experiment import Experiment
from privdd.federated.noise_log import ObservedRound
from privdd.federated.simulation import run_round, start_training
from privdd.privacy.noise import SeededNoise, noise_for
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny, tiny_config

SMALL = (
    "audit.records=20",
    "audit.worlds=5",
    "audit.processed_worlds=2",
    "audit.transcripts=30",
    "audit.victims=0",
    "audit.federations=0",
    "audit.guarantee.runs=20",
    "audit.guarantee.slow_runs=20",
    "audit.guarantee.images=1",
    "audit.waive.labels=not of interest here",
    "audit.waive.global_model=not of interest here",
)
ATTACKS = {"lira": Lira(), "noised_reads": NoisedSumAttack()}
EVERY = "privacy.sampling_probability=1"
PROFILES = {
    "feddm_dp": ("feddm_dp", EVERY),
    "sampled": ("feddm_dp", "privacy.sampling_probability=0.5"),
    "fedlgd_dp": ("fedlgd_dp", EVERY),
    "fedrd_dp": ("fedrd_dp", "model.width=4", EVERY),
    "by class": (
        "feddm",
        "privacy=clipped_gradient",
        "algo.start=noise",
        "privacy.sampling_probability=0.5",
        "algo.matching.iterations=3",
    ),
}


class Loud(SeededNoise):
    """No noise at all; coins as they are."""

    def normal(self, shape):
        return torch.zeros(shape)


def heard(profile: str) -> tuple[Experiment, list[ObservedRound], tuple]:
    """A run whose audited client has half of its records in by coins: the experiment, what it
    released, what is needed to read it."""
    algo, *settings = PROFILES[profile]
    experiment = build_experiment(tiny_config(algo, *settings, *SMALL, command="audit"))
    plan = experiment.plan
    game = membership_game_of(experiment)
    said = list[ObservedRound]()
    whole = experiment.shards[plan.victim]
    shards = list(experiment.shards)
    shards[plan.victim] = game.shard_of_replay(whole, 0)
    progress = start_training(plan, experiment.new_ledger())
    while progress.round < plan.method.rounds:
        progress = run_round(plan, progress, shards, Engine(), None, said)[0]
    return experiment, said, (plan, whole, game, shards[plan.victim].train, said)


@pytest.mark.nightly(but=["feddm_dp"])
@pytest.mark.parametrize("profile", ["feddm_dp", "fedlgd_dp", "fedrd_dp"])
def test_without_noise_a_run_s_sums_are_its_members(profile, monkeypatch):
    """What was released less the other records' part is what the members add: A y = A A^T z, for
    the coins of the run."""
    monkeypatch.setattr(
        channel, "noise_for", lambda source, keys: Loud(noise_for(source, keys).generator)
    )
    _, _, held = heard(profile)
    sums = collect_noised_sums(*held)
    mask = held[2].masks[0].numpy().astype(float)
    assert {read.name for read in sums.releases} == {"embedding", "class_counts"}
    assert len({read.records.tobytes() for read in sums.releases}) > 2  # classes apart
    for read in (
        sums.releases
    ):  # each released number is rounded by half a step of 2**-16 of the noise or less
        assert read.moment == pytest.approx(
            read.precision @ mask[read.records], rel=4e-4, abs=4e-4 * read.precision.max()
        )


def test_coins_that_are_tossed_class_by_class_are_told(monkeypatch):
    """Every step of ``privacy=clipped_gradient`` draws from each class by itself: what the sampled
    others add is known."""
    monkeypatch.setattr(
        channel, "noise_for", lambda source, keys: Loud(noise_for(source, keys).generator)
    )
    _, said, held = heard("by class")
    sums = collect_noised_sums(*held)
    inside = held[2].masks[0].numpy()
    drawn = [read for read in sums.releases if np.abs(read.precision).max() > 0]
    assert len(drawn) >= len(said) and {read.name for read in drawn} == {"synthetic_gradient"}
    # of the members, only those that were drawn: one of all subsets of them explains the release
    for read in drawn:
        members = np.flatnonzero(inside[read.records])
        z = np.array(
            [[bits >> k & 1 for k in range(len(members))] for bits in range(2 ** len(members))],
            float,
        )
        gaps = np.abs(z @ read.precision[members] - read.moment).max(1)
        assert gaps.min() < 1e-3 * read.precision.max()


def test_with_noise_what_is_left_is_standard_normal():
    _, _, held = heard("feddm_dp")
    sums = collect_noised_sums(*held)
    mask = held[2].masks[0].numpy().astype(float)
    left = []
    for read in sums.releases:
        values, vectors = np.linalg.eigh(read.precision)
        keep = values > 1e-6 * values.max()
        left.append(
            (vectors.T @ (read.moment - read.precision @ mask[read.records]))[keep]
            / np.sqrt(values[keep])
        )
    everything = np.concatenate(left)
    assert len(everything) > 100 and kstest(everything, "norm").pvalue > 1e-3
    assert sums.usual_noise_ratio("embedding") == pytest.approx(1, abs=0.05)


def test_who_was_sampled_is_told_by_the_run_s_own_coins(monkeypatch):
    """Under Poisson sampling: the released sum less that of sampled others is that of the sampled
    members."""
    monkeypatch.setattr(
        channel, "noise_for", lambda source, keys: Loud(noise_for(source, keys).generator)
    )
    _, said, held = heard("sampled")
    _, _, game, trained, _ = held
    first_map = [
        read
        for read in collect_noised_sums(*held[:4], said[:1]).releases
        if read.name == "embedding"
    ][: len(set(game.audited_records.y.tolist()))]
    taken = next(coins for name, coins in said[0].samples if name == "embedding")
    assert len(taken) == len(trained)
    inside = set(trained.ids[taken].tolist())
    drawn = np.array([int(one) in inside for one in game.audited_records.ids], dtype=float)
    assert 0 < drawn.sum() < game.masks[0].sum()
    for read in first_map:
        assert read.probability == 0.5
        assert read.moment == pytest.approx(
            read.precision @ drawn[read.records], rel=1e-4, abs=1e-4 * read.precision.max()
        )


@pytest.mark.parametrize(
    ("algo", "settings", "read"),
    [
        ("feddm_dp", (), True),
        ("fedlgd_dp", (), True),
        ("dp_head", (), True),
        ("feddm", (), False),
        ("feddm", ("privacy=aggregate_clip", "algo.start=noise"), False),
        ("fedfed_dp", (), False),
        ("fedavg", ("privacy=dpsgd",), False),
        ("fedavg", ("privacy=client",), False),
        ("feddm_dp", ("privacy.relation=zero_out",), False),
    ],
)
def test_which_runs_are_read(algo, settings, read):
    experiment = tiny(algo, *settings)
    assert is_closed_form(experiment.plan) == read
    assert needs_releases(experiment, ATTACKS) == (read and experiment.privacy.unit == "record")
    assert not needs_releases(experiment, {"lira": Lira()})


def of_analyst(found: AuditState) -> list[Finding]:
    return [f for f in found.findings if f.attack == "noised_reads"]


def seen(found: AuditState) -> int:
    """Replays that attacks on what was sent had."""
    return next(f.measures.worlds for f in found.findings if f.attack == "lira")


@pytest.fixture(autouse=True)
def without_guarantee_tests(monkeypatch):
    """They cost most of a small audit, and are tested elsewhere."""
    monkeypatch.setattr(pipeline, "guarantee_tests", lambda subject: [])
    monkeypatch.setattr(pipeline, "run_log_tests", lambda subject, record: [])


def audited(folder: Path, *more: str, attacks=ATTACKS) -> AuditState:
    return audit_experiment(
        build_experiment(tiny_config("feddm_dp", EVERY, *SMALL, *more, command="audit")),
        attacks,
        RunFolder(folder),
    )


def test_an_audit_reads_the_sums_and_replays_a_few(tmp_path, monkeypatch):
    found = audited(tmp_path, attacks={**ATTACKS, "copy_detection": CopyDetection()})
    (reads,) = of_analyst(found)
    assert (reads.adversary, reads.measures.worlds, reads.measures.n) == (
        Adversary.ANALYST,
        30,
        20,
    )
    assert seen(found) == 2
    notes = [f.measures.note for f in found.findings if f.attack == "lira"]
    assert all("2 of 5 replays (audit.processed_worlds)" in note for note in notes)
    pictures = [f.measures.note for f in found.findings if f.family != Family.MEMBERSHIP]
    assert pictures and not any("replays" in note for note in pictures)
    assert (
        "processed" not in reads.measures.note
        and "drawn by the mechanism's law" in reads.measures.note
    )
    # a run that was trained before is listened to again
    (tmp_path / "findings.json").unlink(missing_ok=True)
    again = audited(tmp_path)
    assert [{**f.measures.to_row(), "seconds": 0} for f in of_analyst(again)] == [
        {**reads.measures.to_row(), "seconds": 0}
    ]
    _, said, (_, whole, *_) = heard("feddm_dp")
    assert score_noised_sums(found.finished_run, whole, said) is not None
    assert score_noised_sums(found.finished_run, whole, said[:-1]) is None  # a round was not heard
    assert (
        score_noised_sums(
            found.finished_run,
            whole,
            [*said[:-1], replace(said[-1], outputs=said[-1].outputs[:-1])],
        )
        is None
    )
    monkeypatch.setattr(noised_sums, "POST_PROCESSING", "another reason")
    assert (
        score_noised_sums(found.finished_run, whole, said) is None
    )  # as if something else had been sent


def test_without_the_attack_or_its_transcript_all_replays_are_run(tmp_path, monkeypatch):
    whole = audited(tmp_path, attacks={"lira": Lira()})
    assert seen(whole) == 5 and not any("processed" in f.measures.note for f in whole.findings)
    (tmp_path / "findings.json").unlink(missing_ok=True)
    # as for noise of the operating system
    monkeypatch.setattr(pipeline, "recover_noise_log", lambda *a: None)
    found = audited(tmp_path)
    assert not of_analyst(found) and seen(found) == 5


def test_with_other_noise_than_stated_the_sums_are_read_and_all_replays_are_run(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        channel, "noise_for", lambda source, keys: Loud(noise_for(source, keys).generator)
    )
    found = audited(tmp_path)
    (reads,) = of_analyst(found)
    assert reads.measures.auc > 0.99 and seen(found) == 5


@pytest.mark.nightly(cases=["said0", "said1"])
@pytest.mark.parametrize(
    "said", [{"refuted": True}, {"untested": "noise of the operating system"}, {}]
)
def test_replays_are_left_out_only_where_tests_looked_at_the_runs_noise_and_samples(
    said, tmp_path, monkeypatch
):
    """A sampler at another rate, or noise that two rounds share, changes no size that the closed
    form could see."""
    test = Finding(
        Surface.SYNTHETIC_IMAGES,
        "t0_noise",
        Family.GUARANTEE,
        Adversary.ANALYST,
        GuaranteeMeasures(diagnostics=said),
    )
    monkeypatch.setattr(pipeline, "run_log_tests", lambda subject, record: [test])
    monkeypatch.setattr(pipeline, "without_single_ratios", lambda subject, rest: [])
    found = audited(tmp_path)
    assert of_analyst(found) and seen(found) == (5 if said else 2)


@pytest.mark.parametrize("more", [-1, 1])
def test_local_work_that_asks_for_other_queries_with_other_records_is_not_read(more, monkeypatch):
    """A method whose releases depend on which records it has: fewer of them, or samples that are
    not those of the run."""
    _, said, (plan, whole, game, trained, _) = heard("sampled")
    if more > 0:
        # one sample more than the run drew
        short = [replace(one, samples=one.samples[:-1]) for one in said]
        wrong = "cannot be gone through"
    else:
        short = [replace(one, outputs=(*one.outputs, one.outputs[-1])) for one in said]
        wrong = "not asked for again"
    with pytest.raises(NotPerRecord, match=wrong):
        collect_noised_sums(plan, whole, game, trained, short)


def test_replays_are_as_many_as_attacks_need():
    from attacks.membership.multi_round import Fusion

    experiment = build_experiment(tiny_config("feddm_dp", *SMALL, command="audit"))
    assert replay_count(experiment, ATTACKS) == 2
    assert replay_count(experiment, {**ATTACKS, "fusion": Fusion()}) == 5
    assert replay_count(experiment, {"lira": Lira()}) == 5


def test_federations_are_left_out_only_where_attacks_cover_all_surfaces_without_them():
    settings = [one for one in SMALL if "federations" not in one and "waive" not in one]
    experiment = build_experiment(
        tiny_config("feddm_dp", *settings, "audit.federations=4", command="audit")
    )
    assert federation_count(experiment, {"lira": Lira()}) == 4
    assert federation_count(experiment, ATTACKS) == 4  # LiRA needs replays to read the global model
    assert federation_count(experiment, {**ATTACKS, "loss_threshold": LossThreshold()}) == 0
    open_run = build_experiment(
        tiny_config("fedavg", *settings, "audit.federations=4", command="audit")
    )
    assert federation_count(open_run, {**ATTACKS, "loss_threshold": LossThreshold()}) == 4
