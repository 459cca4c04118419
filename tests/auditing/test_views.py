"""Tests of ``privdd.auditing.views``."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from attacks.inversion.paired_logits_inversion import PairedLogitsInversion
from attacks.malicious.imprint import Imprint, first_layer_names
from attacks.malicious.planted_embedding import PlantedEmbedding
from attacks.roc import roc
from attacks.types import Adversary, Capture, Knowledge, Surface, View
from privdd.auditing import views
from privdd.auditing import views as views_module
from privdd.auditing.coverage import is_applicable_to
from privdd.auditing.pipeline import membership_game_of
from privdd.auditing.replay import MembershipGame, draw_membership_game
from privdd.auditing.shadow_models import audited_rounds, describe_read_rounds
from privdd.auditing.signal_extraction import extract_signals
from privdd.auditing.views import (
    FinishedRun,
    blind_scores,
    client_views,
    describe_other_networks,
    malicious_server_views,
    server_views,
    signals_to_worlds,
    single_record_view,
)
from privdd.cli.build import build_attacks, build_experiment
from privdd.cli.compose import compose_config, config_dir, default_attacks, expand_arguments
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.federated.simulation import run_round, start_training
from privdd.federated.trainer import Trainer
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny_config

# Which rounds a view of features joins: those in which the attacker knows the same map.


SMALL = [
    "preset=smoke",
    "partition.clients=2",
    "data.limit=120",
    "audit.records=8",
    "audit.worlds=2",
    "algo.rounds=3",
]
DISTILLED = [
    "algo.matching.iterations=1",
    "algo.dpc=1",
    "algo.reads=1",
    "algo.projection_epochs=1",
    "algo.server.epochs=1",
]


@pytest.mark.nightly(but=["rows that start anew each round"])
@pytest.mark.parametrize(
    ("algo", "in_step", "rounds"),
    [("fedrd_dp", True, [2, 1, 0]), ("fedrd", True, [2]), ("fedrd_dp", False, [2])],
    ids=["one map", "another map each round", "rows that start anew each round"],
)
def test_rounds_are_joined_where_the_same_rows_went_through_the_same_map(
    algo: str, in_step: bool, rounds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = "synthetic_representations"
    if in_step:  # no method here sends the same rows twice: say that this one does
        monkeypatch.setattr(views_module, "MAPPED_SURFACES", (Surface(surface),))
    overrides = [f"algo={algo}", *DISTILLED]
    experiment = build_experiment(compose_config("audit", [*SMALL, *overrides]))
    game = membership_game_of(experiment)
    shards = list(experiment.shards)
    victim = experiment.plan.victim
    shards[victim] = game.shard_of_replay(shards[victim], 0)
    folder = RunFolder(tmp_path)
    progress = Trainer(
        experiment.plan,
        shards,
        experiment.test_records,
        experiment.engine,
        folder,
        experiment.new_ledger(),
    ).run()
    scene = FinishedRun(experiment, progress, game, shards[victim])
    (last,) = audited_rounds(progress.snapshots)
    signals = extract_signals(scene.adversary_view(last), progress.snapshots[last].sent)
    stacked = {key: value.unsqueeze(0).expand(2, *value.shape) for key, value in signals.items()}
    views = {str(view.surface): view for view in client_views(scene, last, stacked)}
    captures = views[surface].captures
    assert [capture.round for capture in captures] == rounds
    for capture in captures:
        sent = progress.snapshots[capture.round].sent
        assert any(
            all(torch.equal(capture.value[k], v[k]) for k in capture.value.keys() & v.keys())
            for v in sent.values()
        )


def test_networks_beside_the_classifier_are_named_and_buffers_are_none() -> None:
    """As feddm_guided_dp sends a head and a network, FedAvg a model's parameters and its buffers
    apart."""
    model = torch.nn.BatchNorm1d(2)
    state = model.state_dict()
    sent = [
        {"weight": state["weight"], "bias": state["bias"]},
        {"running_mean": torch.ones(2)},
        {"weight": torch.zeros(3, 4)},
    ]
    captures = [
        Capture(2, -1, name, value, {})
        for name, value in zip(("model", "buffers", "network"), sent)
    ]
    knowledge = Knowledge((1, 2, 2), 2, torch.zeros(1), torch.zeros(1), model)
    view = View(Surface.GLOBAL_MODEL, Adversary.PUBLIC, tuple(captures), knowledge)
    assert describe_other_networks(view).startswith(
        "the server sends network with the classifier: "
    )
    assert describe_other_networks(replace(view, captures=view.captures[:2])) == ""
    assert describe_other_networks(replace(view, surface=Surface.GLOBAL_IMAGES)) == ""


def test_of_several_networks_that_a_server_sends_the_auditors_own_is_filled() -> None:
    """feddm_guided_dp sends a head and a network, whose last layers have one name and other
    shapes."""
    model = torch.nn.Linear(3, 2)
    own = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    other = {"weight": torch.zeros(2, 5), "bias": torch.zeros(2)}
    for sent in (
        {"model": own, "network": other},
        {"network": {"weight": other["weight"]}, "model": own},
    ):
        model.load_state_dict(views_module._matching_parameters(sent, model))
        assert torch.equal(model.weight, own["weight"]) and torch.equal(model.bias, own["bias"])


# ``blind_scores`` and ``signals_to_worlds``: the control that never sees an artifact or a coin, and
# fair coins.


CLASSES = 3
SHAPE = (1, 3, 3)


def records(count: int, seed: int, first: int = 0) -> Records:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=g)
    return Records(
        torch.rand(count, *SHAPE, generator=g) + y.reshape(-1, 1, 1, 1),
        y,
        torch.arange(first, first + count),
    )


PUBLIC = records(60, 1, 1000)


def shard(count: int = 80) -> Shard:
    return Shard(0, records(count, 0), records(5, 2, 2000), records(5, 3, 3000), CLASSES)


def game(seed: int = 0, worlds: int = 6) -> MembershipGame:
    return draw_membership_game(shard(), 40, worlds, Keys(seed))


def stacked(now: MembershipGame, seed: int) -> dict[str, Tensor]:
    """Signals of two surfaces; that of "update" is the membership bit itself, as an artifact could
    betray it."""
    g = torch.Generator().manual_seed(seed)
    rows, count = now.masks.shape
    return {
        "update|confidence": now.masks.float() + seed,
        "update|logits": torch.randn(rows, count, CLASSES, generator=g),
        "labels|count": torch.randn(rows, count, generator=g),
    }


def test_the_blind_control_is_equal_whatever_was_sent_and_whoever_was_in() -> None:
    """The same numbers for other artifacts, other coins, other worlds and another surface."""
    now = game()
    control = signals_to_worlds(stacked(now, 0), "update", now, PUBLIC).blind
    assert (
        control.shape == (40,)
        and control.std() > 0.01
        and torch.equal(control, blind_scores(now.audited_records, PUBLIC))
    )
    others = [
        now.masks.flip(0),
        ~now.masks,
        torch.zeros_like(now.masks),
        torch.ones_like(now.masks),
    ]
    for seed, masks in enumerate(others):
        other = replace(now, masks=masks)
        for surface in ("update", "labels"):
            worlds = signals_to_worlds(stacked(other, seed + 1), surface, other, PUBLIC)
            assert torch.equal(worlds.blind, control) and torch.equal(worlds.masks, masks)


def test_blind_scores_are_the_distance_to_the_public_mean_of_the_class() -> None:
    own = records(12, 5)
    # nobody of class 2
    held = Records(PUBLIC.x[PUBLIC.y != 2], PUBLIC.y[PUBLIC.y != 2], PUBLIC.ids[PUBLIC.y != 2])
    for x, y, score in zip(own.x, own.y, blind_scores(own, held), strict=True):
        of = held.x[held.y == y] if int(y) != 2 else held.x
        assert math.isclose(
            float(score), -float((x - of.sum(0) / len(of)).square().sum().sqrt()), rel_tol=1e-5
        )


def test_the_blind_controls_auc_over_many_draws_of_coins_is_a_half() -> None:
    """400 games: the mean AUC within five standard errors of 0.5, and the spread that fair coins
    give."""
    found = []
    for seed in range(400):
        now = game(seed, worlds=2)
        worlds = signals_to_worlds(stacked(now, seed), "update", now, PUBLIC)
        found.append(roc(worlds.blind, worlds.masks[0].numpy()).auc)
    aucs = torch.tensor(found)
    # Mann-Whitney: (n + 1) / (12 n1 n0), about 20 in and 20 out
    spread = math.sqrt(41 / (12 * 20 * 20))
    assert abs(float(aucs.mean()) - 0.5) < 5 * spread / 20
    assert 0.8 * spread < float(aucs.std()) < 1.25 * spread


def test_coins_are_fair_and_independent() -> None:
    """Over worlds, records and seeds: a share of a half; agreement of neighbours, of worlds and of
    seeds by chance."""
    # (seeds, worlds, records)
    drawn = torch.stack([game(seed, worlds=40).masks for seed in range(25)])
    pairs = [
        drawn[:, :, 1:] ^ drawn[:, :, :-1],
        drawn[:, 1:] ^ drawn[:, :-1],
        drawn[1:] ^ drawn[:-1],
    ]
    for bits in (drawn, *pairs):
        assert binomtest(int(bits.sum()), bits.numel(), 0.5).pvalue > 1e-6
    # not a fixed number of members: its variance is that of 40 coins
    totals = drawn.float().sum(-1)
    assert 8 < float(totals.var()) < 12.5


def test_the_game_keeps_and_removes_the_records_of_the_coins() -> None:
    """Record by record: in where the coin says so, else held out; zero_out leaves a black image
    with its label."""
    for relation in ("add_remove", "zero_out"):
        now = draw_membership_game(shard(), 40, 3, Keys(0), relation)
        for world in range(3):
            client = now.shard_of_replay(shard(), world)
            audited = now.audited
            members = set(now.whole.ids[audited[now.masks[world]]].tolist())
            gone = set(now.whole.ids[audited].tolist()) - members
            assert members <= set(client.train.ids.tolist()) and not gone & set(
                client.train.ids.tolist()
            )
            assert gone == set(client.heldout.ids.tolist()) - set(shard().heldout.ids.tolist())
            if relation == "add_remove":
                assert client.nulls is None
                continue
            assert (
                client.nulls is not None
                and set(client.nulls.ids.tolist()) == gone
                and not client.nulls.x.any()
            )
            labels = dict(zip(now.whole.ids.tolist(), now.whole.y.tolist()))
            assert [labels[i] for i in client.nulls.ids.tolist()] == client.nulls.y.tolist()


def test_as_worlds_takes_one_surface_and_its_logits() -> None:
    now = game()
    signals = stacked(now, 0)
    worlds = signals_to_worlds(signals, "update", now, PUBLIC)
    assert set(worlds.signals) == {"confidence"} and torch.equal(
        worlds.labels, now.audited_records.y
    )
    assert worlds.logits is not None and torch.equal(worlds.logits, signals["update|logits"])
    real = signals_to_worlds(
        {name: value[:1] for name, value in signals.items()}, "labels", now, PUBLIC
    )
    assert (
        set(real.signals) == {"count"}
        and real.logits is None
        and torch.equal(real.masks, now.masks[:1])
    )


# ``single_record_view``: what gradient inversion is given is the update of the very record that it
# is judged against.


SMALL_PROBE = [
    "preset=smoke",
    "data=digits",
    "data.limit=90",
    "data.test_limit=20",
    "partition=iid",
    "partition.clients=2",
    "algo.rounds=2",
    "algo.local_epochs=2",
]
CHOSEN = [0, 5, 2, 17]  # positions in what the client trained on, not in order


@lru_cache(maxsize=4)
def scene(algo: str, *more: str) -> FinishedRun:
    """A finished run of two rounds; the audited client has lost half of some 30 records, so
    positions differ from ids."""
    experiment = build_experiment(compose_config("audit", [f"algo={algo}", *SMALL_PROBE, *more]))
    plan = experiment.plan
    game = draw_membership_game(experiment.shards[plan.victim], 20, 4, Keys(3))
    shards = list(experiment.shards)
    shards[plan.victim] = game.shard_of_replay(shards[plan.victim], 0)
    progress = start_training(plan, experiment.new_ledger())
    for _ in range(2):
        progress, _, _ = run_round(plan, progress, shards, experiment.engine)
    return FinishedRun(experiment, progress, game, shards[plan.victim])


def test_logits_come_with_the_public_images_and_what_the_server_sent_before() -> None:
    """As the server of fedmd holds them: in the first round it had sent nothing yet."""
    run = scene("fedmd")
    attack = PairedLogitsInversion()
    paired = []
    for round in range(2):
        snapshot = run.progress.snapshots[round]
        (view,) = client_views(run, round, {})
        images = view.knowledge.asked_images
        assert torch.equal(images, run.method.public_images(run.plan.problem, run.plan.keys.seed))
        (capture,) = view.captures
        assert torch.equal(capture.value["logits"], snapshot.sent["logits"]["logits"])
        assert torch.equal(capture.broadcast["logits"], snapshot.broadcast["consensus"]["logits"])
        assert not attack.nothing_to_read(view)
        evidence = attack.run(view, torch.Generator())
        assert evidence.images.shape == (10, 1, 8, 8)
        paired.append(evidence.notes["paired"])
    assert paired == [False, True]


def only(shard: Shard, at: int) -> Shard:
    """The client that holds one record."""
    own = shard.train
    return replace(
        shard, train=Records(own.x[at : at + 1], own.y[at : at + 1], own.ids[at : at + 1])
    )


@pytest.mark.parametrize("algo", ["fedavg", "fedprox"])
@pytest.mark.parametrize("round", [0, 1])
def test_probe_view_is_local_of_that_very_record_bit_for_bit(algo: str, round: int) -> None:
    """On one record no batch is drawn, so the update does not depend on any stream: an unrelated
    one is used here."""
    now = scene(algo)
    probed = single_record_view(now, round, CHOSEN)
    assert probed is not None
    view, truth = probed
    plan = now.plan
    broadcast = now.progress.snapshots[round].broadcast
    assert (
        view.surface == Surface.UPDATE
        and view.adversary == Adversary.SERVER
        and len(view.captures) == len(CHOSEN)
    )
    for at, capture, x, y in zip(CHOSEN, view.captures, truth.x, truth.y, strict=True):
        assert torch.equal(x, now.shard.train.x[at]) and y == now.shard.train.y[at]
        ctx = replace(plan, keys=Keys(987)).client_context(round, plan.victim)
        sent = plan.method.local(broadcast, {}, only(now.shard, at), ctx)[0]["update"].value
        assert sent and all(torch.equal(capture.value[name], value) for name, value in sent.items())
        assert all(
            torch.equal(capture.broadcast[name], value)
            for name, value in broadcast["model"].items()
        )
        assert (capture.round, capture.client) == (round, plan.victim)
    for one, other in zip(view.captures, view.captures[1:]):
        assert any(not torch.equal(one.value[name], other.value[name]) for name in one.value)


def test_probe_view_tells_the_attack_that_one_record_was_trained_on() -> None:
    now = scene("fedavg")
    view, truth = single_record_view(now, 1, CHOSEN) or pytest.fail("no probe")
    method = now.plan.method
    assert view.knowledge.settings["batch_records"] == 1
    assert view.knowledge.settings["local_steps"] == method.settings(1)["local_steps"]  # type: ignore[attr-defined]
    assert method.settings(1)["local_steps"] != method.settings(500)["local_steps"]  # type: ignore[attr-defined]
    assert torch.equal(truth.counts, torch.bincount(now.shard.train.y[CHOSEN], minlength=10))
    assert torch.equal(truth.heldout_x, now.shard.heldout.x)


def test_probe_view_passes_through_the_mechanism_of_the_channel() -> None:
    """Client-level privacy with a clip norm of 1e-3 and hardly any noise: no probe's change is
    longer than that."""
    now = scene(
        "fedavg", "privacy=client", "privacy.clip_norm=0.001", "privacy.noise_multiplier=0.001"
    )
    view, _ = single_record_view(now, 1, CHOSEN) or pytest.fail("no probe")
    for capture in view.captures:
        change = torch.cat(
            [(capture.value[n] - capture.broadcast[n]).flatten() for n in capture.broadcast]
        )
        assert 0.0009 < float(change.norm()) < 0.0015
    bare, _ = single_record_view(scene("fedavg"), 1, CHOSEN) or pytest.fail("no probe")
    one = bare.captures[0]
    assert (
        torch.cat([(one.value[n] - one.broadcast[n]).flatten() for n in one.broadcast]).norm()
        > 0.01
    )


def test_probe_view_needs_an_update_and_a_record() -> None:
    assert single_record_view(scene("fedavg"), 0, []) is None


# ``FinishedRun``: which row of a release stems from which record, and who sees what the server
# sends.


def records_finished(*ids: int) -> Records:
    """Each image is filled with its id."""
    x = torch.tensor(ids, dtype=torch.float).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Records(x, torch.zeros(len(ids), dtype=torch.long), torch.tensor(ids))


def scene_finished(train: Records, nulls: Records | None) -> FinishedRun:
    nothing: Any = None
    plan: Any = SimpleNamespace(
        plan=SimpleNamespace(
            method=SimpleNamespace(audit_hooks=SimpleNamespace(rows_are_records=lambda: True)),
            victim=0,
        )
    )
    return FinishedRun(
        plan, nothing, nothing, Shard(0, train, records_finished(0), records_finished(1), 3, nulls)
    )


@pytest.mark.parametrize("nulls", [None, records_finished(12, 55, 3)])
def test_a_records_row_is_its_rank_among_all_ids_that_are_released(nulls: Records | None) -> None:
    """Ids in no order; null records of zero-out have rows of their own in between."""
    train = records_finished(40, 7, 99, 13, 2, 60)
    now = scene_finished(train, nulls)
    every = sorted([*train.ids.tolist(), *([] if nulls is None else nulls.ids.tolist())])
    assert now._rows_of_records(now.shard).tolist() == [every.index(i) for i in train.ids.tolist()]
    for batch in (2, 4, 64):
        known = now.known_records(batch)
        assert [every[row] for row in known["row"].tolist()] == known["x"][
            :, 0, 0, 0
        ].int().tolist()
        # batches with a real record in them
        held = sorted({every.index(i) // batch for i in train.ids.tolist()})
        assert sorted((known["row"] // batch).tolist()) == held


@pytest.mark.parametrize("copies", [1, 2])
def test_each_row_of_a_pool_is_judged_by_the_record_of_the_client_that_sent_it(
    copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients' rows, ordered by ids and in copies, the second with a null record between; each
    row shows its id."""
    monkeypatch.setattr(views, "feature_noise_constants", lambda plan: {"copies": copies})
    first = records_finished(8, 3, 21)
    second = records_finished(50, 9, 77)
    now = scene_finished(second, records_finished(60))
    held: Any = now.experiment
    held.shards = [
        Shard(0, first, records_finished(4), records_finished(1), 3),
        Shard(1, records_finished(1), records_finished(5), records_finished(1), 3),
    ]
    held.plan.victim = 1
    rows = (
        torch.tensor([*[3, 8, 21] * copies, *[9, 50, 60, 77] * copies]).reshape(-1, 1, 1, 1).float()
    )
    nothing: Any = None
    view = View(
        Surface.SHARED_FEATURES, Adversary.PEER, (Capture(0, -1, "features", {"x": rows}),), nothing
    )
    truth = now.ground_truth_of(view)
    assert sorted(truth.x[:, 0, 0, 0].tolist()) == [3, 8, 9, 21, 50, 77]
    assert rows[truth.rows, 0, 0, 0].tolist() == truth.x[:, 0, 0, 0].tolist()
    other = replace(view, captures=(Capture(0, -1, "features", {"x": rows[1:]}),))
    assert now.ground_truth_of(other).rows is None  # another pool than that of all rows


