"""Whole checks of small mechanisms: verdicts, seeds, limits of time, errors in one line."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from privdd.api import assert_private, check
from privdd.blackbox import check_page
from privdd.blackbox.check_page import OUTCOMES, TONES, write_check_page
from privdd.blackbox.check_report import CheckReport, SingleTestResult
from privdd.blackbox.check_verdict import Checked, conclude_check
from privdd.blackbox.child_process import ChildStopped, run_in_child
from privdd.blackbox.claims import CheckedClaim, gaussian_mu
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.runner import WALL
from privdd.core.validation import BadConfig

SMALL = InputShapes(structures=(((6,),),), tables=((4, 3),), crowds=(3,))
FEW = {"max_calls": 40_000, "tried": SMALL}
STATED = {"epsilon": 2.0, "delta": 1e-5}
# drawn from in child processes alone: every check begins with the same numbers
RNG = np.random.default_rng(20)


def clipped(update):
    size = math.sqrt(sum(float((a * a).sum()) for a in update))
    return [
        a * min(1.0, 1.0 / max(size, 1e-30)) if np.isfinite(size) else 0 * np.nan_to_num(a)
        for a in update
    ]


def noised(times: float):
    std = times / gaussian_mu(2.0, 1e-5)
    return lambda update: [a + RNG.normal(0, std, a.shape) for a in clipped(update)]


def test_a_mechanism_that_keeps_its_epsilon_is_not_refuted(tmp_path: Path) -> None:
    result = assert_private(noised(1.0), stated=STATED, kind="update", out=tmp_path, **FEW)
    # kappa is an estimate, from as many calls as the clock allowed; half the noise, below, makes it
    # 2
    assert not result.refuted and 0.85 < result.kappa < 1.25 and result.certified < 2.1
    assert result.calls <= 41_000
    stored = json.loads((tmp_path / "findings.json").read_text())
    assert result.conditions or TONES[result.verdict] == "consistent"
    assert (
        Checked.from_json(stored) == result
        and "A search that finds nothing" in (tmp_path / "check.html").read_text()
    )


def test_a_condition_stands_once_above_the_table_of_looks(tmp_path: Path) -> None:
    says = ("numbers must be finite", "arrays must have at least one dimension")
    found = CheckReport([SingleTestResult(name, "condition", name) for name in says])
    result = conclude_check(
        "own:f", CheckedClaim(2.0, 1e-5), found, confidence=0.99, calls=30, seconds=1.0
    )
    first, table = write_check_page(result, tmp_path).read_text().split('<section id="tests"')
    lead = first.lower()  # the first condition opens its sentence
    assert [lead.count(one) for one in says] == [1, 1] and all(one in table for one in says)


CODE_WORDS = re.compile(r"\b(add_remove|zero_out|finite_sample|noise_law|replace|aggregate)\b")


@pytest.mark.parametrize(
    ("kind", "relation", "neighbours"),
    [
        ("records", "add_remove", "one record added or removed"),
        ("update", "zero_out", "one update replaced by a null update (zero-out)"),
        ("aggregate", "replace", "one client's update exchanged for any other"),
    ],
)
def test_the_page_has_words_for_neighbours_and_evidence_for_every_outcome(
    kind: str, relation: str, neighbours: str, tmp_path: Path
) -> None:
    found = CheckReport([SingleTestResult(name, name, "seen") for name in reversed(OUTCOMES)])
    claim = CheckedClaim(2.0, 1e-5, kind=kind, relation=relation)
    result = conclude_check("own:f", claim, found, confidence=0.99, calls=30, seconds=1.0)
    page = write_check_page(result, tmp_path).read_text().partition("</style>")[2]
    text = re.sub(r"<[^>]+>", "\n", page).replace("&#39;", "'").replace("an aggregate of", "")
    assert neighbours in text and not CODE_WORDS.search(text)
    rows = re.findall(r"<tr role=.row.><th.*?</tr>", page, re.S)
    cells = [re.findall(r"<div>(.*?)</div>", row) for row in rows if "<div>" in row]
    assert [row[0] for row in cells] == [*OUTCOMES]
    assert all(len(row) == 5 and all(row) for row in cells)


def test_every_outcome_of_a_stage_has_a_place_on_the_page() -> None:
    """Those that the stages write as literals."""
    folder = Path(check_page.__file__).parent
    text = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    named = re.findall(r"SingleTestResult\(\s*[\w\"\' ]+,\s*\"([a-z ]+)\"", text)
    assert len({*named}) >= 4 and {*named} <= {*OUTCOMES}


def test_a_check_removes_what_a_killed_one_left_half_written(tmp_path: Path) -> None:
    left = tmp_path / ".privdd-partial.123.0123456789abcdef"
    similar = tmp_path / ".privdd-partial.notes"
    for path in (left, similar):
        path.write_text("{")
    result = conclude_check(
        "own:f", CheckedClaim(2.0, 1e-5), CheckReport([]), confidence=0.99, calls=30, seconds=1.0
    )
    write_check_page(result, tmp_path)
    assert not left.exists() and similar.exists()


@pytest.mark.nightly(but=["3.0"])
@pytest.mark.parametrize("value", [0.0, 3.0, math.nan])
def test_a_release_that_never_changes_is_checked_to_the_end(value: float) -> None:
    """It has no noise at all, and needs none."""
    result = check(
        lambda update: [np.full(a.shape, value) for a in update],
        stated=STATED,
        kind="update",
        **(FEW | {"seconds": 2.0}),
    )
    assert not result.refuted and result.certified == 0


def test_half_the_noise_is_refuted_and_its_epsilon_is_bounded_from_below() -> None:
    with pytest.raises(AssertionError, match="REFUTED: no source of randomness"):
        assert_private(clipped, stated=STATED, kind="update", **FEW)
    result = check(noised(0.5), stated=STATED, kind="update", **(FEW | {"max_calls": 20_000}))
    true = 4.53  # mu-GDP at twice the mu, epsilon of it at 1e-5
    # kappa is an estimate, as above: far from the 1 of the noise that is stated
    assert result.says.startswith(
        "<lambda>: epsilon 2 at delta 1e-5 (kind=update, zero_out): REFUTED: epsilon is above"
    )
    assert 1.5 < result.kappa < 3.0 and 2.1 < result.certified < 1.02 * true


@pytest.mark.nightly
def test_a_number_without_noise_has_no_ceiling_at_ln_n() -> None:
    def leaky(update):
        return noised(1.0)(update), float(sum((a * a).sum() for a in update))

    result = check(
        leaky,
        stated={"epsilon": 9.0, "delta": 1e-5},
        kind="update",
        **(FEW | {"max_calls": 12_000}),
    )
    assert result.refuted and result.certified_any > 13


class Seeded:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)

    def __call__(self, update):
        return [a + self.rng.normal(0, 4.0, a.shape) for a in clipped(update)]


def test_a_seed_in_the_code_is_found() -> None:
    result = check(Seeded, stated=STATED, kind="update", **FEW)
    assert result.refuted and any(
        look.name == "seeds" and look.outcome == "refuted" for look in result.looks
    )
    assert (
        result.certified == result.certified_any == math.inf and "add the same noise" in result.says
    )


def test_a_refuted_declaration_of_the_noise_bounds_no_epsilon() -> None:
    stated = {**STATED, "noise": "laplace"}
    result = check(noised(2.0), stated=stated, kind="update", **(FEW | {"max_calls": 20_000}))
    assert result.refuted and "its law is gaussian" in result.says and "above 0" not in result.says


def test_what_cannot_be_checked_is_said_in_one_line() -> None:
    for mechanism, says in (
        (
            lambda update: 1 / 0,
            "refuses every input that was tried; the first error: ZeroDivisionError",
        ),
        (lambda update: object(), "it returns a object"),
        (lambda update: sys.exit(3), "ended its process"),
    ):
        with pytest.raises(BadConfig, match=says) as error:
            check(mechanism, stated=STATED, kind="update", **FEW)
        assert "\n" not in str(error.value)
    with pytest.raises(BadConfig, match=r"stated\.delta=2"):
        check(noised(1.0), stated={"epsilon": 1.0, "delta": 2}, kind="update", **FEW)


def test_a_mechanism_that_hangs_is_stopped() -> None:
    assert WALL > 1
    began = time.monotonic()
    with pytest.raises(ChildStopped, match=r"stopped after 0\.5 s"):
        run_in_child(lambda say: time.sleep(60) or {}, 0.5)
    assert time.monotonic() - began < 20


def test_gaussian_mu_is_the_inverse_of_the_closed_form() -> None:
    assert gaussian_mu(4.37717810, 1e-5) == pytest.approx(
        1.0, abs=1e-6
    )  # Balle and Wang, sigma = 1
    assert CheckedClaim(4.37717810, 1e-5, calls=4).gaussian_mu_per_call == pytest.approx(
        0.5, abs=1e-6
    )
    assert all(type(CheckedClaim(1.0, 0.0, calls=four).calls) is int for four in (4.0, np.int64(4)))  # type: ignore[arg-type]
    assert CheckedClaim(1.0, noise_multiplier=4.0, relation="replace").gaussian_mu_per_call == 0.5


@pytest.mark.nightly
def test_warnings_of_a_mechanism_stay_out_of_the_terminal(tmp_path: Path) -> None:
    """In a process of its own: pytest would swallow them here."""
    (tmp_path / "warns.py").write_text(
        "import warnings\n"
        "import numpy as np\n"
        "from privdd.api import check\n"
        "rng = np.random.default_rng()\n"
        "def noise(update):\n"
        "    warnings.warn('an odd input')\n"
        "    return [rng.normal(0, 1, np.shape(a)) for a in update]\n"
        "print(check(noise, stated={'epsilon': 1.0, 'delta': 1e-5}, kind='update', "
        "max_calls=2000, seconds=5.0).refuted)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "always", "warns.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "False\n" and "an odd input" not in ran.stderr


def test_a_statement_without_its_delta_is_refused() -> None:
    """Gaussian noise has no finite epsilon at delta 0, so no delta may be taken for granted."""
    with pytest.raises(BadConfig, match=r"stated\.delta= is needed: 0 for a pure epsilon"):
        check(lambda update: update, stated={"epsilon": 8.0}, kind="update")
