"""Canaries in one run: what the onlooker reads, sound mechanisms within their bounds, and faults
that contradict."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from attacks.canaries import draw_block_images, select_independent
from attacks.tradeoff import gaussian_epsilon
from attacks.types import Surface
from privdd.auditing.canary_game import (
    CanaryGame,
    canary_findings,
    canary_findings_of_run,
    check_playable,
    draw_canaries,
    score_canaries,
    worst_event,
)
from privdd.auditing.verdicts import decide_verdict
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records
from privdd.core.validation import BadConfig
from privdd.federated.simulation import ClientTask, Plan, observed_step
from privdd.privacy.accounting import epsilon
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanisms import ClippedSum
from tests.auditing.dp_tests.subjects import CLASSES, DELTA, SHAPE, client, fedavg, feddm

FINITE = {"pld": 1.0, "rdp": 1.0}


def played(method, mechanisms, count=60, seed=0, rounds=2):
    """(plan, the client without canaries, its ledger, the game, what was heard) of ``rounds``
    rounds of one client."""
    plan = Plan(Keys(seed), Problem(SHAPE, CLASSES, 1), method, mechanisms, relation="add_remove")
    shard = client(seed)
    ledger = Ledger("add_remove", "record", DELTA)
    transcript = []
    game = draw_canaries(plan, shard, count, plan.keys.fold("canaries"))
    broadcast = method.broadcast(method.init(plan.problem, plan.keys.fold("public", "init")))
    for t in range(rounds):
        (_, rows, _), heard = observed_step(
            ClientTask(plan, t, 0, broadcast, {}, game.add_to_shard(shard))
        )
        ledger.append(rows)
        transcript.append(heard)
    return plan, shard, ledger, game, transcript


def found(*run, seed=0):
    plan, shard, ledger, game, transcript = run
    surface = Surface.SYNTHETIC_IMAGES
    options = {"delta": DELTA, "confidence": 0.95, "keys": Keys(seed)}
    return list(canary_findings(plan, shard, ledger, game, transcript, surface, **options))


MADE = {
    "embedding": (feddm, {"embedding": ClippedSum(1.0, 0.05, 1.0, 10.0)}),
    "sampled embedding": (feddm, {"embedding": ClippedSum(1.0, 0.05, 0.5, 10.0)}),
    "dpsgd": (fedavg, {"dpsgd": ClippedSum(1.0, 0.05, 0.4, 6.0)}),
    "synthetic gradient": (
        lambda: feddm(4),
        {"synthetic_gradient": ClippedSum(2.0, 0.01, 0.7, 10.0)},
    ),
}


@pytest.mark.parametrize("name", list(MADE))
def test_almost_without_noise_every_coin_is_read(name):
    """The other records' part and each canary's are taken off exactly, with the sampling that
    really happened."""
    make, mechanisms = MADE[name]
    # so that each is sampled once
    q = 1.0 if mechanisms[next(iter(mechanisms))].sampling_probability == 1 else 0.9
    quiet = {
        n: replace(m, noise_multiplier=1e-3, sampling_probability=q) for n, m in mechanisms.items()
    }
    plan, shard, _, game, transcript = played(make(), quiet, count=24)
    scores = score_canaries(
        plan, shard, game.records, int(game.inside.sum()), transcript
    ).canary_scores()
    right = (torch.from_numpy(scores) > 0) == game.inside
    assert right.double().mean() > 0.95


@pytest.mark.nightly(cases=["dpsgd"])
@pytest.mark.parametrize("name", ["embedding", "dpsgd"])
def test_a_sound_run_stays_within_its_bound_and_shows_something(name):
    make, mechanisms = MADE[name]
    for seed in range(2):
        rows = found(*played(make(), mechanisms, seed=seed), seed=seed)
        assert [row.attack for row in rows] == ["one_run_canaries", "one_run_curve"]
        for row in rows:
            assert row.measures.epsilon_shown <= row.measures.epsilon_stated
        assert decide_verdict(FINITE, None, rows) == "consistent"
    assert [row.measures.epsilon_validity for row in rows] == ["finite_sample", "curve"]


@dataclass(frozen=True)
class Mute(ClippedSum):
    """A mutant: no noise at all."""

    def __call__(self, value, noise):
        honest = super().__call__(value, noise)
        return replace(honest, value=honest.exact)


def test_a_run_without_its_noise_is_contradicted_by_itself_alone():
    """Both by the bounds that hold for any mechanism and by the accountant's curve."""
    rows = found(*played(feddm(), {"embedding": Mute(10.0, 0.05, 1.0, 10.0)}, count=60))
    for row in rows:
        assert row.measures.epsilon_shown > row.measures.epsilon_stated
        assert decide_verdict(FINITE, None, [row]) == "contradiction"


def test_coins_are_fair_secret_and_leave_the_client_s_own_records_alone():
    plan, shard, _, game, _ = played(feddm(), MADE["embedding"][1], count=40)
    assert 8 < int(game.inside.sum()) < 32
    train = game.add_to_shard(shard).train
    assert torch.equal(train.x[: len(shard.train)], shard.train.x) and len(
        train.ids.unique()
    ) == len(train)
    other = draw_canaries(plan, shard, 40, Keys(7))
    assert not torch.equal(other.inside, game.inside)
    changed = shard.with_train(Records(1 - shard.train.x, shard.train.y, shard.train.ids))
    assert torch.equal(
        draw_canaries(plan, changed, 40, plan.keys.fold("canaries")).records.x, game.records.x
    )


def test_the_dearest_cell_is_what_a_record_costs():
    _, _, ledger, _, _ = played(feddm(), MADE["embedding"][1], count=12)
    assert epsilon(worst_event(ledger, 0, DELTA), DELTA) == pytest.approx(ledger.epsilon(client=0))
    assert ledger.epsilon(client=0) == pytest.approx(
        gaussian_epsilon(6**0.5, DELTA), rel=1e-3
    )  # 2 rounds of 3 maps


@pytest.mark.parametrize(
    ("changes", "unit"),
    [({"relation": "zero_out"}, "record"), ({}, "client"), ({"mechanisms": {}}, "record")],
)
def test_runs_without_a_game_are_refused(changes, unit):
    plan = Plan(
        Keys(0), Problem(SHAPE, CLASSES, 1), feddm(), MADE["embedding"][1], relation="add_remove"
    )
    check_playable(plan, "record")
    with pytest.raises(BadConfig, match=r"audit\.canaries"):
        check_playable(replace(plan, **changes), unit)


def test_a_run_that_was_not_heard_gets_no_finding_in_silence():
    game = CanaryGame(client(0).train, torch.ones(30, dtype=torch.bool))
    with pytest.raises(ValueError, match="trained before"):
        next(canary_findings_of_run(None, game, [], 0.95))


def test_the_choice_spans_what_copies_do_not():
    rng = np.random.default_rng(0)
    effects = np.concatenate([np.tile(rng.normal(size=8), (20, 1)), rng.normal(size=(5, 8))])
    chosen = select_independent(effects, 6)
    assert np.linalg.matrix_rank(effects[chosen]) == 6
    with pytest.raises(ValueError, match="count"):
        select_independent(effects, 26)
    images = draw_block_images((1, 8, 8), 30, torch.Generator().manual_seed(0))
    assert images.shape == (30, 1, 8, 8) and set(images.unique().tolist()) == {0.0, 1.0}
    assert isinstance(
        CanaryGame(client(0).train, torch.ones(30, dtype=torch.bool)).add_to_shard(client(0)).train,
        Records,
    )
