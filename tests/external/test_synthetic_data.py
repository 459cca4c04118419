"""Tests of ``privdd.external.synthetic_data``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from attacks.inversion.copy_detection import copies_in_pool, count_copies, nearest_records
from attacks.types import Surface
from privdd import api
from privdd.api import audit_synthetic
from privdd.core.validation import BadConfig
from privdd.distillation.distribution_matching import build_embedder
from privdd.external.records import (
    LabelledRecords,
    coordinate_scales,
    flatten_records,
    records_from_arrays,
)
from privdd.external.run_folder import ExternalAudit, StatedLimit
from privdd.external.synthetic_data import (
    DistributionMatching,
    TableRisk,
    audit_synthetic_data,
    inference_risk,
    linkability_risk,
    make_recipe,
    singling_out_risk,
    synthetic_signals,
)
from privdd.external.trained_model import ExternalAuditSettings
from privdd.models import ModelSpec, build, initial
from privdd.reporting.decision import decide_surfaces
from privdd.verification.run_folder import verify_run
from tests.external.memory import records

# The distillation recipe as a generator: it copies means, repeats itself, and shadow sets of it
# find members.


TINY = DistributionMatching(per_class=2, iterations=3, batch=8, width=4)


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((count, 1, 8, 8)).astype(np.float32), rng.integers(0, 2, count)


def test_a_set_of_the_recipe_is_of_the_records_shape_and_its_seeds() -> None:
    x, y = pictures(40, 0)
    made, labels = TINY(x, y, 5)
    assert (
        made.shape == (4, 1, 8, 8)
        and labels.tolist() == [0, 0, 1, 1]
        and made.min() >= 0
        and made.max() <= 1
    )
    again = TINY(torch.as_tensor(x), torch.as_tensor(y), 5)[0]
    other = TINY(x, y, 6)[0]
    assert torch.equal(made, again) and not torch.equal(made, other)
    assert DistributionMatching(per_class=2.0, iterations=3.0, batch=8.0, width=4.0) == TINY  # type: ignore[arg-type]
    assert type(DistributionMatching(per_class=2.0).per_class) is int  # type: ignore[arg-type]


def test_images_come_nearer_to_the_records_in_a_network_that_was_not_matched_in() -> None:
    """From noise; the mean features of a class in a network of another draw."""
    x, y = pictures(60, 1)
    x = x * np.linspace(0, 1, 8, dtype=np.float32)  # a pattern to be found
    few, many = (
        DistributionMatching(per_class=3, iterations=t, batch=64, lr=5.0, start="noise", width=8)
        for t in (1, 60)
    )
    spec = ModelSpec("convnet", width=8)
    embed = build_embedder(
        build(spec, (1, 8, 8), 2), initial(spec, (1, 8, 8), 2, torch.Generator().manual_seed(3))
    )
    means = torch.stack([embed(torch.as_tensor(x[y == c])).mean(0) for c in (0, 1)])

    def gap(made: torch.Tensor, labels: torch.Tensor) -> float:
        return float(
            (torch.stack([embed(made[labels == c]).mean(0) for c in (0, 1)]) - means).square().sum()
        )

    assert gap(*many(x, y, 0)) < 0.7 * gap(*few(x, y, 0))


def test_shadow_sets_of_the_recipe_find_the_records_that_images_start_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privdd.external.run_folder.write_report", lambda path: path)
    train = pictures(40, 2)
    heldout = pictures(80, 3)
    copies = DistributionMatching(per_class=18, iterations=1, batch=8, lr=1e-3, width=4)
    found = api.audit_synthetic(
        copies(*train, 9),
        train=train,
        heldout=heldout,
        generator=copies,
        shadows=6,
        out=tmp_path / "run",
    )
    lira = next(one for one in found.findings if one.attack == "lira")
    assert lira.auc_ci is not None and lira.auc_ci[0] > 0.6


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"ipc": 3}, "takes per_class"),
        ({"per_class": 0}, "whole number"),
        ({"lr": -1.0}, "above 0"),
        ({"start": "x"}, "allowed are"),
    ],
)
def test_settings_that_the_recipe_does_not_have_are_one_line(args: dict, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        make_recipe("distribution_matching", args)
    assert "\n" not in str(caught.value)


def test_records_that_are_no_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="must be images"):
        TINY(np.zeros((20, 5)), np.zeros(20, int), 0)


# Synthetic sets from outside: copies are flagged, an independent set is not, and the distances are
# those of scikit-learn.


TRAIN = records(200, 1)
HELDOUT = records(300, 2)
OTHER = records(150, 3)


def run(synthetic: Any, generator: Any = None, **settings: Any) -> dict[str, Any]:
    found: ExternalAudit = audit_synthetic_data(
        records_from_arrays("s", *synthetic),
        records_from_arrays("a", *TRAIN),
        records_from_arrays("b", *HELDOUT),
        generator,
        StatedLimit(),
        ExternalAuditSettings(shadows=6, **settings),
        {},
    )
    return {one.finding.attack: one.finding.measures.to_row() for one in found.judged}


def test_a_set_of_training_records_is_flagged(tmp_path: Path) -> None:
    """By every attack, on the page, and the folder verifies."""
    found = audit_synthetic(
        TRAIN, train=TRAIN, heldout=HELDOUT, stated={"epsilon": 1}, out=tmp_path / "run"
    )
    by = {row.attack: row for row in found.findings}
    assert by["nearest_synthetic"].auc == 1 and by["density_ratio"].auc == 1
    assert (
        by["copy_detection"].identified == 1
        and by["copy_detection"].diagnostics["exact_copies"] == 200
    )  # type: ignore[index]
    assert by["singling_out"].identified == 1 and by["linkability"].identified == 1
    assert {by[name].status for name in ("lira", "rmia")} == {"not_attacked"}
    assert found.verdict == "contradiction" and {row.surface for row in found.surfaces} == {
        Surface.SYNTHETIC_REPRESENTATIONS
    }
    assert decide_surfaces(found)[0].kind == "do_not_share"
    assert verify_run(tmp_path / "run").disagreements == ()


@pytest.mark.parametrize("seed", [0, 1])
def test_an_independent_set_is_not_flagged(seed: int) -> None:
    """Each figure against its own interval; the risks stay below their control's upper end."""
    found = run(OTHER, seed=seed)
    for name in ("nearest_synthetic", "density_ratio", "loss_threshold"):
        low, high = found[name]["auc_ci"]
        assert abs(found[name]["auc"] - 0.5) < (high - low) / 2 * 1.7, name
        assert found[name]["diagnostics"]["epsilon_familywise"] < 0.3
    low, high = found["copy_detection"]["diagnostics"]["closer_interval"]
    assert low < 0.5 < high and found["copy_detection"]["diagnostics"]["exact_copies"] == 0
    for name in ("singling_out", "linkability"):
        assert found[name]["identified"] < found[name]["identified_chance"]


