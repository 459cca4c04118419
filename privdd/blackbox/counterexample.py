"""Shows that a mechanism is not as private as stated: it is called on two inputs that differ in one
record, many times.

Needs Python and numpy only, so a few statistics of privdd are repeated here. Prints what two inputs
can be told apart by, and the epsilon that this proves (a lower bound by Clopper and Pearson, 1934:
one rule, learned on one half of the calls and judged on the other). Exit status: 0 refuted, 1 not
shown.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import json
import math
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

CASE: dict[str, Any] = json.loads(r"""{}""")
# of each input: few first, and many if these do not show it; on the wall
CALLS = (4_000, 200_000)
SECONDS = 120
FEWEST = 40  # calls that are made however long they take
CONFIDENCE = 0.99  # of both bounds together
BINS = 24  # of the histogram of a number
THRESHOLDS = 200  # of a statistic
HALVINGS = 60  # of [0, 1], for a limit of a share
Output = tuple[np.ndarray, str]  # the numbers that came out of one instance, and what is no number
Statistic = Callable[[list[Output]], np.ndarray]


class Rule(NamedTuple):
    """A record is said to be there if sign * statistic(output) is at least the threshold."""

    name: str
    statistic: Statistic
    sign: int
    threshold: float


def load_mechanism(name: str) -> Any:
    """package.module:Name or file.py:Name."""
    module, _, attribute = name.rpartition(":" if ":" in name else ".")
    if module.endswith(".py"):
        spec = importlib.util.spec_from_file_location("mechanism_under_test", pathlib.Path(module))
        if spec is None or spec.loader is None:
            raise ImportError(f"{module}: no module of Python")
        target: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(target)
    else:
        sys.path.insert(0, "")
        target = importlib.import_module(module)
    for part in attribute.split("."):
        target = getattr(target, part)
    return target


def read_data(value: Any) -> Any:
    """Arrays, and lists of them, as the mechanism takes them."""
    if isinstance(value, dict):
        array = np.array(value["values"], dtype=np.float64).reshape(value["shape"])
        if CASE["torch"]:
            return importlib.import_module("torch").from_numpy(array)
        return array
    if isinstance(value, list):
        return [read_data(part) for part in value]
    return value


def call_mechanism(target: Any, calls: list[Any]) -> Output:
    """What one instance lets out in these calls."""
    keywords = CASE["arguments"]
    f = target
    if inspect.isclass(target):
        f = target(**keywords)
        keywords = {}
    numbers: list[np.ndarray] = []
    words: list[str] = []
    for data in copy.deepcopy(calls):
        positional = data if CASE["kind"] == "aggregate" else [data]
        collect_outputs(f(*positional, **keywords), numbers, words)
    return np.concatenate([np.zeros(0), *numbers]), ";".join(words)


def collect_outputs(value: Any, numbers: list[np.ndarray], words: list[str]) -> None:
    """Append all numbers below a value, and words for the rest."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, dict):
        words.append(str([str(key) for key in value]))
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            collect_outputs(part, numbers, words)
    elif is_numeric(value):
        flat = np.asarray(value, dtype=np.float64).ravel()
        word = str(np.shape(value))
        if not np.isfinite(flat).all():
            word += " not finite"
        words.append(word)
        numbers.append(np.nan_to_num(flat))
    elif hasattr(value, "__dataclass_fields__"):
        parts = [getattr(value, name) for name in value.__dataclass_fields__]
        collect_outputs(parts, numbers, words)
    else:
        words.append(repr(value))


def is_numeric(value: Any) -> bool:
    """Whether a value is a real number, or an array of them."""
    if not isinstance(value, (np.ndarray, np.number, float, int)):
        return False
    return np.asarray(value).dtype.kind in "fiub"


def learn_statistics(present: list[Output], absent: list[Output]) -> dict[str, Statistic]:
    """Name -> f(outputs) -> one number each, larger if the record is there, learned from outputs of
    both inputs.

    Of numbers x with means a, b and variance v on average over both inputs: the shift sum (x - b)
    (a - b) / v, Fisher's discriminant of independent numbers; sum (x - b)^2; max |x - b|.
    """
    statistics: dict[str, Statistic] = {
        "words and shapes": learn_odds(present, absent, words_of),
        "whole outcomes": learn_odds(present, absent, key_of),
    }
    sizes = {len(numbers) for numbers, _ in present + absent}
    if sizes == {0} or len(sizes) != 1:
        return statistics
    a = numbers_of(present)
    b = numbers_of(absent)
    variance = (a.var(0) + b.var(0)) / 2
    centre = b.mean(0)
    least = 1e-12 * max(float(variance.max()), 1e-300)
    direction = (a.mean(0) - centre) / np.maximum(variance, least)
    statistics["shift"] = lambda side: (numbers_of(side) - centre) @ direction
    statistics["numbers one by one"] = learn_likelihood_ratio(a, b)
    statistics["energy"] = lambda side: ((numbers_of(side) - centre) ** 2).sum(1)
    statistics["largest number"] = lambda side: np.abs(numbers_of(side) - centre).max(1)
    return statistics


