"""Limits of a rate invert the binomial tails, and nowhere else are they computed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from attacks.statistics import (
    binomial_interval,
    binomial_p_value,
    bisect_refuted,
    chance_of_at_least,
    chance_of_at_most,
    chance_of_exactly,
    lower_limit,
    shared_confidence,
    upper_limit,
)

ROOT = Path(__file__).resolve().parents[2]


def test_limits_invert_the_binomial_tails() -> None:
    for successes, trials in ((1, 2), (7, 40), (39, 40), (3, 1000)):
        low, high = binomial_interval(successes, trials, 0.9)
        assert binom.sf(successes - 1, trials, low) == pytest.approx(0.05)
        assert binom.cdf(successes, trials, high) == pytest.approx(0.05)


def test_a_rate_at_its_end_has_no_limit_there() -> None:
    assert binomial_interval(0, 0) == (0.0, 1.0)
    assert binomial_interval(0, 40)[0] == 0.0 and binomial_interval(40, 40)[1] == 1.0
    assert 0.0 < binomial_interval(0, 5)[1] < 1.0 and 0.0 < binomial_interval(5, 5)[0] < 1.0


def test_limits_of_arrays_are_those_of_each() -> None:
    counts = np.array([0, 1, 7, 20])
    trials = np.array([20, 20, 20, 20])
    for limit in (lower_limit, upper_limit):
        assert limit(counts, trials, 0.01).tolist() == [limit(int(k), 20, 0.01) for k in counts]


def test_a_fraction_of_a_success_lies_between_whole_ones() -> None:
    assert lower_limit(3, 9, 0.05) < lower_limit(3.5, 9, 0.05) < lower_limit(4, 9, 0.05)


@pytest.mark.parametrize(
    "wrong", [(-1, 4, 0.9), (5, 4, 0.9), (1, 4, 0.0), (1, 4, 1.0), (float("nan"), 4, 0.9)]
)
def test_counts_that_nobody_has_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="not a binomial count"):
        binomial_interval(*wrong)


def test_chances_add_up() -> None:
    each = [chance_of_exactly(k, 6, 0.3) for k in range(7)]
    assert sum(each) == pytest.approx(1)
    assert chance_of_at_least(4, 6, 0.3) == pytest.approx(sum(each[4:]))
    assert chance_of_at_most(3, 6, 0.3) == pytest.approx(sum(each[:4]))
    assert binomial_p_value(5, 6, 0.5) == pytest.approx(14 / 64)


def test_shares_of_an_error_add_up_to_it() -> None:
    assert 20 * (1 - shared_confidence(0.95, 20)) == pytest.approx(0.05)


def test_bisection_stays_where_the_test_refutes() -> None:
    found = bisect_refuted(lambda value: value < 0.3, 0.0, 1.0, 30)
    assert found <= 0.3 and found == pytest.approx(0.3)


# What is no limit of a rate, but another use of the same law.
OTHER_USES = {
    ("attacks/statistics.py", "betaincinv"),
    ("attacks/statistics.py", "binom"),
    ("attacks/statistics.py", "binomtest"),
    # a posterior
    ("attacks/epsilon.py", "betainc"),
    ("attacks/epsilon.py", "betaincinv"),
    ("attacks/identification.py", "betainc"),  # angles on a sphere
    # Jeffreys' interval at an effective sample size
    ("attacks/roc.py", "beta"),
    ("attacks/roc.py", "betaincinv"),
    ("privdd/blackbox/identification_games.py", "betaincinv"),  # angles on a sphere
    # angles on a sphere
    ("privdd/blackbox/spherical_noise.py", "betainc"),
    ("privdd/blackbox/spherical_noise.py", "beta"),
    ("privdd/auditing/dp_tests/residual_statistics.py", "beta"),  # of a correlation
}
LAWS = {
    "beta",
    "binom",
    "binomtest",
    "betainc",
    "betaincc",
    "betaincinv",
    "betainccinv",
    "bdtr",
    "bdtrc",
    "bdtri",
}


def uses_of_laws(path: Path) -> Iterator[str]:
    """Names of ``LAWS`` that a module takes from scipy; a file that has none of these words is not
    parsed."""
    text = path.read_text(encoding="utf-8")
    if LAWS.isdisjoint(re.findall(r"\w+", text)):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scipy"):
            yield from (one.name for one in node.names if one.name in LAWS)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] in (
            "stats",
            "special",
        ):
            yield from (name for name in [node.attr] if name in LAWS)


def test_no_module_computes_limits_of_its_own(tmp_path: Path) -> None:
    files = [*ROOT.glob("privdd/**/*.py"), *ROOT.glob("attacks/**/*.py")]
    found = {
        (path.relative_to(ROOT).as_posix(), name) for path in files for name in uses_of_laws(path)
    }
    assert sorted(found - OTHER_USES) == [], "take it from attacks.statistics"
    assert sorted(OTHER_USES - found) == []
    (tmp_path / "one.py").write_text(
        "from scipy.special import betaincinv\nfrom scipy import stats\nstats.beta.ppf(0.1, 1, 2)\n"
    )
    assert sorted(uses_of_laws(tmp_path / "one.py")) == ["beta", "betaincinv"]
