"""One answer of all looks: the faults that a part of them passes, statements cut short, guessed
kinds, zCDP and Gaussian DP."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from attacks.tradeoff import gaussian_epsilon
from privdd.api import assert_private, check
from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.check_run import CheckRun
from privdd.blackbox.claims import CheckedClaim, zcdp_epsilon
from privdd.blackbox.fresh_randomness import with_fresh_randomness
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.runner import (
    CheckRequest,
    ProgressNotes,
    plan_calls,
    run_check,
    stated_epsilon,
)
from privdd.blackbox.stages.directions import examine_directions
from privdd.blackbox.stages.neighbour_search import search_neighbours
from privdd.blackbox.target import guess_kind
from privdd.check import EXIT_UNDECIDED, main
from privdd.core.validation import BadConfig

RNG = np.random.default_rng(50)
PURE = {"epsilon": 8.0, "delta": 0.0}
SMALL = InputShapes(structures=(((3,),),), tables=((4, 3),), crowds=(3,))
FEW = {"max_calls": 20_000, "tried": SMALL}


def _clipped(rows: np.ndarray) -> np.ndarray:
    finite = np.nan_to_num(np.asarray(rows, float), posinf=0.0, neginf=0.0)
    return finite / np.maximum(np.linalg.norm(finite, axis=1, keepdims=True), 1.0)


def class_means(rows: np.ndarray) -> list[np.ndarray]:
    """Noised class sums over class counts without noise: the scale of the noise follows a count."""
    label = np.abs(np.rint(np.nan_to_num(rows[:, -1], posinf=0.0, neginf=0.0))).astype(int) % 2
    inside = _clipped(rows[:, :-1])
    sums = [inside[label == c].sum(0) + RNG.laplace(0, 1.0, inside.shape[1]) for c in range(2)]
    return [total / max(1, int((label == c).sum())) for c, total in enumerate(sums)]


def median_by_its_gap(rows: np.ndarray) -> float:
    """Noise scaled by the local sensitivity of the median."""
    inside = np.clip(np.nan_to_num(rows[:, 0], posinf=0.0, neginf=0.0), 0, 1)
    values = np.sort(np.concatenate([[0.0], inside, [1.0]]))
    middle = len(values) // 2
    gap = max(
        values[middle] - values[middle - 1],
        values[min(middle + 1, len(values) - 1)] - values[middle],
    )
    return float(values[middle] + RNG.laplace(0, max(gap, 1e-3) / 8))


def randomised_response(rows: np.ndarray) -> np.ndarray:
    """epsilon 2 for each bit of a row."""
    bits = np.nan_to_num(rows) > 0.5
    keep = RNG.random(bits.shape) < 1 / (1 + math.exp(-2.0))
    return np.where(keep, bits, ~bits).astype(float)


@pytest.mark.nightly(but=["few calls"])
@pytest.mark.parametrize(
    "settings", [{"max_calls": 40_000, "tried": SMALL}, {}], ids=["few calls", "default settings"]
)
def test_noise_whose_scale_follows_a_count_is_refuted(settings: dict[str, Any]) -> None:
    found = check(class_means, stated=PURE, kind="records", **settings)
    assert found.refuted, found.says
    assert "times as wide with the record as without it" in found.says


def test_a_median_with_noise_by_local_sensitivity_is_refuted() -> None:
    found = check(median_by_its_gap, stated=PURE, kind="records", **(FEW | {"max_calls": 40_000}))
    assert found.refuted and math.isinf(found.certified), found.says


@pytest.mark.parametrize("relation", ["add_remove", "replace", "zero_out"])
def test_rows_are_equal_doubled_grouped_and_at_the_ends_of_the_unit_interval(relation: str) -> None:
    pairs = neighbouring_pairs("records", relation, InputShapes(tables=((5, 3),)))
    sizes = [
        {tuple(row): int((pair.present == row).all(1).sum()) for row in pair.present}
        for pair in pairs
    ]
    record_copies = {counts[tuple(pair.present[0])] for counts, pair in zip(sizes, pairs)}
    assert {1, 2, 5} <= record_copies  # alone; a copy of a row that is there; all rows equal
    assert any(sorted(counts.values()) == [1, 2, 2] for counts in sizes)  # every row twice
    alone, two = (
        {
            int((pair.present[:, -1] == 1).sum())
            for pair in pairs
            if words in pair.says and "last column" in pair.says
        }
        for words in ("alone in its group", "one of two in its group")
    )
    assert alone == {1} and two == {2}
    at_ends = [pair for pair in pairs if "unit interval" in pair.says]
    assert {float(x) for pair in at_ends for x in pair.present.ravel()} >= {0.0, 0.5, 1.0}
    assert all(
        pair.present.shape != pair.absent.shape or (pair.present != pair.absent).any()
        for pair in pairs
    )


def test_a_statement_that_time_cut_short_is_not_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any look was made nothing is green, in Python, in a test or by status."""
    asked = {
        "stated": {"epsilon": 2.0, "delta": 0.0},
        "kind": "records",
        "relation": "replace",
        "seconds": 0.05,
    }
    found = check(randomised_response, **asked)
    assert (found.verdict, found.refuted) == (
        "not decided",
        False,
    ) and "NOT DECIDED: the time was spent" in found.says
    with pytest.raises(AssertionError, match="NOT DECIDED"):
        assert_private(randomised_response, **asked)
    (tmp_path / "m.py").write_text(
        "import numpy as np\nrng = np.random.default_rng()\ndef f(x):\n    return x[0, "
        "0] + rng.normal()\n"
    )
    command = [
        f"mechanism={tmp_path / 'm.py'}:f",
        "kind=records",
        "stated.epsilon=1",
        "stated.delta=1e-5",
        "seconds=0.05",
        f"out={tmp_path}",
    ]
    assert main(command) == EXIT_UNDECIDED == 4
    out = capsys.readouterr().out
    assert out.startswith(
        f"{tmp_path / 'm.py'}:f: epsilon 1 at delta 1e-5 (kind=records, add_remove): NOT DECIDED"
    )
    assert (
        "The stated ε = 1 at δ = 1e-5 could not be tested in full."
        in (tmp_path / "check.html").read_text()
    )


