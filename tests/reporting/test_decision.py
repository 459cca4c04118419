"""Tests of ``privdd.reporting.decision``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privdd.reporting.decision import Decision, decide_surfaces, sample_banner
from privdd.reporting.run_record import read_run_record
from privdd.reporting.schema import FindingRow, Findings, Scope, load_findings, validate_findings
from privdd.reporting.summary import is_weak_limit, leak_sentences, surface_lines, verdict_headline
from tests.reporting.fixture import membership, write_run

# The decision line of an artifact against a table of cases, each a run folder with one thing
# changed.


SEED = {"source": "seed", "paired": False, "for_release": False}
SECRET = {"source": "secret", "paired": False, "for_release": True}
RATES = ("0.001", "0.01", "0.1")
NOTHING = {
    key: {"tpr": float(key), "ci": [0.0, 4 * float(key)], "resolvable": True} for key in RATES
}
STRONG = {key: {"tpr": 0.5, "ci": [0.45, 0.55], "resolvable": True} for key in RATES}
COARSE = {key: {"tpr": float(key), "ci": [0.0, 0.3], "resolvable": key == "0.1"} for key in RATES}


def row(rates: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """A membership finding on the features; its AUC is that of guessing unless ``more`` says
    otherwise."""
    head = {
        "surface": "features",
        "attack": "lira",
        "family": "membership",
        "adversary": "server",
        "n": 120,
        "worlds": 64,
    }
    numbers = {"auc": 0.5, "auc_ci": [0.45, 0.55], "tpr_at_fpr": rates, "status": "measured"}
    return head | ({} if rates is None else numbers) | more


def run(
    rows: list[dict[str, Any]],
    judged: str,
    epsilon: Any,
    noise: dict[str, Any] | None = SECRET,
    preset: str = "default",
    **surface: Any,
) -> Findings:
    """Findings about released features alone."""
    pair = {"pld": epsilon, "rdp": epsilon}
    sent = {
        "surface": "features",
        "sender": "client",
        "names": ["features"],
        "rounds": 1,
        "bytes": 10,
        "mechanism": "m",
        "epsilon": pair,
        "audited": True,
        "untested": [],
        "verdict": judged,
    }
    privacy = {
        "delta": 1e-5,
        "unit": "record",
        "relation": "add_remove",
        "epsilon": pair,
        "claims": [],
    }
    seconds = {"train": 1.0, "worlds": 1.0, "attacks": 1.0, "total": 3.0}
    about = {
        "algo": "a",
        "data": "d",
        "preset": preset,
        "seed": 0,
        "version": "1",
        "clients": 2,
        "rounds": 1,
        "seconds": seconds,
    }
    return validate_findings(
        {
            "schema": 1,
            "run": about,
            "privacy": privacy | ({} if noise is None else {"noise": noise}),
            "surfaces": [sent | surface],
            "findings": rows,
            "verdict": judged,
        }
    )


def judged(findings: Findings) -> tuple[list[FindingRow], Scope]:
    """All rows of a file with what they are judged by."""
    return findings.findings, findings.scope


def decided(*given: Any, **more: Any) -> Decision:
    return decide_surfaces(run(*given, **more))[0]


UNREAD = row(None, status="nothing_to_read", note="nothing to read: x")
BROKEN = row(
    NOTHING,
    attack="t2_likelihood_ratio",
    family="guarantee",
    epsilon_shown=6.0,
    epsilon_stated=0.9,
    epsilon_validity="finite_sample",
)
CASES: list[tuple[str, Findings, tuple[str, str, str], str]] = [
    (
        "unprotected, strong attack",
        run([row(STRONG)], "unprotected", "inf"),
        ("do_not_share", "bad", "Do not share"),
        "no guarantee covers it",
    ),
    (
        "unprotected, no leak",
        run([row(NOTHING)], "unprotected", "inf"),
        ("no_leak_found", "warn", "No leak found by this test"),
        "stronger ones may succeed",
    ),
    (
        "unprotected, only the AUC is above chance",
        run([row(NOTHING, auc=0.7, auc_ci=[0.6, 0.8])], "unprotected", "inf"),
        ("do_not_share", "bad", "Do not share"),
        "attack works",
    ),
    (
        "contradiction",
        run([BROKEN], "contradiction", 0.9),
        ("do_not_share", "bad", "Do not share"),
        "is false",
    ),
    (
        "contradiction of a smoke run",
        run([BROKEN], "contradiction", 0.9, preset="smoke"),
        ("do_not_share", "bad", "Do not share"),
        "is false",
    ),
    (
        "untested",
        run([row(NOTHING)], "untested", 2.0, untested=["m, noise: no test"]),
        ("share_only_under", "warn", "Share only under ε = 2"),
        "some condition of its guarantee",
    ),
    (
        "not contradicted, small limit",
        run([row(NOTHING)], "consistent", 2.0),
        ("share_only_under", "good", "Share only under ε = 2"),
        "no attack",
    ),
    (
        "not contradicted, an attack within the limit",
        run([row(STRONG)], "consistent", 7.9),
        ("share_only_under", "good", "Share only under ε = 7.9"),
        "no attack",
    ),
    (
        "not contradicted, at the limit of 8",
        run([row(NOTHING)], "consistent", 8.0),
        ("share_only_under", "good", "Share only under ε = 8"),
        "no attack",
    ),
    (
        "not contradicted, large limit",
        run([row(NOTHING)], "consistent", 15.5),
        ("share_only_under", "warn", "Share only under ε = 15.5"),
        "no attack",
    ),
    (
        "not contradicted, large limit, strong attack",
        run([row(STRONG)], "consistent", 15.5),
        ("do_not_share", "bad", "Do not share"),
        "forbids little",
    ),
    (
        "noise from the printed seed",
        run([row(NOTHING)], "consistent", 2.0, noise=SEED),
        ("do_not_share", "warn", "Simulation only"),
        "simulation",
    ),
    (
        "noise not recorded",
        run([row(NOTHING)], "consistent", 2.0, noise=None),
        ("share_only_under", "warn", "Share only under ε = 2"),
        "no attack",
    ),
    (
        "smoke run, small limit",
        run([row(NOTHING)], "consistent", 2.0, preset="smoke"),
        ("share_only_under", "warn", "Share only under ε = 2"),
        "no attack",
    ),
    (
        "nothing to read",
        run([UNREAD], "unprotected", "inf", audited="nothing to read: x"),
        ("undecided", "warn", "Not tested"),
        "no membership attack of this audit applies",
    ),
    (
        "not attacked",
        run([], "unprotected", "inf", audited="not attacked: x"),
        ("do_not_share", "bad", "Do not share"),
        "no attack was tried",
    ),
    (
        "noise from the printed seed, large limit, strong attack",
        run([row(STRONG)], "consistent", 15.5, noise=SEED),
        ("do_not_share", "bad", "Do not share"),
        "forbids little",
    ),
    (
        "waived, but limited",
        run([], "consistent", 2.0, audited="waived: x"),
        ("share_only_under", "warn", "Share only under ε = 2"),
        "no attack was tried (waived: x)",
    ),
    (
        "nothing to read, and limited",
        run([UNREAD], "consistent", 2.0, audited="nothing to read: x"),
        ("share_only_under", "warn", "Share only under ε = 2"),
        "no membership attack of this audit applies",
    ),
    (
        "no record in it, and no attack was tried",
        run([], "consistent", 0.0, audited="not attacked: x"),
        ("no_leak_found", "good", "No record enters it"),
        "no record enters it",
    ),
    (
        "no record in it, and an attack works",
        run([row(STRONG)], "consistent", 0.0),
        ("do_not_share", "bad", "Do not share"),
        "an attack works",
    ),
    (
        "no record in it",
        run([row(NOTHING)], "consistent", 0.0, noise=SEED),
        ("no_leak_found", "good", "No leak found by this test"),
        "no record",
    ),
]


@pytest.mark.parametrize(
    ("findings", "expected", "why"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_decision_of_each_case(
    findings: Findings, expected: tuple[str, str, str], why: str
) -> None:
    [one] = decide_surfaces(findings)
    assert (one.kind, one.tone, one.title) == expected
    assert why in one.why and bool(one.conditions) is (one.kind == "share_only_under")


def test_no_condition_is_left_out() -> None:
    one = decided(
        [row(COARSE)],
        "untested",
        15.5,
        noise=None,
        untested=["m, noise: no test", "m, sampling: no test"],
    )
    said = "; ".join(one.conditions)
    for words in (
        "about 5 million-fold",
        "above 8",
        "m, noise: no test",
        "m, sampling: no test",
        "does not record the source",
        "larger sample",
    ):
        assert words in said, words


def test_a_limit_is_told_with_its_unit_its_relation_and_its_delta() -> None:
    data = run([row(NOTHING)], "consistent", 2.0).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    data["privacy"] |= {"unit": "client", "relation": "zero_out", "delta": 2e-6}
    (said,) = decide_surfaces(validate_findings(data))[0].conditions
    assert (
        "odds about one client (one client replaced by a null client (zero-out)) may "
        "change 7.4-fold" in said
    )
    assert said.endswith("except with probability 2e-6")


def test_green_needs_a_small_limit_a_large_sample_and_noise_that_is_known_to_be_secret() -> None:
    green = [name for name, findings, *_ in CASES if decide_surfaces(findings)[0].tone == "good"]
    assert all(is_weak_limit(f.verdict, f) is False for name, f, *_ in CASES if name in green)
    assert is_weak_limit("consistent", run([], "consistent", 8.1)) and not is_weak_limit(
        "consistent", run([], "consistent", 8.0)
    )
    assert is_weak_limit(
        "consistent", run([], "consistent", 2.0, noise=SEED)
    ) and not is_weak_limit("contradiction", run([], "consistent", 9.0))
    assert "too large to protect" in verdict_headline(run([row(NOTHING)], "consistent", 15.5)).title


def test_what_attackers_can_do_is_only_what_beats_chance() -> None:
    assert decided([row(NOTHING)], "unprotected", "inf").can == ()
    [said] = decided([row(NOTHING), row(STRONG, adversary="peer")], "unprotected", "inf").can
    assert said.startswith("Another client can identify 50") and "0.1\u00a0% FPR" in said
    picture = {
        "surface": "features",
        "attack": "x",
        "family": "reconstruction",
        "adversary": "server",
        "n": 40,
    }
    for psnr, told in ((12.5, True), (12.4, False), (11.0, False)):
        rows = run(
            [picture | {"psnr": psnr, "baselines": {"psnr_mean": 12.0, "psnr_black": 3.0}}],
            "unprotected",
            "inf",
        )
        assert bool(leak_sentences(*judged(rows))) is told
    for n, told in (
        (100, True),
        (10, False),
    ):  # 60 of 100 against one half: lower end 0.497; 65 of 100: 0.548
        rows = run(
            [picture | {"identified": 0.65 if told else 0.6, "identified_chance": 0.5, "n": n}],
            "unprotected",
            "inf",
        )
        assert bool(leak_sentences(*judged(rows))) is told


def test_the_sample_decides_how_sure_that_nothing_leaks() -> None:
    picture = {
        "surface": "features",
        "attack": "x",
        "family": "reconstruction",
        "adversary": "server",
        "psnr": 30.0,
        "baselines": {"psnr_mean": 12.0},
    }
    few, many = (decided([picture | {"n": n}], "unprotected", "inf") for n in (29, 30))
    assert (few.enough, many.enough) == (False, True) and many.sure.startswith(
        "likely: above the best guess"
    )
    fine = decided([row(NOTHING)], "unprotected", "inf")
    coarse = decided([row(COARSE)], "unprotected", "inf")
    assert fine.enough and not coarse.enough and "too small to decide" in coarse.sure
    assert (
        "up to 0.4\u00a0% of members at 0.1\u00a0% FPR" in fine.sure
        and fine.sample == "120 audited records, 64 replays"
    )
    drawn = row(NOTHING, attack="noised_reads", adversary="analyst", worlds=1000)
    said = decided([row(NOTHING, worlds=8), drawn], "unprotected", "inf").sample
    assert (
        said == "120 audited records, 8 replays, 1000 transcripts of its noised sums, one of "
        "them the run's own"
    )
    for judged, counts in (
        ("consistent", True),
        ("untested", False),
    ):  # drawn by a law that tests did not look at: no sample
        assert decided([row(COARSE), drawn], judged, 4.0).enough is counts
        assert (sample_banner(run([row(COARSE), drawn], judged, 4.0)) == "") is counts
    assert sample_banner(run([row(NOTHING)], "unprotected", "inf")) == ""
    assert "cannot show" in sample_banner(run([row(COARSE)], "unprotected", "inf"))
    assert "Smoke run (120 audited records" in sample_banner(
        run([row(NOTHING)], "unprotected", "inf", preset="smoke")
    )


def test_a_pool_of_refuted_features_is_refuted_and_another_is_not(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", kind="contradiction")
    data = json.loads((folder / "findings.json").read_text())
    pool = data["surfaces"][0] | {
        "surface": "shared_features",
        "sender": "server",
        "behind": ["features"],
        "refuted": ["features"],
        "epsilon": {"pld": "inf", "rdp": "inf"},
    }
    looked = membership(folder, "shared_features", "lira", 0.0, 1, None)
    data |= {"surfaces": [*data["surfaces"], pool], "findings": [*data["findings"], looked]}
    for broken, kind in ((True, "contradiction"), (False, "unprotected")):
        for row in (data, *data["surfaces"]):
            row["verdict"] = kind
        data["surfaces"][0]["refuted"] = ["features"]
        for found in data["findings"]:
            found["refutes"] = broken and found["surface"] == "features"
        (folder / "findings.json").write_text(json.dumps(data))
        lines = {line.row.surface: line for line in surface_lines(load_findings(folder))}
        assert (
            lines["shared_features"].verdict == kind
            and bool(lines["shared_features"].holds) is broken
        )
        if broken:
            assert (
                lines["shared_features"].stated == 0.9
                and lines["shared_features"].shown == lines["features"].shown
            )
            made = {one.line.row.surface: one for one in decide_surfaces(load_findings(folder))}
            assert (
                made["shared_features"].kind == "do_not_share"
                and "computed from the" in made["shared_features"].why
            )


def test_who_sees_it_is_read_from_the_ledger(tmp_path: Path) -> None:
    record = read_run_record(write_run(tmp_path / "run"))
    seen = {
        one.line.row.surface: one.seen_by for one in decide_surfaces(record.findings, record.ledger)
    }
    assert (
        seen["features"] == "the server" and seen["global_model"] == "the server"
    )  # the fixture's ledger names the server alone
    bare = {one.line.row.surface: one.seen_by for one in decide_surfaces(record.findings)}
    assert bare["features"] == "the server" and bare["global_model"] == "every client"
    odd = {
        "releases": [
            {"surface": "features", "visible_to": ["peer", "public", "<b>", "analyst"]},
            3,
            {"surface": "features", "visible_to": 7},
        ]
    }
    assert {o.line.row.surface: o.seen_by for o in decide_surfaces(record.findings, odd)}[
        "features"
    ] == "anyone"


def test_of_one_surface_each_sender_has_its_own_title_and_viewers(tmp_path: Path) -> None:
    """Clients send features to the server, which sends features to all."""
    record = read_run_record(write_run(tmp_path / "run"))
    findings = record.findings
    sent = next(row for row in findings.surfaces if row.surface == "features")
    back = sent.model_copy(update={"sender": "server", "names": ["mean"]})
    both = findings.model_copy(update={"surfaces": [*findings.surfaces, back]})
    ledger = {
        "releases": [
            {"surface": "features", "client": 4, "visible_to": ["server"]},
            {"surface": "features", "client": -1, "visible_to": ["peer", "public"]},
        ]
    }
    seen = {one.line.title: one.seen_by for one in decide_surfaces(both, ledger)}
    (client,) = [title for title in seen if title.endswith(" of a client")]
    (server,) = [title for title in seen if title.endswith(" of the server")]
    assert (seen[client], seen[server]) == ("the server", "anyone")


# A lower bound that a test showed counts as a leak where nothing limits what is released, and of a
# pool too.


def noise_test(bound: float, family: str = "guarantee", stated: float = 45.0) -> dict[str, Any]:
    return {
        "surface": "features",
        "attack": "t2_likelihood_ratio",
        "family": family,
        "adversary": "analyst",
        "n": 400,
        "epsilon_shown": bound,
        "epsilon_stated": stated,
        "epsilon_validity": "finite_sample",
        "epsilon_method": "likelihood_ratio",
        "confidence": 0.999,
    }


@pytest.mark.parametrize(("bound", "kind"), [(32.3, "do_not_share"), (7.9, "no_leak_found")])
def test_attacks_that_fail_do_not_outweigh_a_test_that_showed_much(bound: float, kind: str) -> None:
    found = run([row(NOTHING), noise_test(bound)], "unprotected", "inf")
    (one,) = decide_surfaces(found)
    assert one.kind == kind and ("32.3" in " ".join(one.can)) is (kind == "do_not_share")
    assert one.sure.startswith("sure: 95 %") is (kind == "do_not_share")


def test_under_a_limit_the_same_bound_is_what_the_limit_allows() -> None:
    """A tight test of an honest mechanism: its bound is below the stated epsilon, which is what is
    judged."""
    (one,) = decide_surfaces(run([row(NOTHING), noise_test(9.0, stated=9.5)], "consistent", 9.5))
    assert one.kind == "share_only_under" and one.can == ()


def test_a_pool_is_as_weak_as_the_values_that_it_holds() -> None:
    alone = run(
        [row(NOTHING), row(NOTHING, surface="shared_features"), noise_test(32.3)],
        "unprotected",
        "inf",
    ).model_dump(mode="json", by_alias=True, exclude_none=True)
    pool = alone["surfaces"][0] | {
        "surface": "shared_features",
        "sender": "server",
        "names": ["pool"],
    }
    found = validate_findings(alone | {"surfaces": [*alone["surfaces"], pool]})
    assert [one.kind for one in decide_surfaces(found)] == ["do_not_share"] * 2
    assert {line.row.surface: line.shown for line in surface_lines(found)} == {
        "features": 32.3,
        "shared_features": 32.3,
    }


def test_labels_are_read_where_labels_were_attacked_and_a_guess_stands_beside() -> None:
    """A picture of each class has the right label too: that is no label read."""
    pictures = {
        "surface": "features",
        "attack": "model_inversion",
        "family": "model_inversion",
        "adversary": "server",
        "n": 10,
        "psnr": 10.0,
        "label_accuracy": 1.0,
    }
    read = {
        "surface": "features",
        "attack": "label_counts",
        "family": "label",
        "adversary": "server",
        "n": 300,
        "label_accuracy": 0.7,
        "baselines": {"label_accuracy_chance": 0.52},
    }
    (line,) = surface_lines(run([row(NOTHING), pictures], "unprotected", "inf"))
    assert not any("classes" in phrase for phrase in line.worst)
    (line,) = surface_lines(run([row(NOTHING), pictures, read], "unprotected", "inf"))
    assert any(
        phrase.replace("\u00a0", " ")
        == "label counts can read the classes of 210 of the client's 300 records "
        "(chance level 52 %)"
        for phrase in line.worst
    )


def test_statistics_of_which_the_counts_alone_were_read_are_not_called_safe() -> None:
    """The same rows with and without the hooks that the method lacks."""
    read = row(NOTHING, surface="statistics")
    about = {"surface": "statistics", "names": ["stats"]}
    hooks = "record_loss, or classifier"
    bare = decided([read], "unprotected", "inf", missing_hooks=hooks, **about)
    assert (bare.kind, bare.title) == ("undecided", "Not tested")
    assert "class counts alone (the method defines no record_loss, or classifier)" in bare.why
    assert decided([read], "unprotected", "inf", **about).kind == "no_leak_found"
