"""Whole federations replayed for those who see only what the server sends, through the audit command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from attacks.membership.signals import logit_scaled
from privdd.auditing import shadow_models as federations
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.pipeline import membership_game_of
from privdd.auditing.replay import plan_of_replay
from privdd.cli import main as command
from privdd.cli.build import build_experiment
from privdd.cli.run import run_audit
from privdd.cli.stored_config import load_stored_config
from privdd.core.types import State
from privdd.federated import simulation
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import read_tensors
from tests.federations import equal, tiny, tiny_config

WORLDS = 5
SMALL = ("audit.records=20", "audit.worlds=3", "attack=[lira]")
AUDIT = [
    "algo=scaffold", "model=mlp", "preset=smoke", "data.limit=150", "data.test_limit=40", "partition=iid", "partition.clients=3",
    "algo.rounds=2", "algo.local_epochs=2", "audit.records=20", f"audit.worlds={WORLDS}", f"audit.federations={WORLDS}", "audit.federation_rounds=0",
    "audit.victims=1", "attack=[lira,loss_threshold,label_counts]", "audit.waive.control_variate=elsewhere",
]  # fmt: skip


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """audit(folder, more...) -> findings.json of ``python -m privdd.audit`` into that folder, status 0."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("hydra.core.utils", "hydra._internal.hydra"):
            patch.setattr(f"{module}.configure_log", lambda *_, **__: None)
        patch.setattr("privdd.reporting.page.write_report", lambda path: path / "report.html")  # drawn elsewhere, and slow
        patch.chdir(tmp_path_factory.mktemp("federations"))

        def call(folder: Path, *arguments: str) -> dict[str, Any]:
            patch.setattr(sys, "argv", ["privdd-audit", *arguments])
            GlobalHydra.instance().clear()
            assert command.main("audit", run_audit) == 0
            return json.loads((folder / "findings.json").read_text())

        yield call