def words_of(output: Output) -> str:
    """What is no number."""
    return output[1]


def key_of(output: Output) -> tuple[str, bytes]:
    """All of an output."""
    numbers, words = output
    return words, numbers.tobytes()


def numbers_of(side: list[Output]) -> np.ndarray:
    """(n, numbers)."""
    return np.stack([numbers for numbers, _ in side])


def learn_odds(
    present: list[Output], absent: list[Output], part: Callable[[Output], Any]
) -> Statistic:
    """How much more often a part of what comes out comes with the record: ln((n + 1/2) / (m + 1/2))
    of its counts."""
    with_record = Counter(map(part, present))
    without_record = Counter(map(part, absent))
    odds = {
        key: math.log((with_record[key] + 0.5) / (without_record[key] + 0.5))
        for key in {*with_record, *without_record}
    }
    return lambda side: np.array([odds.get(part(output), 0.0) for output in side])


def learn_likelihood_ratio(present: np.ndarray, absent: np.ndarray, bins: int = BINS) -> Statistic:
    """The log ratio of two histograms of each number, summed as if numbers were independent:

        T(y) = sum_j ln (c_j(y_j) + 1/2) / (a_j(y_j) + 1/2)

    with c_j and a_j the counts of present and absent outputs in y_j's cell. Half a count keeps an
    empty cell from deciding alone. Outputs are (n, numbers)."""
    samples = np.concatenate([present, absent])
    shares = np.linspace(0, 1, bins + 1)[1:-1]
    edges = [np.unique(np.quantile(column, shares)) for column in samples.T]

    def log_counts(rows: np.ndarray, index: int) -> np.ndarray:
        cells = np.searchsorted(edges[index], rows[:, index])
        return np.log(np.bincount(cells, minlength=len(edges[index]) + 1) + 0.5)

    ratios = [
        log_counts(present, index) - log_counts(absent, index) for index in range(samples.shape[1])
    ]

    def sum_ratios(side: list[Output]) -> np.ndarray:
        columns = numbers_of(side).T
        terms = [
            ratio[np.searchsorted(ends, column)]
            for ratio, ends, column in zip(ratios, edges, columns)
        ]
        return np.sum(terms, axis=0)

    return sum_ratios


def bound_epsilon(hits: int, false_hits: int, count: int, delta: float) -> float:
    """Lower bound on epsilon: P(hit) <= e^epsilon P(false hit) + delta, so epsilon >= ln((low -
    delta) / high), each share at its part of the error probability."""
    error = (1 - CONFIDENCE) / 2 / len(CALLS)
    low = 1 - upper_end(count - hits, count, error)
    high = upper_end(false_hits, count, error)
    if low - delta > high:
        return math.log((low - delta) / high)
    return 0.0


def upper_end(hits: int, count: int, error: float) -> float:
    """The share p at which so few hits, of so many, have this probability: sum over k <= hits of
    C(count, k) p^k (1 - p)^(count - k) = error (Clopper and Pearson), by halving."""
    if hits >= count:
        return 1.0
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    k = np.arange(hits + 1)
    log_ways = log_factorials[count] - log_factorials[k] - log_factorials[count - k]
    low = hits / count
    high = 1.0
    for _ in range(HALVINGS):
        p = (low + high) / 2
        if p < 1:
            log_terms = log_ways + k * math.log(p) + (count - k) * math.log1p(-p)
        else:
            log_terms = None
        if log_terms is not None and np.exp(log_terms).sum() > error:
            low = p
        else:
            high = p
    return high


def best_rule(present: list[Output], absent: list[Output], delta: float) -> Rule:
    """The rule that tells most, on one half of the outputs, of those learned from the other."""
    half = len(present) // 2
    best = -math.inf
    chosen = Rule("nothing", lambda side: np.zeros(len(side)), 1, 0.0)
    for name, statistic in learn_statistics(present[:half], absent[:half]).items():
        a = np.sort(statistic(present[half:]))
        b = np.sort(statistic(absent[half:]))
        # the record may be told by what comes out, or by what does not
        for sign, hits_of, false_hits_of in ((1, a, b), (-1, -b[::-1], -a[::-1])):
            for threshold in candidate_thresholds(hits_of, false_hits_of):
                estimate = estimate_epsilon(hits_of, false_hits_of, threshold, delta)
                if estimate > best:
                    best = estimate
                    chosen = Rule(name, statistic, sign, float(threshold))
    return chosen


