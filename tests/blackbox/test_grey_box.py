"""The grey box: fault kinds that a published recorder of primitives lists, found without decorating
anything, and sound twins."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from attacks.tradeoff import gaussian_epsilon
from privdd.api import check
from privdd.blackbox.code_lines import lines_of
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.stages import dependence
from privdd.blackbox.stages.dependence import rescaled_epsilon
from privdd.check import EXIT_REFUTED, EXIT_UNDECIDED, main

RNG = np.random.default_rng(41)
FEW = {
    "kind": "records",
    "seconds": 30.0,
    "max_calls": 6000,
    "tried": InputShapes(tables=((4, 3),)),
    "record": True,
}
FOR_A_LAW = 32_000  # calls, of which a few thousand are left to tell the law of the noise from


def lap(value, scale):
    return np.asarray(value, float) + RNG.laplace(0, scale, np.shape(value))


def _clipped(x):
    return np.clip(np.nan_to_num(x[:, 0], nan=0.0, posinf=0.0, neginf=0.0), -1, 1)


def size_in_the_scale(x):
    return lap([_clipped(x).sum()], 1.0) / max(len(x), 1)


def domain_of_the_data(x):
    kinds = np.unique(np.round(np.clip(x[:, 0], -3, 3)))
    return lap([np.sum(np.round(np.clip(x[:, 0], -3, 3)) == kind) for kind in kinds], 1.0)


def spent_twice(x):
    return np.array([lap(_clipped(x).sum(), 1.0), lap(len(x), 1.0)])


def clipped_and_not_used(x):
    _clipped(x)
    return lap([np.nan_to_num(x[:, 0]).sum()], 1.0)


def nan_passes_the_clip(x):
    return lap([np.clip(x[:, 0], -1, 1).sum()], 1.0)


def sensitivity_of_zero(x):
    return lap([_clipped(x).sum()], 0.0)


def one_noise_for_two(x):
    noise = RNG.laplace(0, 8.0)
    return np.array([_clipped(x).sum() + noise, len(x) + noise])


def _columns(x):
    return np.clip(np.nan_to_num(x, posinf=0.0, neginf=0.0), 0, 1).sum(0)


def stops_by_the_data(x):
    """Sound but for the length of the list, which tells the first column that is small."""
    sums = _columns(x)
    return [float(lap(value, len(sums))) for value in sums[: 1 + int(np.argmax(sums < 0.5))]]


def stops_by_the_release(x):
    out = []
    for value in _columns(x):
        out.append(float(lap(value, x.shape[1])))
        if out[-1] < 0.5:
            break
    return out


def order_of_the_data(x):
    sums = _columns(x)
    return {f"c{at}": float(lap(sums[at], len(sums))) for at in np.argsort(-sums, kind="stable")}


def order_of_the_release(x):
    noised = lap(_columns(x), x.shape[1])
    return {f"c{at}": float(noised[at]) for at in np.argsort(-noised)}


def as_stated(x):
    return lap([_clipped(x).sum()], 1.0)


@pytest.mark.nightly(but=["stops_by_the_release-any-", "as_stated-any-"])
@pytest.mark.parametrize(
    ("mechanism", "inputs", "says"),
    [
        (size_in_the_scale, "finite", r"noise of number 0 is .* times as wide with the record"),
        (
            domain_of_the_data,
            "finite",
            r"names, shapes or texts of the release differ by the record",
        ),
        (spent_twice, "finite", r"epsilon is (1\.9|2\.0)\d* by this law and the shift"),
        (clipped_and_not_used, "finite", r"epsilon is (9\.\d+e\+05|1(\.\d+)?e\+06) by this law"),
        (nan_passes_the_clip, "any", r"1 NaN, 0 infinite"),
        (
            sensitivity_of_zero,
            "finite",
            r"are drawn from, and number 0 of the release never changes",
        ),
        (
            one_noise_for_two,
            "finite",
            r"noise is shared: a combination of the released numbers has none",
        ),
        (stops_by_the_data, "finite", r"names, shapes or texts of the release differ"),
        (order_of_the_data, "finite", r"names, shapes or texts of the release differ"),
        (stops_by_the_release, "any", ""),
        (order_of_the_release, "any", ""),
        (as_stated, "any", ""),
    ],
)
def test_each_fault_has_its_reason_and_the_sound_twin_none(
    mechanism, inputs: str, says: str
) -> None:
    calls = (
        FOR_A_LAW
        if mechanism in (size_in_the_scale, spent_twice, clipped_and_not_used, as_stated)
        else FEW["max_calls"]
    )
    found = check(
        mechanism,
        stated={"epsilon": 1.0, "delta": 0.0},
        inputs=inputs,
        **(FEW | {"max_calls": calls}),
    )
    refuted = " ".join(look.says for look in found.looks if look.outcome == "refuted")
    assert found.refuted == bool(says)
    if says:
        assert re.search(says, refuted)
    elif mechanism is as_stated:
        assert found.exact is not None and found.exact.shift_l1 == pytest.approx(1.0)
        assert found.exact.epsilon == pytest.approx(1.0, rel=0.06)


def test_no_figure_is_said_where_what_a_record_changes_depends_on_the_noise() -> None:
    found = check(stops_by_the_release, stated={"epsilon": 1.0, "delta": 0.0}, **FEW)
    assert found.exact is None and any(
        "depends on the noise, so no exact epsilon" in note for note in found.notes
    )


def test_declared_sensitivity_is_held_against_the_largest_shift() -> None:
    stated = {"epsilon": 50.0, "delta": 0.0, "noise": "laplace", "noise_std": math.sqrt(2.0)}
    for declared, refuted in ((1.0, True), (2.0, False)):
        found = check(
            spent_twice, stated={**stated, "noise_multiplier": math.sqrt(2.0) / declared}, **FEW
        )
        look = next(look for look in found.looks if look.name == "declared sensitivity")
        assert (look.outcome == "refuted") == refuted and "moves the release by 2 (L1)" in look.says


@pytest.mark.nightly
def test_a_line_that_only_a_record_makes_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a file of its own, by the command; the branch is no fault by itself."""
    file = tmp_path / "branches.py"
    file.write_text(
        "import numpy as np\n"
        "rng = np.random.default_rng()\n"
        "def release(x):\n"
        "    total = float(np.clip(x[:, 0], -1, 1).sum())\n"
        "    if (np.abs(x[:, 0]) > 100).any():\n"
        "        total += 0.0\n"
        "    return total + rng.laplace(0, 1)\n"
    )
    asked = [
        f"mechanism={file}:release",
        "kind=records",
        "stated.epsilon=1",
        "stated.delta=0",
        "record=true",
        "max_calls=32000",
        "input.rows=[4,3]",
    ]
    assert main([*asked, "seconds=60", f"out={tmp_path}"]) == EXIT_UNDECIDED
    assert "by its laplace law" in capsys.readouterr().out
    page = (tmp_path / "check.html").read_text()
    assert "with the record only, under the same noise: branches.py:6 total += 0.0" in page
    file.write_text(file.read_text().replace("total += 0.0", "total += 5.0"))
    assert main([*asked, "seconds=60"]) == EXIT_REFUTED


