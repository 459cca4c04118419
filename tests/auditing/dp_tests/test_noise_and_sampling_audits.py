"""Tests of the audits of a run's own noise and sampling."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from torch import Tensor

from attacks.types import Family, Finding
from privdd.auditing.dp_tests.logged_releases import logged_releases
from privdd.auditing.dp_tests.noise_audit import NOISE_TEST, noise_finding
from privdd.auditing.dp_tests.outcomes import p_value_limit
from privdd.auditing.dp_tests.runner import subject_of_sums
from privdd.auditing.dp_tests.sampling_audit import (
    SAMPLING_TEST,
    next_draw_outcome,
    sampling_outcomes,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.dp_tests.summed_noise import (
    share_count_outcome,
    sum_noise_outcomes,
    sum_residuals,
)
from privdd.auditing.findings import findings_json
from privdd.auditing.pipeline import audit_experiment
from privdd.auditing.replay import recover_noise_log, scale_noise
from privdd.cli.build import build_experiment
from privdd.core.types import flatten_values
from privdd.distillation import private_matching
from privdd.federated import channel
from privdd.federated.channel import ClientContext
from privdd.federated.noise_log import NoiseLog, ReleaseLog, RoundLog, SamplingLog
from privdd.federated.settings import GuaranteeBudget
from privdd.federated.simulation import Plan, run_round, start_training
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import ClientLevel
from privdd.privacy.mechanisms import clipped_sum as clipped_sum_module
from privdd.privacy.mechanisms.noise_share import ClientShare
from privdd.privacy.noise import Noise, SeededNoise, noise_for
from privdd.runtime.engine import Engine
from privdd.runtime.files import read_json
from privdd.runtime.run_folder import RunFolder
from privdd.selftest_faults import noise_faults as faults

# Sampling that is not done by ``ctx.sample`` is judged by how many records contribute to the
# releases.
from tests.auditing.dp_tests.subjects import IdleAttack
from tests.conftest import SmallAudit
from tests.federations import tiny, tiny_config

HELD = 100
Q = 0.1
RELEASES = 20
Size = Callable[[np.random.Generator], int]
WAYS: dict[str, tuple[Size, bool]] = {
    "Poisson": (lambda g: int(g.binomial(HELD, Q)), True),
    "everybody": (lambda g: HELD, False),
    "twice the rate": (lambda g: int(g.binomial(HELD, 2 * Q)), False),
    "batches of one size": (lambda g: 10, False),
}


@pytest.mark.parametrize("cells", [(None,), ("label:0", "label:1")])
@pytest.mark.parametrize("way", WAYS)
def test_a_methods_own_sampling_is_seen_in_its_releases(
    way: str, cells: tuple[str | None, ...]
) -> None:
    size, sound = WAYS[way]
    watch = RoundLog(0, 0, True, HELD)
    g = np.random.default_rng(0)
    for _ in range(RELEASES):
        total = size(g)
        parts = [total] if len(cells) == 1 else [total // 3, total - total // 3]
        watch.releases += [ReleaseLog("dpsgd", cell, part) for cell, part in zip(cells, parts)]
    smallest = min(look.p for look in sampling_outcomes([watch], "dpsgd", Q))
    assert (smallest > 1e-3) if sound else (smallest < 1e-4)


DRAWS: dict[str, tuple[Callable[[int], list[int]], bool]] = {
    "those that were drawn": (lambda taken: [taken], True),
    "some of them, in two releases": (lambda taken: [taken // 2, taken - taken // 2], True),
    "one more than was drawn": (lambda taken: [taken + 1], False),
    "the same ones twice": (lambda taken: [taken, taken], False),
    "none: the next draw is used": (lambda taken: [], False),
}


@pytest.mark.parametrize("way", DRAWS)
def test_releases_are_of_those_who_were_drawn(way: str) -> None:
    of, sound = DRAWS[way]
    watch = RoundLog(0, 0, True, HELD)
    g = np.random.default_rng(0)
    for _ in range(RELEASES):
        taken = torch.from_numpy(g.random(HELD) < Q)
        watch.on_sample("dpsgd", Q, taken)
        watch.releases += [ReleaseLog("dpsgd", None, part) for part in of(int(taken.sum()))]
    smallest = min(look.p for look in sampling_outcomes([watch], "dpsgd", Q))
    assert smallest > 1e-3 if sound else smallest == 0


def drawn_after(
    times: float, seed: int, draws: int = 200, clients: int = 2
) -> list[tuple[RoundLog, SamplingLog]]:
    """Draws at rate Q, in which a record that was taken is taken the next time at so many times
    that rate."""
    g = np.random.default_rng(seed)
    made = list[tuple[RoundLog, SamplingLog]]()
    for client in range(clients):
        watch = RoundLog(0, client, client == 0, HELD)
        taken = g.random(HELD) < Q
        for _ in range(draws):
            watch.on_sample("dpsgd", Q, torch.from_numpy(taken))
            taken = g.random(HELD) < np.where(taken, times * Q, Q * (1 - times * Q) / (1 - Q))
        made += [(watch, coins) for coins in watch.samples]
    return made


def test_a_draw_that_knows_of_the_one_before_is_told_from_fresh_coins() -> None:
    fresh = [next_draw_outcome(drawn_after(1.0, seed, 50), Q).p for seed in range(200)]
    assert sum(p < 0.05 for p in fresh) <= 20 and min(fresh) > 1e-4
    assert all(
        next_draw_outcome(drawn_after(times, 1), Q).p < 1e-6 for times in (0.0, 2 / 3, 3 / 2)
    )
    assert all(next_draw_outcome(drawn_after(1.0, 0, draws), Q).p == 1.0 for draws in (0, 1))


# Faults planted in a run that is otherwise audited as usual: each must end in a contradiction, and
# none without one.


SMALL = (
    "audit.records=20",
    "audit.worlds=1",
    "audit.victims=0",
    "audit.guarantee.runs=20",
    "audit.guarantee.slow_runs=20",
    "audit.guarantee.images=1",
)
# where no noise or coin is judged, what each record can do is tried on fewer
FEWER = "data.limit=90"
PROFILES = {
    "client": ("fedavg", "privacy=client"),
    "dpsgd": ("fedavg", "privacy=dpsgd", "privacy.sampling_probability=0.1"),
    "feddm_dp": ("feddm_dp",),
    "fedrd_dp": ("fedrd_dp", "model.width=4"),
    "fedlgd_dp": ("fedlgd_dp",),
    "fedfed_dp": ("fedfed_dp", "privacy.sampling_probability=0.2"),
}
Plant = Callable[[pytest.MonkeyPatch], None]
# of tests.conftest
SHARED = {
    "client": "fedavg_client",
    "dpsgd": "fedavg_dpsgd",
    "feddm_dp": "feddm_dp",
    "fedfed_dp": "fedfed_dp",
}
Healthy = Callable[[str], tuple[Path, list[Finding]]]


def audit_whole(profile: str, folder: Path, *more: str) -> tuple[str, list[Finding]]:
    """(verdict, guarantee findings) of one small audit."""
    algo, *settings = PROFILES[profile]
    config = tiny_config(algo, *settings, *SMALL, *more, command="audit")
    found = audit_experiment(build_experiment(config), {"idle": IdleAttack()}, RunFolder(folder))
    return findings_json(found)["verdict"], [
        f for f in found.findings if f.family == Family.GUARANTEE
    ]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """profile -> (folder, findings of its own noise and sampling) of its run without a fault, made
    once; whoever writes takes a copy."""

    @cache
    def run(profile: str) -> tuple[Path, list[Finding]]:
        folder = tmp_path_factory.mktemp(profile)
        return folder, audited_by_itself(profile, folder)[1]

    return run


@pytest.mark.nightly(cases=["feddm_dp", "fedlgd_dp", "fedrd_dp", "dpsgd", "fedfed_dp"])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_healthy_run_is_consistent(
    profile: str, audited: Callable[[str], SmallAudit], tmp_path: Path
) -> None:
    if profile in SHARED:
        data = read_json(audited(SHARED[profile]).path / "findings.json")
        assert data["verdict"] == "consistent", [
            (f["attack"], f.get("note")) for f in data["findings"]
        ]
    else:
        verdict, findings = audit_whole(profile, tmp_path, FEWER)
        assert verdict == "consistent", [f.measures.note for f in findings]


def audited_by_itself(profile: str, folder: Path, *more: str) -> tuple[str, list[Finding]]:
    """The same by the tests of the run's own ledger, noise and sampling alone: no other one, and
    each takes longer, can be what says contradiction."""
    with patch("privdd.auditing.pipeline.guarantee_tests", return_value=[]):
        return audit_whole(profile, folder, *more)


@dataclass(frozen=True)
class Scaled:
    """Noise of another size than it should have."""

    inner: Noise
    size: float

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return self.inner.normal(shape) * self.size

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        return self.inner.laplace(shape) * self.size

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return self.inner.uniform(shape)


def of_size(size: float) -> Plant:
    return lambda patch: patch.setattr(channel, "noise_for", lambda *a: Scaled(noise_for(*a), size))


def one_stream(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(channel, "noise_for", lambda *a: SeededNoise(torch.Generator().manual_seed(3)))


def by_public_seed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(channel, "noise_for", lambda source, keys: noise_for("seed", keys))


def one_tensor_bare(patch: pytest.MonkeyPatch) -> None:
    """The last tensor of each release has no noise."""
    send = channel.ClientContext.mechanism

    def bare(self: Any, name: str, contributions: Any, **kw: Any) -> Any:
        made = self.mechanisms[name]

        class Bare(type(made)):  # type: ignore[misc]
            def __call__(self, value: Any, noise: Any) -> Any:
                output = super().__call__(value, noise)
                last = sorted(output.value)[-1]
                return replace(output, value={**output.value, last: output.exact[last]})

        self.mechanisms = {**self.mechanisms, name: Bare(**vars(made))}
        return send(self, name, contributions, **kw)

    patch.setattr(channel.ClientContext, "mechanism", bare)


# planted where local work asks a mechanism; not where the channel does
BARE = "one tensor without noise"
NOISE_FAULTS = {
    "no noise": (of_size(0.0), ()),
    "0.9 of the noise": (of_size(0.9), ()),
    "one stream for all rounds and clients": (one_stream, ()),
    "the public seed in place of the operating system": (
        by_public_seed,
        ("privacy.noise_source=os",),
    ),
    BARE: (one_tensor_bare, ()),
}


@pytest.mark.nightly(
    cases=[
        "client-0.9 of the noise",
        "client-the public seed in place of the operating system",
        "dpsgd-0.9 of the noise",
        "dpsgd-no noise",
        "dpsgd-the public seed in place of the operating system",
        "fedlgd_dp-no noise",
        "fedrd_dp-no noise",
        "feddm_dp-0.9 of the noise",
        "feddm_dp-one stream for all rounds and clients",
        "feddm_dp-the public seed in place of the operating system",
        "feddm_dp-one tensor without noise",
    ]
)
@pytest.mark.parametrize(
    ("profile", "fault"),
    [
        (p, f)
        for p in ("client", "dpsgd", "feddm_dp")
        for f in NOISE_FAULTS
        if (p, f) != ("client", BARE)
    ]
    + [(p, "no noise") for p in ("fedrd_dp", "fedlgd_dp", "fedfed_dp")],
)
def test_faulty_noise_is_a_contradiction(
    profile: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, settings = NOISE_FAULTS[fault]
    plant(monkeypatch)
    verdict, findings = audited_by_itself(profile, tmp_path, *settings)
    assert verdict == "contradiction"
    assert any(f.attack == NOISE_TEST and f.diagnostics.get("refuted") for f in findings)


def test_noise_of_the_operating_system_is_consistent(tmp_path: Path, system_bytes: None) -> None:
    found = noise_of(audited_by_itself("feddm_dp", tmp_path, "privacy.noise_source=os")[1])
    assert "refuted" not in found and "untested" not in found and "p_value" in found


def coins_of(draw: Callable[[float, int, Any], Tensor]) -> Plant:
    return lambda patch: patch.setattr(channel, "draw_coins", draw)


def not_heeded(patch: pytest.MonkeyPatch) -> None:
    """A method that asks who is drawn, and takes everybody."""
    honest = channel.ClientContext.sample
    patch.setattr(channel.ClientContext, "sample", lambda *asked: torch.ones_like(honest(*asked)))


SAMPLING_FAULTS: dict[str, Plant] = {
    "everyone": coins_of(faults._take_everyone),
    "twice the rate": coins_of(faults._double_rate),
    "batches of one size": coins_of(faults._fixed_batch_size),
    "one record always": coins_of(faults._always_take_last),
    "the same records always": coins_of(faults._always_take_same),
    "a draw that is not heeded": not_heeded,
}


@pytest.mark.nightly(
    cases=[
        "dpsgd-batches of one size",
        "dpsgd-everyone",
        "dpsgd-a draw that is not heeded",
        "fedfed_dp-everyone",
        "fedfed_dp-a draw that is not heeded",
        "fedfed_dp-twice the rate",
        "fedfed_dp-batches of one size",
        "fedfed_dp-one record always",
        "fedfed_dp-the same records always",
    ]
)
@pytest.mark.parametrize("fault", SAMPLING_FAULTS)
@pytest.mark.parametrize("profile", ["dpsgd", "fedfed_dp"])
def test_faulty_sampling_is_a_contradiction(
    profile: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SAMPLING_FAULTS[fault](monkeypatch)
    verdict, findings = audited_by_itself(profile, tmp_path)
    assert verdict == "contradiction"
    assert any(f.attack == SAMPLING_TEST and f.diagnostics.get("refuted") for f in findings)


def embeddings(factor: Callable[[int], float]) -> Plant:
    """Every embedding times a number that depends on how many records the client has."""
    honest = private_matching.record_embeddings
    return lambda patch: patch.setattr(
        private_matching,
        "record_embeddings",
        lambda embed, x, chunk: honest(embed, x, chunk) * factor(len(x)),
    )


def centred(patch: pytest.MonkeyPatch) -> None:
    honest = private_matching.record_embeddings

    def around_the_mean(embed: Any, x: Tensor, chunk: int) -> Tensor:
        rows = honest(embed, x, chunk)
        return rows - rows.mean(0)

    patch.setattr(private_matching, "record_embeddings", around_the_mean)


SENSITIVITY_FAULTS: dict[str, Plant] = {
    "a hundredth if the number of records is odd": embeddings(lambda n: 0.01 if n % 2 else 1.0),
    "50 over the number of records": embeddings(lambda n: 50 / max(n, 1)),
    "centred by the client's own mean": centred,
}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", SENSITIVITY_FAULTS)
def test_faulty_sensitivity_is_a_contradiction(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SENSITIVITY_FAULTS[fault](monkeypatch)
    verdict, findings = audit_whole("feddm_dp", tmp_path, FEWER)
    assert verdict == "contradiction"
    assert any(f.measures.to_row().get("kappa", 0) > 1.01 for f in findings)


def of_the_sum(patch: pytest.MonkeyPatch) -> None:
    """The sum of the records' contributions is clipped in place of each: C is then not what one
    record can do."""

    def clipped(value: Any, clip_norm: float, *more: Any, **settings: Any) -> Any:
        total = {name: t.detach().float().sum(0, keepdim=True) for name, t in value.items()}
        size = max(1, len(next(iter(value.values()))))
        return honest(total, clip_norm * size, *more, **settings)

    honest = clipped_sum_module.clipped_sum
    patch.setattr(clipped_sum_module, "clipped_sum", clipped)


@pytest.mark.nightly
@pytest.mark.parametrize("profile", ["dpsgd", "feddm_dp"])
def test_clipping_the_mean_is_a_contradiction(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_the_sum(monkeypatch)
    assert audit_whole(profile, tmp_path, FEWER)[0] == "contradiction"


@dataclass(frozen=True)
class Brought(Mechanism):
    """A client-level mechanism as README shows one, with a switch for each fault."""

    noise_multiplier: float = 1.0
    clip_norm: float = 1.0
    size: float = 1.0
    clips: bool = True
    shows: bool = True
    own_stream: bool = False

    def __call__(self, value: Any, noise: Any) -> Output:
        value = {n: t.nan_to_num(0, 0, 0) for n, t in value.items()}
        norm = float(torch.stack([t.norm() for t in value.values()]).norm())
        exact = {
            n: t / max(1.0, norm / self.clip_norm) if self.clips else t for n, t in value.items()
        }
        std = self.noise_multiplier * self.clip_norm
        noise = SeededNoise(torch.Generator().manual_seed(5)) if self.own_stream else noise
        step = 2.0 ** (math.floor(math.log2(std)) - 12)
        exact = {n: (t / step).trunc() * step for n, t in exact.items()}
        drawn = {
            n: (std * self.size * noise.normal(tuple(t.shape)).to(t) / step).round() * step
            for n, t in exact.items()
        }
        return Output(
            {n: exact[n] + drawn[n] for n in exact},
            dpa.GaussianDpEvent(self.noise_multiplier),
            noise_std=std,
            sensitivity=self.clip_norm,
            exact=exact if self.shows else None,
            flags={"unit:client": True},
        )


BROUGHT = {
    "sound": ({}, "consistent"),
    "half the noise": ({"size": 0.5}, "contradiction"),
    "no noise": ({"size": 0.0}, "contradiction"),
    "the same noise every round": ({"own_stream": True}, "contradiction"),
    "never clips": ({"clips": False}, "contradiction"),
    "shows nothing": ({"shows": False}, "untested"),
}


@pytest.mark.nightly(cases=["no noise", "sound", "the same noise every round"])
@pytest.mark.parametrize("name", BROUGHT)
def test_a_mechanism_is_judged_by_what_it_declares(name: str, tmp_path: Path) -> None:
    settings, expected = BROUGHT[name]
    algo, *more = PROFILES["client"]
    experiment = build_experiment(tiny_config(algo, *more, *SMALL, FEWER, command="audit"))
    plan = replace(experiment.plan, mechanisms={"update": Brought(**settings)})
    found = audit_experiment(
        replace(experiment, plan=plan), {"idle": IdleAttack()}, RunFolder(tmp_path)
    )
    result = findings_json(found)
    assert result["verdict"] == expected
    said = next(row["untested"] for row in result["surfaces"] if row["surface"] == "update")
    assert bool(said) == (expected == "untested")
    if said:
        parts = ["update, noise", "update, joint noise", "update, sensitivity"]
        assert [line.split(":")[0] for line in said] == parts


@pytest.mark.nightly
def test_residuals_come_back_from_worker_processes(tmp_path: Path, healthy: Healthy) -> None:
    _, found = audited_by_itself("dpsgd", tmp_path, "engine=processes", "engine.workers=1")
    assert noise_of(found) == noise_of(healthy("dpsgd")[1]) and "p_value" in noise_of(found)


def test_a_run_that_was_trained_before_has_its_noise_drawn_again(
    tmp_path: Path, healthy: Healthy
) -> None:
    folder, before = healthy("dpsgd")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "findings.json").unlink(missing_ok=True)
    _, after = audited_by_itself("dpsgd", tmp_path)
    assert noise_of(before) == noise_of(after) and "p_value" in noise_of(after)


def test_the_note_counts_every_number_whose_noise_was_looked_at(healthy: Healthy) -> None:
    """One release of all parameters by each client in each round."""
    found = healthy("client")[1]
    note = next(f.measures.note for f in found if f.attack == NOISE_TEST)
    plan = build_experiment(tiny_config("fedavg", "privacy=client", *SMALL, command="audit")).plan
    server = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    size = sum(value.numel() for value in flatten_values(server).values())
    numbers = int(re.search(r"in (\d+) numbers", note)[1])  # type: ignore[index]
    assert numbers == size * plan.method.rounds * plan.problem.clients > 0


def noise_of(findings: list[Finding]) -> dict[str, Any]:
    return next(f.diagnostics for f in findings if f.attack == NOISE_TEST)


def test_noise_that_cannot_be_drawn_again_is_not_looked_at(
    tmp_path: Path, system_bytes: None
) -> None:
    source = "privacy.noise_source=os"
    assert audit_whole("client", tmp_path, source)[0] == "consistent"
    verdict, findings = audit_whole("client", tmp_path, source)
    assert verdict == "untested"
    (noise,) = [f for f in findings if f.attack == NOISE_TEST]
    assert "2 of 2 rounds" in noise.measures.note


def test_another_runs_residuals_are_not_taken_for_this_ones(
    tmp_path: Path, healthy: Healthy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that comes out differently when it is repeated is not the round that happened."""
    shutil.copytree(healthy("client")[0], tmp_path, dirs_exist_ok=True)
    one_stream(monkeypatch)
    assert audit_whole("client", tmp_path)[0] == "untested"


