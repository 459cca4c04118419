"""The control that never sees the target: silent on one distribution, loud on two."""

from __future__ import annotations

import pytest
import torch

from attacks.membership.blind_baseline import UNFAIR_P_VALUE, blind_record_scores, is_separable
from attacks.roc import roc


def drawn(
    seed: int, shift: float, scale: float = 1.0, width: int = 6, count: int = 300
) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    member = torch.rand(count, generator=g) < 0.5
    x = torch.randn(count, width, generator=g)
    x[~member] = x[~member] * scale + shift
    return x, torch.randint(0, 3, (count,), generator=g), member


def test_one_distribution_gives_one_half_on_average() -> None:
    """Without the centred folds the mean over seeds lies below one half."""
    found = []
    for seed in range(40):
        x, y, member = drawn(seed, 0.0)
        found.append(
            roc(blind_record_scores(x, y, member, torch.Generator().manual_seed(seed)), member).auc
        )
        assert not is_separable(
            blind_record_scores(x, y, member, torch.Generator().manual_seed(seed)), member
        )
    mean = torch.tensor(found).mean()
    error = torch.tensor(found).std() / 40**0.5
    assert abs(mean - 0.5) < 4 * error


@pytest.mark.parametrize(
    ("shift", "scale", "width"), [(0.8, 1.0, 6), (0.0, 2.0, 6), (0.5, 1.0, 80)]
)
def test_two_distributions_are_told_apart(shift: float, scale: float, width: int) -> None:
    """By their mean, by their spread, and where there are more numbers than components."""
    x, y, member = drawn(1, shift, scale, width)
    assert is_separable(blind_record_scores(x, y, member, torch.Generator().manual_seed(0)), member)


def test_the_rule_is_one_sided_and_needs_both_sides() -> None:
    member = torch.arange(100) < 50
    assert is_separable(member.double(), member) and not is_separable(-member.double(), member)
    assert not is_separable(
        torch.rand(100, generator=torch.Generator().manual_seed(0)), torch.ones(100).bool()
    )
    assert UNFAIR_P_VALUE < 1e-3