def candidate_thresholds(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quantiles of both sides together."""
    shares = np.linspace(0, 1, THRESHOLDS)
    return np.unique(np.quantile(np.concatenate([a, b]), shares, method="higher"))


def estimate_epsilon(a: np.ndarray, b: np.ndarray, threshold: float, delta: float) -> float:
    """About what a threshold proves: ln((h - 3 sqrt(h + 1)) / n - delta) / ((f + 5) / m)) of h hits
    and f false hits, which is quick and prefers counts that are no chance.

    Args:
        a: (n,) sorted scores of the side whose hits count.
        b: (m,) sorted scores of the other side.
        threshold: of a hit.
        delta: in [0, 1).
    """
    hits = len(a) - int(np.searchsorted(a, threshold))
    false_hits = len(b) - int(np.searchsorted(b, threshold))
    surely = max((hits - 3 * math.sqrt(hits + 1)) / len(a) - delta, 1e-300)
    return math.log(surely * len(b) / (false_hits + 5))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Of Gaussian noise whose mean a record moves by mu standard deviations: the root of delta =
    Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu) (Balle and Wang, 2018,
    theorem 8), by halving."""
    if mu <= 0:
        return 0.0
    low = 0.0
    high = mu * mu / 2 + 40 * mu
    for _ in range(100):
        middle = (low + high) / 2
        second = normal_cdf(-mu / 2 - middle / mu)
        if second > 0:
            rest = math.exp(middle + math.log(second))
        else:
            rest = 0.0
        spent = normal_cdf(mu / 2 - middle / mu) - rest
        if spent > max(delta, 1e-12):
            low = middle
        else:
            high = middle
    return low


def normal_cdf(x: float) -> float:
    """Phi(x)."""
    return math.erfc(-x / math.sqrt(2)) / 2


def draw_outputs(target: Any, calls: int) -> tuple[list[Output], list[Output]]:
    """So many outputs with the record and without it, or as many as the time allows."""
    with_record = read_data(CASE["present"])
    without_record = read_data(CASE["absent"])
    began = time.monotonic()
    present: list[Output] = []
    absent: list[Output] = []
    while len(absent) < calls and (time.monotonic() - began < SECONDS or len(absent) < FEWEST):
        present.append(call_mechanism(target, with_record))
        absent.append(call_mechanism(target, without_record))
    return present, absent


def shown_epsilon(target: Any, calls: int) -> float:
    """The epsilon that so many calls on each input prove; what they show is printed."""
    delta = CASE["delta"]
    all_present, all_absent = draw_outputs(target, calls)
    count = len(all_absent) // 2
    present = all_present[:count]
    absent = all_absent[:count]
    judged_present = all_present[count : 2 * count]
    judged_absent = all_absent[count : 2 * count]
    rule = best_rule(present, absent, delta)
    sides = [judged_present, judged_absent]
    names = ["with", "without"]
    if rule.sign < 0:
        sides.reverse()
        names.reverse()
    hits, false_hits = (
        int((rule.sign * rule.statistic(side) >= rule.threshold).sum()) for side in sides
    )
    shown = bound_epsilon(hits, false_hits, count, delta)
    counts = f"{hits} of {count} {names[0]} the record, {false_hits} of {count} {names[1]}"
    print(f"{2 * count} calls of each, distinguished by {rule.name}: {counts}")
    print(f"epsilon is at least {shown:.4g} ({CONFIDENCE:.0%} confidence, for any mechanism)")
    if CASE["law"] == "gaussian":
        shift = learn_statistics(present, absent).get("shift")
    else:
        shift = None
    if shift is None:
        return shown
    by_law = epsilon_by_shift(shift(judged_present), shift(judged_absent), count, delta)
    print(f"as its noise is Gaussian, the shift of its mean says: epsilon is at least {by_law:.4g}")
    return max(shown, by_law)


def epsilon_by_shift(a: np.ndarray, b: np.ndarray, count: int, delta: float) -> float:
    """mu = |mean a - mean b| / sqrt((var a + var b) / 2) - 3 sqrt(2 / n): three standard errors of
    the difference are taken off."""
    noise = max(math.sqrt((a.var() + b.var()) / 2), 1e-300)
    mu = abs(a.mean() - b.mean()) / noise - 3 * math.sqrt(2 / count)
    return gaussian_epsilon(mu, delta)


def main() -> int:
    stated = CASE["epsilon"]
    statement = f"epsilon = {stated:g} at delta = {CASE['delta']:g}, {CASE['relation']}"
    print(f"{CASE['mechanism']}: stated is {statement}")
    print(f"the two inputs differ in one record: {CASE['inputs']}")
    target = load_mechanism(CASE["mechanism"])
    refuted = any(shown_epsilon(target, calls) > stated for calls in CALLS)
    print(f"{'REFUTED' if refuted else 'not shown'}: epsilon = {stated:g} is stated")
    return 0 if refuted else 1


if __name__ == "__main__":
    sys.exit(main())
