"""The lattice: nothing in the bits, no longer contributions, and the law of rounded noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from attacks.epsilon import clopper_pearson
from attacks.low_bits import examine_low_bits, is_off_lattice
from privdd.core.rng import Keys
from privdd.privacy.accounting import epsilon
from privdd.privacy.clipping import (
    EXACT_ROWS,
    FactoredRows,
    OuterProducts,
    clip_factors,
    clipped_sum,
    record_norms,
    take_records,
)
from privdd.privacy.lattice import BITS, Lattice
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import ClientLevel, ClippedSum, FeatureNoise
from privdd.privacy.noise import Noise, SystemNoise, noise_for
from tests.fake_device import fake_gpu
from tests.float_noise import InFloat32, off_grid

DELTA = 1e-5
REFUSED = 1e-6
ACCEPTED = 1e-3
SOURCES = ["seed", "os"]
FEATURES = (1, 28, 28)

Value = dict[str, Tensor]


def noise(source: str = "seed", seed: int = 5) -> Noise:
    return noise_for(source, Keys(seed))  # type: ignore[arg-type]


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Case:
    """A mechanism, what a client gives it with and without the record in question, and the
    relation."""

    mechanism: Mechanism
    inside: Value
    outside: Value
    relation: str = "zero_out"


def feature_case(**more: object) -> Case:
    x = rand(1, *FEATURES).abs()
    return Case(FeatureNoise(clip_norm=0.5, **more), {"x": x}, {"x": 0 * x})  # type: ignore[arg-type]


update = {"w": rand(20_000)}
CASES = {
    "features": feature_case(noise_multiplier=1.0),
    "two copies": feature_case(noise_std=(0.7, 0.5), copies=2),
    "laplace": feature_case(noise_multiplier=1.0, distribution="laplace"),
    "client": Case(ClientLevel(4.0, 1.0), update, {"w": 0 * update["w"]}),
    "one record of a class": Case(
        ClippedSum(5.0, 3.0, normaliser=20.0),
        {"e": rand(1, 256)},
        {"e": torch.zeros(0, 256)},
        "add_remove",
    ),
}


def betrayed(mechanism: Mechanism, case: Case, source: str, runs: int = 150) -> float:
    """The event of low bits, fixed beforehand, as a lower bound on epsilon (Clopper-Pearson, 95
    %)."""
    drawn = noise(source)
    clean = flat(mechanism(case.inside, drawn).exact or {})
    hits = [
        sum(
            off_grid(flat(mechanism(value, drawn).value)[: len(clean)], clean) > 0
            for _ in range(runs)
        )
        for value in (case.inside, case.outside)
    ]
    return clopper_pearson(runs - hits[0], hits[0], runs - hits[1], hits[1], delta=DELTA)


def flat(value: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value[name].flatten() for name in sorted(value)])


@pytest.mark.nightly(
    but=["features-seed", "laplace-seed", "one record of a class-seed", "one record of a class-os"]
)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", sorted(CASES))
def test_low_bits_tell_nothing(name: str, source: str, system_bytes: None) -> None:
    """The attack that broke float32 noise: no epsilon at all is shown by it."""
    case = CASES[name]
    assert betrayed(case.mechanism, case, source) == 0


@pytest.mark.parametrize(
    ("name", "runs"), [("features", 150), ("client", 150), ("one record of a class", 600)]
)
def test_low_bits_of_float32_noise_contradict_its_epsilon(
    name: str, runs: int, system_bytes: None
) -> None:
    case = CASES[name]
    planted = InFloat32(case.mechanism)
    stated = epsilon(case.mechanism.event, DELTA, relation=case.relation)  # type: ignore[arg-type]
    shown = betrayed(planted, case, "os", runs)
    assert shown > (stated if name != "features" else 3.0)  # 4.4 is above what so few runs can show
    assert examine_low_bits(
        flat(planted(case.inside, noise()).value), planted.inner(case.inside, noise()).noise_std
    ).off


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_number_is_a_whole_number_of_steps_that_float32_holds(name: str, source: str) -> None:
    case = CASES[name]
    for value in (case.inside, case.outside):
        output = case.mechanism(value, noise(source))
        step = output.lattice
        std = output.noise_std
        least = std if name != "two copies" else 0.5  # the scale of the less noisy copy
        assert step and 2.0**-BITS / 2 < step / least <= 2.0**-BITS and math.frexp(step)[0] == 0.5
        assert flat(output.value).dtype == torch.float32
        assert not is_off_lattice(flat(output.value), step).any()  # type: ignore[arg-type]
        assert not examine_low_bits(flat(output.value), std, step).off
        assert float(flat(output.value).abs().max()) < 2**24 * step  # type: ignore[operator]


def test_a_large_sum_keeps_the_lattice_and_rounds_what_is_released() -> None:
    """Above 2**24 steps float32 rounds the integer: still a multiple of a step, whatever the clean
    value."""
    output = ClippedSum(1.0, 1.0)({"n": torch.ones(3001, 1)}, noise())
    assert float(output.value["n"]) > 2**24 * output.lattice  # type: ignore[operator]
    assert not is_off_lattice(output.value["n"], output.lattice).any()  # type: ignore[arg-type]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("z", [1e-6, 0.01, 1.0, 300.0, 1e6])
def test_the_release_is_the_noised_sum_rounded_to_a_step(z: float, source: str) -> None:
    """With noise that is known: the step nearest to m + round(Y), m and round(Y) in units, by exact
    arithmetic."""
    values = {"w": torch.linspace(-0.01, 0.01, 99).double()}
    fixed = noise(source).normal((99,))

    @dataclass
    class Same:
        def normal(self, shape: tuple[int, ...]) -> Tensor:
            return fixed

        laplace = uniform = normal

    output = ClientLevel(z, 1.0)(values, Same())
    lattice = Lattice.under(z, 1.0)
    whole = clipped_sum({"w": values["w"].unsqueeze(0)}, 1.0, lattice)
    step = round(lattice.step / lattice.unit)
    for m, y, released in zip(
        whole.tolist(), (fixed * (z / lattice.unit)).tolist(), output.value["w"].tolist()
    ):
        nearest = math.floor(Fraction(m + round(y), step) + Fraction(1, 2))
        assert Fraction(released) == nearest * Fraction(lattice.step)


def test_values_of_ones_own_mechanism_get_on_the_lattice() -> None:
    values = {"w": rand(40, 3), "b": rand(5), "n": torch.tensor(0.7)}
    lattice = Lattice.under(2.0, 20.0)
    made = lattice.released(values, 2.0, noise().normal)
    noised = made["value"]
    exact = made["exact"]
    for name, value in values.items():
        assert noised[name].shape == exact[name].shape == value.shape
        assert bool((exact[name].abs() <= value.abs()).all()) and bool(
            ((exact[name] - value).abs() < lattice.step).all()
        )
        assert not is_off_lattice(noised[name], lattice.step).any() and not torch.equal(
            noised[name], exact[name]
        )


# --- sensitivity ----------------------------------------------------------------------------------


def squared(total: Tensor) -> int:
    return sum(int(v) ** 2 for v in total.tolist())


HARD = {
    "ordinary": lambda: rand(6, 300, seed=1),
    "all at the bound": lambda: torch.full((6, 300), 300**-0.5),
    "one ulp above": lambda: torch.full((6, 300), 300**-0.5) * (1 + 2**-23),
    "huge": lambda: rand(6, 300, seed=2).sign() * 3.4e38,
    "tiny": lambda: rand(6, 300, seed=3) * 1e-38,
    "one large number": lambda: torch.nn.functional.pad(torch.full((6, 1), 1e30), (0, 299)) + 1e-3,
    "one number": lambda: torch.nn.functional.pad(10 * rand(6, 1, seed=5).abs() + 7, (0, 299)),
    "double": lambda: rand(6, 300, seed=4).double() * 1e200,
}


@pytest.mark.parametrize("kind", sorted(HARD))
@pytest.mark.parametrize(
    ("z", "norm", "per"),
    [(1.0, 1.0, 1.0), (1000.0, 0.3, 20.0), (0.003, 7.0, 3.0), (1e-6, 0.3, 1.0)],
)
def test_no_record_moves_the_sum_by_more_than_the_bound(
    kind: str, z: float, norm: float, per: float
) -> None:
    """In exact arithmetic: integers of the sum with and without each record, against clip_norm /
    normaliser."""
    rows = {"a": HARD[kind]()[:, :200], "b": HARD[kind]()[:, 200:]}
    lattice = Lattice.under(z * norm / per, norm / per)
    factored = FactoredRows(
        {"a": OuterProducts(rows["a"][:, :7], rows["a"][:, 7:40]), "b": rows["b"]}
    )
    bound = (Fraction(norm) / Fraction(per) / Fraction(lattice.unit)) ** 2
    for given in (rows, factored):
        whole = clipped_sum(given, norm, lattice, per=per)
        for out in range(6):
            without = clipped_sum(
                take_records(given, [i for i in range(6) if i != out]), norm, lattice, per=per
            )
            moved = whole - without
            assert squared(moved) <= bound
            long = (
                kind in ("ordinary", "huge")
                if given is factored
                else kind in ("ordinary", "all at the bound", "huge")
            )
            if (
                long and norm <= 1 and (z > 1e-3 or given is rows)
            ):  # products of huge numbers that are multiplied out overflow
                assert squared(moved) > bound * Fraction(
                    99, 100
                )  # and nothing is lost that matters


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", sorted(HARD))
def test_no_row_is_longer_than_the_bound(kind: str, order: int) -> None:
    rows = HARD[kind]()
    lattice = Lattice.under(2.0, 0.5)
    for row in lattice.round_contributions(
        rows, clip_factors(record_norms({"x": rows}, order), 0.5)
    ):
        size = sum(abs(int(v)) ** order for v in row.tolist())
        assert size <= (Fraction(0.5) / Fraction(lattice.unit)) ** order


def test_the_order_of_records_does_not_matter() -> None:
    """Nor how many are summed at a time, of rows and of outer products, in more blocks than one."""
    count = EXACT_ROWS + 100
    rows = rand(count, 40)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    given = FactoredRows({"x": rows[:, :10], "y": OuterProducts(rows[:, 10:15], rows[:, 15:])})
    lattice = Lattice.under(1.0, 1.0)
    one, other = (clipped_sum(take_records(given, at), 1.0, lattice) for at in (slice(None), order))
    parts = sum(clipped_sum(take_records(given, at), 1.0, lattice) for at in order.split(97))
    assert torch.equal(one, other) and torch.equal(one, parts)  # type: ignore[arg-type]


def test_outer_products_are_summed_as_the_rows_that_they_make() -> None:
    """Up to their rounding, 2**-19 of the clip norm; a record that holds no number counts for
    nothing, in all its parts."""
    for spoiled in (None, math.nan, math.inf):
        sizes = {"x": (3,), "w": (4, 5), "v": (2, 3)}
        drawn = {
            name: [rand(9, size, seed=at).double() for at, size in enumerate(sizes[name])]
            for name in sizes
        }
        parts = {
            name: some[0] if name == "x" else OuterProducts(*some) for name, some in drawn.items()
        }
        kept = slice(None) if spoiled is None else [0, 1, 2, 4, 5, 6, 7, 8]
        if spoiled is not None:
            parts["w"].right[3, 2] = spoiled  # type: ignore[union-attr]
        given = FactoredRows(parts)
        lattice = Lattice.under(1.0, 2.0)
        made = clipped_sum(given, 2.0, lattice, per=3.0)
        plain = clipped_sum(dict(take_records(given, kept)), 2.0, lattice, per=3.0)
        assert int((made[:3] - plain[:3]).abs().max()) <= 9
        assert (
            float(
                (lattice.to_numbers(made, torch.float64) - lattice.to_numbers(plain, torch.float64))
                .abs()
                .max()
            )
            < 9 * 2.0**-19
        )


def test_small_contributions_are_not_lost() -> None:
    """Truncation costs less than one unit a record: 2**-40 of the clip norm."""
    rows = rand(50, 2000, seed=6) * 1e-3
    lattice = Lattice.under(1.0, 1.0)
    short = rows.double().sum(0) - lattice.to_numbers(
        clipped_sum({"x": rows}, 1.0, lattice), torch.float64
    )
    assert float(short.abs().max()) < 50 * lattice.unit


# --- the law of the noise
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("law", ["norm", "laplace"])
@pytest.mark.parametrize(("coarse", "whole"), [(2.0, 0), (0.25, 0), (2.0, 300)])
def test_rounded_noise_has_the_discretised_law(
    source: str, law: str, coarse: float, whole: int
) -> None:
    """Chi-square over lattice points, at steps coarse enough that every point counts, also where
    the clean value lies between them; 2/3 and 3/2 are refused."""
    count = 200_000
    lattice = Lattice(coarse, coarse / 1024)
    drawn = noise(source)
    made = lattice.add_noise(
        torch.full((count,), whole), 1.5, drawn.normal if law == "norm" else drawn.laplace
    )
    steps = made // 1024
    clean = whole * lattice.unit
    assert bool((steps * 1024 == made).all())

    def fit(std: float) -> float:
        cdf = getattr(stats, law)(scale=std).cdf
        points = np.arange(-60, 61)
        expected = count * (
            cdf((points + 0.5) * coarse - clean) - cdf((points - 0.5) * coarse - clean)
        )
        seen = np.array([int((steps == int(p)).sum()) for p in points])
        kept = expected > 10
        expected, seen = (np.append(v[kept], count - v[kept].sum()) for v in (expected, seen))
        return float(
            stats.chi2.sf(
                ((seen - expected) ** 2 / np.maximum(expected, 1e-9)).sum(), len(seen) - 1
            )
        )

    assert fit(1.5) > ACCEPTED
    assert fit(1.5 * 2 / 3) < REFUSED and fit(1.5 * 3 / 2) < REFUSED


def test_the_inverse_distribution_function_is_as_exact_as_the_argument_says() -> None:
    """Against 40 digits: the proof's remainder counts on a relative error of at most 2**-51."""
    with mpmath.workdps(40):
        for exponent in np.linspace(-105, -1.0001, 80):
            p = float(2.0**exponent)
            got = float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))
            slope = mpmath.npdf(got)
            error = (
                mpmath.ncdf(got) - mpmath.mpf(p)
            ) / slope  # one step of Newton: got - error is right to 40 digits
            assert abs(error / got) < 2.0**-51


