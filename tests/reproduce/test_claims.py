"""The papers' sentences on trial: formulas by other means, attacks by made-up findings on both
sides of each rule."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scipy import optimize, stats

from privdd.reproduce import claims
from privdd.reproduce import claims as formula
from privdd.reproduce.catalogue import ReproduceArguments
from privdd.reproduce.claims import (
    AUDITS,
    FAILS_HERE,
    HOLDS_HERE,
    SENTENCES,
    UNDECIDED,
    ClaimEvidence,
    ClaimVerdict,
    PrivacySentence,
    audit_folder_name,
    decide_fedfed_inversion,
    decide_fedfed_raw,
    decide_fedlgd_membership,
    decide_fedlgd_no_extra,
    decide_fedrd_not_real,
    decide_fedrd_secret_map,
    decide_sentences,
    format_verdict_counts,
    strongest_membership,
    write_sentences,
)


class Made:
    """Grounds that was made up."""

    def __init__(self, found: dict | None = None, result: dict | None = None) -> None:
        self.found = found or {}
        self.result = result or {}

    def audit_findings(self, name: str) -> dict:
        return {"findings": self.found[name]}

    def entry_results(self, entry: str) -> dict:
        return self.result


def balle_wang(sigma: float, sensitivity: float, delta: float) -> float:
    """The exact epsilon of a Gaussian release (Balle and Wang 2018, theorem 8), by root finding."""
    mu = sensitivity / sigma

    def excess(epsilon: float) -> float:
        first = stats.norm.logcdf(mu / 2 - epsilon / mu)
        return (
            math.exp(first) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)) - delta
        )

    return optimize.brentq(excess, 0, 200)


@pytest.mark.parametrize(("sigma", "norm"), [(1.0, 1.0), (3.0, 1.0), (2.0, 0.3)])
def test_the_epsilon_of_one_release(sigma: float, norm: float) -> None:
    assert formula.release_epsilon(sigma, norm) == pytest.approx(
        balle_wang(sigma, norm, 1e-5), rel=0.01
    )


def test_what_arithmetic_decides() -> None:
    """Each number by hand: 2 ln(1e5) / 9 = 2.56; (256 / 5000)^2 1000 = 2.62 > ln(1e5) / 9 = 1.28;
    and so on."""
    nothing = Made()
    decided = {
        name: getattr(formula, name)(nothing)
        for name in (
            "decide_feddm_theorem",
            "decide_fedrd_table_two",
            "decide_fedfed_less_noise",
            "decide_fedfed_square",
            "decide_fedfed_composition",
        )
    }
    assert {name: one.verdict for name, one in decided.items()} == {
        "decide_feddm_theorem": FAILS_HERE,
        "decide_fedrd_table_two": FAILS_HERE,
        "decide_fedfed_less_noise": HOLDS_HERE,
        "decide_fedfed_square": FAILS_HERE,
        "decide_fedfed_composition": FAILS_HERE,
    }
    assert (
        "23, 2.56, 0.921" in decided["decide_fedrd_table_two"].because[0]
        and "10, 1.11, 0.4" in decided["decide_fedrd_table_two"].because[1]
    )
    assert (
        "T q² = 2.62" in decided["decide_feddm_theorem"].because[1]
        and "ε/2 = 1.28, so the condition fails" in decided["decide_feddm_theorem"].because[1]
    )
    assert "norm 0.3 need noise 0.3" in decided["decide_fedfed_less_noise"].because[0]
    assert (
        "printed 70.97" in decided["decide_fedfed_composition"].because[1]
        and "source 78.12" in decided["decide_fedfed_composition"].because[1]
    )


def test_the_printed_epsilons_would_hold_if_they_were_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rule can say "holds": with the numbers of the natural logarithm."""
    monkeypatch.setattr(
        formula, "PRINTED_EPSILONS", tuple(2 * math.log(1e5) / s**2 for s in formula.SIGMAS)
    )
    assert formula.decide_fedrd_table_two(Made()).verdict == HOLDS_HERE
    monkeypatch.setattr(formula, "CLASS_SIZE", 256 * 100)  # q = 0.01
    assert formula.decide_feddm_theorem(Made()).verdict == HOLDS_HERE
    # the condition holds, and the epsilon does not
    monkeypatch.setattr(formula, "accounted", lambda event, delta: 1e3)
    assert formula.decide_feddm_theorem(Made()).verdict == FAILS_HERE