@pytest.fixture(scope="module")
def finished(audit: Callable[..., dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    folder = Path.cwd() / "run"
    return folder, audit(folder, *AUDIT, f"hydra.run.dir={folder}")


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k != "seconds"}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def test_what_the_server_sends_is_attacked_over_all_worlds(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, found = finished
    lira = {(f["surface"], f["adversary"]): f for f in found["findings"] if f["attack"] == "lira"}
    model = lira[("global_model", "public")]
    assert model["worlds"] == WORLDS and model["n"] == 20
    assert 0 <= model["auc_ci"][0] <= model["auc"] <= model["auc_ci"][1] <= 1
    assert next(s for s in found["surfaces"] if s["surface"] == "global_model")["audited"] is True
    kept = read_tensors(folder / "evidence" / "global_model.lira.safetensors")
    experiment = build_experiment(load_stored_config(folder))
    assert torch.equal(kept["members"].bool().view(WORLDS, -1), membership_game_of(experiment).masks)


def test_each_world_is_the_federation_without_its_absent_records(finished: tuple[Path, dict[str, Any]]) -> None:
    """World 3 by hand: a loop over rounds and clients, nothing of the stack's own."""
    folder, _ = finished
    experiment = build_experiment(load_stored_config(folder))
    plan, game, victim = experiment.plan, membership_game_of(experiment), experiment.plan.victim
    shards = list(experiment.shards)
    gone = set(game.audited_records.ids[~game.masks[3]].tolist())
    whole = shards[victim].train
    shards[victim] = shards[victim].with_train(whole.take(torch.tensor([i not in gone for i in whole.ids.tolist()])))
    server = plan.method.init(plan.problem, plan.keys.fold("public", "init"))
    memories: dict[int, State] = {}
    keys = plan.keys.fold("world", 3)
    for t in range(2):
        sent, inbox = plan.method.broadcast(server), []
        for client, shard in enumerate(shards):
            ctx = plan.client_context(t, client)
            ctx.keys = keys.fold("round", t, "client", client)
            upload, memories[client] = plan.method.local(sent, memories.get(client, {}), shard, ctx)
            inbox.append(plan.channel.send(upload, ctx)[0])
        server = plan.method.aggregate(server, inbox, keys.fold("round", t, "server"))
    logits = plan.method.predict(server, None, game.audited_records.x)
    (file,) = folder.glob("worlds/federation-*/world_0003.safetensors")
    kept = read_tensors(file)
    assert torch.equal(kept["global_model|logits"], logits)
    assert torch.equal(kept["global_model|confidence"], logit_scaled(logits, game.audited_records.y).float())
    others = [read_tensors(p)["global_model|logits"] for p in file.parent.glob("world_*") if p != file]
    assert len(others) == WORLDS - 2 and not any(torch.equal(logits, other) for other in others)


def test_lost_and_damaged_worlds_are_replayed_and_the_others_are_not(
    finished: tuple[Path, dict[str, Any]], audit: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = finished
    (place,) = folder.glob("worlds/federation-*")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    assert sorted(before) == [f"world_{w:04d}.safetensors" for w in range(1, WORLDS)]
    (place / "world_0002.safetensors").unlink()
    (place / "world_0004.safetensors").write_bytes(b"not tensors")
    ran, real = [], federations.run_federation_replay

    def counted(task: Any) -> Any:
        ran.append(task.world)
        return real(task)

    monkeypatch.setattr(federations, "run_federation_replay", counted)
    again = audit(folder, f"resume={folder}")
    assert ran == [2, 4]
    assert timeless(again) == timeless(found)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_without_federations_the_model_has_one_world_and_wide_networks_serve_as_well(
    finished: tuple[Path, dict[str, Any]], audit: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    more = [a for a in AUDIT if not a.startswith("audit.federations")]
    found = audit(tmp_path, *more, "audit.training=vectorised", f"hydra.run.dir={tmp_path}")
    (row,) = json.loads((tmp_path / "manifest.json").read_text())["worlds"]
    assert row["training"] == "vectorised"
    mine = [f for f in found["findings"] if f["surface"] == "global_model"]
    assert mine and all(f["worlds"] == 1 and f["attack"] != "lira" for f in mine)
    assert not list(tmp_path.glob("worlds/federation-*"))


def test_the_manifest_says_how_worlds_were_trained(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = finished
    (row,) = json.loads((folder / "manifest.json").read_text())["worlds"]
    assert row["round"] == 1 and row["training"] == "loop" and "too few" in row["why"]


def test_who_takes_part_is_public_and_the_same_in_every_world() -> None:
    plan = tiny("fedrd", "participation=0.34").plan
    drawn = [plan.participants(t) for t in range(20)]
    assert len({tuple(k) for k in drawn}) > 1  # some rounds draw others
    for world in (1, 2, 9):
        assert [plan_of_replay(plan, world).participants(t) for t in range(20)] == drawn


def test_a_limit_for_whole_clients_does_not_judge_single_records(audit: Callable[..., dict[str, Any]]) -> None:
    base = [a for a in AUDIT if not a.startswith(("algo=scaffold", "audit.federations", "audit.waive"))]
    asked = ["algo=fedavg", "privacy=client", "audit.waive.global_model=elsewhere", "audit.guarantee.runs=40"]
    limits = {}
    for relation in ("zero_out", "replace"):
        folder = Path.cwd() / f"clients-{relation}"
        found = audit(folder, *base, *asked, f"privacy.relation={relation}", f"hydra.run.dir={folder}")
        assert found["privacy"]["unit"] == "client"
        kinds = {f["family"]: "epsilon_stated" in f for f in found["findings"] if "epsilon_measured" in f}
        limits[relation] = kinds["membership"], kinds["guarantee"]
    assert limits == {"zero_out": (False, True), "replace": (True, True)}


@pytest.mark.parametrize("algo", ["scaffold", "fedproto"])
def test_shared_rounds_are_played_once_and_the_others_are_each_worlds_own(algo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By hand: one round with the coins of the shared start, then one of each world's own, memories included."""
    made = build_experiment(tiny_config(algo, *SMALL, command="audit"))
    plan, victim = made.plan, made.plan.victim
    whole, game = made.shards[victim], membership_game_of(made)
    assert plan.method.rounds == 2
    played = []
    monkeypatch.setattr(federations, "run_round", lambda p, progress, *rest: played.append(progress.round) or simulation.run_round(p, progress, *rest))
    lens = AdversaryView(plan.method, plan.problem, simulation.Snapshot(1, plan.method.broadcast(plan.method.init(plan.problem, plan.keys)), {}), game.audited_records, made.test_records, {}, frozenset(), {})
    begun = federations._run_shared_rounds(plan, made.new_ledger(), made.shards, whole, game, 1)
    keys = plan.keys.fold("world", "shared")
    coins = torch.rand(1, 20, generator=keys.fold("secret", "coins").torch()) < 0.5
    kept = torch.ones(len(whole.train), dtype=torch.bool)
    kept[game.audited] = coins[0]
    shards = list(made.shards)
    shards[victim] = whole.with_train(whole.train.take(kept))
    by_hand = simulation.start_training(plan, made.new_ledger())
    by_hand, _, _ = simulation.run_round(replace(plan, keys=keys), by_hand, shards, Engine())
    assert begun.round == 1 and equal(begun.server, by_hand.server) and equal(begun.memories, by_hand.memories)
    shards[victim] = game.shard_of_replay(whole, 2)
    own = replace(plan, keys=plan.keys.fold("world", 2))
    by_hand, _, _ = simulation.run_round(own, by_hand, shards, Engine())
    done = federations.run_rounds_until(own, begun, shards, 2)
    assert equal(done.server, by_hand.server)
    found = federations.FederationReplay(plan, shards, lens, 2, begun).run()
    expected = federations.server_signals(plan, by_hand.server, replace(lens, memory=by_hand.memories.get(victim, {})), plan.method.broadcast(by_hand.server))
    assert equal(found, expected) and found
    assert played == [0, 1, 1]
    assert [federations.count_shared_rounds(plan.method, n) for n in (0, 1, 2, 5)] == [0, 1, 0, 0]


def test_the_shared_coins_are_not_those_of_the_run() -> None:
    """Else the replays would know more about the run's members than an adversary who saw the final model alone."""
    made = build_experiment(tiny_config("fedavg", *SMALL, command="audit"))
    whole, game = made.shards[made.plan.victim], membership_game_of(made)
    flipped = replace(game, masks=~game.masks)
    a, b = (federations._run_shared_rounds(made.plan, made.new_ledger(), made.shards, whole, g, 1) for g in (game, flipped))
    assert equal(a.server, b.server)


@pytest.mark.parametrize(
    "more",
    [
        ("privacy=client",), ("privacy=client", "privacy.relation=replace", "privacy.delta=1e-3"), ("privacy=client", "trust=secagg"),
        ("privacy=dpsgd", "privacy.relation=add_remove"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_replays_write_their_ledger_under_the_terms_of_the_run(audit: Callable[..., dict[str, Any]], more: tuple[str, ...], tmp_path: Path) -> None:
    """A ledger made anew with default settings refuses the rows of a client-level mechanism."""
    found = audit(tmp_path, *AUDIT, "algo=fedavg", "audit.federation_rounds=1", *more, f"hydra.run.dir={tmp_path}")
    assert found["privacy"]["unit"] == ("client" if more[0] == "privacy=client" else "record")
    assert len(list(tmp_path.glob("worlds/federation-*/world_*.safetensors"))) == WORLDS - 1