def test_nothing_is_trained_again_where_all_was_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is missing is repeated, and only noise that can be drawn again."""
    experiment = tiny("fedavg", "privacy=client")
    plan = experiment.plan
    record = NoiseLog(experiment.plan.victim)
    progress = start_training(plan, experiment.new_ledger())
    while progress.round < plan.method.rounds:
        progress, _, _ = run_round(plan, progress, experiment.shards, Engine(), record=record)
    noted = dict(record.rounds)
    assert set(noted) == {(t, k) for t in range(plan.method.rounds) for k in range(3)}
    del record.rounds[1, 0]
    recover_noise_log(
        plan, experiment.shards, Engine(), experiment.new_ledger(), progress.ledger, record
    )
    assert record.rounds[1, 0].releases[0].squares == noted[1, 0].releases[0].squares
    monkeypatch.setattr(
        "privdd.auditing.replay.run_round", lambda *a, **k: pytest.fail("trained again")
    )
    recover_noise_log(
        plan, experiment.shards, Engine(), experiment.new_ledger(), progress.ledger, record
    )
    lost = NoiseLog(plan.victim)
    secret = replace(plan, noise_source="os")
    recover_noise_log(
        secret, experiment.shards, Engine(), experiment.new_ledger(), progress.ledger, lost
    )
    assert lost.rounds == {}


# T0 of sums: a client that leaves its noise out is found, and shares that are too few for the
# stated noise.


torch.set_num_threads(1)
SUMMED = (
    "fedavg",
    "privacy=client",
    "trust=secagg",
    "model=mlp",
    "partition.clients=4",
    "algo.rounds=6",
)


@dataclass(frozen=True)
class OneQuiet(Plan):
    """Client 2's draws are multiplied by ``times``, in one round or in all."""

    times: float = 0.0
    only: int | None = None

    def client_context(self, round: int, client: int, **more: Any) -> ClientContext:
        ctx = super().client_context(round, client, **more)
        if client == 2 and self.only in (None, round):
            ctx.noise = scale_noise(ctx.noise, self.times)
        return ctx