def test_a_generator_lends_each_record_its_scale() -> None:
    """Shadow sets: a set of noised records gives its members away, and each shadow set is of one
    world's records."""
    asked: list[int] = []

    def generator(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append(seed)
        rng = np.random.default_rng(seed)
        return x + 0.4 * rng.normal(size=x.shape), y

    found = run(generator(*TRAIN, 9), generator)
    assert found["lira"]["auc_ci"][0] > 0.6 and found["rmia"]["auc_ci"][0] > 0.6
    assert len(set(asked)) == 7
    with pytest.raises(
        BadConfig,
        match=r"target.generator: records of shape \(5,\), those of target.train have \(6,\)",
    ):
        run(OTHER, lambda x, y, seed: x[:, :5])


def test_pictures_are_compared_as_pictures() -> None:
    """Pixels keep their units, the page gets pairs, and the risks of tables say why they are left
    out."""
    rng = np.random.default_rng(0)
    x = rng.random((500, 1, 5, 5))
    y = rng.integers(0, 2, 500)
    train = records_from_arrays("a", x[:200], y[:200])
    out = records_from_arrays("b", x[200:], y[200:])
    noisy = LabelledRecords((train.x[:40] + 0.02).clamp(0, 1), train.y[:40])
    found = audit_synthetic_data(
        noisy, train, out, None, StatedLimit(), ExternalAuditSettings(), {}
    )
    (copied,) = [one for one in found.judged if one.finding.attack == "copy_detection"]
    assert copied.finding.surface == Surface.SYNTHETIC_IMAGES
    assert copied.finding.diagnostics["near_copies"] == 40
    assert torch.allclose(
        copied.evidence_tensors["real"], copied.evidence_tensors["reconstructed"], atol=0.03
    )
    (left,) = [
        one.finding.measures.to_row() for one in found.judged if one.finding.attack == "linkability"
    ]
    assert left["status"] == "not_attacked" and "defined for tables" in left["note"]


def test_distances_are_those_of_scikit_learn() -> None:
    a = torch.from_numpy(TRAIN[0])
    b = torch.from_numpy(HELDOUT[0])
    found, at = nearest_records(a, b, 3)
    known, where = NearestNeighbors(n_neighbors=3).fit(b).kneighbors(a)
    assert np.allclose(found, known) and np.array_equal(at, where)
    with pytest.raises(ValueError, match="2 records in the pool, 3 nearest"):
        nearest_records(a, b[:2], 3)
    assert copies_in_pool(torch.cat([b[:2], a[:1]]), b).tolist() == [0, 1, -1]
    zeros = torch.tensor([[0.0, 1.0]])
    assert copies_in_pool(-zeros * torch.tensor([[1.0, -1.0]]), zeros).tolist() == [0]  # -0 is 0
    units = coordinate_scales(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), False)
    assert (
        units.tolist() == pytest.approx([2**0.5, 1.0])
        and flatten_records(a, units[[0] * 6])[0, 0] == a[0, 0] / 2**0.5
    )


