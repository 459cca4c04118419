"""The papers' sentences on trial: formulas by other means, attacks by made-up findings on both sides of each rule."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scipy import optimize, stats

from privdd.reproduce import audit_runs
from privdd.reproduce import formula_verdicts as formula
from privdd.reproduce.attack_verdicts import (
    fedfed_inversion,
    fedfed_raw,
    fedlgd_membership,
    fedlgd_no_extra,
    fedrd_not_real,
    fedrd_secret_map,
    strongest_membership,
)
from privdd.reproduce.audit_runs import AUDITS, AuditRuns, audit_folder
from privdd.reproduce.decided import HERE, NOT, OPEN, Decided
from privdd.reproduce.sentence_page import counted, tried, write_sentences
from privdd.reproduce.sentences import SENTENCES, Sentence
from privdd.reproduce.typed import Wish


class Made:
    """Grounds that was made up."""

    def __init__(self, found: dict | None = None, result: dict | None = None) -> None:
        self.found, self.result = found or {}, result or {}

    def findings(self, name: str) -> dict:
        return {"findings": self.found[name]}

    def results(self, entry: str) -> dict:
        return self.result


def balle_wang(sigma: float, sensitivity: float, delta: float) -> float:
    """The exact epsilon of a Gaussian release (Balle and Wang 2018, theorem 8), by root finding."""
    mu = sensitivity / sigma

    def excess(epsilon: float) -> float:
        first = stats.norm.logcdf(mu / 2 - epsilon / mu)
        return math.exp(first) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return optimize.brentq(excess, 0, 200)


@pytest.mark.parametrize(("sigma", "norm"), [(1.0, 1.0), (3.0, 1.0), (2.0, 0.3)])
def test_the_epsilon_of_one_release(sigma: float, norm: float) -> None:
    assert formula.gaussian_epsilon(sigma, norm) == pytest.approx(balle_wang(sigma, norm, 1e-5), rel=0.01)


def test_what_arithmetic_decides() -> None:
    """Each number by hand: 2 ln(1e5) / 9 = 2.56; (256 / 5000)^2 1000 = 2.62 > ln(1e5) / 9 = 1.28; and so on."""
    nothing = Made()
    decided = {name: getattr(formula, name)(nothing) for name in ("feddm_theorem", "fedrd_table_two", "fedfed_less_noise", "fedfed_square", "fedfed_composition")}
    assert {name: one.verdict for name, one in decided.items()} == {
        "feddm_theorem": NOT, "fedrd_table_two": NOT, "fedfed_less_noise": HERE, "fedfed_square": NOT, "fedfed_composition": NOT,
    }
    assert "23, 2.56, 0.921" in decided["fedrd_table_two"].because[0] and "10, 1.11, 0.4" in decided["fedrd_table_two"].because[1]
    assert "T q² = 2.62" in decided["feddm_theorem"].because[1] and "ε/2 = 1.28, so the condition fails" in decided["feddm_theorem"].because[1]
    assert "norm 0.3 need noise 0.3" in decided["fedfed_less_noise"].because[0]
    assert "printed 70.97" in decided["fedfed_composition"].because[1] and "source 78.12" in decided["fedfed_composition"].because[1]


def test_the_printed_epsilons_would_hold_if_they_were_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule can say "holds": with the numbers of the natural logarithm."""
    monkeypatch.setattr(formula, "PRINTED", tuple(2 * math.log(1e5) / s**2 for s in formula.SIGMAS))
    assert formula.fedrd_table_two(Made()).verdict == HERE
    monkeypatch.setattr(formula, "CLASS", 256 * 100)  # q = 0.01
    assert formula.feddm_theorem(Made()).verdict == HERE
    monkeypatch.setattr(formula, "accounted", lambda event, delta: 1e3)  # the condition holds, and the epsilon does not
    assert formula.feddm_theorem(Made()).verdict == NOT


def test_lpips_rises_with_noise() -> None:
    decision = formula.fedlgd_lpips(Made())
    assert decision.verdict in (NOT, OPEN) and (decision.verdict == NOT) == ("no pretrained" not in decision.because[0])


def member(low: float, high: float, surface: str = "update", attack: str = "lira") -> dict:
    return {"surface": surface, "family": "membership", "attack": attack, "auc": (low + high) / 2, "auc_ci": [low, high], "n": 60}


def test_membership_decides_only_where_the_interval_is_clear_of_guessing() -> None:
    for low, verdict in ((0.51, NOT), (0.49, OPEN)):
        rows = [member(0.2, 0.3, "synthetic_representations"), member(low, 0.9, "synthetic_representations", "rmia"), member(0.9, 0.95)]
        decision = fedrd_not_real(Made({"fedrd": rows}))
        assert decision.verdict == verdict and decision.because[0].startswith("rmia")
    assert fedrd_not_real(Made({"fedrd": [member(0.9, 0.95)]})).verdict == OPEN
    assert strongest_membership({"findings": []}, "update") is None


