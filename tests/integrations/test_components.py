"""Components of other libraries as they are installed, as callables on arrays: each adapter calls
the component and repeats no part of it."""

from __future__ import annotations

import ast
import csv
import importlib
import math
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import stats

from privdd.blackbox.target import load_target
from privdd.core.validation import BadConfig
from privdd.integrations.component_rows import ROWS
from privdd.integrations.components import (
    COMPONENT_ADAPTERS,
    COMPONENT_LIBRARIES,
    adapt_component,
)
from tests.conformance.parts import sigma

FOLDER = Path(importlib.import_module("privdd.integrations").__file__).parent
FILES = sorted({place.split(":")[0] for place in COMPONENT_ADAPTERS.values()})
PARTS_OF_A_MECHANISM = {  # of clipping, of noise, and of the scale of either
    "clip",
    "clamp",
    "clip_grad_norm_",
    "norm",
    "vector_norm",
    "minimum",
    "maximum",
    "hypot",
    "square",
    "sqrt",
    "normal",
    "standard_normal",
    "randn",
    "randn_like",
    "rand",
    "laplace",
    "exponential",
    "gumbel",
    "normal_",
    "default_rng",
    "Generator",
    "gauss",
    "shuffle",
    "permutation",
    "choice",
    "multiply",
    "divide",
    "truediv",
    "mul",
    "div",
    "sub",
    "add",
    "mul_",
    "div_",
    "add_",
}
# what Flower itself sets before an app runs, without which no message can be made
NOT_PUBLIC = {"flwr.supercore.task_identity"}


