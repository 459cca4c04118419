"""A stranger's mechanism as a black box, and the process of its own that it runs in.

What a mechanism's author states: (epsilon, delta) for so many calls, and whose data may change.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from attacks.epsilon import gaussian_epsilon
from attacks.statistics import shared_confidence
from privdd.core.validation import BadConfig, check_choice, check_integer, setting_error
from privdd.runtime.files import to_plain_json

LONG = 1000  # characters
# update: list of arrays; aggregate: (list of updates, list of weights); records: array (n, d)
Data = Any


class InputRefused(Exception):
    """The mechanism raised an error for this input."""


@dataclass(frozen=True)
class Outcomes:
    """What one transcript lets out: every number, and all that is no number (types, shapes, names,
    texts)."""

    numbers: np.ndarray
    signature: str


@dataclass
class BlackBox:
    """A callable. make: -> f, asked for each transcript; fresh: whether it makes another one each
    time; torch: whether f wants tensors; plain: whether f is the named callable itself, and no
    adapter around it; calls: counted; on_transcript: called before each transcript, for whoever
    stops a check or shows how far it is."""

    make: Callable[[], Callable[..., Any]]
    kind: str
    torch: bool = False
    calls: int = 0
    fresh: bool = True
    plain: bool = True
    on_transcript: Callable[[], None] = lambda: None

    def transcript(self, inputs: Sequence[Data]) -> Outcomes:
        """One instance called on each input in turn. Raises InputRefused for any error that it
        raises."""
        self.on_transcript()
        try:
            f = self.make()
            numbers: list[np.ndarray] = []
            words: list[str] = []
            for data in inputs:
                self.calls += 1
                flatten_value(self._call_once(f, data), numbers, words)
        except Exception as error:  # a stranger's code: whatever it raises is an answer
            raise InputRefused(f"{type(error).__name__}: {str(error)[:200]}") from error
        return _outcomes_of(numbers, words)

    def _call_once(self, f: Callable[..., Any], data: Data) -> Any:
        if self.kind == "aggregate":
            updates, weights = data
            return f([[self._as_array(a) for a in update] for update in updates], list(weights))
        if self.kind == "update":
            return f([self._as_array(a) for a in data])
        return f(self._as_array(data))

    def _as_array(self, array: np.ndarray) -> Any:
        if self.torch:
            import torch

            return torch.from_numpy(array.copy())
        return array.copy()


def _outcomes_of(numbers: list[np.ndarray], words: list[str]) -> Outcomes:
    vector = np.concatenate(numbers or [np.zeros(0)]) if len(numbers) != 1 else numbers[0]
    finite = np.isfinite(vector)
    if not finite.all():
        words = [
            *words,
            f"{int(np.isnan(vector).sum())} NaN, {int(np.isinf(vector).sum())} infinite",
        ]
        vector = np.where(finite, vector, 0.0)
    return Outcomes(vector, ";".join(words))


def flatten_value(value: Any, numbers: list[np.ndarray], words: list[str]) -> None:
    """Append every number under ``value`` and the words for what holds them."""
    value = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    parts: Iterable[Any] = ()
    if isinstance(value, np.ndarray | complex | np.complexfloating):
        array = np.asarray(value)
        if array.dtype.kind in "fiubc":
            real = np.stack([array.real, array.imag]) if array.dtype.kind == "c" else array
            numbers.append(real.astype(np.float64).ravel())
        words.append(
            f"{array.dtype.name}{array.shape}"
            if array.dtype.kind in "fiubc"
            else _word_for(array.tolist())
        )
    elif isinstance(value, float | int | np.number):
        numbers.append(np.array([float(value)]))
        words.append(type(value).__name__)
    elif isinstance(value, str | bytes | None):
        words.append(_word_for(value))
    elif isinstance(value, dict):
        words.append(f"dict{[str(key) for key in value]}")
        parts = value.values()
    elif hasattr(value, "__dataclass_fields__"):
        words.append(type(value).__name__)
        parts = [getattr(value, name) for name in value.__dataclass_fields__]
    elif hasattr(value, "__iter__"):
        parts = value if isinstance(value, tuple) else list(value)
        words.append(f"{type(parts).__name__}{len(parts)}")
    else:
        raise TypeError(
            f"it returns a {type(value).__name__}: arrays, numbers, texts, lists or dicts "
            "are needed"
        )
    for part in parts:
        flatten_value(part, numbers, words)


def _word_for(value: Any) -> str:
    """All of a text counts; long ones by their digest."""
    text = repr(value)
    return (
        text
        if len(text) <= LONG
        else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    )


LARGEST = 50_000_000  # bytes of an answer


class ChildStopped(BadConfig):
    """The process was stopped, or ended without an answer."""


def run_in_child(
    work: Callable[[Callable[[Mapping[str, Any]], None]], Mapping[str, Any]],
    seconds: float,
    told: Callable[[Mapping[str, Any]], None] = lambda note: None,
) -> dict[str, Any]:
    """Run ``work(say)`` in a forked process -> what it returns, as JSON takes it.

    told: called here with everything that work says on the way. Raises BadConfig with the message
        of a BadConfig there, and ChildStopped after ``seconds`` of wall time or where the process
        dies.
    """
    if not hasattr(os, "fork"):
        raise BadConfig("checks need a system with os.fork (Linux, macOS)")
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child_main(work, writer)
    os.close(writer)
    try:
        return _read_answer(reader, seconds, told)
    finally:
        os.close(reader)
        _stop_child(child)


def _child_main(work: Callable[..., Mapping[str, Any]], writer: int) -> None:
    """In the child: never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        _reseed_generators()

        def send_note(note: Mapping[str, Any]) -> None:
            _write_answer(writer, {"note": note})

        try:
            _write_answer(writer, {"answer": work(send_note)})
        except BadConfig as error:
            _write_answer(writer, {"refused": str(error)})
        except Exception as error:  # told to the parent, which says it in one line
            _write_answer(writer, {"broken": f"{type(error).__name__}: {error}"})
        code = 0
    finally:
        os._exit(code)


