"""Ways in which stated guarantees of earlier versions were broken, and the attacks that broke them,
tried again.

Each attack fails now, and succeeds where the former fault is planted again. Others have their place
beside the code: low bits of single mechanisms (tests/privacy/test_lattice.py), counts in replies
and ledger (test_what_leaves.py), draws by position (tests/distillation/test_feature_split.py),
one seed for two noise levels
(tests/federated/test_noise_streams.py).
"""

from __future__ import annotations

import math
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from attacks.certificates import bound_from_runs, likelihood_ratio_certificate
from privdd.auditing.attack_tasks import error_budget
from privdd.auditing.pipeline import membership_game_of
from privdd.cli.build import build_experiment
from privdd.core.rng import Keys
from privdd.federated.simulation import run_round, start_training
from privdd.privacy.accounting import epsilon
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import AggregateClip, FeatureNoise
from privdd.privacy.noise import Noise, SeededNoise
from tests.federations import tiny_config, trained
from tests.float_noise import in_float32, off_grid

DELTA = 1e-5


# --- whose features were zeroed out, read off the low bits of a whole run
# ---------------------------


def named_as_out(seed: int) -> tuple[Tensor, Tensor]:
    """The server's view of ``fedfed_dp`` with noise of the operating system.

    -> (which audited records it names as left out, which of them truly are), (n,) bool each.
    """
    more = ("privacy.noise_source=os", f"seed={seed}", "audit.records=30")
    experiment = build_experiment(tiny_config("fedfed_dp", *more, command="audit"))
    plan = experiment.plan
    game = membership_game_of(experiment)
    shards = list(experiment.shards)
    shards[plan.victim] = game.shard_of_replay(shards[plan.victim], 0)
    progress = start_training(plan, experiment.new_ledger())
    sent = None
    while sent is None:
        progress, inbox, broadcast = run_round(plan, progress, shards, experiment.engine)
        sent = next(
            (
                r.values["features"]["x"]
                for r in inbox
                if r.client == plan.victim and "features" in r.values
            ),
            None,
        )
    own = shards[plan.victim]
    candidates = game.audited_records
    mechanism = plan.mechanisms["features"]
    assert own.nulls is not None and isinstance(mechanism, FeatureNoise)
    ids = torch.cat([own.train.ids, own.nulls.ids]).sort().values
    features = plan.method.maps(broadcast, {}, plan.problem)["feature"](candidates.x)
    clean = mechanism({"x": features.detach()}, SeededNoise(Keys(0).torch())).exact or {}
    rows = torch.searchsorted(ids, candidates.ids)
    flagged = [
        off_grid(sent[row].flatten(), one.flatten()) > 0 for row, one in zip(rows, clean["x"])
    ]
    return torch.tensor(flagged), ~game.masks[0]


def test_low_bits_of_a_whole_run_name_no_record_that_was_left_out() -> None:
    named, _ = named_as_out(0)
    assert not named.any()


def test_with_noise_in_float32_they_name_most_and_never_wrongly(
    monkeypatch: pytest.MonkeyPatch, system_bytes: None
) -> None:
    honest = FeatureNoise.__call__

    def planted(self: FeatureNoise, value: dict[str, Tensor], noise: Noise) -> Output:
        return in_float32(honest(self, value, noise), noise)

    monkeypatch.setattr(FeatureNoise, "__call__", planted)
    named, out = named_as_out(0)
    assert not (named & ~out).any()
    assert int((named & out).sum()) > 0.3 * int(out.sum())


# --- the size of a small class, read off the scale of its noise
# -------------------------------------


@lru_cache(maxsize=1)
def shown_of_a_small_class() -> float:
    """Epsilon that two hypotheses, a class of three records or of two, refute: the variance of the
    noise tells them apart."""
    mechanism = AggregateClip(noise_multiplier=5.0, clip_norm=1.0)
    noise = SeededNoise(torch.Generator().manual_seed(1))
    rows = 0.01 * torch.randn(3, 640, generator=torch.Generator().manual_seed(0))
    pair = [{"g": rows}, {"g": rows[:2]}]
    clean = [(mechanism(value, noise).exact or {})["g"].double() for value in pair]

    def loss(released: Tensor) -> float:
        terms = [
            ((released.double() - at).square().sum() / (2 * (5 / n) ** 2), n)
            for at, n in zip(clean, (3, 2))
        ]
        return float(terms[1][0] - terms[0][0]) + released.numel() * math.log(3 / 2)

    ratios = torch.tensor([loss(mechanism(pair[0], noise).value["g"]) for _ in range(100)])
    return likelihood_ratio_certificate(ratios).epsilon


def test_a_clipped_mean_states_no_epsilon_that_its_noise_could_refute() -> None:
    event = AggregateClip(5.0, 1.0)({"g": torch.zeros(3, 4)}, SeededNoise(torch.Generator())).event
    assert math.isinf(epsilon(event, DELTA))
    progress, _, _ = trained("feddm", "privacy=aggregate_clip", "algo.start=noise")
    assert math.isinf(progress.ledger.epsilon())


def test_the_epsilon_that_it_once_stated_is_refuted() -> None:
    """A Gaussian's, that moves by 2 C under noise of standard deviation 5 C / 3."""
    once = epsilon(dpa.GaussianDpEvent(5 / (2 * 3)), DELTA)
    assert once == pytest.approx(5.41, abs=0.01) and shown_of_a_small_class() > 10 * once


# --- many bounds, each of which may be wrong once in twenty
# -----------------------------------------


RUNS = 120
TIMES = 60
EPSILON = 2.0


def contradicted(confidence: float, tests: int) -> int:
    """Of ``TIMES`` honest runs, how many are contradicted by some of their bounds.

    Each bound is about randomised response, which meets its epsilon exactly.
    """
    rng = np.random.default_rng(5)
    honest = 1 / (1 + math.exp(-EPSILON))

    def above() -> bool:
        sides = (rng.random(RUNS) < honest, rng.random(RUNS) > honest)
        rows = [torch.tensor(side.astype(float)).unsqueeze(1) for side in sides]
        return (
            bound_from_runs(*rows, delta=DELTA, generator=rng, confidence=confidence).value
            > EPSILON
        )

    return sum(any(above() for _ in range(tests)) for _ in range(TIMES))


def test_an_honest_run_is_contradicted_once_in_twenty_at_most() -> None:
    budget = error_budget(0.95, membership=0, mechanisms=1)
    assert binom.sf(contradicted(budget.confidence, budget.tests) - 1, TIMES, 0.05) > 1e-3


@pytest.mark.nightly
def test_bounds_that_do_not_share_their_error_contradict_it_more_often() -> None:
    tests = error_budget(0.95, membership=30, mechanisms=2).tests
    assert binom.sf(contradicted(0.95, tests) - 1, TIMES, 0.05) < 1e-3
