"""``reproduce.py`` runs where this project cannot be imported, shows what is false, and accuses no
sound mechanism."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from attacks.tradeoff import gaussian_epsilon
from privdd.blackbox import counterexample
from privdd.blackbox.check_report import CheckReport
from privdd.blackbox.check_verdict import conclude_check
from privdd.blackbox.claims import CheckedClaim
from privdd.blackbox.reproduction import describe_case, write_reproduction
from privdd.blackbox.runner import check
from privdd.blackbox.target import load_target, target_place

MECHANISMS = """
import numpy as np

rng = np.random.default_rng()


def sound(x):
    return np.clip(x, 0, 1).sum(axis=0) + rng.laplace(0, x.shape[1], x.shape[1])


def raw(x):  # clips, and then sums what was not clipped
    return {"a": x.sum(axis=0) + rng.laplace(0, x.shape[1], x.shape[1]), "of": "raw"}


def names(x):  # tells in words, now and then
    return ["seen" if len(x) == 2 and rng.random() < 0.2 else "not", float(rng.random())]


class Gauss:
    def __init__(self, epsilon, std=1.0):
        self.std = std / epsilon

    def __call__(self, update):
        size = np.sqrt(sum(float((a**2).sum()) for a in update))
        return [a / max(size, 1.0) + rng.normal(0, self.std, a.shape) for a in update]


def crowd(updates, weights):
    clipped = [w * np.clip(u[0], -1, 1) for u, w in zip(updates, weights)]
    return [np.sum(clipped, axis=0) + rng.normal(0, 1, updates[0][0].shape)]
"""
ALONE = (
    "import sys, runpy; sys.modules.update(privdd=None, attacks=None, scipy=None); "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)


def run_alone(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ALONE, str(file)], capture_output=True, text=True, timeout=300
    )


@pytest.mark.nightly(cases=["raw-stated0-more0", "Gauss-stated2-more2", "crowd-stated3-more3"])
@pytest.mark.parametrize(
    ("name", "stated", "more"),
    [
        ("raw", {"epsilon": 1.0, "delta": 0.0}, {"kind": "records"}),
        ("names", {"epsilon": 1.0, "delta": 1e-5}, {"kind": "records"}),
        ("Gauss", {"epsilon": 1.0, "delta": 1e-5}, {"kind": "update", "args": {"std": 0.5}}),
        ("crowd", {"epsilon": 2.0, "delta": 1e-5}, {"kind": "aggregate"}),
    ],
)
def test_what_is_refuted_is_shown_without_the_project(
    name: str, stated: dict[str, float], more: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "faulty.py").write_text(MECHANISMS)
    found = check(
        load_target(f"{tmp_path / 'faulty.py'}:{name}"),
        stated=stated,
        seconds=60,
        max_calls=40_000,
        out=tmp_path / "out",
        **more,
    )  # type: ignore[arg-type]
    assert (
        found.refuted
        and found.case is not None
        and "case" not in (tmp_path / "out" / "findings.json").read_text()
    )
    done = run_alone(tmp_path / "out" / "reproduce.py")
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith(
        "REFUTED: epsilon = "
    ), done.stdout + done.stderr


def test_a_sound_mechanism_is_not_accused(tmp_path: Path) -> None:
    """As one that was mended after the file was written."""
    (tmp_path / "m.py").write_text(MECHANISMS)
    found = conclude_check(
        "m",
        CheckedClaim(1.0, kind="records"),
        CheckReport(),
        confidence=0.99,
        calls=1,
        seconds=1.0,
    )  # type: ignore[arg-type]
    rows = np.full((2, 3), 1.0)
    case = describe_case(
        found, f"{tmp_path / 'm.py'}:sound", False, {}, ("a row of ones", [rows], [rows[:1]])
    )
    file = write_reproduction(replace(found, case=case), tmp_path)
    assert file is not None
    file.write_text(file.read_text().replace("(4_000, 200_000)", "(4_000, 20_000)"))
    done = run_alone(file)
    assert done.returncode == 1 and done.stdout.splitlines()[-1].startswith("not shown"), (
        done.stdout + done.stderr
    )


def test_its_bounds_are_those_of_other_programs() -> None:
    for hits, count in ((0, 50), (3, 50), (49, 50), (700, 2000)):
        assert counterexample.upper_end(hits, count, 0.0025) == pytest.approx(
            stats.beta.ppf(1 - 0.0025, hits + 1, count - hits), abs=1e-6
        )
    assert counterexample.upper_end(50, 50, 0.01) == 1
    for mu in (0.3, 1.0, 5.0):
        assert counterexample.gaussian_epsilon(mu, 1e-5) == pytest.approx(
            gaussian_epsilon(mu, 1e-5), rel=1e-6
        )


def test_a_function_without_a_place_of_its_own_gets_no_file(tmp_path: Path) -> None:
    found = check(
        lambda x: np.asarray(x).sum(0),
        stated={"epsilon": 1.0, "delta": 0.0},
        kind="records",
        seconds=20,  # it is refuted after one, unless the machine is busy
        out=tmp_path,
    )
    assert found.refuted and found.case is None and not (tmp_path / "reproduce.py").exists()
    assert target_place(lambda: 0) == "" and target_place(len) == ""
