"""``python -m attacks.selftest``: how often does each lower bound exceed the truth?

Three mechanisms with known epsilon: a null, Laplace (epsilon 1) and Gaussian (mu 1). A bound that
claims 95 % may exceed the truth in 5 % of audits. The exit status is 1 where a finite-sample bound
does so significantly more often.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attacks.command_line import CommandParser
from attacks.epsilon import Bound, from_scores
from attacks.one_run import one_run_from_scores
from attacks.statistics import chance_of_at_least
from attacks.tradeoff import gaussian_epsilon

DELTA = 1e-5
CONFIDENCE = 0.95
Sampler = Callable[[np.ndarray, np.random.Generator], np.ndarray]
Estimator = Callable[[np.ndarray, np.ndarray, np.random.Generator], Bound]
MECHANISMS: dict[str, tuple[float, Sampler]] = {  # exact epsilon at DELTA, one output a trial
    "null": (0.0, lambda member, rng: rng.normal(size=len(member))),
    # for sensitivity and scale 1: delta = 1 - e^((epsilon - 1) / 2)
    "Laplace": (
        1 + 2 * math.log1p(-DELTA),
        lambda member, rng: member + rng.laplace(size=len(member)),
    ),
    "Gaussian": (
        gaussian_epsilon(1.0, DELTA),
        lambda member, rng: member + rng.normal(size=len(member)),
    ),
}


@dataclass(frozen=True)
class CoverageRow:
    """One estimator on one mechanism: in how many runs it was above the truth, and its mean."""

    mechanism: str
    truth: float
    estimator: str
    validity: str
    above: int
    runs: int
    mean: float

    @property
    def exceeds_level(self) -> bool:
        """Above the truth more often than chance lets a valid bound be (p < 0.001)."""
        return bool(chance_of_at_least(self.above, self.runs, 1 - CONFIDENCE) < 1e-3)


def bound_estimators(trials: int) -> dict[str, Estimator]:
    """Every bound with every way to choose its threshold or guesses; all grids are settled
    beforehand."""
    half = trials // 2
    tenth = trials // 20
    grid = [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    return {
        "Clopper-Pearson, fixed": lambda s, m, r: from_scores(s, m, delta=DELTA, thresholds=[1.5]),
        "Clopper-Pearson, corrected": lambda s, m, r: from_scores(
            s, m, delta=DELTA, thresholds=grid
        ),
        "Clopper-Pearson, split": lambda s, m, r: from_scores(s, m, delta=DELTA, generator=r),
        "one run, all guesses": lambda s, m, r: one_run_from_scores(
            s, m, delta=DELTA, generator=r, guesses=[(half, half)]
        ),
        "one run, corrected": lambda s, m, r: one_run_from_scores(
            s,
            m,
            delta=DELTA,
            generator=r,
            guesses=[(tenth, tenth), (half // 2, half // 2), (half, half)],
        ),
        "f-DP one run, corrected": lambda s, m, r: one_run_from_scores(
            s,
            m,
            delta=DELTA,
            generator=r,
            guesses=[(tenth, tenth), (half // 2, half // 2)],
            method="fdp_one_run",
        ),
        "f-DP one run, Gaussian": lambda s, m, r: one_run_from_scores(
            s, m, delta=DELTA, generator=r, guesses=[(tenth, tenth)], method="fdp_one_run_gaussian"
        ),
        "Gaussian-DP, fixed": lambda s, m, r: from_scores(
            s, m, delta=DELTA, method="gaussian", thresholds=[0.5]
        ),
        "Gaussian-DP, split": lambda s, m, r: from_scores(
            s, m, delta=DELTA, method="gaussian", generator=r
        ),
        "Bayesian, split": lambda s, m, r: from_scores(
            s, m, delta=DELTA, method="bayesian", generator=r
        ),
    }


def run_selftest(runs: int, trials: int, seed: int = 0) -> list[CoverageRow]:
    """Audit each mechanism ``runs`` times with ``trials`` independent trials, half of them members
    on average."""
    if not runs >= 1 or not trials >= 40:
        raise ValueError(f"runs={runs}, trials={trials}: runs >= 1 and trials >= 40 are needed")
    rows = []
    estimators = bound_estimators(trials)
    for number, (mechanism, (epsilon, draw)) in enumerate(MECHANISMS.items()):
        rng = np.random.default_rng([seed, number])
        bounds: dict[str, list[Bound]] = {name: [] for name in estimators}
        for _ in range(runs):
            member = rng.random(trials) < 0.5
            scores = draw(member, rng)
            for name, estimate in estimators.items():
                bounds[name].append(estimate(scores, member, rng))
        for name, bound_values in bounds.items():
            values = np.array([bound.value for bound in bound_values])
            above = int((values > epsilon).sum())
            rows.append(
                CoverageRow(
                    mechanism,
                    epsilon,
                    name,
                    bound_values[0].validity,
                    above,
                    runs,
                    float(values.mean()),
                )
            )
    return rows


def format_table(rows: Sequence[CoverageRow]) -> str:
    """The rows as aligned text."""
    lines = [
        f"{'mechanism':<10}{'epsilon':>8}  "
        f"{'lower bound (95 %)':<28}{'validity':<15}{'above truth':>11}{'mean':>7}"
    ]
    for row in rows:
        share = f"{100 * row.above / row.runs:.1f} %"
        mark = "  exceeds its level" if row.exceeds_level else ""
        row_start = f"{row.mechanism:<10}{row.truth:>8.2f}  {row.estimator:<28}{row.validity:<15}"
        lines.append(f"{row_start}{share:>11}{row.mean:>7.2f}{mark}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a finite-sample bound exceeds its level, else 0."""
    parser = CommandParser(prog="python -m attacks.selftest", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="audits per mechanism (default 200)")
    parser.add_argument(
        "--trials", type=int, default=1000, help="independent trials per audit (default 1000)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rows = run_selftest(options.runs, options.trials, options.seed)
    print(format_table(rows))
    print(f"\n{options.runs} audits of {options.trials} trials each, delta {DELTA:g}.")
    return int(any(row.exceeds_level and row.validity == "finite_sample" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