def test_the_final_model_is_seen_by_the_public_and_loaded_with_what_was_sent() -> None:
    tiny = [
        "preset=smoke",
        "data=digits",
        "data.limit=60",
        "data.test_limit=20",
        "partition=iid",
        "partition.clients=2",
    ]
    experiment = build_experiment(
        compose_config("audit", ["algo=fedavg", "algo.rounds=1", "algo.local_epochs=1", *tiny])
    )
    plan = experiment.plan
    game = draw_membership_game(experiment.shards[plan.victim], 10, 2, Keys(0))
    progress, _, _ = run_round(
        plan, start_training(plan, experiment.new_ledger()), experiment.shards, experiment.engine
    )
    final = plan.method.broadcast(progress.server)
    (view,) = server_views(
        FinishedRun(experiment, progress, game, experiment.shards[plan.victim]), final, {}
    )
    assert (view.surface, view.adversary, view.worlds) == (
        Surface.GLOBAL_MODEL,
        Adversary.PUBLIC,
        None,
    )
    assert [(c.round, c.client, c.name) for c in view.captures] == [(1, -1, "model")]
    assert view.knowledge.model is not None
    held = view.knowledge.model.state_dict()
    before = progress.snapshots[0].broadcast["model"]
    assert all(torch.equal(held[name], value) for name, value in final["model"].items())
    assert any(not torch.equal(before[name], value) for name, value in final["model"].items())