def test_lpips_rises_with_noise() -> None:
    decision = formula.decide_fedlgd_lpips(Made())
    assert decision.verdict in (FAILS_HERE, UNDECIDED) and (decision.verdict == FAILS_HERE) == (
        "no pretrained" not in decision.because[0]
    )


def member(low: float, high: float, surface: str = "update", attack: str = "lira") -> dict:
    return {
        "surface": surface,
        "family": "membership",
        "attack": attack,
        "auc": (low + high) / 2,
        "auc_ci": [low, high],
        "n": 60,
    }


def test_membership_decides_only_where_the_interval_is_clear_of_guessing() -> None:
    for low, verdict in ((0.51, FAILS_HERE), (0.49, UNDECIDED)):
        rows = [
            member(0.2, 0.3, "synthetic_representations"),
            member(low, 0.9, "synthetic_representations", "rmia"),
            member(0.9, 0.95),
        ]
        decision = decide_fedrd_not_real(Made({"fedrd": rows}))
        assert decision.verdict == verdict and decision.because[0].startswith("rmia")
    assert decide_fedrd_not_real(Made({"fedrd": [member(0.9, 0.95)]})).verdict == UNDECIDED
    assert strongest_membership({"findings": []}, "update") is None


def test_two_methods_are_told_apart_only_where_intervals_do_not_meet() -> None:
    def both(first: tuple[float, float], second: tuple[float, float]) -> tuple[str, str]:
        made = Made(
            {
                "fedlgd": [member(*first)],
                "virtual_data": [member(*second)],
                "fedavg": [member(*second)],
            }
        )
        return decide_fedlgd_no_extra(made).verdict, decide_fedlgd_membership(made).verdict

    assert both((0.7, 0.8), (0.5, 0.6)) == (FAILS_HERE, FAILS_HERE)
    assert both((0.5, 0.6), (0.7, 0.8)) == (HOLDS_HERE, HOLDS_HERE)
    assert both((0.5, 0.71), (0.7, 0.8)) == (UNDECIDED, UNDECIDED)
    assert decide_fedlgd_no_extra(Made({"fedlgd": [], "virtual_data": []})).verdict == UNDECIDED


def inversion(psnr: float, blind: float, ladder: dict | None = None) -> dict:
    rungs = {name: {"psnr": value} for name, value in (ladder or {}).items()}
    return {
        "surface": "features",
        "attack": "feature_inversion",
        "psnr": psnr,
        "baselines": {"psnr_mean": blind, "psnr_black": 1.0, "ssim_mean": 99.0},
        "diagnostics": {"ladder": rungs},
    }


def test_pictures_decide_only_above_a_blind_guess() -> None:
    assert decide_fedfed_inversion(Made({"fedfed": [inversion(20, 14)]})).verdict == FAILS_HERE
    assert decide_fedfed_inversion(Made({"fedfed": [inversion(14.1, 14)]})).verdict == UNDECIDED
    assert decide_fedfed_inversion(Made({"fedfed": []})).verdict == UNDECIDED
    known = {"knows_map": 30.0, "shadow_map": 9.0, "nothing": 7.0}
    assert (
        decide_fedrd_secret_map(Made({"fedrd": [inversion(30, 14, known)]})).verdict == UNDECIDED
    )  # only who has the projection
    assert (
        decide_fedrd_secret_map(
            Made({"fedrd": [inversion(30, 14, {**known, "shadow_map": 20.0})]})
        ).verdict
        == FAILS_HERE
    )


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [("holds", HOLDS_HERE), ("reversed", FAILS_HERE), ("holds in the mean", UNDECIDED)],
)
def test_a_training_decides_as_its_order_does(verdict: str, expected: str) -> None:
    said = {"worse": "algo=fedfed_raw", "gain": 0.1, "p": 0.2, "verdict": verdict}
    assert (
        decide_fedfed_raw(Made(result={"columns": [{"sentences": [{"pairs": [said]}]}]})).verdict
        == expected
    )


