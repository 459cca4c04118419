"""The distillation recipe as a generator: it copies means, repeats itself, and shadow sets of it find members."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from privdd import api
from privdd.core.validation import BadConfig
from privdd.distillation.distribution_matching import build_embedder
from privdd.external.synthetic_data import DistributionMatching, make_recipe
from privdd.models import ModelSpec, build, initial

TINY = DistributionMatching(per_class=2, iterations=3, batch=8, width=4)


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((count, 1, 8, 8)).astype(np.float32), rng.integers(0, 2, count)


def test_a_set_of_the_recipe_is_of_the_records_shape_and_its_seeds() -> None:
    x, y = pictures(40, 0)
    made, labels = TINY(x, y, 5)
    assert made.shape == (4, 1, 8, 8) and labels.tolist() == [0, 0, 1, 1] and made.min() >= 0 and made.max() <= 1
    again, other = TINY(torch.as_tensor(x), torch.as_tensor(y), 5)[0], TINY(x, y, 6)[0]
    assert torch.equal(made, again) and not torch.equal(made, other)
    assert DistributionMatching(per_class=2.0, iterations=3.0, batch=8.0, width=4.0) == TINY  # type: ignore[arg-type]
    assert type(DistributionMatching(per_class=2.0).per_class) is int  # type: ignore[arg-type]


def test_images_come_nearer_to_the_records_in_a_network_that_was_not_matched_in() -> None:
    """From noise; the mean features of a class in a network of another draw."""
    x, y = pictures(60, 1)
    x = x * np.linspace(0, 1, 8, dtype=np.float32)  # a pattern to be found
    few, many = (DistributionMatching(per_class=3, iterations=t, batch=64, lr=5.0, start="noise", width=8) for t in (1, 60))
    spec = ModelSpec("convnet", width=8)
    embed = build_embedder(build(spec, (1, 8, 8), 2), initial(spec, (1, 8, 8), 2, torch.Generator().manual_seed(3)))
    means = torch.stack([embed(torch.as_tensor(x[y == c])).mean(0) for c in (0, 1)])

    def gap(made: torch.Tensor, labels: torch.Tensor) -> float:
        return float((torch.stack([embed(made[labels == c]).mean(0) for c in (0, 1)]) - means).square().sum())

    assert gap(*many(x, y, 0)) < 0.7 * gap(*few(x, y, 0))


def test_shadow_sets_of_the_recipe_find_the_records_that_images_start_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privdd.external.run_folder.write_report", lambda path: path)
    train, heldout = pictures(40, 2), pictures(80, 3)
    copies = DistributionMatching(per_class=18, iterations=1, batch=8, lr=1e-3, width=4)
    found = api.audit_synthetic(copies(*train, 9), train=train, heldout=heldout, generator=copies, shadows=6, out=tmp_path / "run")
    lira = next(one for one in found.findings if one.attack == "lira")
    assert lira.auc_ci is not None and lira.auc_ci[0] > 0.6


@pytest.mark.parametrize(
    ("args", "said"),
    [({"ipc": 3}, "takes per_class"), ({"per_class": 0}, "whole number"), ({"lr": -1.0}, "above 0"), ({"start": "x"}, "allowed are")],
)
def test_settings_that_the_recipe_does_not_have_are_one_line(args: dict, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        make_recipe("distribution_matching", args)
    assert "\n" not in str(caught.value)


def test_records_that_are_no_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="pictures"):
        TINY(np.zeros((20, 5)), np.zeros(20, int), 0)
