"""Replays of several rounds: the same coins in all, what each round's own replay gives, and caches that stay good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from privdd.auditing.replay import ClientReplay, round_chain
from privdd.auditing.shadow_models import (
    ShadowTraining,
    plan_shadow_trainings,
    rounds_to_combine,
    signals_of_audited_rounds,
    stack_over_rounds,
)
from privdd.auditing.signal_extraction import extract_signals
from privdd.auditing.views import client_views
from privdd.federated.simulation import Snapshot
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors
from tests.auditing.test_shadow_models_shadows import WORLDS, files, scene, signals


def at(round: int, phase: str, *names: str) -> Snapshot:
    return Snapshot(round, {}, {}, {name: {} for name in names}, phase)


def test_rounds_are_of_one_phase_and_kind_and_evenly_spaced() -> None:
    kept = {t: at(t, "a", "x") for t in range(9)} | {20: at(20, "b", "x"), 21: at(21, "b", "x", "y"), 30: at(30, "b", "x")}
    assert rounds_to_combine(kept, 1) == {8: (8,), 21: (21,), 30: (30,)}
    assert rounds_to_combine(kept, 3) == {8: (0, 4, 8), 21: (21,), 30: (20, 30)}
    assert rounds_to_combine(kept, 99)[8] == tuple(range(9))


def staged(algo: str, folder: Path, most: int, training: str = "loop") -> tuple[dict[int, ShadowTraining], dict[int, tuple[int, ...]]]:
    made = scene(algo)
    whole, snapshots = made.experiment.shards[made.plan.victim], made.progress.snapshots
    grouped = rounds_to_combine(snapshots, most)

    def make(t: int) -> ShadowTraining:
        return ShadowTraining(made.plan, snapshots, t, whole, made.game, made.adversary_view(t), RunFolder(folder), Engine(), "config", training)

    return plan_shadow_trainings(make, made.adversary_view, grouped), grouped


@pytest.mark.parametrize(("algo", "training"), [("fedavg", "loop"), ("fedavg", "vectorised"), ("scaffold", "loop"), ("scaffold", "vectorised")])
def test_each_round_is_what_its_own_replay_gives(algo: str, training: str, tmp_path: Path) -> None:
    made = scene(algo)
    stages, grouped = staged(algo, tmp_path, 8, training)
    ((last, rounds),) = grouped.items()
    assert len(rounds) == made.plan.method.rounds >= 2
    assert set(stages) == ({last} if algo == "scaffold" else set(rounds))  # one replay passes all rounds, or one each
    found = stack_over_rounds({t: signals(one) for t, one in stages.items()}, grouped)[last]
    whole = made.experiment.shards[made.plan.victim]
    for place, t in enumerate(rounds):
        chain = round_chain(made.plan, made.progress.snapshots, t)
        (sent,) = ClientReplay(made.plan, chain, whole, made.game, [5]).run() or [{}]
        alone, real = (extract_signals(made.adversary_view(t), values) for values in (sent, made.progress.snapshots[t].sent))
        for key in ("update|confidence", "update|alignment"):
            assert torch.allclose(found[key][5, :, place], alone[key], atol=2e-3)
            assert torch.equal(found[key][0, :, place], real[key])


def test_single_round_attacks_read_the_audited_round_alone(tmp_path: Path) -> None:
    stages, grouped = staged("scaffold", tmp_path, 8)
    stacked = {t: signals(one) for t, one in stages.items()}
    ((last, rounds),) = grouped.items()
    own = signals_of_audited_rounds(stacked, grouped)[last]
    assert own and not any("@" in key for key in own)
    views: Any = client_views(scene("scaffold"), last, own, stack_over_rounds(stacked, grouped)[last])
    for view in views:
        for name, value in view.worlds.rounds.items():
            assert value.shape == (WORLDS, 20, len(rounds)) and torch.equal(value[..., -1], view.worlds.signals[name])


def test_worlds_of_an_audit_of_one_round_are_used_again(tmp_path: Path) -> None:
    """Where rounds are replayed one by one; where one replay passes all, the files are read as far as they go."""
    one, _ = staged("fedavg", tmp_path, 1)
    first = {t: signals(stage) for t, stage in one.items()}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("worlds/*/world_*")}
    many, _ = staged("fedavg", tmp_path, 8)
    again = {t: signals(stage) for t, stage in many.items()}
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert all(torch.equal(again[t][key], value) for t in first for key, value in first[t].items())


def test_a_file_with_more_than_is_asked_for_is_used_and_one_with_less_is_not(tmp_path: Path) -> None:
    stages, _ = staged("scaffold", tmp_path, 8)
    full = {t: signals(stage) for t, stage in stages.items()}
    path = files(tmp_path)[3]
    held, when = read_tensors(path), path.stat().st_mtime_ns
    alone, _ = staged("scaffold", tmp_path, 1)
    for t, stage in alone.items():
        found = signals(stage)
        assert not any("@" in key for key in found) and path.stat().st_mtime_ns == when
        assert all(torch.equal(value, full[t][key]) for key, value in found.items())
    write_tensors(path, {key: value for key, value in held.items() if "@" not in key})
    for t, stage in staged("scaffold", tmp_path, 8)[0].items():
        found = signals(stage)
        assert all(torch.equal(value, full[t][key]) for key, value in found.items())