@pytest.mark.parametrize(("byte", "least"), [(b"\xff", 0.0), (b"\x00", 11.8)])
def test_the_ends_of_the_uniform_grid(
    byte: bytes, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bits one used to round to exactly 1; all bits zero are the farthest draws there are."""
    monkeypatch.setattr("os.urandom", lambda count: byte * count)
    source = SystemNoise()
    u = source.uniform((3,))
    assert bool(((u > 0) & (u < 1)).all())
    for draw in (source.normal, source.laplace):
        assert bool(torch.isfinite(draw((3,))).all()) and float(draw((3,)).abs().min()) >= least


@pytest.mark.parametrize("source", SOURCES)
def test_far_draws_are_as_fine_as_near_ones(source: str) -> None:
    """Beyond 3 standard deviations a grid of 53 bits would show; the second draw must be different
    each time."""
    found = noise(source).normal((2_000_000,))
    far = found[found.abs() > 2]
    tails = torch.special.ndtr(-far.abs()) * 2
    cells = tails * 2.0**52
    inside = (cells - cells.floor())[tails < 2.0**-5]
    assert len(inside) > 1000 and len(torch.unique(far)) == len(far)
    assert draws_of(source, 2_000_000).pvalue > ACCEPTED and float(inside.std()) > 0.2


def draws_of(source: str, count: int) -> stats._result_classes.TtestResult:
    return stats.kstest(noise(source, 9).normal((count,)).numpy(), "norm")


# --- settings
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClippedSum(1e-9, 1.0),
        lambda: ClientLevel(1e-9, 1.0),
        lambda: FeatureNoise(clip_norm=1.0, noise_std=1e-9),
        lambda: Lattice.under(1e-40, 1e-40),
    ],
)
def test_noise_that_is_too_small_for_a_lattice_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"2\*\*-24 of the norm") as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_the_authors_features_stay_as_they_print_them() -> None:
    """Without a guarantee there is no lattice to keep: nothing is rounded."""
    for mechanism in (
        FeatureNoise(noise_std=0.3),
        FeatureNoise(noise_std=0.3, clip_norm=1.0, broadcast_batch=4),
    ):
        output = mechanism({"x": rand(6, 1, 4, 4)}, noise())
        assert output.lattice is None and examine_low_bits(output.value["x"], 0.3).off


def test_sums_on_a_gpu_are_those_of_the_cpu_whatever_the_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record of factor 0 is zeros there too, even if it holds NaN."""
    lattice = Lattice.under(0.1, 1.0)
    rows = rand(9, 4, 5)
    given = FactoredRows({"x": rows, "y": OuterProducts(rand(9, 2), rand(9, 3))})
    kept = [0, 2, 3, 4, 5, 6, 7, 8]
    expected = clipped_sum(take_records(given, kept), 1.0, lattice)
    rows[1] = math.nan
    assert torch.equal(clipped_sum(given, 1.0, lattice), expected)
    for block in (1, 60, 2**26):
        monkeypatch.setattr("privdd.privacy.lattice.GPU_BLOCK", block)
        with fake_gpu():
            there = FactoredRows(
                {
                    "x": rows.to("cuda"),
                    "y": OuterProducts(
                        *(t.to("cuda") for t in (given.parts["y"].left, given.parts["y"].right))
                    ),
                }
            )  # type: ignore[union-attr]
            assert torch.equal(clipped_sum(there, 1.0, lattice).cpu(), expected)


@pytest.mark.parametrize("order", [1, 2])
def test_norms_on_a_gpu_are_those_of_the_cpu(order: int) -> None:
    """They are added up in another order there; rows of no number, one, odd and even counts."""
    for width in (0, 1, 2, 7, 64, 1001):
        rows = rand(5, width)
        with fake_gpu():
            there = record_norms({"x": rows.to("cuda")}, order).cpu()
        assert torch.allclose(there, rows.double().norm(p=order, dim=1), rtol=1e-14)


@pytest.mark.parametrize("size", [1, 7])
def test_a_records_norm_has_the_same_bits_wherever_it_stands(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectorised kernels end in scalar ones, which may round otherwise, as ``hypot`` does, and
    ``vector_norm`` of one record."""
    seen: list[Tensor] = []
    monkeypatch.setattr(
        "privdd.privacy.clipping.clip_factors",
        lambda norms, clip: seen.append(norms.clone()) or clip_factors(norms, clip),
    )
    rows = {
        "x": rand(1000, 9),
        "y": OuterProducts(rand(1000, 3, seed=1), rand(1000, 4, seed=2)),
        "z": rand(1000, 2, seed=3),
    }
    pieces = torch.arange(1000).split(size)
    for given in (
        FactoredRows(rows),
        FactoredRows({"w": OuterProducts(rand(1000, 2), rand(1000, 2)), **rows}),
    ):
        seen.clear()
        for at in (slice(None), *pieces):
            clipped_sum(take_records(given, at), 1.0, Lattice.under(1.0, 1.0))
        assert torch.equal(torch.cat(seen[1:]), seen[0])
    assert torch.equal(
        torch.cat([record_norms(take_records(given, at)) for at in pieces]), record_norms(given)
    )


def test_a_product_of_vectors_whose_squares_leave_float64_is_no_longer_than_the_bound() -> None:
    norm = 1e-9
    lattice = Lattice.under(norm, norm)
    for small in (1e-320, 1e-162, 2.3e-162, 3.1e-161, 1.7e-160, 3.3e-160, 1e-152):
        for large in (1.0, 1e153, 6e153, 1e307):
            for left, right in ((small, large), (large, small)):
                left, right = (torch.full((1, 3), v, dtype=torch.float64) for v in (left, right))
                moved = clipped_sum(FactoredRows({"w": OuterProducts(left, right)}), norm, lattice)
                assert squared(moved) <= (Fraction(norm) / Fraction(lattice.unit)) ** 2
