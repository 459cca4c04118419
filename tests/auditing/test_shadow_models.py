"""Tests of ``privdd.auditing.shadow_models``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from attacks.membership.attack import PUBLISHED_QUERY_COUNT
from attacks.membership.signals import logit_scaled
from privdd.auditing import shadow_models as federations
from privdd.auditing import shadow_models as replays
from privdd.auditing.adversary_view import QUERIED_CONFIDENCE, AdversaryView
from privdd.auditing.pipeline import membership_game_of
from privdd.auditing.replay import (
    ClientReplay,
    draw_membership_game,
    group_replays,
    plan_of_replay,
    round_chain,
)
from privdd.auditing.shadow_models import (
    ShadowTraining,
    TrainingChoice,
    plan_shadow_trainings,
    rounds_to_combine,
    signals_of_audited_rounds,
    stack_over_rounds,
)
from privdd.auditing.signal_extraction import extract_signals
from privdd.auditing.views import FinishedRun, client_views
from privdd.cli import main as command
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit
from privdd.cli.stored_config import load_stored_config
from privdd.core.rng import Keys
from privdd.core.types import State, unpack
from privdd.distillation.distribution_matching import draw_transform
from privdd.federated import simulation
from privdd.federated.settings import AuditSettings, GuaranteeBudget
from privdd.federated.simulation import Progress, Snapshot, run_round, start_training
from privdd.runtime.engine import Engine
from privdd.runtime.progress import ProgressBar
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors
from tests.federations import equal, tiny, tiny_config

# Whole federations replayed for those who see only what the server sends, through the audit
# command.


WORLDS_FEDERATIONS = 5
SMALL = ("audit.records=20", "audit.worlds=3", "attack=[lira]")
AUDIT = [
    "algo=scaffold",
    "model=mlp",
    "preset=smoke",
    "data.limit=150",
    "data.test_limit=40",
    "partition=iid",
    "partition.clients=3",
    "algo.rounds=2",
    "algo.local_epochs=2",
    "audit.records=20",
    f"audit.worlds={WORLDS_FEDERATIONS}",
    f"audit.federations={WORLDS_FEDERATIONS}",
    "audit.federation_rounds=0",
    "audit.victims=1",
    "attack=[lira,loss_threshold,label_counts]",
    "audit.waive.control_variate=elsewhere",
]


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """audit(folder, more...) -> findings.json of ``python -m privdd.audit`` into that folder,
    status 0."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("hydra.core.utils", "hydra._internal.hydra"):
            patch.setattr(f"{module}.configure_log", lambda *_, **__: None)
        # drawn elsewhere, and slow
        patch.setattr("privdd.reporting.page.write_report", lambda path: path / "report.html")
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


