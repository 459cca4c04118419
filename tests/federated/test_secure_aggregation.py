"""What the server is handed under secure aggregation, what it costs, and who is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import dp_accounting as dpa
import pytest
import torch

from privdd.cli.compose import config_dir, group_choices
from privdd.cli.settings import settings_fingerprint
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.federated.aggregation import SUM_CLIENT, Trust, TrustModel
from privdd.federated.simulation import ClientTask as ClientTask
from privdd.federated.simulation import Plan, client_step, run_round, start_training
from privdd.privacy.accounting import epsilon
from privdd.privacy.ledger import SERVER
from privdd.runtime.engine import Engine
from tests.federations import equal, tiny, tiny_config, trained

torch.set_num_threads(1)
SUMMED = ("fedavg", "privacy=client", "trust=secagg", "model=mlp")


def test_the_command_line_knows_every_trust_model() -> None:
    assert {*get_args(TrustModel)} == {*group_choices("trust", [config_dir()])}


def test_the_server_is_handed_the_mean_of_all_uploads_and_none_of_them() -> None:
    experiment = tiny(*SUMMED)
    plan = experiment.plan
    begun = start_training(experiment.plan, experiment.new_ledger())
    moved, inbox, sent = run_round(plan, begun, experiment.shards, Engine())
    alone = [
        client_step(ClientTask(plan, 0, k, sent, {}, shard))[0]
        for k, shard in enumerate(experiment.shards)
    ]
    assert [received.client for received in inbox] == [SUM_CLIENT]
    for key, value in inbox[0].values["update"].items():
        mean = torch.stack([one.values["update"][key] for one in alone]).mean(0)
        assert torch.allclose(value, mean.float(), atol=1e-6)
        assert torch.allclose(
            moved.server[f"model/{key}"], begun.server[f"model/{key}"] + value, atol=1e-6
        )
    snapshot = moved.snapshots[0]
    assert equal(snapshot.sent, inbox[0].values)


def test_the_ledger_states_what_the_sum_costs_and_who_sees_it() -> None:
    experiment = tiny(*SUMMED)
    ledger = trained(*SUMMED)[0].ledger
    rounds = experiment.plan.method.rounds
    z = float(experiment.privacy.noise_multiplier or 0)
    stated = epsilon(
        dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(z), rounds), 1e-5, relation="zero_out"
    )
    assert (
        ledger.epsilon()
        == pytest.approx(stated)
        == pytest.approx(ledger.epsilon(surfaces=["update"]))
    )
    sums = [row for row in ledger.releases if row.client == SUM_CLIENT]
    single = [row for row in ledger.releases if row.client not in (SUM_CLIENT, SERVER)]
    assert [row.visible_to for row in sums] == [("server",)] * rounds and len(single) == 3 * rounds
    assert {row.visible_to for row in single} == {("analyst",)}
    assert all({ledger.releases[of].client for of in row.post_of} == {0, 1, 2} for row in sums)
    assert all(
        row.noise_std == pytest.approx(z * float(experiment.privacy.clip_norm or 0))
        for row in single
    )


def test_each_share_reaches_the_target_without_those_who_may_collude() -> None:
    mechanism = tiny(
        *SUMMED, "partition.clients=5", "trust.least=4", "trust.colluding=2"
    ).plan.mechanisms["update"]
    whole = tiny("fedavg", "privacy=client", "model=mlp").plan.mechanisms["update"]
    assert mechanism.noise_std * 2**0.5 == pytest.approx(whole.noise_std)  # type: ignore[attr-defined]


def test_what_the_server_sees_is_part_of_the_fingerprint() -> None:
    summed = tiny_config("fedavg", "algo.weighting=uniform", "trust=secagg")
    assert settings_fingerprint(tiny_config("fedavg")) != settings_fingerprint(summed)


def test_dropouts_leave_a_smaller_sum_and_too_few_leave_none() -> None:
    experiment = tiny(
        *SUMMED, "partition.clients=4", "trust.least=3", "trust.dropout=.4", "algo.rounds=8"
    )
    plan = experiment.plan
    progress = start_training(experiment.plan, experiment.new_ledger())
    left = [plan.participants(t) for t in range(8)]
    assert any(not who for who in left) and any(len(who) == 3 for who in left)  # seed 0 has both
    for who in left:
        before = progress
        rows = len(progress.ledger)
        progress, inbox, _ = run_round(plan, before, experiment.shards, Engine())
        new = progress.ledger.releases[rows:]
        assert {row.client for row in new if row.client >= 0} == {*who}
        assert bool(inbox) is bool(who)
        if not who:
            assert equal(before.server, progress.server)


def test_who_drops_out_is_public_and_as_often_as_said() -> None:
    trust = Trust("secagg", least=2, dropout=0.3, colluding=0)
    asked = range(20)
    left = [len(trust.remaining_clients(asked, Keys(at))) for at in range(300)]
    share = 1 - sum(left) / 6000
    assert abs(share - 0.3) < 5 * (0.21 / 6000) ** 0.5
    assert trust.remaining_clients(asked, Keys(3)) == trust.remaining_clients(asked, Keys(3))


REFUSED = {
    "image sets": (
        ("feddm_dp", "trust=secagg"),
        "FedDM sends under these settings does not add up",
    ),
    "record counts": (("fedavg", "trust=secagg"), "algo.weighting=uniform"),
    "noise inside of training": (
        ("fedavg", "privacy=dpsgd", "algo.weighting=uniform", "trust=secagg"),
        "does not add up",
    ),
    "control variates": (("scaffold", "algo.weighting=uniform", "trust=secagg"), "does not add up"),
    "shuffled uploads": (("fedavg", "trust=shuffle"), "trust=shuffle: not offered"),
    "one client": ((*SUMMED, "trust.least=1"), "trust.least=1"),
    "more than there are": ((*SUMMED, "trust.least=4"), "trust.least=4: a round asks 3"),
    "all collude": ((*SUMMED, "trust.colluding=3"), "trust.colluding=3: fewer than"),
    "dropouts without a least": ((*SUMMED, "trust.dropout=.1"), "set trust.least"),
    "a chance of one": ((*SUMMED, "trust.dropout=1", "trust.least=2"), "trust.dropout=1"),
    "a least that nobody asks for": (("fedavg", "trust.least=2"), "these need trust=secagg"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(case: str) -> None:
    (algo, *more), words = REFUSED[case]
    with pytest.raises(BadConfig) as raised:
        tiny(algo, *more)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_an_unprotected_sum_has_no_finite_epsilon() -> None:
    ledger = trained("fedavg", "algo.weighting=uniform", "trust=secagg", "model=mlp")[0].ledger
    assert ledger.epsilon() == float("inf") == ledger.epsilon(surfaces=["update"])


def test_a_plan_says_nothing_else_of_its_noise_under_local() -> None:
    plan = tiny("fedavg", "privacy=client", "model=mlp").plan
    assert replace(plan, trust=Trust()).noise_stream == plan.noise_stream and isinstance(plan, Plan)
