"""How often does each finite-sample statement of an audit exceed the truth? At most 5 % is claimed.

    python -m benchmarks.coverage [--audits 400] [--runs 600] [--canaries 400] [--write
    docs/coverage.md]

Each mechanism's epsilon at delta 1e-5 is known in closed form, and the attack is the best there is
(its likelihood ratio). "above" is the share of audits that state more than the truth, with its 95 %
binomial interval. For the tests of a whole curve the truth is the mechanism's own curve, and
"above" is how often that is refuted. The exit status is 1 where a share is above 5 % by more than
chance explains (its interval lies above)."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binomtest

from attacks.certificates import bound_from_runs, likelihood_ratio_certificate
from attacks.command_line import CommandParser
from attacks.epsilon import from_scores
from attacks.membership.measures import guess_counts, one_run_bound
from attacks.membership.stacking import LEAST_FOLDS, Stacking
from attacks.one_run import is_fdp_refuted, one_run_from_scores, right_guesses
from attacks.tradeoff import curve_test, most_testable_point
from attacks.types import Adversary, Knowledge, Surface, View, Worlds
from benchmarks.known_mechanisms import DELTA, Known, mechanisms
from privdd.reporting.export import write_markdown_page

CONFIDENCE = 0.95
# -> what is stated; +inf where the true curve is refuted
Audit = Callable[[Known, int, np.random.Generator], float]
GRID = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Coverage:
    """One estimator on one mechanism; mean: of what is stated, nan for tests that only refute."""

    mechanism: str
    truth: float
    estimator: str
    above: int
    audits: int
    mean: float

    @property
    def interval(self) -> tuple[float, float]:
        found = binomtest(self.above, self.audits).proportion_ci(0.95, "exact")
        return float(found.low), float(found.high)

    @property
    def broken(self) -> bool:
        return self.interval[0] > 1 - CONFIDENCE


def _sides(known: Known, runs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return known.draw(np.ones(runs, bool), rng), known.draw(np.zeros(runs, bool), rng)


def _trials(known: Known, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    member = rng.random(count) < 0.5
    return known.draw(member, rng), member


def clopper_pearson(
    known: Known, runs: int, rng: np.random.Generator, thresholds: Sequence[float] | None = None
) -> float:
    scores, member = _trials(known, 2 * runs, rng)
    return from_scores(scores, member, delta=DELTA, thresholds=thresholds, generator=rng).value


def one_run(
    known: Known, canaries: int, rng: np.random.Generator, method: str = "one_run"
) -> float:
    scores, member = _trials(known, canaries, rng)
    guesses = guess_counts(canaries)
    return one_run_from_scores(
        scores, member, delta=DELTA, generator=rng, guesses=guesses, method=method
    ).value  # type: ignore[arg-type]


def one_run_curve(known: Known, canaries: int, rng: np.random.Generator) -> float:
    counts = right_guesses(*_trials(known, canaries, rng), guess_counts(canaries), rng)
    alpha = (1 - CONFIDENCE) / len(counts)
    if any(is_fdp_refuted(canaries, made, right, known.curve, alpha) for made, right in counts):
        return np.inf
    return np.nan


def curve(known: Known, runs: int, rng: np.random.Generator) -> float:
    point = most_testable_point(known.curve, runs)
    found = curve_test(
        *_sides(known, runs, rng), lambda scale: known.curve, threshold=point.threshold
    )
    return np.inf if found.refuted else np.nan


def order_statistic(known: Known, runs: int, rng: np.random.Generator) -> float:
    """T2 by the k-th largest ratio, both orders of the pair at half of the error each."""
    inside, outside = _sides(known, runs, rng)
    made = [
        likelihood_ratio_certificate(torch.tensor(r), confidence=0.975) for r in (inside, -outside)
    ]
    return max((one.epsilon for one in made if one.delta_below > DELTA), default=0.0)


def transcript_attack(known: Known, runs: int, rng: np.random.Generator) -> float:
    """T3: a fitted discriminant on the ratio and a column of noise."""
    sides = [np.stack([side, rng.normal(size=runs)], 1) for side in _sides(known, runs, rng)]
    return bound_from_runs(
        torch.tensor(sides[0]), torch.tensor(sides[1]), delta=DELTA, generator=rng
    ).value


def membership(known: Known, canaries: int, rng: np.random.Generator) -> float:
    """The bound of a membership finding: two worlds of audited records, three shares of guesses."""
    masks = rng.random((2, canaries)) < 0.5
    scores = torch.tensor(known.draw(masks, rng))
    return one_run_bound(scores, torch.tensor(masks), DELTA, rng, CONFIDENCE, targets=2).value


def stacked(known: Known, canaries: int, rng: np.random.Generator) -> float:
    """The same bound from stacked scores, of six replays of which two are targets."""
    masks = torch.tensor(rng.random((LEAST_FOLDS, canaries)) < 0.5)
    scores = torch.tensor(known.draw(masks.numpy(), rng))
    none = torch.zeros(canaries, dtype=torch.int64)
    worlds = Worlds({"confidence": scores}, masks, none, none)
    knowledge = Knowledge((1,), 2, torch.zeros(1, 1), torch.zeros(1))
    view = View(Surface.UPDATE, Adversary.SERVER, (), knowledge, worlds)
    attack = Stacking(attacks=("base", "loss_threshold"), folds=LEAST_FOLDS)
    attack_scores = attack.run(view, torch.Generator().manual_seed(0)).scores
    if attack_scores is None:
        raise ValueError("stacking gave no scores")
    return one_run_bound(attack_scores, masks, DELTA, rng, CONFIDENCE, targets=2).value


def tilted(known: Known, runs: int, rng: np.random.Generator) -> float:
    """T2 on draws tilted towards large losses; of as many runs as a certificate takes."""
    from attacks.certificates import certified_epsilon, draw_tilted_runs, step_losses

    assert known.planned is not None
    mu, q = (np.array([value]) for value in known.planned)
    draws = draw_tilted_runs(mu, q, DELTA, 60, rng)
    return certified_epsilon(
        draws, step_losses(draws.noise + draws.coins * mu, mu, q).sum(1), DELTA
    )


def estimators(runs: int, canaries: int) -> dict[str, tuple[Audit, int]]:
    """Name -> (audit, its size)."""
    return {
        "Clopper-Pearson, one threshold": (partial(clopper_pearson, thresholds=[0.5]), runs),
        "Clopper-Pearson, seven thresholds": (partial(clopper_pearson, thresholds=GRID), runs),
        "Clopper-Pearson, split": (clopper_pearson, runs),
        "one run, Steinke et al.": (one_run, canaries),
        "one run, f-DP": (partial(one_run, method="fdp_one_run"), canaries),
        "one run, f-DP, own curve": (one_run_curve, canaries),
        "T2, order statistic": (order_statistic, runs),
        "T2, tilted": (tilted, runs),
        "T3, transcript attack": (transcript_attack, runs),
        "T3, own curve": (curve, runs),
        "membership, two replays": (membership, canaries),
        "membership, stacked": (stacked, canaries),
    }


def covered(
    audits: int, runs: int, canaries: int, seed: int = 0, only: Sequence[str] | None = None
) -> list[Coverage]:
    """Every estimator (or ``only`` some) on every mechanism, ``audits`` times each."""
    have_tilted = importlib.util.find_spec("attacks.certificates") is not None
    rows = []
    for number, known in enumerate(mechanisms()):
        for index, (name, (audit, size)) in enumerate(estimators(runs, canaries).items()):
            if (only is not None and name not in only) or (
                audit is tilted and not (have_tilted and known.planned)
            ):
                continue
            if audit is stacked and known.epsilon:  # six fits an audit: of the null alone
                continue
            rng = np.random.default_rng([seed, number, index])
            values = np.array([audit(known, size, rng) for _ in range(audits)])
            above = int((values > known.epsilon + 1e-12).sum())
            stated = values[np.isfinite(values)]
            rows.append(
                Coverage(
                    known.name,
                    known.epsilon,
                    name,
                    above,
                    audits,
                    stated.mean() if len(stated) else np.nan,
                )
            )
    return rows


def table(rows: Sequence[Coverage]) -> str:
    """The rows as an aligned Markdown table."""
    lines = [
        "| mechanism | epsilon | estimator | above | 95 % interval | mean / epsilon |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = (100 * end for end in row.interval)
        share = f"{row.mean / row.truth:.2f}" if row.truth and np.isfinite(row.mean) else "-"
        mark = " **too often**" if row.broken else ""
        left = f"| {row.mechanism:<28} | {row.truth:7.3f} | {row.estimator:<34} "
        right = (
            f"| {100 * row.above / row.audits:4.1f} %{mark} | {low:4.1f} to {high:4.1f} % | "
            f"{share:>4} |"
        )
        lines.append(left + right)
    return "\n".join(lines)


def write_table(page: Path, rows: Sequence[Coverage], size: str) -> None:
    """Replace the table, and the line on its size, at the end of a page."""
    head = re.split(
        r"^(?:\d+ audits a row|\| mechanism|\[\d+ rows\])",
        page.read_text(encoding="utf-8"),
        maxsplit=1,
        flags=re.M,
    )[0]
    write_markdown_page(page, f"{head}{size}\n\n{table(rows)}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a share is above 5 % beyond chance, else 0."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--audits", type=int, default=400, help="of each mechanism by each estimator"
    )
    parser.add_argument(
        "--runs", type=int, default=600, help="with, and as many without, the record"
    )
    parser.add_argument("--canaries", type=int, default=400, help="of one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    began = time.process_time()
    rows = covered(options.audits, options.runs, options.canaries, options.seed)
    print(table(rows))
    if importlib.util.find_spec("attacks.certificates") is None:
        print("T2, tilted: not in this version (attacks.certificates).")
    size = (
        f"{options.audits} audits a row, {options.runs} + {options.runs} runs or "
        f"{options.canaries} canaries"
    )
    size = f"{size}, delta {DELTA:g}, 95 % confidence; {time.process_time() - began:.0f} CPU s."
    print(f"\n{size}")
    if options.write:
        write_table(options.write, rows, size)
    return int(any(row.broken for row in rows))


if __name__ == "__main__":
    sys.exit(main())
