"""Shows that a mechanism is not as private as stated: it is called on two inputs that differ in one
record, many times.

Needs Python and numpy only. Prints what two inputs can be told apart by, and the epsilon that this
proves (a lower bound by
Clopper and Pearson, 1934: one rule, learned on one half of the calls and judged on the other). Exit
    status: 0 refuted, 1 not shown."""

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
from typing import Any

import numpy as np

CASE: dict[str, Any] = json.loads(r"""{}""")
# of each input: few first, and many where these do not show it; on the wall
CALLS = (4_000, 200_000)
SECONDS = 120
CONFIDENCE = 0.99  # of both bounds together
Output = tuple[np.ndarray, str]  # the numbers that came out of one instance, and what is no number
Statistic = Callable[[list[Output]], np.ndarray]


def load_mechanism(name: str) -> Any:
    """package.module:Name or file.py:Name."""
    module, _, attribute = name.rpartition(":" if ":" in name else ".")
    if module.endswith(".py"):
        spec = importlib.util.spec_from_file_location("mechanism_under_test", pathlib.Path(module))
        if spec is None or spec.loader is None:
            raise ImportError(f"{module}: no module of Python")
        found: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    else:
        sys.path.insert(0, "")
        found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def read_data(value: Any) -> Any:
    """Arrays, and lists of them, as the mechanism takes them."""
    if isinstance(value, dict):
        array = np.array(value["values"], dtype=np.float64).reshape(value["shape"])
        return importlib.import_module("torch").from_numpy(array) if CASE["torch"] else array
    return [read_data(part) for part in value] if isinstance(value, list) else value


def call_mechanism(target: Any, calls: list[Any]) -> Output:
    """What one instance lets out in these calls."""
    made = inspect.isclass(target)
    arguments = CASE["arguments"]
    f = target(**arguments) if made else target
    numbers: list[np.ndarray] = []
    words: list[str] = []
    for data in copy.deepcopy(calls):
        given = data if CASE["kind"] == "aggregate" else [data]
        collect_outputs(f(*given, **({} if made else arguments)), numbers, words)
    return np.concatenate([np.zeros(0), *numbers]), ";".join(words)


def collect_outputs(value: Any, numbers: list[np.ndarray], words: list[str]) -> None:
    """Append all numbers below a value, and words for the rest."""
    value = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    if isinstance(value, dict):
        words.append(str([str(key) for key in value]))
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            collect_outputs(part, numbers, words)
    elif (
        isinstance(value, (np.ndarray, np.number, float, int))
        and np.asarray(value).dtype.kind in "fiub"
    ):
        flat = np.asarray(value, dtype=np.float64).ravel()
        words.append(str(np.shape(value)) + ("" if np.isfinite(flat).all() else " not finite"))
        numbers.append(np.nan_to_num(flat))
    elif hasattr(value, "__dataclass_fields__"):
        collect_outputs(
            [getattr(value, name) for name in value.__dataclass_fields__], numbers, words
        )
    else:
        words.append(repr(value))


def learn_statistics(present: list[Output], absent: list[Output]) -> dict[str, Statistic]:
    """Name -> f(outputs) -> one number each, larger where the record is there, learned from outputs
    of both inputs."""
    found: dict[str, Statistic] = {
        "words and shapes": learn_odds(present, absent, lambda one: one[1])
    }
    found["whole outcomes"] = learn_odds(present, absent, lambda one: (one[1], one[0].tobytes()))
    if len({len(numbers) for numbers, _ in present + absent}) == 1 and len(present[0][0]):
        a, b = (np.stack([numbers for numbers, _ in side]) for side in (present, absent))
        spread = (a.var(0) + b.var(0)) / 2
        centre = b.mean(0)
        along = (a.mean(0) - centre) / np.maximum(spread, 1e-12 * max(float(spread.max()), 1e-300))
        rows = lambda side: np.stack([numbers for numbers, _ in side]) - centre  # noqa: E731
        found["shift"] = lambda side: rows(side) @ along
        found["numbers one by one"] = learn_likelihood_ratio(a, b)
        found["energy"] = lambda side: (rows(side) ** 2).sum(1)
        found["largest number"] = lambda side: np.abs(rows(side)).max(1)
    return found


def learn_odds(
    present: list[Output], absent: list[Output], part: Callable[[Output], Any]
) -> Statistic:
    """How much more often a part of what comes out comes with the record."""
    seen, other = (Counter(map(part, side)) for side in (present, absent))
    odds = {key: math.log((seen[key] + 0.5) / (other[key] + 0.5)) for key in {*seen, *other}}
    return lambda side: np.array([odds.get(part(one), 0.0) for one in side])


def learn_likelihood_ratio(present: np.ndarray, absent: np.ndarray, bins: int = 24) -> Statistic:
    """The log ratio of two histograms of each number, summed as if numbers were independent:
    outputs are (n, numbers)."""
    both = np.concatenate([present, absent])
    edges = [np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1])) for column in both.T]

    def log_shares(rows: np.ndarray, at: int) -> np.ndarray:
        return np.log(
            np.bincount(np.searchsorted(edges[at], rows[:, at]), minlength=len(edges[at]) + 1) + 0.5
        )

    ratios = [log_shares(present, at) - log_shares(absent, at) for at in range(both.shape[1])]

    def sum_ratios(side: list[Output]) -> np.ndarray:
        rows = np.stack([numbers for numbers, _ in side])
        found = [
            one[np.searchsorted(ends, column)] for one, ends, column in zip(ratios, edges, rows.T)
        ]
        return np.sum(found, axis=0)

    return sum_ratios