def test_what_the_server_sends_is_attacked_over_all_worlds(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = finished
    lira = {(f["surface"], f["adversary"]): f for f in found["findings"] if f["attack"] == "lira"}
    model = lira[("global_model", "public")]
    assert model["worlds"] == WORLDS_FEDERATIONS and model["n"] == 20
    assert 0 <= model["auc_ci"][0] <= model["auc"] <= model["auc_ci"][1] <= 1
    assert next(s for s in found["surfaces"] if s["surface"] == "global_model")["audited"] is True
    kept = read_tensors(folder / "evidence" / "global_model.lira.safetensors")
    experiment = build_experiment(load_stored_config(folder))
    assert torch.equal(
        kept["members"].bool().view(WORLDS_FEDERATIONS, -1), membership_game_of(experiment).masks
    )


def test_each_world_is_the_federation_without_its_absent_records(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    """World 3 by hand: a loop over rounds and clients, nothing of the stack's own."""
    folder, _ = finished
    experiment = build_experiment(load_stored_config(folder))
    plan = experiment.plan
    game = membership_game_of(experiment)
    victim = experiment.plan.victim
    shards = list(experiment.shards)
    gone = set(game.audited_records.ids[~game.masks[3]].tolist())
    whole = shards[victim].train
    shards[victim] = shards[victim].with_train(
        whole.take(torch.tensor([i not in gone for i in whole.ids.tolist()]))
    )
    server = plan.method.init(plan.problem, plan.keys.fold("public", "init"))
    memories: dict[int, State] = {}
    keys = plan.keys.fold("world", 3)
    for t in range(2):
        sent = plan.method.broadcast(server)
        inbox = []
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
    assert torch.equal(
        kept["global_model|confidence"], logit_scaled(logits, game.audited_records.y).float()
    )
    others = [
        read_tensors(p)["global_model|logits"] for p in file.parent.glob("world_*") if p != file
    ]
    assert len(others) == WORLDS_FEDERATIONS - 2 and not any(
        torch.equal(logits, other) for other in others
    )


def test_lost_and_damaged_worlds_are_replayed_and_the_others_are_not(
    finished: tuple[Path, dict[str, Any]],
    audit: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, found = finished
    (place,) = folder.glob("worlds/federation-*")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    assert sorted(before) == [f"world_{w:04d}.safetensors" for w in range(1, WORLDS_FEDERATIONS)]
    (place / "world_0002.safetensors").unlink()
    (place / "world_0004.safetensors").write_bytes(b"not tensors")
    ran = []
    real = federations.run_federation_replay

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


@pytest.mark.nightly
def test_a_limit_for_whole_clients_does_not_judge_single_records(
    audit: Callable[..., dict[str, Any]],
) -> None:
    base = [
        a for a in AUDIT if not a.startswith(("algo=scaffold", "audit.federations", "audit.waive"))
    ]
    asked = [
        "algo=fedavg",
        "privacy=client",
        "audit.waive.global_model=elsewhere",
        "audit.guarantee.runs=40",
    ]
    limits = {}
    for relation in ("zero_out", "replace"):
        folder = Path.cwd() / f"clients-{relation}"
        found = audit(
            folder, *base, *asked, f"privacy.relation={relation}", f"hydra.run.dir={folder}"
        )
        assert found["privacy"]["unit"] == "client"
        kinds = {
            f["family"]: "epsilon_stated" in f for f in found["findings"] if "epsilon_shown" in f
        }
        limits[relation] = kinds["membership"], kinds["guarantee"]
    assert limits == {"zero_out": (False, True), "replace": (True, True)}


@dataclass(frozen=True)
class Counting(Engine):
    """Serial; tasks: how many each call was given."""

    tasks: list[int] = field(default_factory=list)

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        work = list(items)
        self.tasks.append(len(work))
        return super().map(fn, work)


@pytest.mark.parametrize("algo", ["scaffold", "fedproto"])
def test_shared_rounds_are_played_once_and_the_others_are_each_worlds_own(
    algo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By hand: one round with the coins of the shared start, then one of each world's own, memories
    included."""
    made = build_experiment(tiny_config(algo, *SMALL, command="audit"))
    plan = made.plan
    victim = made.plan.victim
    whole = made.shards[victim]
    game = membership_game_of(made)
    assert plan.method.rounds == 2
    played = []
    monkeypatch.setattr(
        federations,
        "run_round",
        lambda p, progress, *rest: (
            played.append(progress.round) or simulation.run_round(p, progress, *rest)
        ),
    )
    lens = AdversaryView(
        plan.method,
        plan.problem,
        simulation.Snapshot(
            1, plan.method.broadcast(plan.method.init(plan.problem, plan.keys)), {}
        ),
        game.audited_records,
        made.test_records,
        {},
        frozenset(),
        {},
    )
    engine = Counting()
    begun = federations._run_shared_rounds(
        plan, made.new_ledger(), made.shards, whole, game, 1, engine
    )
    assert engine.tasks == [3]  # the clients of the shared round are spread over workers
    keys = plan.keys.fold("world", "shared")
    coins = torch.rand(1, 20, generator=keys.fold("secret", "coins").torch()) < 0.5
    kept = torch.ones(len(whole.train), dtype=torch.bool)
    kept[game.audited] = coins[0]
    shards = list(made.shards)
    shards[victim] = whole.with_train(whole.train.take(kept))
    by_hand = simulation.start_training(plan, made.new_ledger())
    by_hand, _, _ = simulation.run_round(replace(plan, keys=keys), by_hand, shards, Engine())
    assert (
        begun.round == 1
        and equal(begun.server, by_hand.server)
        and equal(begun.memories, by_hand.memories)
    )
    shards[victim] = game.shard_of_replay(whole, 2)
    own = replace(plan, keys=plan.keys.fold("world", 2))
    by_hand, _, _ = simulation.run_round(own, by_hand, shards, Engine())
    done = federations.run_rounds_until(own, begun, shards, 2, Engine())
    assert equal(done.server, by_hand.server)
    found = federations.FederationReplay(plan, shards, lens, 2, begun).run()
    expected = federations.server_signals(
        plan,
        by_hand.server,
        replace(lens, memory=by_hand.memories.get(victim, {})),
        plan.method.broadcast(by_hand.server),
    )
    assert equal(found, expected) and found
    assert played == [0, 1, 1]
    assert [federations.count_shared_rounds(plan.method, n) for n in (0, 1, 2, 5)] == [0, 1, 0, 0]


def test_the_shared_coins_are_not_those_of_the_run() -> None:
    """Else the replays would know more about the run's members than an adversary who saw the final
    model alone."""
    made = build_experiment(tiny_config("fedavg", *SMALL, command="audit"))
    whole = made.shards[made.plan.victim]
    game = membership_game_of(made)
    flipped = replace(game, masks=~game.masks)
    a, b = (
        federations._run_shared_rounds(
            made.plan, made.new_ledger(), made.shards, whole, g, 1, Engine()
        )
        for g in (game, flipped)
    )
    assert equal(a.server, b.server)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "more",
    [
        ("privacy=client",),
        ("privacy=client", "privacy.relation=replace", "privacy.delta=1e-3"),
        ("privacy=client", "trust=secagg"),
        ("privacy=dpsgd", "privacy.relation=add_remove"),
    ],
    ids=" ".join,
)
def test_replays_write_their_ledger_under_the_terms_of_the_run(
    audit: Callable[..., dict[str, Any]], more: tuple[str, ...], tmp_path: Path
) -> None:
    """A ledger made anew with default settings refuses the rows of a client-level mechanism."""
    found = audit(
        tmp_path,
        *AUDIT,
        "algo=fedavg",
        "audit.federation_rounds=1",
        *more,
        f"hydra.run.dir={tmp_path}",
    )
    assert found["privacy"]["unit"] == ("client" if more[0] == "privacy=client" else "record")
    assert (
        len(list(tmp_path.glob("worlds/federation-*/world_*.safetensors")))
        == WORLDS_FEDERATIONS - 1
    )


# Worlds of one pass and of wide networks: what a separate replay gives, wherever an audit was
# stopped.


WORLDS = 12
ALGOS = {
    "fedavg": ["model=mlp"],
    "scaffold": ["model=smallcnn"],
    "fedprox": ["model=mlp", "algo.mu=0.5"],
    "fednova": ["model=smallcnn"],
    "feddm": ["algo.start=noise"],
    "fedlgd": [],
    "fedrd": [],
}


@lru_cache
def scene(algo: str) -> FinishedRun:
    """A finished run of the tiny federation and a game of twelve worlds."""
    experiment = tiny(algo, *ALGOS[algo])
    shards = list(experiment.shards)
    victim = experiment.plan.victim
    game = draw_membership_game(
        shards[victim],
        20,
        WORLDS,
        experiment.plan.keys.fold("audit", victim),
        experiment.plan.relation,
    )
    shards[victim] = game.shard_of_replay(shards[victim], 0)
    progress: Progress = start_training(experiment.plan, experiment.new_ledger())
    while progress.round < experiment.plan.method.rounds:
        progress, _, _ = run_round(experiment.plan, progress, shards, Engine())
    return FinishedRun(experiment, progress, game, shards[victim])


def stage(
    made: FinishedRun, folder: Path, training: str, engine: Engine | None = None
) -> ShadowTraining:
    t = (
        0
        if made.plan.method.__class__.__name__ in ("FedDM", "FedLGD")
        else max(made.progress.snapshots)
    )
    whole = made.experiment.shards[made.plan.victim]
    lens = made.adversary_view(t)
    run = RunFolder(folder)
    return ShadowTraining(
        made.plan,
        made.progress.snapshots,
        t,
        whole,
        made.game,
        lens,
        run,
        engine or Engine(),
        "config",
        training,
    )


def signals(one: ShadowTraining) -> dict[str, torch.Tensor]:
    return one.collect_signals(ProgressBar("worlds", WORLDS, StringIO()))


def files(folder: Path) -> dict[int, Path]:
    return {int(p.stem.split("_")[1]): p for p in folder.glob("worlds/*/world_*.safetensors")}


@pytest.mark.parametrize(("worlds", "size"), [(1, 8), (2, 8), (8, 8), (9, 8), (64, 16), (12, 1)])
def test_every_world_but_the_first_is_in_one_group_of_fixed_bounds(worlds: int, size: int) -> None:
    groups = group_replays(worlds, size)
    assert [w for group in groups for w in group] == list(range(1, worlds))
    assert all(w // size == group[0] // size for group in groups for w in group)
    more = group_replays(worlds + 50, size)
    assert all(
        more[at][: len(group)] == group for at, group in enumerate(groups)
    )  # groups only grow at the end


@pytest.mark.parametrize("algo", ["fedavg", "scaffold", "fedprox", "fednova"])
def test_wide_networks_give_what_separate_replays_give(algo: str) -> None:
    """Every artifact of every world within 1e-5, through the chain of rounds where clients
    remember."""
    made = scene(algo)
    t = max(made.progress.snapshots)
    whole = made.experiment.shards[made.plan.victim]
    chain = round_chain(made.plan, made.progress.snapshots, t)
    assert len(chain) == (made.plan.method.rounds if algo == "scaffold" else 1)
    together = ClientReplay(made.plan, chain, whole, made.game, range(1, 8), batched=True).run()
    assert together is not None and len(together) == 7
    for world, sent in zip(range(1, 8), together):
        (alone,) = ClientReplay(made.plan, chain, whole, made.game, [world]).run()
        assert sent.keys() == alone.keys()
        for name, value in alone.items():
            assert all(
                torch.allclose(sent[name][key], tensor, atol=1e-5, rtol=1e-5)
                for key, tensor in value.items()
            ), name


@pytest.mark.parametrize("start", ["real", "noise", "statistics"])
def test_a_pass_starts_each_world_as_its_own_replay_does(start: str) -> None:
    """With whole classes as batches nothing is shared that matters: one pass equals K separate
    replays."""
    made = scene("feddm")
    method = replace(
        made.plan.method, start=start, matching=replace(made.plan.method.matching, batch=10_000)
    )
    plan = replace(made.plan, method=method)
    snapshot = made.progress.snapshots[0]
    whole = made.experiment.shards[plan.victim]
    sent = ClientReplay(plan, (snapshot,), whole, made.game, range(1, 6), batched=True).run()
    assert sent is not None
    for world, values in zip(range(1, 6), sent):
        (alone,) = ClientReplay(plan, (snapshot,), whole, made.game, [world]).run()
        assert torch.equal(values["labels"]["y"], alone["labels"]["y"])
        assert torch.allclose(values["images"]["x"], alone["images"]["x"], atol=2e-5)
    gap = sent[0]["images"]["x"][:3] - sent[1]["images"]["x"][:3]
    assert float(gap.abs().max()) > 0.1  # they do not start alike


def test_first_rounds_of_fedlgd_are_their_own_replays_too() -> None:
    made = scene("fedlgd")
    virtual = made.plan.method.virtual
    warm = replace(
        virtual,
        warmup=replace(virtual.warmup, batch=10_000),
        refine=replace(virtual.refine, batch=10_000),
    )
    plan = replace(made.plan, method=replace(made.plan.method, virtual=warm))
    snapshot = made.progress.snapshots[0]
    whole = made.experiment.shards[plan.victim]
    sent = ClientReplay(plan, (snapshot,), whole, made.game, range(1, 4), batched=True).run()
    assert sent is not None
    for world, values in zip(range(1, 4), sent):
        (alone,) = ClientReplay(plan, (snapshot,), whole, made.game, [world]).run()
        assert all(
            torch.allclose(values["update"][n], t, atol=1e-5) for n, t in alone["update"].items()
        )


def few_worlds(algo: str) -> FinishedRun:
    made = scene(algo)
    return replace(made, game=replace(made.game, masks=made.game.masks[:3]))


@pytest.mark.parametrize(
    ("algo", "surface"), [("fedlgd", "update"), ("fedrd", "synthetic_representations")]
)
def test_records_that_are_read_transformed_are_asked_about_in_copies(
    algo: str, surface: str, tmp_path: Path
) -> None:
    """The record first, each copy under a draw of its own; the same seed asks the same."""
    made = few_worlds(algo)
    training = stage(made, tmp_path / "a", "auto")
    stacked = signals(training)
    (view,) = [
        view for view in client_views(made, training.round, stacked) if view.surface == surface
    ]
    assert view.worlds is not None and QUERIED_CONFIDENCE not in view.worlds.signals
    queried = view.worlds.queries["confidence"]
    assert queried.shape == (3, 20, PUBLISHED_QUERY_COUNT)
    assert torch.equal(queried[..., 0], view.worlds.signals["confidence"])
    assert (
        len(queried.flatten(0, 1).T.unique(dim=0)) >= 12
    )  # an image of 8 x 8 has few crops: some draws are alike
    assert equal(stacked, signals(stage(made, tmp_path / "b", "auto")))
    lens = training.adversary
    sent = made.progress.snapshots[training.round].sent
    plain = extract_signals(replace(lens, query_keys=None), sent)
    asked = extract_signals(lens, sent)
    assert asked.keys() - plain.keys() == {f"{surface}|{QUERIED_CONFIDENCE}"}
    assert all(torch.equal(asked[key], value) for key, value in plain.items())
    other = extract_signals(replace(lens, query_keys=Keys(1)), sent)
    assert not torch.equal(
        other[f"{surface}|{QUERIED_CONFIDENCE}"], asked[f"{surface}|{QUERIED_CONFIDENCE}"]
    )


def test_copies_are_drawn_as_the_distillation_draws_its_transforms(tmp_path: Path) -> None:
    """By hand, for the client's and the server's model: draw 5, then the model, then the logarithm
    of the odds."""
    made = few_worlds("fedlgd")
    plan = made.plan
    lens = made.adversary_view(0)
    drawn = plan.keys.fold("audit", "queries", 5).torch()
    copies = draw_transform(plan.method.virtual.warmup.augment, plan.problem.shape, drawn)(
        lens.candidates.x
    )
    sent = made.progress.snapshots[0].sent
    model = plan.method.classifier(plan.problem).eval()
    for state, found in (
        (sent["update"], extract_signals(lens, sent)["update|queried_confidence"]),
        (
            unpack("model", made.progress.server),
            federations.server_signals(
                plan, made.progress.server, lens, plan.method.broadcast(made.progress.server)
            )["global_model|queried_confidence"],
        ),
    ):
        model.load_state_dict(dict(state))
        with torch.no_grad():
            expected = logit_scaled(model(copies), lens.candidates.y).float()
        torch.testing.assert_close(found[:, 5], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("algo", ["feddm", "fedavg"])
def test_records_that_are_read_as_they_are_are_asked_about_once(algo: str, tmp_path: Path) -> None:
    made = few_worlds(algo)
    training = stage(made, tmp_path, "auto")
    assert training.adversary.copies_of_records() == []
    for view in client_views(made, training.round, signals(training)):
        assert view.worlds is not None and not view.worlds.queries


@pytest.mark.parametrize(
    ("algo", "training"),
    [("feddm", "auto"), ("fedavg", "vectorised"), ("scaffold", "vectorised"), ("fedavg", "loop")],
)
def test_a_stop_inside_a_group_changes_no_bit(algo: str, training: str, tmp_path: Path) -> None:
    """Some worlds of the middle and of the end of a group are gone: the others stay as they are,
    these come back."""
    made = scene(algo)
    first = signals(stage(made, tmp_path, training))
    before = {world: path.read_bytes() for world, path in files(tmp_path).items()}
    assert sorted(before) == list(range(WORLDS))
    for world in (3, 6, 10, 11):
        files(tmp_path)[world].unlink()
    kept = {world: path.stat().st_mtime_ns for world, path in files(tmp_path).items()}
    assert equal(signals(stage(made, tmp_path, training)), first)
    assert {world: path.read_bytes() for world, path in files(tmp_path).items()} == before
    assert {
        world: path.stat().st_mtime_ns for world, path in files(tmp_path).items() if world in kept
    } == kept


def test_a_stop_between_two_files_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scene("feddm")
    written = 0
    whole = signals(stage(made, tmp_path / "whole", "auto"))

    def full(path: Path, tensors: dict[str, torch.Tensor], durable: bool = True) -> None:
        nonlocal written
        written += 1
        if written > 5:
            raise OSError("no space left")
        write_tensors(path, tensors, durable=durable)

    monkeypatch.setattr(replays, "write_tensors", full)
    with pytest.raises(OSError):
        signals(stage(made, tmp_path / "part", "auto"))
    monkeypatch.undo()
    assert sorted(files(tmp_path / "part")) == [0, 1, 2, 3, 4]
    assert equal(signals(stage(made, tmp_path / "part", "auto")), whole)


@pytest.mark.parametrize("world", [0, 4])
@pytest.mark.parametrize("damage", ["other keys", "other shapes", "no tensors", "not readable"])
def test_a_world_that_is_none_of_these_is_replayed(world: int, damage: str, tmp_path: Path) -> None:
    made = scene("fedavg")
    first = signals(stage(made, tmp_path, "loop"))
    path = files(tmp_path)[world]
    good = path.read_bytes()
    wrong = {
        "other keys": {"update|unheard_of": torch.zeros(20)},
        "other shapes": {key: value[:1] for key, value in read_tensors(path).items()},
        "no tensors": {},
    }
    if damage in wrong:
        write_tensors(path, wrong[damage])
    else:
        path.write_bytes(good[:40])
    assert equal(signals(stage(made, tmp_path, "loop")), first)
    assert path.read_bytes() == good


def test_both_ways_of_training_keep_their_own_worlds(tmp_path: Path) -> None:
    """Nearly the same signals, in two folders: bits of one are never taken for bits of the
    other."""
    made = scene("fedavg")
    loop, wide = (signals(stage(made, tmp_path, training)) for training in ("loop", "vectorised"))
    assert len(list(tmp_path.glob("worlds/*/world_0001.safetensors"))) == 2
    assert loop.keys() == wide.keys() and not equal(loop, wide)
    assert all(torch.allclose(loop[k], wide[k], atol=1e-2, rtol=1e-2) for k in loop)
    assert equal(signals(stage(made, tmp_path, "loop")), loop)


def test_engines_agree_on_wide_networks(tmp_path: Path) -> None:
    made = scene("fedavg")
    serial = signals(stage(made, tmp_path / "serial", "vectorised"))
    engine = Engine("processes", workers=2)
    assert equal(signals(stage(made, tmp_path / "processes", "vectorised", engine)), serial)


# Replays of several rounds: the same coins in all, what each round's own replay gives, and caches
# that stay good.


def at(round: int, phase: str, *names: str) -> Snapshot:
    return Snapshot(round, {}, {}, {name: {} for name in names}, phase)


def test_rounds_are_of_one_phase_and_kind_and_evenly_spaced() -> None:
    kept = {t: at(t, "a", "x") for t in range(9)} | {
        20: at(20, "b", "x"),
        21: at(21, "b", "x", "y"),
        30: at(30, "b", "x"),
    }
    assert rounds_to_combine(kept, 1) == {8: (8,), 21: (21,), 30: (30,)}
    assert rounds_to_combine(kept, 3) == {8: (0, 4, 8), 21: (21,), 30: (20, 30)}
    assert rounds_to_combine(kept, 99)[8] == tuple(range(9))


def staged(
    algo: str, folder: Path, most: int, training: str = "loop"
) -> tuple[dict[int, ShadowTraining], dict[int, tuple[int, ...]]]:
    made = scene(algo)
    whole = made.experiment.shards[made.plan.victim]
    snapshots = made.progress.snapshots
    grouped = rounds_to_combine(snapshots, most)

    def make(t: int) -> ShadowTraining:
        return ShadowTraining(
            made.plan,
            snapshots,
            t,
            whole,
            made.game,
            made.adversary_view(t),
            RunFolder(folder),
            Engine(),
            "config",
            training,
        )

    return plan_shadow_trainings(make, made.adversary_view, grouped), grouped


@pytest.mark.nightly(but=["fedavg-vectorised"])
@pytest.mark.parametrize(
    ("algo", "training"),
    [
        ("fedavg", "loop"),
        ("fedavg", "vectorised"),
        ("scaffold", "loop"),
        ("scaffold", "vectorised"),
    ],
)
def test_each_round_is_what_its_own_replay_gives(algo: str, training: str, tmp_path: Path) -> None:
    made = scene(algo)
    stages, grouped = staged(algo, tmp_path, 8, training)
    ((last, rounds),) = grouped.items()
    assert len(rounds) == made.plan.method.rounds >= 2
    assert set(stages) == (
        {last} if algo == "scaffold" else set(rounds)
    )  # one replay passes all rounds, or one each
    found = stack_over_rounds({t: signals(one) for t, one in stages.items()}, grouped)[last]
    whole = made.experiment.shards[made.plan.victim]
    for place, t in enumerate(rounds):
        chain = round_chain(made.plan, made.progress.snapshots, t)
        (sent,) = ClientReplay(made.plan, chain, whole, made.game, [5]).run() or [{}]
        alone, real = (
            extract_signals(made.adversary_view(t), values)
            for values in (sent, made.progress.snapshots[t].sent)
        )
        for key in ("update|confidence", "update|alignment"):
            assert torch.allclose(found[key][5, :, place], alone[key], atol=2e-3)
            assert torch.equal(found[key][0, :, place], real[key])


def test_single_round_attacks_read_the_audited_round_alone(tmp_path: Path) -> None:
    stages, grouped = staged("scaffold", tmp_path, 8)
    stacked = {t: signals(one) for t, one in stages.items()}
    ((last, rounds),) = grouped.items()
    own = signals_of_audited_rounds(stacked, grouped)[last]
    assert own and not any("@" in key for key in own)
    views: Any = client_views(
        scene("scaffold"), last, own, stack_over_rounds(stacked, grouped)[last]
    )
    for view in views:
        for name, value in view.worlds.rounds.items():
            assert value.shape == (WORLDS, 20, len(rounds)) and torch.equal(
                value[..., -1], view.worlds.signals[name]
            )


def test_worlds_of_an_audit_of_one_round_are_used_again(tmp_path: Path) -> None:
    """Where rounds are replayed one by one; where one replay passes all, the files are read as far
    as they go."""
    one, _ = staged("fedavg", tmp_path, 1)
    first = {t: signals(stage) for t, stage in one.items()}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("worlds/*/world_*")}
    many, _ = staged("fedavg", tmp_path, 8)
    again = {t: signals(stage) for t, stage in many.items()}
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert all(torch.equal(again[t][key], value) for t in first for key, value in first[t].items())


def test_a_file_with_more_than_is_asked_for_is_used_and_one_with_less_is_not(
    tmp_path: Path,
) -> None:
    stages, _ = staged("scaffold", tmp_path, 8)
    full = {t: signals(stage) for t, stage in stages.items()}
    path = files(tmp_path)[3]
    held = read_tensors(path)
    when = path.stat().st_mtime_ns
    alone, _ = staged("scaffold", tmp_path, 1)
    for t, stage in alone.items():
        found = signals(stage)
        assert not any("@" in key for key in found) and path.stat().st_mtime_ns == when
        assert all(torch.equal(value, full[t][key]) for key, value in found.items())
    write_tensors(path, {key: value for key, value in held.items() if "@" not in key})
    for t, stage in staged("scaffold", tmp_path, 8)[0].items():
        found = signals(stage)
        assert all(torch.equal(value, full[t][key]) for key, value in found.items())


# How shadow models are trained: one by one or as one wide network, by one rule.


def choice(
    *more: str, worlds: int = 30, algo: str = "fedavg", training: str = "auto"
) -> TrainingChoice:
    """Of a tiny client's replays."""
    made = tiny(algo, *more)
    plan = made.plan
    (whole,) = (s for s in made.shards if s.client == plan.victim)
    game = draw_membership_game(whole, 20, worlds, plan.keys, plan.relation)
    server = plan.method.init(plan.problem, plan.keys)
    ctx = plan.client_context(0, plan.victim)
    sent = {
        name: artifact.value
        for name, artifact in plan.method.local(plan.method.broadcast(server), {}, whole, ctx)[
            0
        ].items()
    }
    snapshots = {0: Snapshot(0, plan.method.broadcast(server), sent)}
    scene = FinishedRun(
        made, Progress(1, server, {}, made.new_ledger(), snapshots=snapshots), game, whole
    )
    view = scene.adversary_view(0)
    return ShadowTraining(
        plan,
        snapshots,
        0,
        whole,
        game,
        view,
        RunFolder(Path("nowhere")),
        Engine(),
        "config",
        training,
    ).training_choice


def test_many_worlds_of_small_images_share_a_wide_network_and_few_do_not() -> None:
    assert choice("model=mlp").training == "vectorised"
    assert choice("model=mlp", worlds=10).training == "vectorised"
    few = choice("model=mlp", worlds=9)  # one of them is the run itself
    assert few.training == "loop" and "too few" in few.why


def test_what_is_asked_for_is_done_where_there_is_such_a_form() -> None:
    assert choice("model=mlp", training="loop") == TrainingChoice("loop", "as asked for")
    assert choice("model=mlp", worlds=3, training="vectorised") == TrainingChoice(
        "vectorised", "as asked for"
    )
    for asked in ("auto", "vectorised"):
        assert choice("model=mlp", algo="moon", training=asked).why.endswith("has no batched form")


def test_replays_that_share_their_work_run_together_however_few() -> None:
    assert choice("model=convnet", algo="feddm", worlds=3) == TrainingChoice(
        "vectorised", "replays share their work"
    )
    assert choice("model=convnet", algo="feddm", worlds=3, training="loop").training == "loop"


SETTINGS = {
    "client": "auto",
    "records": 9,
    "worlds": 3,
    "federations": 0,
    "victims": 1,
    "confidence": 0.95,
    "guarantee": GuaranteeBudget(),
}


def test_a_way_that_does_not_exist_is_one_line() -> None:
    line = "audit.training=fast: allowed are auto, loop, vectorised"
    with pytest.raises(ValueError, match=line):
        AuditSettings(**{**SETTINGS, "training": "fast"})
    with pytest.raises(ValueError, match=line):
        build_experiment(
            compose_config(
                "audit",
                [
                    "algo=fedavg",
                    "preset=smoke",
                    "data.limit=120",
                    "audit.training=fast",
                    "attack=[lira]",
                ],
            )
        )
    for good in ("auto", "loop", "vectorised"):
        assert AuditSettings(**{**SETTINGS, "training": good}).training == good
