"""Tests of ``privdd.auditing.signal_extraction``."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attacks.inversion.evaluation import empty_release_finding
from attacks.membership.signals import distance_to_synthetic, ridge_coefficients, ridge_readout
from attacks.types import Adversary, Capture, Knowledge, Surface, View
from privdd.auditing import record_gradients
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.record_gradients import LayerCoefficients, RecordGradients
from privdd.auditing.replay import draw_membership_game
from privdd.auditing.signal_extraction import extract_signals
from privdd.cli.build import build_attacks
from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit
from privdd.core.types import Problem, Records, Tensors
from privdd.federated.simulation import Snapshot
from privdd.models.build import build
from privdd.models.networks import ModelSpec
from tests.auditing import test_signal_extraction
from tests.federations import SHORT, TINY, tiny

# Gradients of records that do not fit into one matrix: the same figures, and no tensor of their
# size.


SHAPE = (3, 8, 8)
CLASSES = 4
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
        self.numel = max(
            [self.numel, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))]
        )
        return out


def posed(spec: ModelSpec, count: int = 11) -> RecordGradients:
    g = torch.Generator().manual_seed(5)
    model = build(spec, SHAPE, CLASSES).eval()
    state = {
        n: torch.randn(t.shape, generator=g).double() * 0.3 for n, t in model.state_dict().items()
    }
    state |= {n: t.abs() + 0.5 for n, t in state.items() if n.endswith("running_var")}
    names = tuple(n for n, _ in model.named_parameters())
    x = torch.rand(count, *SHAPE, generator=g).double()
    return RecordGradients(model, state, x, torch.arange(count) % CLASSES, names)


def one_by_one(posed: RecordGradients) -> Tensor:
    rows = []
    for x, y in zip(posed.x, posed.y):
        leaves = {n: posed.state[n].clone().requires_grad_() for n in posed.names}
        loss = nn.functional.cross_entropy(
            functional_call(posed.model, {**posed.state, **leaves}, (x[None],)), y[None]
        )
        rows.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])
        )
    return torch.stack(rows)


@pytest.mark.nightly(cases=["streamed-convnet-instance", "streamed-resnet18-group"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.name}-{s.norm}")
@pytest.mark.parametrize("held", [True, False], ids=["held", "streamed"])
def test_products_lengths_and_grams_are_those_of_plain_gradients(
    spec: ModelSpec, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = posed(spec)
    if not held:
        monkeypatch.setattr(record_gradients, "MAX_MATRIX_BYTES", 0)
        # blocks of three records
        monkeypatch.setattr(record_gradients, "MAX_BLOCK_BYTES", 8 * one.parameter_count * 3)
        assert [len(block) for block in one.iterate_blocks()] == [3, 3, 3, 2]
    assert one.is_one_matrix == held
    rows = one_by_one(one)
    vector = torch.randn(one.parameter_count, generator=torch.Generator().manual_seed(7)).double()
    close = {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(one.inner_products(vector), rows @ vector, **close)
    torch.testing.assert_close(one.gradient_norms, rows.norm(dim=1), **close)
    cosines = nn.functional.cosine_similarity(rows, vector[None])
    torch.testing.assert_close(
        one.alignment_signals(vector),
        {"gradient_product": rows @ vector, "alignment": cosines},
        **close,
    )
    torch.testing.assert_close(one.gram_matrix(), rows @ rows.T, **close)
    torch.testing.assert_close(
        LayerCoefficients.from_gradients(one, 0.01) @ vector,
        ridge_coefficients(vector, rows, 0.01).float(),
    )


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


def test_a_layer_without_a_derivative_in_forward_mode_is_read_from_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_gradients, "MAX_MATRIX_BYTES", 0)
    like = posed(SPECS[0])
    model = Backwards().double().eval()
    one = RecordGradients(
        model, dict(model.state_dict()), like.x, like.y, ("head.weight", "head.bias")
    )
    vector = torch.randn(one.parameter_count, generator=torch.Generator().manual_seed(7)).double()
    torch.testing.assert_close(one.inner_products(vector), one_by_one(one) @ vector)


WIDE = ModelSpec("mlp", width=64)  # its activations are small beside its gradients


class Method(test_signal_extraction.Method):
    def classifier(self, problem: Problem) -> nn.Module:
        return build(WIDE, SHAPE, CLASSES)


def lens(count: int = 60) -> tuple[AdversaryView, dict[str, Tensor]]:
    g = torch.Generator().manual_seed(11)
    start = {
        n: torch.randn(t.shape, generator=g) * 0.3
        for n, t in build(WIDE, SHAPE, CLASSES).state_dict().items()
    }
    end = {n: t + 0.01 * torch.randn(t.shape, generator=g) for n, t in start.items()}
    records = Records(
        torch.rand(count, *SHAPE, generator=g), torch.arange(count) % CLASSES, torch.arange(count)
    )
    method: Any = Method()
    at = Snapshot(0, {"model": start}, {}, {"update": end})
    return AdversaryView(
        method, Problem(SHAPE, CLASSES, clients=1), at, records, records, {}, frozenset(), {}
    ), end


@pytest.mark.parametrize("room", [60 * 300, 1], ids=["the last layer fits", "no layer fits"])
def test_signals_of_an_update_need_no_matrix_of_all_gradients(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privdd.auditing.adversary_view.MAX_HELD_NUMBERS", room)
    whole, end = lens()
    with Largest() as seen:
        expected = extract_signals(whole, {"update": end})
    assert (
        whole.record_gradients is not None and seen.numel >= whole.record_gradients.numel
    )  # the hook sees such a matrix
    monkeypatch.setattr(record_gradients, "MAX_MATRIX_BYTES", 0)
    monkeypatch.setattr(
        record_gradients, "MAX_BLOCK_BYTES", 4 * 4 * whole.record_gradients.parameter_count
    )
    streamed, _ = lens()
    with Largest() as seen:
        found = extract_signals(streamed, {"update": end})
    assert seen.numel < whole.record_gradients.numel / 2
    assert found.keys() == expected.keys() and any("joint_" in name for name in found)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=1e-5)


# Images matched in a public map are attacked there; a client whose classes were all dropped is
# audited all the same.


torch.set_num_threads(1)
QUIET = (
    "privacy.noise_multiplier=0.01",
    "privacy.count_noise=0.01",
    "algo.fitting.steps=10",
    "algo.ipc=2",
)
NO_LABELS = torch.zeros(0, dtype=torch.int64)


def worlds_of(
    algo: str, count: int, *more: str
) -> tuple[AdversaryView, Tensor, list[dict[str, Tensors]]]:
    """(a lens, masks (K, n), what each world's client sends) of a first round; every world has its
    own noise."""
    made = tiny(algo, *more)
    plan = made.plan
    victim = made.plan.victim
    whole = made.shards[victim]
    game = draw_membership_game(whole, 40, count, plan.keys.fold("audit", victim), plan.relation)
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    sent = []
    for world in range(count):
        ctx = replace(plan, keys=plan.keys.fold("world", world)).client_context(0, victim)
        upload, _ = plan.method.local(broadcast, {}, game.shard_of_replay(whole, world), ctx)
        sent.append({name: dict(artifact.value) for name, artifact in upload.items()})
    lens = AdversaryView(
        plan.method,
        plan.problem,
        Snapshot(0, broadcast, {}),
        game.audited_records,
        made.test_records,
        {},
        frozenset(),
        {},
    )
    return lens, game.masks, sent


def test_the_signal_in_the_public_map_tells_members_where_noise_is_small() -> None:
    """Within each record, over worlds: higher where it is in. Coins of other records say nothing
    (control)."""
    lens, masks, sent = worlds_of("feddm_public_dp", 12, *QUIET)
    found = [extract_signals(lens, values) for values in sent]
    assert {"synthetic_images|embedding_alignment", "synthetic_images|confidence"} <= set(found[0])
    signal = torch.stack([one["synthetic_images|embedding_alignment"] for one in found]).double()
    assert not torch.allclose(
        signal, torch.stack([one["synthetic_images|alignment"] for one in found]).double()
    )

    def tells(coins: Tensor) -> float:
        ranks = torch.from_numpy(stats.rankdata(signal.numpy(), axis=0))
        return float(stats.mannwhitneyu(ranks[coins], ranks[~coins], alternative="greater").pvalue)

    assert tells(masks) < 1e-4
    assert tells(masks.roll(1, 0)) > 1e-3


def test_the_signal_is_the_inner_product_in_the_extractor_alone() -> None:
    lens, _, (values,) = worlds_of("feddm_public_dp", 1, *QUIET)
    # type: ignore[attr-defined]
    found = extract_signals(lens, values)["synthetic_images|embedding_alignment"]
    see = lens.method.extractor
    x = values["images"]["x"]
    y = values["labels"]["y"]
    centre = see(lens.public.x).mean(0)
    for i, (record, label) in enumerate(zip(lens.candidates.x, lens.candidates.y)):
        mean = see(x[y == label]).mean(0) - centre
        assert float(found[i]) == pytest.approx(
            float(mean @ (see(record[None])[0] - centre)), rel=1e-3, abs=1e-5
        )


def test_without_a_public_map_there_is_no_such_signal() -> None:
    lens, _, (values,) = worlds_of("feddm", 1)
    assert "synthetic_images|embedding_alignment" not in extract_signals(lens, values)


@pytest.mark.parametrize(
    ("algo", "name", "surface"),
    [
        ("feddm", "images", "synthetic_images"),
        ("feddm_public_dp", "images", "synthetic_images"),
        ("fedrd", "representations", "synthetic_representations"),
    ],
)
def test_an_empty_set_says_the_same_of_every_record(algo: str, name: str, surface: str) -> None:
    """Finite, of the shapes that a full set has, and constant over records."""
    lens, _, (values,) = worlds_of(algo, 1)
    full = extract_signals(lens, values)
    empty = extract_signals(
        lens, {**values, name: {"x": values[name]["x"][:0]}, "labels": {"y": NO_LABELS}}
    )
    assert {k: v.shape for k, v in empty.items()} == {k: v.shape for k, v in full.items()}
    for key, signal in empty.items():
        assert bool(torch.isfinite(signal).all()) and bool((signal == signal.flatten()[0]).all()), (
            key
        )
    assert float(empty[f"{surface}|distance"][0]) <= float(full[f"{surface}|distance"].min())
    assert bool((empty[f"{surface}|alignment"] == 0).all())


def test_nothing_is_the_limit_of_the_readout_and_of_the_distance() -> None:
    own = torch.ones(3, 4)
    assert torch.equal(ridge_readout(torch.zeros(0, 4), NO_LABELS, own, 5), torch.zeros(3, 5))
    assert torch.allclose(
        ridge_readout(torch.zeros(2, 4), torch.tensor([0, 1]), own, 5), torch.zeros(3, 5)
    )
    assert torch.equal(distance_to_synthetic(own, own[:0], 2.0), torch.full((3,), -2.0))
    assert torch.equal(distance_to_synthetic(own, torch.zeros(1, 4), 9.0), torch.full((3,), -2.0))


@pytest.mark.parametrize(("rows", "excused"), [(0, True), (1, False)])
def test_only_empty_rows_excuse_an_attack(rows: int, excused: bool) -> None:
    knowledge = Knowledge((1, 8, 8), 10, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]), None)
    value = {"x": torch.zeros(rows, 1, 8, 8), "y": NO_LABELS[:rows]}
    view = View(
        Surface.SYNTHETIC_IMAGES, Adversary.SERVER, (Capture(0, 0, "images", value, {}),), knowledge
    )
    attacks = build_attacks(compose_config("audit", ["attack=[copy_detection,lira]"]))
    assert (empty_release_finding(attacks["copy_detection"], view) is not None) is excused
    assert empty_release_finding(attacks["lira"], view) is None


def test_a_client_whose_classes_were_all_dropped_is_audited(tmp_path: Path) -> None:
    """Every attack that applies ends in a finding; those on the images say that there were none."""
    short = [f"{key}={SHORT[key]}" for key in ("algo.fitting.steps", "algo.server.epochs")]
    sizes = [
        "audit.records=30",
        "audit.worlds=4",
        "audit.guarantee.runs=20",
        "audit.guarantee.slow_runs=20",
    ]
    attacks = (
        "attack=[lira,rmia,base,loss_threshold,shadow_classifier,gradient_density,label_counts,"
        "copy_detection]"
    )
    overrides = [
        "algo=feddm_public_dp",
        "algo.least=1e5",
        "algo.ipc=2",
        *TINY,
        *short,
        *sizes,
        attacks,
    ]
    with redirect_stdout(StringIO()):
        status = run_audit(
            compose_config("audit", overrides), tmp_path / "run", ["audit", *overrides]
        )
    findings = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert status == 0
    rows = {(f["surface"], f["attack"]): f for f in findings["findings"]}
    assert "empty set" in rows["synthetic_images", "copy_detection"]["note"]
    assert rows["synthetic_images", "lira"]["status"] == "nothing_to_read"
    assert rows["labels", "label_counts"]["label_accuracy"] == 0