def repeated_parts(module: ast.Module) -> list[str]:
    """Whatever an adapter computes itself: arithmetic, parts of a mechanism, names that the product
    keeps to itself."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and not isinstance(
            node.op, (ast.BitOr, ast.RShift)
        ):
            # | joins dictionaries, >> OpenDP's measurements
            found.append(f"{node.lineno}: arithmetic")
        name = (
            node.attr
            if isinstance(node, ast.Attribute)
            else node.id
            if isinstance(node, ast.Name)
            else ""
        )
        if name in PARTS_OF_A_MECHANISM:
            found.append(f"{node.lineno}: {name}")
        if isinstance(node, ast.Attribute) and name.startswith("_") and not name.startswith("__"):
            found.append(f"{node.lineno}: {name}, which is not public")
        if isinstance(node, (ast.ImportFrom, ast.Import)):
            names = [
                *(alias.name for alias in node.names),
                *((getattr(node, "module", None) or "").split(".")),
            ]
            outside = (
                not isinstance(node, ast.ImportFrom)
                or (node.module or "").split(".")[0] in COMPONENT_LIBRARIES
            )
            if outside and any(one.startswith("_") and one != "__future__" for one in names):
                found.append(f"{node.lineno}: a private import")
            if "supercore" in names and getattr(node, "module", "") not in NOT_PUBLIC:
                found.append(f"{node.lineno}: a private import")
    return found


def called_names(module: ast.Module) -> set[str]:
    calls = [node.func for node in ast.walk(module) if isinstance(node, ast.Call)]
    # handed on to be called
    partly = [a for node in ast.walk(module) if isinstance(node, ast.Call) for a in node.args]
    return {
        f.attr if isinstance(f, ast.Attribute) else f.id
        for f in [*calls, *partly]
        if isinstance(f, (ast.Attribute, ast.Name))
    }


@pytest.mark.parametrize("file", FILES)
def test_no_adapter_repeats_a_part_of_what_it_judges(file: str) -> None:
    module = ast.parse((FOLDER / f"{file}.py").read_text(encoding="utf-8"))
    assert repeated_parts(module) == []
    entries = {
        place.split(":")[2] for place in COMPONENT_ADAPTERS.values() if place.startswith(f"{file}:")
    }
    assert entries <= called_names(module)


@pytest.mark.parametrize(
    "planted",
    [
        "f = lambda x: x * 0.5",
        "x /= len(x)",
        "def f(x): return np.clip(x, 0, 1)",
        "noise = rng.normal(0, 1, 3)",
        "y = x + torch.randn(3)",
        "loader = engine._prepare_data_loader(loader)",
        "from opacus.optimizers.optimizer import _generate_noise",
        "sent = optimizer.step(); torch.mul(sent, 2)",
        "from flwr.supercore.differential_privacy import add_gaussian_noise_inplace",
    ],
)
def test_a_repeated_part_is_seen(planted: str) -> None:
    assert repeated_parts(ast.parse(planted)) != []


def test_a_missing_call_of_the_entry_point_is_seen() -> None:
    text = (FOLDER / "library_components.py").read_text(encoding="utf-8")
    assert "make_private" in called_names(ast.parse(text))
    assert "make_private" not in called_names(
        ast.parse(text.replace(".make_private(", ".rebuilt("))
    )


def test_other_classes_are_left_alone_and_the_table_leads_somewhere() -> None:
    assert adapt_component(dict, {}, {}) is None and FILES == [
        "flower_components",
        "library_components",
    ]
    for place in COMPONENT_ADAPTERS.values():
        file, function, _ = place.split(":")
        assert f"def {function}(" in (FOLDER / f"{file}.py").read_text(encoding="utf-8")
    for row in ROWS:
        assert (
            row.mechanism.rpartition(":")[2] in COMPONENT_ADAPTERS
            and row.library in COMPONENT_LIBRARIES
        )
    assert len({row.check_command for row in ROWS}) == len(ROWS) >= 24
    assert max(row.seconds for row in ROWS) <= 60


def test_the_table_that_is_shipped_is_that_of_the_rows_and_says_why_one_does_not_keep() -> None:
    with (FOLDER.parents[1] / "docs/data/components-1.csv").open(
        newline="", encoding="utf-8"
    ) as file:
        table = list(csv.DictReader(file))
    assert [cells["Command"] for cells in table] == [row.check_command for row in ROWS]
    checked = [(cells, row) for cells, row in zip(table, ROWS) if cells["Calls"]]
    assert len(checked) >= 24 and all(
        cells["Verdict"] == "not checked here" for cells in table if not cells["Calls"]
    )
    for cells, row in checked:
        assert cells["Verdict"].startswith(
            ("does not keep", "keeps", "under conditions")
        )  # none is undecided
        assert (
            (cells["Verdict"] == "does not keep") == bool(row.reason) == bool(cells["Shown by"])
        ), cells["Component"]
        assert cells["Reason"] == row.reason and cells["Version"] != row.library


def made(target: str, args: dict, stated: dict | None = None):
    found = adapt_component(load_target(target), args, stated or {})
    assert found is not None
    return found[0], found[1]


def spy_on(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """The product's own function still runs; what is returned grows with each call."""
    calls: list[str] = []
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *a, **k: (calls.append(name), real(*a, **k))[1])
    return calls


MOD = "flwr.clientapp.mod:LocalDpMod"
STRATEGY = "flwr.serverapp.strategy:DifferentialPrivacy"


def test_flowers_mod_clips_adds_its_noise_and_states_its_epsilon() -> None:
    f, said = made(MOD, {"clipping_norm": 1, "sensitivity": 1e-4}, {"epsilon": 10.0, "delta": 1e-5})
    update = [np.full((3, 2), 100.0), np.full(4, 100.0)]
    sent = np.array([np.concatenate([a.ravel() for a in f()(update)]) for _ in range(100)])
    std = 1e-4 * math.sqrt(2 * math.log(1.25e5)) / 10
    assert sent.mean(0) == pytest.approx(np.full(10, 1 / math.sqrt(10)), abs=1e-4)
    assert sent.std() == pytest.approx(std, rel=0.15) and said["epsilon"] == 10