def bound_epsilon(hits: int, false_hits: int, count: int, delta: float) -> float:
    """Lower bound on epsilon: P(hit) <= e^epsilon P(false hit) + delta, each share at its part of
    the error probability."""
    error = (1 - CONFIDENCE) / 2 / len(CALLS)
    low = 1 - upper_end(count - hits, count, error)
    high = upper_end(false_hits, count, error)
    return math.log((low - delta) / high) if low - delta > high else 0.0


def upper_end(hits: int, count: int, error: float) -> float:
    """The share at which so few hits, of so many, have this probability (Clopper and Pearson)."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    k = np.arange(hits + 1)
    ways = logs[count] - logs[k] - logs[count - k]
    low = hits / count
    high = 1.0
    for _ in range(60):
        p = (low + high) / 2
        few = (
            hits < count
            and 0 < p < 1
            and np.exp(ways + k * math.log(p) + (count - k) * math.log1p(-p)).sum() > error
        )
        low, high = (p, high) if few or hits >= count else (low, p)
    return high


def best_rule(
    present: list[Output], absent: list[Output], delta: float
) -> tuple[str, Statistic, int, float]:
    """(name, statistic, sign, threshold) of the rule that tells most, on one half of the outputs,
    of those learned from the other."""
    half = len(present) // 2
    best = -math.inf
    chosen: tuple[str, Statistic, int, float] = (
        "nothing",
        lambda side: np.zeros(len(side)),
        1,
        0.0,
    )
    for name, statistic in learn_statistics(present[:half], absent[:half]).items():
        for sign in (1, -1):  # the record may be told by what comes out, or by what does not
            a = np.sort(statistic(present[half:]))
            b = np.sort(statistic(absent[half:]))
            a, b = (a, b) if sign > 0 else (-b[::-1], -a[::-1])
            ends = np.unique(
                np.quantile(np.concatenate([a, b]), np.linspace(0, 1, 200), method="higher")
            )
            for threshold in ends:
                hits, false_hits = (
                    len(side) - int(np.searchsorted(side, threshold)) for side in (a, b)
                )
                surely = max((hits - 3 * math.sqrt(hits + 1)) / len(a) - delta, 1e-300)
                if (estimate := math.log(surely * len(b) / (false_hits + 5))) > best:
                    best = estimate
                    chosen = (name, statistic, sign, float(threshold))
    return chosen


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Of Gaussian noise whose mean a record moves by mu standard deviations (Balle and Wang, 2018,
    theorem 8)."""
    normal = lambda x: math.erfc(-x / math.sqrt(2)) / 2  # noqa: E731
    low = 0.0
    high = mu * mu / 2 + 40 * mu
    for _ in range(100 if mu > 0 else 0):
        middle = (low + high) / 2
        second = normal(-mu / 2 - middle / mu)
        spent = normal(mu / 2 - middle / mu) - (
            math.exp(middle + math.log(second)) if second > 0 else 0.0
        )
        low, high = (middle, high) if spent > max(delta, 1e-12) else (low, middle)
    return low


def shown_epsilon(target: Any, calls: int) -> float:
    """The epsilon that so many calls on each input prove; what they show is printed."""
    data = {name: read_data(CASE[name]) for name in ("present", "absent")}
    delta = CASE["delta"]
    began = time.monotonic()
    sides: dict[str, list[Output]] = {name: [] for name in data}
    while len(sides["absent"]) < calls and (
        time.monotonic() - began < SECONDS or len(sides["absent"]) < 40
    ):
        for name, side in sides.items():
            side.append(call_mechanism(target, data[name]))
    count = len(sides["absent"]) // 2
    present, absent = (side[:count] for side in sides.values())
    judge = [side[count : 2 * count] for side in sides.values()]
    how, statistic, sign, threshold = best_rule(present, absent, delta)
    hits, false_hits = (int((sign * statistic(side) >= threshold).sum()) for side in judge[::sign])
    shown = bound_epsilon(hits, false_hits, count, delta)
    whose = ("with", "without") if sign > 0 else ("without", "with")
    seen = f"{hits} of {count} {whose[0]} the record, {false_hits} of {count} {whose[1]}"
    print(f"{2 * count} calls of each, told apart by {how}: {seen}")
    print(f"epsilon is at least {shown:.4g} ({CONFIDENCE:.0%} confidence, for any mechanism)")
    if CASE["law"] == "gaussian" and (shift := learn_statistics(present, absent).get("shift")):
        a, b = map(shift, judge)
        noise = max(math.sqrt((a.var() + b.var()) / 2), 1e-300)
        by_law = gaussian_epsilon(
            abs(a.mean() - b.mean()) / noise - 3 * math.sqrt(2 / count), delta
        )
        print(
            "as its noise is Gaussian, the shift of its mean says: epsilon is at least "
            f"{by_law:.4g}"
        )
        shown = max(shown, by_law)
    return shown


def main() -> int:
    stated = CASE["epsilon"]
    print(
        f"{CASE['mechanism']}: stated is epsilon = {stated:g} at delta = "
        f"{CASE['delta']:g}, {CASE['relation']}"
    )
    print(f"the two inputs differ in one record: {CASE['inputs']}")
    target = load_mechanism(CASE["mechanism"])
    refuted = any(shown_epsilon(target, calls) > stated for calls in CALLS)
    print(f"{'REFUTED' if refuted else 'not shown'}: epsilon = {stated:g} is stated")
    return 0 if refuted else 1


if __name__ == "__main__":
    sys.exit(main())