@pytest.mark.parametrize("shift", [0.0, 1e7])
def test_counts_of_copies_are_those_of_all_pairs(shift: float) -> None:
    """Copies and near copies of either side, repeated records and records far from zero, by the
    distance of every pair."""
    rng = np.random.default_rng(int(shift))
    train = (
        shift
        + rng.integers(0, 4, (700, 9))
        + rng.normal(size=(700, 9)) * (rng.random((700, 1)) < 0.5)
    )
    heldout = shift + rng.normal(size=(350, 9)) * 2
    train[600:] = train[:100]
    near = [
        side[:60] + rng.normal(size=(60, 9)) * rng.choice([0.0, 0.01, 0.4], (60, 1))
        for side in (train, heldout)
    ]
    made = np.concatenate([*near, shift + rng.normal(size=(400, 9))])
    to_train = np.linalg.norm(made[:, None] - train[None], axis=2)
    to_heldout = np.linalg.norm(made[:, None] - heldout[None], axis=2)
    usual = np.linalg.norm(train[:, None] - heldout[None], axis=2).min()
    found = count_copies(made, train, heldout)
    assert found.exact == (to_train == 0).any(1).sum() > 10
    assert found.exact_heldout == (to_heldout == 0).any(1).sum() > 10
    assert found.near == (to_train.min(1) < usual).sum() > found.exact
    assert found.near_heldout == (to_heldout.min(1) < usual).sum() > found.exact_heldout
    assert np.allclose(found.distance, to_train.min(1)) and np.array_equal(
        found.distance == 0, to_train.min(1) == 0
    )
    assert np.array_equal(to_train[np.arange(len(made)), found.place], to_train.min(1))
    every, where = nearest_records(made, train)
    assert np.allclose(every[:, 0], to_train.min(1)) and np.array_equal(where[:, 0], found.place)


def test_signals_point_at_members() -> None:
    one = records_from_arrays("a", *TRAIN)
    ref = records_from_arrays("b", *HELDOUT)
    found = synthetic_signals(one, one, ref, coordinate_scales(ref.x, False), 3)
    assert set(found) == {"distance", "density", "confidence"}
    assert (found["distance"] == 0).all() and (found["density"] > 10).all()
    assert set(
        synthetic_signals(
            LabelledRecords(one.x, one.y * 0), one, ref, coordinate_scales(ref.x, False), 3
        )
    ) == {"distance", "density"}


def test_copies_count_near_ones_by_how_near_strangers_come() -> None:
    """One dimension: train at 0, 10, ..., held out at 4, 14, ...: nearer than 4 is a near copy."""
    grid = torch.arange(0, 400, 10.0)[:, None].double()
    made = torch.cat([grid[:5] + 3.9, grid[:3] - 4.1, grid[7:8]])
    found = count_copies(made, grid, grid + 4)
    assert (found.near, found.exact, found.exact_heldout) == (6, 1, 0)
    assert found.near_heldout == 7 and found.released == 9
    assert found.place[-1] == 7 and found.distance[-1] == 0


@pytest.mark.nightly(cases=["5000-500-100"])
@pytest.mark.parametrize(
    ("train", "heldout", "copies"),
    [(5000, 500, 100), (500, 5000, 50), (300, 300, 7), (2000, 20, 1)],
)
def test_planted_copies_are_counted_exactly_at_any_size_of_the_held_out_file(
    train: int, heldout: int, copies: int
) -> None:
    g = torch.Generator().manual_seed(train)
    sets = [
        (torch.rand(n, 12, generator=g), torch.randint(3, (n,), generator=g))
        for n in (train, heldout, 200)
    ]
    places = torch.randperm(train, generator=g)[:copies]
    made = torch.cat([sets[2][0], sets[0][0][places]]), torch.cat([sets[2][1], sets[0][1][places]])
    own, other, synthetic = (records_from_arrays("s", *one) for one in (sets[0], sets[1], made))
    found = audit_synthetic_data(
        synthetic,
        own,
        other,
        None,
        StatedLimit(),
        ExternalAuditSettings(shadows=0, records=200),
        {},
    )
    (row,) = [
        one.finding.measures.to_row()
        for one in found.judged
        if one.finding.attack == "copy_detection"
    ]
    known = row["diagnostics"]
    assert (known["exact_copies"], known["exact_copies_of_heldout"], known["released"]) == (
        copies,
        0,
        200 + copies,
    )
    assert (known["training"], known["heldout"], row["n"]) == (train, heldout, 200 + copies)
    assert copies <= known["near_copies"] <= copies + 12
    assert f"{copies} equal one of {train} training records" in row["note"]