def test_every_sentence_is_quoted_and_named_once() -> None:
    sentences = SENTENCES
    assert (
        len({s.name for s in sentences})
        == len({s.quote for s in sentences})
        == len(sentences)
        >= 10
    )
    assert {s.by for s in sentences} == {"formula", "attack", "training"}


def test_an_audit_of_earlier_settings_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(overrides: tuple[str, ...], path: Path) -> int:
        ran.append((overrides[-1], path.name))
        path.mkdir(parents=True)
        (path / "findings.json").write_text(json.dumps({"worlds": overrides[-1]}))
        return 0

    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(claims, "audit_row", fake)
    for worlds in (16, 16, 12, 16):
        more = f"audit.worlds={worlds}"
        monkeypatch.setattr(claims, "SMALL_AUDIT", ("data=digits", "preset=smoke", more))
        assert ClaimEvidence(ReproduceArguments("privacy", out=tmp_path)).audit_findings(
            "fedlgd"
        ) == {"worlds": more}
    monkeypatch.setitem(AUDITS, "fedlgd", (*AUDITS["fedlgd"], "algo.lr=0.5"))  # what clients send
    ClaimEvidence(ReproduceArguments("privacy", out=tmp_path)).audit_findings("fedlgd")
    assert [more for more, _ in ran] == ["audit.worlds=16", "audit.worlds=12", "audit.worlds=16"]
    assert len({name for _, name in ran}) == 3


def test_finished_audits_are_used_again_and_the_page_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No audit runs: all that is asked for lies there."""
    for name in AUDITS:
        folder = tmp_path / "privacy" / audit_folder_name(name)
        folder.mkdir(parents=True)
        (folder / "findings.json").write_text(json.dumps({"findings": []}))
    monkeypatch.setattr(
        ClaimEvidence,
        "entry_results",
        lambda self, entry: {
            "columns": [
                {
                    "sentences": [
                        {
                            "pairs": [
                                {
                                    "worse": "algo=fedfed_raw",
                                    "gain": 0.0,
                                    "p": None,
                                    "verdict": "reversed in the mean",
                                }
                            ]
                        }
                    ]
                }
            ]
        },
    )
    assert decide_sentences(ReproduceArguments("privacy", out=tmp_path)) == 0
    told = json.loads((tmp_path / "privacy" / "privacy.json").read_text())
    assert len(told["sentences"]) == len(SENTENCES) and "do not" in capsys.readouterr().out
    hostile = PrivacySentence(
        "x", "<i>", "<script>alert(1)</script>", "r", "formula", formula.decide_fedfed_square
    )
    page = write_sentences(
        [hostile], {"x": ClaimVerdict(UNDECIDED, ("<b>",))}, tmp_path / "h", "cmd"
    ).read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>" not in page
    assert (
        format_verdict_counts({"x": ClaimVerdict(UNDECIDED, ())})
        == "0 hold here, 0 do not, 1 are undecided"
    )


def test_each_verdict_is_counted_and_coloured_as_what_it_is(tmp_path: Path) -> None:
    kinds = {HOLDS_HERE: "consistent", FAILS_HERE: "contradiction", UNDECIDED: "unprotected"}
    decisions = {
        f"{kind}{at}": ClaimVerdict(kind, ())
        for many, kind in enumerate(kinds, 1)
        for at in range(many)
    }
    sentences = [
        PrivacySentence(name, "w", f"quote {name}", "r", "formula", formula.decide_fedfed_square)
        for name in decisions
    ]
    page = write_sentences(sentences, decisions, tmp_path, "cmd").read_text()
    assert format_verdict_counts(decisions) == "1 hold here, 2 do not, 3 are undecided"
    for many, (kind, tone) in enumerate(kinds.items(), 1):
        assert page.count(f'<span class="badge {tone}">{kind}</span>') == many