@pytest.mark.parametrize(
    "name", ["ServerSideFixed", "ClientSideFixed", "ServerSideAdaptive", "ClientSideAdaptive"]
)
def test_flowers_strategies_run_a_round_and_aggregate_by_weight(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {
        "noise_multiplier": 1e-6,
        "clipping_norm" if "Fixed" in name else "initial_clipping_norm": 1.0,
    }
    f, said = made(f"{STRATEGY}{name}Clipping", args)
    calls = spy_on(monkeypatch, load_target(f"{STRATEGY}{name}Clipping"), "start")
    sent = f()([[np.array([100.0, 0.0])], [np.array([0.0, 0.1])]], [300, 100])[0]
    assert sent == pytest.approx([0.75, 0.025], abs=1e-3) and calls == ["start"]
    assert said["relation"] == "zero_out" and said["kind"] == "aggregate"


def test_flowers_accountant_states_what_it_counted() -> None:
    target = f"{STRATEGY}ServerSideFixedClipping"
    args = {"noise_multiplier": 1, "clipping_norm": 1, "accountant": True}
    from flwr import serverapp

    if not hasattr(serverapp, "PrivacyConfig"):
        with pytest.raises(BadConfig, match=r"1\.42"):
            made(target, args)
        return
    f, said = made(target, args)
    assert sigma(said["epsilon"]) == pytest.approx(
        1.0, rel=0.1
    )  # RDP's is larger than the exact one
    assert len(f()([[np.ones(2)], [np.ones(2)]], [1, 2])[0]) == 2  # it takes equal weights alone


ENGINE = "opacus:PrivacyEngine"
ROWS_OF_DATA = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.5]])


