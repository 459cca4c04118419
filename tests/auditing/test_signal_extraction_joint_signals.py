"""Records' parts in planted releases: a step of descent on known members, class means of known members."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from privdd.auditing.adversary_view import MIN_LAYER_SIZE, AdversaryView
from privdd.auditing.signal_extraction import coefficients_by_layer, coefficients_in_means, extract_signals
from privdd.federated.simulation import Snapshot
from tests.auditing.test_signal_extraction_readers import CANDIDATES, CLASSES, PROBLEM, PUBLIC, START, Method, gradient

MEMBER = torch.tensor([1, 0, 0, 1, 1, 0, 1], dtype=torch.bool)


def lens(**sent: dict[str, Tensor]) -> AdversaryView:
    method: Any = Method()
    return AdversaryView(method, PROBLEM, Snapshot(0, {"model": START}, {}, sent), CANDIDATES, PUBLIC, {}, frozenset(), {})


def stepped(rate: float = 0.1) -> dict[str, Tensor]:
    """One step of descent on the members, together."""
    sums = {name: torch.zeros_like(t) for name, t in START.items()}
    for i in MEMBER.nonzero().flatten().tolist():
        sums = {name: t + gradient(START, i)[name] for name, t in sums.items()}
    return {name: START[name] - rate * t for name, t in sums.items()}


def apart(parts: Tensor) -> bool:
    return bool(parts[MEMBER].min() > parts[~MEMBER].max())


def test_a_step_on_several_records_is_taken_apart(monkeypatch: Any) -> None:
    monkeypatch.setattr("privdd.auditing.adversary_view.MIN_LAYER_SIZE", 1)
    monkeypatch.setattr("privdd.auditing.adversary_view.SMALL_RIDGE_SHARE", 1e-6)
    found = extract_signals(lens(), {"update": stepped()})
    assert torch.allclose(found["update|joint_head"], 0.1 * MEMBER.float(), atol=2e-3)
    assert apart(found["update|joint_head"])
    total = torch.cat([(START[n] - t).flatten() for n, t in stepped().items()])
    assert torch.allclose(coefficients_by_layer(lens(), total)["joint_head"], found["update|joint_head"])


def test_the_way_that_was_gone_is_followed_and_noise_at_its_end_does_not_drown_the_start() -> None:
    still = lens(update=START)  # it ended where it began
    assert still.record_gradients is not None and still.path_gradients is not None
    assert torch.allclose(still.path_gradients, still.record_gradients.gradient_matrix, atol=1e-6)
    far = {name: t + 50 * torch.randn(t.shape, generator=torch.Generator().manual_seed(3)) for name, t in START.items()}
    noisy = lens(update=far)
    assert noisy.path_gradients is not None and noisy.record_gradients is not None
    start = noisy.record_gradients.gradient_matrix
    assert float((noisy.path_gradients - start / 3).norm()) <= 2 / 3 * float(start.norm()) * 1.001
    assert lens().path_gradients is None


def test_small_layers_are_not_solved_by_themselves() -> None:
    assert START["head.weight"].numel() + START["head.bias"].numel() < MIN_LAYER_SIZE and lens().layer_solvers == {}


def test_parts_in_class_means_of_members_and_none_where_a_class_is_absent() -> None:
    flat = CANDIDATES.x.flatten(1)
    rows, labels = flat[MEMBER], CANDIDATES.y[MEMBER]
    found = coefficients_in_means(lens(), rows, labels, flat)
    for c in range(CLASSES):
        mine, inside = CANDIDATES.y == c, (CANDIDATES.y == c) & MEMBER
        if not inside.any():
            assert (found[mine] == 0).all()
        elif (mine & ~MEMBER).any():
            assert found[inside].min() > found[mine & ~MEMBER].max()
    nothing = coefficients_in_means(lens(), flat[:0], CANDIDATES.y[:0], flat)
    assert torch.equal(nothing, torch.zeros(7, dtype=torch.float64))