def test_calls_plan_the_looks_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every call seems to take a hundred times as long makes as many transcripts
    for each look."""

    def transcripts_of_looks() -> list[tuple[str, float | None]]:
        rng = np.random.default_rng(3)
        mechanism = BlackBox(
            lambda: lambda rows: _clipped(rows).sum(0) + rng.normal(0, 2, 3), "records", fresh=False
        )
        claim = CheckedClaim(2.1, 1e-5, kind="records", relation="add_remove")
        run = CheckRun(mechanism, claim, SMALL, CallBudget(1e9, 6000), has_chosen_numbers=True)
        search_neighbours(run)
        examine_directions(run)
        return [(look.name, look.numbers.get("transcripts")) for look in run.report.looks]

    idle = transcripts_of_looks()
    times = iter(range(10**9))
    monkeypatch.setattr("time.process_time", lambda: float(next(times)))
    assert transcripts_of_looks() == idle and len(idle) > 4


def test_a_slow_mechanism_gets_fewer_calls_and_never_too_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = BlackBox(lambda: lambda rows: rows, "records", fresh=False)
    planned = {}
    for cost in (1e-9, 3e-5, 10.0):
        now = [0.0]

        def process_time(now: list[float] = now, step: float = 5 * cost) -> float:
            now[0] += step  # read before and after ten calls
            return now[0]

        monkeypatch.setattr("time.process_time", process_time)
        planned[cost] = plan_calls(box, CheckedClaim(1.0, kind="records"), SMALL, 300.0)
    assert (
        planned[1e-9] == 1_000_000
        and planned[10.0] == 100_000
        and 100_000 < planned[3e-5] <= 1_000_000
    )


def test_progress_names_every_stage_and_goes_on_inside_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, float]] = []
    monkeypatch.setattr("privdd.blackbox.runner.NOTE_SECONDS", 0.0)
    monkeypatch.setattr("privdd.blackbox.runner.HEARTBEAT", 0.0)
    request = CheckRequest(
        lambda: lambda rows: rows[0],
        "f",
        {"epsilon": 1.0, "delta": 0.0, "kind": "records"},
        {},
        SMALL,
        calls=2000,
    )
    run_check(request, lambda stage, share: told.append((stage, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares) and len(told) > len({stage for stage, _ in told}) > 1
    notes = ProgressNotes(lambda note: None, None)  # type: ignore[arg-type]
    assert notes.stage == ""


def sound_with_a_seed(rows: np.ndarray, seed: int) -> np.ndarray:
    return _clipped(rows).sum(0) + 2.0 * np.random.default_rng(seed).normal(size=rows.shape[1])


@pytest.mark.parametrize(
    "release",
    [
        sound_with_a_seed,
        lambda rows, rng: rows.sum(0) + rng.normal(size=3),
        lambda rows, *, random_state: (
            rows.sum(0) + np.random.RandomState(random_state).normal(size=3)
        ),
        lambda rows, generator: (
            rows.sum(0) + np.random.Generator(generator.bit_generator).normal(size=3)
        ),
        lambda rows, key: rows.sum(0) + np.random.default_rng(int(key)).normal(size=3),
    ],
)
def test_seeds_and_generators_are_filled_with_fresh_ones(
    release: Callable[..., np.ndarray],
) -> None:
    assert guess_kind(release) == "records"
    filled = with_fresh_randomness(release)
    drawn = {filled(np.ones((2, 3))).tobytes() for _ in range(20)}
    assert len(drawn) == 20 and guess_kind(filled) == "records"


@pytest.mark.nightly
def test_a_guessed_kind_accuses_nobody(tmp_path: Path) -> None:
    sound = check(
        sound_with_a_seed, stated={"epsilon": 2.1, "delta": 1e-5}, **(FEW | {"max_calls": 8000})
    )
    assert (
        not sound.refuted
        and "no source of randomness" not in sound.says
        and "kind=records, guessed" in sound.says
    )
    bare = check(lambda rows, seed: rows.mean(0), stated={"epsilon": 2.1, "delta": 1e-5}, **FEW)
    assert bare.verdict == "not decided" and "kind=records was guessed" in bare.says
    assert check(
        lambda rows, seed: rows.mean(0),
        stated={"epsilon": 2.1, "delta": 1e-5},
        kind="records",
        **FEW,
    ).refuted
    for unnamed in (lambda a: a, lambda a, b: a, lambda x, y, seed: x):
        with pytest.raises(BadConfig, match="kind= is needed, as the arguments"):
            check(unnamed, stated=PURE)


def test_zcdp_gives_the_least_epsilon_over_all_orders() -> None:
    """By brute force over orders, and between the Gaussian mechanism of this rho and the older
    bound rho + 2 sqrt(rho ln(1/delta))."""
    orders = 1 + np.geomspace(1e-4, 1e4, 200_001)
    for rho, delta in ((0.05, 1e-6), (0.5, 1e-5), (8.0, 1e-3)):
        least = (
            orders * rho
            + (np.log(1 / delta) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders))
            / (orders - 1)
        ).min()
        found = zcdp_epsilon(rho, delta)
        assert found == pytest.approx(least, rel=1e-6)
        assert (
            gaussian_epsilon(math.sqrt(2 * rho), delta)
            < found
            < rho + 2 * math.sqrt(rho * math.log(1 / delta))
        )


@pytest.mark.parametrize("name", ["rho", "mu"])
def test_noise_that_is_stated_as_zcdp_or_gaussian_dp_is_held_against_its_own_limit(
    name: str,
) -> None:
    """Of mu times too much, mu = 1: 2/3 and 1 are kept, 1.02 and 3/2 are not, whatever follows from
    rho for other noise."""
    stated = stated_epsilon({name: 0.5 if name == "rho" else 1.0})
    claim = CheckedClaim(**stated)
    assert claim.law_mu == pytest.approx(1.0) and claim.delta == 1e-5
    for mu, above in ((2 / 3, False), (1.0, False), (1.02, True), (1.5, True)):
        assert (
            gaussian_epsilon(mu, claim.delta) > claim.limit(exact=True, law="gaussian")
        ) == above
    # of mu = 1
    delta = norm.cdf(0.5 - claim.epsilon) - math.exp(claim.epsilon) * norm.cdf(-0.5 - claim.epsilon)
    assert (
        delta <= 1.001e-5
        and ("rho 0.5 of zCDP" if name == "rho" else "mu 1 of Gaussian DP") in claim.says
    )
    for given, says in (
        ({"rho": 1.0, "mu": 1.0}, "one statement"),
        ({name: -1.0}, "above 0"),
        ({name: 1.0, "delta": 0.0}, "in \\(0, 1\\)"),
    ):
        with pytest.raises(BadConfig, match=says):
            stated_epsilon(given)


@pytest.mark.nightly
def test_a_gaussian_with_half_of_the_noise_of_its_rho_is_refuted() -> None:
    def released(rows: np.ndarray, std: float) -> np.ndarray:
        return _clipped(rows).sum(0) + RNG.normal(0, std, 3)

    asked = {"kind": "records", "record": True, "max_calls": 40_000, "tried": SMALL}
    for std, refuted in ((1.0, False), (0.75, True)):
        found = check(released, stated={"rho": 0.5}, args={"std": std}, **asked)
        assert found.refuted == refuted and "rho 0.5 of zCDP (epsilon 4." in found.says, found.says