def run(times: float, only: int | None = None) -> tuple[GuaranteeSubject, NoiseLog]:
    experiment = tiny(*SUMMED)
    plan = OneQuiet(
        **{f.name: getattr(experiment.plan, f.name) for f in fields(Plan)}, times=times, only=only
    )
    record = NoiseLog(plan.victim)
    progress = start_training(plan, experiment.new_ledger())
    while progress.round < plan.method.rounds:
        progress, _, _ = run_round(plan, progress, experiment.shards, Engine(), record=record)
    held = (experiment.shards[plan.victim], progress.snapshots, progress.ledger)
    return GuaranteeSubject(plan, *held, 1e-5, 0.99, GuaranteeBudget(20, 20, 1), plan.keys), record


def of_the_sum_all(subject: GuaranteeSubject, record: NoiseLog) -> float:
    """The smallest p-value of the tests of the sum alone."""
    sums, why = sum_residuals(subject, "update", logged_releases(record, "update"))
    assert not why
    return min(look.p for look in sum_noise_outcomes(subject, "update", sums))


def test_a_client_that_leaves_its_noise_out_is_found_in_the_sum() -> None:
    healthy = run(1.0)
    faulty = run(0.0)
    assert of_the_sum_all(*healthy) > p_value_limit(0.99) > of_the_sum_all(*faulty)
    right, wrong = (noise_finding(*one, "update").diagnostics for one in (healthy, faulty))
    assert "refuted" not in right and "untested" not in right
    assert wrong["refuted"] is True