def test_linkability_against_brute_force() -> None:
    g = torch.Generator().manual_seed(3)
    made, train, out = (torch.rand(n, 4, generator=g) for n in (30, 25, 25))
    found = linkability_risk(made, train, out, torch.Generator().manual_seed(1))
    order = torch.randperm(4, generator=torch.Generator().manual_seed(1))
    hits = []
    for x in (train, out):
        near = [
            [min(range(30), key=lambda j: float((row[half] - made[j, half]).norm())) for row in x]
            for half in order.split(2)
        ]
        hits.append(sum(a == b for a, b in zip(*near)))
    assert [found.hits, found.control] == hits and found.attacks == 25


def test_singling_out_names_one_record_and_no_more() -> None:
    """A table of kinds that are all alike can be singled out nowhere; one with a key column
    everywhere."""
    g = torch.Generator().manual_seed(0)
    same = torch.ones(50, 3)
    assert singling_out_risk(same, same, same, g).attacks == 0
    key = torch.cat([torch.arange(50.0)[:, None], torch.ones(50, 2)], 1)
    found = singling_out_risk(
        key, key, key + torch.tensor([100.0, 0, 0]), torch.Generator().manual_seed(0)
    )
    assert (
        found.attacks > 0 and found.hit_rate == 1 and found.control == 0 and found.excess_risk == 1
    )
    assert (
        TableRisk(50, 20, 100).excess_risk == pytest.approx(0.3 / 0.8)
        and 0.2 < TableRisk(50, 20, 100).chance_rate < 0.3
    )


def test_inference_against_records_one_by_one() -> None:
    """Scaled values: the secret column of each record from its nearest neighbour in the others, by
    a plain loop."""
    g = torch.Generator().manual_seed(4)
    made, train, out = (
        torch.cat([torch.rand(n, 3, generator=g), torch.randint(0, 2, (n, 1), generator=g)], 1)
        for n in (40, 30, 30)
    )
    found = inference_risk(made, train, out, torch.Generator().manual_seed(2))
    same = torch.Generator().manual_seed(2)
    hits = []
    for x in (train, out):
        asked = x[torch.randperm(30, generator=same)]
        secret = torch.randint(4, (30,), generator=same)
        right = 0
        for row, c in zip(asked, secret.tolist()):
            known = [k for k in range(4) if k != c]
            guess = made[
                min(range(40), key=lambda j: float((row[known] - made[j, known]).norm())), c
            ]
            right += (
                bool(guess == row[c])
                if c == 3
                else abs(float(guess - row[c])) <= 0.05 * abs(float(row[c]))
            )
        hits.append(right)
    assert [found.hits, found.control] == hits and found.attacks == 30
    copied = inference_risk(train, train, out, torch.Generator().manual_seed(2))
    assert copied.hit_rate == 1 and copied.control < 30


def test_of_a_few_synthetic_records_numbers_are_not_taken_for_kinds() -> None:
    """Ten records hold at most ten values of anything; each lies within 1 % of a training
    record's."""
    g = torch.Generator().manual_seed(1)
    train = 1 + torch.rand(10, 3, generator=g).double()
    out = 1 + torch.rand(10, 3, generator=g).double()
    found = inference_risk(1.01 * train, train, out, torch.Generator().manual_seed(2))
    assert found.hit_rate > 0.8 > 0.5 > found.control / found.attacks


def test_a_small_set_does_not_make_columns_of_numbers_into_kinds() -> None:
    """Eight synthetic rows hold eight values of anything; as kinds, no value of theirs would be met
    again."""
    g = torch.Generator().manual_seed(5)
    train, out = (torch.randn(40, 3, generator=g) for _ in range(2))
    found = singling_out_risk(train[:8] + 1e-3, train, out, torch.Generator().manual_seed(0))
    assert found.hits > 0
