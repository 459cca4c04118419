"""Worlds of one pass and of wide networks: what a separate replay gives, wherever an audit was stopped."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from io import StringIO
from pathlib import Path

import pytest
import torch

from privdd.auditing import shadow_models as replays
from privdd.auditing.replay import ClientReplay, draw_membership_game, group_replays, round_chain
from privdd.auditing.shadow_models import ShadowTraining
from privdd.auditing.views import FinishedRun
from privdd.federated.simulation import Progress, run_round, start_training
from privdd.runtime.engine import Engine
from privdd.runtime.progress import ProgressBar
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors
from tests.federations import equal, tiny

WORLDS = 12
ALGOS = {
    "fedavg": ["model=mlp"],
    "scaffold": ["model=smallcnn"],
    "fedprox": ["model=mlp", "algo.mu=0.5"],
    "fednova": ["model=smallcnn"],
    "feddm": ["algo.start=noise"],
    "fedlgd": [],
}


@lru_cache
def scene(algo: str) -> FinishedRun:
    """A finished run of the tiny federation and a game of twelve worlds."""
    experiment = tiny(algo, *ALGOS[algo])
    shards, victim = list(experiment.shards), experiment.plan.victim
    game = draw_membership_game(shards[victim], 20, WORLDS, experiment.plan.keys.fold("audit", victim), experiment.plan.relation)
    shards[victim] = game.shard_of_replay(shards[victim], 0)
    progress: Progress = start_training(experiment.plan, experiment.new_ledger())
    while progress.round < experiment.plan.method.rounds:
        progress, _, _ = run_round(experiment.plan, progress, shards, Engine())
    return FinishedRun(experiment, progress, game, shards[victim])


def stage(made: FinishedRun, folder: Path, training: str, engine: Engine | None = None) -> ShadowTraining:
    t = 0 if made.plan.method.__class__.__name__ in ("FedDM", "FedLGD") else max(made.progress.snapshots)
    whole = made.experiment.shards[made.plan.victim]
    lens, run = made.adversary_view(t), RunFolder(folder)
    return ShadowTraining(made.plan, made.progress.snapshots, t, whole, made.game, lens, run, engine or Engine(), "config", training)


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
    assert all(more[at][: len(group)] == group for at, group in enumerate(groups))  # groups only grow at the end


@pytest.mark.parametrize("algo", ["fedavg", "scaffold", "fedprox", "fednova"])
def test_wide_networks_give_what_separate_replays_give(algo: str) -> None:
    """Every artifact of every world within 1e-5, through the chain of rounds where clients remember."""
    made = scene(algo)
    t, whole = max(made.progress.snapshots), made.experiment.shards[made.plan.victim]
    chain = round_chain(made.plan, made.progress.snapshots, t)
    assert len(chain) == (made.plan.method.rounds if algo == "scaffold" else 1)
    together = ClientReplay(made.plan, chain, whole, made.game, range(1, 8), batched=True).run()
    assert together is not None and len(together) == 7
    for world, sent in zip(range(1, 8), together):
        (alone,) = ClientReplay(made.plan, chain, whole, made.game, [world]).run()
        assert sent.keys() == alone.keys()
        for name, value in alone.items():
            assert all(torch.allclose(sent[name][key], tensor, atol=1e-5, rtol=1e-5) for key, tensor in value.items()), name


@pytest.mark.parametrize("start", ["real", "noise", "statistics"])
def test_a_pass_starts_each_world_as_its_own_replay_does(start: str) -> None:
    """With whole classes as batches nothing is shared that matters: one pass equals K separate replays."""
    made = scene("feddm")
    method = replace(made.plan.method, start=start, matching=replace(made.plan.method.matching, batch=10_000))
    plan, snapshot = replace(made.plan, method=method), made.progress.snapshots[0]
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
    warm = replace(virtual, warmup=replace(virtual.warmup, batch=10_000), refine=replace(virtual.refine, batch=10_000))
    plan, snapshot = replace(made.plan, method=replace(made.plan.method, virtual=warm)), made.progress.snapshots[0]
    whole = made.experiment.shards[plan.victim]
    sent = ClientReplay(plan, (snapshot,), whole, made.game, range(1, 4), batched=True).run()
    assert sent is not None
    for world, values in zip(range(1, 4), sent):
        (alone,) = ClientReplay(plan, (snapshot,), whole, made.game, [world]).run()
        assert all(torch.allclose(values["update"][n], t, atol=1e-5) for n, t in alone["update"].items())


@pytest.mark.parametrize(("algo", "training"), [("feddm", "auto"), ("fedavg", "vectorised"), ("scaffold", "vectorised"), ("fedavg", "loop")])
def test_a_stop_inside_a_group_changes_no_bit(algo: str, training: str, tmp_path: Path) -> None:
    """Some worlds of the middle and of the end of a group are gone: the others stay as they are, these come back."""
    made = scene(algo)
    first = signals(stage(made, tmp_path, training))
    before = {world: path.read_bytes() for world, path in files(tmp_path).items()}
    assert sorted(before) == list(range(WORLDS))
    for world in (3, 6, 10, 11):
        files(tmp_path)[world].unlink()
    kept = {world: path.stat().st_mtime_ns for world, path in files(tmp_path).items()}
    assert equal(signals(stage(made, tmp_path, training)), first)
    assert {world: path.read_bytes() for world, path in files(tmp_path).items()} == before
    assert {world: path.stat().st_mtime_ns for world, path in files(tmp_path).items() if world in kept} == kept


def test_a_stop_between_two_files_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, written = scene("feddm"), 0
    whole = signals(stage(made, tmp_path / "whole", "auto"))

    def full(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        nonlocal written
        written += 1
        if written > 5:
            raise OSError("no space left")
        write_tensors(path, tensors)

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
    """Nearly the same signals, in two folders: bits of one are never taken for bits of the other."""
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