def test_two_methods_are_told_apart_only_where_intervals_do_not_meet() -> None:
    def both(first: tuple[float, float], second: tuple[float, float]) -> tuple[str, str]:
        made = Made({"fedlgd": [member(*first)], "virtual_data": [member(*second)], "fedavg": [member(*second)]})
        return fedlgd_no_extra(made).verdict, fedlgd_membership(made).verdict

    assert both((0.7, 0.8), (0.5, 0.6)) == (NOT, NOT)
    assert both((0.5, 0.6), (0.7, 0.8)) == (HERE, HERE)
    assert both((0.5, 0.71), (0.7, 0.8)) == (OPEN, OPEN)
    assert fedlgd_no_extra(Made({"fedlgd": [], "virtual_data": []})).verdict == OPEN


def inversion(psnr: float, blind: float, ladder: dict | None = None) -> dict:
    rungs = {name: {"psnr": value} for name, value in (ladder or {}).items()}
    return {"surface": "features", "attack": "feature_inversion", "psnr": psnr, "baselines": {"psnr_mean": blind, "psnr_black": 1.0, "ssim_mean": 99.0}, "diagnostics": {"ladder": rungs}}


def test_pictures_decide_only_above_a_blind_guess() -> None:
    assert fedfed_inversion(Made({"fedfed": [inversion(20, 14)]})).verdict == NOT
    assert fedfed_inversion(Made({"fedfed": [inversion(14.1, 14)]})).verdict == OPEN
    assert fedfed_inversion(Made({"fedfed": []})).verdict == OPEN
    known = {"knows_map": 30.0, "shadow_map": 9.0, "nothing": 7.0}
    assert fedrd_secret_map(Made({"fedrd": [inversion(30, 14, known)]})).verdict == OPEN  # only who has the projection
    assert fedrd_secret_map(Made({"fedrd": [inversion(30, 14, {**known, "shadow_map": 20.0})]})).verdict == NOT


@pytest.mark.parametrize(("verdict", "expected"), [("holds", HERE), ("reversed", NOT), ("holds in the mean", OPEN)])
def test_a_training_decides_as_its_order_does(verdict: str, expected: str) -> None:
    said = {"worse": "algo=fedfed_raw", "gain": 0.1, "p": 0.2, "verdict": verdict}
    assert fedfed_raw(Made(result={"columns": [{"text": [said]}]})).verdict == expected


def test_every_sentence_is_quoted_and_named_once() -> None:
    sentences = SENTENCES
    assert len({s.name for s in sentences}) == len({s.quote for s in sentences}) == len(sentences) >= 10
    assert {s.by for s in sentences} == {"formula", "attack", "training"}


def test_an_audit_of_earlier_settings_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(overrides: tuple[str, ...], path: Path) -> int:
        ran.append((overrides[-1], path.name))
        path.mkdir(parents=True)
        (path / "findings.json").write_text(json.dumps({"worlds": overrides[-1]}))
        return 0

    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(audit_runs, "audit_row", fake)
    for worlds in (16, 16, 12, 16):
        more = f"audit.worlds={worlds}"
        monkeypatch.setattr(audit_runs, "SMALL", ("data=digits", "preset=smoke", more))
        assert AuditRuns(Wish("privacy", out=tmp_path)).findings("fedlgd") == {"worlds": more}
    monkeypatch.setitem(AUDITS, "fedlgd", (*AUDITS["fedlgd"], "algo.lr=0.5"))  # what clients send
    AuditRuns(Wish("privacy", out=tmp_path)).findings("fedlgd")
    assert [more for more, _ in ran] == ["audit.worlds=16", "audit.worlds=12", "audit.worlds=16"]
    assert len({name for _, name in ran}) == 3


def test_finished_audits_are_used_again_and_the_page_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No audit runs: all that is asked for lies there."""
    for name in AUDITS:
        folder = tmp_path / "privacy" / audit_folder(name)
        folder.mkdir(parents=True)
        (folder / "findings.json").write_text(json.dumps({"findings": []}))
    monkeypatch.setattr(AuditRuns, "results", lambda self, entry: {"columns": [{"text": [{"worse": "algo=fedfed_raw", "gain": 0.0, "p": None, "verdict": "reversed in the mean"}]}]})
    assert tried(Wish("privacy", out=tmp_path)) == 0
    told = json.loads((tmp_path / "privacy" / "privacy.json").read_text())
    assert len(told["sentences"]) == len(SENTENCES) and "do not" in capsys.readouterr().out
    hostile = Sentence("x", "<i>", "<script>alert(1)</script>", "r", "formula", formula.fedfed_square)
    page = write_sentences([hostile], {"x": Decided(OPEN, ("<b>",))}, tmp_path / "h", "cmd").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>" not in page
    assert counted({"x": Decided(OPEN, ())}) == "0 hold here, 0 do not, 1 are undecided"


def test_each_verdict_is_counted_and_coloured_as_what_it_is(tmp_path: Path) -> None:
    kinds = {HERE: "consistent", NOT: "contradiction", OPEN: "unprotected"}
    decisions = {f"{kind}{at}": Decided(kind, ()) for many, kind in enumerate(kinds, 1) for at in range(many)}
    sentences = [Sentence(name, "w", f"quote {name}", "r", "formula", formula.fedfed_square) for name in decisions]
    page = write_sentences(sentences, decisions, tmp_path, "cmd").read_text()
    assert counted(decisions) == "1 hold here, 2 do not, 3 are undecided"
    for many, (kind, tone) in enumerate(kinds.items(), 1):
        assert page.count(f'<span class="badge {tone}">{kind}</span>') == many