# A round with a model that the server chose: the client's own code answers, and noise that protects
# it acts here too.


ATTACKS = {"imprint": Imprint(units=256), "planted_embedding": PlantedEmbedding(blocks=3)}


def scene_malicious(algo: str, *more: str) -> FinishedRun:
    made = build_experiment(
        tiny_config(
            algo, "audit.records=20", "audit.worlds=2", "attack=[lira]", *more, command="audit"
        )
    )
    game = membership_game_of(made)
    progress = type("Progress", (), {"memories": {}})()
    return FinishedRun(made, progress, game, game.shard_of_replay(made.shards[made.plan.victim], 0))  # type: ignore[arg-type]


@pytest.mark.nightly(but=["fedproto-planted_embedding-prototypes"])
@pytest.mark.parametrize(
    ("algo", "name", "surface"),
    [
        ("fedavg", "imprint", Surface.UPDATE),
        ("scaffold", "imprint", Surface.UPDATE),
        ("fedproto", "planted_embedding", Surface.PROTOTYPES),
    ],
)
def test_the_client_gives_its_own_records_away(algo: str, name: str, surface: Surface) -> None:
    played = scene_malicious(algo)
    ((view, truth, note, found, attack),) = list(malicious_server_views(played, ATTACKS))
    assert (view.surface, view.adversary, found) == (
        surface,
        Adversary.MALICIOUS_SERVER,
        name,
    ) and "server chose" in note
    finding = attack.judge(attack.run(view, torch.Generator().manual_seed(0)), view, truth)
    diagnostics = finding.diagnostics
    assert diagnostics["recovered"] > 0 and diagnostics["records"] == len(played.shard.train)
    assert diagnostics["detected"] > diagnostics["false_alarms"]
    assert not any(
        is_applicable_to(attack, surface, Adversary.SERVER, worlds) for worlds in (0, 8)
    )  # of the run itself: nothing