@pytest.mark.parametrize(
    "more", [{}, {"grad_sample_mode": "ghost"}, {"grad_sample_mode": "functorch"}]
)
def test_opacus_sums_clipped_rows_through_make_private(
    more: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {
        "noise_multiplier": 1e-6,
        "loss_reduction": "sum",
        "batch_size": 9,
        "accountant": "rdp",
        "records": 2,
        **more,
    }
    f, _ = made(ENGINE, args)
    calls = spy_on(monkeypatch, load_target(ENGINE), "make_private")
    assert np.concatenate(f()(ROWS_OF_DATA)) == pytest.approx(
        [0.6, 0.8, 0.5], abs=1e-4
    ) and calls == ["make_private"]


def test_opacus_clips_each_layer() -> None:
    args = {
        "noise_multiplier": 1e-6,
        "loss_reduction": "sum",
        "batch_size": 9,
        "clipping": "per_layer",
        "layers": 3,
        "max_grad_norm": [1, 1, 1],
        "accountant": "rdp",
        "records": 2,
    }
    assert np.concatenate(made(ENGINE, args)[0]()(np.full((1, 3), 9.0))) == pytest.approx(
        np.ones(3), abs=1e-4
    )


def test_opacus_divides_by_a_batch_size_that_depends_on_how_many_records_there_are() -> None:
    f, said = made(ENGINE, {"noise_multiplier": 1.0})
    spread = [
        np.concatenate([f()(np.zeros((n, 50)))[0] for _ in range(30)]).std() for n in (40, 39)
    ]
    assert spread == pytest.approx([0.5, 1.0], rel=0.15)  # int(records / batches): 2 and 1
    assert said["epsilon"] == pytest.approx(1.043, rel=1e-2)  # as if that were not so


def test_opacus_samples_as_it_says() -> None:
    whole = {
        "noise_multiplier": 0.05,
        "loss_reduction": "sum",
        "batch_size": 4,
        "steps": 0,
        "accountant": "rdp",
        "records": 20,
    }
    for poisson, spread in ((True, True), (False, False)):
        f, _ = made(ENGINE, {**whole, "poisson_sampling": poisson})
        sums = np.array([f()(np.ones((20, 1))) for _ in range(15)])[:, :, 0]
        assert sums.shape[1] == 5 and (sums.std() > 0.8) == spread


def test_accountants_of_dp_accounting_are_held_against_a_clipped_sum() -> None:
    args = {"noise_multiplier": 2.0, "relation": "REPLACE_ONE", "accountant": "rdp", "records": 2}
    exact = made("dp_accounting.pld:PLDAccountant", args)[1]
    assert exact["relation"] == "replace" and sigma(exact["epsilon"]) == pytest.approx(
        1.0, rel=1e-3
    )  # the shift is 2
    assert (
        made("dp_accounting.rdp:RdpAccountant", args)[1]["epsilon"] < exact["epsilon"]
    )  # as if it were 1


@pytest.mark.extra("jax_privacy")
def test_jax_privacy_clips_rows_sums_and_adds_its_noise() -> None:
    f, said = made(
        "jax_privacy.clipping:clipped_fun", {"noise_multiplier": 0.5, "l2_clip_norm": 2.0}
    )
    sent = np.array([f()(np.array([[300.0, 400.0, 0.0], [0.0, 0.0, 0.5]])) for _ in range(600)])
    assert sent.mean(0) == pytest.approx([0.6, 0.8, 0.25], abs=0.1) and sent.std(
        0
    ) == pytest.approx(np.full(3, 0.5), rel=0.15)
    assert len(np.unique(sent)) == sent.size and sigma(said["epsilon"]) == pytest.approx(
        0.5, rel=1e-3
    )
    with pytest.raises(BadConfig, match="noise_multiplier"):
        made("jax_privacy.clipping:clipped_fun", {})


@pytest.mark.extra("jax_privacy")
def test_jax_privacys_plan_samples_at_its_rate() -> None:
    args = {"noise_multiplier": 0.5, "sampling_prob": 0.25}
    f, said = made("jax_privacy.experimental.execution_plan:BandMFExecutionPlanConfig", args)
    released = np.array([f()(np.full((1, 2), 9.0))[0] for _ in range(2000)])
    assert (
        released.mean() == pytest.approx(0.25 / math.sqrt(2), abs=0.05)
        and len(np.unique(released)) == 2000
    )
    # amplification by sampling, exact for one step
    of_the_whole = dpa.get_epsilon_gaussian(0.5, said["delta"] / 0.25)
    assert said["epsilon"] == pytest.approx(math.log1p(0.25 * math.expm1(of_the_whole)), rel=1e-2)


PFL = "pfl.privacy."
UPDATE = [np.full((3, 2), 100.0), np.full(4, 100.0)]


@pytest.mark.extra("pfl")
def test_pfl_clips_over_all_arrays_and_adds_what_epsilon_needs() -> None:
    f, said = made(f"{PFL}gaussian_mechanism:GaussianMechanism", {"epsilon": 2.0})
    sent = np.array([np.concatenate([a.ravel() for a in f()(UPDATE)]) for _ in range(600)])
    assert sent.mean(0) == pytest.approx(np.full(10, 1 / math.sqrt(10)), abs=0.35)
    assert sent.std() == pytest.approx(sigma(2.0), rel=0.05) and said["epsilon"] == 2.0


@pytest.mark.extra("pfl")
@pytest.mark.parametrize(
    "target",
    ["gaussian_mechanism:GaussianMechanism", "adaptive_clipping:AdaptiveClippingGaussianMechanism"],
)
@pytest.mark.extra("pfl")
def test_pfls_server_sums_users_and_adds_noise(target: str) -> None:
    args = {
        "epsilon": 15.0,
        **(
            {"accountant": True}
            if "adaptive" not in target
            else {"clipping_indicator_noise_stddev": 9.0}
        ),
    }
    f, said = made(f"{PFL}{target}", args)
    sent = np.mean(
        [f()([[np.array([30.0, 40.0])], [np.array([0.0, 0.5])]], [1, 1])[0] for _ in range(100)],
        axis=0,
    )
    assert sent == pytest.approx([0.6, 1.3], abs=0.2) and said["kind"] == "aggregate"


@pytest.mark.extra("pfl")
def test_pfls_laplace_noise_is_that_of_its_l1_clip() -> None:
    f, said = made(
        f"{PFL}laplace_mechanism:LaplaceMechanism", {"epsilon": 2.0, "clipping_bound": 3.0}
    )
    sent = np.array([np.concatenate([a.ravel() for a in f()(UPDATE)]) for _ in range(600)])
    assert stats.kstest((sent - 0.3).ravel(), stats.laplace(scale=1.5).cdf).pvalue > 1e-4
    assert said == {"epsilon": 2.0, "delta": 0.0, "kind": "update", "relation": "zero_out"}


@pytest.mark.extra("pfl")
def test_pfls_metrics_are_released_only_where_asked_for() -> None:
    target = f"{PFL}gaussian_mechanism:GaussianMechanism"
    assert len(made(target, {"epsilon": 2.0})[0]()(UPDATE)) == 2
    told = made(target, {"epsilon": 2.0, "with_metrics": True})[0]()(UPDATE)[-1]
    assert any(
        value == pytest.approx(math.sqrt(10) * 100) for value in told
    )  # the norm before the clip
    with pytest.raises(BadConfig, match="epsilon"):
        made(target, {})


NVFLARE = "nvflare.app_common."


@pytest.mark.extra("nvflare")
def test_nvflares_filter_states_what_its_own_accountant_says_and_sends_a_share() -> None:
    args = {"fraction": 0.2, "gamma": 1.0, "tau": 0.1, "epsilon": 3.0, "numbers": 10}
    f, said = made(f"{NVFLARE}filters.svt_privacy:SVTPrivacy", args)
    sent = np.array([np.concatenate([a.ravel() for a in f()(UPDATE)]) for _ in range(100)])
    assert (
        said["epsilon"] == pytest.approx(3.0 + 2 * 0.1) and said["delta"] == 0.0
    )  # 2 numbers are sent, at 0.1 each
    assert (np.count_nonzero(sent, axis=1) <= 2).all() and np.count_nonzero(sent) > 100


@pytest.mark.extra("nvflare")
def test_nvflares_other_filters_state_nothing() -> None:
    f, said = made(f"{NVFLARE}filters.percentile_privacy:PercentilePrivacy", {})
    assert (
        np.concatenate([a.ravel() for a in f()(UPDATE)]) == pytest.approx(np.full(10, 0.01))
        and "epsilon" not in said
    )
    args = {"min_noise_level": 0.1, "max_noise_level": 0.3}
    f, said = made(f"{NVFLARE}statistics.min_max_cleanser:AddNoiseToMinMax", args)
    sent = f()(np.array([[2.0], [4.0]]))
    assert (
        1.4 <= sent["min"]["set"]["column"] <= 1.8
        and 4.4 <= sent["max"]["set"]["column"] <= 5.2
        and "epsilon" not in said
    )


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        ("diffprivlib.tools:mean", {"bounds": [0, 1]}, 0.5),
        ("diffprivlib.tools:var", {"bounds": [0, 1]}, 0.25),
    ],
)
@pytest.mark.extra("diffprivlib")
def test_statistics_of_diffprivlib_are_released_with_their_own_noise(
    target: str, args: dict, expected: float
) -> None:
    check_statistic(target, args, expected)


@pytest.mark.extra("opendp")
def test_a_sum_of_opendp_is_released_with_its_own_noise() -> None:
    check_statistic("opendp.measurements:make_laplace", {}, 5.0)


@pytest.mark.extra("pydp")
@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        ("pydp.algorithms.laplacian:BoundedSum", {"lower_bound": 0, "upper_bound": 1}, 5.0),
        ("pydp.algorithms.laplacian:Count", {}, 10.0),
    ],
)
def test_statistics_of_pydp_are_released_with_their_own_noise(
    target: str, args: dict, expected: float
) -> None:
    check_statistic(target, args, expected)


def check_statistic(target: str, args: dict, expected: float) -> None:
    f, said = made(target, {"epsilon": 1000.0, **args})
    data = np.array([[0.0], [1.0]] * 5)
    assert (
        np.mean([f()(data) for _ in range(20)]) == pytest.approx(expected, abs=0.05)
        and said["epsilon"] == 1000.0
    )