def test_shares_that_are_not_there_make_the_noise_untested() -> None:
    subject, record = run(1.0)
    for (_, client), watch in record.rounds.items():
        for release in watch.releases if client == 2 else ():
            release.sample = torch.zeros(0)
    assert "untested" in noise_finding(subject, record, "update").diagnostics


@pytest.mark.parametrize("gone", ["a share", "all shares", "what a share was"])
def test_one_round_that_was_not_seen_makes_the_noise_untested(gone: str) -> None:
    """Of a client that is not audited, or of a round that the audited one is not in."""
    subject, record = run(1.0)
    other = next(k for k in range(4) if k != subject.plan.victim)
    if gone == "a share":
        record.rounds[3, other].releases.clear()
    elif gone == "what a share was":
        record.rounds[3, other].releases[0].missing = "its values are not finite"
    releases = [
        one
        for one in logged_releases(record, "update")
        if gone != "all shares" or one[0].round != 3
    ]
    sums, why = sum_residuals(subject, "update", releases)
    assert not sums and "round 3" in why
    if gone != "all shares":
        assert (
            "round 3" in noise_finding(subject, record, "update").diagnostics["untested"]["noise"]
        )


def test_a_client_that_halves_its_noise_in_one_round_is_found() -> None:
    healthy = run(1.0)
    faulty = run(0.5, 3)
    right, wrong = (noise_finding(*one, "update").diagnostics for one in (healthy, faulty))
    assert "refuted" not in right and wrong["refuted"] is True


def test_noise_dealt_among_more_than_are_honest_is_counted() -> None:
    subject, _ = run(1.0)
    share = subject.plan.mechanisms["update"]
    assert (
        isinstance(share, ClientShare)
        and share.parts == 3
        and share_count_outcome(subject, "update").p == 1.0
    )
    dealt = replace(subject.plan, mechanisms={"update": replace(share, parts=4)})
    assert share_count_outcome(replace(subject, plan=dealt), "update").p == 0.0


def test_other_tiers_test_a_contribution_under_the_whole_noise() -> None:
    subject, _ = run(1.0)
    whole = subject_of_sums(subject).plan.mechanisms["update"]
    assert type(whole) is ClientLevel and isinstance(subject.plan.mechanisms["update"], ClientShare)
    assert whole.noise_multiplier == subject.plan.mechanisms["update"].noise_multiplier  # type: ignore[attr-defined]
    assert isinstance(whole.event.noise_multiplier, float) and not isinstance(whole, Tensor)