def test_lines_of_libraries_are_left_out() -> None:
    ran = lines_of(lambda: float(np.median(_clipped(np.ones((3, 1))))))
    assert ran and {Path(file).name for file, _ in ran} == {Path(__file__).name}


def test_epsilon_of_rescaled_noise_against_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal scales: Gaussian DP, and a shift of Laplace noise; of a wider normal, delta by its two
    crossings of the densities. On a tenth of the points, a rule of which the error falls with their
    square."""
    monkeypatch.setattr(dependence, "GRID", 40_001)
    assert rescaled_epsilon("gaussian", 1.0, 1.0, 1e-5) == pytest.approx(
        gaussian_epsilon(1.0, 1e-5), rel=1e-3
    )
    assert rescaled_epsilon("laplace", 1.0, 1.0, 1e-3) == pytest.approx(
        1 + 2 * math.log1p(-1e-3), rel=1e-3
    )
    assert rescaled_epsilon("laplace", 0.0, 1.01, 0.0) == math.inf
    ratio = 2.0
    delta = 1e-5
    epsilon = rescaled_epsilon("gaussian", 0.0, ratio, delta)
    # where the wider density is e^epsilon times the other
    at = math.sqrt(2 * (epsilon + math.log(ratio)) / (1 - 1 / ratio**2))
    assert 2 * (norm.sf(at / ratio) - math.exp(epsilon) * norm.sf(at)) == pytest.approx(
        delta, rel=0.02
    )
