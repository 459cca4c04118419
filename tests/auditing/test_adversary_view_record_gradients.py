"""Gradients of records that do not fit into one matrix: the same figures, and no tensor of their size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attacks.membership.signals import ridge_coefficients
from privdd.auditing import adversary_view
from privdd.auditing.adversary_view import AdversaryView, LayerCoefficients, RecordGradients
from privdd.auditing.signal_extraction import extract_signals
from privdd.core.types import Problem, Records
from privdd.federated.simulation import Snapshot
from privdd.models.build import build
from privdd.models.spec import ModelSpec
from tests.auditing import test_signal_extraction_readers

SHAPE, CLASSES = (3, 8, 8), 4
SPECS = [
    ModelSpec("convnet", width=4, depth=2, norm="instance"),
    ModelSpec("convnet", width=4, depth=2, norm="batch", pooling="max"),
    ModelSpec("resnet18", width=2, norm="group", groups=2),
    ModelSpec("mlp", width=8),
]


class Largest(TorchDispatchMode):
    """The largest number of elements among all tensors that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))])
        return out


def posed(spec: ModelSpec, count: int = 11) -> RecordGradients:
    g = torch.Generator().manual_seed(5)
    model = build(spec, SHAPE, CLASSES).eval()
    state = {n: torch.randn(t.shape, generator=g).double() * 0.3 for n, t in model.state_dict().items()}
    state |= {n: t.abs() + 0.5 for n, t in state.items() if n.endswith("running_var")}
    names = tuple(n for n, _ in model.named_parameters())
    x = torch.rand(count, *SHAPE, generator=g).double()
    return RecordGradients(model, state, x, torch.arange(count) % CLASSES, names)


def one_by_one(posed: RecordGradients) -> Tensor:
    rows = []
    for x, y in zip(posed.x, posed.y):
        leaves = {n: posed.state[n].clone().requires_grad_() for n in posed.names}
        loss = nn.functional.cross_entropy(functional_call(posed.model, {**posed.state, **leaves}, (x[None],)), y[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))]))
    return torch.stack(rows)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.name}-{s.norm}")
@pytest.mark.parametrize("held", [True, False], ids=["held", "streamed"])
def test_products_lengths_and_grams_are_those_of_plain_gradients(
    spec: ModelSpec, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = posed(spec)
    if not held:
        monkeypatch.setattr(adversary_view, "MAX_MATRIX_BYTES", 0)
        monkeypatch.setattr(adversary_view, "MAX_BLOCK_BYTES", 8 * one.parameter_count * 3)  # blocks of three records
        assert [len(block) for block in one.iterate_blocks()] == [3, 3, 3, 2]
    assert one.is_one_matrix == held
    rows, vector = one_by_one(one), torch.randn(one.parameter_count, generator=torch.Generator().manual_seed(7)).double()
    close = {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(one.inner_products(vector), rows @ vector, **close)
    torch.testing.assert_close(one.gradient_norms, rows.norm(dim=1), **close)
    cosines = nn.functional.cosine_similarity(rows, vector[None])
    torch.testing.assert_close(one.alignment_signals(vector), {"gradient_product": rows @ vector, "alignment": cosines}, **close)
    torch.testing.assert_close(one.gram_matrix(), rows @ rows.T, **close)
    torch.testing.assert_close(LayerCoefficients.from_gradients(one, 0.01) @ vector, ridge_coefficients(vector, rows, 0.01).float())


class Rounded(torch.autograd.Function):
    """The identity, with a derivative backwards only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * pulled


class Backwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return Rounded.apply(self.head(x.flatten(1)))  # type: ignore[no-any-return, no-untyped-call]


def test_a_layer_without_a_derivative_in_forward_mode_is_read_from_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adversary_view, "MAX_MATRIX_BYTES", 0)
    like = posed(SPECS[0])
    model = Backwards().double().eval()
    one = RecordGradients(model, dict(model.state_dict()), like.x, like.y, ("head.weight", "head.bias"))
    vector = torch.randn(one.parameter_count, generator=torch.Generator().manual_seed(7)).double()
    torch.testing.assert_close(one.inner_products(vector), one_by_one(one) @ vector)


WIDE = ModelSpec("mlp", width=64)  # its activations are small beside its gradients


class Method(test_signal_extraction_readers.Method):
    def classifier(self, problem: Problem) -> nn.Module:
        return build(WIDE, SHAPE, CLASSES)


def lens(count: int = 60) -> tuple[AdversaryView, dict[str, Tensor]]:
    g = torch.Generator().manual_seed(11)
    start = {n: torch.randn(t.shape, generator=g) * 0.3 for n, t in build(WIDE, SHAPE, CLASSES).state_dict().items()}
    end = {n: t + 0.01 * torch.randn(t.shape, generator=g) for n, t in start.items()}
    records = Records(torch.rand(count, *SHAPE, generator=g), torch.arange(count) % CLASSES, torch.arange(count))
    method: Any = Method()
    at = Snapshot(0, {"model": start}, {}, {"update": end})
    return AdversaryView(method, Problem(SHAPE, CLASSES, clients=1), at, records, records, {}, frozenset(), {}), end


@pytest.mark.parametrize("room", [60 * 300, 1], ids=["the last layer fits", "no layer fits"])
def test_signals_of_an_update_need_no_matrix_of_all_gradients(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privdd.auditing.adversary_view.MAX_HELD_NUMBERS", room)
    whole, end = lens()
    with Largest() as seen:
        expected = extract_signals(whole, {"update": end})
    assert whole.record_gradients is not None and seen.numel >= whole.record_gradients.numel  # the hook sees such a matrix
    monkeypatch.setattr(adversary_view, "MAX_MATRIX_BYTES", 0)
    monkeypatch.setattr(adversary_view, "MAX_BLOCK_BYTES", 4 * 4 * whole.record_gradients.parameter_count)
    streamed, _ = lens()
    with Largest() as seen:
        found = extract_signals(streamed, {"update": end})
    assert seen.numel < whole.record_gradients.numel / 2
    assert found.keys() == expected.keys() and any("joint_" in name for name in found)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=1e-5)