def test_a_method_that_is_not_asked_has_no_such_view() -> None:
    assert list(malicious_server_views(scene_malicious("feddm"), ATTACKS)) == []


def test_noise_of_dp_sgd_hides_what_the_imprint_held() -> None:
    ((view, truth, _, _, attack),) = list(
        malicious_server_views(scene_malicious("fedavg", "privacy=dpsgd"), ATTACKS)
    )
    finding = attack.judge(attack.run(view, torch.Generator().manual_seed(0)), view, truth)
    assert finding.diagnostics["recovered"] == 0


def test_the_clients_update_starts_from_the_chosen_model() -> None:
    ((view, *_),) = list(malicious_server_views(scene_malicious("fedavg"), ATTACKS))
    weight, _ = first_layer_names(view.knowledge.model)
    sent = view.captures[0]
    assert torch.equal(sent.broadcast[weight], view.knowledge.model.state_dict()[weight])
    change = (sent.value[weight] - sent.broadcast[weight]).norm()
    assert 0 < change < 0.1 * sent.broadcast[weight].norm()


def test_attacks_that_are_off_by_default_are_asked_for_by_name() -> None:
    asked = {"imprint", "planted_embedding", "label_only", "quantile_regression", "rmia_offline"}
    asked |= {"fedmia", "source_inference", "distiller_inference", "soft_labels"}
    asked |= {"stacking", "indirect_queries"}
    assert not asked & set(default_attacks([config_dir()]))
    (line,) = expand_arguments(["attack=[all,imprint]"], "audit")
    assert line == f"attack=[{','.join([*default_attacks([config_dir()]), 'imprint'])}]"
    made = build_attacks(compose_config("audit", [f"attack=[{','.join(asked)}]"]))
    assert {name: attack.name for name, attack in made.items()} == {name: name for name in asked}


@pytest.mark.parametrize(
    ("read", "asked", "said"),
    [
        (6, 16, ""),
        (
            4,
            4,
            "4 of 6 rounds of the phase are read (audit.replays or audit.rounds): more may show "
            "more",
        ),
        (4, 16, "4 of 6 rounds of the phase are read: no more are kept"),
    ],
)
def test_rounds_that_were_not_read_are_counted(read: int, asked: int, said: str) -> None:
    """Of eight rounds the client takes part in seven, of which one is of another phase."""
    method: Any = SimpleNamespace(
        rounds=8, audit_hooks=SimpleNamespace(phase=lambda t: "start" if t == 0 else "train")
    )
    plan: Any = SimpleNamespace(
        method=method, victim=0, participants=lambda t: [1] if t == 5 else [0, 1]
    )
    worlds: Any = SimpleNamespace(rounds={"update": torch.zeros(3, 2, read)})
    view: Any = SimpleNamespace(worlds=worlds, captures=[SimpleNamespace(round=1)])
    assert describe_read_rounds(plan, view, asked) == said