def _reseed_generators() -> None:
    """Global generators that were inherited would give every child the same noise."""
    fresh = int.from_bytes(os.urandom(7), "little")
    np.random.seed(fresh % 2**32)  # noqa: NPY002
    sys.modules["random"].seed(fresh)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(fresh)


def _write_answer(writer: int, value: Mapping[str, Any]) -> None:
    data = json.dumps(to_plain_json(value), allow_nan=True).encode() + b"\n"
    while data:
        data = data[os.write(writer, data) :]


def _read_answer(
    reader: int, seconds: float, told: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    ends = time.monotonic() + seconds
    waiting = b""
    while True:
        left = ends - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            raise ChildStopped(f"the mechanism was stopped after {seconds:g} s without an answer")
        part = os.read(reader, 65536)
        if not part:
            raise ChildStopped(
                "the mechanism ended its process (it exited, crashed or ran out of memory)"
            )
        waiting += part
        if len(waiting) > LARGEST:
            raise ChildStopped("the answer is too large")
        *lines, waiting = waiting.split(b"\n")
        for line in lines:
            value = json.loads(line)
            if "answer" in value:
                return value["answer"]
            if "refused" in value:
                raise BadConfig(value["refused"])
            if "broken" in value:
                raise BadConfig(f"the check broke off: {value['broken']}")
            told(value["note"])


def _stop_child(child: int) -> None:
    """The child and everything that it started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


WAITS = 12
NUMBERS = 30_000_000  # in memory at a time


class OutOfTime(Exception):
    """The time is spent: what is known so far is the answer."""


class OutOfCalls(OutOfTime):
    """The calls are."""


@dataclass
class CallBudget:
    """calls: what every look is planned in, so that a busy machine makes the same looks as an idle
    one; seconds of
    processor time: where the check is stopped, whatever is left to look at. A mechanism that waits
        is stopped at ``WAITS`` times the seconds on the wall."""

    seconds: float
    calls: int
    began: float = field(default_factory=time.process_time)
    wall: float = field(default_factory=time.monotonic)

    def seconds_left(self) -> float:
        worked = time.process_time() - self.began
        waited = time.monotonic() - self.wall
        return self.seconds - max(worked, waited / WAITS)

    def calls_left(self, mechanism: BlackBox) -> int:
        return max(0, self.calls - mechanism.calls)

    def check_time(self) -> None:
        """Raises OutOfTime."""
        if self.seconds_left() <= 0:
            raise OutOfTime

    def check_budget(self, mechanism: BlackBox) -> None:
        """Raises OutOfTime, or OutOfCalls."""
        self.check_time()
        if self.is_spent(mechanism):
            raise OutOfCalls

    def is_spent(self, mechanism: BlackBox) -> bool:
        return mechanism.calls >= self.calls

    def split_share(self, mechanism: BlackBox, share: float) -> CallBudget:
        """A budget of a share of the calls that are left, which ends at the same time."""
        calls = mechanism.calls + int(share * self.calls_left(mechanism))
        return replace(self, calls=calls)


@dataclass(frozen=True)
class Transcripts:
    """Of one input: rows (n, T, m), the numbers of each call (zeros where the shape is not the
    usual one), and (n,) codes of the rest."""

    rows: np.ndarray
    codes: list[str]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, which: slice) -> Transcripts:
        return Transcripts(self.rows[which], self.codes[which])

    def split_half(self) -> Sides:
        """(the first half, the second)."""
        return self[: len(self) // 2], self[len(self) // 2 :]

    @property
    def most_common_code(self) -> str:
        return Counter(self.codes).most_common(1)[0][0]


Sides = tuple[Transcripts, Transcripts]  # of an input with the record, and of one without it


@dataclass(frozen=True)
class PairSample:
    """Transcripts of neighbours, to learn from and to judge. axis: direction (m,) of the record, if
    known; shift (T, m): what it adds exactly, where that was seen without noise."""

    trained: Sides
    fresh: Sides
    axis: np.ndarray | None = None
    shift: np.ndarray | None = None


def join_transcripts(one: Transcripts, other: Transcripts) -> Transcripts:
    """Transcripts of the same input, drawn at two times."""
    return Transcripts(np.concatenate([one.rows, other.rows]), [*one.codes, *other.codes])


def transcript_totals(block: Transcripts) -> np.ndarray:
    """(n, m): the sum over a transcript's calls, sufficient for a shift under independent Gaussian
    noise."""
    return block.rows.sum(1)


def draw_transcripts(
    mechanism: BlackBox,
    inputs: Sequence[Data],
    count: int,
    clock: CallBudget,
    *,
    joined: bool = False,
) -> Transcripts:
    """``count`` transcripts; joined: all calls as one long vector, rows (n, 1, T m). Raises
    InputRefused, OutOfTime."""
    found = []
    for at in range(count):
        if at % 32 == 0:
            clock.check_budget(mechanism)
        found.append(mechanism.transcript(inputs))
    sizes = Counter(len(one.numbers) for one in found)
    size = sizes.most_common(1)[0][0]
    codes = [one.signature for one in found]
    rows = np.stack([one.numbers if len(one.numbers) == size else np.zeros(size) for one in found])
    calls = 1 if joined or size % len(inputs) else len(inputs)
    return Transcripts(rows.reshape(count, calls, size // calls), codes)


SHARES = 100


@dataclass(frozen=True)
class BoundLevel:
    """What a lower bound on epsilon is asked for."""

    delta: float
    confidence: float

    @property
    def error(self) -> float:
        return 1 - self.confidence


class OutOfShares(OutOfTime):
    """Every share is taken: a further bound would not hold at the confidence that is said."""


@dataclass
class ErrorShares:
    """confidence: of all tests together, by the union bound; taken: tests so far, at most
    ``SHARES``."""

    confidence: float
    taken: int = 0

    def next_confidence(self, tests: int = 1) -> float:
        """The confidence of the next test, or of each of several. Raises OutOfShares where fewer
        are left."""
        if self.taken + tests > SHARES:
            raise OutOfShares
        self.taken += tests
        return shared_confidence(self.confidence, SHARES)


Kind = Literal["update", "aggregate", "records"]
Neighbours = Literal["add_remove", "replace", "zero_out"]
Law = Literal["gaussian", "laplace"]
Inputs = Literal["finite", "any"]
Sampling = Literal["shuffled", "balls_in_bins"]
ACCOUNTED = {
    "shuffled": ("zero_out",),
    "balls_in_bins": ("zero_out", "add_remove"),
}  # relations of their accountant
TINY = 1e-12  # takes the place of delta 0 where a noise law has no finite epsilon at 0


@dataclass(frozen=True)
class CheckedClaim:
    """A statement: ``calls`` calls on the same data are (epsilon, delta)-DP for neighbours under
    ``relation``.

    rho, mu: what is stated instead of an epsilon, rho-zCDP or mu-Gaussian DP; epsilon is then what
        follows from it at ``delta`` (``zcdp_epsilon``, ``attacks.epsilon.gaussian_epsilon``).
        kind_is_guessed: nobody said ``kind``, so nothing is refuted by it.
    kind: what the callable takes: update(list of arrays), aggregate(list of updates, list of
        weights) or records(array (n, d)). The record is the update, one client's update, or one
        row. zero_out: it becomes zeros.
    noise, noise_std: declared law and scale of the noise of every number, tested where given.
        noise_multiplier: noise over sensitivity, declared; kappa is in its units, else in those of
            epsilon and delta. sampling, batches, epochs: how a
    training that was declared so forms its batches, and how many an epoch has; with
    noise_multiplier. inputs: ``finite`` numbers
    only, or ``any`` floats. low_bits: whether the statement is about the numbers as released, to
        the last bit.
    tolerance: a statement is called refuted only above (1 + tolerance) epsilon; where the shift is
        known exactly, above (1 + tolerance / 5) epsilon.
    """

    epsilon: float
    delta: float = 0.0
    kind: Kind = "update"
    relation: Neighbours = "zero_out"
    rho: float | None = None
    mu: float | None = None
    kind_is_guessed: bool = False
    calls: int = 1
    noise: Law | None = None
    noise_std: float | None = None
    noise_multiplier: float | None = None
    sampling: Sampling | None = None
    batches: int = 1
    epochs: int = 1
    inputs: Inputs = "finite"
    low_bits: bool = False
    tolerance: float = 0.05

    def __post_init__(self) -> None:
        for name, least, most in (
            ("epsilon", 0.0, math.inf),
            ("delta", 0.0, 1.0),
            ("tolerance", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not least <= value < most:
                raise setting_error(f"stated.{name}", value, f"a number in [0, {most:g}) is needed")
        for name, limit in (("calls", 100_000), ("batches", 10**7), ("epochs", 10**5)):
            object.__setattr__(
                self, name, check_integer(name, getattr(self, name), 1, most=limit)
            )  # 12.0 is 12
        for name, allowed in (("kind", Kind), ("relation", Neighbours), ("inputs", Inputs)):
            check_choice(name, getattr(self, name), get_args(allowed))
        for name, allowed in (("noise", Law), ("sampling", Sampling)):
            if getattr(self, name) is not None:
                check_choice(f"stated.{name}", getattr(self, name), get_args(allowed))
        if self.sampling is not None and self.noise_multiplier is None:
            raise BadConfig(
                "stated.sampling= needs stated.noise_multiplier= (and stated.batches=, of an epoch)"
            )
        if self.sampling is not None and self.relation not in ACCOUNTED[self.sampling]:
            accounted = f"stated.sampling={self.sampling} is accounted under relation=zero_out"
            raise BadConfig(f"{accounted}, not {self.relation}")
        for name in ("noise_std", "noise_multiplier", "rho", "mu"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise setting_error(f"stated.{name}", value, "a finite number above 0 is needed")

    @property
    def law_mu(self) -> float:
        """The largest mu of Gaussian noise, over all calls, that the statement allows.

        mu-Gaussian DP: mu. rho-zCDP: the Renyi divergence of order a of N(0, 1) and N(mu, 1) is a
        mu^2 / 2 (Bun and Steinke 2016, lemma 2.4), so rho = mu^2 / 2. (epsilon, delta): Balle and
        Wang 2018, theorem 8, inverted."""
        if self.mu is not None:
            return self.mu
        if self.rho is not None:
            return math.sqrt(2 * self.rho)
        return gaussian_mu(self.epsilon, self.delta)

    def epsilon_by_law(self, law: str) -> float:
        """The epsilon at ``delta`` of the most that the statement allows to noise of this law: of
        rho-zCDP, a Gaussian mechanism may spend less than what follows from rho for any
        mechanism."""
        if self.rho is not None and law.endswith("gaussian"):
            return min(self.epsilon, gaussian_epsilon(self.law_mu, max(self.delta, TINY)))
        return self.epsilon

    @property
    def refutation_limit(self) -> float:
        """The epsilon above which the statement counts as refuted."""
        return self.epsilon * (1 + self.tolerance)

    def limit(self, *, exact: bool, law: str = "") -> float:
        """The same for a bound that trusts noise of this law; exact: from an exact shift, which
        sees less than counting does (a statement is a rounded number)."""
        return self.epsilon_by_law(law) * (1 + (self.tolerance / 5 if exact else self.tolerance))

    @property
    def gaussian_mu_per_call(self) -> float:
        """The mu of Gaussian DP that the statement allows to one call (all calls are alike and
        independent)."""
        if self.noise_multiplier is not None:
            return (2.0 if self.relation == "replace" else 1.0) / self.noise_multiplier
        return self.law_mu / math.sqrt(self.calls)

    @property
    def says(self) -> str:
        """The statement as it was typed, with what was made of it and how the mechanism is
        called."""
        over = f" over {self.calls} calls" if self.calls > 1 else ""
        guessed = ", guessed" if self.kind_is_guessed else ""
        terms = f"kind={self.kind}{guessed}, {self.relation}"
        at = f"epsilon {self.epsilon:.4g} at delta {plain_number(self.delta)}"
        if self.rho is not None:
            return f"rho {self.rho:g} of zCDP{over} ({at}; {terms})"
        if self.mu is not None:
            return f"mu {self.mu:g} of Gaussian DP{over} ({at}; {terms})"
        return f"epsilon {self.epsilon:g} at delta {plain_number(self.delta)}{over} ({terms})"


def plain_number(value: float) -> str:
    """1e-05 -> 1e-5."""
    return re.sub(r"e([+-])0+(?=\d)", r"e\1", f"{value:g}")


HIGHEST_ORDER = 1e6


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The epsilon at ``delta`` in (0, 1) that follows from ``rho``-zCDP, rho > 0.

    delta(epsilon) = inf over a > 1 of exp((a - 1)(a rho - epsilon)) / (a - 1) (1 - 1/a)^a (Canonne,
    Kamath and Steinke 2020, proposition 12), solved for epsilon: a rho + (ln(1/delta) + (a - 1)
    ln(1 - 1/a) - ln a) / (a - 1), the least over a."""

    def epsilon_at(log_of_order_less_one: float) -> float:
        less = math.exp(log_of_order_less_one)
        order = 1 + less
        return (
            order * rho
            + (-math.log(delta) + less * math.log(less / order) - math.log(order)) / less
        )

    found = minimize_scalar(
        epsilon_at,
        bounds=(-20.0, math.log(HIGHEST_ORDER)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return max(0.0, float(found.fun))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu whose Gaussian DP has this epsilon at ``delta`` (at 1e-12 where delta is 0)."""
    at = max(delta, TINY)
    low = 1e-9
    high = 1.0
    while gaussian_epsilon(high, at) < epsilon:
        high *= 2
    if gaussian_epsilon(low, at) >= epsilon:
        return low
    return float(brentq(lambda mu: gaussian_epsilon(mu, at) - epsilon, low, high, xtol=1e-9))
